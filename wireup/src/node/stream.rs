//! Control connections between nodes over TCP: they carry the protocol's messages where no lane
//! can.
//!
//! Both ends prove the job's key before a byte of a message is read (`barewire_tcp::listener`). The
//! end that connects states its node in the handshake: all messages of a connection are of one
//! node.
//!
//! A node sends what it has to say to another one over a connection that it opened to that node's
//! address, or over one on which the other node has proved itself ([`Streams::prove`]). The first
//! such connection remains the one that is used while it lives.
//!
//! What all connections together cost is bounded. Each progress reads a bounded number of bytes and
//! frames, from the connections in turn, and all together spend a part of the elapsed time
//! ([`Share`]).

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::report::warn;
use barewire_tcp::connector::{ConnectFailure, Connector};
use barewire_tcp::frames::{self, Received};
use barewire_tcp::handshake::{Claim, Purpose, Verdict};
use barewire_tcp::listener::{Authenticated, Limits, Listener};
use barewire_tcp::outbox::{Outbox, Spare};
use barewire_tcp::share::{Share, Slice};
use barewire_tcp::socket::{RECEIVE, Socket};
use barewire_tcp::stall_timer::StallTimer;
use barewire_tcp::time::{after, cpu_time};
use barewire_tcp::{HostAddress, Key};
use rustix::event::epoll;

use super::frame::{LONGEST, SHORTEST};
use super::listen::Waiting;
use crate::address::Uuid;
use crate::plan::Pair;

/// Frames that wait for a connection to be made; the protocol sends again what is dropped.
const WAITING: usize = 64;
/// Connections at most.
const CONNECTIONS: usize = 4096;
/// Connections of one node at most.
const OF_ONE_NODE: usize = 320;
/// Connections on which nothing has arrived yet, at most.
const NEWCOMERS: usize = 256;
/// Age at which one of them makes room for another.
const YOUNG: Duration = Duration::from_millis(250);
/// Connections for replies to nodes without a link, at most.
const REPLIES: usize = 16;
/// Received bytes that wait on all connections, at most. Beyond, the connection with most ends.
const RECEIVED: usize = 2 << 20;
/// Bytes that wait to be sent on one connection, at most; frames beyond are dropped.
const UNSENT: u64 = 32 << 10;
/// Connections on which bytes wait to be sent, at most. Beyond, the one that waits longest ends.
const STALLED: usize = 128;
/// Frames that one progress reads, and those that it reads of one connection.
const FRAMES: usize = 64;
const FRAMES_OF_ONE: usize = 16;
/// Events that one progress takes from the kernel.
const EVENTS: usize = 64;
/// How often a connection that is being set up is advanced while the thread sleeps.
const STEP: Duration = Duration::from_millis(1);
const FLAGS: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);
/// The token of listening sockets; connections have their names.
const DOORS: u64 = u64::MAX;

/// Names a connection; none has the name of an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Name(pub(super) u64);

struct Connection {
    socket: Socket,
    outbox: Outbox,
    /// Bytes that are not a whole frame, or whose frames this turn had no time for.
    received: Received,
    /// The node that claimed it in the handshake, or to which it was opened; `None` for a server of
    /// which only the socket address is known.
    node: Option<Uuid>,
    /// The node has proved itself.
    is_proven: bool,
    /// A frame has arrived.
    has_spoken: bool,
    /// A client's request came on it, and whether that waits.
    has_asked: bool,
    has_request: bool,
    /// It may have something to read.
    is_ready: bool,
    since: Instant,
    /// The listener through which it came.
    listener: Option<Rc<Waiting>>,
}

/// Which interfaces a connection to a node connects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    pub(crate) pair: Pair,
    pub(crate) here: HostAddress,
    pub(crate) there: SocketAddr,
}

/// How long the peer's side of a pair of interfaces may take to respond before another pair is
/// tried, if all may take as long as `deadline`. `here` is this side's address, of `tcp` only: on
/// which link a link-local address is, only trying tells, and a host on the same link responds
/// soon.
pub(super) fn trial(deadline: Duration, here: Option<HostAddress>) -> Duration {
    let most = (deadline / 4).min(Duration::from_secs(3));
    if here.is_some_and(HostAddress::is_link_local) { most / 4 } else { most }
}

/// A connection that is being set up.
struct Making {
    connector: Connector,
    node: Option<Uuid>,
    /// The interfaces that it connects, and how long the peer's kernel may take to accept it:
    /// another pair may be better.
    pair: Option<(Pair, StallTimer)>,
    frames: Vec<Vec<u8>>,
}

/// Something that happened to a connection.
pub(crate) enum Event {
    /// A frame arrived; with the listener through which the connection came.
    Frame(Name, Option<Rc<Waiting>>, Vec<u8>),
    /// The connection ended, or could not be made.
    Ended(Ended),
}

/// A connection that ended.
pub(crate) struct Ended {
    pub(crate) name: Name,
    /// The node at the other end, if this was the connection to it that is used.
    pub(crate) peer: Option<Uuid>,
    /// The listener through which it came.
    pub(crate) listener: Option<Rc<Waiting>>,
    /// It existed, so that another one can perhaps be made.
    pub(crate) was_open: bool,
    /// The interfaces between which it could not be made.
    pub(crate) pair: Option<Pair>,
    /// No process listens at the peer's address.
    pub(crate) is_refused: bool,
    pub(crate) reason: String,
}

/// The control connections of a node.
pub(crate) struct Streams {
    key: Key,
    claim: Claim,
    patience: Duration,
    /// The doors, with their listeners.
    doors: Vec<(Listener, Option<Rc<Waiting>>)>,
    connections: HashMap<Name, Connection>,
    making: HashMap<Name, Making>,
    /// The connections that are used to send.
    of_peer: HashMap<Uuid, Name>,
    /// Those that may have something to read, in turn.
    ready: VecDeque<Name>,
    /// Those on which nothing has arrived yet, the oldest first.
    newcomers: VecDeque<Name>,
    /// Those with bytes to send.
    sending: Vec<Name>,
    /// Those that were opened for replies to nodes without a link, the oldest first.
    replies: VecDeque<Name>,
    /// Received bytes that wait on all connections.
    received: usize,
    /// See [`Self::take_spent`].
    spent: Duration,
    /// Connections that ended where no event could be reported.
    ended: Vec<Ended>,
    next: u64,
    spare: Spare,
    scratch: Vec<u8>,
    /// Reports a descriptor once, until it is watched again: what this node has no time for does
    /// not wake it.
    epoll: OwnedFd,
    /// The listening sockets are not watched.
    doors_are_shut: bool,
}

/// The claim of a node's connections.
fn claim(uuid: Uuid) -> Claim {
    let number = u128::from_le_bytes(uuid.0);
    Claim {
        purpose: Purpose::Control,
        service: 1,
        endpoint: 0,
        from_service: number as u64,
        from_endpoint: (number >> 64) as u64,
    }
}

/// The node that a claim names.
fn claimed(claim: &Claim) -> Uuid {
    let number = u128::from(claim.from_service) | u128::from(claim.from_endpoint) << 64;
    Uuid(number.to_le_bytes())
}

impl Streams {
    pub(crate) fn new(key: Key, patience: Duration) -> std::io::Result<Self> {
        Ok(Self {
            key,
            claim: claim(Uuid::default()),
            patience,
            doors: Vec::new(),
            connections: HashMap::new(),
            making: HashMap::new(),
            of_peer: HashMap::new(),
            ready: VecDeque::new(),
            newcomers: VecDeque::new(),
            sending: Vec::new(),
            replies: VecDeque::new(),
            received: 0,
            spent: Duration::ZERO,
            ended: Vec::new(),
            next: 0,
            spare: Spare::default(),
            scratch: vec![0; RECEIVE],
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            doors_are_shut: false,
        })
    }

    /// Sets the node of this side, before the first connection.
    pub(crate) fn set_node(&mut self, node: Uuid) {
        self.claim = claim(node);
    }

    /// Accepts connections on a free port of the address, or on a given one. Returns the address.
    pub(crate) fn listen(
        &mut self,
        address: SocketAddr,
        listener: Option<Rc<Waiting>>,
    ) -> std::io::Result<SocketAddr> {
        let door = Listener::open_at(address, self.key.clone(), Limits::toward(address.ip()))?;
        watch(&self.epoll, &door, DOORS)?;
        let address = door.address();
        self.doors.push((door, listener));
        Ok(address)
    }

    fn name(&mut self) -> Name {
        self.next += 1;
        Name(self.next)
    }

    /// Begins to connect to a server of which only the socket address is known.
    pub(crate) fn connect(&mut self, address: SocketAddr) -> std::io::Result<Name> {
        self.start(address, None, None, None)
    }

    /// Begins to connect to a node, by this way.
    pub(crate) fn connect_to(&mut self, way: Way, node: Uuid) -> std::io::Result<Name> {
        let limit = trial(self.patience, Some(way.here));
        let pair = Some((way.pair, StallTimer::new(limit, Instant::now())));
        let name = self.start(way.there, Some(way.here), Some(node), pair)?;
        self.of_peer.insert(node, name);
        Ok(name)
    }

    fn start(
        &mut self,
        address: SocketAddr,
        source: Option<HostAddress>,
        node: Option<Uuid>,
        pair: Option<(Pair, StallTimer)>,
    ) -> std::io::Result<Name> {
        let limits = Limits::toward(address.ip());
        let connector =
            Connector::start(address, source, &self.key, self.claim, self.patience, limits)?;
        let name = self.name();
        self.making.insert(name, Making { connector, node, pair, frames: Vec::new() });
        Ok(name)
    }

    /// As [`connect_to`](Self::connect_to), for replies to a node without a link. The oldest of these
    /// connections is closed if there are many.
    pub(crate) fn connect_to_stranger(&mut self, way: Way, node: Uuid) -> std::io::Result<Name> {
        while self.replies.len() >= REPLIES {
            let Some(oldest) = self.replies.pop_front() else { break };
            self.close(oldest);
        }
        let name = self.connect_to(way, node)?;
        self.replies.push_back(name);
        Ok(name)
    }

    /// A connection to a node that was opened for a reply is used for its links as well.
    pub(crate) fn keep(&mut self, node: &Uuid) {
        if let Some(name) = self.of_peer.get(node) {
            self.replies.retain(|known| known != name);
        }
    }

    /// The connection to a node, if there is one or will be.
    pub(crate) fn to(&self, peer: &Uuid) -> Option<Name> {
        self.of_peer.get(peer).copied()
    }

    /// Whether the messages of a connection may be of this node.
    pub(crate) fn is_of(&self, name: Name, node: Uuid) -> bool {
        self.connections.get(&name).is_some_and(|one| one.node == Some(node))
    }

    /// A message on the connection has proved that its node is the one that it names.
    pub(crate) fn prove(&mut self, name: Name) {
        let Some(connection) = self.connections.get_mut(&name) else { return };
        let Some(node) = connection.node.filter(|_| !connection.is_proven) else { return };
        connection.is_proven = true;
        match self.of_peer.get(&node).copied() {
            None => {
                self.of_peer.insert(node, name);
            }
            // That one was opened only for the reply which has led to the proof.
            Some(known) if self.replies.contains(&known) => {
                self.of_peer.insert(node, name);
                self.close(known);
            }
            Some(_) => {}
        }
    }

    /// A client's request came on a connection. Returns false if it is not the first, or the
    /// connection has ended.
    pub(crate) fn begin_request(&mut self, name: Name) -> bool {
        let Some(connection) = self.connections.get_mut(&name) else { return false };
        connection.has_request = true;
        !std::mem::replace(&mut connection.has_asked, true)
    }

    /// The request waits no more.
    pub(crate) fn end_request(&mut self, name: Name) {
        if let Some(connection) = self.connections.get_mut(&name) {
            connection.has_request = false;
        }
    }

    /// Whether a client's request of this node waits.
    pub(crate) fn has_request(&self, node: &Uuid) -> bool {
        self.connections.values().any(|one| one.has_request && one.node == Some(*node))
    }

    /// Sends a frame, or drops it if too many wait.
    pub(crate) fn send(&mut self, name: Name, frame: &[u8]) {
        let bytes = frames::frame(frame);
        if let Some(connection) = self.connections.get_mut(&name) {
            if connection.outbox.waiting() < UNSENT && connection.outbox.push(&self.spare, &bytes) {
                // An error shows when the connection is read.
                let sent = connection.outbox.flush(&mut connection.socket, &self.spare);
                if !matches!(sent, Ok(true)) && !self.sending.contains(&name) {
                    if self.sending.len() >= STALLED {
                        let oldest = self.sending.remove(0);
                        let ended = self.expel(oldest, "it received nothing for too long");
                        self.ended.extend(ended);
                    }
                    self.sending.push(name);
                }
            }
        } else if let Some(making) = self.making.get_mut(&name)
            && making.frames.len() < WAITING
        {
            making.frames.push(bytes);
        }
    }

    /// The connection exists, or is being made.
    pub(crate) fn is_open(&self, name: Name) -> bool {
        self.connections.contains_key(&name) || self.making.contains_key(&name)
    }

    /// Ends a connection in order: what was sent arrives.
    pub(crate) fn close(&mut self, name: Name) {
        if let Some((mut connection, _)) = self.remove(name) {
            let _ = connection.outbox.flush(&mut connection.socket, &self.spare);
            connection.socket.finish();
        }
    }

    /// Ends a connection whose node does not follow the protocol.
    pub(crate) fn expel(&mut self, name: Name, reason: &str) -> Option<Ended> {
        let (connection, peer) = self.remove(name)?;
        let (listener, reason) = (connection.listener, reason.to_owned());
        Some(Ended { name, peer, listener, was_open: true, pair: None, is_refused: false, reason })
    }

    /// Removes a connection, and its node if it was the connection to it that is used. Another one
    /// on which the node has proved itself is used from then on.
    fn remove(&mut self, name: Name) -> Option<(Connection, Option<Uuid>)> {
        let making = self.making.remove(&name);
        let connection = self.connections.remove(&name);
        self.received -= connection.as_ref().map_or(0, |one| one.received.waiting());
        self.replies.retain(|known| *known != name);
        let node = connection.as_ref().map_or(making.and_then(|one| one.node), |one| one.node);
        let mut peer = node.filter(|node| self.of_peer.get(node) == Some(&name));
        if let Some(node) = peer {
            self.of_peer.remove(&node);
            let other =
                self.connections.iter().find(|(_, one)| one.node == Some(node) && one.is_proven);
            if let Some((other, _)) = other {
                self.of_peer.insert(node, *other);
                peer = None;
            }
        }
        Some((connection?, peer))
    }

    /// Closes the connections of a node, except those of clients that wait.
    pub(crate) fn forget(&mut self, node: &Uuid) {
        let connections = self.connections.iter();
        let mut names: Vec<_> = connections
            .filter(|(_, one)| one.node == Some(*node) && !one.has_request)
            .map(|(name, _)| *name)
            .collect();
        names.extend(self.of_peer.get(node));
        for name in names {
            self.close(name);
        }
    }

    /// Accepts, connects and sends. Never blocks. Returns whether there is something to
    /// [receive](Self::receive).
    pub(crate) fn progress(&mut self, now: Instant, events: &mut Vec<Event>) -> bool {
        events.extend(self.ended.drain(..).map(Event::Ended));
        self.poll();
        self.accept(now);
        self.make(now, events);
        self.flush();
        self.expire(now, events);
        !self.ready.is_empty()
    }

    /// Asks the kernel which connections have something to read.
    fn poll(&mut self) {
        let mut ready = Vec::with_capacity(EVENTS);
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let room = rustix::buffer::spare_capacity(&mut ready);
        if epoll::wait(&self.epoll, room, Some(&none)).is_err() {
            return;
        }
        for event in ready {
            match event.data.u64() {
                DOORS => self.doors_are_shut = true,
                number => self.make_ready(Name(number)),
            }
        }
    }

    fn make_ready(&mut self, name: Name) {
        if let Some(connection) = self.connections.get_mut(&name)
            && !std::mem::replace(&mut connection.is_ready, true)
        {
            self.ready.push_back(name);
        }
    }

    fn accept(&mut self, now: Instant) {
        // A listener whose handles were dropped accepts no more clients.
        self.doors.retain(|(_, listener)| {
            listener.as_ref().is_none_or(|listener| Rc::strong_count(listener) > 1)
        });
        // Otherwise they wait in the kernel's queue.
        if self.newcomers.len() >= NEWCOMERS {
            let connections = &self.connections;
            self.newcomers
                .retain(|name| connections.get(name).is_some_and(|newcomer| !newcomer.has_spoken));
            if self.newcomers.len() >= NEWCOMERS && !self.end_oldest_newcomer(now) {
                return;
            }
        }
        let mut newcomers: Vec<(Authenticated, Option<Rc<Waiting>>)> = Vec::new();
        for (door, listener) in &mut self.doors {
            if self.doors_are_shut || !door.is_idle() {
                let mut admitted = Vec::new();
                door.work(now, &mut admitted);
                if let Some(shortage) = door.take_shortage() {
                    warn(&shortage);
                }
                newcomers.extend(admitted.into_iter().map(|newcomer| (newcomer, listener.clone())));
            }
        }
        if std::mem::take(&mut self.doors_are_shut) {
            // A door that is paused would be reported at once.
            let again = self
                .doors
                .iter()
                .map(|(door, _)| !door.is_paused() && watch_again(&self.epoll, door, DOORS));
            self.doors_are_shut = again.filter(|watched| !watched).count() > 0;
        }
        for (newcomer, listener) in newcomers {
            let begun = (!newcomer.is_free).then(cpu_time);
            self.admit(newcomer, listener, now);
            if let Some(begun) = begun {
                self.spent = self.spent.saturating_add(cpu_time().saturating_sub(begun));
            }
        }
    }

    fn admit(&mut self, newcomer: Authenticated, listener: Option<Rc<Waiting>>, now: Instant) {
        let claim = &newcomer.claim;
        let node = claimed(claim);
        if claim.purpose != Purpose::Control || claim.service != self.claim.service {
            newcomer.refuse(Verdict::Unknown);
        } else if self.connections.len() >= CONNECTIONS || self.count_of(node) >= OF_ONE_NODE {
            newcomer.refuse(Verdict::Full);
        } else if let Ok(socket) = newcomer.welcome() {
            let name = self.name();
            self.adopt(name, socket, Some(node), listener, now);
            self.newcomers.push_back(name);
        }
    }

    /// Takes the time that newcomers have cost that are not [free](Authenticated::is_free).
    pub(crate) fn take_spent(&mut self) -> Duration {
        std::mem::take(&mut self.spent)
    }

    /// The number of connections on which a node is at the other end.
    pub(crate) fn count_of(&self, node: Uuid) -> usize {
        self.connections.values().filter(|one| one.node == Some(node)).count()
    }

    /// Ends the oldest connection on which nothing has arrived, if it had time enough.
    fn end_oldest_newcomer(&mut self, now: Instant) -> bool {
        let Some(oldest) = self.newcomers.front().copied() else { return true };
        let since = self.connections.get(&oldest).map(|one| one.since);
        if since.is_some_and(|since| now.saturating_duration_since(since) < YOUNG) {
            return false;
        }
        self.newcomers.pop_front();
        self.close(oldest);
        true
    }

    fn adopt(
        &mut self,
        name: Name,
        socket: Socket,
        node: Option<Uuid>,
        listener: Option<Rc<Waiting>>,
        since: Instant,
    ) {
        // If the peer's host acknowledges nothing, another pair of interfaces may work, and
        // messages are repeated. If the kernel refuses the shorter timeout, the longer one remains.
        let _ = socket.set_timeout(trial(self.patience, None));
        if watch(&self.epoll, &socket, name.0).is_ok() {
            let connection = Connection {
                socket,
                outbox: Outbox::default(),
                received: Received::new(LONGEST),
                node,
                // Set by those that open it to the node's address.
                is_proven: false,
                has_spoken: false,
                has_asked: false,
                has_request: false,
                is_ready: false,
                since,
                listener,
            };
            self.connections.insert(name, connection);
        }
    }

    fn make(&mut self, now: Instant, events: &mut Vec<Event>) {
        let (mut made, mut failed) = (Vec::new(), Vec::new());
        for (name, making) in &mut self.making {
            match making.connector.advance(now) {
                Ok(None) if making.connector.is_answered() => {}
                Ok(None) => {
                    if let Some((_, timer)) = &mut making.pair
                        && timer.is_over(now)
                    {
                        let spent = timer.spent().as_secs_f64();
                        let reason = format!("no response within {spent:.1} s");
                        failed.push((*name, false, reason));
                    }
                }
                Ok(Some(socket)) => made.push((*name, socket)),
                Err(error) => {
                    let is_refused = matches!(error, ConnectFailure::Refused);
                    failed.push((*name, is_refused, error.to_string()));
                }
            }
        }
        for (name, is_refused, reason) in failed {
            let making = self.making.get(&name);
            let peer = making.and_then(|making| making.node);
            let pair = making.and_then(|making| making.pair.as_ref()).map(|(pair, _)| *pair);
            let _ = self.remove(name);
            let (listener, was_open) = (None, false);
            let ended = Ended { name, peer, listener, was_open, pair, is_refused, reason };
            events.push(Event::Ended(ended));
        }
        for (name, socket) in made {
            let Some(making) = self.making.remove(&name) else { continue };
            self.adopt(name, socket, making.node, None, now);
            let Some(connection) = self.connections.get_mut(&name) else { continue };
            connection.is_proven = making.node.is_some();
            for frame in making.frames {
                connection.outbox.push(&self.spare, &frame);
            }
            self.sending.push(name);
        }
    }

    /// Sends what waits.
    fn flush(&mut self) {
        let mut waiting = std::mem::take(&mut self.sending);
        waiting.retain(|name| {
            let Some(connection) = self.connections.get_mut(name) else { return false };
            let flushed = connection.outbox.flush(&mut connection.socket, &self.spare);
            if flushed.is_err() {
                // A read shows the error.
                self.make_ready(*name);
            }
            matches!(flushed, Ok(false))
        });
        self.sending.append(&mut waiting);
    }

    /// Ends connections on which nothing arrived before the deadline.
    fn expire(&mut self, now: Instant, events: &mut Vec<Event>) {
        while let Some(name) = self.newcomers.front().copied() {
            let silent = self.connections.get(&name).filter(|one| !one.has_spoken);
            let Some(since) = silent.map(|one| one.since) else {
                self.newcomers.pop_front();
                continue;
            };
            if now.saturating_duration_since(since) <= self.patience {
                return;
            }
            self.newcomers.pop_front();
            let reason = "it sent nothing before the deadline";
            events.extend(self.expel(name, reason).map(Event::Ended));
        }
    }

    /// Receives from the connections in turn. What the events cost is a part of the slice.
    pub(crate) fn receive(&mut self, slice: Slice, events: &mut Vec<Event>) {
        let mut left = FRAMES;
        while left > 0
            && !slice.is_over(Duration::ZERO)
            && let Some(name) = self.ready.pop_front()
        {
            let before = events.len();
            match self.serve(name, left.min(FRAMES_OF_ONE), events) {
                Ok(false) => {}
                Ok(true) => self.make_ready(name),
                Err(reason) => events.extend(self.expel(name, &reason).map(Event::Ended)),
            }
            left = left.saturating_sub((events.len() - before).max(1));
            while self.received > RECEIVED {
                let connections = self.connections.iter();
                let most = connections.max_by_key(|(_, one)| one.received.waiting());
                let Some(name) = most.map(|(name, _)| *name) else { break };
                let reason = "it began too long messages and did not end them";
                events.extend(self.expel(name, reason).map(Event::Ended));
            }
        }
    }

    /// Receives from one connection, at most once and at most `most` frames. Returns whether there
    /// may be more. The error is why it ended.
    fn serve(&mut self, name: Name, most: usize, events: &mut Vec<Event>) -> Result<bool, String> {
        let Some(connection) = self.connections.get_mut(&name) else { return Ok(false) };
        connection.is_ready = false;
        let before = connection.received.waiting();
        let result = connection.read(&self.epoll, name, most, &mut self.scratch, events);
        self.received = self.received - before + connection.received.waiting();
        result
    }
}

impl Connection {
    /// As [`Streams::serve`].
    fn read(
        &mut self,
        epoll: &OwnedFd,
        name: Name,
        most: usize,
        scratch: &mut [u8],
        events: &mut Vec<Event>,
    ) -> Result<bool, String> {
        // What was read before comes first.
        if !self.received.has_one().map_err(|error| error.to_string())? {
            match self.socket.receive(scratch) {
                Ok(None) => {
                    let watched = watch_again(epoll, &self.socket, name.0);
                    return if watched {
                        Ok(false)
                    } else {
                        Err("it cannot be watched".to_owned())
                    };
                }
                Ok(Some(0)) => {
                    return Err("the peer's node ended the control connection".to_owned());
                }
                Ok(Some(count)) => {
                    self.received.add(&scratch[..count]).map_err(|error| error.to_string())?;
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        for _ in 0..most {
            let taken = self.received.take().map_err(|error| error.to_string())?;
            let Some(frame) = taken else { break };
            if frame.len() < SHORTEST {
                return Err(format!("a control message of {} bytes", frame.len()));
            }
            self.has_spoken = true;
            events.push(Event::Frame(name, self.listener.clone(), frame));
        }
        Ok(true)
    }
}

impl Streams {
    /// When progress is wanted although nothing happens.
    pub(crate) fn deadline(&self, now: Instant, allowance: &Share) -> Option<Instant> {
        let doors = self.doors.iter().filter_map(|(door, _)| door.deadline());
        let waits = !self.making.is_empty() || !self.sending.is_empty();
        let waiting = waits.then(|| after(now, STEP));
        let reading = (!self.ready.is_empty()).then(|| allowance.next_slice());
        let oldest = self.newcomers.front().and_then(|name| self.connections.get(name));
        let full = self.newcomers.len() >= NEWCOMERS;
        let patience = if full { YOUNG } else { self.patience };
        let unknown = oldest.map(|one| after(one.since, patience));
        doors.chain(waiting).chain(reading).chain(unknown).min()
    }
}

impl AsFd for Streams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn watch(epoll: &OwnedFd, what: impl AsFd, token: u64) -> std::io::Result<()> {
    Ok(epoll::add(epoll, what, epoll::EventData::new_u64(token), FLAGS)?)
}

fn watch_again(epoll: &OwnedFd, what: impl AsFd, token: u64) -> bool {
    epoll::modify(epoll, what, epoll::EventData::new_u64(token), FLAGS).is_ok()
}
