//! What an endpoint is behind its handles: its connections, what is outstanding on them, and how it fails.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

use barewire_tcp::connector::ConnectFailure;
use barewire_tcp::handshake::{Claim, HandshakeError, Purpose};
use barewire_tcp::outbox::SendError;
use barewire_tcp::socket::Socket;

use super::address::End;
use super::connection::{Advance, Connection};
use super::endpoint::Endpoint;
use super::interface::Shared;
use super::memory::RemoteMemoryClient;
use super::poller::Token;
use super::reader::MessageReader;
use super::{NAME, SEGMENT};
use crate::completion::Completion;
use crate::error::{Cause, ConnectError, EndpointError, Operation, OperationError, PostError};
use crate::panics::Panics;
use crate::transport::common::gate::{Block, Gate};
use crate::transport::common::pending::PendingQueue;

/// Whom an endpoint is connected to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    pub(super) end: End,
}

/// A connection that came before this end knew whom to expect.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) from: End,
    pub(super) socket: Socket,
}

/// Why an endpoint fails, until progress says so.
#[derive(Debug, Clone)]
pub(super) struct PendingFailure {
    pub(super) operation: Operation,
    pub(super) cause: Cause,
    pub(super) detail: String,
}

impl PendingFailure {
    pub(super) fn new(operation: Operation, cause: Cause, detail: impl Into<String>) -> Self {
        Self { operation, cause, detail: detail.into() }
    }

    pub(super) fn of_connecting(failure: &ConnectFailure) -> Self {
        let cause = match failure {
            ConnectFailure::Handshake(HandshakeError::Key) => Cause::Unauthenticated,
            ConnectFailure::Handshake(HandshakeError::Altered) => Cause::Altered,
            // For want of descriptors, say: that is not the peer's doing.
            ConnectFailure::Io(error) if !barewire_tcp::socket::is_gone(error) => Cause::LocalOperation,
            _ => Cause::PeerUnreachable,
        };
        Self::new(Operation::Connect, cause, failure.to_string())
    }

    pub(super) fn of_sending(operation: Operation, error: &SendError) -> Self {
        let cause = match error {
            SendError::Revoked => Cause::LocalAccess,
            SendError::Io(error) if barewire_tcp::socket::is_gone(error) => Cause::Disconnected,
            SendError::Io(error) if barewire_tcp::seal::is_altered(error) => Cause::Altered,
            SendError::Io(_) => Cause::LocalOperation,
        };
        Self::new(operation, cause, error.to_string())
    }
}

/// A flush that waits until so much is sent and so many requests are finished.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) sent: u64,
    pub(super) finished: u64,
    pub(super) completion: Completion,
    /// It waits for a cancellation, which is no error.
    pub(super) cancels: bool,
}

pub(super) struct State {
    pub(super) gate: Gate,
    /// The connection for messages.
    pub(super) messages: RefCell<Connection>,
    /// Messages that are being sent from their memory: where each ends, and who is told.
    pub(super) sending: RefCell<VecDeque<(u64, Option<Completion>)>>,
    /// The connection to the peer's memory.
    pub(super) memory: RefCell<Option<Box<RemoteMemoryClient>>>,
    pub(super) flushes: RefCell<VecDeque<Waiter>>,
    /// Messages wait until so many requests are finished.
    pub(super) fence: Cell<u64>,
    pub(super) reader: RefCell<MessageReader>,
    /// Messages that handlers keep.
    pub(super) kept: Cell<u32>,
    /// On the interface's list of endpoints with something to send.
    pub(super) dirty: Cell<bool>,
    /// A post was refused for want of resources since the last time that some came back.
    pub(super) short: Cell<bool>,
    pub(super) pending: PendingQueue<Endpoint>,
    /// `Endpoint`s that name this state. The last one to go closes it.
    pub(super) handles: Cell<u32>,
    /// Errors from now on are our own doing.
    pub(super) canceled: Cell<bool>,
    pub(super) own: End,
    /// Place among the interface's endpoints.
    pub(super) index: u32,
    pub(super) peer: Cell<Option<Peer>>,
    pub(super) early: RefCell<Option<Early>>,
    failure: RefCell<Option<PendingFailure>>,
    error: RefCell<Option<EndpointError>>,
    pub(super) shared: Rc<Shared>,
    pub(super) me: Weak<State>,
}

impl State {
    /// An endpoint that is not connected.
    pub(super) fn new(shared: &Rc<Shared>, index: u32, own: End) -> Rc<Self> {
        let state = Rc::new_cyclic(|me| Self {
            gate: Gate::new(&shared.past),
            messages: RefCell::new(Connection::new(Token::Messages(index))),
            sending: RefCell::default(),
            memory: RefCell::default(),
            flushes: RefCell::default(),
            fence: Cell::new(0),
            reader: RefCell::default(),
            kept: Cell::new(0),
            dirty: Cell::new(false),
            short: Cell::new(false),
            pending: PendingQueue::new(),
            handles: Cell::new(0),
            canceled: Cell::new(false),
            own,
            index,
            peer: Cell::new(None),
            early: RefCell::default(),
            failure: RefCell::default(),
            error: RefCell::default(),
            shared: Rc::clone(shared),
            me: me.clone(),
        });
        state.gate.set(Block::Unconnected, true);
        state
    }

    // Connecting.

    /// Connects to `peer`, or waits for it.
    pub(super) fn connect(&self, peer: Peer) -> Result<(), ConnectError> {
        let unreachable = |reason: String| ConnectError::Unreachable {
            transport: NAME,
            peer: peer.address.to_string(),
            reason,
        };
        if peer.end == self.own {
            return Err(unreachable("an endpoint cannot be connected to itself: make two".to_owned()));
        }
        let mut connection = self.messages.borrow_mut();
        match self.early.take() {
            Some(early) if early.from == peer.end => {
                connection
                    .open(&self.shared.poller, early.socket)
                    .map_err(|error| device_error(peer.address, error))?;
            }
            _ if peer.end < self.own => {
                connection.expect_peer();
                self.shared.expecting.borrow_mut().push(self.index);
            }
            _ => {
                let claim = Claim {
                    purpose: Purpose::Messages,
                    service: peer.end.interface,
                    endpoint: peer.end.endpoint,
                    from_service: self.own.interface,
                    from_endpoint: self.own.endpoint,
                };
                let connector = self.shared.connector(peer.address, claim);
                connection.connect(connector.map_err(|error| match error.kind() {
                    std::io::ErrorKind::NetworkUnreachable
                    | std::io::ErrorKind::HostUnreachable
                    | std::io::ErrorKind::InvalidInput
                    | std::io::ErrorKind::AddrNotAvailable => unreachable(format!(
                        "{} does not lead there ({error}); see 'barewire info --to'",
                        self.shared.domain.device()
                    )),
                    _ => device_error(peer.address, error),
                })?);
                self.shared.connecting.borrow_mut().push(self.index);
                self.shared.poller.wake();
            }
        }
        drop(connection);
        self.peer.set(Some(peer));
        self.gate.set(Block::Unconnected, false);
        Ok(())
    }

    /// Goes on with connections in the making. True while there is one.
    pub(super) fn advance(&self) -> bool {
        let now = std::time::Instant::now();
        let mut unfinished = false;
        let mut failure = None;
        let (poller, spare, round) = (&self.shared.poller, &self.shared.spare, self.shared.round.get());
        let mut step = |connection: &mut Connection| match connection.advance(poller, now) {
            Ok(Advance::None) => {}
            Ok(Advance::Unfinished) => unfinished = true,
            Ok(Advance::Opened) => {
                self.progress_later();
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
            step(&mut memory.connection);
        }
        drop((messages, memory));
        if let Some(failure) = failure {
            self.fail(failure);
        }
        unfinished
    }

    pub(super) fn error(&self) -> Option<EndpointError> {
        self.error.borrow().clone()
    }

    // What is outstanding.

    /// A function that packs for a post is running, and has called into the library. It holds the
    /// outbox that its buffer lies in, so the endpoint's connections are left alone until it returns.
    pub(super) fn is_packing(&self) -> bool {
        self.messages.try_borrow_mut().is_err() || self.memory.try_borrow_mut().is_err()
    }

    /// The result of a `pack` function.
    ///
    /// # Errors
    /// The length is over the limit, or the function cancelled the endpoint or closed the interface.
    pub(super) fn packed(&self, length: usize) -> Result<usize, PostError> {
        if !self.gate.is_alive() {
            self.gate.check()?;
        }
        if length > SEGMENT {
            return Err(PostError::too_long(length, SEGMENT));
        }
        Ok(length)
    }

    /// A post by a `pack` function failed. If the function closed the interface, this finishes what
    /// [`Shared::close`](super::interface::Shared) had to leave.
    #[cold]
    pub(super) fn after_failed_pack(&self) {
        if self.gate.has(Block::Closed) {
            self.finish_closed();
        }
    }

    /// Nothing that was posted is outstanding.
    pub(super) fn is_idle(&self) -> bool {
        let sent = self.messages.try_borrow().is_ok_and(|connection| connection.outbox().is_empty());
        sent && self.requests().is_some_and(|(posted, finished)| posted == finished)
    }

    /// Requests that were posted, and that are finished; `None` while one is being posted.
    pub(super) fn requests(&self) -> Option<(u64, u64)> {
        let memory = self.memory.try_borrow().ok()?;
        Some(memory.as_ref().map_or((0, 0), |memory| (memory.posted, memory.finished)))
    }

    /// A request may wait: some post was or would be refused for want of resources, and nothing else.
    pub(super) fn may_wait(&self) -> bool {
        let full =
            |connection: &Connection| connection.outbox().is_crowded(SEGMENT + 2 * super::memory::OVERHEAD);
        let short = self.short.get()
            || self.messages.try_borrow().map_or(true, |connection| full(&connection))
            || self.memory.try_borrow().map_or(true, |memory| {
                memory.as_ref().is_some_and(|memory| full(&memory.connection) || memory.is_full())
            });
        self.gate.is_usable() && (short || !self.pending.is_idle())
    }

    /// A post is refused until resources come back.
    #[cold]
    pub(super) fn refuse(&self) -> PostError {
        self.short.set(true);
        self.gate.refuse()
    }

    // Failing.

    /// Takes no posts from now on; progress tells everybody.
    #[cold]
    pub(super) fn fail(&self, failure: PendingFailure) {
        if !self.gate.is_alive() {
            return;
        }
        self.gate.set(Block::Failed, true);
        self.failure.replace(Some(failure));
        self.shared.failed.borrow_mut().push(self.index);
        self.shared.poller.wake();
    }

    /// Tells everybody what [`Self::fail`] was told.
    #[cold]
    pub(super) fn report_failure(&self) {
        let Some(failure) = self.failure.take() else { return };
        self.close_connections(false);
        let peer = self.peer.get().map_or_else(|| "nobody".to_owned(), |peer| peer.address.to_string());
        let report = EndpointError {
            transport: NAME,
            peer: format!("{peer} ({})", failure.detail),
            operation: failure.operation,
            cause: failure.cause,
            syndrome: None,
            detail: None,
        };
        self.error.replace(Some(report.clone()));
        let mut panics = Panics::default();
        panics.catch(|| self.finish_outstanding(OperationError { cause: failure.cause, syndrome: None }));
        panics.catch(|| self.shared.handlers.dispatch_error(&report));
    }

    /// Finishes whatever is outstanding: the first with `error`, what was behind it as flushed.
    pub(super) fn finish_outstanding(&self, error: OperationError) {
        let mut panics = Panics::default();
        let mut next = Err(error);
        let mut result = || {
            let behind = match error {
                OperationError::CANCELED => error,
                _ => OperationError { cause: Cause::Flushed, syndrome: None },
            };
            std::mem::replace(&mut next, Err(behind))
        };
        loop {
            let done = self.memory.borrow_mut().as_mut().and_then(|memory| memory.in_flight.pop_front());
            let Some(entry) = done else { break };
            if let Some(completion) = entry.into_completion() {
                let result = result();
                panics.catch(|| completion.count_down(result));
            }
        }
        loop {
            let done = self.sending.borrow_mut().pop_front();
            let Some((_, completion)) = done else { break };
            let result = result();
            if let Some(completion) = completion {
                panics.catch(|| completion.count_down(result));
            }
        }
        loop {
            let done = self.flushes.borrow_mut().pop_front();
            let Some(waiter) = done else { break };
            let result = if waiter.cancels { Ok(()) } else { result() };
            panics.catch(|| waiter.completion.count_down(result));
        }
        // Nothing is outstanding any more, for flushes that come now.
        if let Some(memory) = self.memory.borrow_mut().as_mut() {
            memory.finished = memory.posted;
        }
    }
}

fn device_error(peer: SocketAddr, error: std::io::Error) -> ConnectError {
    ConnectError::Device { transport: NAME, peer: peer.to_string(), source: error.into() }
}
