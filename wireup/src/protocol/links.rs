//! The machine: the links of one node, and the calls by which its owner opens and closes them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::action::{Action, CallError, Turn};
use super::crowd::Crowd;
use super::id::{LinkId, Uuid};
use super::lanes::{Answer, Offer};
use super::line::Line;
use super::link::{Live, Place, Side, Stage, State};
use super::message::{Kind, MAX_BODY, Message};
use super::pieces::{MIN_SEGMENT, split};
use super::reason::{Cause, Reason};
use super::receive::{MAX_RETRIES, reply};
use super::strangers::Strangers;
use super::table::{Slot, Table};
use super::timers::STALE;
use crate::secret::Secret;

/// Settings of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// This process.
    pub uuid: Uuid,
    /// Where peers send control messages; in every OFFER and PING. At most 4096 bytes.
    pub address: Vec<u8>,
    /// From which the names of links and the passes of peers are derived. A random one, unless a
    /// run is to be repeated.
    pub secret: Secret,
    /// Bytes of the longest control message that every control lane carries; at least 208.
    pub segment: usize,
    /// How long each phase of a link may take: connecting it, and closing it. A call may choose
    /// another length for its link.
    pub deadline: Duration,
    /// Half-open links at most; the others wait in order. One half is for links that this side
    /// offers, the other for those that peers offer: if both came from one stock, two nodes that
    /// have used theirs up would wait for each other.
    pub half_open: usize,
    /// Links at most that only peers requested and that are not connected. A further one takes the
    /// place of one of the way that has most, or is refused as [`Reason::Busy`], and then offered
    /// again until its deadline.
    pub requests: usize,
    /// Connected links at most that only peers requested, for each way.
    pub incoming: usize,
    /// Bytes at most of the OFFERs of such links that wait. All requests together take at most
    /// this, 512 bytes for each of `requests`, and 8 KiB for each of `half_open`.
    pub request_bytes: usize,
    /// A peer that is silent for this long fails, after two PINGs. `None`: no PINGs.
    pub liveness: Option<Duration>,
    /// Number of the first link with each peer, the same in all processes. Not 0 in tests of its
    /// wrap.
    pub first_sn: u32,
    /// Generation of the first link. Not 1 in tests of its wrap.
    pub first_generation: u32,
}

impl Config {
    /// Returns the default settings of the process `uuid`, whose peers reach it at `address`.
    pub fn new(uuid: Uuid, address: Vec<u8>) -> Self {
        Self {
            uuid,
            address,
            secret: Secret::random(),
            segment: 4096,
            deadline: Duration::from_secs(10),
            half_open: 64,
            requests: 1024,
            incoming: 1024,
            request_bytes: 1 << 20,
            liveness: None,
            first_sn: 0,
            first_generation: 1,
        }
    }
}

/// The links of a node.
///
/// See [the module](super) for how to drive it. Times are durations since an origin that the caller
/// chooses, and do not decrease.
#[derive(Debug)]
pub struct Links {
    pub(super) uuid: Uuid,
    pub(super) address: Box<[u8]>,
    segment: usize,
    pub(super) patience: u64,
    pub(super) liveness: Option<u64>,
    requests: usize,
    pub(super) incoming: usize,
    request_bytes: usize,
    pub(super) secret: Secret,
    /// The latest time of a call.
    clock: u64,
    pub(super) table: Table,
    /// The links that are not silent, by the names that their peers use.
    pub(super) names: BTreeMap<u64, LinkId>,
    /// One entry for each link that waits for a time: microseconds and slot.
    pub(super) timers: BTreeSet<(u64, u32)>,
    pub(super) ours: Line,
    pub(super) theirs: Crowd,
    pub(super) strangers: Strangers,
    stored: usize,
    turn: u32,
    pub(super) burden: u64,
    /// Links that were not silent at once, at most.
    pub(super) most: usize,
    actions: VecDeque<Action>,
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX - 1)
}

impl Links {
    /// Returns a node without links.
    pub fn new(config: Config) -> Self {
        let mut address = config.address;
        address.truncate(MAX_BODY / 2);
        Self {
            uuid: config.uuid,
            address: address.into_boxed_slice(),
            segment: config.segment.max(MIN_SEGMENT),
            patience: micros(config.deadline),
            liveness: config.liveness.map(|interval| micros(interval).max(2)),
            requests: config.requests,
            incoming: config.incoming,
            request_bytes: config.request_bytes,
            secret: config.secret,
            clock: 0,
            names: BTreeMap::new(),
            strangers: Strangers::default(),
            table: Table::new(config.first_sn, config.first_generation),
            timers: BTreeSet::new(),
            ours: Line::new(config.half_open / 2),
            theirs: Crowd::new(config.half_open / 2),
            stored: 0,
            turn: 0,
            burden: 0,
            most: 0,
            actions: VecDeque::new(),
        }
    }

    /// Opens a link with `peer`. It is silent until [`connect`](Self::connect) is called, or the
    /// peer connects it.
    ///
    /// The n-th link that this side opens is the n-th that the peer opens. If the peer has offered
    /// it already, the existing link is returned, in whatever state it is. `None` if 2^32 links
    /// exist.
    pub fn open(&mut self, peer: Uuid) -> Option<LinkId> {
        let sn = self.table.count_opened(&peer);
        let Some(link) = self.table.find(&peer, sn) else {
            return self.table.add(peer, sn, true);
        };
        self.uncount(link);
        self.uncount_connected(link);
        if let Some(slot) = self.table.get_mut(link) {
            slot.requested = true;
        }
        Some(link)
    }

    /// Connects a link that was opened: offers lanes to the peer, unless the peer does so. The link
    /// fails if it is not connected within `deadline`, or that of the configuration.
    pub fn connect(
        &mut self,
        link: LinkId,
        deadline: Option<Duration>,
        now: Duration,
    ) -> Result<(), CallError> {
        let (now, patience) = (self.at(now), deadline.map_or(self.patience, micros));
        self.slot(link)?;
        if self.live(link).is_none() {
            self.wait_in_line(link, patience, now);
        } else if let Some(live) =
            self.live(link).filter(|live| live.stage.answers() && !live.wanted)
        {
            (live.patience, live.deadline) = (patience, now.saturating_add(patience));
            live.wanted = true;
            let again = live.timer;
            self.arm(link, again);
        }
        self.admit();
        Ok(())
    }

    /// Reports the lanes that [`Action::Prepare`] asked for, whose endpoints exist.
    ///
    /// # Errors
    /// [`CallError`]; the caller discards the endpoints. After [`CallError::TooLong`], the caller
    /// calls this function again or [`fail`](Self::fail).
    pub fn offer(
        &mut self,
        link: LinkId,
        turn: Turn,
        offer: &Offer,
        now: Duration,
    ) -> Result<(), CallError> {
        self.expect(link, Stage::Preparing, turn)?;
        let body = offer.body(&self.address).ok_or(CallError::TooLong)?.into_boxed_slice();
        if let Some(live) = self.live(link) {
            (live.body, live.lanes) = (body, offer.lanes.len() as u8);
            live.stage = Stage::Offered;
            live.resends = 0;
        }
        let now = self.at(now);
        self.transmit(link, now);
        Ok(())
    }

    /// Reports which lanes of the peer's offer are connected, as [`Action::Answer`] asked.
    ///
    /// If one is refused, the peer may offer again without it.
    ///
    /// # Errors
    /// [`CallError`]; the caller discards the endpoints, unless the answer is to be corrected.
    pub fn answer(
        &mut self,
        link: LinkId,
        turn: Turn,
        answer: &Answer,
        now: Duration,
    ) -> Result<(), CallError> {
        let lanes = usize::from(self.expect(link, Stage::Answering, turn)?.lanes);
        if answer.lanes.len() != lanes {
            return Err(CallError::Lanes { found: answer.lanes.len(), expected: lanes });
        }
        let body = answer.body().ok_or(CallError::TooLong)?.into_boxed_slice();
        let now = self.at(now);
        if let Some(live) = self.live(link) {
            (live.body, live.complete) = (body, answer.is_complete());
            live.stage = Stage::Answered;
            live.resends = 0;
            if !live.wanted {
                live.deadline = now.saturating_add(live.patience);
            }
        }
        self.transmit(link, now);
        Ok(())
    }

    /// Refuses the peer's offer. The link fails on both sides.
    pub fn refuse(&mut self, link: LinkId, turn: Turn, reason: Reason) -> Result<(), CallError> {
        self.expect(link, Stage::Answering, turn)?;
        self.fail(link, reason)
    }

    /// Reports that the endpoints of [`Action::Complete`] are connected.
    pub fn completed(&mut self, link: LinkId, turn: Turn, now: Duration) -> Result<(), CallError> {
        self.expect(link, Stage::Completing, turn)?;
        self.send_done(link);
        let now = self.at(now);
        self.connected(link, now);
        self.admit();
        Ok(())
    }

    /// Reports that some endpoints of [`Action::Complete`] cannot be connected, and that others may
    /// be: another [`Action::Prepare`] follows.
    pub fn retry(&mut self, link: LinkId, turn: Turn) -> Result<(), CallError> {
        let retries = self.expect(link, Stage::Completing, turn)?.retries;
        if retries >= MAX_RETRIES {
            return self.fail(link, Reason::Unreachable);
        }
        if let Some(live) = self.live(link) {
            live.retries = retries + 1;
        }
        self.prepare(link, Vec::new());
        Ok(())
    }

    /// Fails the link, for example because one of its lanes failed. The peer is informed.
    pub fn fail(&mut self, link: LinkId, reason: Reason) -> Result<(), CallError> {
        self.slot(link)?;
        self.dismiss(link, reason);
        self.end(link, State::Failed(Cause::Local(reason)));
        self.admit();
        Ok(())
    }

    /// Reports that something arrived from the peer over a lane of the link, which postpones its
    /// PING.
    pub fn heard(&mut self, link: LinkId, now: Duration) {
        let now = self.at(now);
        if let Some(live) = self.live(link) {
            (live.heard, live.missed) = (now, 0);
        }
    }

    /// Returns the names of a link that is not silent: that which the peer uses, and that which
    /// this side uses, 0 before the peer has responded. No other process knows them.
    pub fn names(&self, link: LinkId) -> Option<(u64, u64)> {
        let live = self.table.get(link)?.live.as_ref()?;
        Some((live.name, live.peer_link))
    }

    /// Returns whether a link has this name, by which its peer names it.
    pub fn has_name(&self, name: u64) -> bool {
        self.names.contains_key(&name)
    }

    /// Returns the next thing to do.
    pub fn poll(&mut self) -> Option<Action> {
        let action = self.actions.pop_front();
        if self.actions.is_empty() {
            self.actions = VecDeque::new();
        }
        action
    }

    /// Returns the next reply to a node that may not be the one which it names: [`Action::Vouch`]
    /// or [`Action::Send`]. Few of them wait, and a caller that has no time for one drops it.
    pub fn poll_stranger(&mut self) -> Option<Action> {
        self.strangers.next()
    }

    /// Returns whether [`poll`](Self::poll) returns nothing.
    pub fn is_idle(&self) -> bool {
        self.actions.is_empty()
    }

    /// Returns how many messages had no effect on a link: their sender is unknown or sends more than
    /// the protocol does, or the bytes are not a message. A link that a peer makes counts as four of
    /// them, unless more links exist with it than ever before.
    pub fn burden(&self) -> u64 {
        self.burden
    }

    /// Returns whether [`poll_stranger`](Self::poll_stranger) returns something.
    pub fn has_strangers(&self) -> bool {
        !self.strangers.is_empty()
    }

    /// Returns the state of a link, or `None` after its [`Action::Ended`].
    pub fn state(&self, link: LinkId) -> Option<State> {
        let slot = self.table.get(link)?;
        match &slot.live {
            None => Some(State::Idle),
            Some(live) if live.closing.reported => None,
            Some(live) => Some(live.stage.state()),
        }
    }

    /// Returns the peer of a link.
    pub fn peer(&self, link: LinkId) -> Option<Uuid> {
        self.table.get(link).map(|slot| slot.peer)
    }

    /// Returns how many links exist, with those that are closed and remain for a peer's sake.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether no link exists.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many links are half-open.
    pub fn half_open(&self) -> usize {
        self.ours.active() + self.theirs.active()
    }

    // What the other files of the machine share.

    /// Returns a time in microseconds.
    pub(super) fn at(&mut self, now: Duration) -> u64 {
        self.clock = self.clock.max(micros(now));
        self.clock
    }

    /// Begins to keep what a silent link does not need, with a new name.
    pub(super) fn enliven(&mut self, link: LinkId, stage: Stage, patience: u64, now: u64) {
        let mut name = self.secret.number();
        while self.names.contains_key(&name) {
            name = self.secret.number();
        }
        if let Some(slot) = self.table.get_mut(link).filter(|slot| slot.live.is_none()) {
            slot.live = Some(Box::new(Live::new(name, stage, patience, now)));
            self.names.insert(name, link);
        }
    }

    /// Returns a link's state to that of a silent one.
    pub(super) fn silence(&mut self, link: LinkId) {
        if let Some(live) = self.table.get_mut(link).and_then(|slot| slot.live.take()) {
            self.names.remove(&live.name);
        }
    }

    pub(super) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(super) fn live(&mut self, link: LinkId) -> Option<&mut Live> {
        self.table.get_mut(link)?.live.as_deref_mut()
    }

    /// Returns a link that the user may still name.
    pub(super) fn slot(&self, link: LinkId) -> Result<&Slot, CallError> {
        let slot = self.table.get(link).ok_or(CallError::Ended)?;
        let reported = slot.live.as_ref().is_some_and(|live| live.closing.reported);
        if reported { Err(CallError::Ended) } else { Ok(slot) }
    }

    fn expect(&self, link: LinkId, stage: Stage, turn: Turn) -> Result<&Live, CallError> {
        let live = self.slot(link)?.live.as_ref().ok_or(CallError::Superseded)?;
        let current = live.stage == stage && live.turn == turn.0;
        if current { Ok(live) } else { Err(CallError::Superseded) }
    }

    pub(super) fn next_turn(&mut self) -> u32 {
        self.turn = self.turn.wrapping_add(1);
        self.turn
    }

    /// Sends a message to the peer's link, in parts if it is long.
    pub(super) fn send(
        &mut self,
        link: LinkId,
        kind: Kind,
        attempt: u8,
        reason: Reason,
        body: &[u8],
    ) {
        let Some(slot) = self.table.get(link) else { return };
        let Some(live) = &slot.live else { return };
        let whole = Message {
            kind,
            sn: slot.sn,
            from: live.name,
            to: live.peer_link,
            uuid: self.uuid,
            receiver: slot.peer,
            attempt,
            reason,
            offset: 0,
            total: body.len() as u16,
            order: link.generation,
            pass: if kind == Kind::Offer { live.pass } else { 0 },
            bytes: body,
        };
        let peer = slot.peer;
        let mut post = |message: Message<'_>| {
            let (link, address, message) = (Some(link), Vec::new(), message.to_bytes());
            self.actions.push_back(Action::Send { to: peer, link, address, via: 0, message });
        };
        if matches!(kind, Kind::Offer | Kind::Answer) {
            split(whole, self.segment).for_each(post);
        } else {
            post(whole);
        }
    }

    /// Puts a link into the line of this side's offers.
    pub(super) fn wait_in_line(&mut self, link: LinkId, patience: u64, now: u64) {
        let ticket = self.ours.wait(link);
        self.enliven(link, Stage::Waiting, patience, now);
        let Some(live) = self.live(link) else { return };
        live.stage = Stage::Waiting;
        live.place = Place::InLine(ticket);
        live.wanted = true;
        self.arm(link, u64::MAX);
    }

    /// Asks for the lanes of the next offer.
    pub(super) fn prepare(&mut self, link: LinkId, refused: Vec<(u8, Reason)>) {
        let turn = self.next_turn();
        let Some(slot) = self.table.get_mut(link) else { return };
        let (peer, Some(live)) = (slot.peer, slot.live.as_deref_mut()) else { return };
        live.stage = Stage::Preparing;
        live.shown = true;
        live.turn = turn;
        live.attempt = live.attempt.wrapping_add(1).max(1);
        live.body = Box::default();
        self.act(Action::Prepare { link, turn: Turn(turn), peer, refused });
        self.arm(link, u64::MAX);
    }

    /// Lets links at the front of the lines proceed while there is room.
    pub(super) fn admit(&mut self) {
        while let Some(link) = self.ours.admit() {
            let Some(live) = self.live(link) else { continue };
            live.place = Place::Ours;
            self.prepare(link, Vec::new());
        }
        while let Some(link) = self.next_guest() {
            let clock = self.clock;
            let Some(live) = self.live(link) else { continue };
            (live.place, live.admitted) = (Place::Theirs, clock);
            let (way, body) = (live.way, std::mem::take(&mut live.body));
            self.theirs.serve(way);
            self.ask_for_answer(link, &body);
        }
    }

    /// Returns the next of the links that peers offer to get a place. If there is none left, a link
    /// of the way that has most places, or one that does not get connected, makes room.
    fn next_guest(&mut self) -> Option<LinkId> {
        for way in self.theirs.waiting() {
            let queued = |link: &LinkId| self.stage(*link) == Some(Stage::Queued);
            let Some(link) = self.theirs.guests(way).find(queued) else { continue };
            if self.theirs.is_full() {
                let busier = self.theirs.busier(way).and_then(|busier| self.oldest(busier));
                let evicted = busier.or_else(|| self.stale(way))?;
                self.evict(evicted);
            }
            return Some(link);
        }
        None
    }

    fn stage(&self, link: LinkId) -> Option<Stage> {
        Some(self.table.get(link)?.live.as_ref()?.stage)
    }

    /// Returns the link of a way that has had a place for the longest time.
    fn oldest(&self, way: u16) -> Option<LinkId> {
        self.theirs.guests(way).find(|link| self.admitted(*link).is_some())
    }

    /// Returns when a link got its place among the peers' offers.
    fn admitted(&self, link: LinkId) -> Option<u64> {
        let live = self.table.get(link)?.live.as_ref()?;
        (live.place == Place::Theirs).then_some(live.admitted)
    }

    /// Returns a link whose peer had time enough to connect it, if `way` has no place.
    fn stale(&self, way: u16) -> Option<LinkId> {
        if self.oldest(way).is_some() {
            return None;
        }
        let links = self.theirs.all().filter_map(|link| Some((self.admitted(link)?, link)));
        let (admitted, link) = links.min()?;
        (self.clock.saturating_sub(admitted) > STALE).then_some(link)
    }

    /// Refuses a link that a peer offered, for the sake of another.
    fn evict(&mut self, link: LinkId) {
        self.dismiss(link, Reason::Busy);
        self.fall_back(link, Cause::Local(Reason::Busy), self.clock);
    }

    pub(super) fn connected(&mut self, link: LinkId, now: u64) {
        self.leave(link);
        self.uncount(link);
        let Some(slot) = self.table.get_mut(link) else { return };
        let (peer, requested) = (slot.peer, slot.requested);
        let Some(live) = slot.live.as_deref_mut() else { return };
        if !requested {
            live.foreign = true;
            self.theirs.connect(live.way);
        }
        live.stage = Stage::Connected;
        live.body = Box::default();
        live.assembly = None;
        live.deadline = u64::MAX;
        live.heard = now;
        live.missed = 0;
        let suspect = live.suspect;
        self.act(Action::Connected { link, peer, requested });
        match self.liveness {
            _ if suspect => self.arm(link, now),
            Some(interval) => self.arm(link, now.saturating_add(interval)),
            None => self.arm(link, u64::MAX),
        }
    }

    /// Gives up the link's place in a line.
    pub(super) fn leave(&mut self, link: LinkId) {
        let Some(live) = self.live(link) else { return };
        let (place, way) = (std::mem::replace(&mut live.place, Place::None), live.way);
        match place {
            Place::None => {}
            Place::InLine(ticket) => self.ours.leave(ticket),
            Place::Ours => self.ours.release(),
            Place::InCrowd => self.theirs.leave(way, link, false),
            Place::Theirs => self.theirs.leave(way, link, true),
        }
    }

    /// Puts a link that a peer offers into the crowd of these, if it has no place yet.
    pub(super) fn enter(&mut self, link: LinkId) {
        let Some(live) = self.live(link).filter(|live| live.place == Place::None) else { return };
        live.place = Place::InCrowd;
        let way = live.way;
        self.theirs.enter(way, link);
    }

    /// Counts the link among those that only peers requested. Returns whether the limit allows it.
    pub(super) fn count(&mut self, link: LinkId) -> bool {
        let Some(way) = self.live(link).map(|live| live.way) else { return false };
        if self.theirs.connected(way) >= self.incoming
            || self.theirs.counted() >= self.requests && !self.make_room(way)
        {
            return false;
        }
        if let Some(live) = self.live(link) {
            live.counted = true;
            self.theirs.count(way);
        }
        true
    }

    /// Refuses the oldest link of the way that has most, if it has more than `way`.
    fn make_room(&mut self, way: u16) -> bool {
        let Some(busiest) = self.theirs.more_counted(way) else { return false };
        let counted = |link: &LinkId| {
            self.table
                .get(*link)
                .and_then(|slot| slot.live.as_ref())
                .is_some_and(|live| live.counted)
        };
        let Some(oldest) = self.theirs.guests(busiest).find(counted) else { return false };
        self.evict(oldest);
        true
    }

    pub(super) fn uncount(&mut self, link: LinkId) {
        self.store(link, 0);
        let Some(live) = self.live(link) else { return };
        if std::mem::take(&mut live.counted) {
            let way = live.way;
            self.theirs.uncount(way);
        }
    }

    fn uncount_connected(&mut self, link: LinkId) {
        let Some(live) = self.live(link) else { return };
        if std::mem::take(&mut live.foreign) {
            let way = live.way;
            self.theirs.disconnect(way);
        }
    }

    /// Accounts for `bytes` of an OFFER that waits, instead of those before, if only the peer
    /// requested the link. Returns whether the limit allows it.
    pub(super) fn store(&mut self, link: LinkId, bytes: u16) -> bool {
        let Some(live) = self.live(link).filter(|live| live.counted) else { return true };
        let (way, before) = (live.way, std::mem::replace(&mut live.stored, bytes));
        self.stored = self.stored - usize::from(before) + usize::from(bytes);
        while bytes > 0 && self.stored > self.request_bytes {
            if !self.make_room(way) {
                return false;
            }
        }
        true
    }

    /// Ends the link. Nothing is sent.
    pub(super) fn end(&mut self, link: LinkId, state: State) {
        self.leave(link);
        self.uncount(link);
        self.uncount_connected(link);
        self.disarm(link);
        let Some(slot) = self.table.remove(link) else { return };
        if let Some(live) = &slot.live {
            self.names.remove(&live.name);
        }
        let (shown, reported) =
            slot.live.map_or((false, false), |live| (live.shown, live.closing.reported));
        if (slot.requested || shown) && !reported {
            self.act(Action::Ended { link, state });
        }
        if self.table.len() == 0 {
            // Emptied B-trees keep a node.
            (self.timers, self.names) = (BTreeSet::new(), BTreeMap::new());
            self.theirs.clear();
        }
    }

    /// Informs the peer, if it is known, that this side does not keep the link.
    pub(super) fn dismiss(&mut self, link: LinkId, reason: Reason) {
        let Some(slot) = self.table.get_mut(link) else { return };
        let (uuid, sn, Some(live)) = (slot.peer, slot.sn, slot.live.as_deref_mut()) else { return };
        if live.peer_link == 0 {
            return;
        }
        match live.stage {
            Stage::Connected | Stage::Closing => self.send(link, Kind::Gone, 0, Reason::None, &[]),
            // The caller has not seen the link; the OFFER has the address.
            Stage::Queued => {
                let body = std::mem::take(&mut live.body);
                let (from, attempt, order) = (live.peer_link, live.peer_attempt, live.peer_order);
                let (kind, total, reason_of_offer) = (Kind::Offer, body.len() as u16, Reason::None);
                let offer = Message {
                    kind,
                    sn,
                    from,
                    to: 0,
                    uuid,
                    receiver: self.uuid,
                    attempt,
                    reason: reason_of_offer,
                    offset: 0,
                    total,
                    order,
                    pass: 0,
                    bytes: &body,
                };
                let action = reply(&offer, Kind::Refuse, reason, 0);
                self.act(action);
            }
            stage => {
                let attempt = if stage.answers() { live.peer_attempt } else { live.attempt };
                self.send(link, Kind::Refuse, attempt, reason, &[]);
            }
        }
    }

    /// Ends a link that the user closed before it was connected.
    pub(super) fn abandon(&mut self, link: LinkId) {
        self.dismiss(link, Reason::Closed);
        self.end(link, State::Closed(Side::Here));
    }
}
