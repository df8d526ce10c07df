//! Asynchronous events of a device, stored for the interfaces that they concern.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use barewire_verbs::{Context, EventKind};

/// The events of a device, for every interface on it.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Queue pairs in error that took their last request from a shared receive queue (IBTA
    /// 11.6.3.2).
    ended: Mutex<HashSet<u32>>,
}

impl Events {
    /// Reads the device's events, in system calls that do not wait.
    pub(super) fn check(&self, context: &Context) {
        // A device that was removed has no more events.
        while let Ok(Some(event)) = context.next_event() {
            match event.kind() {
                EventKind::LastRequestReached(qpn) => drop(self.ended().insert(qpn)),
                kind => tracing::debug!(device = context.name(), ?kind, "an event"),
            }
        }
    }

    /// Returns whether an event read since the last call reports that this queue pair took its last
    /// request.
    pub(super) fn has_ended(&self, qpn: u32) -> bool {
        self.ended().remove(&qpn)
    }

    fn ended(&self) -> MutexGuard<'_, HashSet<u32>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
