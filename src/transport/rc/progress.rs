//! Progress: what it does besides completions. Taking a completion is the driver's.

use std::fmt;
use std::rc::Rc;

use super::{Driver, Shared, State};
use crate::panics::{self, Panics};
use crate::transport::common::gate::Block;
use crate::transport::common::handlers::Running;
use crate::transport::common::registered::Domain;

/// The progress of an interface. There is one. Dropping it closes the interface: outstanding operations
/// complete as cancelled, handlers are dropped and posts return
/// [`PostError::Closed`](crate::PostError::Closed).
pub struct Progress<D: Driver>(pub(crate) Rc<Shared<D>>);

impl<D: Driver> Progress<D> {
    /// Takes one completion and does what follows: delivers a message, or finishes operations. Before it,
    /// pending requests run, handlers that were set are installed and endpoints are closed. Never blocks.
    /// Returns the number of events; zero means that there was nothing to do.
    #[inline]
    pub fn progress(&mut self) -> usize {
        if self.0.attention.get() { self.settle() } else { D::take(self) }
    }

    /// What progress does besides completions; then it takes one.
    #[cold]
    #[inline(never)]
    fn settle(&mut self) -> usize {
        if self.0.closed.get() {
            // The interface is the parent's. `attention` stays set, so that every progress ends here.
            return 0;
        }
        self.0.running().renew();
        let mut events = 0;
        // First, before callbacks close endpoints whose completions may have come since.
        if self.0.closing.get() > 0 && D::is_drained(&self.0) {
            events += self.0.bury();
        }
        if self.0.unwound.replace(false) {
            self.0.for_each_endpoint(State::catch_up);
        }
        let shared = &*self.0;
        shared.attention.set(false);
        let call_again = || {
            if shared.closing.get() > 0 || !shared.arbiter.is_empty() {
                shared.call_attention();
            }
        };
        events += panics::or_else(|| shared.arbiter.dispatch(), call_again);
        call_again();
        events + D::take(self)
    }
}

impl<D: Driver> Drop for Progress<D> {
    fn drop(&mut self) {
        if self.0.closed.get() {
            // By a fork: the device is the parent's, and so is everything that would be destroyed.
            return std::mem::forget(Rc::clone(&self.0));
        }
        self.0.close();
    }
}

impl<D: Driver> Shared<D> {
    /// The endpoint with this user index.
    #[inline(always)]
    pub(crate) fn endpoint(&self, user_index: u32) -> Option<&State<D>> {
        let state = self.peers.get(user_index)?;
        // SAFETY: `peers` points into `endpoints`, whose entries are dropped by `bury` and `close` only. Both
        // are called by `Progress`, with `&mut self`, when no caller of this function is running.
        Some(unsafe { state.as_ref() })
    }

    /// The right to run handlers.
    #[inline(always)]
    pub(crate) fn running(&self) -> Running<'_, false> {
        // SAFETY: called by `Progress` only, with `&mut self`, and dropped before the next call.
        unsafe { self.handlers.run_alone() }
    }

    /// Runs `run` for every endpoint, each also if another panics. `run` may open and close endpoints.
    pub(crate) fn for_each_endpoint(&self, run: impl Fn(&State<D>)) {
        let endpoints = self.endpoints.borrow().clone();
        let mut panics = Panics::default();
        for state in &endpoints {
            panics.catch(|| run(state));
        }
    }

    /// Finishes and drops endpoints without handles; returns their number. Called when the completion queue
    /// is empty: no completion of theirs is left in it, what was not completed was not executed, and their
    /// share of the queue is free.
    fn bury(&self) -> usize {
        let is_released = |state: &mut Rc<State<D>>| state.handles.get() == 0 && D::is_released(state);
        let closing: Vec<_> = self.endpoints.borrow_mut().extract_if(.., is_released).collect();
        self.closing.set(self.closing.get() - closing.len() as u32);
        let mut panics = Panics::default();
        for state in &closing {
            self.peers.release(state.slot, state.user_index.get());
            panics.catch(|| state.abandon());
        }
        closing.len()
    }

    fn close(&self) {
        self.closed.set(true);
        let endpoints = self.endpoints.take();
        for state in &endpoints {
            state.stop(Block::Closed);
            self.peers.release(state.slot, state.user_index.get());
        }
        let mut panics = Panics::default();
        for state in &endpoints {
            panics.catch(|| state.abandon());
        }
        D::close(self);
        panics.catch(|| self.arbiter.clear());
        panics.catch(|| self.handlers.close());
        panics.catch(|| self.running().renew());
    }
}

impl<D: Driver> fmt::Debug for Progress<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress")
            .field("transport", &D::NAME)
            .field("device", &self.0.domain.device())
            .finish_non_exhaustive()
    }
}
