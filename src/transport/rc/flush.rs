//! Waiting for, ordering and cancelling outstanding operations.

use super::{Driver, Queue, State};
use crate::completion::Completion;
use crate::error::PostError;
use crate::status::{FlushMode, Post, Posted};
use crate::transport::common::operation::Done;
use crate::transport::common::post_state::PostBlock;

impl<D: Driver> State<D> {
    /// See [`Flush::flush`](crate::capability::Flush::flush).
    pub(super) fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        if mode == FlushMode::Cancel {
            return self.cancel(completion);
        }
        self.posting.check()?;
        if completion.is_some() && !self.in_flight.has_flush_room() {
            return Err(self.posting.refuse());
        }
        if mode == FlushMode::Remote && self.is_dirty() {
            // An acknowledgement means that the peer's device has the data, not that it is in
            // memory. A read is executed after the writes before it, and PCIe ordering makes its
            // response push them to memory. The flush reads a word of the peer's interface.
            self.read_flush_word()?;
        } else if self.is_idle() {
            return Ok(Posted::Done);
        } else {
            self.signal_last()?;
        }
        if let Some(completion) = completion {
            self.in_flight.push_flush(self.last(), Done::Flushed(completion.begin()));
        }
        Ok(Posted::InProgress)
    }

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

    fn cancel(&self, completion: Option<&Completion>) -> Post {
        if self.posting.has(PostBlock::Closed) {
            return Err(PostError::Closed);
        }
        if !self.posting.has(PostBlock::Failed) {
            self.cancel_outstanding()?;
        }
        if self.is_idle() {
            return Ok(Posted::Done);
        }
        if let Some(completion) = completion {
            if !self.in_flight.has_flush_room() {
                return Err(self.posting.refuse());
            }
            self.in_flight.push_flush(self.last(), Done::Canceled(completion.begin()));
        }
        Ok(Posted::InProgress)
    }

    /// Returns whether [`Self::flush_all`] would succeed.
    pub(super) fn can_flush(&self) -> bool {
        let failed = self.posting.has(PostBlock::Failed);
        let open = failed || self.posting.is_open();
        let signaled =
            failed || self.has_room() || self.with_queue(|queue| queue.last_is_signaled());
        open && signaled && self.in_flight.has_flush_room()
    }

    /// Lets `completion` wait until everything outstanding is finished, also on a failed endpoint.
    /// The caller has checked [`Self::can_flush`].
    pub(super) fn flush_all(&self, completion: Option<&Completion>) -> Result<(), PostError> {
        if !self.posting.has(PostBlock::Failed) {
            self.signal_last()?;
        }
        if let Some(completion) = completion {
            self.in_flight.push_flush(self.last(), Done::Flushed(completion.begin()));
        }
        Ok(())
    }

    /// Orders later posts after outstanding ones. A connection executes its writes and sends in
    /// order anyway; the fence bit makes them wait for reads and atomics, too (IBTA 10.8.3.3).
    pub(super) fn fence(&self) {
        self.with_queue(|queue| {
            if !queue.is_idle() {
                queue.fence();
            }
        });
    }
}
