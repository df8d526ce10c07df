//! Waiting for, ordering and giving up what is outstanding.

use barewire_mlx5::{ControlFlags, RcQueuePair};

use super::state::State;
use crate::completion::Completion;
use crate::error::PostError;
use crate::status::{FlushMode, Post, Posted};
use crate::transport::common::gate::Block;
use crate::transport::common::operation::Done;

impl State {
    /// See `Endpoint::flush`.
    pub(super) fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        if mode == FlushMode::Cancel {
            return self.cancel(completion);
        }
        self.gate.check()?;
        if completion.is_some() && !self.in_flight.has_flush_room() {
            return Err(self.gate.refuse());
        }
        if mode == FlushMode::Remote && self.is_dirty() {
            // An acknowledgement says that the peer's device has the data, not that they are in its memory. A read is
            // carried out after the writes before it and its answer pushes them ahead (PCIe ordering), so that
            // what it answers is proof. It reads a word of the peer's interface.
            let (local, remote) = (self.unwanted_result(), self.flush_target.get());
            self.post_own(|queue| queue.read(local, remote, ControlFlags::COMPLETION))?;
            self.note_flush();
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

    /// Sees to it that the last WQE gives a completion: if it does not, a NOP behind it does.
    pub(super) fn signal_last(&self) -> Result<(), PostError> {
        if self.with_pair(|pair| pair.send.last_is_signaled()) {
            return Ok(());
        }
        let clean = !self.is_dirty();
        self.post_own(|queue| queue.nop(ControlFlags::COMPLETION))?;
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
            self.gate.set(Block::Failed, true);
            self.canceled.set(true);
            if !self.gate.has(Block::Unconnected) {
                // Everything outstanding completes as flushed.
                self.with_pair(RcQueuePair::to_error).map_err(|_| PostError::EndpointFailed)?;
            }
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

    /// `flush_all` would succeed.
    pub(super) fn can_flush(&self) -> bool {
        let failed = self.gate.has(Block::Failed);
        let open = failed || self.gate.is_open();
        let signaled = failed || self.has_room() || self.with_pair(|pair| pair.send.last_is_signaled());
        open && signaled && self.in_flight.has_flush_room()
    }

    /// Counts `completion` down when everything outstanding is finished, also on a failed endpoint; after `can_flush`.
    pub(super) fn flush_all(&self, completion: &Completion) -> Result<(), PostError> {
        if !self.gate.has(Block::Failed) {
            self.signal_last()?;
        }
        self.in_flight.push_flush(self.last(), Done::Flushed(completion.clone()));
        Ok(())
    }

    /// What is posted next takes effect after what is outstanding. Writes and sends of a connection are carried out in
    /// order anyway; the fence bit makes them wait for reads and atomics, too (IBTA 10.8.3.3).
    pub(super) fn fence(&self) {
        self.with_pair(|pair| {
            if !pair.send.is_idle() {
                pair.send.fence();
            }
        });
    }
}
