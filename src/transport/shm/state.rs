//! The state of an endpoint behind its handles, with its connection to a peer's port.

use std::cell::{RefCell, UnsafeCell};
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

use barewire_shm::{LIVE, Mapped, Peer, PortAddress, SendError};

use super::address;
use super::connection::Connection;
use super::domain::RemoteKey;
use super::interface::Shared;
use super::views::Views;
use super::{Endpoint, ID, Shm};
use crate::base::address::EndpointAddress;
use crate::base::completion::Completion;
use crate::base::error::{ConnectError, EndpointError, Operation, PostError};
use crate::base::memory::Access;
use crate::base::status::{FlushMode, Post, Posted};
use crate::transport::common::pending::PendingQueue;
use crate::transport::common::post_state::{PostBlock, PostState};
use crate::transport::handle::{EndpointState, endpoint_fields};

pub(crate) struct State {
    pub(super) posting: PostState,
    connection: UnsafeCell<Option<Rc<Connection>>>,
    pub(super) pending: PendingQueue<Endpoint>,
    pub(super) views: Views,
    error: RefCell<Option<EndpointError>>,
    pub(super) shared: Rc<Shared>,
}

impl EndpointState for State {
    endpoint_fields!(Shm);

    fn address(&self) -> EndpointAddress {
        address::endpoint(self.shared.address)
    }

    fn error(&self) -> Option<EndpointError> {
        self.error.borrow().clone()
    }

    fn may_wait(&self) -> bool {
        self.posting.is_usable() && (!self.has_room() || !self.pending.is_idle())
    }

    fn flush(&self, mode: FlushMode, _completion: Option<&Completion>) -> Post {
        if mode == FlushMode::Cancel {
            if !self.posting.is_alive() {
                self.posting.check()?;
            }
            self.stop(PostBlock::Failed);
        } else {
            self.posting.check()?;
            self.fence();
        }
        Ok(Posted::Done)
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl State {
    /// Creates an unconnected endpoint.
    pub(super) fn new(shared: Rc<Shared>) -> Self {
        let state = Self {
            posting: PostState::new(&shared.core.past),
            connection: UnsafeCell::new(None),
            pending: PendingQueue::new(),
            views: Views::default(),
            error: RefCell::default(),
            shared,
        };
        state.posting.set(PostBlock::Unconnected, true);
        state
    }

    /// Returns the connection, which lives as long as the result; `None` if there is none.
    pub(super) fn connection(&self) -> Option<Rc<Connection>> {
        // SAFETY: the state stays on its thread, and the reference ends with this expression. The
        // clone only counts a reference, so nothing writes the cell meanwhile.
        unsafe { &*self.connection.get() }.clone()
    }

    /// Runs `run` with the driver's end of the connection; `None` if there is none.
    #[inline(always)]
    fn with_peer<R>(&self, run: impl FnOnce(&mut Peer) -> R) -> Option<R> {
        // SAFETY: the state stays on its thread. Every `run` is a closure of this module that calls
        // only the driver, which does not call back, so nothing writes the cell during the borrow.
        unsafe { &*self.connection.get() }.as_ref().map(|connection| connection.with_peer(run))
    }

    /// As [`Self::with_peer`], for places where a closure would not be inlined.
    ///
    /// # Safety
    /// The caller uses the result only to call the driver, and drops it before it calls anything
    /// else.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the contract of this function")]
    pub(super) unsafe fn peer(&self) -> Option<&mut Peer> {
        // SAFETY: the state stays on its thread, and the caller only calls the driver with the
        // reference (contract of this function), so nothing writes the cell during the borrow.
        // `Connection::peer` has the same contract.
        unsafe { (*self.connection.get()).as_ref().map(|connection| connection.peer()) }
    }

    /// Converts a refusal of the driver; a permanent error fails the endpoint.
    #[cold]
    pub(super) fn refuse(&self, operation: Operation, error: Option<SendError>) -> PostError {
        match error {
            Some(SendError::Full) => self.posting.refuse(),
            Some(SendError::Lost) => {
                if let Some(connection) = self.connection() {
                    connection.fail(&self.shared, Some((self, operation)));
                }
                PostError::EndpointFailed
            }
            // Closed meanwhile, or never connected.
            None => self.posting.check().err().unwrap_or(PostError::NotConnected),
        }
    }

    /// Runs an operation of the driver; a permanent error fails the endpoint.
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
        if !self.posting.has(PostBlock::Unconnected) || !self.posting.is_alive() {
            return Err(ConnectError::Connected { transport: ID });
        }
        let found = self.shared.connections.borrow().find(address);
        let connection = match found {
            Some(connection) => connection,
            None => Connection::open(&self.shared, address)?,
        };
        connection.join(self);
        self.posting.set(PostBlock::Connecting, !connection.with_peer(|peer| peer.is_ready()));
        // SAFETY: the state stays on its thread, and no reference into the cell exists here.
        unsafe { *self.connection.get() = Some(connection) };
        self.posting.set(PostBlock::Unconnected, false);
        Ok(())
    }

    /// Refuses posts from now on. Returns false if they already were.
    pub(super) fn fail(&self, error: EndpointError) -> bool {
        if !self.posting.is_alive() {
            return false;
        }
        self.error.replace(Some(error));
        self.posting.set(PostBlock::Failed, true);
        true
    }

    /// Drops the connection.
    pub(super) fn stop(&self, block: PostBlock) {
        self.posting.set(block, true);
        // SAFETY: the state stays on its thread, and no reference into the cell exists here. `take`
        // empties the cell before the drop of the connection runs.
        drop(unsafe { &mut *self.connection.get() }.take());
        self.views.clear();
    }

    /// Maps the key's region, or returns why a range of it cannot be accessed. It also checks
    /// whether the peer's process is alive, for a caller that posts and never makes progress.
    #[cold]
    pub(super) fn map(
        &self,
        key: &RemoteKey,
        remote: u64,
        length: usize,
        need: Access,
    ) -> Result<Mapped, PostError> {
        self.posting.check()?;
        if let Some(connection) = self.connection() {
            connection.tend(&self.shared);
        }
        self.posting.check()?;
        if !key.allows(need) {
            return Err(PostError::AccessDenied);
        }
        // The list of a view is not its memory.
        if key.is_list() {
            return Err(PostError::Unsupported);
        }
        let ((_, _, size), (place, _)) = (key.region(), key.place());
        let offset = key.offset(remote);
        if offset > size || length as u64 > size - offset {
            return Err(PostError::OutOfRange);
        }
        let mapped = self.live_region(key, |peer| peer.region_at(&place, size))?;
        // The length in the key is what its sender wrote; the mapping may be smaller.
        if (mapped.size() as u64) < size {
            return Err(PostError::OutOfRange);
        }
        self.views.add(key, mapped.clone(), length);
        Ok(mapped)
    }

    /// Returns a region of the peer that made `key`, which `find` maps.
    pub(super) fn live_region(
        &self,
        key: &RemoteKey,
        find: impl FnOnce(&mut Peer) -> Result<Option<Mapped>, SendError>,
    ) -> Result<Mapped, PostError> {
        let (region_set, ..) = key.region();
        let found = self.run(Operation::Unnamed, |peer| {
            if peer.region_set() == region_set { find(peer).map(Some) } else { Ok(None) }
        })?;
        let mapped = found.ok_or(PostError::ForeignKey)?.ok_or(PostError::KeyExpired)?;
        if mapped.life().load(Ordering::Acquire) == LIVE {
            Ok(mapped)
        } else {
            Err(PostError::KeyExpired)
        }
    }

    /// Returns whether a post is expected not to return `NoResource`.
    pub(super) fn has_room(&self) -> bool {
        !self.posting.has(PostBlock::Connecting)
            && self.run(Operation::Unnamed, Peer::has_room).unwrap_or(true)
            && !self.shared.buffers.is_empty()
    }
}
