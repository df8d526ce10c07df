//! How the connections of an endpoint are made.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Instant;

use barewire_tcp::connector::{ConnectFailure, Connector};
use barewire_tcp::handshake::{Claim, Purpose, Verdict};
use barewire_tcp::listener::{Authenticated, Limits};

use super::ID;
use super::address::{End, RemoteKey};
use super::agenda::Task;
use super::connection::{Advance, Connection};
use super::failure::PendingFailure;
use super::interface::Shared;
use super::life::{Early, Life, Peer};
use super::poller::Token;
use super::remote_memory::RemoteMemoryClient;
use super::state::State;
use crate::error::{Cause, ConnectError, Operation, PostError};
use crate::transport::Domain as _;
use crate::transport::common::post_state::PostBlock;

impl Shared {
    /// Begins to connect.
    fn connector(&self, peer: SocketAddr, claim: Claim) -> io::Result<Connector> {
        let (domain, config) = (&self.domain, &self.config);
        if domain.ip().is_ipv4() != peer.is_ipv4() {
            return Err(ErrorKind::NetworkUnreachable.into());
        }
        let protected = domain.wants_protection(config.integrity);
        let limits = Limits { peer_timeout: config.peer_timeout, protected, ..Limits::default() };
        Connector::start(
            peer,
            Some(domain.ip()),
            domain.key(),
            claim,
            config.connect_timeout,
            limits,
        )
    }

    /// A peer that proved the job's key connects to an endpoint.
    pub(super) fn admit(&self, newcomer: Authenticated) {
        let claim = newcomer.claim;
        let from = End { interface: claim.from_service, endpoint: claim.from_endpoint };
        let wanted = End { interface: claim.service, endpoint: claim.endpoint };
        let state = self.endpoint(wanted.slot()).filter(|state| state.own() == wanted);
        let Some(state) =
            state.filter(|state| claim.purpose == Purpose::Messages && state.posting.is_alive())
        else {
            return newcomer.refuse(Verdict::Unknown);
        };
        let peer = state.life.borrow().peer();
        match peer {
            // The newest is kept: a peer that got no verdict tries again.
            None => {
                if let Ok(socket) = newcomer.welcome() {
                    state.life.replace(Life::Unconnected(Some(Early { from, socket })));
                }
            }
            Some(peer) if peer.end == from => state.accept(newcomer),
            Some(_) => newcomer.refuse(Verdict::Taken),
        }
    }
}

impl State {
    /// Connects to `peer`, or waits until it connects.
    pub(super) fn connect(&self, peer: Peer) -> Result<(), ConnectError> {
        let name = peer.address.to_string();
        let unreachable =
            |reason| ConnectError::Unreachable { transport: ID, peer: name.clone(), reason };
        let refused = |error: io::Error| match error.kind() {
            ErrorKind::NetworkUnreachable
            | ErrorKind::HostUnreachable
            | ErrorKind::InvalidInput
            | ErrorKind::AddrNotAvailable => unreachable(format!(
                "{} does not lead there ({error}); see 'barewire info --to'",
                self.shared.domain.name()
            )),
            _ => ConnectError::Device { transport: ID, peer: name.clone(), source: error.into() },
        };
        let own = self.own();
        if peer.end == own {
            return Err(unreachable(
                "an endpoint cannot be connected to itself: make two".to_owned(),
            ));
        }
        let mut connection = self.messages.borrow_mut();
        match self.life.take() {
            Life::Unconnected(Some(early)) if early.from == peer.end => {
                connection.open(&self.shared.poller, early.socket).map_err(refused)?;
            }
            _ if peer.end < own => {
                connection.expect_peer();
                self.shared.agenda.push(Task::AwaitPeer, self.slot());
            }
            _ => {
                let claim = Claim {
                    purpose: Purpose::Messages,
                    service: peer.end.interface,
                    endpoint: peer.end.endpoint,
                    from_service: own.interface,
                    from_endpoint: own.endpoint,
                };
                connection.connect(self.shared.connector(peer.address, claim).map_err(refused)?);
                self.shared.visit_later(Task::Connect, self.slot());
            }
        }
        self.life.replace(Life::Connected(peer));
        self.posting.set(PostBlock::Unconnected, false);
        Ok(())
    }

    /// Begins to connect to the memory that `key` is for.
    #[cold]
    pub(super) fn connect_memory(
        &self,
        key: &RemoteKey,
        operation: Operation,
    ) -> Result<Box<RemoteMemoryClient>, PostError> {
        let mut address = self.life.borrow().peer().ok_or(PostError::NotConnected)?.address;
        address.set_port(key.port);
        let claim = Claim {
            purpose: Purpose::Memory,
            service: key.domain,
            // The connection is to a domain.
            endpoint: 0,
            from_service: self.own().interface,
            from_endpoint: self.own().endpoint,
        };
        let connector = self.shared.connector(address, claim).map_err(|error| {
            let failure = PendingFailure::of_connecting(&ConnectFailure::Io(error));
            self.fail(PendingFailure { operation, ..failure });
            PostError::EndpointFailed
        })?;
        let mut connection = Connection::new(Token::Memory(self.slot()));
        connection.connect(connector);
        self.shared.visit_later(Task::Connect, self.slot());
        Ok(Box::new(RemoteMemoryClient::new(connection, key, self.shared.config.send_ring.into())))
    }

    /// The peer connects.
    fn accept(&self, newcomer: Authenticated) {
        // A `pack` function makes progress. Without a verdict the peer tries again.
        let Ok(mut connection) = self.messages.try_borrow_mut() else { return };
        // The peer may connect again if it received nothing, not even the verdict, the first time.
        let is_unused = connection.outbox().sent() == 0 && !self.reader.borrow().has_read();
        if !(connection.is_expected() || connection.is_open() && is_unused) {
            drop(connection);
            return newcomer.refuse(Verdict::Taken);
        }
        let Ok(socket) = newcomer.welcome() else { return };
        let shared = &*self.shared;
        let opened = connection.open(&shared.poller, socket).map_err(Into::into);
        let sent = opened
            .and_then(|()| connection.send(&shared.poller, &shared.spare, shared.round.get()));
        if let Err(error) = sent {
            self.fail(PendingFailure::of_sending(Operation::Connect, &error));
        }
        self.schedule();
    }

    /// Advances the connections that this end makes. Returns true while there is one.
    pub(super) fn advance(&self) -> bool {
        let now = Instant::now();
        let mut unfinished = false;
        let mut failure = None;
        let (poller, spare, round) =
            (&self.shared.poller, &self.shared.spare, self.shared.round.get());
        let mut step = |connection: &mut Connection| match connection.advance(poller, now) {
            Ok(Advance::None) => {}
            Ok(Advance::Unfinished) => unfinished = true,
            Ok(Advance::Opened) => {
                self.schedule();
                if let Err(error) = connection.send(poller, spare, round) {
                    failure = Some(PendingFailure::of_sending(Operation::Connect, &error));
                }
            }
            Err(error) => failure = Some(PendingFailure::of_connecting(&error)),
        };
        let (Ok(mut messages), Ok(mut memory)) =
            (self.messages.try_borrow_mut(), self.memory.try_borrow_mut())
        else {
            // A `pack` function makes progress: the connections wait until its post is done.
            return true;
        };
        step(&mut messages);
        if let Some(memory) = &mut *memory {
            step(memory.connection());
        }
        drop((messages, memory));
        if let Some(failure) = failure {
            self.fail(failure);
        }
        unfinished
    }

    /// Something waits for the peer to connect.
    pub(super) fn is_waiting_for_peer(&self) -> bool {
        let Ok(connection) = self.messages.try_borrow() else { return self.posting.is_alive() };
        let waits = !connection.outbox().is_empty() || self.shared.config.keepalive.is_some();
        self.posting.is_alive() && connection.is_expected() && waits
    }

    /// Returns true if the peer is expected to connect. Once something waits for it, it has as long
    /// as a connection may take.
    pub(super) fn is_expecting_peer(&self, now: Instant) -> bool {
        let Ok(mut connection) = self.messages.try_borrow_mut() else { return true };
        if !self.posting.is_alive() || !connection.is_expected() {
            return false;
        }
        let config = &self.shared.config;
        if !connection.is_overdue(now, config.connect_timeout, config.keepalive.is_some()) {
            return true;
        }
        drop(connection);
        let detail = "it never connected to this endpoint";
        self.fail(PendingFailure::new(Operation::Connect, Cause::PeerUnreachable, detail));
        false
    }
}
