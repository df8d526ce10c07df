//! What an endpoint is behind its handles: the queue pair, the operations in flight, and what completions do to them.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

use barewire_mlx5 as mlx5;
use barewire_mlx5::queue::send::MAX_WQE_BLOCKS;
use barewire_mlx5::{Buffer, DataSegment, Failure, RcQueuePair, RemoteAddressSegment, SendQueue, WqeIndex};

use super::address::{Peer, QueueAddress};
use super::endpoint::Endpoint;
use super::failure;
use super::interface::Shared;
use super::receive::Receiver;
use super::{AM_HEADER, DATA, MAX_AM, MESSAGE, NAME};
use crate::counters::Counters;
use crate::error::{EndpointError, Operation, OperationError, PostError};
use crate::message::{Keeper, KeptMessage, Message, Reclaim};
use crate::panics::{self, Panics};
use crate::transport::common::gate::{Block, Gate};
use crate::transport::common::handlers::Running;
use crate::transport::common::operation::{Done, InFlight, InFlightQueue};
use crate::transport::common::pending::PendingQueue;
use crate::transport::common::pool::Lease;

pub(super) struct State {
    pub(super) gate: Gate,
    /// What the send queue had posted when the last remote flush was.
    flushed: Cell<u64>,
    /// WQEs that nobody asked for: flushes.
    own_wqes: Cell<u64>,
    pair: UnsafeCell<RcQueuePair>,
    pub(super) in_flight: InFlightQueue,
    /// A word for the result of the operation in each slot of `in_flight`, and one for results that nobody wants.
    results: Buffer,
    receiver: Receiver,
    pub(super) pending: PendingQueue<Endpoint>,
    /// `Endpoint`s that name this state. The last one to go closes it.
    pub(super) handles: Cell<u32>,
    /// Errors from now on are our own doing.
    pub(super) canceled: Cell<bool>,
    pub(super) own: QueueAddress,
    /// What completions carry, as soon as it is known.
    pub(super) user_index: Cell<Option<u32>>,
    /// The right to be one of the interface's endpoints.
    pub(super) index: u32,
    peer: Cell<Option<Peer>>,
    /// Where a remote flush reads.
    pub(super) flush_target: Cell<RemoteAddressSegment>,
    error: RefCell<Option<EndpointError>>,
    pub(super) shared: Rc<Shared>,
    me: Weak<State>,
}

/// What a state is made of.
pub(super) struct Parts {
    pub(super) pair: RcQueuePair,
    pub(super) in_flight: InFlightQueue,
    pub(super) results: Buffer,
    pub(super) receiver: Receiver,
    pub(super) own: QueueAddress,
    pub(super) index: u32,
    pub(super) user_index: Option<u32>,
    pub(super) shared: Rc<Shared>,
}

impl State {
    /// An endpoint that is not connected, with its receive ring filled.
    pub(super) fn new(parts: Parts) -> Rc<Self> {
        let state = Rc::new_cyclic(|me| Self {
            gate: Gate::new(&parts.shared.past),
            flushed: Cell::new(0),
            own_wqes: Cell::new(0),
            pair: UnsafeCell::new(parts.pair),
            in_flight: parts.in_flight,
            results: parts.results,
            receiver: parts.receiver,
            pending: PendingQueue::new(),
            handles: Cell::new(0),
            canceled: Cell::new(false),
            own: parts.own,
            user_index: Cell::new(parts.user_index),
            index: parts.index,
            peer: Cell::new(None),
            flush_target: Cell::new(RemoteAddressSegment::new(0, 0)),
            error: RefCell::new(None),
            shared: parts.shared,
            me: me.clone(),
        });
        state.gate.set(Block::Unconnected, true);
        state.with_pair(|pair| state.receiver.refill(&mut pair.receive, &*state));
        state
    }

    /// The one way to the queue pair.
    #[inline(always)]
    pub(super) fn with_pair<R>(&self, run: impl FnOnce(&mut RcQueuePair) -> R) -> R {
        // SAFETY: the state stays on its thread, and every `run` (all are closures of this module and its neighbours)
        // calls the driver and `Receiver` only, which call nothing of ours or of the user's. So no second reference to the
        // queue pair exists while this one does.
        run(unsafe { &mut *self.pair.get() })
    }

    /// Posts one WQE. `run` calls a posting function of the queue and nothing else.
    #[inline(always)]
    pub(super) fn post(
        &self,
        run: impl FnOnce(&mut SendQueue) -> Result<WqeIndex, mlx5::PostError>,
    ) -> Result<u16, mlx5::PostError> {
        self.with_pair(|pair| run(&mut pair.send)).map(|WqeIndex(index)| index)
    }

    /// As [`Self::post`], for what nobody asked for.
    pub(super) fn post_own(
        &self,
        run: impl FnOnce(&mut SendQueue) -> Result<WqeIndex, mlx5::PostError>,
    ) -> Result<u16, PostError> {
        let index = self.post(run).map_err(|_| self.gate.refuse())?;
        self.own_wqes.set(self.own_wqes.get() + 1);
        Ok(index)
    }

    /// What was done so far. The queue counts its WQEs anyway.
    pub(super) fn counters(&self) -> Counters {
        let wqes = self.with_pair(|pair| pair.send.wqes());
        self.gate.tally.set_posted(wqes.wrapping_sub(self.own_wqes.get()));
        self.gate.tally.read()
    }

    /// Something was posted since [`Self::note_flush`].
    pub(super) fn is_dirty(&self) -> bool {
        self.with_pair(|pair| pair.send.posted()) != self.flushed.get()
    }

    /// A remote flush was posted.
    pub(super) fn note_flush(&self) {
        self.flushed.set(self.with_pair(|pair| pair.send.posted()));
    }

    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.with_pair(|pair| pair.send.room() > 0)
    }

    /// Index of the WQE posted last; any number before the first.
    pub(super) fn last(&self) -> u16 {
        self.with_pair(|pair| pair.send.last_index()).map_or(0, |WqeIndex(index)| index)
    }

    /// Nothing is outstanding.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.with_pair(|pair| pair.send.is_idle())
    }

    /// The result word of the next operation in flight.
    #[inline]
    pub(super) fn next_result(&self) -> DataSegment {
        self.result(self.in_flight.next_slot())
    }

    /// The result word that nobody reads.
    #[inline]
    pub(super) fn unwanted_result(&self) -> DataSegment {
        self.result(self.in_flight.slots())
    }

    /// Clears the next result word, for a result that does not fill it.
    pub(super) fn clear_next_result(&self) {
        // The slot is inside.
        let _ = self.results.store_u64(self.in_flight.next_slot() as usize * 8, 0);
    }

    #[inline]
    fn result(&self, slot: u32) -> DataSegment {
        let region = self.results.region();
        DataSegment::new(region.address() + u64::from(slot) * 8, 8, region.lkey())
    }

    /// A request may wait: some post would be refused for want of resources, and nothing else.
    pub(super) fn may_wait(&self) -> bool {
        let short = self.with_pair(|pair| pair.send.room() < MAX_WQE_BLOCKS)
            || self.shared.buffers.is_empty()
            || !self.in_flight.has_flush_room();
        self.gate.is_usable() && (short || !self.pending.is_idle())
    }

    pub(super) fn connect(&self, path: &mlx5::RcPath, peer: &QueueAddress) -> Result<(), mlx5::Error> {
        self.with_pair(|pair| pair.connect(path))?;
        self.peer.set(Some(Peer { gid: path.remote.gid, qpn: path.remote_qpn }));
        self.flush_target.set(RemoteAddressSegment::new(peer.flush_address, peer.flush_key));
        self.gate.set(Block::Unconnected, false);
        Ok(())
    }

    pub(super) fn error(&self) -> Option<EndpointError> {
        self.error.borrow().clone()
    }

    // Completions.

    /// The device is done with WQE `counter` and everything before it. Credits go back after the callbacks ran, so that
    /// a post of a callback does not overtake requests that wait for them.
    #[inline(always)]
    pub(super) fn complete(&self, counter: u16) {
        if !self.in_flight.is_empty() {
            let unwinding = Unwinding { state: self, counter };
            while let Some((entry, slot)) = self.in_flight.pop_covered(counter) {
                self.finish(entry, slot, Ok(()));
            }
            std::mem::forget(unwinding);
        }
        self.with_pair(|pair| pair.send.reap(counter));
    }

    /// WQE `counter` failed; what was before it succeeded, since a connection carries out its WQEs in order.
    #[cold]
    pub(super) fn fail_send(&self, counter: u16, failure: Failure) {
        let mut panics = Panics::default();
        while let Some((entry, slot)) = self.in_flight.pop_covered(counter.wrapping_sub(1)) {
            panics.catch(|| self.finish(entry, slot, Ok(())));
        }
        let mut error = failure::error(failure);
        if self.canceled.get() {
            error = OperationError::CANCELED;
        }
        let report = self.enter_failed(failure::operation(failure), error);
        while let Some((entry, slot)) = self.in_flight.pop_covered(counter) {
            panics.catch(|| self.finish(entry, slot, Err(error)));
        }
        if let Some(report) = report {
            panics.catch(|| self.shared.handlers.dispatch_error(&report));
        }
        self.with_pair(|pair| pair.send.reap(counter));
    }

    /// Finishes what a callback that panicked left behind.
    #[cold]
    pub(super) fn catch_up(&self) {
        let result = if self.gate.is_alive() { Ok(()) } else { Err(OperationError::CANCELED) };
        let is_done = |index| self.with_pair(|pair| pair.send.is_done(WqeIndex(index)));
        let mut panics = Panics::default();
        while let Some((entry, slot)) = self.in_flight.pop_done(is_done) {
            panics.catch(|| self.finish(entry, slot, result));
        }
    }

    /// A receive WQE failed, or was flushed after an error.
    #[cold]
    pub(super) fn fail_receive(&self, failure: Failure) {
        if let Some(report) = self.enter_failed(Operation::Receive, failure::error(failure)) {
            self.shared.handlers.dispatch_error(&report);
        }
    }

    /// The first failure shuts the gate and is reported; those that follow from it are not.
    fn enter_failed(&self, operation: Operation, error: OperationError) -> Option<EndpointError> {
        if !self.gate.is_alive() {
            return None;
        }
        self.gate.set(Block::Failed, true);
        let report = EndpointError {
            transport: NAME,
            peer: self.peer.get().map_or_else(|| "nobody".to_owned(), |peer| peer.to_string()),
            operation,
            cause: error.cause,
            syndrome: error.syndrome,
            detail: None,
        };
        self.error.replace(Some(report.clone()));
        Some(report)
    }

    #[inline(always)]
    fn finish(&self, entry: InFlight, slot: u32, result: Result<(), OperationError>) {
        match entry.done {
            Done::Notify(completion) => completion.count_down(result),
            Done::Release { buffer } => self.shared.buffers.give(buffer),
            done => self.finish_other(done, slot, result),
        }
    }

    #[inline(never)]
    fn finish_other(&self, done: Done, slot: u32, result: Result<(), OperationError>) {
        let buffers = &self.shared.buffers;
        let completion = match done {
            Done::Notify(completion) | Done::Flushed(completion) => Some(completion),
            Done::Canceled(completion) => return completion.count_down(Ok(())),
            Done::Release { buffer } => return buffers.give(buffer),
            Done::ReleaseNotify { buffer, completion } => {
                buffers.give(buffer);
                Some(completion)
            }
            Done::Unpack { buffer, length, unpack, completion } => {
                let mut buffer = buffers.adopt(buffer);
                if result.is_ok()
                    && let Some(data) = buffer.bytes()[DATA..].get(..length as usize)
                {
                    let count_down = || {
                        if let Some(completion) = &completion {
                            completion.count_down(result);
                        }
                    };
                    panics::or_else(|| unpack.call(data), count_down);
                }
                completion
            }
            Done::Fetch { result: value, completion } => {
                if result.is_ok()
                    && let Ok(word) = self.results.load_u64(slot as usize * 8)
                {
                    value.set(word);
                }
                completion
            }
        };
        if let Some(completion) = completion {
            completion.count_down(result);
        }
    }

    // Receiving.

    /// A message of `length` bytes lies in the buffer of receive WQE `counter`.
    #[inline(always)]
    pub(super) fn receive(&self, running: &mut Running<'_, false>, counter: u32, length: u32) {
        // Not the counter: fewer values that outlive the handler.
        let counter = self.receiver.index(counter);
        let slot = self.receiver.slot(counter);
        let Some(start) = slot.get() else { return };
        // Shorter than its header, or longer than a buffer: no peer of ours sends such a thing.
        let length = length.wrapping_sub(AM_HEADER as u32) as usize;
        if length > MAX_AM {
            running.count_unhandled();
        } else {
            let unwinding = Received { state: self, counter };
            // SAFETY: before `DATA` lies the header, and from `DATA` on there are `MAX_AM` bytes. The
            // receive WQE is completed, so the device writes the buffer only after it is posted again:
            // below, after the handler has returned and the message has ended, or, if the handler kept
            // the message, when the kept message is dropped (its slot is empty until then). `refill`
            // wrote the buffer's home, which names this state.
            let (id, message) = unsafe { (start.add(MESSAGE).read(), Message::new(start.add(DATA), length)) };
            running.dispatch(id, message);
            std::mem::forget(unwinding);
        }
        self.give_back(slot, counter);
    }

    /// The message of receive WQE `counter` is done with: its buffer goes back to the device, unless its slot is empty.
    #[inline(always)]
    fn give_back(&self, slot: &Cell<Option<NonNull<u8>>>, counter: u32) {
        if slot.get().is_none() {
            return self.replace();
        }
        self.with_pair(|pair| self.receiver.repost(&mut pair.receive, counter));
    }

    /// The message of receive WQE `counter` was not handled to the end.
    #[cold]
    #[inline(never)]
    fn repost(&self, counter: u32) {
        self.give_back(self.receiver.slot(counter), counter);
    }

    /// The message was kept, or the endpoint was closed.
    #[cold]
    #[inline(never)]
    fn replace(&self) {
        if self.gate.is_alive() {
            self.with_pair(|pair| self.receiver.replace(&mut pair.receive, self));
        }
    }

    // Closing.

    /// Takes the queue pair from the device's hands: after this it touches none of our memory. What is outstanding is
    /// finished by `abandon`, in progress.
    pub(super) fn stop(&self, reason: Block) {
        self.gate.set(reason, true);
        self.canceled.set(true);
        self.receiver.close();
        // A device that refuses keeps the queue pair until it is destroyed, and its memory with it.
        let _ = self.with_pair(RcQueuePair::reset);
    }

    /// Completes whatever is left as cancelled.
    pub(super) fn abandon(&self) {
        let mut panics = Panics::default();
        while let Some((entry, slot)) = self.in_flight.pop() {
            panics.catch(|| self.finish(entry, slot, Err(OperationError::CANCELED)));
        }
    }
}

/// A callback panicked: the credits of its completion come back all the same, and progress finishes what it left behind.
struct Unwinding<'a> {
    state: &'a State,
    counter: u16,
}

impl Drop for Unwinding<'_> {
    #[cold]
    fn drop(&mut self) {
        let (state, counter) = (self.state, self.counter);
        state.with_pair(|pair| pair.send.reap(counter));
        state.shared.catch_up_later();
    }
}

impl Keeper for State {
    #[cold]
    fn keep(&self, start: NonNull<u8>, data: &[u8]) -> KeptMessage {
        let owner: Rc<dyn Reclaim> = self.me.upgrade().expect("a state that is borrowed is alive");
        // If the handler closed the endpoint before, the slot is empty: the buffer is not given back, and lives as long as its owner.
        let buffer = self.receiver.take_at(start);
        // SAFETY: `data` lies in the buffer, which is now the kept message's alone, and its owner outlives it.
        unsafe { KeptMessage::new(data, buffer, owner) }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // What the gate adds to the interface's counters.
        let _ = self.counters();
    }
}

/// A handler panicked: its message's buffer goes back to the device all the same.
struct Received<'a> {
    state: &'a State,
    counter: u32,
}

impl Drop for Received<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.state.repost(self.counter);
    }
}

impl Reclaim for State {
    fn reclaim(&self, buffer: Lease) {
        self.receiver.pool.give(buffer);
        if self.gate.is_alive() {
            self.with_pair(|pair| self.receiver.refill(&mut pair.receive, self));
        }
    }
}
