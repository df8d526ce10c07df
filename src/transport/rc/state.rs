//! The state of an endpoint behind its handles: the queue pair, the operations in flight, and the
//! processing of their completions.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::rc::{Rc, Weak};

use super::address::Peer;
use super::finish::finish;
use super::{Created, Driver, Endpoint, Path, Queue, QueueAddress, QueueFull, Shared};
use crate::base::error::{
    Cause, ConnectError, EndpointError, Operation, OperationError, PostError, Source,
};
use crate::base::panics::Panics;
use crate::transport::common::operation::{Done, InFlight, InFlightQueue, Popped};
use crate::transport::common::pending::PendingQueue;
use crate::transport::common::pool;
use crate::transport::common::post_state::{PostBlock, PostState};
use crate::transport::common::registered::{Domain, Registered};
use crate::transport::handle::EndpointState as _;

/// Bytes of a result word.
pub(crate) const WORD: usize = size_of::<u64>();

/// A word to which the device writes the result of an operation.
pub(crate) type Word<'a, D> =
    pool::Buffer<'a, Registered<<<D as Driver>::Domain as Domain>::Region>, WORD>;

/// An endpoint of the driver `D`.
pub(crate) struct State<D: Driver> {
    pub(crate) posting: PostState,
    /// Value of [`Queue::posted`] when the last remote flush was posted.
    flushed: Cell<u64>,
    /// Number of posts by flushes, which counters exclude.
    pub(super) internal: Cell<u64>,
    /// Declared before the memory that it uses, so that it is dropped first.
    queue: UnsafeCell<D::Queue>,
    pub(super) in_flight: D::InFlight,
    pub(crate) driver: D::Endpoint,
    pub(super) pending: PendingQueue<Endpoint<D>>,
    /// Number of `Endpoint`s that refer to this state. The drop of the last one closes it.
    pub(super) handles: Cell<u32>,
    /// Set once this side ended the connection: later errors are reported as cancelled.
    canceled: Cell<bool>,
    pub(crate) own: QueueAddress<D::Tail>,
    /// The user index in its completions, once it is known.
    pub(crate) user_index: Cell<Option<u32>>,
    /// Slot in the interface's table.
    pub(crate) slot: Cell<u32>,
    /// Its share of the completion queue is smaller than its ring.
    pub(super) may_grow: Cell<bool>,
    peer: Cell<Option<Peer<D::Port>>>,
    /// Address and key of the word that a remote flush reads.
    flush_target: Cell<(u64, u32)>,
    pub(super) error: RefCell<Option<EndpointError>>,
    pub(crate) shared: Rc<Shared<D>>,
    pub(crate) me: Weak<Self>,
}

impl<D: Driver> State<D> {
    /// Creates an unconnected endpoint, whose queue pair can receive.
    pub(super) fn new(
        created: Created<D>,
        own: QueueAddress<D::Tail>,
        slot: u32,
        in_flight: D::InFlight,
        shared: Rc<Shared<D>>,
    ) -> Rc<Self> {
        let may_grow = created.queue.most_outstanding() < shared.config.send_ring;
        let state = Rc::new_cyclic(|me| Self {
            posting: PostState::new(&shared.core.past),
            flushed: Cell::new(0),
            internal: Cell::new(0),
            queue: UnsafeCell::new(created.queue),
            in_flight,
            driver: created.endpoint,
            pending: PendingQueue::new(),
            handles: Cell::new(0),
            canceled: Cell::new(false),
            own,
            user_index: Cell::new(created.user_index),
            slot: Cell::new(slot),
            may_grow: Cell::new(may_grow),
            peer: Cell::new(None),
            flush_target: Cell::new((0, 0)),
            error: RefCell::new(None),
            shared,
            me: me.clone(),
        });
        state.posting.set(PostBlock::Unconnected, true);
        D::created(&state);
        state
    }

    /// Runs `run` with the queue pair. This and [`Self::queue`] are the only access to it.
    #[inline(always)]
    pub(crate) fn with_queue<R>(&self, run: impl FnOnce(&mut D::Queue) -> R) -> R {
        // SAFETY: every `run` is a closure of this module, its siblings or the drivers' transports,
        // and calls only the driver, which calls no code of the transport or of the user.
        run(unsafe { self.queue() })
    }

    /// As [`Self::with_queue`], for places where a closure would not be inlined.
    ///
    /// # Safety
    /// The caller uses the result only to call the driver, and drops it before it calls anything
    /// else.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the contract of this function")]
    pub(crate) unsafe fn queue(&self) -> &mut D::Queue {
        // SAFETY: the state stays on its thread, and the caller only calls the driver, which calls
        // no code of the transport or of the user (contract of this function). So no second
        // reference to the queue pair exists while this one does.
        unsafe { &mut *self.queue.get() }
    }

    /// Returns the operations in flight on the queue pair.
    #[inline(always)]
    pub(crate) fn in_flight(&self) -> &InFlightQueue {
        self.in_flight.as_ref()
    }

    /// Returns whether other endpoints post to the queue pair as well.
    pub(crate) fn is_sharing(&self) -> bool {
        self.with_queue(|queue| queue.is_shared())
    }

    /// Posts a request that is not an operation of the user.
    pub(crate) fn post_internal(
        &self,
        run: impl FnOnce(&mut D::Queue) -> Result<(), QueueFull>,
    ) -> Result<(), PostError> {
        self.with_queue(run).map_err(|QueueFull| self.refuse_full(D::Queue::LARGEST_POST))?;
        self.internal.set(self.internal.get() + 1);
        Ok(())
    }

    /// Returns whether anything was posted since [`Self::note_flush`].
    pub(crate) fn is_dirty(&self) -> bool {
        self.with_queue(|queue| queue.posted()) != self.flushed.get()
    }

    /// Records that a remote flush was posted.
    pub(crate) fn note_flush(&self) {
        self.flushed.set(self.with_queue(|queue| queue.posted()));
    }

    /// Posts the read of the peer's flush word.
    pub(super) fn read_flush_word(&self) -> Result<(), PostError> {
        let (local, (address, key)) = (self.unwanted_result(), self.flush_target.get());
        self.post_internal(|queue| queue.read_word(local, address, key))?;
        self.note_flush();
        Ok(())
    }

    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.with_queue(|queue| queue.room() > 0)
    }

    /// Returns the index of the last post; any value before the first.
    pub(super) fn last(&self) -> u16 {
        self.with_queue(|queue| queue.last())
    }

    /// Takes a word for the result of an operation.
    #[inline(always)]
    pub(crate) fn take_word(&self) -> Result<Word<'_, D>, PostError> {
        self.shared.words.take().ok_or_else(|| self.posting.refuse())
    }

    /// Returns the segment of a result word.
    #[inline(always)]
    pub(crate) fn word_segment(&self, word: &Word<'_, D>) -> <D::Queue as Queue>::Segment {
        D::Queue::segment(word.address(), WORD as u32, self.shared.words_key)
    }

    /// Returns the word of discarded results.
    #[inline]
    pub(crate) fn unwanted_result(&self) -> <D::Queue as Queue>::Segment {
        D::Queue::segment(self.shared.unwanted_word, WORD as u32, self.shared.words_key)
    }

    /// Connects to the peer's queue pair.
    pub(super) fn connect(
        &self,
        port: D::Port,
        peer: &QueueAddress<D::Tail>,
    ) -> Result<(), ConnectError> {
        let path = Path {
            port,
            qpn: peer.qpn,
            receive_psn: peer.psn,
            send_psn: self.own.psn,
            mtu: self.own.mtu.min(peer.mtu),
            reads: self.own.reads.min(peer.reads),
            tail: peer.tail,
        };
        D::connect(self, &path)?;
        self.connected(port, peer.qpn, (peer.flush_address, peer.flush_key));
        Ok(())
    }

    /// Records the peer of a connected queue pair: its port and queue pair, and the word that a remote
    /// flush reads. From now on the endpoint accepts posts.
    pub(crate) fn connected(&self, port: D::Port, qpn: u32, flush_target: (u64, u32)) {
        self.peer.set(Some(Peer { port, qpn }));
        self.flush_target.set(flush_target);
        self.posting.set(PostBlock::Unconnected, false);
    }

    /// Returns the number of the peer's queue pair, once connected.
    pub(crate) fn peer_number(&self) -> Option<u32> {
        self.peer.get().map(|peer| peer.qpn)
    }

    /// Returns the error of a device that refused to connect.
    pub(crate) fn refused(path: &Path<D>, error: impl Into<Source>) -> ConnectError {
        let peer = Peer { port: path.port, qpn: path.qpn };
        ConnectError::Device { transport: D::ID, peer: peer.to_string(), source: error.into() }
    }

    // Completions.

    /// Completes the post at `index` and all before it. Their room is freed after the callbacks, so
    /// that a post of a callback does not overtake requests that wait for room.
    #[inline(always)]
    pub(crate) fn complete(&self, index: u16) {
        if !self.in_flight().is_empty() {
            let unwinding = Unwinding { state: self, index };
            while let Some(popped) = self.in_flight().pop_next(index) {
                let Popped::Notify(completion) = popped else {
                    std::mem::forget(unwinding);
                    return self.complete_any(index);
                };
                completion.finish(Ok(()));
            }
            std::mem::forget(unwinding);
        }
        self.with_queue(|queue| queue.reap(index));
    }

    /// As [`Self::complete`], if not all operations only notify: the values that the others need do
    /// not occupy registers there.
    #[inline(never)]
    fn complete_any(&self, index: u16) {
        let unwinding = Unwinding { state: self, index };
        while let Some(entry) = self.in_flight().pop_covered(index) {
            self.finish(entry, Ok(()));
        }
        std::mem::forget(unwinding);
        self.with_queue(|queue| queue.reap(index));
    }

    /// Fails the post at `index`. All before it succeeded, since a connection executes its requests
    /// in order.
    #[cold]
    pub(crate) fn fail_send(&self, index: u16, operation: Operation, error: OperationError) {
        let mut panics = Panics::default();
        while let Some(entry) = self.in_flight().pop_covered(index.wrapping_sub(1)) {
            panics.catch(|| self.finish(entry, Ok(())));
        }
        let error = if self.canceled.get() { OperationError::CANCELED } else { error };
        let operation = self.posting.failed_operation(operation, self.in_flight().is_empty());
        let report = self.enter_failed(operation, error);
        while let Some(entry) = self.in_flight().pop_covered(index) {
            panics.catch(|| self.finish(entry, Err(error)));
        }
        if let Some(report) = report {
            panics.catch(|| self.shared.core.handlers.dispatch_error(&report));
        }
        self.shared.fail_sharing(self, operation, error, &mut panics);
        self.with_queue(|queue| queue.reap(index));
    }

    /// Finishes the operations that were left behind by a callback that panicked.
    #[cold]
    pub(super) fn catch_up(&self) {
        let result = if self.posting.is_alive() { Ok(()) } else { Err(OperationError::CANCELED) };
        let is_done = |index| self.with_queue(|queue| queue.is_done(index));
        let mut panics = Panics::default();
        while let Some(entry) = self.in_flight().pop_done(is_done) {
            panics.catch(|| self.finish(entry, result));
        }
    }

    /// Handles a receive request that failed, or was flushed after an error.
    #[cold]
    pub(crate) fn fail_receive(&self, error: OperationError) {
        if let Some(report) = self.enter_failed(Operation::Receive, error) {
            self.shared.core.handlers.dispatch_error(&report);
        }
    }

    /// Fails the endpoint and all outstanding operations: the device failed, and completes nothing
    /// more.
    #[cold]
    pub(crate) fn lose_device(&self) {
        let error = OperationError { cause: Cause::DeviceFailed, syndrome: None };
        let Some(report) = self.enter_failed(Operation::Unnamed, error) else { return };
        let mut panics = Panics::default();
        while let Some(entry) = self.in_flight().pop() {
            panics.catch(|| self.finish(entry, Err(error)));
        }
        if !self.is_idle() {
            let last = self.last();
            self.with_queue(|queue| queue.reap(last));
        }
        panics.catch(|| self.shared.core.handlers.dispatch_error(&report));
    }

    /// Ends posting and returns the error to report, for the first failure; `None` for later ones,
    /// which follow from it.
    pub(super) fn enter_failed(
        &self,
        operation: Operation,
        error: OperationError,
    ) -> Option<EndpointError> {
        if !self.posting.is_alive() {
            return None;
        }
        self.posting.set(PostBlock::Failed, true);
        D::stop_receiving(self);
        let report = EndpointError {
            transport: D::ID,
            peer: self
                .peer
                .get()
                .map_or_else(|| "an unconnected peer".to_owned(), |peer| peer.to_string()),
            operation,
            cause: error.cause,
            syndrome: error.syndrome,
            detail: D::detail(&self.shared, error.cause),
        };
        self.error.replace(Some(report.clone()));
        Some(report)
    }

    /// Moves the queue pair to error for the user, so that all outstanding operations complete as
    /// flushed.
    pub(super) fn cancel_outstanding(&self) -> Result<(), PostError> {
        self.posting.set(PostBlock::Failed, true);
        if self.with_queue(D::Queue::leave) {
            // The operations of other endpoints are not cancelled, and these are waited for.
            return Ok(());
        }
        self.end_sharing();
        D::stop_receiving(self);
        if self.posting.has(PostBlock::Unconnected) {
            return Ok(());
        }
        self.with_queue(D::Queue::to_error).map_err(|_| PostError::EndpointFailed)
    }

    #[inline(always)]
    fn finish(&self, entry: InFlight, result: Result<(), OperationError>) {
        match entry.done {
            Done::Notify(completion) => completion.finish(result),
            Done::Release { buffer } => self.shared.buffers.give(buffer),
            done => {
                let collect = |word| u64::from_ne_bytes(*self.shared.words.adopt(word).bytes());
                finish(&self.shared.buffers, collect, done, result);
            }
        }
    }

    // Closing.

    /// Ends the connection for `reason`: the device executes no more of its requests.
    /// [`Self::abandon`], in progress, finishes the outstanding ones.
    pub(crate) fn stop(&self, reason: PostBlock) {
        self.posting.set(reason, true);
        let others_post = self.with_queue(D::Queue::leave);
        if reason == PostBlock::Closed || !others_post {
            self.end_sharing();
            D::stop(self);
        }
    }

    /// Reports later errors as cancelled, on this endpoint and those that share its queue pair: the
    /// user index in the completions is that of any of them.
    fn end_sharing(&self) {
        self.canceled.set(true);
        self.shared.for_each_sharing(self, |state| state.canceled.set(true));
    }

    /// Completes all outstanding operations as cancelled.
    pub(super) fn abandon(&self) {
        let mut panics = Panics::default();
        while let Some(entry) = self.in_flight().pop() {
            panics.catch(|| self.finish(entry, Err(OperationError::CANCELED)));
        }
    }
}

/// Reaps a completion even if a callback panics, and then lets progress finish the remaining
/// operations.
struct Unwinding<'a, D: Driver> {
    state: &'a State<D>,
    index: u16,
}

impl<D: Driver> Drop for Unwinding<'_, D> {
    #[cold]
    fn drop(&mut self) {
        self.state.with_queue(|queue| queue.reap(self.index));
        self.state.shared.catch_up_later();
    }
}

impl<D: Driver> Drop for State<D> {
    fn drop(&mut self) {
        // Updates the counts, which the drop of the post state adds to the interface's.
        let _ = self.counters();
    }
}
