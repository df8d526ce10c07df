//! What an endpoint is behind its handles: the connection to a peer's port, and what becomes of it.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use barewire_shm::{LIVE, LinkError, Mapped, Peer, PortAddress, SendError};

use super::NAME;
use super::domain::RemoteKey;
use super::endpoint::Endpoint;
use super::interface::Shared;
use super::views::Views;
use crate::error::{Cause, ConnectError, EndpointError, Operation, PostError};
use crate::gate::{Block, Gate};
use crate::memory::Access;
use crate::pending::PendingQueue;

pub(super) struct State {
    pub(super) gate: Gate,
    peer: UnsafeCell<Option<Peer>>,
    pub(super) pending: PendingQueue<Endpoint>,
    pub(super) views: Views,
    /// Place among the interface's endpoints.
    pub(super) name: u32,
    error: RefCell<Option<EndpointError>>,
    /// The error handler is to be called.
    unreported: Cell<bool>,
    pub(super) shared: Rc<Shared>,
}

impl State {
    /// An endpoint that is not connected.
    pub(super) fn new(shared: Rc<Shared>, name: u32) -> Self {
        let state = Self {
            gate: Gate::new(&shared.past),
            peer: UnsafeCell::new(None),
            pending: PendingQueue::new(),
            views: Views::default(),
            name,
            error: RefCell::default(),
            unreported: Cell::new(false),
            shared,
        };
        state.gate.set(Block::Unconnected, true);
        state
    }

    /// The one way to the connection; `None` if there is none.
    #[inline(always)]
    pub(super) fn with_peer<R>(&self, run: impl FnOnce(&mut Peer) -> R) -> Option<R> {
        // SAFETY: the state stays on its thread, and every `run` (all are closures of this transport's modules) calls the driver
        // only, which calls nothing of ours or of the user's. So no second reference exists while this one does.
        unsafe { &mut *self.peer.get() }.as_mut().map(run)
    }

    /// As [`Self::with_peer`], for where a closure would not be inlined.
    ///
    /// # Safety
    /// The result is used for calls of the driver alone, and dropped.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the contract of this function")]
    pub(super) unsafe fn peer(&self) -> Option<&mut Peer> {
        // SAFETY: as in `with_peer`.
        unsafe { &mut *self.peer.get() }.as_mut()
    }

    /// What an answer of the driver is to the caller; an error that lasts fails the endpoint.
    #[cold]
    pub(super) fn refuse(&self, operation: Operation, error: Option<SendError>) -> PostError {
        match error {
            Some(SendError::Full) => self.gate.refuse(),
            Some(SendError::Lost) => self.fail(operation),
            None => PostError::NotConnected,
        }
    }

    /// Runs an operation of the driver; an error that lasts fails the endpoint.
    #[inline(always)]
    pub(super) fn run<R>(
        &self,
        operation: Operation,
        run: impl FnOnce(&mut Peer) -> Result<R, SendError>,
    ) -> Result<R, PostError> {
        match self.with_peer(run) {
            Some(Ok(done)) => Ok(done),
            Some(Err(error)) => Err(self.refuse(operation, Some(error))),
            None => Err(self.refuse(operation, None)),
        }
    }

    pub(super) fn connect(&self, address: PortAddress) -> Result<(), ConnectError> {
        if !self.gate.has(Block::Unconnected) || !self.gate.is_alive() {
            return Err(ConnectError::Connected { transport: NAME });
        }
        let shared = &*self.shared;
        let name = || format!("port {:016x}", address.number);
        let peer = Peer::connect(address, &shared.config).map_err(|error| match error {
            error @ (LinkError::System { .. } | LinkError::Segment(_)) => {
                ConnectError::Device { transport: NAME, peer: name(), source: error.into() }
            }
            error => ConnectError::Unreachable { transport: NAME, peer: name(), reason: error.to_string() },
        })?;
        shared.watcher.watch(&peer, self.name).map_err(|error| ConnectError::Device {
            transport: NAME,
            peer: name(),
            source: error.into(),
        })?;
        // SAFETY: as in `with_peer`; there is no connection yet.
        unsafe { *self.peer.get() = Some(peer) };
        self.gate.set(Block::Connecting, true);
        self.gate.set(Block::Unconnected, false);
        Ok(())
    }

    /// Takes in what the peer's process said over the socket.
    pub(super) fn tend(&self) {
        match self.with_peer(|peer| peer.tend().map(|()| peer.is_ready())) {
            Some(Ok(ready)) => {
                if ready && self.gate.has(Block::Connecting) {
                    self.gate.set(Block::Connecting, false);
                    self.shared.connected.set(self.shared.connected.get() + 1);
                }
                if !self.pending.is_idle() {
                    self.shared.call_attention();
                }
            }
            Some(Err(_)) => drop(self.fail(Operation::Unnamed)),
            None => {}
        }
    }

    /// The connection is lost; says so once, with the next progress.
    #[cold]
    fn fail(&self, operation: Operation) -> PostError {
        if self.gate.is_alive() {
            let (peer, cause) = self
                .with_peer(|peer| {
                    let name = format!("process {}", peer.process());
                    let Some(error) = peer.error() else { return (name, Cause::Unknown) };
                    (format!("{name} ({error})"), cause(error))
                })
                .unwrap_or_else(|| ("nobody".to_owned(), Cause::Unknown));
            let error =
                EndpointError { transport: NAME, peer, operation, cause, syndrome: None, detail: None };
            self.error.replace(Some(error));
            self.gate.set(Block::Failed, true);
            self.unreported.set(true);
            self.shared.call_attention();
        }
        PostError::EndpointFailed
    }

    /// The error that the handler was not told yet.
    pub(super) fn unreported(&self) -> Option<EndpointError> {
        if self.unreported.replace(false) { self.error() } else { None }
    }

    pub(super) fn error(&self) -> Option<EndpointError> {
        self.error.borrow().clone()
    }

    /// Ends the connection.
    pub(super) fn stop(&self, block: Block) {
        self.gate.set(block, true);
        // SAFETY: as in `with_peer`; dropping a connection calls nothing of ours.
        drop(unsafe { &mut *self.peer.get() }.take());
        self.views.clear();
    }

    /// Maps the key's region, or says why a range of it cannot be reached.
    #[cold]
    pub(super) fn map(
        &self,
        key: &RemoteKey,
        remote: u64,
        length: usize,
        need: Access,
    ) -> Result<Mapped, PostError> {
        self.gate.check()?;
        if !key.allows(need) {
            return Err(PostError::AccessDenied);
        }
        let (shelf, region, size) = key.region();
        let (offset, length) = (key.offset(remote), length as u64);
        if offset > size || length > size - offset {
            return Err(PostError::OutOfRange);
        }
        let found = self.run(Operation::Unnamed, |peer| {
            if peer.shelf() == shelf { peer.region(region).map(Some) } else { Ok(None) }
        })?;
        let mapped = found.ok_or(PostError::ForeignKey)?.ok_or(PostError::KeyExpired)?;
        if mapped.life().load(Ordering::Acquire) != LIVE {
            return Err(PostError::KeyExpired);
        }
        // The key's word for the length of the region is its writer's.
        if (mapped.size() as u64) < size {
            return Err(PostError::OutOfRange);
        }
        self.views.add(key, mapped.clone());
        Ok(mapped)
    }

    /// A post would not answer `NoResource`, as far as can be told.
    pub(super) fn has_room(&self) -> bool {
        !self.gate.has(Block::Connecting)
            && self.run(Operation::Unnamed, Peer::has_room).unwrap_or(true)
            && !self.shared.buffers.is_empty()
    }
}

/// What an error of the driver is in the API's terms.
fn cause(error: &LinkError) -> Cause {
    match error {
        LinkError::Nobody | LinkError::Busy | LinkError::Ended => Cause::PeerUnreachable,
        LinkError::User { .. } | LinkError::Secret | LinkError::Full | LinkError::GivenUp => {
            Cause::RemoteRequest
        }
        LinkError::Corrupt(_) => Cause::RemoteOperation,
        LinkError::Segment(_) | LinkError::System { .. } => Cause::LocalOperation,
        _ => Cause::Unknown,
    }
}
