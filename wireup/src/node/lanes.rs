//! The lanes of links that are being connected: planned, opened, and connected to the peer's.

use std::rc::Rc;

use barewire::Endpoint;

use super::Shared;
use crate::address::{Entry, Uuid, WorkerAddress};
use crate::link::{Inner, LaneInfo, LinkError};
use crate::plan::{Connects, Kind, Kinds, Lane, Needs, Pair, Plan, Sides};
use crate::protocol::{self, Action, Answer, LinkId, Offer, Reason, Turn};

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

impl Shared {
    fn sides<'a>(&'a self, peer: Uuid, entries: &'a [Entry]) -> Sides<'a> {
        Sides { uuids: (self.uuid, peer), here: &self.entries, there: entries }
    }

    /// Plans a link to the interfaces of a peer, without the pairs that are excluded.
    pub(super) fn plan(
        &self,
        peer: Uuid,
        entries: &[Entry],
        needs: Needs,
        excluded: &[(Pair, String)],
    ) -> Plan {
        self.sides(peer, entries).plan(needs, &self.limits(), &mut |pair| {
            if let Some((_, reason)) = excluded.iter().find(|(known, _)| *known == pair) {
                return Err(reason.clone());
            }
            match (
                self.interfaces.get(usize::from(pair.here)),
                entries.get(usize::from(pair.there)),
            ) {
                (Some(own), Some(peer)) => own.reaches(peer),
                _ => Err("no such interface".to_owned()),
            }
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
            (own.connect_to_interface(peer).map_err(|_| Reason::Unreachable)?, Vec::new())
        } else {
            let (endpoint, address) = own.open_endpoint().map_err(|_| Reason::NoResources)?;
            own.connect_endpoint(&endpoint, peer, &offered.endpoint)
                .map_err(|_| Reason::Unreachable)?;
            (endpoint, address)
        };
        Ok(Made { lane, endpoint, address })
    }

    /// Connects the endpoints of this side's offer to those of the answer.
    pub(super) fn complete(&self, id: LinkId, turn: Turn, answer: &Answer) {
        let Some(inner) = self.link(id) else { return };
        let making = self.making.borrow();
        let Some(making) = making.get(&id) else { return };
        for (made, endpoint) in making.lanes.iter().zip(&answer.lanes) {
            let pair = made.lane.pair;
            let own = self.interfaces.get(usize::from(pair.here));
            let peer = making.peers.get(usize::from(pair.there));
            let (Ok(theirs), Some(own), Some(peer)) = (endpoint, own, peer) else { continue };
            if made.lane.connects == Connects::ToEndpoint
                && let Err(reason) = own.connect_endpoint(&made.endpoint, peer, theirs)
            {
                return self.give_up(&inner, format!("{} lane: {reason}", made.lane.transport));
            }
        }
        let _ = self.machine.borrow_mut().completed(id, turn, self.now());
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
        inner.error.replace(Some(LinkError::Connect { peer: inner.peer, reason }));
        let _ = self.machine.borrow_mut().fail(inner.id, Reason::Unreachable);
    }

    /// The endpoints of an earlier turn are not used any more.
    pub(super) fn discard(&self, action: &Action) {
        if let Action::Discard { link } = action {
            self.making.borrow_mut().remove(link);
        }
    }
}
