//! What an endpoint is behind its handles: its connection to a peer's port, and its state.

use std::cell::{RefCell, UnsafeCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use barewire_shm::{LIVE, Mapped, Peer, PortAddress, SendError};

use super::NAME;
use super::connection::Connection;
use super::domain::RemoteKey;
use super::endpoint::Endpoint;
use super::interface::Shared;
use super::views::Views;
use crate::counters::Counters;
use crate::error::{ConnectError, EndpointError, Operation, PostError};
use crate::memory::Access;
use crate::transport::common::gate::{Block, Gate};
use crate::transport::common::pending::PendingQueue;

pub(super) struct State {
    pub(super) gate: Gate,
    connection: UnsafeCell<Option<Rc<Connection>>>,
    pub(super) pending: PendingQueue<Endpoint>,
    pub(super) views: Views,
    error: RefCell<Option<EndpointError>>,
    pub(super) shared: Rc<Shared>,
}

impl State {
    /// An endpoint that is not connected.
    pub(super) fn new(shared: Rc<Shared>) -> Self {
        let state = Self {
            gate: Gate::new(&shared.past),
            connection: UnsafeCell::new(None),
            pending: PendingQueue::new(),
            views: Views::default(),
            error: RefCell::default(),
            shared,
        };
        state.gate.set(Block::Unconnected, true);
        state
    }

    /// The connection, kept while the result lives; `None` if there is none.
    pub(super) fn connection(&self) -> Option<Rc<Connection>> {
        // SAFETY: the state stays on its thread, and the reference ends with this expression, which
        // calls nothing that could change the place.
        unsafe { &*self.connection.get() }.clone()
    }

    /// Runs `run` on the driver's end of the connection; `None` if there is none.
    #[inline(always)]
    fn with_peer<R>(&self, run: impl FnOnce(&mut Peer) -> R) -> Option<R> {
        // SAFETY: as in `Connection::with_peer`: `run` calls the driver only, so the place does not
        // change while it is borrowed.
        unsafe { &*self.connection.get() }.as_ref().map(|connection| connection.with_peer(run))
    }

    /// As [`Self::with_peer`], for where a closure would not be inlined.
    ///
    /// # Safety
    /// The result is used for calls of the driver alone, and dropped.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the contract of this function")]
    pub(super) unsafe fn peer(&self) -> Option<&mut Peer> {
        // SAFETY: as in `with_peer`; the caller's promise is the one that `Connection::peer` needs.
        unsafe { (*self.connection.get()).as_ref().map(|connection| connection.peer()) }
    }

    /// What an answer of the driver is to the caller; an error that lasts fails the endpoint.
    #[cold]
    pub(super) fn refuse(&self, operation: Operation, error: Option<SendError>) -> PostError {
        match error {
            Some(SendError::Full) => self.gate.refuse(),
            Some(SendError::Lost) => {
                if let Some(connection) = self.connection() {
                    connection.fail(&self.shared, Some((self, operation)));
                }
                PostError::EndpointFailed
            }
            // Ended meanwhile, or never connected.
            None => self.gate.check().err().unwrap_or(PostError::NotConnected),
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

    pub(super) fn connect(self: &Rc<Self>, address: PortAddress) -> Result<(), ConnectError> {
        if !self.gate.has(Block::Unconnected) || !self.gate.is_alive() {
            return Err(ConnectError::Connected { transport: NAME });
        }
        let found = self.shared.connections.borrow().find(address);
        let connection = match found {
            Some(connection) => connection,
            None => Connection::open(&self.shared, address)?,
        };
        connection.join(self);
        self.gate.set(Block::Connecting, !connection.with_peer(|peer| peer.is_ready()));
        // SAFETY: the state stays on its thread, and nothing refers to the place now.
        unsafe { *self.connection.get() = Some(connection) };
        self.gate.set(Block::Unconnected, false);
        Ok(())
    }

    /// Takes no posts from now on. False if that was so before.
    pub(super) fn fail(&self, error: EndpointError) -> bool {
        if !self.gate.is_alive() {
            return false;
        }
        self.error.replace(Some(error));
        self.gate.set(Block::Failed, true);
        true
    }

    pub(super) fn counters(&self) -> Counters {
        self.gate.tally.read()
    }

    pub(super) fn may_wait(&self) -> bool {
        self.gate.is_usable() && (!self.has_room() || !self.pending.is_idle())
    }

    pub(super) fn error(&self) -> Option<EndpointError> {
        self.error.borrow().clone()
    }

    /// Leaves the connection.
    pub(super) fn stop(&self, block: Block) {
        self.gate.set(block, true);
        // SAFETY: as in `connect`.
        drop(unsafe { &mut *self.connection.get() }.take());
        self.views.clear();
    }

    /// Maps the key's region, or says why a range of it cannot be reached. Also looks whether the
    /// peer's process is still there, for a caller that posts and never makes progress.
    #[cold]
    pub(super) fn map(
        &self,
        key: &RemoteKey,
        remote: u64,
        length: usize,
        need: Access,
    ) -> Result<Mapped, PostError> {
        self.gate.check()?;
        if let Some(connection) = self.connection() {
            connection.tend(&self.shared);
        }
        self.gate.check()?;
        if !key.allows(need) {
            return Err(PostError::AccessDenied);
        }
        let (region_set, region, size) = key.region();
        let offset = key.offset(remote);
        if offset > size || length as u64 > size - offset {
            return Err(PostError::OutOfRange);
        }
        let found = self.run(Operation::Unnamed, |peer| {
            if peer.region_set() == region_set { peer.region(region, size).map(Some) } else { Ok(None) }
        })?;
        let mapped = found.ok_or(PostError::ForeignKey)?.ok_or(PostError::KeyExpired)?;
        if mapped.life().load(Ordering::Acquire) != LIVE {
            return Err(PostError::KeyExpired);
        }
        // The key's word for the length of the region is its writer's.
        if (mapped.size() as u64) < size {
            return Err(PostError::OutOfRange);
        }
        self.views.add(key, mapped.clone(), length);
        Ok(mapped)
    }

    /// A post would not answer `NoResource`, as far as can be told.
    pub(super) fn has_room(&self) -> bool {
        !self.gate.has(Block::Connecting)
            && self.run(Operation::Unnamed, Peer::has_room).unwrap_or(true)
            && !self.shared.buffers.is_empty()
    }
}
