//! The lanes of a link, chosen from two addresses.
//!
//! [`plan`] considers each pair of an own interface and a peer's interface for each kind of
//! traffic. The pair with the highest score becomes a lane, and every other pair gets the reason
//! why it does not. One side of a link plans and sends the lanes to the other, which connects
//! exactly these or refuses some with a reason. So two sides that see different numbers cannot
//! disagree.
//!
//! Scores come from the summaries in the addresses, which both sides read alike. `latency` is the
//! mean and `bandwidth` the minimum of the two interfaces, `overhead` the sum.
//!
//! | kind | both interfaces need | cost, of which the least wins |
//! |---|---|---|
//! | messages | messages, pending | latency + overhead |
//! | control | messages, pending, and connect to interface or a control port | the largest message, then as messages |
//! | memory | short puts and buffered gets, pending | latency + overhead + 4 KiB / bandwidth |
//! | atomics | atomics, pending | latency + overhead |
//! | bulk | zero-copy puts or gets, pending | latency + overhead + 256 KiB / bandwidth |
//!
//! Lanes between endpoints need a control lane, over which the addresses of the endpoints are
//! exchanged. If the messages lane connects to an interface, it carries control, too. Two nodes
//! with `tcp` can make a connection of their own for it.

mod kinds;
mod rails;
mod table;
mod threshold;

use std::cmp::Ordering;
use std::fmt;

use barewire::{Place, TransportId};

use crate::address::{Abilities, Entry, Uuid, WorkerAddress};
pub use kinds::{Kind, Kinds, Needs};
pub use rails::shares;
pub use threshold::{Costs, Line, Speed};

/// Bytes of a small put or get.
const SMALL: f64 = 4096.0;
/// Bytes of a large one.
const LARGE: f64 = 262_144.0;
/// A rail that is slower than the fastest by more than this factor is not used.
const SLOWEST_RAIL: f64 = 4.0;

/// An interface of this side and one of the peer, by their places in the two addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair {
    /// Place in the own address.
    pub here: u8,
    /// Place in the peer's address.
    pub there: u8,
}

/// How a plan chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Lanes for bulk transfers, at most.
    pub rails: usize,
    /// Software devices may be used: the user named one.
    pub software: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { rails: 2, software: false }
    }
}

impl Limits {
    /// At most so many lanes for bulk transfers.
    #[must_use]
    pub fn rails(self, rails: usize) -> Self {
        Self { rails, ..self }
    }

    /// Allows software devices, or forbids them.
    #[must_use]
    pub fn software(self, software: bool) -> Self {
        Self { software, ..self }
    }
}

/// Why a pair is not a lane for a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// This library does not know the transport.
    UnknownTransport(u8),
    /// The interfaces are of different transports.
    OtherTransport,
    /// The device is a model in software, which is used only if the user names it.
    Software,
    /// The transport connects a process to itself only.
    OtherProcess,
    /// The transport stays on one node, and the peer is on another.
    OtherNode,
    /// A loopback address leads to no other network namespace, and the peer is in another.
    OtherNetwork,
    /// It was tried: the peer cannot be reached, with the reason.
    Unreachable(String),
    /// The route to the peer's interface leaves this node through another interface, or it is not
    /// known on which link a link-local address is.
    Detour,
    /// An interface lacks abilities: which, and whether it is the peer's.
    Lacks {
        /// What is missing.
        abilities: Abilities,
        /// Whether the peer's interface lacks them; otherwise, the local one does.
        there: bool,
    },
    /// The lane would connect endpoints, and no pair can carry the exchange of their addresses.
    NoControl,
    /// Another pair is better.
    Outscored(Pair),
    /// The messages lane carries control.
    OnMessages(Pair),
    /// The rails are of another transport.
    OtherClass(Pair),
    /// A rail uses the device of this side or of the peer.
    SameDevice(Pair),
    /// Both directions of a rail share its bandwidth, so that another would add nothing.
    SharedDuplex(Pair),
    /// More than four times slower than the fastest rail.
    Slow(Pair),
    /// There are as many rails as the limits allow.
    EnoughRails,
    /// A loopback device beside shared memory.
    LoopbackBesideMemory,
    /// A software device beside shared memory. Its numbers are those of a real device.
    SoftwareBesideMemory,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lane = |pair: &Pair| format!("{}-{}", pair.here, pair.there);
        match self {
            Self::UnknownTransport(code) => {
                write!(f, "this version does not know transport {code}")
            }
            Self::OtherTransport => f.write_str("different transports"),
            Self::Software => f.write_str(
                "a software device, which is used only if both sides name it (such as soft0:1)",
            ),
            Self::OtherProcess => f.write_str("connects a process to itself only"),
            Self::OtherNode => f.write_str("the peer is on another node"),
            Self::OtherNetwork => {
                f.write_str("a loopback address, and the peer is on another host or in a container")
            }
            Self::Unreachable(reason) => f.write_str(reason),
            Self::Detour => f.write_str(
                "the route to it leaves through another interface, or is not known (link-local)",
            ),
            Self::Lacks { abilities, there: false } => write!(f, "this side lacks {abilities}"),
            Self::Lacks { abilities, there: true } => write!(f, "the peer lacks {abilities}"),
            Self::NoControl => f.write_str(
                "no pair can carry the exchange of endpoint addresses: if transports are named, add \
                 shm, tcp, ud_mlx5, ud_verbs or dc_mlx5, or name the device alone (such as soft0:1)",
            ),
            Self::Outscored(by) => write!(f, "{} costs less", lane(by)),
            Self::OnMessages(pair) => write!(f, "messages lane {} carries it", lane(pair)),
            Self::OtherClass(pair) => write!(f, "another transport than rail {}", lane(pair)),
            Self::SameDevice(pair) => write!(f, "rail {} uses the device", lane(pair)),
            Self::SharedDuplex(pair) => {
                write!(f, "rail {} uses the bandwidth of both directions", lane(pair))
            }
            Self::Slow(pair) => write!(f, "more than 4 times slower than rail {}", lane(pair)),
            Self::EnoughRails => f.write_str("enough rails"),
            Self::LoopbackBesideMemory => f.write_str("shared memory leads to the same node"),
            Self::SoftwareBesideMemory => {
                f.write_str("a software device, and shared memory leads to the same node")
            }
        }
    }
}

/// A pair that is not a lane for a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// For this kind.
    pub kind: Kind,
    /// The pair.
    pub pair: Pair,
    /// Why.
    pub reason: Reason,
}

/// How a lane is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Connects {
    /// An endpoint connects to the peer's interface.
    ToInterface,
    /// Two endpoints, which exchange their addresses.
    ToEndpoint,
    /// A connection of the two nodes, not of their interfaces; it carries control only.
    Nodes,
}

/// A pair that is to be connected.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Lane {
    /// The interfaces.
    pub pair: Pair,
    /// The transport.
    pub transport: TransportId,
    /// What it is for.
    pub kinds: Kinds,
    /// How it is connected.
    pub connects: Connects,
    /// Time of a message over the wire, in nanoseconds.
    pub latency_ns: f64,
    /// Time of a message on both CPUs, in nanoseconds.
    pub overhead_ns: f64,
    /// Bytes per second.
    pub bandwidth: f64,
    /// Longest buffered message that both sides take, as their addresses say: rounded down to a
    /// multiple of 64 bytes.
    pub max_message: usize,
}

/// What two addresses get.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// The lanes; those of the kinds in the order of [`Kind::ALL`].
    pub lanes: Vec<Lane>,
    /// For each kind that was wanted, every pair that is not a lane for it.
    pub refusals: Vec<Refusal>,
    /// Kinds that were wanted and have no lane.
    pub missing: Kinds,
    /// What the link needs.
    pub needs: Needs,
    /// The codes of the transports of both sides.
    codes: [Vec<u8>; 2],
}

impl Plan {
    /// The lane of a kind; of bulk the fastest.
    pub fn lane(&self, kind: Kind) -> Option<&Lane> {
        self.of_kind(kind).max_by(|a, b| a.bandwidth.total_cmp(&b.bandwidth))
    }

    /// The lanes of a kind.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().filter(move |lane| lane.kinds.contains(kind))
    }

    /// The times from which the rendezvous threshold of tagged messages follows. `None` without a
    /// lane for messages.
    pub fn costs(&self) -> Option<Costs> {
        Some(Costs::of(
            self.lane(Kind::Messages)?.into(),
            self.of_kind(Kind::Bulk).map(Speed::from),
        ))
    }

    /// Required kinds without a lane; nothing if the link can be connected.
    pub fn lacking(&self) -> Kinds {
        self.needs.required.intersection(self.missing)
    }
}

/// A pair with the numbers of both interfaces.
struct Candidate {
    pair: Pair,
    /// The same for both sides: the interface of the side with the smaller uuid, then the other's.
    order: (u8, u8),
    transport: TransportId,
    devices: (u16, u16),
    here: Abilities,
    there: Abilities,
    latency_ns: f64,
    overhead_ns: f64,
    bandwidth: f64,
    priority: u16,
    max_message: usize,
    place: Place,
    /// Both nodes accept control connections on the devices.
    nodes: bool,
    /// The route to the peer's interface leaves this node through the own one, as far as is known.
    direct: bool,
}

impl Candidate {
    fn has(&self, abilities: Abilities) -> bool {
        self.here.contains(abilities) && self.there.contains(abilities)
    }

    fn lacks(&self, needed: Abilities) -> Option<Reason> {
        [(self.here, false), (self.there, true)].into_iter().find_map(|(has, there)| {
            let abilities = needed.difference(has);
            (!abilities.is_empty()).then_some(Reason::Lacks { abilities, there })
        })
    }

    fn is_software(&self) -> bool {
        self.here.union(self.there).contains(Abilities::SOFTWARE)
    }

    fn to_interface(&self) -> bool {
        self.has(Abilities::TO_INTERFACE)
    }

    /// Nanoseconds of a transfer of so many bytes.
    fn cost(&self, bytes: f64) -> f64 {
        let transfer =
            if self.bandwidth > 0.0 { bytes * 1e9 / self.bandwidth } else { f64::INFINITY };
        let transfer = if bytes > 0.0 { transfer } else { 0.0 };
        self.latency_ns + self.overhead_ns + transfer
    }

    /// Compares two pairs for a kind; the lesser is better. Equal for both sides of a link.
    fn compare(&self, other: &Self, kind: Kind) -> Ordering {
        let bytes = match kind {
            Kind::Messages | Kind::Control | Kind::Atomics => 0.0,
            Kind::Memory => SMALL,
            Kind::Bulk => LARGE,
        };
        let by_message = if kind == Kind::Control {
            other.max_message.cmp(&self.max_message)
        } else {
            Ordering::Equal
        };
        // The pair of a detour is the last resort: the replies of the peer may take another way.
        other
            .direct
            .cmp(&self.direct)
            .then(by_message)
            .then(self.cost(bytes).total_cmp(&other.cost(bytes)))
            .then(other.bandwidth.total_cmp(&self.bandwidth))
            .then(other.priority.cmp(&self.priority))
            .then((self.transport as u8).cmp(&(other.transport as u8)))
            .then(self.order.cmp(&other.order))
    }

    fn lane(&self, kinds: Kinds) -> Lane {
        Lane {
            pair: self.pair,
            transport: self.transport,
            kinds,
            connects: match () {
                () if self.to_interface() => Connects::ToInterface,
                () if kinds == Kinds::of(Kind::Control) => Connects::Nodes,
                () => Connects::ToEndpoint,
            },
            latency_ns: self.latency_ns,
            overhead_ns: self.overhead_ns,
            bandwidth: self.bandwidth,
            max_message: self.max_message,
        }
    }
}

/// Chooses the lanes of a link between two addresses.
///
/// `reaches` tries whether a pair can be reached, and returns the reason if not. It is called once
/// for each pair that the addresses allow. A plan of two addresses of other processes passes a
/// function that returns `Ok`.
///
/// ```
/// use barewire_wireup::address::{Uuid, WorkerAddress};
/// use barewire_wireup::plan::{Kind, Limits, Needs, plan};
///
/// let (a, b) = (WorkerAddress::new(Uuid([1; 16]), &[]), WorkerAddress::new(Uuid([2; 16]), &[]));
/// let plan = plan(&a, &b, Needs::default(), &Limits::default(), &mut |_| Ok(()));
/// assert!(plan.lanes.is_empty() && plan.lacking().contains(Kind::Messages));
/// ```
pub fn plan(
    mine: &WorkerAddress,
    theirs: &WorkerAddress,
    needs: Needs,
    limits: &Limits,
    reaches: &mut dyn FnMut(Pair) -> Result<(), String>,
) -> Plan {
    let (here, there): (Vec<_>, Vec<_>) = (mine.entries().collect(), theirs.entries().collect());
    let sides = Sides { uuids: (mine.uuid(), theirs.uuid()), here: &here, there: &there };
    sides.plan(needs, limits, &mut |pair| reaches(pair).map(|()| true))
}

/// The contents of two addresses.
#[derive(Clone, Copy)]
pub(crate) struct Sides<'a> {
    /// The node of this side, and the peer.
    pub(crate) uuids: (Uuid, Uuid),
    /// The interfaces in the own address.
    pub(crate) here: &'a [Entry],
    /// The interfaces in the peer's address.
    pub(crate) there: &'a [Entry],
}

impl Sides<'_> {
    /// See [`plan`]. `reaches` returns whether the route leaves through the own interface.
    pub(crate) fn plan(
        &self,
        needs: Needs,
        limits: &Limits,
        reaches: &mut dyn FnMut(Pair) -> Result<bool, String>,
    ) -> Plan {
        let mut planner = Planner { candidates: Vec::new(), impossible: Vec::new() };
        for (own, i) in self.here.iter().zip(0..) {
            for (peer, j) in self.there.iter().zip(0..) {
                let pair = Pair { here: i, there: j };
                let found = possible(own, peer, self.same_process(), limits).and_then(|id| {
                    let direct = reaches(pair).map_err(Reason::Unreachable)?;
                    let order = if self.uuids.0 <= self.uuids.1 { (i, j) } else { (j, i) };
                    Ok(Candidate { direct, ..candidate(pair, order, id, own, peer) })
                });
                match found {
                    Ok(candidate) => planner.candidates.push(candidate),
                    Err(reason) => planner.impossible.push((pair, reason)),
                }
            }
        }
        let codes = [self.here, self.there].map(|side| side.iter().map(|one| one.code).collect());
        planner.choose(needs, limits, codes)
    }

    /// The lane of a pair that the peer chose; `None` if the pair cannot be one.
    pub(crate) fn lane_of(
        &self,
        pair: Pair,
        kinds: Kinds,
        connects: Connects,
        limits: &Limits,
    ) -> Option<Lane> {
        let own = self.here.get(usize::from(pair.here))?;
        let peer = self.there.get(usize::from(pair.there))?;
        let id = possible(own, peer, self.same_process(), limits).ok()?;
        let one = candidate(pair, (0, 0), id, own, peer);
        let connectable = match connects {
            Connects::ToInterface => one.to_interface(),
            Connects::ToEndpoint => one.has(Abilities::TO_ENDPOINT),
            Connects::Nodes => false,
        };
        connectable.then(|| Lane { connects, ..one.lane(kinds) })
    }

    fn same_process(&self) -> bool {
        self.uuids.0 == self.uuids.1
    }
}

/// The transport of two interfaces that may connect.
fn possible(
    own: &Entry,
    peer: &Entry,
    same_process: bool,
    limits: &Limits,
) -> Result<TransportId, Reason> {
    if own.code != peer.code {
        return Err(Reason::OtherTransport);
    }
    let id = own.transport.ok_or(Reason::UnknownTransport(own.code))?;
    let software = own.summary.abilities.contains(Abilities::SOFTWARE)
        || peer.summary.abilities.contains(Abilities::SOFTWARE);
    if software && !limits.software {
        return Err(Reason::Software);
    }
    // The stricter of the two sides holds.
    let is = |place| own.summary.place == place || peer.summary.place == place;
    if is(Place::Process) && !same_process {
        return Err(Reason::OtherProcess);
    }
    if is(Place::Node) && own.device_address != peer.device_address {
        return Err(Reason::OtherNode);
    }
    if (is(Place::Loopback) || own.has_loopback() || peer.has_loopback())
        && own.network() != peer.network()
    {
        return Err(Reason::OtherNetwork);
    }
    Ok(id)
}

fn candidate(
    pair: Pair,
    order: (u8, u8),
    transport: TransportId,
    own: &Entry,
    peer: &Entry,
) -> Candidate {
    let (here, there) = (&own.summary, &peer.summary);
    let place = if here.place == there.place { here.place } else { Place::Network };
    Candidate {
        pair,
        order,
        transport,
        devices: (own.device, peer.device),
        here: here.abilities,
        there: there.abilities,
        latency_ns: f64::midpoint(here.latency_ns, there.latency_ns),
        overhead_ns: here.overhead_ns + there.overhead_ns,
        bandwidth: here.bandwidth.min(there.bandwidth),
        priority: u16::from(here.priority) + u16::from(there.priority),
        max_message: here.max_message.min(there.max_message),
        place,
        nodes: own.control.is_some() && peer.control.is_some(),
        direct: true,
    }
}

struct Planner {
    candidates: Vec<Candidate>,
    impossible: Vec<(Pair, Reason)>,
}

impl Planner {
    fn choose(&self, needs: Needs, limits: &Limits, codes: [Vec<u8>; 2]) -> Plan {
        let mut plan =
            Plan { lanes: vec![], refusals: vec![], missing: Kinds::default(), needs, codes };
        let has_control = self.candidates.iter().any(|one| fits(one, Kind::Control, needs).is_ok());
        for kind in Kind::ALL {
            let wanted = match kind {
                Kind::Messages => true,
                // Messages over an interface carry it; lanes between endpoints need it.
                Kind::Control => has_control,
                _ => needs.wanted.union(needs.required).contains(kind),
            };
            if wanted {
                self.choose_kind(kind, needs, limits, has_control, &mut plan);
            }
        }
        plan
    }

    fn choose_kind(
        &self,
        kind: Kind,
        needs: Needs,
        limits: &Limits,
        has_control: bool,
        plan: &mut Plan,
    ) {
        let mut refuse = |pair, reason| plan.refusals.push(Refusal { kind, pair, reason });
        for (pair, reason) in &self.impossible {
            refuse(*pair, reason.clone());
        }
        let mut fitting = Vec::new();
        for one in &self.candidates {
            let fits = fits(one, kind, needs).and_then(|()| {
                if has_control || one.to_interface() { Ok(()) } else { Err(Reason::NoControl) }
            });
            match fits {
                Ok(()) => fitting.push(one),
                Err(reason) => refuse(one.pair, reason),
            }
        }
        fitting.sort_by(|a, b| a.compare(b, kind));
        let messages = plan.lanes.iter().find(|lane| lane.kinds.contains(Kind::Messages)).copied();
        let carrier =
            messages.filter(|lane| kind == Kind::Control && lane.connects == Connects::ToInterface);
        let memory = fitting.iter().any(|one| matches!(one.place, Place::Process | Place::Node));
        let mut chosen: Vec<&Candidate> = Vec::new();
        let mut refusals = Vec::new();
        for one in fitting {
            let reason = match (kind, chosen.first()) {
                (Kind::Bulk, _) if memory && one.place == Place::Loopback => {
                    Some(Reason::LoopbackBesideMemory)
                }
                (Kind::Bulk, _) if memory && one.is_software() => {
                    Some(Reason::SoftwareBesideMemory)
                }
                (_, None) => carrier
                    .filter(|lane| lane.pair != one.pair)
                    .map(|lane| Reason::OnMessages(lane.pair)),
                (Kind::Bulk, Some(fastest)) => rail(one, fastest, &chosen, limits),
                (_, Some(best)) => Some(Reason::Outscored(best.pair)),
            };
            match reason {
                None => chosen.push(one),
                Some(reason) => refusals.push(Refusal { kind, pair: one.pair, reason }),
            }
        }
        plan.refusals.append(&mut refusals);
        if chosen.is_empty() {
            plan.missing = plan.missing.with(kind);
        }
        for one in chosen {
            // A connection of the nodes is none of the endpoints of the same pair.
            let apart = kind == Kind::Control && !one.to_interface();
            match plan.lanes.iter_mut().find(|lane| lane.pair == one.pair && !apart) {
                Some(lane) => lane.kinds = lane.kinds.with(kind),
                None => plan.lanes.push(one.lane(Kinds::of(kind))),
            }
        }
    }
}

/// Whether a candidate has what a kind needs.
fn fits(one: &Candidate, kind: Kind, needs: Needs) -> Result<(), Reason> {
    let mut needed = Abilities::PENDING.union(match kind {
        Kind::Messages => Abilities::MESSAGES,
        Kind::Control if one.nodes => Abilities::MESSAGES,
        Kind::Control => Abilities::MESSAGES.union(Abilities::TO_INTERFACE),
        Kind::Memory => Abilities::MEMORY,
        Kind::Atomics if needs.all_atomics => Abilities::ALL_ATOMICS,
        Kind::Atomics => Abilities::ATOMICS,
        Kind::Bulk if one.has(Abilities::PUT_ZCOPY) => Abilities::PUT_ZCOPY,
        Kind::Bulk => Abilities::GET_ZCOPY,
    });
    if needs.events {
        needed = needed.union(Abilities::EVENTS);
    }
    // A process that ends does not survive its own memory.
    if needs.peer_failure && one.place != Place::Process {
        needed = needed.union(Abilities::PEER_FAILURE);
    }
    match one.lacks(needed) {
        Some(reason) => Err(reason),
        None if one.to_interface() || one.has(Abilities::TO_ENDPOINT) => Ok(()),
        None => Err(one.lacks(Abilities::TO_ENDPOINT).unwrap_or(Reason::NoControl)),
    }
}

/// Why a pair is no further rail.
fn rail(
    one: &Candidate,
    fastest: &Candidate,
    chosen: &[&Candidate],
    limits: &Limits,
) -> Option<Reason> {
    if one.transport != fastest.transport {
        return Some(Reason::OtherClass(fastest.pair));
    }
    if fastest.here.union(fastest.there).contains(Abilities::SHARED_DUPLEX) {
        return Some(Reason::SharedDuplex(fastest.pair));
    }
    let shares =
        |rail: &&&Candidate| rail.devices.0 == one.devices.0 || rail.devices.1 == one.devices.1;
    if !one.direct {
        return Some(Reason::Detour);
    }
    if let Some(rail) = chosen.iter().find(shares) {
        return Some(Reason::SameDevice(rail.pair));
    }
    if one.bandwidth * SLOWEST_RAIL < fastest.bandwidth {
        return Some(Reason::Slow(fastest.pair));
    }
    (chosen.len() >= limits.rails).then_some(Reason::EnoughRails)
}

#[cfg(test)]
mod tests;
