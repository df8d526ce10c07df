//! How connections end: in order, or not.

use std::time::Instant;

use barewire_tcp::message::{Header, Kind};

use super::state::{PendingFailure, State};
use crate::error::{Cause, Operation, OperationError};
use crate::transport::common::gate::Block;

impl State {
    /// The peer closed the connection in order. Who has nothing outstanding is told when he uses it.
    #[cold]
    pub(super) fn on_peer_close(&self) {
        if !self.is_idle() {
            let detail = "it closed the connection before everything had reached it";
            return self.fail(PendingFailure::new(Operation::Unnamed, Cause::Disconnected, detail));
        }
        self.messages.borrow_mut().close(&self.shared.poller, &self.shared.spare);
    }

    /// The last handle is gone, or the interface closes. What is outstanding is finished by [`Self::finish_outstanding`].
    pub(super) fn shut_down(&self, reason: Block) {
        let in_order = self.gate.is_alive();
        self.gate.set(reason, true);
        self.canceled.set(true);
        self.close_connections(in_order);
    }

    /// Ends both connections. `in_order`: if everything was sent, the peer is told that nothing follows.
    pub(super) fn close_connections(&self, in_order: bool) {
        let shared = &*self.shared;
        let (poller, spare) = (&shared.poller, &shared.spare);
        if let Ok(mut messages) = self.messages.try_borrow_mut() {
            if in_order {
                let farewell = Header { kind: Kind::Farewell, length: 0 }.to_bytes();
                let draining = messages.finish(poller, spare, &farewell, Instant::now());
                shared.draining.borrow_mut().extend(draining);
            } else {
                messages.close(poller, spare);
            }
        }
        if let Ok(mut memory) = self.memory.try_borrow_mut()
            && let Some(memory) = memory.as_mut()
        {
            memory.connection.close(poller, spare);
        }
        if let Ok(mut reader) = self.reader.try_borrow_mut() {
            reader.clear();
        }
        self.early.take();
    }

    /// Finishes what is left of a closed endpoint.
    pub(super) fn finish_closed(&self) {
        // A function that packed for a post may have dropped the endpoint.
        self.close_connections(false);
        self.finish_outstanding(OperationError::CANCELED);
    }
}
