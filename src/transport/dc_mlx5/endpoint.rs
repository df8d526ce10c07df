//! The endpoint: waiting, flushing and closing.

use std::cell::Cell;
use std::rc::Rc;

use super::initiator::Initiator;
use super::interface::Shared;
use super::state::State;
use super::{DcMlx5, Endpoint, address};
use crate::base::address::EndpointAddress;
use crate::base::completion::Completion;
use crate::base::error::{EndpointError, PostError};
use crate::base::status::{FlushMode, Post, Posted};
use crate::transport::common::operation::Done;
use crate::transport::common::pending::PendingQueue;
use crate::transport::common::post_state::{PostBlock, PostState};
use crate::transport::handle::{EndpointState, InterfaceState as _};

impl State {
    fn has_flush_room(&self) -> bool {
        self.held().is_none_or(|initiator| initiator.in_flight.has_flush_room())
    }

    /// Calls `completion` once everything on `initiator` is complete.
    fn flush_later(initiator: &Initiator, completion: &Completion, is_cancel: bool) {
        let counted = completion.begin();
        let done = if is_cancel { Done::Canceled(counted) } else { Done::Flushed(counted) };
        initiator.in_flight.push_flush(initiator.last(), done);
    }

    fn cancel(&self, completion: Option<&Completion>) -> Post {
        if self.posting.has(PostBlock::Closed) {
            return Err(PostError::Closed);
        }
        if completion.is_some() && !self.has_flush_room() {
            return Err(self.posting.refuse());
        }
        let is_first = !self.posting.has(PostBlock::Failed);
        self.posting.set(PostBlock::Failed, true);
        if self.is_idle() {
            return Ok(Posted::Done);
        }
        let Some(initiator) = self.held() else { return Ok(Posted::Done) };
        if is_first && !self.shared.initiators.is_shared() {
            self.canceled.set(true);
            // It is reset before another endpoint gets it.
            initiator.failed.set(true);
            // All outstanding operations complete as flushed. Others' operations are not among
            // them, unless endpoints share the initiator: then these are waited for.
            let failed = initiator.with_queue(super::initiator::Queue::to_error);
            failed.map_err(|_| PostError::EndpointFailed)?;
        }
        if let Some(completion) = completion {
            Self::flush_later(initiator, completion, true);
        }
        Ok(Posted::InProgress)
    }
}

impl EndpointState for State {
    type Transport = DcMlx5;

    fn shared(&self) -> &Rc<Shared> {
        &self.shared
    }

    fn posting(&self) -> &PostState {
        &self.posting
    }

    fn pending(&self) -> &PendingQueue<Endpoint> {
        self.pending()
    }

    fn address(&self) -> EndpointAddress {
        address::endpoint(self.slot)
    }

    fn error(&self) -> Option<EndpointError> {
        self.error()
    }

    fn may_wait(&self) -> bool {
        let short = !self.has_room()
            || self.posting.has(PostBlock::Yielding)
            || self.shared.buffers.is_empty()
            || !self.has_flush_room()
            || self.has_no_credit();
        self.posting.is_usable() && (short || !self.has_no_requests())
    }

    fn handles(&self) -> Option<&Cell<u32>> {
        Some(&self.handles)
    }

    /// The outstanding operations are carried out, and then the endpoint is removed.
    fn close(&self) {
        let shared = &*self.shared;
        if shared.core.closed.get() {
            return;
        }
        self.posting.set(PostBlock::Failed, true);
        shared.closing.set(shared.closing.get() + 1);
        shared.call_attention();
    }

    fn is_idle(&self) -> bool {
        self.is_idle()
    }

    fn can_flush(&self) -> bool {
        self.has_flush_room()
    }

    fn flush_all(&self, completion: Option<&Completion>) -> Result<(), PostError> {
        if let (Some(initiator), Some(completion)) = (self.held(), completion) {
            Self::flush_later(initiator, completion, false);
        }
        Ok(())
    }

    /// Reads the word that remote flushes read. Every post has a completion, so an outstanding one
    /// reports a peer that is dead, unless it is another endpoint's on a shared initiator.
    fn probe(&self) -> Result<(), PostError> {
        let is_shared = self.shared.initiators.is_shared();
        if !is_shared && !self.is_idle() {
            return Ok(());
        }
        if !self.has_room() && !is_shared {
            return Err(PostError::NoResource);
        }
        self.read_flush_word()
    }

    fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        if mode == FlushMode::Cancel {
            return self.cancel(completion);
        }
        self.posting.check()?;
        if completion.is_some() && !self.has_flush_room() {
            return Err(self.posting.refuse());
        }
        if mode == FlushMode::Remote && self.is_dirty() {
            // An acknowledgement means that the peer's device has the data, not that it is in
            // memory. A read is executed after the writes before it, and PCIe ordering makes its
            // response push them to memory. The flush reads a word of the peer's interface.
            self.read_flush_word()?;
        }
        if self.is_idle() {
            return Ok(Posted::Done);
        }
        if let (Some(initiator), Some(completion)) = (self.held(), completion) {
            Self::flush_later(initiator, completion, false);
        }
        Ok(Posted::InProgress)
    }

    /// Orders later posts after outstanding ones. An initiator executes its writes and sends in
    /// order, and all of them are complete before another one is taken; the fence bit makes posts
    /// wait for reads and atomics, too (IBTA 10.8.3.3).
    fn fence(&self) {
        if let Some(initiator) = self.held() {
            initiator.with_queue(|queue| {
                if !queue.send.is_idle() {
                    queue.send.fence();
                }
            });
        }
    }
}
