//! How the connections of an endpoint are made.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use barewire_tcp::connector::{ConnectFailure, Connector};
use barewire_tcp::handshake::{Claim, Purpose, Verdict};
use barewire_tcp::inbox::{Accepted, Arrival};
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
use crate::base::error::{Cause, ConnectError, Operation, PostError};
use crate::transport::Domain as _;
use crate::transport::common::post_state::PostBlock;

/// Whether an error of connect(2) means that no route leads to the peer.
pub(super) fn is_no_route(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NetworkUnreachable
            | ErrorKind::HostUnreachable
            | ErrorKind::InvalidInput
            | ErrorKind::AddrNotAvailable
    )
}

impl Shared {
    /// Begins to connect.
    fn connector(&self, peer: SocketAddr, claim: Claim) -> io::Result<Connector> {
        let (domain, config) = (&self.domain, &self.config);
        if domain.address().ip().is_ipv4() != peer.is_ipv4() {
            return Err(ErrorKind::NetworkUnreachable.into());
        }
        let protected = domain.wants_protection(config.integrity);
        let limits = Limits { peer_timeout: config.peer_timeout, protected, ..Limits::default() };
        Connector::start(
            peer,
            Some(domain.address()),
            domain.key(),
            claim,
            config.connect_timeout,
            limits,
        )
    }

    /// A peer that proved the job's key connects.
    pub(super) fn admit(self: &Rc<Self>, arrival: Arrival) {
        match arrival {
            Arrival::Endpoint(newcomer) => self.admit_to_endpoint(newcomer),
            Arrival::Interface(accepted) => self.adopt(accepted),
        }
    }

    /// Gives a connection to the interface to an endpoint without handles, which ends with it. If
    /// that is not possible, the connection ends here.
    fn adopt(self: &Rc<Self>, Accepted { claim, socket, counted }: Accepted) {
        let Ok(state) = self.open_endpoint() else { return };
        let from = End { interface: claim.from_service, endpoint: claim.from_endpoint };
        let peer = Peer { address: socket.peer(), end: Some(from) };
        let opened = socket
            .set_timeout(self.config.peer_timeout)
            .and_then(|()| state.messages.borrow_mut().open(&self.poller, socket));
        if opened.is_err() {
            return self.core.endpoints.remove(state.slot());
        }
        state.accepted.replace(Some(counted));
        state.life.replace(Life::Connected(peer));
        state.posting.set(PostBlock::Unconnected, false);
    }

    fn admit_to_endpoint(&self, newcomer: Authenticated) {
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
            Some(peer) if peer.end == Some(from) => state.accept(newcomer),
            Some(_) => newcomer.refuse(Verdict::Taken),
        }
    }
}

impl State {
    /// Connects to `peer`, or waits until it connects.
    pub(super) fn connect(&self, address: SocketAddr, end: End) -> Result<(), ConnectError> {
        let refused = |error| self.cannot_connect(address, error);
        let own = self.own();
        if end == own {
            let reason = "an endpoint cannot be connected to itself: make two".to_owned();
            let peer = address.to_string();
            return Err(ConnectError::Unreachable { transport: ID, peer, reason });
        }
        let mut connection = self.messages.borrow_mut();
        match self.life.take() {
            Life::Unconnected(Some(early)) if early.from == end => {
                connection.open(&self.shared.poller, early.socket).map_err(refused)?;
            }
            _ if end < own => {
                connection.expect_peer();
                self.shared.agenda.push(Task::AwaitPeer, self.slot());
            }
            _ => {
                let claim = self.claim(Purpose::Messages, end.interface, end.endpoint);
                connection.connect(self.shared.connector(address, claim).map_err(refused)?);
                self.shared.visit_later(Task::Connect, self.slot());
            }
        }
        self.life.replace(Life::Connected(Peer { address, end: Some(end) }));
        self.posting
            .set(PostBlock::Connecting, self.shared.config.unattended && !connection.is_open());
        self.posting.set(PostBlock::Unconnected, false);
        Ok(())
    }

    /// Connects to the interface of this number.
    pub(super) fn connect_to_interface(
        &self,
        address: SocketAddr,
        number: u64,
    ) -> Result<(), ConnectError> {
        let claim = self.claim(Purpose::Interface, number, 0);
        let connector = self.shared.connector(address, claim);
        let connector = connector.map_err(|error| self.cannot_connect(address, error))?;
        self.messages.borrow_mut().connect(connector);
        self.shared.visit_later(Task::Connect, self.slot());
        self.life.replace(Life::Connected(Peer { address, end: None }));
        self.posting.set(PostBlock::Connecting, self.shared.config.unattended);
        self.posting.set(PostBlock::Unconnected, false);
        Ok(())
    }

    /// What this endpoint requests of a peer.
    fn claim(&self, purpose: Purpose, service: u64, endpoint: u64) -> Claim {
        let End { interface: from_service, endpoint: from_endpoint } = self.own();
        Claim { purpose, service, endpoint, from_service, from_endpoint }
    }

    /// Returns why the kernel does not connect to `peer`.
    fn cannot_connect(&self, peer: SocketAddr, error: io::Error) -> ConnectError {
        let peer = peer.to_string();
        match error {
            error if is_no_route(&error) => {
                let device = self.shared.domain.name();
                let reason =
                    format!("{device} does not lead there ({error}); see 'barewire info --to'");
                ConnectError::Unreachable { transport: ID, peer, reason }
            }
            error => ConnectError::Device { transport: ID, peer, source: error.into() },
        }
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
        // The connection is to a domain, not to an endpoint.
        let claim = self.claim(Purpose::Memory, key.domain, 0);
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

    /// The connection for messages is open: posts are accepted.
    fn opened(&self) {
        self.posting.set(PostBlock::Connecting, false);
        self.replenish();
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
        match sent {
            Ok(_) => self.opened(),
            Err(error) => self.fail(PendingFailure::of_sending(Operation::Connect, &error)),
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
        let was_open = messages.is_open();
        step(&mut messages);
        if !was_open && messages.is_open() {
            self.opened();
        }
        if let Some(memory) = &mut *memory {
            step(memory.connection());
        }
        drop((messages, memory));
        if let Some(failure) = failure {
            self.fail(failure);
        }
        unfinished
    }

    /// The endpoint waits for the peer to connect, whether or not there is something to send.
    fn awaits_peer(&self) -> bool {
        self.shared.config.keepalive.is_some() || !self.pending.is_idle()
    }

    /// Something waits for the peer to connect.
    pub(super) fn is_waiting_for_peer(&self) -> bool {
        let Ok(connection) = self.messages.try_borrow() else { return self.posting.is_alive() };
        let waits = !connection.outbox().is_empty() || self.awaits_peer();
        self.posting.is_alive() && connection.is_expected() && waits
    }

    /// Returns true if the peer is expected to connect. Once something waits for it, it has as long
    /// as a connection may take.
    pub(super) fn is_expecting_peer(&self, now: Instant) -> bool {
        let Ok(mut connection) = self.messages.try_borrow_mut() else { return true };
        if !self.posting.is_alive() || !connection.is_expected() {
            return false;
        }
        let limit = self.shared.config.connect_timeout;
        if !connection.is_overdue(now, limit, self.awaits_peer()) {
            return true;
        }
        drop(connection);
        let detail = "it never connected to this endpoint";
        self.fail(PendingFailure::new(Operation::Connect, Cause::PeerUnreachable, detail));
        false
    }
}
