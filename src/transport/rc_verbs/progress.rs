//! Progress: completions taken from the queue and what follows from them.

use std::fmt;
use std::rc::Rc;

use super::NAME;
use super::interface::Shared;
use super::state::State;
use crate::active_message::Running;
use crate::gate::Block;
use crate::transport::rdma::What;

/// The one owner of an interface's progress. Dropping it closes the interface: outstanding operations complete as
/// cancelled, handlers are dropped and posts answer [`PostError::Closed`](crate::PostError::Closed).
pub struct Progress {
    shared: Rc<Shared>,
}

impl Progress {
    pub(super) fn new(shared: Rc<Shared>) -> Self {
        Self { shared }
    }

    /// Takes one completion and does what follows: delivers a message, or finishes operations. Before it, what waits gets its
    /// turn: pending requests, handlers that were set, endpoints to be closed. Never blocks. Answers how many events there were; zero
    /// says that there was nothing to do.
    #[inline]
    pub fn progress(&mut self) -> usize {
        if self.shared.attention.get() { self.settle() } else { self.take() }
    }

    /// Takes one completion.
    #[inline]
    fn take(&mut self) -> usize {
        let Some(taken) = self.shared.completions.take() else { return 0 };
        let Some(state) = self.shared.peer(taken.place) else { return 1 };
        match (taken.what, taken.outcome) {
            (What::Receive(buffer), Ok(())) => {
                state.receive(&mut self.shared.running(), buffer, taken.length);
            }
            (What::Send(index), Ok(())) => state.complete(index),
            (What::Send(index), Err(failure)) => state.fail_send(index, failure),
            (What::Receive(_), Err(failure)) => state.fail_receive(failure),
        }
        1
    }

    /// What progress does besides completions, and then takes one.
    #[cold]
    #[inline(never)]
    fn settle(&mut self) -> usize {
        self.shared.running().renew();
        let mut events = 0;
        // First, before callbacks close endpoints whose completions may have come since.
        let completions = &self.shared.completions;
        if self.shared.closing.get() > 0 && completions.is_empty() && completions.fill() == 0 {
            events += self.shared.closing.get() as usize;
            self.shared.bury();
        }
        if self.shared.unwound.replace(false) {
            let endpoints = self.shared.endpoints.borrow().clone();
            for state in &endpoints {
                state.catch_up();
            }
        }
        self.shared.attention.set(false);
        events += self.shared.arbiter.dispatch();
        if self.shared.closing.get() > 0 || !self.shared.arbiter.is_empty() {
            self.shared.call_attention();
        }
        events + self.take()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Shared {
    #[inline(always)]
    fn peer(&self, place: u32) -> Option<&State> {
        let state = self.peers.get(place)?;
        // SAFETY: `peers` points into `endpoints`, whose entries are dropped by `bury` and `close` only. Both are called by
        // `Progress`, with `&mut self`, when no caller of this function is running.
        Some(unsafe { state.as_ref() })
    }

    #[inline(always)]
    fn running(&self) -> Running<'_, false> {
        // SAFETY: called by `Progress` only, with `&mut self`, and dropped before the next call.
        unsafe { self.handlers.run_alone() }
    }

    /// Finishes and drops endpoints without handles. To be called when the completion queue is empty: then no completion
    /// of theirs is left in it, what was not completed was not carried out, and their share of the queue is free.
    fn bury(&self) {
        let closing: Vec<_> =
            self.endpoints.borrow_mut().extract_if(.., |state| state.handles.get() == 0).collect();
        self.closing.set(0);
        for state in closing {
            self.peers.release(state.place, Some(state.place));
            state.abandon();
        }
    }

    fn close(&self) {
        self.closed.set(true);
        let endpoints = self.endpoints.take();
        for state in &endpoints {
            state.stop(Block::Closed);
            self.peers.release(state.place, Some(state.place));
        }
        for state in &endpoints {
            state.abandon();
        }
        self.arbiter.clear();
        self.handlers.close();
        self.running().renew();
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress")
            .field("transport", &NAME)
            .field("device", &self.shared.domain.device())
            .finish_non_exhaustive()
    }
}
