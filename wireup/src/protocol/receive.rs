//! What each message does.

use std::time::Duration;

use super::action::{Action, Turn};
use super::id::{LinkId, Uuid, is_newer};
use super::lanes::{Answer, Offer};
use super::link::{Place, Stage, State};
use super::links::Links;
use super::message::{Kind, Message, MessageError};
use super::pieces::Assembly;
use super::reason::{Cause, Reason};
use super::strangers::address_in;

/// Offers at most that are refused in part, before the link fails.
pub(super) const MAX_RETRIES: u8 = 64;
/// How many messages without effect a link counts as that a peer makes.
const LINK: u64 = 16;
/// A pass is the way in the bits from this one on, and below it the proof.
const WAY: u64 = 1 << 48;

/// What an OFFER means for the link of its number.
enum Verdict {
    /// A duplicate, or an offer that does not stand.
    Ignore,
    /// The ANSWER was perhaps lost.
    Repeat,
    /// The peer's offer stands, or continues to arrive.
    Take,
    /// The peer opened another link of this number, because its half of this one is closed.
    Separate,
}

impl Links {
    /// Takes one control message. Returns whether the message itself proves that its sender is the
    /// node which it names.
    ///
    /// # Errors
    /// [`MessageError`] if the bytes are not a message; they have no effect, except that an OFFER
    /// of another version is refused.
    pub fn receive(&mut self, bytes: &[u8], now: Duration) -> Result<bool, MessageError> {
        self.receive_via(bytes, 0, now)
    }

    /// As [`receive`](Self::receive), for a message that came over the connection `via`. Replies to
    /// it have the same number, which means nothing to the machine.
    ///
    /// # Errors
    /// As there.
    pub fn receive_via(
        &mut self,
        bytes: &[u8],
        via: u64,
        now: Duration,
    ) -> Result<bool, MessageError> {
        let message = match Message::from_bytes(bytes) {
            Ok(message) => message,
            Err(error) => {
                self.burden += 1;
                if let Some(offer) = Message::foreign_offer(bytes) {
                    self.reply_to_stranger(&offer, Kind::Refuse, Reason::Version, via);
                }
                return Err(error);
            }
        };
        let now = self.at(now);
        let proves = if message.kind == Kind::Offer {
            self.on_any_offer(&message, via, now)
        } else {
            self.on_addressed(&message, via, now)?
        };
        self.admit();
        Ok(proves)
    }

    /// Takes an OFFER. It has an effect on links only if the sender has shown that it is at its
    /// address.
    fn on_any_offer(&mut self, message: &Message<'_>, via: u64, now: u64) -> bool {
        if message.receiver != self.uuid {
            self.burden += 1;
            self.reply_to_stranger(message, Kind::Refuse, Reason::Restarted, via);
            return false;
        }
        let Some(way) = self.way_of(message) else {
            self.burden += 1;
            if let Some(address) = self.strangers.address(message) {
                let (peer, name) = (message.uuid, message.from);
                self.strangers.reply(Action::Vouch { peer, name, address });
            }
            return false;
        };
        if self.theirs.may_offer(way, now) {
            self.on_offer(message, way, now);
        } else {
            self.burden += 1;
        }
        true
    }

    /// Takes a message that names a link of this side.
    fn on_addressed(
        &mut self,
        message: &Message<'_>,
        via: u64,
        now: u64,
    ) -> Result<bool, MessageError> {
        let meant = message.receiver == self.uuid;
        let link = self.names.get(&message.to).copied().filter(|link| {
            meant && self.table.get(*link).is_some_and(|slot| slot.peer == message.uuid)
        });
        let Some(link) = link else {
            self.burden += 1;
            if !matches!(message.kind, Kind::Pong | Kind::Refuse | Kind::Gone | Kind::Pass) {
                self.reply_to_stranger(message, Kind::Gone, Reason::None, via);
            }
            return Ok(false);
        };
        if !self.live(link).is_some_and(|live| live.may_send(now)) {
            self.burden += 1;
            return Ok(true);
        }
        match message.kind {
            Kind::Refuse => self.on_refuse(link, message),
            Kind::Gone => self.on_gone(link, message, now),
            Kind::Pass => self.on_pass(link, message, now),
            _ if self.is_of_peer(link, message) => self.on_message(link, message, now)?,
            Kind::Pong => self.burden += 1,
            _ => {
                self.burden += 1;
                self.reply_to_stranger(message, Kind::Gone, Reason::None, via);
            }
        }
        Ok(true)
    }

    /// Returns whether the sender's link is the peer's half of this one.
    fn is_of_peer(&self, link: LinkId, message: &Message<'_>) -> bool {
        let Some(live) = self.table.get(link).and_then(|slot| slot.live.as_ref()) else {
            return false;
        };
        let answers = matches!(message.kind, Kind::Answer | Kind::Close);
        let first = live.stage == Stage::Offered
            && answers
            && (live.peer_link == 0 || is_newer(message.order, live.peer_order));
        live.peer_link == message.from || first
    }

    /// Returns the pass of a node that is reached on a way.
    fn pass_of(&self, uuid: &Uuid, way: u16) -> u64 {
        let mut bytes = [0; 18];
        bytes[..16].copy_from_slice(uuid);
        bytes[16..].copy_from_slice(&way.to_be_bytes());
        let proof = self.secret.proof(&bytes) & WAY.wrapping_sub(1);
        ((u64::from(way) * WAY) | proof).max(1)
    }

    /// Returns the way on which the sender of an OFFER is reached, if its pass is right.
    fn way_of(&self, offer: &Message<'_>) -> Option<u16> {
        let way = (offer.pass / WAY) as u16;
        (offer.pass != 0 && offer.pass == self.pass_of(&offer.uuid, way)).then_some(way)
    }

    /// Returns the message that [`Action::Vouch`] asks for. `way` identifies the route to the
    /// address: nodes with one route share what half-open links there may be.
    pub fn pass(&self, peer: Uuid, name: u64, way: u16) -> Box<[u8]> {
        let message = Message {
            kind: Kind::Pass,
            sn: 0,
            from: 0,
            to: name,
            uuid: self.uuid,
            receiver: peer,
            attempt: 0,
            reason: Reason::None,
            offset: 0,
            total: 0,
            order: 0,
            pass: self.pass_of(&peer, way),
            bytes: &[],
        };
        message.to_bytes()
    }

    /// Returns the pass for an offer to a peer: the one that another link got, or this node's own.
    pub(super) fn known_pass(&self, link: LinkId) -> u64 {
        let Some(slot) = self.table.get(link) else { return 0 };
        if slot.peer == self.uuid {
            return self.pass_of(&self.uuid, 0);
        }
        let others = self.table.with_peer(&slot.peer).take(8);
        let mut passes = others.filter_map(|other| Some(other.live.as_ref()?.pass));
        passes.find(|pass| *pass != 0).unwrap_or(0)
    }

    /// The peer has sent this side its pass: the offer is repeated with it.
    fn on_pass(&mut self, link: LinkId, message: &Message<'_>, now: u64) {
        let Some(live) = self.live(link) else { return };
        let is_new = live.pass != message.pass;
        live.pass = message.pass;
        if is_new && live.stage == Stage::Offered {
            live.resends = 0;
            self.transmit(link, now);
        }
    }

    fn reply_to_stranger(&mut self, to: &Message<'_>, kind: Kind, reason: Reason, via: u64) {
        let action = reply(to, kind, reason, via);
        self.strangers.reply(action);
    }

    fn on_message(
        &mut self,
        link: LinkId,
        message: &Message<'_>,
        now: u64,
    ) -> Result<(), MessageError> {
        if let Some(live) = self.live(link) {
            (live.heard, live.missed) = (now, 0);
        }
        match message.kind {
            Kind::Answer => return self.on_answer(link, message),
            Kind::Done => self.on_done(link, message.attempt, now),
            Kind::Close => self.on_close(link, message, now),
            Kind::Closed => self.on_closed(link, now),
            Kind::Ping => {
                self.imply_done(link, now);
                self.send(link, Kind::Pong, 0, Reason::None, &[]);
            }
            Kind::Pong | Kind::Offer | Kind::Refuse | Kind::Gone | Kind::Pass => {}
        }
        Ok(())
    }

    fn on_offer(&mut self, message: &Message<'_>, way: u16, now: u64) {
        // To itself, the links 2n and 2n + 1 are the two ends.
        let sn = if message.uuid == self.uuid { message.sn ^ 1 } else { message.sn };
        let Some(link) = self.table.find(&message.uuid, sn) else {
            return self.on_new_offer(message, way, sn, now);
        };
        match self.judge(link, message) {
            // Once for all parts of a message.
            Verdict::Repeat if message.offset == 0 => self.transmit(link, now),
            Verdict::Repeat | Verdict::Ignore => {}
            Verdict::Take => self.take_offer(link, message, way, now),
            Verdict::Separate => {
                self.table.unpair(link);
                if let Some(live) = self.live(link) {
                    live.suspect = true;
                    let connected = live.stage == Stage::Connected;
                    self.arm(link, if connected { now } else { u64::MAX });
                }
                self.on_new_offer(message, way, sn, now);
            }
        }
    }

    fn judge(&self, link: LinkId, message: &Message<'_>) -> Verdict {
        let Some(slot) = self.table.get(link) else { return Verdict::Ignore };
        let Some(live) = &slot.live else { return Verdict::Take };
        let same = message.from == live.peer_link;
        let newer = live.peer_link == 0 || is_newer(message.order, live.peer_order);
        // To itself, the even link's offer stands.
        let ours = (self.uuid, slot.sn & 1) < (message.uuid, 1 & !slot.sn);
        match live.stage {
            Stage::Preparing | Stage::Offered if same || !newer || ours => Verdict::Ignore,
            Stage::Waiting | Stage::Preparing | Stage::Offered => Verdict::Take,
            Stage::Completing | Stage::Connected if same || !newer => Verdict::Ignore,
            Stage::Completing | Stage::Connected => Verdict::Separate,
            Stage::Closing => Verdict::Ignore,
            _ if !same => {
                if newer {
                    Verdict::Take
                } else {
                    Verdict::Ignore
                }
            }
            Stage::Arriving if message.attempt == live.peer_attempt => Verdict::Take,
            Stage::Answered if message.attempt == live.peer_attempt => Verdict::Repeat,
            _ if (message.attempt.wrapping_sub(live.peer_attempt) as i8) > 0 => Verdict::Take,
            _ => Verdict::Ignore,
        }
    }

    /// Takes an OFFER for a link that does not exist here.
    fn on_new_offer(&mut self, message: &Message<'_>, way: u16, sn: u32, now: u64) {
        let Some(link) = self.table.add(message.uuid, sn, false) else { return };
        self.enliven(link, Stage::Arriving, self.patience, now);
        if let Some(live) = self.live(link) {
            live.way = way;
        }
        if self.names.len() > self.most {
            self.most = self.names.len();
        } else {
            self.burden += LINK;
        }
        if self.count(link) {
            self.take_offer(link, message, way, now);
        } else {
            self.refuse_as_busy(link, message);
        }
    }

    fn refuse_as_busy(&mut self, link: LinkId, offer: &Message<'_>) {
        self.end(link, State::Failed(Cause::Local(Reason::Busy)));
        let action = reply(offer, Kind::Refuse, Reason::Busy, 0);
        self.act(action);
    }

    /// Takes a part of the peer's OFFER, which stands.
    fn take_offer(&mut self, link: LinkId, message: &Message<'_>, way: u16, now: u64) {
        self.enliven(link, Stage::Arriving, self.patience, now);
        self.set_way(link, way);
        let Some(live) = self.live(link) else { return };
        let continues = live.stage == Stage::Arriving
            && (live.peer_link, live.peer_attempt) == (message.from, message.attempt);
        if !continues {
            live.stage = Stage::Arriving;
            live.peer_link = message.from;
            live.peer_order = message.order;
            live.peer_attempt = message.attempt;
            live.turn = 0;
            live.body = Box::default();
            live.assembly = None;
            if !live.place.is_active() {
                self.leave(link);
            }
        }
        if message.bytes.len() == usize::from(message.total) {
            return self.offer_arrived(link, message.bytes, now);
        }
        if !self.store(link, message.total) {
            return self.refuse_as_busy(link, message);
        }
        self.enter(link);
        let Some(live) = self.live(link) else { return };
        let assembly = live.assembly.get_or_insert_with(|| Box::new(Assembly::new(message)));
        if assembly.suits(message) && assembly.add(message) {
            let body =
                live.assembly.take().map(|assembly| assembly.into_body()).unwrap_or_default();
            self.offer_arrived(link, &body, now);
        } else {
            self.arm(link, u64::MAX);
        }
    }

    fn offer_arrived(&mut self, link: LinkId, body: &[u8], now: u64) {
        let patience = self.patience;
        let Some(live) = self.live(link) else { return };
        live.assembly = None;
        if !live.wanted {
            // Refused before the peer's deadline, the peer learns the reason.
            let theirs =
                body.first_chunk().map_or(0, |bytes| u64::from(u32::from_be_bytes(*bytes)));
            live.patience = patience.min(theirs.saturating_mul(1000));
            live.deadline = now.saturating_add(live.patience / 4 * 3);
        }
        if live.place.is_active() {
            return self.ask_for_answer(link, body);
        }
        live.stage = Stage::Queued;
        live.body = body.into();
        self.enter(link);
        if !self.store(link, body.len() as u16) {
            self.dismiss(link, Reason::Busy);
            return self.end(link, State::Failed(Cause::Local(Reason::Busy)));
        }
        self.arm(link, u64::MAX);
    }

    pub(super) fn ask_for_answer(&mut self, link: LinkId, body: &[u8]) {
        self.store(link, 0);
        let Ok(received) = Offer::from_body(body) else {
            self.dismiss(link, Reason::Malformed);
            return self.end(link, State::Failed(Cause::Local(Reason::Malformed)));
        };
        let turn = self.next_turn();
        let Some(slot) = self.table.get_mut(link) else { return };
        let (peer, Some(live)) = (slot.peer, slot.live.as_deref_mut()) else { return };
        live.stage = Stage::Answering;
        live.turn = turn;
        live.shown = true;
        live.lanes = received.offer.lanes.len() as u8;
        let (address, offer) = (received.address, received.offer);
        self.act(Action::Answer { link, turn: Turn(turn), peer, address, offer });
        self.arm(link, u64::MAX);
    }

    fn on_answer(&mut self, link: LinkId, message: &Message<'_>) -> Result<(), MessageError> {
        let Some(live) = self.live(link) else { return Ok(()) };
        if message.attempt != live.attempt {
            return Ok(());
        }
        match live.stage {
            Stage::Offered => {}
            // The DONE was lost. One is sent for all parts of the ANSWER.
            Stage::Connected | Stage::Closing if message.offset == 0 => {
                self.send_done(link);
                return Ok(());
            }
            _ => return Ok(()),
        }
        if message.bytes.len() == usize::from(message.total) {
            return self.answer_arrived(link, message, message.bytes);
        }
        match &live.assembly {
            Some(assembly) if assembly.suits(message) => {}
            Some(assembly) if is_newer(assembly.order, message.order) => return Ok(()),
            _ => live.assembly = Some(Box::new(Assembly::new(message))),
        }
        let Some(assembly) = live.assembly.as_mut() else { return Ok(()) };
        if assembly.add(message) {
            let body =
                live.assembly.take().map(|assembly| assembly.into_body()).unwrap_or_default();
            return self.answer_arrived(link, message, &body);
        }
        Ok(())
    }

    fn answer_arrived(
        &mut self,
        link: LinkId,
        message: &Message<'_>,
        body: &[u8],
    ) -> Result<(), MessageError> {
        let turn = self.next_turn();
        let Some(live) = self.live(link) else { return Ok(()) };
        (live.peer_link, live.peer_order) = (message.from, message.order);
        live.assembly = None;
        let answer = match Answer::from_body(body) {
            Ok(answer) if answer.lanes.len() == usize::from(live.lanes) => answer,
            other => {
                self.dismiss(link, Reason::Malformed);
                self.end(link, State::Failed(Cause::Local(Reason::Malformed)));
                let what = "the answer has another number of lanes than the offer";
                return other.and(Err(MessageError::Body { kind: Kind::Answer, what }));
            }
        };
        let refused: Vec<_> = (0..)
            .zip(&answer.lanes)
            .filter_map(|(index, lane)| lane.as_ref().err().map(|reason| (index, *reason)))
            .collect();
        if let Some((_, reason)) = refused.first().copied() {
            live.retries = live.retries.saturating_add(1);
            if live.retries > MAX_RETRIES {
                self.dismiss(link, reason);
                self.end(link, State::Failed(Cause::Refused(reason)));
            } else {
                self.prepare(link, refused);
            }
            return Ok(());
        }
        live.stage = Stage::Completing;
        live.turn = turn;
        live.body = Box::default();
        self.act(Action::Complete { link, turn: Turn(turn), answer });
        self.arm(link, u64::MAX);
        Ok(())
    }

    pub(super) fn send_done(&mut self, link: LinkId) {
        let attempt = self.live(link).map_or(0, |live| live.attempt);
        self.send(link, Kind::Done, attempt, Reason::None, &[]);
    }

    fn on_done(&mut self, link: LinkId, attempt: u8, now: u64) {
        let Some(live) = self.live(link) else { return };
        match live.stage {
            Stage::Answered if attempt == live.peer_attempt => self.imply_done(link, now),
            Stage::Closing if attempt == 0 && live.closing.drained => {
                live.closing.released = true;
                self.settle(link, now);
            }
            _ => {}
        }
    }

    /// Connects a link whose peer is connected.
    pub(super) fn imply_done(&mut self, link: LinkId, now: u64) {
        if self.live(link).is_some_and(|live| live.stage == Stage::Answered && live.complete) {
            self.connected(link, now);
        }
    }

    fn on_refuse(&mut self, link: LinkId, message: &Message<'_>) {
        let Some(live) = self.live(link) else { return };
        let ours = live.stage == Stage::Offered && message.attempt == live.attempt;
        let theirs = live.stage.answers() && message.from == live.peer_link;
        if ours && message.reason == Reason::Busy {
            // The offer is repeated until its deadline.
            live.busy = true;
        } else if ours || theirs {
            self.end(link, State::Failed(Cause::Refused(message.reason)));
        }
    }

    fn on_gone(&mut self, link: LinkId, message: &Message<'_>, now: u64) {
        let Some(live) = self.live(link).filter(|live| live.peer_link == message.from) else {
            return;
        };
        match live.stage {
            // The response to the ANSWER of an earlier offer says nothing about this one.
            stage if stage.answers() && ![0, live.peer_attempt].contains(&message.attempt) => {}
            stage if stage.answers() => self.fall_back(link, Cause::Reset, now),
            Stage::Closing if live.closing.is_done() => self.end(link, State::Failed(Cause::Reset)),
            Stage::Completing | Stage::Connected | Stage::Closing => {
                self.end(link, State::Failed(Cause::Reset));
            }
            _ => {}
        }
    }

    /// The peer's offer came to nothing. A link that the user wants connected is offered by this
    /// side, and one that the user opened is silent again.
    pub(super) fn fall_back(&mut self, link: LinkId, cause: Cause, now: u64) {
        let Some(slot) = self.table.get(link) else { return };
        let Some(live) = slot.live.as_ref() else { return };
        if !slot.requested {
            return self.end(link, State::Failed(cause));
        }
        let (wanted, shown, patience) = (live.wanted, live.shown, live.patience);
        self.leave(link);
        self.disarm(link);
        if shown {
            self.act(Action::Discard { link });
        }
        if wanted {
            if let Some(live) = self.live(link) {
                live.peer_link = 0;
                live.body = Box::default();
                live.assembly = None;
            }
            self.wait_in_line(link, patience, now);
        } else {
            self.uncount(link);
            self.silence(link);
        }
    }

    /// The peer's OFFER came on this way.
    fn set_way(&mut self, link: LinkId, way: u16) {
        let Some(live) = self.live(link).filter(|live| live.way != way) else { return };
        let counted = live.counted;
        if matches!(live.place, Place::InCrowd | Place::Theirs) {
            self.leave(link);
        }
        self.uncount(link);
        let Some(live) = self.live(link) else { return };
        (live.way, live.counted) = (way, counted);
        if counted {
            self.theirs.count(way);
        }
    }
}

/// Returns the response to a message that has no link here, as the process that it was meant for.
pub(super) fn reply(to: &Message<'_>, kind: Kind, reason: Reason, via: u64) -> Action {
    let address = match to.kind {
        Kind::Offer if to.offset == 0 => address_in(to.bytes).unwrap_or_default().to_vec(),
        Kind::Ping => to.bytes.to_vec(),
        _ => Vec::new(),
    };
    let message = Message {
        kind,
        sn: to.sn,
        from: to.to,
        to: to.from,
        uuid: to.receiver,
        receiver: to.uuid,
        attempt: to.attempt,
        reason,
        offset: 0,
        total: 0,
        order: 0,
        pass: 0,
        bytes: &[],
    };
    Action::Send { to: to.uuid, link: None, address, via, message: message.to_bytes() }
}
