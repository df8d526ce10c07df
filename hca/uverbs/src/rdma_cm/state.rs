//! The identifiers of programs, their events and their connections. Knows no socket, device or
//! clock: packets go to an outbox, and the caller passes the time.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use zerocopy::{FromZeros, IntoBytes};

use super::abi::{ConnParam, Ece, EventResponse, EventType, UdParam};
use super::address::{Address, gid, same_family, service};
use super::link::{Link, Stage};
use super::message::{Bytes, Enhancements, HOP_LIMIT, Transport};
use super::multicast::Membership;
use super::receive::refused;
use super::signal::Signal;
use crate::errno::Errno;
use crate::explain;

/// `RDMA_PS_...`.
const PS_IPOIB: u16 = 0x0002;
pub(super) const PS_TCP: u16 = 0x0106;
pub(super) const PS_UDP: u16 = 0x0111;
pub(super) const PS_IB: u16 = 0x013f;

/// `IB_QPT_...`.
const QPT_RC: u8 = 2;
const QPT_UC: u8 = 3;
const QPT_UD: u8 = 4;
const QPT_XRC_INI: u8 = 9;
const QPT_XRC_TGT: u8 = 10;

/// Largest backlog, as the kernel's default.
const MOST_REQUESTS: u32 = 1024;
/// Ports for identifiers that ask for any.
const EPHEMERAL: (u16, u16) = (32_768, 60_999);
/// How long requests are ignored for a port that was bound and has no listener yet, or whose
/// listener was destroyed, so that the peer repeats them. Programs such as qperf name their port
/// before they listen to it, others such as perftest listen anew for each connection, and their
/// peers do not wait.
const OPENING: Duration = Duration::from_secs(3);
/// Most identifiers of a process.
const MOST_IDS: usize = 1 << 20;

/// What an InfiniBand port has, and others do not.
#[derive(Clone, Copy, Debug)]
pub(super) struct InfiniBand {
    pub(super) lid: u16,
    /// Whether all paths need a global route.
    pub(super) global_route: bool,
}

/// A port of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    /// The number of the device, and of its port from 1.
    pub(super) device: usize,
    pub(super) number: u8,
    pub(super) guid: [u8; 8],
    pub(super) address: IpAddr,
    /// Its path MTU: the code of `IBV_MTU_...`.
    pub(super) mtu: u8,
    /// What an InfiniBand port has.
    pub(super) infiniband: Option<InfiniBand>,
}

/// How packets of a port reach a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// The LIDs of both ends, if they are in one InfiniBand subnet.
    pub(super) lids: Option<[u16; 2]>,
    /// 0 without a global route.
    pub(super) hop_limit: u8,
}

impl Port {
    /// Returns whether it has addresses of this kind: GIDs (AF_IB) are those of InfiniBand ports.
    fn has_kind(&self, address: &Address) -> bool {
        address.native.is_none() || self.infiniband.is_some()
    }

    /// Returns the route to the port with address `peer`. The LID of a port is the last 16 bits of
    /// its address, so ports whose addresses are otherwise equal are in one subnet.
    pub(super) fn route(&self, peer: IpAddr) -> Route {
        let ([own @ .., _, _], [other @ .., high, low]) = (gid(self.address), gid(peer));
        match self.infiniband {
            Some(infiniband) if own == other => Route {
                lids: Some([infiniband.lid, u16::from_be_bytes([high, low])]),
                hop_limit: infiniband.global_route.into(),
            },
            _ => Route { lids: None, hop_limit: HOP_LIMIT },
        }
    }
}

/// A datagram to send.
#[derive(Debug)]
pub(super) struct Packet {
    /// Index of the port.
    pub(super) port: usize,
    pub(super) to: IpAddr,
    pub(super) bytes: Bytes,
}

/// An event that the program has not read.
#[derive(Debug)]
pub(super) struct Event {
    /// The identifier that counts it.
    pub(super) owner: u32,
    /// The membership that counts it, too.
    pub(super) membership: Option<u32>,
    pub(super) response: EventResponse,
}

impl Event {
    /// Returns the identifier of a request, which the program does not know yet.
    fn child(&self) -> Option<u32> {
        let is_request = self.response.event == EventType::ConnectRequest as u32;
        is_request.then_some(self.response.id)
    }
}

/// The events of an open file.
#[derive(Debug)]
pub(super) struct Events {
    pub(super) waiting: VecDeque<Event>,
    pub(super) signal: Signal,
}

/// Requests that a listening identifier takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backlog {
    /// How many more may wait.
    pub(super) room: u32,
}

/// An identifier: what librdmacm calls `rdma_cm_id`.
#[derive(Debug)]
pub(super) struct Id {
    /// The open file that has its events.
    pub(super) channel: u64,
    /// The program's name for it; 0 for one that it has not accepted.
    pub(super) uid: u64,
    pub(super) space: u16,
    pub(super) qp_type: u8,
    pub(super) source: Option<Address>,
    pub(super) destination: Option<Address>,
    /// Whether `source` was bound: others cannot bind the port.
    bound: bool,
    /// The only address to which it listens; `None` for those of all ports.
    pub(super) only: Option<IpAddr>,
    /// Index of its port.
    pub(super) port: Option<usize>,
    /// Whether it has a route.
    pub(super) routed: bool,
    pub(super) listening: Option<Backlog>,
    pub(super) link: Option<u32>,
    /// It had a connection, which has ended.
    pub(super) ended: bool,
    pub(super) reuse: bool,
    pub(super) only_family: bool,
    pub(super) traffic_class: u8,
    pub(super) ack_timeout: Option<u8>,
    /// Events that the program has read.
    pub(super) reported: u32,
}

impl Id {
    /// Returns whether it is for datagrams.
    pub(super) fn is_datagram(&self) -> bool {
        self.qp_type == QPT_UD
    }

    /// Returns whether its queue pair waits for acknowledgments.
    pub(super) fn has_timeout(&self) -> bool {
        matches!(self.qp_type, QPT_RC | QPT_XRC_INI)
    }

    /// Returns its transport service.
    pub(super) fn transport(&self) -> Option<Transport> {
        match self.qp_type {
            QPT_RC => Some(Transport::Rc),
            QPT_UC => Some(Transport::Uc),
            QPT_XRC_INI | QPT_XRC_TGT => Some(Transport::Xrc),
            _ => None,
        }
    }

    /// Returns the service to which it is bound.
    pub(super) fn service(&self) -> Option<u64> {
        self.source.map(|source| source.service(self.space))
    }
}

/// All identifiers and connections of a process.
#[derive(Debug)]
pub(super) struct State {
    pub(super) ports: Vec<Port>,
    pub(super) ids: BTreeMap<u32, Id>,
    pub(super) links: BTreeMap<u32, Link>,
    pub(super) memberships: BTreeMap<u32, Membership>,
    pub(super) channels: BTreeMap<u64, Events>,
    pub(super) outbox: Vec<Packet>,
    /// Ports to which a program may listen in a moment, and until when requests for them are
    /// ignored.
    opening: BTreeMap<u16, Instant>,
    /// Lines for the user, which are printed without the lock of this state.
    pub(super) explanations: Vec<String>,
    /// How many identifiers there may be.
    pub(super) most_ids: usize,
    next_id: u32,
    next_link: u32,
    next_channel: u64,
}

/// Returns a random number.
pub(super) fn random() -> u64 {
    // `RandomState` has a random seed.
    RandomState::new().build_hasher().finish()
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            ports: Vec::new(),
            ids: BTreeMap::new(),
            links: BTreeMap::new(),
            memberships: BTreeMap::new(),
            channels: BTreeMap::new(),
            outbox: Vec::new(),
            opening: BTreeMap::new(),
            explanations: Vec::new(),
            most_ids: MOST_IDS,
            next_id: 0,
            // Peers distinguish connections of consecutive processes by it.
            next_link: random() as u32,
            next_channel: 0,
        }
    }

    /// Adds an open file.
    pub(super) fn open(&mut self, signal: Signal) -> u64 {
        self.next_channel += 1;
        self.channels.insert(self.next_channel, Events { waiting: VecDeque::new(), signal });
        self.next_channel
    }

    /// Removes an open file with its identifiers.
    pub(super) fn close(&mut self, channel: u64, now: Instant) {
        let of = |(&id, entry): (&u32, &Id)| (entry.channel == channel).then_some(id);
        let ids: Vec<u32> = self.ids.iter().filter_map(of).collect();
        for id in ids {
            self.remove(id, now);
        }
        self.channels.remove(&channel);
    }

    /// Creates an identifier.
    pub(super) fn create(
        &mut self,
        channel: u64,
        uid: u64,
        (space, qp_type): (u16, u8),
    ) -> Result<u32, Errno> {
        let qp_type = match space {
            PS_TCP => QPT_RC,
            PS_UDP | PS_IPOIB => QPT_UD,
            PS_IB => qp_type,
            _ => return Err(Errno::INVALID),
        };
        self.insert(Id {
            channel,
            uid,
            space,
            qp_type,
            source: None,
            destination: None,
            bound: false,
            only: None,
            port: None,
            routed: false,
            listening: None,
            link: None,
            ended: false,
            reuse: false,
            only_family: false,
            traffic_class: 0,
            ack_timeout: None,
            reported: 0,
        })
    }

    fn insert(&mut self, id: Id) -> Result<u32, Errno> {
        if self.ids.len() >= self.most_ids {
            return Err(Errno::NO_MEMORY);
        }
        while self.ids.contains_key(&self.next_id) {
            self.next_id = (self.next_id + 1) % (MOST_IDS as u32 * 2);
        }
        let handle = self.next_id;
        self.ids.insert(handle, id);
        self.next_id = (self.next_id + 1) % (MOST_IDS as u32 * 2);
        Ok(handle)
    }

    /// Creates the identifier of a request that `listener` received.
    pub(super) fn child(
        &mut self,
        listener: u32,
        (port, link): (usize, u32),
        (source, destination): (Address, Address),
    ) -> Result<u32, Errno> {
        let parent = self.ids.get(&listener).ok_or(Errno::NO_ENTRY)?;
        let (channel, space, qp_type) = (parent.channel, parent.space, parent.qp_type);
        let (traffic_class, ack_timeout) = (parent.traffic_class, parent.ack_timeout);
        let id = self.create(channel, 0, (space, qp_type))?;
        if let Some(entry) = self.ids.get_mut(&id) {
            (entry.source, entry.destination) = (Some(source), Some(destination));
            (entry.port, entry.link, entry.routed) = (Some(port), Some(link), true);
            (entry.traffic_class, entry.ack_timeout) = (traffic_class, ack_timeout);
        }
        Ok(id)
    }

    /// Returns an unused number, by which this side identifies a new connection.
    pub(super) fn unused_number(&mut self) -> u32 {
        while self.next_link == 0 || self.links.contains_key(&self.next_link) {
            self.next_link = self.next_link.wrapping_add(1);
        }
        let number = self.next_link;
        self.next_link = number.wrapping_add(1);
        number
    }

    /// Returns an identifier of an open file.
    pub(super) fn id(&mut self, channel: u64, id: u32) -> Result<&mut Id, Errno> {
        let entry = self.ids.get_mut(&id).ok_or(Errno::NO_ENTRY)?;
        if entry.channel == channel { Ok(entry) } else { Err(Errno::INVALID) }
    }

    /// Returns the connection of an identifier, and the number of the connection.
    pub(super) fn link(&mut self, channel: u64, id: u32) -> Result<(u32, &mut Link), Errno> {
        let number = self.id(channel, id)?.link.ok_or(Errno::INVALID)?;
        Ok((number, self.links.get_mut(&number).ok_or(Errno::INVALID)?))
    }

    /// Binds an identifier. `local`: the machine has the address.
    pub(super) fn bind(
        &mut self,
        channel: u64,
        id: u32,
        address: impl Into<Address>,
        local: bool,
    ) -> Result<(), Errno> {
        let address = address.into();
        let entry = self.id(channel, id)?;
        if entry.source.is_some() {
            return Err(Errno::INVALID);
        }
        let (own_space, reuse, only_family) = (entry.space, entry.reuse, entry.only_family);
        let ip = address.ip();
        let (port, only) = if ip.is_unspecified() {
            (None, None)
        } else if let Some(index) = self.port_at(&address) {
            (Some(index), Some(ip))
        } else if address.native.is_some() {
            return Err(Errno::NO_DEVICE.because("addr: no InfiniBand port (--ib) has this GID"));
        } else if local {
            // The software devices stand for adapters with the addresses of the machine.
            (Some(self.port_for(ip).ok_or(Errno::NO_DEVICE)?), None)
        } else {
            return Err(Errno(libc::EADDRNOTAVAIL));
        };
        let space = address.space(own_space)?;
        // As linux cma.c, `cma_check_port`.
        let conflict = |number: u16| {
            let service = service(space, number);
            self.ids.values().find_map(|other| {
                let theirs = other.source.filter(|_| other.bound)?.ip();
                let alike = same_family(ip, theirs);
                let shared = reuse && other.reuse && other.listening.is_none();
                let apart = only_family && other.only_family && !alike;
                if other.service() != Some(service) || shared || apart {
                    return None;
                }
                if ip.is_unspecified() || theirs.is_unspecified() {
                    return Some(Errno(libc::EADDRNOTAVAIL));
                }
                // Requests do not tell which of two addresses without a device they are for.
                let mixed = only.is_none() && other.only.is_none() && alike;
                (ip == theirs || mixed).then_some(Errno(libc::EADDRINUSE))
            })
        };
        let number = match address.port() {
            0 => {
                let span = u32::from(EPHEMERAL.1 - EPHEMERAL.0) + 1;
                let start = random() as u32 % span;
                let mut all = (0..span)
                    .map(|step| EPHEMERAL.0 + ((start + step) % span) as u16)
                    .filter(|&number| conflict(number).is_none());
                all.next().ok_or(Errno(libc::EADDRNOTAVAIL))?
            }
            number => conflict(number).map_or(Ok(number), Err)?,
        };
        let entry = self.id(channel, id)?;
        entry.source = Some(address.with_port(space, number));
        (entry.port, entry.only, entry.bound) = (port, only, true);
        Ok(())
    }

    /// Returns the port that has an address.
    fn port_at(&self, address: &Address) -> Option<usize> {
        self.ports.iter().position(|port| port.address == address.ip() && port.has_kind(address))
    }

    /// Returns the first port whose address has the family of `ip`.
    fn port_for(&self, ip: IpAddr) -> Option<usize> {
        self.ports.iter().position(|port| same_family(port.address, ip))
    }

    /// Returns the port by which a destination is reached.
    fn port_to(&self, destination: &Address) -> Option<usize> {
        let reaches =
            |port: &Port| port.has_kind(destination) && same_family(port.address, destination.ip());
        self.port_at(destination).or_else(|| self.ports.iter().position(reaches))
    }

    /// Resolves a destination, and binds the identifier if it is not bound: to the port of its
    /// source address, or to one that reaches the destination. The result is an event.
    pub(super) fn resolve_address(
        &mut self,
        channel: u64,
        id: u32,
        (source, local): (Option<Address>, bool),
        destination: impl Into<Address>,
    ) -> Result<(), Errno> {
        let destination = destination.into();
        let is_native = destination.native.is_some();
        let reaching = self.port_to(&destination);
        let entry = self.id(channel, id)?;
        if entry.listening.is_some() || entry.link.is_some() || entry.destination.is_some() {
            return Err(Errno::INVALID);
        }
        if is_native && reaching.is_none() {
            let reason = "addr: an AF_IB address needs an InfiniBand port (--ib)";
            return Err(Errno::NO_DEVICE.because(reason));
        }
        if entry.source.is_none() {
            let source = source.unwrap_or_else(|| destination.any());
            self.bind(channel, id, source, local)?;
        }
        if self.id(channel, id)?.source.is_some_and(|own| own.native.is_some() != is_native) {
            return Err(Errno::INVALID.because("addr: source and destination are of two families"));
        }
        let chosen = self.id(channel, id)?.port.or(reaching);
        let chosen =
            chosen.and_then(|index| self.ports.get(index).map(|port| (index, port.address)));
        let entry = self.id(channel, id)?;
        let status = match chosen {
            Some((index, address)) if same_family(address, destination.ip()) => {
                entry.port = Some(index);
                // An address of the machine to which the program has bound it stays its own.
                entry.source = entry.source.map(|source| {
                    if source.ip().is_unspecified() { source.with_ip(address) } else { source }
                });
                entry.destination = Some(destination);
                0
            }
            _ => -libc::ENODEV,
        };
        let event = if status == 0 { EventType::AddressResolved } else { EventType::AddressError };
        self.tell(id, event, status, |_| {});
        Ok(())
    }

    /// Resolves the route: every device reaches the others.
    pub(super) fn resolve_route(&mut self, channel: u64, id: u32) -> Result<(), Errno> {
        let entry = self.id(channel, id)?;
        let is_resolved = entry.destination.is_some() && entry.port.is_some();
        if !is_resolved || entry.routed || entry.link.is_some() || entry.listening.is_some() {
            return Err(Errno::INVALID);
        }
        entry.routed = true;
        self.tell(id, EventType::RouteResolved, 0, |_| {});
        Ok(())
    }

    /// Makes an identifier listen.
    pub(super) fn listen(&mut self, channel: u64, id: u32, backlog: u32) -> Result<(), Errno> {
        if self.id(channel, id)?.source.is_none() {
            self.bind(channel, id, SocketAddr::from(([0; 4], 0)), true)?;
        }
        let entry = self.id(channel, id)?;
        if entry.listening.is_some() || entry.destination.is_some() {
            return Err(Errno::INVALID);
        }
        let room = if (1..=MOST_REQUESTS).contains(&backlog) { backlog } else { MOST_REQUESTS };
        entry.listening = Some(Backlog { room });
        Ok(())
    }

    /// Returns the identifier that listens to a service at a port.
    pub(super) fn listener(&self, service: u64, port: usize) -> Option<u32> {
        let address = self.ports.get(port)?.address;
        let takes = |id: &Id| {
            let Some(source) = id.source.filter(|_| id.listening.is_some()) else { return false };
            let family =
                same_family(source.ip(), address) || source.ip().is_ipv6() && !id.only_family;
            id.service() == Some(service) && id.only.is_none_or(|only| only == address) && family
        };
        let mut found: Vec<(&u32, &Id)> = self.ids.iter().filter(|(_, id)| takes(id)).collect();
        // One that is bound to the address comes first, and then one to another of its family.
        found.sort_by_key(|(_, id)| {
            let alike = id.source.is_some_and(|source| same_family(source.ip(), address));
            (id.only.is_none(), !alike)
        });
        found.first().map(|(id, _)| **id)
    }

    /// Adds an event of an identifier, unless the program does not know it yet.
    pub(super) fn tell(
        &mut self,
        id: u32,
        event: EventType,
        status: i32,
        fill: impl FnOnce(&mut EventResponse),
    ) {
        self.tell_as((id, None), event, status, fill);
    }

    /// The same for an event of a membership, if there is one.
    pub(super) fn tell_as(
        &mut self,
        (id, membership): (u32, Option<u32>),
        event: EventType,
        status: i32,
        fill: impl FnOnce(&mut EventResponse),
    ) {
        let Some(entry) = self.ids.get(&id).filter(|entry| entry.uid != 0) else { return };
        let (uid, channel, destination) = (entry.uid, entry.channel, entry.destination);
        if let (Some(reason), Some(peer)) = (refused(event, status), destination) {
            self.explain(format_args!("the connection to {peer} is refused: {reason}"));
        }
        let Some(events) = self.channels.get_mut(&channel) else { return };
        let mut response = EventResponse::new_zeroed();
        (response.uid, response.id) = (uid, id);
        (response.event, response.status) = (event as u32, status);
        fill(&mut response);
        events.waiting.push_back(Event { owner: id, membership, response });
        events.signal.set();
    }

    /// Notes a line for the user, if refusals are explained.
    pub(super) fn explain(&mut self, refusal: std::fmt::Arguments<'_>) {
        if explain::is_on() {
            self.explanations.push(refusal.to_string());
        }
    }

    /// Queues a datagram.
    pub(super) fn send(&mut self, port: usize, to: IpAddr, bytes: Bytes) {
        self.outbox.push(Packet { port, to, bytes });
    }

    /// Destroys an identifier with its unread events. Returns how many the program has read.
    pub(super) fn remove(&mut self, id: u32, now: Instant) -> u32 {
        let Some(entry) = self.ids.remove(&id) else { return 0 };
        let mut children = Vec::new();
        if let Some(events) = self.channels.get_mut(&entry.channel) {
            events.waiting.retain(|event| {
                let unread = event.owner == id;
                children.extend(event.child().filter(|_| unread));
                !unread
            });
            if events.waiting.is_empty() {
                events.signal.clear();
            }
        }
        self.memberships.retain(|_, membership| membership.id != id);
        if let Some(link) = entry.link {
            self.abandon(link, now);
        }
        if let (Some(source), Some(_), Some(until)) =
            (entry.source, entry.listening, now.checked_add(OPENING))
        {
            self.opening.insert(source.port(), until);
        }
        // Requests that the program has not read.
        for child in children {
            self.remove(child, now);
        }
        entry.reported
    }

    /// Moves an identifier and its unread events to another open file. Returns how many events the
    /// program has read from the first.
    pub(super) fn migrate(&mut self, from: u64, id: u32, to: u64) -> Result<u32, Errno> {
        let entry = self.id(from, id)?;
        entry.channel = to;
        let reported = entry.reported;
        if from == to {
            return Ok(reported);
        }
        let Some(events) = self.channels.get_mut(&from) else { return Ok(reported) };
        let (own, rest): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut events.waiting).into_iter().partition(|event| event.owner == id);
        events.waiting = rest;
        if events.waiting.is_empty() {
            events.signal.clear();
        }
        // Requests that the program has not read move with their listener.
        for child in own.iter().filter_map(Event::child) {
            if let Some(child) = self.ids.get_mut(&child) {
                child.channel = to;
            }
        }
        if let Some(events) = self.channels.get_mut(&to).filter(|_| !own.is_empty()) {
            events.waiting.extend(own);
            events.signal.set();
        }
        Ok(reported)
    }

    /// Returns the oldest event of an open file.
    pub(super) fn first_event(&self, channel: u64) -> Option<&EventResponse> {
        self.channels.get(&channel)?.waiting.front().map(|event| &event.response)
    }

    /// Removes the oldest event, which the program has read.
    pub(super) fn event_read(&mut self, channel: u64) {
        let Some(events) = self.channels.get_mut(&channel) else { return };
        let Some(event) = events.waiting.pop_front() else { return };
        if events.waiting.is_empty() {
            events.signal.clear();
        }
        let membership = event.membership.and_then(|number| self.memberships.get_mut(&number));
        if let Some(membership) = membership {
            membership.reported = membership.reported.wrapping_add(1);
        }
        if let Some(entry) = self.ids.get_mut(&event.owner) {
            entry.reported = entry.reported.wrapping_add(1);
            if event.response.event == EventType::ConnectRequest as u32
                && let Some(backlog) = &mut entry.listening
            {
                backlog.room += 1;
            }
        }
    }

    /// Notes that the program, which has just bound an identifier, may listen to its port in a
    /// moment.
    pub(super) fn expect_listener(&mut self, id: u32, now: Instant) {
        let source = self.ids.get(&id).and_then(|id| id.source);
        if let (Some(source), Some(until)) = (source, now.checked_add(OPENING)) {
            self.opening.insert(source.port(), until);
        }
    }

    /// Returns whether the port of a service was bound, or had a listener, a moment ago. The
    /// listener may have had another port space: perftest's server of datagrams exchanges its
    /// parameters by a connection, and then listens to datagrams at the same port.
    pub(super) fn is_opening(&self, service: u64, now: Instant) -> bool {
        self.opening.get(&(service as u16)).is_some_and(|&until| until > now)
    }

    /// Returns whether a service has a name: an identifier listens at any address, or may do so in
    /// a moment.
    pub(super) fn is_named(&self, service: u64, now: Instant) -> bool {
        self.is_opening(service, now) || self.listener_at_any(service).is_some()
    }

    /// Returns the identifier that listens to a service at any address.
    pub(super) fn listener_at_any(&self, service: u64) -> Option<&Id> {
        self.ids.values().find(|id| {
            let listens = id.listening.is_some() && id.only.is_none();
            listens && id.service() == Some(service)
        })
    }

    /// Forgets the ports without a listener whose time is over.
    pub(super) fn forget_opening(&mut self, now: Instant) {
        self.opening.retain(|_, until| *until > now);
    }

    /// Returns when the next connection or port without a listener is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let opening = self.opening.values().copied();
        self.links.values().filter_map(Link::deadline).chain(opening).min()
    }

    /// Returns whether a connection waits for its program, which has not destroyed it.
    pub(super) fn has_stage(&self, link: u32, stage: Stage) -> bool {
        self.links.get(&link).is_some_and(|link| link.stage == stage)
    }
}

/// Sets the parameters of an event of a connection.
pub(super) fn connection_event(
    response: &mut EventResponse,
    fill: impl FnOnce(&mut ConnParam),
    private: &[u8],
) {
    let mut parameters = ConnParam::new_zeroed();
    fill(&mut parameters);
    let length = private.len().min(parameters.private_data.len() - 1);
    parameters.private_data[..length].copy_from_slice(&private[..length]);
    parameters.private_data_len = length as u8;
    response.param[..size_of::<ConnParam>()].copy_from_slice(parameters.as_bytes());
}

/// Sets the parameters of an event of a service for datagrams.
pub(super) fn datagram_event(
    response: &mut EventResponse,
    fill: impl FnOnce(&mut UdParam),
    private: &[u8],
) {
    let mut parameters = UdParam::new_zeroed();
    fill(&mut parameters);
    let length = private.len().min(parameters.private_data.len() - 1);
    parameters.private_data[..length].copy_from_slice(&private[..length]);
    parameters.private_data_len = length as u8;
    response.param.copy_from_slice(parameters.as_bytes());
}

/// Sets the enhancements of an event.
pub(super) fn enhancements_event(response: &mut EventResponse, enhancements: Enhancements) {
    response.ece = Ece { vendor_id: enhancements.vendor, attr_mod: enhancements.options };
}
