//! Progress: taking completions from the device and processing them.

use std::fmt;
use std::rc::Rc;

use barewire_mlx5::layouts::cqe::CqeOpcode;
use barewire_mlx5::{Completion, CompletionKind};

use super::ID;
use super::control::CONTROL;
use super::interface::Shared;
use crate::base::panics;
use crate::transport::common::handlers::DispatchGuard;
use crate::transport::common::registered::Domain as _;
use crate::transport::handle::InterfaceState as _;
use crate::transport::mlx5::failure;
use crate::transport::mlx5::shared::InBuffer;
use crate::transport::rc::am_length;

/// The only owner of an interface's progress. Dropping it closes the interface: outstanding
/// operations complete as cancelled, handlers are dropped and posts return
/// [`PostError::Closed`](crate::PostError::Closed).
#[must_use = "without its progress an interface completes nothing"]
pub struct Progress(pub(super) Rc<Shared>);

impl Progress {
    /// Takes one completion and processes it: delivers a message, or finishes operations. Before
    /// that, it sends grants, runs pending requests, installs new handlers and closes endpoints.
    /// Never blocks. Returns the number of events; zero means that there was nothing to do.
    #[inline]
    pub fn progress(&mut self) -> usize {
        if self.0.needs_attention() { self.settle() } else { self.take() }
    }

    /// Returns whether there is nothing to do.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        // SAFETY: only `Progress` polls the queue, and `&self` excludes a poll through `&mut self`.
        // `arm` borrows the queue mutably, but runs no user code, so this function is not called
        // then.
        let completions = unsafe { &*self.0.completions.get() };
        completions.is_empty() && !self.0.needs_attention()
    }

    /// Takes one completion.
    #[inline(always)]
    fn take(&mut self) -> usize {
        // SAFETY: only `Progress` polls, with `&mut self`. `arm` borrows the queue only while it
        // runs, and neither polls nor runs user code. The borrow ends before the event is
        // delivered.
        let Some(polled) = (unsafe { &mut *self.0.completions.get() }).poll() else { return 0 };
        let opcode = polled.opcode();
        if opcode == CqeOpcode::ResponderSend as u8 {
            self.deliver(polled.wqe_position(), am_length(polled.byte_count()));
        } else if opcode == CqeOpcode::Requester as u8 {
            self.complete(polled.user_index(), polled.wqe_counter());
        } else {
            self.take_other();
        }
        1
    }

    /// Delivers the message of `length` bytes in the buffer of the receive WQE `counter`, of which
    /// only the low half has a meaning.
    #[inline(never)]
    fn deliver(&mut self, counter: u32, length: usize) {
        let shared = &*self.0;
        let received =
            shared.receiver.receive(counter, length, InBuffer, |message| match message {
                None => shared.running().count_unhandled(),
                Some((id, message)) if id >= CONTROL => shared.take_control(id, message.data()),
                Some((id, message)) => shared.running().dispatch(id, message),
            });
        if !received {
            self.deliver_after_update(counter, length);
        }
    }

    /// As [`Self::deliver`], after a batch of messages.
    #[cold]
    #[inline(never)]
    fn deliver_after_update(&mut self, counter: u32, length: usize) {
        let shared = &*self.0;
        // SAFETY: only `Progress` polls the queue, and it is borrowed here. The reference ends with
        // this statement, which runs no user code.
        shared.receiver.update(unsafe { &*shared.completions.get() });
        self.deliver(counter, length);
    }

    /// Completes the WQE `counter` of an initiator and all before it.
    #[inline(never)]
    fn complete(&mut self, number: u32, counter: u16) {
        let shared = &*self.0;
        if let Some(initiator) = shared.initiators.get(number) {
            shared.complete(initiator, counter);
        }
    }

    /// Handles a rare completion: an error, or a message that no endpoint of this transport sends.
    #[cold]
    #[inline(never)]
    fn take_other(&mut self) {
        let shared = &*self.0;
        // SAFETY: only `Progress` polls the queue, and it is borrowed here. The reference ends with
        // this statement, which runs no user code.
        let event = Completion::from(&unsafe { &*shared.completions.get() }.last_cqe());
        match event.kind {
            CompletionKind::SendError(failure) => {
                if let Some(initiator) = shared.initiators.get(event.user_index) {
                    let (operation, error) = (failure::operation(failure), failure::error(failure));
                    shared.fail(initiator, event.wqe_counter, operation, error);
                }
            }
            // This transport sends neither an immediate nor a key, and a message that a peer
            // breaks off fails; still, the receive WQE is consumed.
            CompletionKind::ReceiveError(_)
            | CompletionKind::ReceiveImmediate(_)
            | CompletionKind::ReceiveInvalidate(_)
            | CompletionKind::WriteImmediate(_) => {
                shared.receiver.discard(event.wqe_counter);
            }
            _ => {}
        }
    }

    /// Does everything besides completions, then takes one completion.
    #[cold]
    #[inline(never)]
    fn settle(&mut self) -> usize {
        if self.0.core.closed.get() {
            // The interface belongs to the parent. `attention` stays set, so that every progress
            // returns here.
            return 0;
        }
        self.0.running().install_pending();
        let shared = &*self.0;
        let mut events = 0;
        if shared.unwound.replace(false) {
            shared.catch_up();
        }
        if shared.closing.get() > 0 {
            events += shared.bury();
        }
        shared.attention.answer();
        if shared.failure().is_some() {
            shared.lose_device();
        }
        shared.send_grants();
        shared.core.keep_alive();
        let call_again = || {
            let waits = shared.closing.get() > 0
                || !shared.core.arbiter.is_empty()
                || !shared.grants.borrow().is_empty()
                || shared.core.is_keepalive_waiting();
            if waits {
                shared.call_attention();
            }
        };
        events += panics::or_else(|| shared.run_requests(), call_again);
        call_again();
        events + self.take()
    }
}

impl Shared {
    /// Returns the right to run handlers.
    #[inline(always)]
    fn running(&self) -> DispatchGuard<'_, false> {
        // SAFETY: only `Progress` calls this, with `&mut self`, and drops the result before the
        // next call. A handler cannot access `Progress`, so no second right exists.
        unsafe { self.core.handlers.enter_unchecked() }
    }

    /// Runs pending requests. If more endpoints wait than there are initiators, it ends when none
    /// is left, so that a completion does not cost a try of every endpoint.
    fn run_requests(&self) -> usize {
        let few = self.core.arbiter.waiting() <= self.initiators.all().len();
        let is_assigned = self.initiators.is_shared();
        self.core.arbiter.dispatch_while(|| few || is_assigned || self.initiators.has_free())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.0.core.closed.get() {
            // Closed by a fork: the device and all objects that would be destroyed belong to the
            // parent.
            return std::mem::forget(Rc::clone(&self.0));
        }
        self.0.close();
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress")
            .field("transport", &ID)
            .field("device", &self.0.domain.device())
            .finish_non_exhaustive()
    }
}
