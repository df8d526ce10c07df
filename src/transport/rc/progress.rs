//! Progress, except for taking completions, which is the driver's part.

use std::fmt;
use std::rc::Rc;

use super::{Driver, Queue as _, Shared, State};
use crate::base::panics::{self, Panics};
use crate::transport::common::handlers::DispatchGuard;
use crate::transport::common::post_state::PostBlock;
use crate::transport::common::registered::Domain;
use crate::transport::handle::InterfaceState as _;

/// The only owner of an interface's progress. Dropping it closes the interface: outstanding
/// operations complete as cancelled, handlers are dropped and posts return
/// [`PostError::Closed`](crate::PostError::Closed).
#[must_use = "without its progress an interface completes nothing"]
pub struct Progress<D: Driver>(pub(crate) Rc<Shared<D>>);

impl<D: Driver> Progress<D> {
    /// Takes one completion and processes it: delivers a message, or finishes operations. Before
    /// that, it runs pending requests, installs new handlers and closes endpoints. Never blocks.
    /// Returns the number of events; zero means that there was nothing to do.
    #[inline]
    pub fn progress(&mut self) -> usize {
        D::progress(self)
    }

    /// Does everything besides completions, then takes one completion.
    #[cold]
    #[inline(never)]
    pub(crate) fn settle(&mut self) -> usize {
        if self.0.core.closed.get() {
            // The interface belongs to the parent. `attention` stays set, so that every progress
            // returns here.
            return 0;
        }
        self.0.running().install_pending();
        let mut events = 0;
        // First, because callbacks may close endpoints whose completions have not been taken.
        if self.0.closing.get() > 0 && D::is_drained(&self.0) {
            events += self.0.bury();
        }
        if self.0.unwound.replace(false) {
            self.0.for_each_endpoint(State::catch_up);
        }
        let shared = &*self.0;
        shared.attention.answer();
        if D::has_failed(shared) {
            self.0.for_each_endpoint(State::lose_device);
        } else {
            D::settle(shared);
            shared.grow_shares();
            shared.core.keep_alive();
        }
        let call_again = || {
            if shared.closing.get() > 0 || !shared.core.arbiter.is_empty() {
                shared.call_attention();
            }
        };
        events += panics::or_else(|| shared.core.arbiter.dispatch(), call_again);
        call_again();
        events + D::take_closing(self)
    }
}

impl<D: Driver> Drop for Progress<D> {
    fn drop(&mut self) {
        if self.0.core.closed.get() {
            // Closed by a fork: the device and all objects that would be destroyed belong to the
            // parent.
            return std::mem::forget(Rc::clone(&self.0));
        }
        self.0.close();
    }
}

impl<D: Driver> Shared<D> {
    /// Returns the endpoint with this user index.
    #[inline(always)]
    pub(crate) fn endpoint(&self, user_index: u32) -> Option<&State<D>> {
        let state = self.user_indices.get(user_index)?;
        // SAFETY: `user_indices` points into `core.endpoints`, whose entries are dropped by `bury` and
        // `close` only. Both are called by `Progress`, with `&mut self`, when no caller of this
        // function is running.
        Some(unsafe { state.as_ref() })
    }

    /// Returns the right to run handlers.
    #[inline(always)]
    pub(crate) fn running(&self) -> DispatchGuard<'_, false> {
        // SAFETY: only `Progress` calls this, with `&mut self`, and drops the result before the
        // next call. A handler cannot access `Progress`, so no second right exists.
        unsafe { self.core.handlers.enter_unchecked() }
    }

    /// Calls `run` for every endpoint, even if it panics for another. `run` may open and close
    /// endpoints.
    pub(crate) fn for_each_endpoint(&self, run: impl Fn(&State<D>)) {
        let endpoints = self.core.endpoints.borrow().clone();
        let mut panics = Panics::default();
        for state in &endpoints {
            panics.catch(|| run(state));
        }
    }

    /// Finishes and drops endpoints without handles; returns their number. Called when the
    /// completion queue is empty: it holds no completion of theirs, operations without a completion
    /// were not executed, and their share of the queue is free.
    fn bury(&self) -> usize {
        D::before_release(self);
        let is_released =
            |state: &mut Rc<State<D>>| state.handles.get() == 0 && D::is_released(state);
        let mut closing: Vec<_> =
            self.core.endpoints.borrow_mut().extract_if(.., is_released).collect();
        self.closing.set(self.closing.get() - closing.len() as u32);
        let (mut panics, count) = (Panics::default(), closing.len());
        while let Some(state) = closing.pop() {
            if state.is_sharing() {
                self.pass_on(&state, &closing);
            } else {
                self.user_indices.release(state.slot.get(), state.user_index.get());
                self.shares.give(state.with_queue(|queue| queue.most_outstanding()));
                panics.catch(|| state.abandon());
            }
        }
        count
    }

    fn close(&self) {
        self.core.closed.set(true);
        let endpoints = self.core.endpoints.take();
        for state in &endpoints {
            state.stop(PostBlock::Closed);
            self.user_indices.release(state.slot.get(), state.user_index.get());
        }
        let mut panics = Panics::default();
        for state in &endpoints {
            panics.catch(|| state.abandon());
        }
        D::close(self);
        self.core.clear(&mut panics);
    }
}

impl<D: Driver> fmt::Debug for Progress<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress")
            .field("transport", &D::ID)
            .field("device", &self.0.domain.device())
            .finish_non_exhaustive()
    }
}
