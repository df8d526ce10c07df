//! What completions of initiators do: operations finish, initiators return to the pool.

use super::initiator::{Holder, Initiator, NO_OWNER};
use super::interface::Shared;
use super::state::State;
use crate::base::error::{Cause, Operation, OperationError};
use crate::base::panics::Panics;
use crate::transport::common::operation::{Done, Popped};
use crate::transport::common::post_state::PostBlock;
use crate::transport::handle::{EndpointList as _, InterfaceState as _};
use crate::transport::rc::finish;
use std::ptr::NonNull;
use std::rc::Rc;

impl Shared {
    /// Completes the post at `index` and all before it. Their room is freed, and the initiator is
    /// returned, after the callbacks, so that a post of a callback does not overtake requests that
    /// wait, and stays in the order of its endpoint.
    #[inline(always)]
    pub(super) fn complete(&self, initiator: &Initiator, index: u16) {
        if !initiator.in_flight.is_empty() {
            let unwinding = Unwinding { shared: self, initiator, index };
            while let Some(popped) = initiator.in_flight.pop_next(index) {
                let Popped::Notify(completion) = popped else {
                    std::mem::forget(unwinding);
                    return self.complete_any(initiator, index);
                };
                completion.finish(Ok(()));
            }
            std::mem::forget(unwinding);
        }
        initiator.with_queue(|queue| queue.send.reap(index));
        self.settle_initiator(initiator);
    }

    /// As [`Self::complete`], if not all operations only notify.
    #[inline(never)]
    fn complete_any(&self, initiator: &Initiator, index: u16) {
        let unwinding = Unwinding { shared: self, initiator, index };
        while let Some(entry) = initiator.in_flight.pop_covered(index) {
            self.finish(initiator, entry.done, Ok(()));
        }
        std::mem::forget(unwinding);
        initiator.with_queue(|queue| queue.send.reap(index));
        self.settle_initiator(initiator);
    }

    /// Returns the initiator to the pool if nothing is outstanding.
    #[inline(always)]
    fn settle_initiator(&self, initiator: &Initiator) {
        if initiator.is_idle() {
            self.release(initiator);
        } else {
            self.initiators.check_turn(initiator);
        }
        if !self.core.arbiter.is_empty() {
            self.call_attention();
        }
    }

    fn finish(&self, initiator: &Initiator, done: Done, result: Result<(), OperationError>) {
        match done {
            Done::Release { buffer } => self.buffers.give(buffer),
            done => finish(&self.buffers, |word| initiator.collect(&word), done, result),
        }
    }

    /// Returns an initiator on which nothing is outstanding.
    #[inline(never)]
    pub(super) fn release(&self, initiator: &Initiator) {
        // A flush without a WQE of its own, pushed by a callback.
        if !initiator.in_flight.is_empty() {
            return self.complete_flushes(initiator);
        }
        if initiator.failed.get() {
            reset(initiator);
        }
        match initiator.holder.replace(Holder::Nobody) {
            Holder::Nobody => return,
            Holder::Endpoint(state) => {
                // SAFETY: the interface keeps an endpoint that holds an initiator.
                let state: &State = unsafe { state.as_ref() };
                state.initiator.set(None);
                state.posting.set(PostBlock::Yielding, false);
            }
            Holder::Grants => {}
        }
        if !initiator.failed.get() {
            self.initiators.give(initiator);
        }
    }

    #[cold]
    fn complete_flushes(&self, initiator: &Initiator) {
        self.complete(initiator, initiator.last());
    }

    /// Fails the post at `index`. All before it succeeded, since an initiator executes its requests
    /// in order; those after it are flushed, and come here one by one.
    #[cold]
    pub(super) fn fail(
        &self,
        initiator: &Initiator,
        index: u16,
        operation: Operation,
        error: OperationError,
    ) {
        initiator.failed.set(true);
        let mut panics = Panics::default();
        while let Some(entry) = initiator.in_flight.pop_covered(index.wrapping_sub(1)) {
            panics.catch(|| self.finish(initiator, entry.done, Ok(())));
        }
        let state = self.owner(initiator, index);
        let canceled = state.as_ref().is_some_and(|state| state.canceled.get());
        let error = if canceled { OperationError::CANCELED } else { error };
        let nothing = initiator.in_flight.is_empty();
        let report = state.and_then(|state| {
            state.enter_failed(state.posting.failed_operation(operation, nothing), error)
        });
        while let Some(entry) = initiator.in_flight.pop_covered(index) {
            panics.catch(|| self.finish(initiator, entry.done, Err(error)));
        }
        if let Some(report) = report {
            panics.catch(|| self.core.handlers.dispatch_error(&report));
        }
        initiator.with_queue(|queue| queue.send.reap(index));
        self.settle_initiator(initiator);
    }

    /// Returns the endpoint that posted the WQE at `index`; `None` if it was a grant.
    fn owner(&self, initiator: &Initiator, index: u16) -> Option<Rc<State>> {
        let slot = match initiator.holder.get() {
            // SAFETY: the interface keeps an endpoint that holds an initiator.
            Holder::Endpoint(state) => unsafe { state.as_ref() }.slot,
            Holder::Nobody => initiator.owner(index).filter(|owner| *owner != NO_OWNER)?,
            Holder::Grants => return None,
        };
        self.core.endpoints.get(slot)
    }

    /// Fails all endpoints and operations: the device failed, and completes nothing more.
    #[cold]
    pub(super) fn lose_device(&self) {
        let error = OperationError { cause: Cause::DeviceFailed, syndrome: None };
        let mut panics = Panics::default();
        let failed = |state: &Rc<State>| state.enter_failed(Operation::Unnamed, error);
        let reports: Vec<_> = self.core.endpoints.all().iter().filter_map(failed).collect();
        for initiator in self.initiators.all() {
            while let Some(entry) = initiator.in_flight.pop() {
                panics.catch(|| self.finish(initiator, entry.done, Err(error)));
            }
            let last = initiator.last();
            initiator.with_queue(|queue| queue.send.reap(last));
            self.release(initiator);
        }
        for report in reports {
            panics.catch(|| self.core.handlers.dispatch_error(&report));
        }
    }

    /// Finishes the operations that were left behind by a callback that panicked.
    #[cold]
    pub(super) fn catch_up(&self) {
        let mut panics = Panics::default();
        for initiator in self.initiators.all() {
            let is_done = |index| {
                initiator.with_queue(|queue| queue.send.is_done(barewire_mlx5::WqeIndex(index)))
            };
            let result =
                if initiator.failed.get() { Err(OperationError::CANCELED) } else { Ok(()) };
            while let Some(entry) = initiator.in_flight.pop_done(is_done) {
                panics.catch(|| self.finish(initiator, entry.done, result));
            }
            if initiator.is_idle() {
                panics.catch(|| self.release(initiator));
            }
        }
    }

    /// Removes endpoints without handles on which nothing is outstanding; returns their number.
    pub(super) fn bury(&self) -> usize {
        let mut removed = 0;
        for state in self.core.endpoints.all() {
            if state.handles.get() != 0 || !state.is_idle() {
                continue;
            }
            if let Some(initiator) = state.held()
                && initiator.holder.get() == Holder::Endpoint(NonNull::from(&*state))
            {
                self.release(initiator);
            }
            self.core.endpoints.remove(state.slot);
            removed += 1;
        }
        self.closing.set(self.closing.get().saturating_sub(removed));
        removed as usize
    }

    /// Ends all connections: the device executes nothing more, and all operations are cancelled.
    pub(super) fn close(&self) {
        self.core.closed.set(true);
        self.close_target();
        let endpoints = self.core.endpoints.take();
        for state in &endpoints {
            state.posting.set(PostBlock::Closed, true);
            state.initiator.set(None);
        }
        for initiator in self.initiators.all() {
            initiator.holder.set(Holder::Nobody);
            // A device that refuses keeps the initiator until it is destroyed, and its memory with
            // it.
            let _ = initiator.with_queue(super::initiator::Queue::reset);
        }
        let mut panics = Panics::default();
        for initiator in self.initiators.all() {
            while let Some(entry) = initiator.in_flight.pop() {
                let canceled = Err(OperationError::CANCELED);
                panics.catch(|| self.finish(initiator, entry.done, canceled));
            }
        }
        self.grants.take();
        self.core.clear(&mut panics);
    }
}

/// Makes an initiator usable again after an error. One that the device does not reset stays out of
/// the pool.
#[cold]
fn reset(initiator: &Initiator) {
    match initiator.with_queue(super::initiator::Queue::reset) {
        Ok(()) => {
            initiator.failed.set(false);
            initiator.taken_at.set(0);
        }
        Err(error) => tracing::error!(%error, "an initiator could not be reset"),
    }
}

/// Reaps a completion even if a callback panics, and then lets progress finish the remaining
/// operations.
struct Unwinding<'a> {
    shared: &'a Shared,
    initiator: &'a Initiator,
    index: u16,
}

impl Drop for Unwinding<'_> {
    #[cold]
    fn drop(&mut self) {
        self.initiator.with_queue(|queue| queue.send.reap(self.index));
        self.shared.unwound.set(true);
        self.shared.call_attention();
    }
}
