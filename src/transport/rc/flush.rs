//! Waiting for, ordering and cancelling what is outstanding.

use super::{Driver, Queue, State};
use crate::completion::Completion;
use crate::error::PostError;
use crate::status::{FlushMode, Post, Posted};
use crate::transport::common::gate::Block;
use crate::transport::common::operation::Done;

impl<D: Driver> State<D> {
    /// See [`Flush::flush`](crate::capability::Flush::flush).
    pub(super) fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        if mode == FlushMode::Cancel {
            return self.cancel(completion);
        }
        self.gate.check()?;
        if completion.is_some() && !self.in_flight.has_flush_room() {
            return Err(self.gate.refuse());
        }
        if mode == FlushMode::Remote && self.is_dirty() {
            // An acknowledgement says that the peer's device has the data, not that they are in its memory.
            // A read is executed after the writes before it, and its response pushes them ahead (PCIe
            // ordering), so that the response is proof. It reads a word of the peer's interface.
            self.read_flush_word()?;
        } else if self.is_idle() {
            return Ok(Posted::Done);
        } else {
            self.signal_last()?;
        }
        if let Some(completion) = completion {
            self.in_flight.push_flush(self.last(), Done::Flushed(completion.clone()));
        }
        Ok(Posted::InProgress)
    }

    /// Ensures that the last post gives a completion: if it does not, a request behind it does.
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
        if self.gate.has(Block::Closed) {
            return Err(PostError::Closed);
        }
        if !self.gate.has(Block::Failed) {
            self.cancel_outstanding()?;
        }
        if self.is_idle() {
            return Ok(Posted::Done);
        }
        if let Some(completion) = completion {
            if !self.in_flight.has_flush_room() {
                return Err(self.gate.refuse());
            }
            self.in_flight.push_flush(self.last(), Done::Canceled(completion.clone()));
        }
        Ok(Posted::InProgress)
    }

    /// [`Self::flush_all`] would succeed.
    pub(super) fn can_flush(&self) -> bool {
        let failed = self.gate.has(Block::Failed);
        let open = failed || self.gate.is_open();
        let signaled = failed || self.has_room() || self.with_queue(|queue| queue.last_is_signaled());
        open && signaled && self.in_flight.has_flush_room()
    }

    /// Counts `completion` down when everything outstanding is finished, also on a failed endpoint. The
    /// caller checked [`Self::can_flush`].
    pub(super) fn flush_all(&self, completion: &Completion) -> Result<(), PostError> {
        if !self.gate.has(Block::Failed) {
            self.signal_last()?;
        }
        self.in_flight.push_flush(self.last(), Done::Flushed(completion.clone()));
        Ok(())
    }

    /// What is posted next takes effect after what is outstanding. Writes and sends of a connection are
    /// executed in order anyway; the fence bit makes them wait for reads and atomics, too (IBTA 10.8.3.3).
    pub(super) fn fence(&self) {
        self.with_queue(|queue| {
            if !queue.is_idle() {
                queue.fence();
            }
        });
    }
}
