//! Two managers, whose datagrams the test carries and whose time the test sets.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use barewire_layouts::management::connection::reason;
use proptest::prelude::*;
use zerocopy::{FromBytes, FromZeros};

use super::UDP_QKEY;
use super::abi::{
    Accept, ConnParam, Connect, EventResponse, EventType, InitQpAttr, QpAttr, QueryAddrResponse,
    Reject, UdParam, query,
};
use super::address::{self, Address, gid};
use super::link::Stage;
use super::message::Bytes;
use super::signal::Signal;
use super::state::{InfiniBand, Packet, Port, Route, State};
use crate::errno::Errno;

mod many;

const TCP: (u16, u8) = (0x0106, 2);
const UDP: (u16, u8) = (0x0111, 4);
const IB: (u16, u8) = (0x013f, 2);
const PORT: u16 = 7174;

/// A process.
struct Side {
    state: State,
    channel: u64,
    address: SocketAddr,
    now: Instant,
}

impl Side {
    fn new(last: u8, mtu: u8) -> Self {
        let mut state = State::new();
        let channel = state.open(Signal::new(0).unwrap().1);
        let address = SocketAddr::from(([127, 9, 0, last], PORT));
        let port = Port {
            device: 0,
            number: 1,
            guid: [last; 8],
            address: address.ip(),
            mtu,
            infiniband: None,
        };
        state.ports.push(port);
        Self { state, channel, address, now: Instant::now() }
    }

    fn create(&mut self, kind: (u16, u8)) -> u32 {
        self.state.create(self.channel, 100, kind).unwrap()
    }

    fn listener(&mut self, kind: (u16, u8), backlog: u32) -> u32 {
        let id = self.create(kind);
        let any = SocketAddr::from(([0; 4], PORT));
        self.state.bind(self.channel, id, any, true).unwrap();
        self.state.listen(self.channel, id, backlog).unwrap();
        id
    }

    /// Creates an identifier with a route to `to`, and asks for a connection.
    fn connect(&mut self, kind: (u16, u8), to: impl Into<Address>) -> u32 {
        let (id, to) = (self.create(kind), to.into());
        self.state.resolve_address(self.channel, id, (None, true), to).unwrap();
        assert_eq!(self.event().0, EventType::AddressResolved);
        self.state.resolve_route(self.channel, id).unwrap();
        assert_eq!(self.event().0, EventType::RouteResolved);
        let mut command = Connect::new_zeroed();
        (command.id, command.conn_param) = (id, parameters(0x1000 + id, b"hello"));
        self.state.connect(self.channel, &command, Some(to.ip()), self.now).unwrap();
        id
    }

    fn accept(&mut self, id: u32, data: &[u8]) -> Result<(), Errno> {
        let mut command = Accept::new_zeroed();
        (command.id, command.uid) = (id, 200);
        command.conn_param = parameters(0x2000 + id, data);
        self.state.accept(self.channel, &command, self.now)
    }

    fn confirm(&mut self, id: u32) -> Result<(), Errno> {
        let mut command = Accept::new_zeroed();
        command.id = id;
        self.state.accept(self.channel, &command, self.now)
    }

    fn queue_pair(&mut self, id: u32, to: u32) -> Result<QpAttr, Errno> {
        let command = InitQpAttr { response: 0, id, qp_state: to };
        self.state.queue_pair(self.channel, &command)
    }

    /// Takes the next event.
    fn try_event(&mut self) -> Option<EventResponse> {
        let event = *self.state.first_event(self.channel)?;
        self.state.event_read(self.channel);
        Some(event)
    }

    fn event(&mut self) -> (EventType, EventResponse) {
        let event = self.try_event().expect("an event");
        let all = [
            EventType::AddressResolved,
            EventType::AddressError,
            EventType::RouteResolved,
            EventType::ConnectRequest,
            EventType::ConnectResponse,
            EventType::Unreachable,
            EventType::Rejected,
            EventType::Established,
            EventType::Disconnected,
            EventType::MulticastJoin,
            EventType::TimeWaitExit,
        ];
        (*all.iter().find(|&&kind| kind as u32 == event.event).unwrap(), event)
    }

    fn packets(&mut self) -> Vec<Packet> {
        std::mem::take(&mut self.state.outbox)
    }

    fn receive(&mut self, from: &Self, bytes: &Bytes) {
        self.state.receive(0, from.address.ip(), bytes, self.now);
    }

    /// Lets time pass.
    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.state.expire(self.now);
    }
}

fn parameters(qpn: u32, data: &[u8]) -> ConnParam {
    let mut parameters = ConnParam::new_zeroed();
    (parameters.qp_num, parameters.valid) = (qpn, 1);
    (parameters.responder_resources, parameters.initiator_depth) = (3, 5);
    (parameters.retry_count, parameters.rnr_retry_count) = (6, 7);
    parameters.private_data[..data.len()].copy_from_slice(data);
    parameters.private_data_len = data.len() as u8;
    parameters
}

fn connection(event: &EventResponse) -> ConnParam {
    ConnParam::read_from_prefix(&event.param).unwrap().0
}

/// Carries datagrams until there are none.
fn settle(a: &mut Side, b: &mut Side) {
    loop {
        let (from_a, from_b) = (a.packets(), b.packets());
        if from_a.is_empty() && from_b.is_empty() {
            return;
        }
        for packet in from_a {
            assert_eq!(packet.to, b.address.ip());
            b.receive(a, &packet.bytes);
        }
        for packet in from_b {
            a.receive(b, &packet.bytes);
        }
    }
}

fn pair() -> (Side, Side) {
    (Side::new(1, 5), Side::new(2, 5))
}

/// Connects a client of `a` to a listener of `b`. Returns their identifiers.
fn connected(a: &mut Side, b: &mut Side) -> (u32, u32) {
    let client = a.connect(TCP, b.address);
    settle(a, b);
    let (kind, request) = b.event();
    assert_eq!(kind, EventType::ConnectRequest);
    b.accept(request.id, b"welcome").unwrap();
    settle(a, b);
    assert_eq!(a.event().0, EventType::ConnectResponse);
    a.confirm(client).unwrap();
    settle(a, b);
    assert_eq!(b.event().0, EventType::Established);
    (client, request.id)
}

/// A kernel would send the request to disconnect.
#[test]
fn the_end_of_a_peers_process_disconnects() {
    let (mut a, mut b) = pair();
    b.listener(TCP, 0);
    let (_, server) = connected(&mut a, &mut b);
    let peer = a.address.ip();
    assert!(b.state.peers().contains(&peer));
    b.state.peer_ended(peer, b.now);
    let (kind, event) = b.event();
    assert_eq!((kind, event.id, event.status), (EventType::Disconnected, server, 0));
    // Once, and also if the peer's own request arrives late.
    assert!(b.state.peers().is_empty());
    b.state.peer_ended(peer, b.now);
    assert!(b.try_event().is_none());
    b.state.disconnect(b.channel, server, b.now).unwrap();
    b.wait(Duration::from_secs(2));
    assert_eq!(b.event().0, EventType::TimeWaitExit);
    // A process that waits for the response of the one that has ended.
    let (client, _) = connected(&mut a, &mut b);
    a.state.disconnect(a.channel, client, a.now).unwrap();
    a.packets();
    a.state.peer_ended(b.address.ip(), a.now);
    assert_eq!(a.event().0, EventType::Disconnected);
}

#[test]
fn both_sides_agree_on_a_connection() {
    let (mut a, mut b) = pair();
    let listener = b.listener(TCP, 0);
    let client = a.connect(TCP, b.address);
    assert_eq!(a.queue_pair(client, 2).unwrap_err(), Errno::INVALID);
    let requested = a.state.link(a.channel, client).unwrap().1.local.psn;
    settle(&mut a, &mut b);
    let (kind, request) = b.event();
    let server = request.id;
    assert_eq!((kind, request.uid), (EventType::ConnectRequest, 100));
    assert_ne!(server, listener);
    let asked = connection(&request);
    assert_eq!((asked.responder_resources, asked.initiator_depth), (5, 3));
    assert_eq!((asked.private_data_len, &asked.private_data[..6]), (56, &b"hello\0"[..]));
    b.accept(server, b"welcome").unwrap();
    settle(&mut a, &mut b);
    let (kind, response) = a.event();
    assert_eq!(kind, EventType::ConnectResponse);
    let answered = connection(&response);
    assert_eq!((answered.qp_num, &answered.private_data[..7]), (0x2000 + server, &b"welcome"[..]));
    a.confirm(client).unwrap();
    settle(&mut a, &mut b);
    let (kind, established) = b.event();
    assert_eq!((kind, established.uid), (EventType::Established, 200));
    // The PSN of a message is the one that its sender expects, as the kernel understands it.
    assert_eq!(a.queue_pair(client, 2).unwrap().rq_psn, requested);
    let (receive, send) = (a.queue_pair(client, 2).unwrap(), b.queue_pair(server, 3).unwrap());
    assert_eq!((receive.rq_psn, receive.dest_qp_num), (send.sq_psn, 0x2000 + server));
    assert_eq!(receive.ah_attr.dgid[12..], [127, 9, 0, 2]);
    let (receive, send) = (b.queue_pair(server, 2).unwrap(), a.queue_pair(client, 3).unwrap());
    assert_eq!((receive.rq_psn, receive.dest_qp_num), (send.sq_psn, 0x1000 + client));
    assert_eq!((send.retry_cnt, send.rnr_retry, send.max_rd_atomic), (6, 7, 3));
    // The end, as one side asks for it and the other confirms.
    a.state.disconnect(a.channel, client, a.now).unwrap();
    settle(&mut a, &mut b);
    assert_eq!(b.event().0, EventType::Disconnected);
    assert!(a.try_event().is_none());
    b.state.disconnect(b.channel, server, b.now).unwrap();
    settle(&mut a, &mut b);
    assert_eq!(a.event().0, EventType::Disconnected);
    a.wait(Duration::from_secs(2));
    assert_eq!(a.event().0, EventType::TimeWaitExit);
    assert_eq!(a.state.remove(client, a.now), 5);
    b.wait(Duration::from_secs(2));
    b.state.remove(server, b.now);
    b.state.remove(listener, b.now);
    assert!(a.state.links.is_empty() && b.state.links.is_empty());
    assert!(a.state.ids.is_empty() && b.state.ids.is_empty());
}

#[test]
fn requests_without_a_listener_are_rejected() {
    let (mut a, mut b) = pair();
    a.connect(TCP, b.address);
    settle(&mut a, &mut b);
    let (kind, event) = a.event();
    assert_eq!((kind, event.status), (EventType::Rejected, i32::from(reason::NO_SERVICE)));
    a.connect(UDP, b.address);
    settle(&mut a, &mut b);
    assert_eq!(a.event().0, EventType::Unreachable);
    assert!(a.state.links.is_empty() && b.state.links.is_empty());
}

#[test]
fn a_program_rejects_with_a_reason_and_data() {
    let (mut a, mut b) = pair();
    b.listener(TCP, 0);
    a.connect(TCP, b.address);
    settle(&mut a, &mut b);
    let mut command = Reject::new_zeroed();
    command.id = b.event().1.id;
    command.private_data[..4].copy_from_slice(b"busy");
    command.private_data_len = 4;
    b.state.reject(b.channel, &command).unwrap();
    settle(&mut a, &mut b);
    let (kind, event) = a.event();
    assert_eq!((kind, event.status), (EventType::Rejected, i32::from(reason::CONSUMER)));
    assert_eq!(&connection(&event).private_data[..4], b"busy");
    // The identifier of the request still exists, but not its connection.
    assert_eq!(b.accept(command.id, &[]), Err(Errno::INVALID));
    let attributes = b.queue_pair(command.id, u32::from(crate::qp_type::state::RTR));
    assert_eq!(attributes.err(), Some(Errno::INVALID));
}

#[test]
fn ports_with_different_mtus_use_the_smaller_or_none() {
    let (mut a, mut b) = (Side::new(1, 5), Side::new(2, 3));
    b.listener(TCP, 0);
    a.connect(TCP, b.address);
    settle(&mut a, &mut b);
    let (kind, event) = a.event();
    assert_eq!((kind, event.status), (EventType::Rejected, i32::from(reason::MTU)));
    let (mut a, mut b) = (Side::new(1, 3), Side::new(2, 5));
    b.listener(TCP, 0);
    let (client, server) = connected(&mut a, &mut b);
    assert_eq!(a.queue_pair(client, 2).unwrap().path_mtu, 3);
    assert_eq!(b.queue_pair(server, 2).unwrap().path_mtu, 3);
}

#[test]
fn lost_messages_are_repeated() {
    let (mut a, mut b) = pair();
    b.listener(TCP, 0);
    let client = a.connect(TCP, b.address);
    a.packets();
    a.wait(Duration::from_secs(1));
    settle(&mut a, &mut b);
    let (_, request) = b.event();
    // A repeated request is not a second one: the peer is asked to wait.
    a.wait(Duration::from_secs(5));
    settle(&mut a, &mut b);
    assert!(b.try_event().is_none());
    a.wait(Duration::from_secs(30));
    assert!(a.packets().is_empty(), "the program may take its time");
    b.accept(request.id, &[]).unwrap();
    b.packets();
    b.wait(Duration::from_secs(1));
    settle(&mut a, &mut b);
    assert_eq!(a.event().0, EventType::ConnectResponse);
    a.confirm(client).unwrap();
    a.packets();
    b.wait(Duration::from_secs(1));
    settle(&mut a, &mut b);
    assert_eq!(b.event().0, EventType::Established);
    a.state.disconnect(a.channel, client, a.now).unwrap();
    a.packets();
    a.wait(Duration::from_secs(1));
    settle(&mut a, &mut b);
    assert_eq!(b.event().0, EventType::Disconnected);
    b.state.disconnect(b.channel, request.id, b.now).unwrap();
    b.packets();
    a.wait(Duration::from_secs(5));
    settle(&mut a, &mut b);
    assert_eq!(a.event().0, EventType::Disconnected);
}

#[test]
fn a_silent_peer_is_unreachable() {
    let (mut a, b) = pair();
    let ids = [a.connect(TCP, b.address), a.connect(UDP, b.address)];
    for _ in 0..16 {
        assert!(a.try_event().is_none());
        assert_eq!(a.packets().len(), 2);
        a.wait(Duration::from_secs(5));
    }
    for id in ids {
        let (kind, event) = a.event();
        assert_eq!((kind, event.id, event.status), (EventType::Unreachable, id, -libc::ETIMEDOUT));
    }
    assert!(a.state.links.is_empty() && a.state.deadline().is_none());
}

#[test]
fn a_full_backlog_drops_requests_until_some_are_read() {
    let (mut a, mut b) = pair();
    let listener = b.listener(TCP, 2);
    for _ in 0..3 {
        a.connect(TCP, b.address);
    }
    settle(&mut a, &mut b);
    assert_eq!(b.state.links.len(), 2);
    b.event();
    a.wait(Duration::from_secs(1));
    settle(&mut a, &mut b);
    assert_eq!(b.state.links.len(), 3);
    // Unread requests end with their listener, the one that was read does not.
    b.state.remove(listener, b.now);
    settle(&mut a, &mut b);
    let (first, second) = (a.event().0, a.event().0);
    assert_eq!((first, second), (EventType::Rejected, EventType::Rejected));
    assert!(a.try_event().is_none());
    assert_eq!(b.state.links.len(), 1);
}

#[test]
fn a_request_that_is_dropped_takes_no_room_of_the_backlog() {
    let (mut a, mut b) = pair();
    b.listener(TCP, 1);
    a.connect(TCP, b.address);
    // There is no room for another identifier.
    let most = std::mem::replace(&mut b.state.most_ids, b.state.ids.len());
    settle(&mut a, &mut b);
    assert!(b.state.links.is_empty() && b.try_event().is_none());
    b.state.most_ids = most;
    a.wait(Duration::from_secs(1));
    settle(&mut a, &mut b);
    assert_eq!(b.event().0, EventType::ConnectRequest);
}

#[test]
fn a_route_is_resolved_once() {
    let (mut a, mut b) = pair();
    let resolve = |side: &mut Side, id| side.state.resolve_route(side.channel, id);
    let listener = b.listener(TCP, 0);
    assert_eq!(resolve(&mut b, listener), Err(Errno::INVALID));
    // With a route, and later with a connection.
    let id = a.connect(TCP, b.address);
    assert_eq!(resolve(&mut a, id), Err(Errno::INVALID));
    settle(&mut a, &mut b);
    let child = b.event().1.id;
    assert_eq!(resolve(&mut b, child), Err(Errno::INVALID));
    assert!(a.try_event().is_none() && b.try_event().is_none());
}

#[test]
fn a_listener_that_comes_back_gets_the_requests_of_the_meantime() {
    let (mut a, mut b) = pair();
    let listener = b.listener(TCP, 0);
    b.state.remove(listener, b.now);
    a.connect(TCP, b.address);
    settle(&mut a, &mut b);
    b.listener(TCP, 0);
    a.wait(Duration::from_secs(1));
    settle(&mut a, &mut b);
    assert_eq!(b.event().0, EventType::ConnectRequest);
    // As does one to datagrams at the same port.
    let (mut a, mut b) = pair();
    let listener = b.listener(TCP, 0);
    b.state.remove(listener, b.now);
    a.connect(UDP, b.address);
    settle(&mut a, &mut b);
    b.listener(UDP, 0);
    a.wait(Duration::from_secs(1));
    settle(&mut a, &mut b);
    assert_eq!(b.event().0, EventType::ConnectRequest);
    // As does one whose port was bound before, for a few seconds.
    let (mut a, mut b) = pair();
    let id = b.create(TCP);
    b.state.bind(b.channel, id, b.address, true).unwrap();
    b.state.expect_listener(id, b.now);
    a.connect(TCP, b.address);
    settle(&mut a, &mut b);
    b.state.listen(b.channel, id, 0).unwrap();
    a.wait(Duration::from_secs(1));
    settle(&mut a, &mut b);
    assert_eq!(b.event().0, EventType::ConnectRequest);
    // One that stays away does not.
    let (mut a, mut b) = pair();
    let listener = b.listener(TCP, 0);
    b.state.remove(listener, b.now);
    b.wait(Duration::from_secs(4));
    a.connect(TCP, b.address);
    settle(&mut a, &mut b);
    assert_eq!(a.event().0, EventType::Rejected);
}

#[test]
fn destroying_an_identifier_ends_its_connection() {
    let (mut a, mut b) = pair();
    b.listener(TCP, 0);
    let (client, server) = connected(&mut a, &mut b);
    a.state.remove(client, a.now);
    settle(&mut a, &mut b);
    assert_eq!(b.event().0, EventType::Disconnected);
    b.state.remove(server, b.now);
    settle(&mut a, &mut b);
    a.wait(Duration::from_secs(2));
    b.wait(Duration::from_secs(2));
    assert!(a.state.links.is_empty() && b.state.links.is_empty());
    // A client that gives up before its request is accepted tells the server at once.
    let client = a.connect(TCP, b.address);
    settle(&mut a, &mut b);
    let request = b.event().1.id;
    a.state.remove(client, a.now);
    settle(&mut a, &mut b);
    assert_eq!(b.accept(request, &[]), Err(Errno::INVALID));
    // Both at the same time.
    b.state.remove(request, b.now);
    let (client, server) = connected(&mut a, &mut b);
    a.state.disconnect(a.channel, client, a.now).unwrap();
    b.state.disconnect(b.channel, server, b.now).unwrap();
    settle(&mut a, &mut b);
    assert_eq!((a.event().0, b.event().0), (EventType::Disconnected, EventType::Disconnected));
}

#[test]
fn a_stale_connection_ends_before_its_queue_pair_is_used_again() {
    let (mut a, mut b) = pair();
    b.listener(TCP, 0);
    let (client, server) = connected(&mut a, &mut b);
    // The peer starts anew at the same address, with the same number of its queue pair.
    let qpn = 0x1000 + client;
    let mut a = Side::new(1, 5);
    let again = a.create(TCP);
    a.state.resolve_address(a.channel, again, (None, true), b.address).unwrap();
    a.state.resolve_route(a.channel, again).unwrap();
    a.event();
    a.event();
    let mut command = Connect::new_zeroed();
    (command.id, command.conn_param) = (again, parameters(qpn, &[]));
    a.state.connect(a.channel, &command, Some(b.address.ip()), a.now).unwrap();
    settle(&mut a, &mut b);
    let (kind, event) = a.event();
    assert_eq!((kind, event.status), (EventType::Rejected, i32::from(reason::STALE)));
    let (kind, event) = b.event();
    assert_eq!((kind, event.id), (EventType::Disconnected, server));
}

#[test]
fn datagram_services_name_their_queue_pair() {
    let (mut a, mut b) = pair();
    b.listener(UDP, 0);
    let client = a.connect(UDP, b.address);
    settle(&mut a, &mut b);
    let (kind, request) = b.event();
    assert_eq!(kind, EventType::ConnectRequest);
    let asked = UdParam::read_from_bytes(&request.param).unwrap();
    assert_eq!((asked.private_data_len, &asked.private_data[..5]), (180, &b"hello"[..]));
    b.accept(request.id, b"here").unwrap();
    b.packets();
    // The reply was lost: the request comes again.
    a.wait(Duration::from_secs(1));
    settle(&mut a, &mut b);
    let (kind, event) = a.event();
    assert_eq!((kind, event.id), (EventType::Established, client));
    let answer = UdParam::read_from_bytes(&event.param).unwrap();
    assert_eq!((answer.qp_num, answer.qkey), (0x2000 + request.id, UDP_QKEY));
    assert_eq!(
        (answer.ah_attr.dgid[12..].to_vec(), answer.ah_attr.port_num),
        (vec![127, 9, 0, 2], 1)
    );
    assert_eq!(&answer.private_data[..4], b"here");
    let attributes = a.queue_pair(client, 1).unwrap();
    assert_eq!((attributes.qkey, attributes.port_num), (UDP_QKEY, 1));
}

#[test]
fn an_address_and_port_are_bound_once() {
    let (mut a, _) = pair();
    let any = SocketAddr::from(([0; 4], PORT));
    let bind = |a: &mut Side, address| {
        let id = a.create(TCP);
        a.state.bind(a.channel, id, address, false)
    };
    assert_eq!(bind(&mut a, any), Ok(()));
    assert_eq!(bind(&mut a, any), Err(Errno(libc::EADDRNOTAVAIL)));
    let own = a.address;
    assert_eq!(bind(&mut a, own), Err(Errno(libc::EADDRNOTAVAIL)));
    let other_port = SocketAddr::new(own.ip(), 1);
    assert_eq!(bind(&mut a, other_port), Ok(()));
    assert_eq!(bind(&mut a, other_port), Err(Errno(libc::EADDRINUSE)));
    let strange = SocketAddr::from(([203, 0, 113, 1], 0));
    assert_eq!(bind(&mut a, strange), Err(Errno(libc::EADDRNOTAVAIL)));
    let datagrams = a.create(UDP);
    assert_eq!(a.state.bind(a.channel, datagrams, any, false), Ok(()));
    // Without a device of the family.
    let id = a.create(TCP);
    let far: SocketAddr = "[2001:db8::1]:1".parse().unwrap();
    a.state.resolve_address(a.channel, id, (None, true), far).unwrap();
    let (kind, event) = a.event();
    assert_eq!((kind, event.status), (EventType::AddressError, -libc::ENODEV));
}

#[test]
fn two_families_share_a_port_if_each_keeps_to_its_own() {
    let any = [SocketAddr::from(([0; 4], PORT)), SocketAddr::from(([0; 8], PORT))];
    for (first, second) in [(true, true), (true, false), (false, true), (false, false)] {
        let (mut a, mut b) = pair();
        // A port of the other family, too.
        let v6 = IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9));
        b.state.ports.push(Port { address: v6, number: 2, ..b.state.ports[0] });
        let ids = [b.create(TCP), b.create(TCP)];
        let mut results = Vec::new();
        for (at, only) in [first, second].into_iter().enumerate() {
            b.state.id(b.channel, ids[at]).unwrap().only_family = only;
            results.push(b.state.bind(b.channel, ids[at], any[at], true));
        }
        let want = if first && second { Ok(()) } else { Err(Errno(libc::EADDRNOTAVAIL)) };
        assert_eq!(results, [Ok(()), want]);
        if want.is_err() {
            continue;
        }
        for id in ids {
            b.state.listen(b.channel, id, 0).unwrap();
        }
        let service = b.state.ids[&ids[0]].service().unwrap();
        assert_eq!([0, 1].map(|port| b.state.listener(service, port)), ids.map(Some));
        a.connect(TCP, b.address);
        settle(&mut a, &mut b);
        assert_eq!(b.event().0, EventType::ConnectRequest);
    }
}

#[test]
fn two_addresses_share_a_port_if_requests_tell_them_apart() {
    let (mut a, _) = pair();
    let second = IpAddr::from([127, 9, 0, 99]);
    a.state.ports.push(Port { address: second, number: 2, ..a.state.ports[0] });
    let bind = |a: &mut Side, ip: IpAddr| {
        let id = a.create(TCP);
        let result = a.state.bind(a.channel, id, SocketAddr::new(ip, PORT), true);
        result.and_then(|()| a.state.listen(a.channel, id, 0)).map(|()| id)
    };
    let own = a.address.ip();
    let first = bind(&mut a, own).unwrap();
    assert_eq!(bind(&mut a, own), Err(Errno(libc::EADDRINUSE)));
    // No device has this address of the machine: requests to a device that has no listener at its
    // own address reach this listener.
    let machine = bind(&mut a, [192, 0, 2, 1].into()).unwrap();
    assert_eq!(bind(&mut a, [192, 0, 2, 2].into()), Err(Errno(libc::EADDRINUSE)));
    let service = a.state.ids[&first].service().unwrap();
    assert_eq!([0, 1].map(|port| a.state.listener(service, port)), [Some(first), Some(machine)]);
    let other = bind(&mut a, second).unwrap();
    assert_eq!([0, 1].map(|port| a.state.listener(service, port)), [Some(first), Some(other)]);
}

#[test]
fn an_identifier_moves_with_its_events() {
    let (mut a, mut b) = pair();
    let listener = b.listener(TCP, 0);
    a.connect(TCP, b.address);
    settle(&mut a, &mut b);
    let other = b.state.open(Signal::new(0).unwrap().1);
    assert_eq!(b.state.migrate(b.channel, listener, other), Ok(0));
    assert!(b.try_event().is_none());
    assert_eq!(b.state.migrate(b.channel, listener, other), Err(Errno::INVALID));
    b.channel = other;
    let request = b.event().1.id;
    assert_eq!(b.accept(request, &[]), Ok(()));
    b.state.close(other, b.now);
    assert!(b.state.ids.is_empty());
}

/// A stranger can neither end nor take over the connections of others.
#[test]
fn messages_from_another_address_change_nothing() {
    let (mut a, mut b) = pair();
    b.listener(TCP, 0);
    let (client, _) = connected(&mut a, &mut b);
    a.state.disconnect(a.channel, client, a.now).unwrap();
    let stranger = Side::new(3, 5);
    for packet in a.packets() {
        b.receive(&stranger, &packet.bytes);
    }
    assert!(b.try_event().is_none());
    assert!(b.state.links.values().any(|link| link.stage == Stage::Established));
}

#[test]
fn a_membership_names_the_group_and_counts_its_events() {
    let (mut a, _) = pair();
    let group = SocketAddr::from(([239, 1, 2, 3], 0));
    let join =
        |a: &mut Side, id, group: SocketAddr| a.state.join(a.channel, (id, 700), group.into());
    let id = a.create(UDP);
    // Without a port.
    assert_eq!(join(&mut a, id, group), Err(Errno::INVALID));
    a.state.resolve_address(a.channel, id, (None, true), group).unwrap();
    assert_eq!(a.event().0, EventType::AddressResolved);
    let first = join(&mut a, id, group).unwrap();
    let second = join(&mut a, id, SocketAddr::from(([239, 1, 2, 4], 0))).unwrap();
    let (kind, event) = a.event();
    assert_eq!((kind, event.uid, event.id), (EventType::MulticastJoin, 700, first));
    let joined = UdParam::read_from_bytes(&event.param).unwrap();
    assert_eq!((joined.qp_num, joined.qkey), (0x00ff_ffff, UDP_QKEY));
    let path = joined.ah_attr;
    assert_eq!((path.is_global, path.port_num, path.hop_limit), (1, 1, 64));
    assert_eq!(path.dgid, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3]);
    // The second was not read, and ends with its membership.
    let other = a.state.open(Signal::new(0).unwrap().1);
    assert_eq!(a.state.leave(other, second), Err(Errno::INVALID));
    assert_eq!(a.state.leave(a.channel, second), Ok(0));
    assert!(a.try_event().is_none());
    assert_eq!(a.state.leave(a.channel, first), Ok(1));
    assert_eq!(a.state.leave(a.channel, first), Err(Errno::NO_ENTRY));
    // The identifier counts them, too, and ends what is left.
    join(&mut a, id, group).unwrap();
    assert_eq!(a.state.remove(id, a.now), 2);
    assert!(a.state.memberships.is_empty() && a.try_event().is_none());
}

#[test]
fn groups_that_a_port_does_not_have_are_refused() {
    let (mut a, _) = pair();
    let any = SocketAddr::from(([0; 4], 0));
    let group = SocketAddr::from(([239, 1, 2, 3], 0));
    let own = a.address;
    let mut bound = |kind, address| {
        let id = a.create(kind);
        a.state.bind(a.channel, id, address, false).unwrap();
        id
    };
    let (stream, nowhere, listener, id) = (
        bound(TCP, own),
        bound(UDP, any),
        bound(UDP, SocketAddr::new(own.ip(), 9)),
        bound(UDP, own),
    );
    a.state.listen(a.channel, listener, 0).unwrap();
    let mut join = |id, group: SocketAddr| a.state.join(a.channel, (id, 1), group.into());
    for id in [stream, nowhere, listener] {
        assert_eq!(join(id, group), Err(Errno::INVALID));
    }
    assert_eq!(join(id, any), Err(Errno::INVALID));
    // The kernel's ENOTSUPP.
    assert_eq!(join(id, "[ff0e::1]:0".parse().unwrap()), Err(Errno(524)));
    assert!(join(id, group).is_ok());
    assert_eq!(join(77, group), Err(Errno::NO_ENTRY));
}

/// An InfiniBand port.
fn infiniband_side(last: u8, global_route: bool) -> Side {
    let mut side = Side::new(last, 5);
    side.state.ports[0].infiniband = Some(InfiniBand { lid: last.into(), global_route });
    side
}

/// The address of a port's GID with a TCP port.
fn native(ip: IpAddr, port: u16) -> Address {
    let mut bytes = [0; 48];
    bytes[..2].copy_from_slice(&27_u16.to_ne_bytes());
    bytes[8..24].copy_from_slice(&gid(ip));
    bytes[24..32].copy_from_slice(&(0x0106_0000 | u64::from(port)).to_be_bytes());
    bytes[32..40].fill(0xff);
    address::read(&bytes).unwrap().unwrap()
}

/// Without a global route, unless the ports require one.
#[test]
fn paths_of_infiniband_ports_are_between_lids() {
    for (global_route, hops) in [(false, 0), (true, 1)] {
        let mut sides = (infiniband_side(1, global_route), infiniband_side(2, global_route));
        let (a, b) = (&mut sides.0, &mut sides.1);
        b.listener(TCP, 0);
        let (client, server) = connected(a, b);
        for (side, id, lid) in [(&mut *a, client, 0x0002), (&mut *b, server, 0x0001)] {
            let path = side.queue_pair(id, 2).unwrap().ah_attr;
            assert_eq!((path.dlid, path.is_global), (lid, global_route.into()));
            assert_eq!(path.hop_limit, hops);
        }
        let route = a.state.query_route(a.channel, client).unwrap().ib_route[0];
        assert_eq!((route.slid, route.dlid), (1_u16.to_be(), 2_u16.to_be()));
        assert_eq!(route.hop_limit, hops);
        let path = a.state.query(a.channel, client, query::PATH).unwrap();
        assert_eq!(path[16 + 40..16 + 44], [0, 2, 0, 1]);
        // Of another subnet.
        let far = a.state.ports[0].route([127, 8, 0, 2].into());
        assert_eq!(far, Route { lids: None, hop_limit: 64 });
    }
}

/// Private data of AF_IB begins without IP addresses.
#[test]
fn gids_of_infiniband_ports_connect() {
    let (mut a, mut b) = (infiniband_side(1, false), infiniband_side(2, false));
    let listener = b.create(TCP);
    b.state.bind(b.channel, listener, native(b.address.ip(), PORT), false).unwrap();
    b.state.listen(b.channel, listener, 0).unwrap();
    let client = a.connect(TCP, native(b.address.ip(), PORT));
    settle(&mut a, &mut b);
    let (kind, request) = b.event();
    assert_eq!(kind, EventType::ConnectRequest);
    let asked = connection(&request);
    assert_eq!((asked.private_data_len, &asked.private_data[..6]), (92, &b"hello\0"[..]));
    for (side, id) in [(&mut a, client), (&mut b, request.id)] {
        let own = side.address.ip();
        let bytes = side.state.query(side.channel, id, query::ADDR).unwrap();
        let response = QueryAddrResponse::read_from_bytes(&bytes).unwrap();
        assert_eq!((response.src_size, response.dst_size), (48, 48));
        let [source, peer] = [&response.src_addr, &response.dst_addr]
            .map(|bytes| address::read(bytes).unwrap().unwrap());
        assert_eq!(source.ip(), own);
        assert_ne!(peer.ip(), own);
        assert!([127, 9, 0, 1] == gid(peer.ip())[12..] || [127, 9, 0, 2] == gid(peer.ip())[12..]);
    }
}

/// As the kernel's: AF_IB is of InfiniBand ports only.
#[test]
fn gids_of_other_ports_are_refused() {
    let (mut a, b) = pair();
    let any = native(Ipv6Addr::UNSPECIFIED.into(), 0);
    let id = a.create(IB);
    // By this, librdmacm learns that the kernel knows AF_IB.
    assert_eq!(a.state.bind(a.channel, id, any, false), Ok(()));
    let id = a.create(IB);
    let own = native(a.address.ip(), PORT);
    assert_eq!(a.state.bind(a.channel, id, own, false), Err(Errno::NO_DEVICE));
    let to = native(b.address.ip(), PORT);
    let resolved = a.state.resolve_address(a.channel, id, (None, true), to);
    assert_eq!(resolved, Err(Errno::NO_DEVICE));
    // A source of the other family.
    let mut c = infiniband_side(3, false);
    let (id, ip) = (c.create(TCP), c.address);
    c.state.bind(c.channel, id, ip, true).unwrap();
    assert_eq!(c.state.resolve_address(c.channel, id, (None, true), to), Err(Errno::INVALID));
    // Services of TCP have one number in both families.
    let id = c.create(IB);
    let same = native(ip.ip(), PORT);
    assert_eq!(c.state.bind(c.channel, id, same, true), Err(Errno(libc::EADDRINUSE)));
}

#[test]
fn groups_of_infiniband_ports_have_gids() {
    let mut a = infiniband_side(1, false);
    let group: IpAddr = "ff12:1::7".parse().unwrap();
    let id = a.create(UDP);
    let own = a.address;
    a.state.bind(a.channel, id, own, true).unwrap();
    let mut joined = |group: Address| {
        a.state.join(a.channel, (id, 1), group).unwrap();
        UdParam::read_from_bytes(&a.event().1.param).unwrap().ah_attr
    };
    let path = joined(native(group, 0));
    assert_eq!((path.dgid, path.is_global), (gid(group), 1));
    assert!((0xc000..0xffff).contains(&path.dlid));
    let path = joined(SocketAddr::from(([239, 1, 2, 3], 0)).into());
    assert_eq!(path.dgid, gid("ff12:4001:ffff::f01:203".parse().unwrap()));
}

proptest! {
    /// Any datagrams leave a bounded state, in which the listener still works.
    #[test]
    fn any_datagrams_are_bounded_and_harmless(
        all in prop::collection::vec((any::<[[u8; 16]; 16]>(), 0x10_u8..0x1a, 0_u8..4), 1..40),
    ) {
        let (mut a, mut b) = pair();
        b.listener(TCP, 4);
        b.listener(UDP, 4);
        let (_, server) = connected(&mut a, &mut b);
        let known: Vec<u32> = b.state.links.keys().copied().collect();
        for (bytes, message, how) in all {
            let mut bytes: Bytes = bytes.as_flattened().try_into().unwrap();
            bytes[..8].copy_from_slice(&[1, 7, 2, 3, 0, 0, 0, 0]);
            bytes[16..18].copy_from_slice(&[0, message]);
            match how {
                // The service of a listener.
                0 => bytes[32..40].copy_from_slice(&[0, 0, 0, 0, 1, 6, 0x1c, 6]),
                1 => bytes[32..40].copy_from_slice(&[0, 0, 0, 0, 1, 0x11, 0x1c, 6]),
                // A connection.
                2 => bytes[28..32].copy_from_slice(&known[0].to_be_bytes()),
                _ => {}
            }
            b.receive(&a, &bytes);
            b.packets();
        }
        prop_assert!(b.state.links.len() <= 1 + 8 && b.state.ids.len() <= 3 + 8);
        while b.try_event().is_some() {}
        b.state.remove(server, b.now);
        b.state.close(b.channel, b.now);
        for _ in 0..20 {
            b.wait(Duration::from_secs(100));
        }
        prop_assert!(b.state.links.is_empty() && b.state.ids.is_empty());
    }
}
