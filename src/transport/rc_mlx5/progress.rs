//! Progress: completions taken from the device and what follows from them.

use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use barewire_mlx5::layouts::cqe::CqeOpcode;
use barewire_mlx5::{Completion, CompletionKind};

use super::NAME;
use super::interface::Shared;
use super::state::State;
use crate::panics::{self, Panics};
use crate::transport::common::gate::Block;
use crate::transport::common::handlers::Running;

/// The one owner of an interface's progress. Dropping it closes the interface: outstanding operations complete as
/// cancelled, handlers are dropped and posts answer [`PostError::Closed`](crate::PostError::Closed).
pub struct Progress(pub(super) Rc<Shared>);

impl Progress {
    /// Takes one completion and does what follows: delivers a message, or finishes operations. Before it, what waits gets its
    /// turn: pending requests, handlers that were set, endpoints to be closed. Never blocks. Answers how many events there were; zero
    /// says that there was nothing to do.
    #[inline]
    pub fn progress(&mut self) -> usize {
        if self.0.attention.get() { self.settle() } else { self.take() }
    }

    /// Nothing is there to be done.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        // SAFETY: as in `take`.
        let completions = unsafe { &*self.0.completions.get() };
        completions.is_empty() && !self.0.attention.get()
    }

    /// Takes one completion.
    #[inline(always)]
    fn take(&mut self) -> usize {
        // SAFETY: nobody else polls; `open_endpoint` borrows the queue only while it creates a queue pair, which does not poll. The borrow
        // ends before the event is delivered.
        let Some(polled) = (unsafe { &mut *self.0.completions.get() }).poll() else { return 0 };
        let (opcode, counter, peer) = (polled.opcode(), polled.wqe_counter(), polled.user_index());
        if opcode == CqeOpcode::ResponderSend as u8 {
            let bytes = polled.byte_count();
            self.deliver(peer, counter.into(), bytes)
        } else if opcode == CqeOpcode::Requester as u8 {
            self.complete(peer, counter)
        } else {
            self.take_other()
        }
    }

    /// What progress does besides completions, and then takes one.
    #[cold]
    #[inline(never)]
    fn settle(&mut self) -> usize {
        if self.0.closed.get() {
            // The parent's. The call for attention stays, so that every progress ends here.
            return 0;
        }
        self.0.running().renew();
        let mut events = 0;
        // First, before callbacks close endpoints whose completions may have come since.
        // SAFETY: as in `take`.
        if self.0.closing.get() > 0 && unsafe { &*self.0.completions.get() }.is_empty() {
            events += self.0.closing.get() as usize;
            self.0.bury();
        }
        if self.0.unwound.replace(false) {
            let endpoints = self.0.endpoints.borrow().clone();
            let mut panics = Panics::default();
            for state in &endpoints {
                panics.catch(|| state.catch_up());
            }
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
        events + self.take()
    }

    /// A message of `bytes` bytes lies in the buffer of the receive WQE `counter` of the endpoint `peer`. One event.
    #[inline(never)]
    fn deliver(&mut self, peer: u32, counter: u32, bytes: u32) -> usize {
        let Some(state) = self.0.peer(peer) else { return self.take_first(peer) };
        state.receive(&mut self.0.running(), counter, bytes);
        1
    }

    /// The send WQE `counter` of the endpoint `peer` is done, and everything before it. One event.
    #[inline(never)]
    fn complete(&mut self, peer: u32, counter: u16) -> usize {
        let Some(state) = self.0.peer(peer) else { return self.take_first(peer) };
        state.complete(counter);
        1
    }

    /// The completion that was taken is of nobody, or the first of an endpoint whose user index a library chose. One event.
    #[cold]
    #[inline(never)]
    fn take_first(&mut self, user_index: u32) -> usize {
        let Some(state) = self.0.meet(user_index) else { return 1 };
        // SAFETY: as in `take`.
        let event = Completion::from(&unsafe { &*self.0.completions.get() }.last_cqe());
        if event.kind == CompletionKind::Receive {
            state.receive(&mut self.0.running(), event.wqe_counter.into(), event.byte_count);
        } else {
            state.complete(event.wqe_counter);
        }
        1
    }

    /// The completion that was taken is a rare one: an error, or a message that nothing of ours sends. One event.
    #[cold]
    #[inline(never)]
    fn take_other(&mut self) -> usize {
        // SAFETY: as in `take`.
        let event = Completion::from(&unsafe { &*self.0.completions.get() }.last_cqe());
        let user_index = event.user_index;
        let Some(state) = self.0.peer(user_index).or_else(|| self.0.meet(user_index)) else { return 1 };
        match event.kind {
            CompletionKind::SendError(failure) => state.fail_send(event.wqe_counter, failure),
            CompletionKind::ReceiveError(failure) => state.fail_receive(failure),
            // Nothing of ours sends with an immediate or a key; the receive WQE is gone all the same.
            CompletionKind::ReceiveImmediate(_)
            | CompletionKind::ReceiveInvalidate(_)
            | CompletionKind::WriteImmediate(_) => {
                state.receive(&mut self.0.running(), event.wqe_counter.into(), 0);
            }
            CompletionKind::Receive | CompletionKind::Send | CompletionKind::Other(_) => {}
        }
        1
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.0.closed.get() {
            // By a fork: the device is the parent's, and so is everything that would be destroyed.
            return std::mem::forget(Rc::clone(&self.0));
        }
        self.0.close();
    }
}

impl Shared {
    #[inline(always)]
    fn peer(&self, user_index: u32) -> Option<&State> {
        let state = self.peers.get(user_index)?;
        // SAFETY: `peers` points into `endpoints`, whose entries are dropped by `bury` and `close` only. Both are called by
        // `Progress`, with `&mut self`, when no caller of this function is running.
        Some(unsafe { state.as_ref() })
    }

    /// The endpoint of the completion that was taken last, by its queue pair's number: where a library chose the user index, the first
    /// completion tells it.
    #[cold]
    #[inline(never)]
    fn meet(&self, user_index: u32) -> Option<&State> {
        // SAFETY: as in `Progress::take`.
        let qpn = Completion::from(&unsafe { &*self.completions.get() }.last_cqe()).qpn;
        let endpoints = self.endpoints.borrow();
        let state = endpoints.iter().find(|state| {
            state.own.qpn == qpn && state.user_index.get().is_none_or(|index| index == user_index)
        })?;
        state.user_index.set(Some(user_index));
        let state = NonNull::from(&**state);
        self.peers.set(user_index, state);
        // SAFETY: as in `peer`.
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
        let mut panics = Panics::default();
        for state in closing {
            self.peers.release(state.index, state.user_index.get());
            panics.catch(|| state.abandon());
        }
    }

    fn close(&self) {
        self.closed.set(true);
        let endpoints = self.endpoints.take();
        for state in &endpoints {
            state.stop(Block::Closed);
            self.peers.release(state.index, state.user_index.get());
        }
        let mut panics = Panics::default();
        for state in &endpoints {
            panics.catch(|| state.abandon());
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
            .field("device", &self.0.domain.device())
            .finish_non_exhaustive()
    }
}
