//! Completions of the queue with tag matching, and what they mean for receives and messages.

use barewire_mlx5::layouts::tag::{TagHeader, TagOpcode};
use barewire_mlx5::queue::tags::{Plain, TagList, TagReport};
use barewire_mlx5::{Completion, CompletionKind};

use super::super::driver::{Shared, State};
use super::super::{Endpoint, Progress};
use super::{Matching, Phase, Receive, Received};
use crate::base::error::{Cause, OperationError};
use crate::base::panics::Panics;
use crate::transport::common::message::Message;
use crate::transport::handle::{EndpointState as _, InterfaceState as _};
use crate::transport::mlx5::failure;
use crate::transport::mlx5::shared::InBuffer;
use crate::transport::rc::am_length;

impl Progress {
    /// Handles the completion that was taken last, which is of the queue with tag matching. Returns
    /// 1, the number of events.
    #[inline(never)]
    pub(in super::super) fn take_tagged(&mut self) -> usize {
        let Some(matching) = &self.0.driver.tags else { return 1 };
        // SAFETY: only `Progress` polls the queue, and it is borrowed here. The reference ends with
        // this statement, which runs no user code.
        let report = matching
            .with_list(|list| list.completed(unsafe { &*self.0.driver.completions.get() }.last()));
        match report {
            Some(TagReport::Untagged(plain)) => return self.take_untagged(matching, plain),
            Some(TagReport::Unexpected(plain)) => self.take_unexpected(matching, plain),
            Some(report) => matching.apply(&self.0, report),
            None => self.take_failure(matching),
        }
        if matching.is_behind() {
            // Once the completions at hand are processed.
            self.0.call_attention();
        }
        1
    }

    /// An active message, or the end of a rendezvous.
    #[inline]
    fn take_untagged(&self, matching: &Matching, Plain { wqe, length, .. }: Plain) -> usize {
        let (shared, receiver) = (&*self.0, &matching.receiver);
        if shared.closing.get() > 0 && self.is_of_stopped() {
            receiver.discard(wqe);
            return 1;
        }
        if receiver.opcode(wqe) == Some(TagOpcode::Finished as u8) {
            let qpn = shared.last_qpn();
            let finished = |header: TagHeader, _: Message<'_>| {
                matching.announced.borrow_mut().take(header.application.get(), qpn)
            };
            if let Some(completion) = receiver.receive_tagged(wqe, length, finished).flatten() {
                completion.finish(Ok(()));
            }
            return 1;
        }
        let handle = |message: Option<(u8, Message<'_>)>| match message {
            None => shared.running().count_unhandled(),
            Some((id, message)) => shared.running().dispatch(id, message),
        };
        let (wqe, length) = (u32::from(wqe), am_length(length));
        if !receiver.receive(wqe, length, InBuffer, handle) {
            // SAFETY: as in `take_tagged`.
            receiver.update(unsafe { &*shared.driver.completions.get() });
            receiver.receive(wqe, length, InBuffer, handle);
        }
        1
    }

    /// A tagged message that matches no receive.
    fn take_unexpected(&self, matching: &Matching, Plain { wqe, length, .. }: Plain) {
        let shared = &*self.0;
        if shared.closing.get() > 0 && self.is_of_stopped() {
            return matching.receiver.discard(wqe);
        }
        let qpn = shared.last_qpn();
        let handled = matching.receiver.receive_tagged(wqe, length, |header, message| {
            match TagOpcode::from_bits(header.opcode) {
                Some(TagOpcode::Eager) => {
                    matching.notify(|handler| handler.unexpected(qpn, &header, message)).is_some()
                }
                Some(TagOpcode::Rendezvous) => {
                    let Some(endpoint) = shared.endpoint_of(qpn) else { return false };
                    let data = message.data();
                    matching.notify(|handler| handler.announced(endpoint, &header, data))
                        == Some(true)
                }
                _ => false,
            }
        });
        if handled != Some(true) {
            shared.running().count_unhandled();
        }
        // SAFETY: as in `take_tagged`.
        matching.receiver.check_backlog(unsafe { &*shared.driver.completions.get() });
    }

    /// A receive WQE or an operation on the list that failed.
    #[cold]
    #[inline(never)]
    fn take_failure(&self, matching: &Matching) {
        let shared = &*self.0;
        // SAFETY: as in `take_tagged`.
        let event = Completion::from(&unsafe { &*shared.driver.completions.get() }.last_cqe());
        match event.kind {
            CompletionKind::ReceiveError(error) => {
                matching.receiver.discard(event.wqe_counter);
                shared.with_endpoint_of(event.qpn, |state| {
                    state.fail_receive(failure::error(error));
                });
            }
            CompletionKind::SendError(error) => {
                let error = failure::error(error);
                tracing::error!(%error, "the list of tags has failed");
                matching.end_all(error);
            }
            // This transport sends none of these; still, the WQE is consumed.
            CompletionKind::ReceiveImmediate(_) | CompletionKind::WriteImmediate(_) => {
                matching.receiver.discard(event.wqe_counter);
            }
            CompletionKind::ReceiveInvalidate(key) => {
                shared.domain.revoked().note(key);
                matching.receiver.discard(event.wqe_counter);
            }
            _ => {}
        }
    }

    /// Returns whether the message that was taken last is of a closed endpoint.
    #[cold]
    fn is_of_stopped(&self) -> bool {
        let mut stopped = false;
        self.0.with_endpoint_of(self.0.last_qpn(), |state| stopped = state.is_stopped());
        stopped
    }

    /// Finishes what failed outside of progress, and reports to the device which messages were
    /// processed. Called by progress when there may be more to do than taking completions.
    pub(in super::super) fn settle_tags(&mut self) {
        let shared = &*self.0;
        let Some(matching) = &shared.driver.tags else { return };
        if !matching.ended.get() && shared.domain.failure().is_some() {
            matching.end_all(OperationError { cause: Cause::DeviceFailed, syndrome: None });
        }
        matching.finish_failed();
        if !matching.ended.get() && matching.is_behind() {
            // SAFETY: as in `take_tagged`.
            let settled = unsafe { &*shared.driver.completions.get() }.is_empty();
            if settled && matching.with_list(TagList::synchronize).is_ok() {
                matching.synchronizing.set(true);
            } else {
                shared.call_attention();
            }
        }
    }
}

impl Matching {
    /// Passes the report of an entry to the handler.
    fn apply(&self, shared: &Shared, report: TagReport) {
        match report {
            TagReport::Matched { entry, header } => {
                let Some(place) = self.receives.get(usize::from(entry)) else { return };
                let found = place.get();
                let (tag, immediate) = (header.tag.get(), header.application.get());
                place.set(Receive { phase: Phase::Matched { tag, immediate }, ..found });
                if !found.silent && found.phase != Phase::Free {
                    self.notify(|handler| handler.matched(found.context, tag));
                }
            }
            TagReport::Arrived { entry, header, length, .. } => {
                let Some(found) = self.take(entry).filter(|found| !found.silent) else { return };
                let (tag, immediate) = match (header, found.phase) {
                    (Some(header), _) => (header.tag.get(), header.application.get()),
                    (None, Phase::Matched { tag, immediate }) => (tag, immediate),
                    (None, _) => (0, 0),
                };
                let (context, length) = (found.context, length as usize);
                let queue_pair = shared.last_qpn();
                let received = Received { context, queue_pair, tag, immediate, length };
                self.notify(|handler| handler.received(received));
            }
            TagReport::Announced { entry, header, length } => {
                let Some(found) = self.take(entry).filter(|found| !found.silent) else { return };
                let (context, length) = (found.context, length as usize);
                match shared.endpoint_of(shared.last_qpn()) {
                    Some(endpoint) => {
                        self.notify(|handler| handler.not_read(context, endpoint, &header, length));
                    }
                    None => self.end(found, Cause::Flushed),
                }
            }
            TagReport::Cancelled { entry, .. } => {
                if let Some(found) = self.take(entry) {
                    self.end(found, Cause::Flushed);
                }
            }
            TagReport::Removed(entry) => {
                if let Some(found) = self.take(entry) {
                    self.end(found, Cause::Canceled);
                }
            }
            TagReport::Synchronized => self.synchronizing.set(false),
            // The receive ends with its message.
            _ => {}
        }
    }

    fn end(&self, receive: Receive, cause: Cause) {
        if !receive.silent {
            let error = OperationError { cause, syndrome: None };
            self.notify(|handler| handler.ended(receive.context, error));
        }
    }

    /// Finishes the rendezvous whose endpoint has ended.
    fn finish_failed(&self) {
        let failed = self.announced.borrow_mut().take_failed();
        let mut panics = Panics::default();
        for (completion, error) in failed {
            panics.catch(|| completion.finish(Err(error)));
        }
    }

    /// Ends everything: the interface is closed.
    pub(in super::super) fn close(&self) {
        self.announced.borrow_mut().fail(None, OperationError::CANCELED);
        let mut panics = Panics::default();
        panics.catch(|| self.finish_failed());
        panics.catch(|| self.end_all(OperationError::CANCELED));
        drop(self.handler.take());
    }
}

impl Shared {
    /// The queue pair of the completion that was taken last.
    #[inline(always)]
    fn last_qpn(&self) -> u32 {
        // SAFETY: only `Progress` calls this, and polls the queue. The reference ends with this
        // statement, which runs no user code.
        unsafe { &*self.driver.completions.get() }.last().qpn()
    }

    /// Runs `run` with the endpoint that has the queue pair `qpn`, if there is one.
    fn with_endpoint_of(&self, qpn: u32, run: impl FnOnce(&State)) {
        let endpoints = self.core.endpoints.borrow();
        let found = endpoints.iter().find(|state| {
            let number = state.driver.tags.as_ref().map(|end| end.number());
            state.own.qpn == qpn || number == Some(qpn)
        });
        let found = found.cloned();
        drop(endpoints);
        if let Some(state) = found {
            run(&state);
        }
    }

    /// Returns the endpoint that has the queue pair `qpn`, unless it is closed.
    fn endpoint_of(&self, qpn: u32) -> Option<Endpoint> {
        let mut endpoint = None;
        self.with_endpoint_of(qpn, |state| {
            if state.handles().is_some_and(|handles| handles.get() > 0) {
                endpoint = state.me.upgrade().map(Endpoint::handle);
            }
        });
        endpoint
    }
}

impl State {
    /// Fails the rendezvous that the endpoint announced.
    pub(in super::super) fn fail_announced(&self, error: OperationError) {
        if let Some(matching) = &self.shared.driver.tags {
            let mut announced = matching.announced.borrow_mut();
            announced.fail(Some(self.own.qpn), error);
            if announced.has_failed() {
                self.shared.call_attention();
            }
        }
    }
}
