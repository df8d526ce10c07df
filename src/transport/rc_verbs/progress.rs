//! Completions: taking one from the queue and processing it.

use barewire_verbs::Failure;

use super::Progress;
use super::driver::State;
use super::receive::Receiver;
use crate::transport::handle::InterfaceState as _;
use crate::transport::rdma::{self, Taken, WrId, WrKind};

/// Progress calls without a completion between two checks of the device's events.
pub(super) const CHECK_EVERY: u32 = 1024;

impl Progress {
    /// Always `false`: only libibverbs knows whether a completion is there.
    #[inline]
    #[expect(clippy::unused_self, reason = "as in the other transports")]
    pub(crate) fn is_idle(&self) -> bool {
        false
    }

    /// Takes one completion.
    #[inline]
    pub(super) fn take(&mut self) -> usize {
        let Some(taken) = self.0.driver.completions.take() else { return self.idle() };
        match taken.kind {
            WrKind::Receive(buffer) => self.receive(&taken, buffer),
            WrKind::Send(index) => {
                let Some(state) = self.0.endpoint(taken.slot) else { return 1 };
                match taken.outcome {
                    Ok(()) => state.complete(index),
                    Err(failure) => {
                        state.fail_send(index, WrId::name(taken.id), rdma::error(failure));
                    }
                }
            }
        }
        1
    }

    /// Handles a progress call without a completion.
    #[inline(always)]
    fn idle(&mut self) -> usize {
        let check_in = &self.0.driver.check_in;
        check_in.set(check_in.get() - 1);
        if check_in.get() == 0 {
            self.check_events();
        }
        0
    }

    /// Checks for failures that produce no completion: those of the device, and of queue pairs with
    /// a shared receive queue.
    #[cold]
    #[inline(never)]
    fn check_events(&mut self) {
        self.0.driver.check_in.set(CHECK_EVERY);
        self.0.domain.check_events();
        if self.0.domain.has_failed() {
            self.0.for_each_endpoint(State::lose_device);
        } else if self.0.driver.receiver.is_some() {
            self.0.for_each_endpoint(State::check_failure);
        }
        if self.0.core.is_keepalive_due() {
            self.0.call_attention();
        }
    }

    /// Handles a completed receive request.
    #[inline(always)]
    fn receive(&self, taken: &Taken, buffer: u32) {
        let shared = &*self.0;
        let (receiver, muted) = match &shared.driver.receiver {
            None => {
                let Some(state) = shared.endpoint(taken.slot) else { return };
                (&state.driver.receiver, state.is_stopped())
            }
            Some(receiver) => {
                receiver.see_backlog(shared.driver.completions.count_message());
                // Endpoints that are stopped are being closed.
                (receiver, shared.closing.get() > 0 && self.is_stopped(taken.qpn))
            }
        };
        match taken.outcome {
            Ok(()) => receiver.deliver(&mut shared.running(), buffer, taken.length, muted),
            Err(failure) => self.fail_receive(receiver, taken, buffer, failure),
        }
    }

    /// Handles a receive request that failed, or was flushed after an error.
    #[cold]
    fn fail_receive(&self, receiver: &Receiver, taken: &Taken, buffer: u32, failure: Failure) {
        if receiver.arrived(buffer).is_some() {
            receiver.give_back(buffer);
        }
        let state =
            self.0.core.endpoints.borrow().iter().find(|state| state.own.qpn == taken.qpn).cloned();
        if let Some(state) = state {
            state.fail_receive(rdma::error(failure));
        }
    }

    /// Returns whether the endpoint of this queue pair is being closed.
    #[cold]
    fn is_stopped(&self, qpn: u32) -> bool {
        let endpoints = self.0.core.endpoints.borrow();
        endpoints.iter().any(|state| state.own.qpn == qpn && state.is_stopped())
    }
}
