//! The lanes of links that are being connected: planned, opened, and connected to the peer's.

use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::report::warn;
use barewire::{ConnectError, Endpoint};
use barewire_tcp::interfaces::Routes;
use barewire_tcp::stall_timer::StallTimer;
use barewire_tcp::time::after;

use super::Shared;
use super::stream::trial;
use crate::address::{Entry, Uuid, WorkerAddress};
use crate::link::{Inner, LaneInfo, LinkError};
use crate::plan::{Connects, Kind, Kinds, Lane, Needs, Pair, Plan, Sides};
use crate::protocol::{self, Action, Answer, LinkId, Offer, Reason, Turn};

/// How long all addresses of a peer refuse connections before it is taken for dead. A peer behind a
/// firewall that refuses connections has this time to make one itself.
const REFUSED: Duration = Duration::from_secs(1);

/// The endpoints of a turn, until the link is connected.
#[derive(Default)]
pub(super) struct Making {
    /// The interfaces in the peer's address.
    peers: Vec<Entry>,
    /// The plan for the first offer, if the link was planned already.
    plan: Option<Plan>,
    lanes: Vec<Made>,
    /// Pairs that failed or that the peer refused.
    excluded: Vec<(Pair, String)>,
    /// The endpoints are being connected in this turn, and how long that may take before other
    /// pairs are tried.
    trial: Option<(Turn, StallTimer)>,
}

/// An endpoint with what the plan says of it.
struct Made {
    lane: Lane,
    endpoint: Endpoint,
    /// Its address, which the peer needs; empty if it connected to an interface.
    address: Vec<u8>,
}

impl Making {
    pub(super) fn new(peers: Vec<Entry>, plan: Option<Plan>) -> Self {
        Self { peers, plan, ..Self::default() }
    }
}

/// What the peer is told of a lane that this side cannot connect. The user of this side is warned
/// if that is for lack of resources: the peer cannot know of which.
fn reason_of(error: &ConnectError) -> Reason {
    match error {
        ConnectError::Device { .. } | ConnectError::Open(_) => {
            warn(&format!("a lane of a peer's link is refused: {error}"));
            Reason::NoResources
        }
        _ => Reason::Unreachable,
    }
}

impl Shared {
    fn sides<'a>(&'a self, peer: Uuid, entries: &'a [Entry]) -> Sides<'a> {
        Sides { uuids: (self.uuid, peer), here: &self.entries, there: entries }
    }

    /// Plans a link to the interfaces of a peer, without the pairs that are excluded, and without
    /// those that are blocked if there are others.
    pub(super) fn plan(
        &self,
        peer: Uuid,
        entries: &[Entry],
        needs: Needs,
        excluded: &[(Pair, String)],
    ) -> Plan {
        self.blocked.borrow_mut().expire(Instant::now());
        let plan = self.plan_once(peer, entries, needs, excluded);
        let lacks = !plan.lacking().is_empty() || plan.lane(Kind::Control).is_none();
        if lacks && self.blocked.borrow_mut().clear(peer) {
            return self.plan_once(peer, entries, needs, excluded);
        }
        plan
    }

    /// Has plans avoid a pair for a while; `is_refused` if no process listens at the peer's side.
    /// Returns false if that is no news.
    pub(super) fn block(&self, peer: Uuid, pair: Pair, reason: &str, is_refused: bool) -> bool {
        let mut blocked = self.blocked.borrow_mut();
        blocked.add(peer, pair, reason.to_owned(), is_refused, Instant::now())
    }

    /// Fails the links to a peer that are being connected if all its addresses for control
    /// connections have refused for [`REFUSED`], and no connection has come from it meanwhile.
    pub(super) fn fail_refused(&self, peer: Uuid, links: &[Rc<Inner>]) {
        let is_connected =
            self.streams.borrow().as_ref().is_some_and(|streams| streams.count_of(peer) > 0);
        let Some(address) = self.address_of(&peer).filter(|_| !is_connected) else { return };
        let (entries, now) = (address.entries().collect::<Vec<Entry>>(), Instant::now());
        let routes = Routes::default();
        let limits = self.limits();
        let plan = self.sides(peer, &entries).plan(Needs::messages(), &limits, &mut |pair| {
            let refused = self.blocked.borrow().refused(peer, pair);
            if refused.is_some_and(|since| now.saturating_duration_since(since) >= REFUSED) {
                return Err(String::new());
            }
            self.reaches(pair, &entries, &routes)
        });
        if plan.lane(Kind::Control).is_some() {
            return;
        }
        for inner in links.iter().filter(|inner| inner.may_connect()) {
            let reason = "no process listens at any of its addresses for control connections: \
                          the peer has ended, its address is old, or a firewall refuses connections";
            self.give_up(inner, reason.to_owned());
        }
    }

    fn reaches(&self, pair: Pair, entries: &[Entry], routes: &Routes) -> Result<bool, String> {
        let own = self.interfaces.get(usize::from(pair.here));
        match (own, entries.get(usize::from(pair.there))) {
            (Some(own), Some(peer)) => own.reaches(peer, routes),
            _ => Err("no such interface".to_owned()),
        }
    }

    fn plan_once(
        &self,
        peer: Uuid,
        entries: &[Entry],
        needs: Needs,
        excluded: &[(Pair, String)],
    ) -> Plan {
        let routes = Routes::default();
        self.sides(peer, entries).plan(needs, &self.limits(), &mut |pair| {
            if let Some((_, reason)) = excluded.iter().find(|(known, _)| *known == pair) {
                return Err(reason.clone());
            }
            if let Some(reason) = self.blocked.borrow().reason(peer, pair) {
                return Err(reason.to_owned());
            }
            self.reaches(pair, entries, &routes)
        })
    }

    /// Opens the lanes of an offer.
    pub(super) fn prepare(&self, id: LinkId, turn: Turn, refused: &[(u8, Reason)]) {
        let Some(inner) = self.link(id) else { return };
        let mut making = self.making.borrow_mut().remove(&id).unwrap_or_default();
        if making.peers.is_empty() {
            let Some(address) = self.address_of(&inner.peer) else {
                return self.give_up(&inner, "the peer's address is not known".to_owned());
            };
            making.peers = address.entries().collect();
        }
        for (index, reason) in refused {
            if let Some(made) = making.lanes.get(usize::from(*index)) {
                making.excluded.push((made.lane.pair, format!("the peer refuses it: {reason}")));
            }
        }
        let needs = inner.needs.get();
        loop {
            let plan = making
                .plan
                .take()
                .unwrap_or_else(|| self.plan(inner.peer, &making.peers, needs, &making.excluded));
            if !plan.lacking().is_empty() {
                return self.give_up(&inner, format!("no lane for {}\n{plan}", plan.lacking()));
            }
            match self.open_lanes(&plan, &making.peers) {
                Ok(lanes) => {
                    making.lanes = lanes;
                    break;
                }
                Err(failed) => making.excluded.push(failed),
            }
        }
        let lanes = making.lanes.iter().map(|made| protocol::Lane {
            kind: made.lane.kinds.bits(),
            here: made.lane.pair.here,
            there: made.lane.pair.there,
            endpoint: made.address.clone(),
        });
        let ticket = inner.ticket.get();
        let private = if ticket == 0 { Vec::new() } else { ticket.to_le_bytes().to_vec() };
        let offer = Offer { needs: needs.bits(), errors: 0, lanes: lanes.collect(), private };
        self.making.borrow_mut().insert(id, making);
        let offered = self.machine.borrow_mut().offer(id, turn, &offer, self.now());
        if let Err(protocol::CallError::TooLong) = offered {
            self.give_up(&inner, "the offer is too long".to_owned());
        }
    }

    /// An endpoint for each lane; or the pair that failed.
    fn open_lanes(&self, plan: &Plan, peers: &[Entry]) -> Result<Vec<Made>, (Pair, String)> {
        // A lane that carries control alone is the nodes', not the link's.
        let lanes = plan.lanes.iter().filter(|lane| lane.kinds != Kinds::of(Kind::Control));
        lanes
            .map(|lane| {
                let failed = |error: &dyn std::fmt::Display| (lane.pair, error.to_string());
                let indices = (usize::from(lane.pair.here), usize::from(lane.pair.there));
                let (Some(own), Some(peer)) =
                    (self.interfaces.get(indices.0), peers.get(indices.1))
                else {
                    return Err(failed(&"no such interface"));
                };
                let (endpoint, address) = match lane.connects {
                    Connects::ToInterface => (
                        own.connect_to_interface(peer).map_err(|error| failed(&error))?,
                        Vec::new(),
                    ),
                    _ => own.open_endpoint().map_err(|error| failed(&error))?,
                };
                Ok(Made { lane: *lane, endpoint, address })
            })
            .collect()
    }

    /// Connects the lanes that a peer offers, or refuses some.
    pub(super) fn respond(
        self: &Rc<Self>,
        id: LinkId,
        turn: Turn,
        peer: [u8; 16],
        address: &[u8],
        offer: &Offer,
    ) {
        // The peer has shown that it is at the address of this uuid, so this must be that address.
        let address = WorkerAddress::from_bytes(address)
            .ok()
            .filter(|address| address.uuid().0 == peer && address.is_certified());
        let Some(address) = address else {
            let _ = self.machine.borrow_mut().refuse(id, turn, Reason::Malformed);
            return;
        };
        self.remember(&address);
        if !self.knows_ticket(address.uuid(), &offer.private) {
            let _ = self.machine.borrow_mut().refuse(id, turn, Reason::Rejected);
            return;
        }
        if let Some(streams) = &mut *self.streams.borrow_mut() {
            streams.keep(&address.uuid());
        }
        let inner = self.link_or_new(id, address.uuid(), Needs::from_bits(offer.needs));
        inner.state.set(protocol::State::Answered);
        let peers: Vec<Entry> = address.entries().collect();
        let sides = self.sides(address.uuid(), &peers);
        let made: Vec<Result<Made, Reason>> =
            offer.lanes.iter().map(|lane| self.connect_lane(sides, lane)).collect();
        let lanes = made.iter().map(|made| match made {
            Ok(made) => Ok(made.address.clone()),
            Err(reason) => Err(*reason),
        });
        let answer = Answer { lanes: lanes.collect(), private: Vec::new() };
        let lanes = made.into_iter().flatten().collect();
        let making = Making { lanes, ..Making::new(peers, None) };
        let messages =
            making.lanes.iter().filter(|made| made.lane.kinds.contains(Kind::Messages)).count();
        self.making.borrow_mut().insert(id, making);
        let mut machine = self.machine.borrow_mut();
        // An offer that has not one lane for messages makes no sense; a refused one comes again.
        let result = if messages == 1 || !answer.is_complete() {
            machine.answer(id, turn, &answer, self.now())
        } else {
            machine.refuse(id, turn, Reason::Malformed)
        };
        drop(machine);
        if let Err(protocol::CallError::TooLong) = result {
            let _ = self.machine.borrow_mut().refuse(id, turn, Reason::NoResources);
        }
    }

    /// Whether a peer's offer is not of a link between client and server, or is of a client or a
    /// server of this node.
    fn knows_ticket(&self, peer: Uuid, private: &[u8]) -> bool {
        let Some(ticket) = private.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else {
            return true;
        };
        let links = self.links.borrow();
        let mut tickets =
            links.values().filter(|inner| inner.peer == peer).map(|inner| inner.ticket.get());
        self.has_ticket(ticket) || tickets.any(|known| known == ticket)
    }

    /// Connects one lane of a peer's offer.
    fn connect_lane(&self, sides: Sides<'_>, offered: &protocol::Lane) -> Result<Made, Reason> {
        let kinds = Kinds::from_bits(offered.kind)
            .filter(|kinds| !kinds.is_empty())
            .ok_or(Reason::Unsupported)?;
        // The peer's "here" is this side's "there".
        let pair = Pair { here: offered.there, there: offered.here };
        let own = self.interfaces.get(usize::from(pair.here)).ok_or(Reason::Unsupported)?;
        let peer = sides.there.get(usize::from(pair.there)).ok_or(Reason::Malformed)?;
        let connects =
            if offered.endpoint.is_empty() { Connects::ToInterface } else { Connects::ToEndpoint };
        let lane =
            sides.lane_of(pair, kinds, connects, &self.limits()).ok_or(Reason::Unsupported)?;
        let (endpoint, address) = if connects == Connects::ToInterface {
            let endpoint = own.connect_to_interface(peer);
            (endpoint.map_err(|error| reason_of(&error))?, Vec::new())
        } else {
            let opened = own.open_endpoint();
            let (endpoint, address) = opened.map_err(|error| reason_of(&error))?;
            own.connect_endpoint(&endpoint, peer, &offered.endpoint)
                .map_err(|error| reason_of(&error))?;
            (endpoint, address)
        };
        Ok(Made { lane, endpoint, address })
    }

    /// Connects the endpoints of this side's offer to those of the answer.
    pub(super) fn complete(&self, id: LinkId, turn: Turn, answer: &Answer) {
        let Some(inner) = self.link(id) else { return };
        let mut all = self.making.borrow_mut();
        let Some(making) = all.get_mut(&id) else { return };
        for (made, endpoint) in making.lanes.iter().zip(&answer.lanes) {
            let pair = made.lane.pair;
            let own = self.interfaces.get(usize::from(pair.here));
            let peer = making.peers.get(usize::from(pair.there));
            let (Ok(theirs), Some(own), Some(peer)) = (endpoint, own, peer) else { continue };
            if made.lane.connects == Connects::ToEndpoint
                && let Err(error) = own.connect_endpoint(&made.endpoint, peer, theirs)
            {
                let lane = made.lane;
                drop(all);
                return self.try_others(&inner, turn, &lane, &error.to_string(), true);
            }
        }
        let limits = making.lanes.iter().map(|made| self.trial_of(&made.lane));
        let limit = limits.max().unwrap_or_default();
        making.trial = Some((turn, StallTimer::new(limit, Instant::now())));
        drop(all);
        self.attend_to_trial(id);
    }

    /// How long a lane may take to be connected before others are tried.
    fn trial_of(&self, lane: &Lane) -> Duration {
        let own = self.interfaces.get(usize::from(lane.pair.here));
        trial(self.rules.deadline, own.and_then(|own| own.host))
    }

    /// Checks the endpoints that are being connected.
    pub(super) fn attend_to_trials(&self) {
        let making = self.making.borrow();
        let trials = making.iter().filter(|(_, making)| making.trial.is_some());
        let ids: Vec<LinkId> = trials.map(|(id, _)| *id).collect();
        drop(making);
        for id in ids {
            self.attend_to_trial(id);
        }
    }

    /// When [`attend_to_trials`](Self::attend_to_trials) has something to do although nothing
    /// happens.
    pub(super) fn trial_deadline(&self, now: Instant) -> Option<Instant> {
        let making = self.making.borrow();
        let has_trial = making.values().any(|making| making.trial.is_some());
        has_trial.then(|| after(now, trial(self.rules.deadline, None) / 16))
    }

    /// Completes a link whose lanes are all connected. If one cannot be, others are tried.
    fn attend_to_trial(&self, id: LinkId) {
        let Some(inner) = self.link(id) else { return };
        let mut all = self.making.borrow_mut();
        let Some(making) = all.get_mut(&id) else { return };
        let Some((turn, timer)) = &mut making.trial else { return };
        let turn = *turn;
        let failed = making
            .lanes
            .iter()
            .find_map(|made| Some((made.lane, made.endpoint.error()?.to_string())));
        if let Some((lane, reason)) = failed {
            drop(all);
            return self.try_others(&inner, turn, &lane, &reason, true);
        }
        let Some(late) = making.lanes.iter().find(|made| made.endpoint.is_connecting()) else {
            making.trial = None;
            drop(all);
            let _ = self.machine.borrow_mut().completed(id, turn, self.now());
            return;
        };
        if timer.is_over(Instant::now()) {
            let (lane, seconds) = (late.lane, timer.spent().as_secs_f64());
            drop(all);
            let reason = format!("it was not connected within {seconds:.1} s");
            self.try_others(&inner, turn, &lane, &reason, false);
        }
    }

    /// Offers other lanes than one that cannot be connected. Without others, the link fails, or the
    /// lane has until the deadline if it has not failed.
    fn try_others(&self, inner: &Inner, turn: Turn, lane: &Lane, reason: &str, has_failed: bool) {
        let mut all = self.making.borrow_mut();
        let Some(making) = all.get_mut(&inner.id) else { return };
        let name = format!("{} {}", lane.transport, self.name_of(lane.pair, &making.peers));
        making.excluded.push((lane.pair, reason.to_owned()));
        let plan = self.plan(inner.peer, &making.peers, inner.needs.get(), &making.excluded);
        if plan.lacking().is_empty() {
            let kind = lane.kinds.iter().next().unwrap_or(Kind::Messages);
            let instead = plan.lane(kind).map_or_else(
                || format!("no lane for {kind}"),
                |lane| format!("{} {}", lane.transport, self.name_of(lane.pair, &making.peers)),
            );
            warn(&format!(
                "link to node {}: no lane over {name}: {reason}; using {instead}",
                inner.peer
            ));
            (making.plan, making.trial) = (Some(plan), None);
            self.block(inner.peer, lane.pair, reason, false);
            drop(all);
            let _ = self.machine.borrow_mut().retry(inner.id, turn);
        } else if has_failed {
            drop(all);
            self.give_up(inner, format!("{name}: {reason}"));
        } else {
            making.excluded.pop();
            making.trial = Some((turn, StallTimer::new(self.rules.deadline, Instant::now())));
        }
    }

    /// The addresses of a pair.
    pub(super) fn name_of(&self, pair: Pair, peers: &[Entry]) -> String {
        let own = self.entries.get(usize::from(pair.here));
        let [own, peer] = [own, peers.get(usize::from(pair.there))].map(|entry| {
            let device = entry.and_then(|entry| entry.device_address);
            device.map_or_else(|| "?".to_owned(), |device| device.to_string())
        });
        format!("from {own} to {peer}")
    }

    /// The lanes of a link that is connected on both sides. False without one for messages.
    pub(super) fn settle(&self, inner: &Inner) -> bool {
        let making = self.making.borrow_mut().remove(&inner.id).unwrap_or_default();
        let infos = making.lanes.into_iter().filter_map(|made| {
            let domain = self.interfaces.get(usize::from(made.lane.pair.here))?.domain.clone();
            Some(LaneInfo { lane: made.lane, endpoint: made.endpoint, domain })
        });
        inner.lanes.set(infos.collect())
    }

    fn give_up(&self, inner: &Inner, reason: String) {
        let (peer, cause) = (inner.name(), protocol::Cause::Local(Reason::Unreachable));
        inner.error.replace(Some(LinkError::Connect { peer, cause, reason }));
        let _ = self.machine.borrow_mut().fail(inner.id, Reason::Unreachable);
    }

    /// The endpoints of an earlier turn are not used any more.
    pub(super) fn discard(&self, action: &Action) {
        if let Action::Discard { link } = action {
            self.making.borrow_mut().remove(link);
        }
    }
}
