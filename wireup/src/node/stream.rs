//! Control connections between nodes over TCP: they carry the protocol's messages where no lane
//! can.
//!
//! Both ends prove the job's key before a byte of a message is read (`barewire_tcp::door`). A frame
//! is a length of two bytes, big-endian, and a message.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire_tcp::Key;
use barewire_tcp::connector::Connector;
use barewire_tcp::handshake::{Claim, Purpose, Verdict};
use barewire_tcp::listener::{Authenticated, Limits, Listener};
use barewire_tcp::outbox::{Outbox, Spare};
use barewire_tcp::socket::{RECEIVE, Socket};
use barewire_tcp::time::after;
use rustix::event::epoll;

use super::listen::Waiting;
use crate::address::Uuid;

/// Bytes of the longest frame.
pub(crate) const FRAME: usize = 16 << 10;
/// Frames that wait for a connection to be made; the protocol sends again what is dropped.
const WAITING: usize = 64;
/// Connections at most; further peers are sent away.
const CONNECTIONS: usize = 4096;
/// How often a connection that is being set up is advanced while the thread sleeps.
const STEP: Duration = Duration::from_millis(1);
const CLAIM: Claim =
    Claim { purpose: Purpose::Control, service: 1, endpoint: 0, from_service: 0, from_endpoint: 0 };

/// Names a connection; none has the name of an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Name(u64);

struct Connection {
    socket: Socket,
    outbox: Outbox,
    received: Vec<u8>,
    /// The node at the other end, once it sent a message or was connected to.
    peer: Option<Uuid>,
    since: Instant,
    /// The listener through which it came.
    listener: Option<Rc<Waiting>>,
}

/// A connection that is being set up.
struct Making {
    connector: Connector,
    peer: Option<Uuid>,
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
    /// The node at the other end, if it is known.
    pub(crate) peer: Option<Uuid>,
    /// The listener through which it came.
    pub(crate) listener: Option<Rc<Waiting>>,
    pub(crate) reason: String,
}

/// The control connections of a node.
pub(crate) struct Streams {
    key: Key,
    patience: Duration,
    /// The doors, with their listeners.
    doors: Vec<(Listener, Option<Rc<Waiting>>)>,
    connections: HashMap<Name, Connection>,
    making: HashMap<Name, Making>,
    of_peer: HashMap<Uuid, Name>,
    next: u64,
    spare: Spare,
    scratch: Vec<u8>,
    epoll: OwnedFd,
}

fn limits(address: IpAddr) -> Limits {
    Limits { protected: !address.is_loopback(), ..Limits::default() }
}

impl Streams {
    pub(crate) fn new(key: Key, patience: Duration) -> std::io::Result<Self> {
        Ok(Self {
            key,
            patience,
            doors: Vec::new(),
            connections: HashMap::new(),
            making: HashMap::new(),
            of_peer: HashMap::new(),
            next: 0,
            spare: Spare::default(),
            scratch: vec![0; RECEIVE],
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    /// Accepts connections on a free port of the address, or on a given one. Returns the address.
    pub(crate) fn listen(
        &mut self,
        address: SocketAddr,
        listener: Option<Rc<Waiting>>,
    ) -> std::io::Result<SocketAddr> {
        let door = Listener::open_at(address, self.key.clone(), limits(address.ip()))?;
        watch(&self.epoll, &door)?;
        let address = door.address();
        self.doors.push((door, listener));
        Ok(address)
    }

    fn name(&mut self) -> Name {
        self.next += 1;
        Name(self.next)
    }

    /// Begins to connect.
    pub(crate) fn connect(
        &mut self,
        address: SocketAddr,
        peer: Option<Uuid>,
    ) -> std::io::Result<Name> {
        let limits = limits(address.ip());
        let connector = Connector::start(address, None, &self.key, CLAIM, self.patience, limits)?;
        let name = self.name();
        self.making.insert(name, Making { connector, peer, frames: Vec::new() });
        if let Some(peer) = peer {
            self.of_peer.insert(peer, name);
        }
        Ok(name)
    }

    /// The connection to a node, if there is one or will be.
    pub(crate) fn to(&self, peer: &Uuid) -> Option<Name> {
        self.of_peer.get(peer).copied()
    }

    /// The peer of a connection is this node. The latest connection of a node is used.
    pub(crate) fn identify(&mut self, name: Name, peer: Uuid) {
        if let Some(connection) = self.connections.get_mut(&name)
            && connection.peer != Some(peer)
        {
            connection.peer = Some(peer);
            self.of_peer.insert(peer, name);
        }
    }

    /// Sends a frame, or drops it if too many wait.
    pub(crate) fn send(&mut self, name: Name, frame: &[u8]) {
        let Ok(length) = u16::try_from(frame.len()) else { return };
        let bytes = [&length.to_be_bytes(), frame].concat();
        if let Some(connection) = self.connections.get_mut(&name) {
            if connection.outbox.push(&self.spare, &bytes) {
                // An error shows when the connection is read.
                let _ = connection.outbox.flush(&mut connection.socket, &self.spare);
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
        self.making.remove(&name);
        if let Some(mut connection) = self.connections.remove(&name) {
            let _ = connection.outbox.flush(&mut connection.socket, &self.spare);
            connection.socket.finish();
        }
        self.of_peer.retain(|_, known| *known != name);
    }

    /// Drops the connections to nodes that are not `kept`.
    pub(crate) fn prune(&mut self, kept: impl Fn(&Uuid) -> bool) {
        let gone: Vec<_> =
            self.of_peer.iter().filter(|(peer, _)| !kept(peer)).map(|(_, name)| *name).collect();
        for name in gone {
            self.close(name);
        }
    }

    /// Accepts, connects, sends and receives. Never blocks.
    pub(crate) fn progress(&mut self, now: Instant, events: &mut Vec<Event>) {
        self.accept(now);
        self.make(now, events);
        let names: Vec<_> = self.connections.keys().copied().collect();
        for name in names {
            if let Err(reason) = self.serve(name, now, events) {
                let ended = self.connections.remove(&name);
                self.of_peer.retain(|_, known| *known != name);
                let (peer, listener) =
                    ended.map_or((None, None), |ended| (ended.peer, ended.listener));
                events.push(Event::Ended(Ended { name, peer, listener, reason }));
            }
        }
    }

    fn accept(&mut self, now: Instant) {
        // A listener whose handles were dropped accepts no more clients.
        self.doors.retain(|(_, listener)| {
            listener.as_ref().is_none_or(|listener| Rc::strong_count(listener) > 1)
        });
        let mut newcomers: Vec<(Authenticated, Option<Rc<Waiting>>)> = Vec::new();
        for (door, listener) in &mut self.doors {
            let mut admitted = Vec::new();
            door.work(now, &mut admitted);
            newcomers.extend(admitted.into_iter().map(|newcomer| (newcomer, listener.clone())));
        }
        for (newcomer, listener) in newcomers {
            let claims = newcomer.claim.purpose == Purpose::Control
                && newcomer.claim.service == CLAIM.service;
            if !claims || self.connections.len() >= CONNECTIONS {
                newcomer.refuse(Verdict::Unknown);
            } else if let Ok(socket) = newcomer.welcome() {
                let name = self.name();
                self.adopt(name, socket, None, listener, now);
            }
        }
    }

    fn adopt(
        &mut self,
        name: Name,
        socket: Socket,
        peer: Option<Uuid>,
        listener: Option<Rc<Waiting>>,
        since: Instant,
    ) {
        if watch(&self.epoll, &socket).is_ok() {
            let (outbox, received) = (Outbox::default(), Vec::new());
            let connection = Connection { socket, outbox, received, peer, since, listener };
            self.connections.insert(name, connection);
        }
    }

    fn make(&mut self, now: Instant, events: &mut Vec<Event>) {
        let mut made = Vec::new();
        self.making.retain(|name, making| match making.connector.advance(now) {
            Ok(None) => true,
            Ok(Some(socket)) => {
                made.push((*name, socket, making.peer, std::mem::take(&mut making.frames)));
                false
            }
            Err(error) => {
                let (name, peer, reason) = (*name, making.peer, error.to_string());
                events.push(Event::Ended(Ended { name, peer, listener: None, reason }));
                false
            }
        });
        for (name, socket, peer, frames) in made {
            self.adopt(name, socket, peer, None, now);
            let Some(connection) = self.connections.get_mut(&name) else { continue };
            for frame in frames {
                connection.outbox.push(&self.spare, &frame);
            }
        }
        for event in events.iter() {
            if let Event::Ended(ended) = event {
                self.of_peer.retain(|_, known| *known != ended.name);
            }
        }
    }

    /// Sends and receives on one connection. The error is why it ended.
    fn serve(&mut self, name: Name, now: Instant, events: &mut Vec<Event>) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&name) else { return Ok(()) };
        let flushed = connection.outbox.flush(&mut connection.socket, &self.spare);
        flushed.map_err(|error| format!("{error:?}"))?;
        // Bounded: a peer that never stops does not hold this node up.
        for _ in 0..16 {
            let count = match connection.socket.receive(&mut self.scratch) {
                Ok(None) => break,
                Ok(Some(0)) => {
                    return Err("the peer's node ended the control connection".to_owned());
                }
                Ok(Some(count)) => count,
                Err(error) => return Err(error.to_string()),
            };
            connection.received.extend_from_slice(&self.scratch[..count]);
            while let Some((length, rest)) = connection.received.split_first_chunk::<2>() {
                let length = usize::from(u16::from_be_bytes(*length));
                if length > FRAME {
                    return Err(format!(
                        "a control message of {length} bytes; the longest has {FRAME}"
                    ));
                }
                let Some(frame) = rest.get(..length) else { break };
                events.push(Event::Frame(name, connection.listener.clone(), frame.to_vec()));
                connection.received.drain(..2 + length);
            }
        }
        let silent = connection.peer.is_none()
            && now.saturating_duration_since(connection.since) > self.patience;
        if silent { Err("it sent nothing before the deadline".to_owned()) } else { Ok(()) }
    }

    /// When progress is wanted although nothing happens.
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        let doors = self.doors.iter().filter_map(|(door, _)| door.deadline());
        let making = (!self.making.is_empty()).then(|| after(now, STEP));
        let sending =
            self.connections.values().any(|one| !one.outbox.is_empty()).then(|| after(now, STEP));
        let unknown = self
            .connections
            .values()
            .filter(|one| one.peer.is_none())
            .map(|one| after(one.since, self.patience));
        doors.chain(making).chain(sending).chain(unknown).min()
    }
}

impl AsFd for Streams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn watch(epoll: &OwnedFd, what: impl AsFd) -> std::io::Result<()> {
    Ok(epoll::add(epoll, what, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
}
