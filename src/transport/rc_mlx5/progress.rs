//! Progress: completions taken from the device and what follows from them.

use std::fmt;
use std::rc::Rc;

use barewire_mlx5::layouts::cqe::{Cqe64, CqeOpcode};
use barewire_mlx5::{Completion, CompletionKind, CompletionQueue};

use super::NAME;
use super::interface::Shared;
use super::state::State;
use crate::gate::Block;

/// Completions taken per call of progress, so that a busy queue does not keep the caller for ever.
const POLL_BATCH: usize = 16;

/// User indices are numbers of 24 bits; what shares their word in a CQE is not looked at.
const MASK24: u32 = 0x00ff_ffff;

/// The one owner of an interface's progress. Dropping it closes the interface: outstanding operations complete as
/// cancelled, handlers are dropped and posts answer [`PostError::Closed`](crate::PostError::Closed).
pub struct Progress(pub(super) Rc<Shared>);

impl Progress {
    /// Delivers messages, finishes operations and gives pending requests their turn. Never blocks. Answers how many events
    /// there were.
    #[inline]
    pub fn progress(&mut self) -> usize {
        if self.completions().is_empty() && !self.0.attention.get() {
            return 0;
        }
        self.drain()
    }

    /// The completion queue, for as long as nothing else of ours runs.
    #[inline(always)]
    fn completions(&mut self) -> &mut CompletionQueue {
        // SAFETY: `Progress` is the one that polls and is borrowed mutably; `open_endpoint` borrows the queue only while it
        // creates a queue pair, which does not poll, and no caller keeps this borrow while an event is delivered.
        unsafe { &mut *self.0.completions.get() }
    }

    #[inline(never)]
    fn drain(&mut self) -> usize {
        let mut events = 0;
        while events < POLL_BATCH
            && let Some(cqe) = self.completions().poll_cqe()
        {
            self.0.dispatch(&cqe);
            events += 1;
        }
        if self.0.attention.get() {
            events += self.0.settle(events < POLL_BATCH);
        }
        events
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Shared {
    /// What progress does besides completions. `drained`: the completion queue was just found empty.
    #[cold]
    fn settle(&self, drained: bool) -> usize {
        let mut events = 0;
        // First, before callbacks close endpoints whose completions may have come since.
        if drained && self.closing.get() > 0 {
            events += self.closing.get() as usize;
            self.bury();
        }
        if self.unwound.replace(false) {
            let endpoints = self.endpoints.borrow().clone();
            for state in &endpoints {
                state.catch_up();
            }
        }
        events += self.arbiter.dispatch();
        self.attention.set(self.closing.get() > 0 || !self.arbiter.is_empty());
        events
    }

    #[inline(always)]
    fn dispatch(&self, cqe: &Cqe64) {
        let Some(state) = self.peers.get(cqe.srqn_user_index.get() & MASK24) else { return };
        // SAFETY: `peers` points into `endpoints`, whose entries are dropped by `bury` and `close` only. Both are called by
        // `Progress`, with `&mut self`, when no `dispatch` is running.
        let state = unsafe { state.as_ref() };
        let opcode = cqe.opcode();
        if opcode == CqeOpcode::ResponderSend as u8 {
            state.receive(cqe.wqe_counter.get(), cqe.byte_count.get());
        } else if opcode == CqeOpcode::Requester as u8 {
            state.complete(cqe.wqe_counter.get());
        } else {
            dispatch_other(state, cqe);
        }
    }

    /// Finishes and drops endpoints without handles. To be called when the completion queue is empty: then no completion
    /// of theirs is left in it, what was not completed was not carried out, and their share of the queue is free.
    fn bury(&self) {
        let closing: Vec<_> =
            self.endpoints.borrow_mut().extract_if(.., |state| state.handles.get() == 0).collect();
        self.closing.set(0);
        for state in closing {
            self.peers.release(state.index);
            state.abandon();
        }
    }

    fn close(&self) {
        self.closed.set(true);
        let endpoints = self.endpoints.take();
        for state in &endpoints {
            state.stop(Block::Closed);
            self.peers.release(state.index);
        }
        for state in &endpoints {
            state.abandon();
        }
        self.arbiter.clear();
        self.handlers.close();
    }
}

/// What is rare: errors, and messages that nothing of ours sends.
#[cold]
#[inline(never)]
fn dispatch_other(state: &State, cqe: &Cqe64) {
    let event = Completion::from(cqe);
    match event.kind {
        CompletionKind::SendError(failure) => state.fail_send(event.wqe_counter, failure),
        CompletionKind::ReceiveError(failure) => state.fail_receive(failure),
        // Nothing of ours sends with an immediate or a key; the receive WQE is gone all the same.
        CompletionKind::ReceiveImmediate(_)
        | CompletionKind::ReceiveInvalidate(_)
        | CompletionKind::WriteImmediate(_) => state.receive(event.wqe_counter, 0),
        CompletionKind::Receive | CompletionKind::Send | CompletionKind::Other(_) => {}
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
