//! What peers send, and what happens when they do not.
//!
//! Any host that reaches a port can send any message. A message can end only connections of the
//! address that it comes from. The backlog of a listener bounds the requests that its program has not
//! read.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use barewire_layouts::management::connection::{reason, status};
use barewire_layouts::roce::ack_timeout_ns;
use zerocopy::FromZeros;

use super::abi::EventType;
use super::address::{Address, Ends, Native, gid};
use super::link::{Due, Link, Stage, TIME_WAIT};
use super::message::{
    Bytes, ConnectionRequest, Content, Ids, Parameters, SERVICE_TIMEOUT, read, write,
};
use super::state::{Port, State, connection_event, datagram_event, enhancements_event, random};
use crate::abi::AhAttribute;

const PSN: u32 = 0x00ff_ffff;
/// The kernel's status of an event for a peer that does not respond.
const TIMED_OUT: i32 = -libc::ETIMEDOUT;

/// A datagram and where it comes from.
#[derive(Clone, Copy)]
struct Arrival {
    port: usize,
    source: IpAddr,
    transaction: u64,
    now: Instant,
}

impl State {
    /// Handles a datagram that the port at index `port` received.
    pub(super) fn receive(&mut self, port: usize, source: IpAddr, bytes: &Bytes, now: Instant) {
        let Some((transaction, content)) = read(bytes) else { return };
        let arrival = Arrival { port, source, transaction, now };
        match content {
            Content::Request(request) => self.request(arrival, &request),
            Content::Reply { pair, parameters, private, .. } => {
                self.reply(arrival, pair, parameters, &private);
            }
            Content::ReadyToUse(pair) => self.ready(arrival, pair),
            Content::Rejected { pair, reason, private, .. } => {
                self.rejected(arrival, pair, reason, &private);
            }
            Content::Acknowledged { pair, timeout, .. } => {
                let time = Duration::from_nanos(ack_timeout_ns(timeout).unwrap_or(0));
                if let Some(link) =
                    self.theirs(arrival, pair).and_then(|it| self.links.get_mut(&it))
                    && matches!(link.stage, Stage::RequestSent | Stage::ReplySent)
                {
                    link.wait(now, time);
                }
            }
            Content::DisconnectRequest { pair, qpn } => self.disconnect_asked(arrival, pair, qpn),
            Content::DisconnectReply(pair) => {
                if let Some(number) = self.theirs(arrival, pair)
                    && self.has_stage(number, Stage::DisconnectSent)
                {
                    self.disconnected(number, 0, now);
                }
            }
            Content::ServiceRequest { id, service, private } => {
                self.service_asked(arrival, id, service, &private);
            }
            Content::ServiceReply { id, status, qpn, qkey, private, .. } => {
                self.service_answered(arrival, (id, status), (qpn, qkey), &private);
            }
        }
    }

    /// Returns the connection that the sender of a message means.
    fn theirs(&self, arrival: Arrival, pair: Ids) -> Option<u32> {
        let link = self.links.get(&pair.remote)?;
        // Until the peer has accepted a request, its identifier is not known.
        let fits = link.stage == Stage::RequestSent || link.remote_id == pair.local;
        (fits && link.peer == arrival.source).then_some(pair.remote)
    }

    /// Returns a connection that the sender of a message asked for, by the sender's identifier.
    fn asked_for(&self, arrival: Arrival, id: u32, datagram: bool) -> Option<u32> {
        let is = |link: &Link| {
            let service = matches!(link.stage, Stage::ServiceAsked | Stage::ServiceAnswered);
            !link.active
                && link.peer == arrival.source
                && link.remote_id == id
                && service == datagram
        };
        self.links.iter().find(|(_, link)| is(link)).map(|(&number, _)| number)
    }

    fn respond(&mut self, arrival: Arrival, content: &Content) {
        self.send(arrival.port, arrival.source, write(arrival.transaction, content));
    }

    /// Sends the last message of a connection again, which the peer did not receive.
    fn repeat(&mut self, arrival: Arrival, number: u32) {
        let last = self.links.get(&number).and_then(|link| link.last.as_deref().copied());
        if let Some(bytes) = last {
            self.send(arrival.port, arrival.source, bytes);
        }
    }

    fn refuse(&mut self, arrival: Arrival, remote: u32, reason: u16) {
        let (from, why) = (arrival.source, meaning(reason));
        self.explain(format_args!("a connection from {from} is refused: {why}"));
        let pair = Ids { local: 0, remote };
        let content = Content::Rejected { pair, message: 0, reason, private: [0; 148] };
        self.respond(arrival, &content);
    }

    /// REQ.
    fn request(&mut self, arrival: Arrival, request: &ConnectionRequest) {
        if let Some(number) = self.asked_for(arrival, request.id, false) {
            return self.request_again(arrival, number);
        }
        // The peer uses the queue pair for another connection, so that one is over.
        let stale = self.links.iter().find(|(_, link)| {
            link.stage == Stage::Established
                && link.peer == arrival.source
                && link.remote.qpn == request.parameters.qpn
        });
        if let Some((&number, _)) = stale {
            self.ask_for_end(number, arrival.now);
            return self.refuse(arrival, request.id, reason::STALE);
        }
        let Some(listener) = self.listener(request.service, arrival.port) else {
            if self.is_opening(request.service, arrival.now) {
                return;
            }
            return self.refuse(arrival, request.id, reason::NO_SERVICE);
        };
        let Some(entry) = self.ids.get(&listener) else { return };
        if entry.transport().is_none() || entry.transport() != request.transport {
            return self.refuse(arrival, request.id, reason::TRANSPORT);
        }
        let mtu = self.ports.get(arrival.port).map_or(0, |port| port.mtu);
        if !(1..=mtu).contains(&request.mtu) {
            return self.refuse(arrival, request.id, reason::MTU);
        }
        let Some((peer, data)) = self.source(listener, arrival, request.service, &request.private)
        else {
            return self.refuse(arrival, request.id, reason::CONSUMER);
        };
        let mut link = Link::new(Stage::RequestReceived, arrival.port, arrival.source);
        (link.remote_id, link.service) = (request.id, request.service);
        (link.transaction, link.remote) = (arrival.transaction, request.parameters);
        (link.mtu, link.traffic_class) = (request.mtu, request.traffic_class);
        link.ack_timeout = request.ack_timeout;
        link.local.psn = random() as u32 & PSN;
        let theirs = request.parameters;
        self.ask(listener, link, peer, |response| {
            connection_event(
                response,
                |event| {
                    event.qp_num = theirs.qpn;
                    event.responder_resources = theirs.initiator_depth;
                    event.initiator_depth = theirs.responder_resources;
                    event.flow_control = theirs.flow_control.into();
                    event.retry_count = theirs.retries;
                    event.rnr_retry_count = theirs.rnr_retries;
                    event.srq = theirs.srq.into();
                },
                data,
            );
            enhancements_event(response, theirs.enhancements);
        });
    }

    /// Returns the address of the program that sends a request, and its private data: the data
    /// begins with IP addresses, unless the listener is bound to a GID (linux cma.c:
    /// `cma_user_data_offset`, `cma_save_ib_info`).
    fn source<'a>(
        &self,
        listener: u32,
        arrival: Arrival,
        service: u64,
        private: &'a [u8],
    ) -> Option<(Address, &'a [u8])> {
        let own = self.ids.get(&listener)?.source?;
        if own.native.is_some() {
            let socket = SocketAddr::new(arrival.source, own.port());
            let native = Some(Native::of_service(service));
            return Some((Address { socket, native }, private));
        }
        let (_, data) = private.split_at_checked(Ends::BYTES)?;
        Some((Ends::read(private)?.source.into(), data))
    }

    /// Passes a request to the program that listens. If too many wait, the request is dropped, and
    /// the peer repeats it.
    fn ask(
        &mut self,
        listener: u32,
        mut link: Link,
        peer: Address,
        fill: impl FnOnce(&mut super::abi::EventResponse),
    ) {
        let Some(entry) = self.ids.get(&listener) else { return };
        if entry.listening.is_none_or(|backlog| backlog.room == 0) {
            return;
        }
        let Some(local) = entry.source else { return };
        let local = self.ports.get(link.port).map_or(local, |port| local.with_ip(port.address));
        let number = self.unused_number();
        let Ok(child) = self.child(listener, (link.port, number), (local, peer)) else {
            return;
        };
        if let Some(backlog) = self.ids.get_mut(&listener).and_then(|it| it.listening.as_mut()) {
            backlog.room -= 1;
        }
        link.id = Some(child);
        self.links.insert(number, link);
        self.tell(listener, EventType::ConnectRequest, 0, |response| {
            response.id = child;
            fill(response);
        });
    }

    /// A request that was received before.
    fn request_again(&mut self, arrival: Arrival, number: u32) {
        let Some(link) = self.links.get(&number) else { return };
        let pair = Ids { local: number, remote: link.remote_id };
        match link.stage {
            Stage::RequestReceived => {
                let content = Content::Acknowledged { pair, message: 0, timeout: SERVICE_TIMEOUT };
                self.respond(arrival, &content);
            }
            Stage::ReplySent => self.repeat(arrival, number),
            Stage::TimeWait => self.refuse(arrival, pair.remote, reason::STALE),
            _ => {}
        }
    }

    /// REP.
    fn reply(&mut self, arrival: Arrival, pair: Ids, theirs: Parameters, private: &[u8]) {
        let Some(number) = self.theirs(arrival, pair) else { return };
        let Some(link) = self.links.get_mut(&number).filter(|link| link.active) else { return };
        match link.stage {
            Stage::RequestSent => {
                (link.remote_id, link.remote) = (pair.local, theirs);
                link.enter(Stage::ReplyReceived);
                let Some(id) = link.id else { return };
                self.tell(id, EventType::ConnectResponse, 0, |response| {
                    connection_event(
                        response,
                        |event| {
                            event.qp_num = theirs.qpn;
                            event.responder_resources = theirs.initiator_depth;
                            event.initiator_depth = theirs.responder_resources;
                            event.flow_control = theirs.flow_control.into();
                            event.rnr_retry_count = theirs.rnr_retries;
                            event.srq = theirs.srq.into();
                        },
                        private,
                    );
                    enhancements_event(response, theirs.enhancements);
                });
            }
            Stage::ReplyReceived => {
                let pair = Ids { local: number, remote: pair.local };
                let content = Content::Acknowledged { pair, message: 1, timeout: SERVICE_TIMEOUT };
                self.respond(arrival, &content);
            }
            // The confirmation was lost.
            Stage::Established => self.repeat(arrival, number),
            _ => {}
        }
    }

    /// RTU.
    fn ready(&mut self, arrival: Arrival, pair: Ids) {
        let Some(number) = self.theirs(arrival, pair) else { return };
        let Some(link) = self.links.get_mut(&number) else { return };
        if link.stage == Stage::ReplySent {
            link.enter(Stage::Established);
            if let Some(id) = link.id {
                self.tell(id, EventType::Established, 0, |_| {});
            }
        }
    }

    /// REJ.
    fn rejected(&mut self, arrival: Arrival, pair: Ids, reason: u16, private: &[u8]) {
        // A peer that gives up does not know the identifier of this side.
        let meant =
            self.theirs(arrival, pair).or_else(|| self.asked_for(arrival, pair.local, false));
        let Some(number) = meant else { return };
        let ends =
            [Stage::RequestSent, Stage::RequestReceived, Stage::ReplyReceived, Stage::ReplySent];
        if !self.links.get(&number).is_some_and(|link| ends.contains(&link.stage)) {
            return;
        }
        if let Some(id) = self.drop_link(number).and_then(|link| link.id) {
            self.tell(id, EventType::Rejected, reason.into(), |response| {
                connection_event(response, |_| {}, private);
            });
        }
    }

    /// DREQ.
    fn disconnect_asked(&mut self, arrival: Arrival, pair: Ids, qpn: u32) {
        let Some(number) = self.theirs(arrival, pair) else {
            // The connection is over on this side.
            let pair = Ids { local: pair.remote, remote: pair.local };
            return self.respond(arrival, &Content::DisconnectReply(pair));
        };
        let Some(link) = self.links.get_mut(&number).filter(|link| link.local.qpn == qpn) else {
            return;
        };
        match link.stage {
            Stage::Established | Stage::ReplySent => {
                link.transaction = arrival.transaction;
                link.enter(Stage::DisconnectReceived);
                match link.id {
                    Some(id) => self.tell(id, EventType::Disconnected, 0, |_| {}),
                    None => self.confirm_end(number, arrival.now),
                }
            }
            // Both sides disconnect at the same time.
            Stage::DisconnectSent => {
                link.transaction = arrival.transaction;
                let id = link.id;
                self.confirm_end(number, arrival.now);
                if let Some(id) = id {
                    self.tell(id, EventType::Disconnected, 0, |_| {});
                }
            }
            Stage::TimeWait => self.repeat(arrival, number),
            _ => {}
        }
    }

    /// Returns the addresses of peers whose end would end a connection.
    pub(super) fn peers(&self) -> BTreeSet<IpAddr> {
        let matters = |link: &&Link| {
            !matches!(
                link.stage,
                Stage::DisconnectReceived
                    | Stage::TimeWait
                    | Stage::ServiceRequested
                    | Stage::ServiceAsked
                    | Stage::ServiceAnswered
            )
        };
        self.links.values().filter(matters).map(|link| link.peer).collect()
    }

    /// The process of a peer has ended: a kernel would disconnect for it.
    pub(super) fn peer_ended(&mut self, peer: IpAddr, now: Instant) {
        let of = |(&number, link): (&u32, &Link)| {
            (link.peer == peer).then_some((number, link.stage, link.id))
        };
        let links: Vec<_> = self.links.iter().filter_map(of).collect();
        for (number, stage, id) in links {
            match (stage, id) {
                (Stage::Established | Stage::ReplySent | Stage::ReplyReceived, Some(id)) => {
                    if let Some(link) = self.links.get_mut(&number) {
                        link.enter(Stage::DisconnectReceived);
                    }
                    self.tell(id, EventType::Disconnected, 0, |_| {});
                }
                (Stage::Established | Stage::ReplySent, None) => drop(self.drop_link(number)),
                (Stage::DisconnectSent, _) => self.disconnected(number, 0, now),
                // Before a connection exists, the time for a response decides.
                _ => {}
            }
        }
    }

    /// The connection has ended, as this side asked.
    fn disconnected(&mut self, number: u32, status: i32, now: Instant) {
        let Some(link) = self.links.get_mut(&number) else { return };
        link.enter_until(Stage::TimeWait, now.checked_add(TIME_WAIT));
        let pair = Ids { local: number, remote: link.remote_id };
        link.last = Some(Box::new(write(link.transaction, &Content::DisconnectReply(pair))));
        if let Some(id) = link.id {
            self.tell(id, EventType::Disconnected, status, |_| {});
        }
    }

    /// SIDR_REQ.
    fn service_asked(&mut self, arrival: Arrival, id: u32, service: u64, private: &[u8]) {
        if let Some(number) = self.asked_for(arrival, id, true) {
            let last = self.links.get(&number).and_then(|link| link.last.as_ref());
            if let Some(bytes) = last.map(|last| **last) {
                self.send(arrival.port, arrival.source, bytes);
            }
            return;
        }
        let listener = self.listener(service, arrival.port);
        let datagram = |id: &u32| self.ids.get(id).is_some_and(super::state::Id::is_datagram);
        if listener.is_none() && self.is_opening(service, arrival.now) {
            return;
        }
        let from = |id| Some((id, self.source(id, arrival, service, private)?));
        let Some((listener, (peer, data))) = listener.filter(datagram).and_then(from) else {
            let content = Content::ServiceReply {
                id,
                status: status::UNSUPPORTED,
                service,
                qpn: 0,
                qkey: 0,
                private: [0; 136],
            };
            return self.respond(arrival, &content);
        };
        let mut link = Link::new(Stage::ServiceAsked, arrival.port, arrival.source);
        (link.remote_id, link.service) = (id, service);
        link.transaction = arrival.transaction;
        self.ask(listener, link, peer, |response| datagram_event(response, |_| {}, data));
    }

    /// SIDR_REP.
    fn service_answered(
        &mut self,
        arrival: Arrival,
        (number, code): (u32, u8),
        (qpn, qkey): (u32, u32),
        private: &[u8],
    ) {
        let asked =
            |link: &Link| link.stage == Stage::ServiceRequested && link.peer == arrival.source;
        if !self.links.get(&number).is_some_and(asked) {
            return;
        }
        let Some(link) = self.drop_link(number) else { return };
        let Some(id) = link.id else { return };
        if code != status::VALID {
            return self.tell(id, EventType::Unreachable, code.into(), |_| {});
        }
        let Some(port) = self.ports.get(link.port) else { return };
        let address = path_to(link.peer, port, link.traffic_class);
        self.tell(id, EventType::Established, 0, |response| {
            datagram_event(
                response,
                |event| (event.qp_num, event.qkey, event.ah_attr) = (qpn, qkey, address),
                private,
            );
        });
    }

    /// Repeats what is due, and ends what did not get a response.
    pub(super) fn expire(&mut self, now: Instant) {
        self.forget_opening(now);
        let due: Vec<(u32, Due)> = self
            .links
            .iter_mut()
            .filter_map(|(&number, link)| link.due(now).map(|due| (number, due)))
            .collect();
        for (number, due) in due {
            let Some(link) = self.links.get(&number) else { continue };
            let (port, peer, stage, id) = (link.port, link.peer, link.stage, link.id);
            match (due, stage) {
                (Due::Send(bytes), _) => self.send(port, peer, *bytes),
                (Due::End, Stage::DisconnectSent) => self.disconnected(number, TIMED_OUT, now),
                (Due::End, _) => {
                    self.drop_link(number);
                    let (event, status) = match stage {
                        Stage::TimeWait => (EventType::TimeWaitExit, 0),
                        Stage::ServiceAnswered => continue,
                        _ => (EventType::Unreachable, TIMED_OUT),
                    };
                    if let Some(id) = id {
                        self.tell(id, event, status, |_| {});
                    }
                }
            }
        }
    }
}

/// Returns why a request for a connection is rejected.
fn meaning(code: u16) -> &'static str {
    match code {
        reason::TIMEOUT => "the response was late",
        reason::NO_SERVICE => "no program listens to the port of this address",
        reason::TRANSPORT => "the listener has another type of queue pair",
        reason::STALE => "the queue pair has another connection that is not over yet",
        reason::MTU => "the requested path MTU is larger than the listener's port has (--mtu)",
        reason::CONSUMER => "the program rejects it (rdma_reject)",
        _ => "the reason is one of IBTA table 111",
    }
}

/// Returns why a connection fails, for the event that reports it.
pub(super) fn refused(event: EventType, code: i32) -> Option<&'static str> {
    Some(match (event, code) {
        (EventType::Rejected, _) => meaning(u16::try_from(code).unwrap_or_default()),
        (EventType::Unreachable, TIMED_OUT) => "the peer does not respond",
        (EventType::Unreachable, _) => "no program listens to the port, or it rejects the request",
        _ => return None,
    })
}

/// Returns the path to the port with address `peer`.
pub(super) fn path_to(peer: IpAddr, port: &Port, traffic_class: u8) -> AhAttribute {
    let route = port.route(peer);
    let is_global = route.hop_limit != 0;
    let mut path = AhAttribute {
        dlid: route.lids.map_or(0, |[_, lid]| lid),
        is_global: is_global.into(),
        port_num: port.number,
        ..AhAttribute::new_zeroed()
    };
    if is_global {
        (path.dgid, path.hop_limit, path.traffic_class) =
            (gid(peer), route.hop_limit, traffic_class);
    }
    path
}
