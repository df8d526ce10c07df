//! Waiting for, ordering and giving up what is outstanding.

use barewire_verbs::Data;

use super::state::State;
use crate::completion::Completion;
use crate::error::{Operation, PostError};
use crate::status::{FlushMode, Post, Posted};
use crate::transport::common::gate::Block;
use crate::transport::common::operation::Done;
use crate::transport::rdma::{Pair, read};

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

    fn read_flush_word(&self) -> Result<(), PostError> {
        let (local, (address, key)) = ([self.unwanted_result()], self.flush_target.get());
        self.with_pair(|pair| pair.post(Operation::Flush, read(address, key), Data::Elements(&local), true))
            .map_err(|_| self.gate.refuse())?;
        self.note_flush();
        Ok(())
    }

    /// Sees to it that the last request gives a completion: if it does not, a read behind it does. Verbs have no request that
    /// does nothing.
    pub(super) fn signal_last(&self) -> Result<(), PostError> {
        if self.with_pair(|pair| pair.last_is_signaled()) {
            return Ok(());
        }
        self.read_flush_word()
    }

    fn cancel(&self, completion: Option<&Completion>) -> Post {
        if self.gate.has(Block::Closed) {
            return Err(PostError::Closed);
        }
        if !self.gate.has(Block::Failed) {
            self.gate.set(Block::Failed, true);
            self.canceled.set(true);
            self.stop_receiving();
            if !self.gate.has(Block::Unconnected) {
                // Everything outstanding completes as flushed.
                self.with_pair(|pair| pair.qp().fail()).map_err(|_| PostError::EndpointFailed)?;
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
        let signaled = failed || self.has_room() || self.with_pair(|pair| pair.last_is_signaled());
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
        self.with_pair(Pair::fence);
    }
}
