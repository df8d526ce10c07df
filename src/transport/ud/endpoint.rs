//! The endpoint: waiting, flushing and closing. The messages are in [`message`](super::message).

use std::cell::Cell;
use std::rc::Rc;

use super::interface::Shared;
use super::state::{MAX_FLUSHES, Sent, State};
use super::{Driver, Endpoint};
use crate::base::address::EndpointAddress;
use crate::base::completion::Completion;
use crate::base::error::{Cause, EndpointError, Operation, PostError};
use crate::base::status::{FlushMode, Post, Posted};
use crate::transport::common::message::NO_HANDLER;
use crate::transport::common::pending::PendingQueue;
use crate::transport::common::post_state::{PostBlock, PostState};
use crate::transport::handle::EndpointState;
use crate::transport::reliable::HEADER;

impl<D: Driver> State<D> {
    fn cancel(&self, completion: Option<&Completion>) -> Post {
        if self.posting.has(PostBlock::Closed) {
            return Err(PostError::Closed);
        }
        if !self.posting.has(PostBlock::Failed) {
            self.stop(PostBlock::Failed);
            self.shared.catch_up_later();
        }
        if self.is_idle() {
            return Ok(Posted::Done);
        }
        if let Some(completion) = completion {
            self.flush_later(completion, true);
        }
        Ok(Posted::InProgress)
    }
}

impl<D: Driver> EndpointState for State<D> {
    type Transport = D;

    fn shared(&self) -> &Rc<Shared<D>> {
        &self.shared
    }

    fn posting(&self) -> &PostState {
        &self.posting
    }

    fn pending(&self) -> &PendingQueue<Endpoint<D>> {
        &self.pending
    }

    fn address(&self) -> EndpointAddress {
        self.shared.own.pack_endpoint::<D>(self.name)
    }

    fn error(&self) -> Option<EndpointError> {
        self.error.borrow().clone()
    }

    fn may_wait(&self) -> bool {
        let short =
            !self.has_room() || self.posting.has(PostBlock::Connecting) || !self.can_flush();
        self.posting.is_usable() && (short || !self.pending.is_idle())
    }

    fn handles(&self) -> Option<&Cell<u32>> {
        Some(&self.handles)
    }

    /// Progress finishes the outstanding operations.
    fn close(&self) {
        if !self.shared.core.closed.get() {
            self.stop(PostBlock::Failed);
            self.shared.close_later(self);
        }
    }

    fn is_idle(&self) -> bool {
        self.sender.borrow().is_idle()
    }

    fn can_flush(&self) -> bool {
        self.flushes.borrow().len() < MAX_FLUSHES
    }

    fn flush_all(&self, completion: Option<&Completion>) -> Result<(), PostError> {
        if let Some(completion) = completion {
            self.flush_later(completion, false);
        }
        Ok(())
    }

    /// Sends an empty message, which the peer acknowledges.
    #[cold]
    fn probe(&self) -> Result<(), PostError> {
        if self.has_peer_left() {
            self.fail(Operation::Check, Cause::Disconnected, None);
            return Ok(());
        }
        // The timer of an outstanding message checks the peer.
        if !self.is_idle() {
            return Ok(());
        }
        let socket = &self.shared.socket;
        if !self.has_room() {
            return Err(PostError::NoResource);
        }
        let buffer = socket.take().ok_or(PostError::NoResource)?.into_lease();
        let sent = Sent { buffer, length: HEADER as u16, last: None, completion: None };
        self.transmit(NO_HANDLER, sent, None).map_err(|buffer| {
            socket.retire_buffer(buffer, None);
            PostError::NoResource
        })
    }

    fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        if mode == FlushMode::Cancel {
            return self.cancel(completion);
        }
        self.posting.check()?;
        if self.is_idle() {
            return Ok(Posted::Done);
        }
        if let Some(completion) = completion {
            if !self.can_flush() {
                return Err(self.posting.refuse());
            }
            self.flush_later(completion, false);
        }
        Ok(Posted::InProgress)
    }
}
