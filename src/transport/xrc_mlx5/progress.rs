//! Completions: taking one from the device and processing it.

use barewire_mlx5::layouts::cqe::CqeOpcode;
use barewire_mlx5::{Completion, CompletionKind};

use super::Progress;
use crate::transport::mlx5::failure;
use crate::transport::mlx5::shared::InBuffer;
use crate::transport::rc::am_length;

impl Progress {
    /// Returns whether there is nothing to do.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        // SAFETY: only `Progress` polls the queue, and `&self` excludes a poll through `&mut self`.
        // `arm` borrows the queue mutably, but runs no user code, so this function is not called
        // then.
        let completions = unsafe { &*self.0.driver.completions.get() };
        completions.is_empty() && !self.0.needs_attention()
    }

    /// Takes one completion.
    #[inline(always)]
    pub(super) fn take(&mut self) -> usize {
        // SAFETY: only `Progress` polls, with `&mut self`. `Driver::create`, `is_drained` and `arm`
        // borrow the queue only while they run, and none of them polls or runs user code. The
        // borrow ends before the event is delivered.
        let Some(polled) = (unsafe { &mut *self.0.driver.completions.get() }).poll() else {
            return 0;
        };
        let opcode = polled.opcode();
        if opcode == CqeOpcode::ResponderSend as u8 {
            self.deliver(polled.wqe_position(), am_length(polled.byte_count()))
        } else if opcode == CqeOpcode::Requester as u8 {
            self.complete(polled.user_index(), polled.wqe_counter())
        } else {
            self.take_other()
        }
    }

    /// Delivers the message of `length` bytes in the buffer of the receive WQE `counter`, of which
    /// only the low half has a meaning. Returns 1, the number of events.
    #[inline(never)]
    fn deliver(&mut self, counter: u32, length: usize) -> usize {
        let shared = &*self.0;
        let receiver = &shared.driver.receiver;
        let received = receiver.receive(counter, length, InBuffer, |message| match message {
            None => shared.running().count_unhandled(),
            Some((id, message)) => shared.running().dispatch(id, message),
        });
        if received { 1 } else { self.deliver_after_update(counter, length) }
    }

    /// As [`Self::deliver`], after a batch of messages.
    #[cold]
    #[inline(never)]
    fn deliver_after_update(&mut self, counter: u32, length: usize) -> usize {
        let shared = &*self.0;
        // SAFETY: only `Progress` polls the queue, and it is borrowed here. The reference ends with
        // this statement, which runs no user code.
        shared.driver.receiver.update(unsafe { &*shared.driver.completions.get() });
        self.deliver(counter, length)
    }

    /// Completes the send WQE `counter` and all before it. Returns 1, the number of events.
    #[inline(never)]
    fn complete(&mut self, user_index: u32, counter: u16) -> usize {
        if let Some(state) = self.0.endpoint(user_index) {
            state.complete(counter);
        }
        1
    }

    /// Handles a rare completion: an error, or a message that no endpoint of this transport sends.
    /// Returns 1, the number of events.
    #[cold]
    #[inline(never)]
    fn take_other(&mut self) -> usize {
        // SAFETY: only `Progress` polls the queue, and it is borrowed here. The reference ends with
        // this statement, which runs no user code.
        let event = Completion::from(&unsafe { &*self.0.driver.completions.get() }.last_cqe());
        let shared = &*self.0;
        match event.kind {
            CompletionKind::SendError(error) => {
                if let Some(state) = shared.endpoint(event.user_index) {
                    let (operation, error) = (failure::operation(error), failure::error(error));
                    state.fail_send(event.wqe_counter, operation, error);
                }
            }
            // This transport sends neither an immediate nor a key, and a message that a peer
            // breaks off fails; still, the receive WQE is consumed.
            CompletionKind::ReceiveError(_)
            | CompletionKind::ReceiveImmediate(_)
            | CompletionKind::ReceiveInvalidate(_)
            | CompletionKind::WriteImmediate(_) => {
                shared.driver.receiver.discard(event.wqe_counter);
            }
            _ => {}
        }
        1
    }
}
