//! How an endpoint ends: [`shut_down`](State::shut_down), [`on_peer_close`](State::on_peer_close),
//! [`fail`](State::fail) and [`cancel`](State::cancel) begin it, and progress
//! [finishes](State::finish) it.

use std::time::Instant;

use barewire_tcp::message::{Header, Kind};

use super::ID;
use super::agenda::Task;
use super::failure::PendingFailure;
use super::life::{Ending, Life};
use super::state::State;
use crate::base::error::{Cause, EndpointError, Operation, OperationError};
use crate::base::panics::Panics;
use crate::transport::common::post_state::PostBlock;
use crate::transport::handle::EndpointState as _;

impl State {
    /// No handle is left, or the interface is closed: closes the connections. If the endpoint
    /// works, what was sent still arrives.
    pub(super) fn shut_down(&self, reason: PostBlock) {
        let in_order = self.posting.is_alive();
        self.end(reason, Ending::ShutDown);
        self.close_connections(in_order);
    }

    /// The peer closed its end in order. An endpoint that is idle does not fail until it is used.
    #[cold]
    pub(super) fn on_peer_close(&self) {
        if self.has_left.get() {
            let detail = "it had closed the connection when it was checked";
            self.fail(PendingFailure::new(Operation::Unnamed, Cause::Disconnected, detail));
        } else if self.is_idle() {
            self.messages.borrow_mut().close(&self.shared.poller, &self.shared.spare);
            if self.is_accepted() {
                self.end(PostBlock::Failed, Ending::ShutDown);
            }
        } else {
            let detail = "it closed the connection before everything had reached it";
            self.fail(PendingFailure::new(Operation::Unnamed, Cause::Disconnected, detail));
        }
    }

    /// A connection failed. Posts fail from now on.
    #[cold]
    pub(super) fn fail(&self, failure: PendingFailure) {
        if self.posting.is_alive() {
            let peer = self.life.borrow().peer();
            self.end(PostBlock::Failed, Ending::Failed(peer, failure));
        }
    }

    /// A connection failed, and progress has not reported it yet.
    #[cold]
    pub(super) fn has_failed(&self) -> bool {
        matches!(&*self.life.borrow(), Life::Ending(Ending::Failed(..)))
    }

    /// The caller cancels what is outstanding.
    pub(super) fn cancel(&self) {
        if !self.posting.has(PostBlock::Failed) {
            self.end(PostBlock::Failed, Ending::Canceled);
        }
    }

    fn end(&self, reason: PostBlock, ending: Ending) {
        self.posting.set(reason, true);
        self.life.borrow_mut().end(ending);
        self.shared.visit_later(Task::End, self.slot());
    }

    /// Closes the connections of an endpoint that ends, finishes what is outstanding, and reports a
    /// failure.
    pub(super) fn finish(&self) {
        let mut life = self.life.borrow_mut();
        let (in_order, report) = match &*life {
            Life::Ending(Ending::Failed(peer, failure)) => {
                let peer =
                    peer.map_or_else(|| "no peer".to_owned(), |peer| peer.address.to_string());
                let report = EndpointError {
                    transport: ID,
                    peer: format!("{peer} ({})", failure.detail),
                    operation: failure.operation,
                    cause: failure.cause,
                    syndrome: None,
                    detail: None,
                };
                (false, Some(report))
            }
            Life::Ending(Ending::Canceled) => (self.is_idle(), None),
            Life::Ending(Ending::ShutDown) => (false, None),
            _ => return,
        };
        // The program does not know endpoints of accepted connections.
        let report = report.filter(|_| !self.is_accepted());
        *life = Life::Ended(report.clone());
        drop(life);
        self.close_connections(in_order);
        let mut panics = Panics::default();
        let Some(report) = report else {
            return self.finish_outstanding(OperationError::CANCELED, &mut panics);
        };
        self.finish_outstanding(
            OperationError { cause: report.cause, syndrome: None },
            &mut panics,
        );
        panics.catch(|| self.shared.core.handlers.dispatch_error(&report));
    }

    /// A post by a `pack` function failed. If the function closed the interface, the endpoint still
    /// has to be finished.
    #[cold]
    pub(super) fn after_failed_pack(&self) {
        if self.posting.has(PostBlock::Closed) {
            self.finish();
        }
    }

    /// Closes both connections, except one that a `pack` function holds. `in_order`: if everything
    /// was sent, the peer learns that nothing follows.
    fn close_connections(&self, in_order: bool) {
        let (poller, spare) = (&self.shared.poller, &self.shared.spare);
        if let Ok(mut messages) = self.messages.try_borrow_mut() {
            if in_order {
                let farewell = Header { kind: Kind::Farewell, length: 0 }.to_bytes();
                let draining = messages.finish(poller, spare, &farewell, Instant::now());
                if let Some(draining) = draining {
                    self.shared.draining.borrow_mut().push(draining);
                    self.shared.agenda.watch(true);
                }
            } else {
                messages.close(poller, spare);
            }
        }
        if let Ok(mut memory) = self.memory.try_borrow_mut()
            && let Some(memory) = &mut *memory
        {
            memory.connection().close(poller, spare);
        }
        self.reader.borrow_mut().clear();
    }

    /// Finishes everything that is outstanding: the first with `error`, the others as flushed.
    fn finish_outstanding(&self, error: OperationError, panics: &mut Panics) {
        let mut next = error;
        let mut result = || {
            let others = match error {
                OperationError::CANCELED => error,
                _ => OperationError { cause: Cause::Flushed, syndrome: None },
            };
            Err(std::mem::replace(&mut next, others))
        };
        loop {
            let request = self.memory.borrow_mut().as_mut().and_then(|memory| memory.abandon());
            let Some(request) = request else { break };
            if let Some(completion) = request.into_completion() {
                let result = result();
                panics.catch(|| completion.finish(result));
            }
        }
        loop {
            let waiter = self.waiters.borrow_mut().pop();
            let Some((completion, cancels)) = waiter else { break };
            if cancels {
                panics.catch(|| completion.finish_canceled());
            } else {
                let result = result();
                panics.catch(|| completion.finish(result));
            }
        }
    }
}
