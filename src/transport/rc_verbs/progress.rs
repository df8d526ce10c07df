//! Progress: completions taken from the queue and what follows from them.

use std::fmt;
use std::rc::Rc;

use barewire_verbs::Failure;

use super::NAME;
use super::interface::Shared;
use super::receive::Receiver;
use super::state::State;
use crate::panics::{self, Panics};
use crate::transport::common::gate::Block;
use crate::transport::common::handlers::Running;
use crate::transport::rdma::{Taken, What, Whose};

/// The one owner of an interface's progress. Dropping it closes the interface: outstanding operations complete as
/// cancelled, handlers are dropped and posts answer [`PostError::Closed`](crate::PostError::Closed).
pub struct Progress {
    shared: Rc<Shared>,
    /// Times that nothing is there, until it is asked what the device tells of its queues.
    hear_in: u32,
}

/// Times that nothing is there from one to the next.
const HEAR_EVERY: u32 = 1024;

impl Progress {
    /// Whether a call of progress would do nothing: only libibverbs knows.
    #[inline]
    #[expect(clippy::unused_self, reason = "as in the other transports")]
    pub(crate) fn is_idle(&self) -> bool {
        false
    }

    pub(super) fn new(shared: Rc<Shared>) -> Self {
        Self { shared, hear_in: HEAR_EVERY }
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
        let Some(taken) = self.shared.completions.take() else { return self.idle() };
        match taken.what {
            What::Receive(buffer) => self.receive(&taken, buffer),
            What::Send(index) => {
                let Some(state) = self.shared.peer(taken.place) else { return 1 };
                match taken.outcome {
                    Ok(()) => state.complete(index),
                    Err(failure) => state.fail_send(index, Whose::name(taken.id), failure),
                }
            }
        }
        1
    }

    /// There was nothing to do.
    #[inline(always)]
    fn idle(&mut self) -> usize {
        self.hear_in -= 1;
        if self.hear_in == 0 {
            self.hear();
        }
        0
    }

    /// What does not come by completions: over a shared receive queue, that a queue pair failed.
    #[cold]
    #[inline(never)]
    fn hear(&mut self) {
        self.hear_in = HEAR_EVERY;
        if self.shared.receiver.is_some() {
            self.shared.domain.hear();
            // A callback may open and close endpoints.
            let endpoints = self.shared.endpoints.borrow().clone();
            let mut panics = Panics::default();
            for state in &endpoints {
                panics.catch(|| state.hear_failure());
            }
        }
    }

    /// A receive request is done.
    #[inline(always)]
    fn receive(&self, taken: &Taken, buffer: u32) {
        let shared = &*self.shared;
        let (receiver, muted) = match &shared.receiver {
            None => {
                let Some(state) = shared.peer(taken.place) else { return };
                (&state.receiver, state.is_stopped())
            }
            Some(receiver) => {
                receiver.see_backlog(shared.completions.count_message());
                // Endpoints that are stopped are being closed.
                (receiver, shared.closing.get() > 0 && shared.is_stopped(taken.qpn))
            }
        };
        match taken.outcome {
            Ok(()) => receiver.deliver(&mut shared.running(), buffer, taken.length, muted),
            Err(failure) => self.fail_receive(receiver, taken, buffer, failure),
        }
    }

    /// A receive request failed, or came back after an error.
    #[cold]
    fn fail_receive(&self, receiver: &Receiver, taken: &Taken, buffer: u32, failure: Failure) {
        if receiver.arrived(buffer).is_some() {
            receiver.give_back(buffer);
        }
        let state = self.shared.endpoints.borrow().iter().find(|state| state.own.qpn == taken.qpn).cloned();
        if let Some(state) = state {
            state.fail_receive(failure);
        }
    }

    /// What progress does besides completions, and then takes one.
    #[cold]
    #[inline(never)]
    fn settle(&mut self) -> usize {
        if self.shared.closed.get() {
            // The parent's. The call for attention stays, so that every progress ends here.
            return 0;
        }
        self.shared.running().renew();
        let mut events = 0;
        // First, before callbacks close endpoints whose completions may have come since.
        let completions = &self.shared.completions;
        if self.shared.closing.get() > 0 && self.shared.receiver.is_some() {
            self.shared.domain.hear();
        }
        if self.shared.closing.get() > 0 && completions.is_empty() && completions.fill() == 0 {
            events += self.shared.bury();
        }
        if self.shared.unwound.replace(false) {
            let endpoints = self.shared.endpoints.borrow().clone();
            let mut panics = Panics::default();
            for state in &endpoints {
                panics.catch(|| state.catch_up());
            }
        }
        let shared = &*self.shared;
        shared.attention.set(false);
        let call_again = || {
            if shared.closing.get() > 0 || !shared.arbiter.is_empty() {
                shared.call_attention();
            }
        };
        events += panics::or_else(|| shared.arbiter.dispatch(), call_again);
        call_again();
        events + self.take()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shared.closed.get() {
            // By a fork: the device is the parent's, and so is everything that would be destroyed.
            return std::mem::forget(Rc::clone(&self.shared));
        }
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
    /// of theirs is left in it, what was not completed was not carried out, and their share of the queue is free. Answers how many.
    fn bury(&self) -> usize {
        let is_gone = |state: &mut Rc<State>| state.handles.get() == 0 && state.is_left();
        let closing: Vec<_> = self.endpoints.borrow_mut().extract_if(.., is_gone).collect();
        self.closing.set(self.closing.get() - closing.len() as u32);
        let mut panics = Panics::default();
        for state in &closing {
            self.peers.release(state.place, Some(state.place));
            panics.catch(|| state.abandon());
        }
        closing.len()
    }

    /// The endpoint of this queue pair is being closed.
    #[cold]
    fn is_stopped(&self, qpn: u32) -> bool {
        self.endpoints.borrow().iter().any(|state| state.own.qpn == qpn && state.is_stopped())
    }

    fn close(&self) {
        self.closed.set(true);
        let endpoints = self.endpoints.take();
        for state in &endpoints {
            state.stop(Block::Closed);
            self.peers.release(state.place, Some(state.place));
        }
        let mut panics = Panics::default();
        for state in &endpoints {
            panics.catch(|| state.abandon());
        }
        if let Some(receiver) = &self.receiver {
            receiver.close();
        }
        panics.catch(|| self.arbiter.clear());
        panics.catch(|| self.handlers.close());
        panics.catch(|| self.running().renew());
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
