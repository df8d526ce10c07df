//! Waiting for and cancelling outstanding operations.

use super::{Driver, Queue, State};
use crate::base::completion::Completion;
use crate::base::error::PostError;
use crate::base::status::{Post, Posted};
use crate::transport::common::operation::Done;
use crate::transport::common::post_state::PostBlock;
use crate::transport::handle::EndpointState as _;

impl<D: Driver> State<D> {
    /// Ensures that a completion covers the last post: if it requested none, posts a request that
    /// does.
    pub(crate) fn signal_last(&self) -> Result<(), PostError> {
        if self.with_queue(|queue| queue.last_is_signaled()) {
            return Ok(());
        }
        if !D::Queue::HAS_NOP {
            return self.read_flush_word();
        }
        let clean = !self.is_dirty();
        self.post_internal(D::Queue::nop)?;
        if clean {
            self.note_flush();
        }
        Ok(())
    }

    pub(super) fn cancel(&self, completion: Option<&Completion>) -> Post {
        if self.posting.has(PostBlock::Closed) {
            return Err(PostError::Closed);
        }
        // The device reports nothing more for what it has executed without a completion. The
        // request that covers it is executed, or flushed.
        if !self.posting.has(PostBlock::Failed) {
            if !self.is_idle() {
                self.signal_last()?;
            }
            self.cancel_outstanding()?;
        } else if !self.is_idle() {
            // On a full queue, requests are outstanding that the device flushes.
            let _ = self.signal_last();
        }
        if self.is_idle() {
            return Ok(Posted::Done);
        }
        if let Some(completion) = completion {
            if !self.in_flight().has_flush_room() {
                return Err(self.posting.refuse());
            }
            self.in_flight().push_flush(self.last(), Done::Canceled(completion.begin()));
        }
        Ok(Posted::InProgress)
    }
}
