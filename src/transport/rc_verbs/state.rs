//! What an endpoint is behind its handles: the queue pair, the operations in flight, and what completions do to them.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire_verbs::{Element, Failure};

use super::address::{Peer, QueueAddress};
use super::endpoint::Endpoint;
use super::interface::Shared;
use super::receive::Receiver;
use super::{DATA, NAME};
use crate::counters::Counters;
use crate::error::{Cause, EndpointError, Operation, OperationError};
use crate::panics::{self, Panics};
use crate::transport::common::gate::{Block, Gate};
use crate::transport::common::operation::{Done, InFlight, InFlightQueue};
use crate::transport::common::pending::PendingQueue;
use crate::transport::rdma::{self, Buffer, Pair};

/// How long a queue pair in error may take to give back what it has of the shared receive queue.
const GRACE: Duration = Duration::from_millis(200);

pub(super) struct State {
    pub(super) gate: Gate,
    /// What the send queue had posted when the last remote flush was.
    flushed: Cell<u64>,
    /// Before the memory that it uses, so that it goes first.
    pair: UnsafeCell<Pair>,
    pub(super) in_flight: InFlightQueue,
    /// A word for the result of the operation in each slot of `in_flight`, and one for results that nobody wants.
    results: Buffer,
    /// Its own, or the one that all endpoints of the interface share.
    pub(super) receiver: Rc<Receiver>,
    pub(super) pending: PendingQueue<Endpoint>,
    /// `Endpoint`s that name this state. The last one to go closes it.
    pub(super) handles: Cell<u32>,
    /// The device told that the queue pair took its last request from the shared receive queue.
    told_last: Cell<bool>,
    /// Errors from now on are our own doing.
    pub(super) canceled: Cell<bool>,
    /// Since when messages still to be taken are not delivered any more.
    stopped: Cell<Option<Instant>>,
    pub(super) own: QueueAddress,
    /// Place among the interface's endpoints.
    pub(super) place: u32,
    peer: Cell<Option<Peer>>,
    /// Where a remote flush reads: address and key.
    pub(super) flush_target: Cell<(u64, u32)>,
    error: RefCell<Option<EndpointError>>,
    pub(super) shared: Rc<Shared>,
}

/// What a state is made of.
pub(super) struct Parts {
    pub(super) pair: Pair,
    pub(super) in_flight: InFlightQueue,
    pub(super) results: Buffer,
    pub(super) receiver: Rc<Receiver>,
    pub(super) own: QueueAddress,
    pub(super) place: u32,
    pub(super) shared: Rc<Shared>,
}

impl State {
    /// What was done so far.
    pub(super) fn counters(&self) -> Counters {
        self.gate.tally.read()
    }

    /// An endpoint that is not connected. Its queue pair takes receive requests, and has them.
    pub(super) fn new(parts: Parts) -> Rc<Self> {
        let state = Rc::new(Self {
            gate: Gate::new(&parts.shared.past),
            flushed: Cell::new(0),
            pair: UnsafeCell::new(parts.pair),
            in_flight: parts.in_flight,
            results: parts.results,
            receiver: parts.receiver,
            pending: PendingQueue::new(),
            handles: Cell::new(0),
            told_last: Cell::new(false),
            canceled: Cell::new(false),
            stopped: Cell::new(None),
            own: parts.own,
            place: parts.place,
            peer: Cell::new(None),
            flush_target: Cell::new((0, 0)),
            error: RefCell::new(None),
            shared: parts.shared,
        });
        state.gate.set(Block::Unconnected, true);
        state
    }

    /// The one way to the queue pair.
    #[inline(always)]
    pub(super) fn with_pair<R>(&self, run: impl FnOnce(&mut Pair) -> R) -> R {
        // SAFETY: the state stays on its thread, and every `run` (all are closures of this module and its neighbours)
        // calls `Pair` only, which calls nothing of ours or of the user's. So no second reference to the
        // queue pair exists while this one does.
        run(unsafe { &mut *self.pair.get() })
    }

    /// Something was posted since [`Self::note_flush`].
    pub(super) fn is_dirty(&self) -> bool {
        self.with_pair(|pair| pair.posted()) != self.flushed.get()
    }

    /// A remote flush was posted.
    pub(super) fn note_flush(&self) {
        self.flushed.set(self.with_pair(|pair| pair.posted()));
    }

    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.with_pair(|pair| pair.room() > 0)
    }

    /// Count of the request posted last; any number before the first.
    pub(super) fn last(&self) -> u16 {
        self.with_pair(|pair| pair.last())
    }

    /// Nothing is outstanding.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.with_pair(|pair| pair.is_idle())
    }

    /// The result word of the next operation in flight.
    #[inline]
    pub(super) fn next_result(&self) -> Element {
        self.result(self.in_flight.next_slot())
    }

    /// The result word that nobody reads.
    #[inline]
    pub(super) fn unwanted_result(&self) -> Element {
        self.result(self.in_flight.slots())
    }

    #[inline]
    fn result(&self, slot: u32) -> Element {
        Element::of(&self.results.region, u64::from(slot) * 8, 8)
    }

    /// A request may wait: some post would be refused for want of resources, and nothing else.
    pub(super) fn may_wait(&self) -> bool {
        let short = !self.has_room() || self.shared.buffers.is_empty() || !self.in_flight.has_flush_room();
        self.gate.is_usable() && (short || !self.pending.is_idle())
    }

    /// The queue pair is connected.
    pub(super) fn connected(&self, peer: Peer, address: &QueueAddress) {
        self.peer.set(Some(peer));
        self.flush_target.set((address.flush_address, address.flush_key));
        self.gate.set(Block::Unconnected, false);
    }

    pub(super) fn error(&self) -> Option<EndpointError> {
        self.error.borrow().clone()
    }

    // Completions.

    /// The device is done with request `index` and everything before it. Credits go back after the callbacks ran, so that
    /// a post of a callback does not overtake requests that wait for them.
    #[inline(always)]
    pub(super) fn complete(&self, index: u16) {
        if !self.in_flight.is_empty() {
            let unwinding = Unwinding { state: self, index };
            while let Some((entry, slot)) = self.in_flight.pop_covered(index) {
                self.finish(entry, slot, Ok(()));
            }
            std::mem::forget(unwinding);
        }
        self.with_pair(|pair| pair.reap(index));
    }

    /// Request `index` failed; what was before it succeeded, since a connection carries out its requests in order.
    #[cold]
    pub(super) fn fail_send(&self, index: u16, name: Operation, failure: Failure) {
        let mut panics = Panics::default();
        while let Some((entry, slot)) = self.in_flight.pop_covered(index.wrapping_sub(1)) {
            panics.catch(|| self.finish(entry, slot, Ok(())));
        }
        let mut error = rdma::error(failure);
        if self.canceled.get() {
            error = OperationError::CANCELED;
        }
        let report = self.enter_failed(name, error);
        while let Some((entry, slot)) = self.in_flight.pop_covered(index) {
            panics.catch(|| self.finish(entry, slot, Err(error)));
        }
        if let Some(report) = report {
            panics.catch(|| self.shared.handlers.dispatch_error(&report));
        }
        self.with_pair(|pair| pair.reap(index));
    }

    /// Finishes what a callback that panicked left behind.
    #[cold]
    pub(super) fn catch_up(&self) {
        let result = if self.gate.is_alive() { Ok(()) } else { Err(OperationError::CANCELED) };
        let is_done = |index| self.with_pair(|pair| pair.is_done(index));
        let mut panics = Panics::default();
        while let Some((entry, slot)) = self.in_flight.pop_done(is_done) {
            panics.catch(|| self.finish(entry, slot, result));
        }
    }

    /// A receive request failed, or was flushed after an error.
    #[cold]
    pub(super) fn fail_receive(&self, failure: Failure) {
        if let Some(report) = self.enter_failed(Operation::Receive, rdma::error(failure)) {
            self.shared.handlers.dispatch_error(&report);
        }
    }

    /// The first failure shuts the gate and is reported; those that follow from it are not.
    fn enter_failed(&self, operation: Operation, error: OperationError) -> Option<EndpointError> {
        if !self.gate.is_alive() {
            return None;
        }
        self.gate.set(Block::Failed, true);
        self.stop_receiving();
        let report = EndpointError {
            transport: NAME,
            peer: self.peer.get().map_or_else(|| "nobody".to_owned(), |peer| peer.to_string()),
            operation,
            cause: error.cause,
            syndrome: error.syndrome,
            detail: self.detail(error.cause),
        };
        self.error.replace(Some(report.clone()));
        Some(report)
    }

    /// How a peer that did not answer was tried, or what is wrong with the own port.
    fn detail(&self, cause: Cause) -> Option<String> {
        let config = &self.shared.config;
        let tried = match cause {
            Cause::PeerUnreachable => format!(
                "tried {} times, {:.1?} apart at least (retry_count {}, ack_timeout {})",
                1 + config.retry_count,
                Duration::from_nanos(4096) * (1 << config.ack_timeout),
                config.retry_count,
                config.ack_timeout,
            ),
            Cause::ReceiverNotReady => {
                format!("asked again {} times (rnr_retry; min_rnr_timer of the peer)", config.rnr_retry)
            }
            _ => return rdma::port_trouble(&self.shared.domain),
        };
        Some(rdma::unanswered(&self.shared.domain, &tried))
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
                let words = self.results.bytes();
                if result.is_ok()
                    // SAFETY: `results` keeps the memory alive.
                    && let Some(word) = unsafe { words.atomic(slot as usize * size_of::<u64>()) }
                {
                    value.set(word.load(std::sync::atomic::Ordering::Acquire));
                }
                completion
            }
        };
        if let Some(completion) = completion {
            completion.count_down(result);
        }
    }

    // Closing.

    /// Takes the queue pair from the device's hands: it carries out nothing any more. What is outstanding is finished by `abandon`, in
    /// progress, once the queue pair [is left](Self::is_left).
    pub(super) fn stop(&self, reason: Block) {
        self.gate.set(reason, true);
        self.canceled.set(true);
        self.stopped.set(Some(Instant::now()));
        self.stop_receiving();
        // A device that refuses keeps the queue pair until it is destroyed, and its memory with it.
        let _ = self.with_pair(|pair| if self.leaves() { pair.qp().fail() } else { pair.qp().reset() });
    }

    /// Whether the queue pair is in error and took its last request from the shared receive queue, as far as was heard.
    fn hear_last(&self) -> bool {
        let told = self.shared.domain.has_ended(self.own.qpn);
        self.told_last.set(told || self.told_last.get());
        told
    }

    /// Over a shared receive queue no request of its own comes back to tell that the queue pair failed.
    #[cold]
    pub(super) fn hear_failure(&self) {
        let flushed = OperationError { cause: Cause::Flushed, syndrome: None };
        if self.hear_last()
            && let Some(report) = self.enter_failed(Operation::Receive, flushed)
        {
            self.shared.handlers.dispatch_error(&report);
        }
    }

    /// Messages are not delivered any more.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.get().is_some()
    }

    /// No buffers go to a queue pair that failed: they come back, again and again.
    pub(super) fn stop_receiving(&self) {
        if self.shared.receiver.is_none() {
            self.receiver.close();
        }
    }

    /// The queue pair has to give back what it took from the shared receive queue, which goes on. A reset would forget it.
    fn leaves(&self) -> bool {
        let ended = self.gate.has(Block::Closed) || self.gate.has(Block::Unconnected);
        self.shared.receiver.is_some() && !ended
    }

    /// After `stop`, and when the completion queue is empty: the queue pair can be destroyed, and nothing is lost.
    pub(super) fn is_left(&self) -> bool {
        if !self.leaves() {
            return true;
        }
        self.hear_last();
        if self.told_last.get() && self.with_pair(|pair| pair.is_idle()) {
            return true;
        }
        // Not every device tells (Soft-RoCE does so since Linux 6.4).
        let is_late = self.stopped.get().is_some_and(|since| since.elapsed() > GRACE);
        if is_late && !self.told_last.get() {
            self.receiver.count_lost();
        }
        is_late
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
    index: u16,
}

impl Drop for Unwinding<'_> {
    #[cold]
    fn drop(&mut self) {
        self.state.with_pair(|pair| pair.reap(self.index));
        self.state.shared.catch_up_later();
    }
}
