//! What a device tells of its queue pairs unasked, kept until whom it concerns asks.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use barewire_verbs::{Context, EventKind};

/// The events of a device, of which every interface over it sees to its own.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Queue pairs in error that took their last request from a shared receive queue (IBTA 11.6.3.2).
    ended: Mutex<HashSet<u32>>,
}

impl Events {
    /// Takes what the device has to tell. A system call; nothing waits.
    pub(super) fn hear(&self, context: &Context) {
        // A device that is gone tells nothing more.
        while let Ok(Some(event)) = context.next_event() {
            match event.kind() {
                EventKind::LastRequestReached(qpn) => drop(self.ended().insert(qpn)),
                kind => tracing::debug!(device = context.name(), ?kind, "an event"),
            }
        }
    }

    /// Whether this queue pair took its last request, as far as was heard since it was asked for last.
    pub(super) fn has_ended(&self, qpn: u32) -> bool {
        self.ended().remove(&qpn)
    }

    fn ended(&self) -> MutexGuard<'_, HashSet<u32>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
