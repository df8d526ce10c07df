//! Asynchronous events of a device, stored for the interfaces that they concern.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use barewire_verbs::{Context, EventKind};

/// The events of a device, for every interface on it.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Queue pairs in error that took their last request from a shared receive queue (IBTA
    /// 11.6.3.2).
    ended: Mutex<HashSet<u32>>,
    /// The device failed.
    failed: AtomicBool,
}

impl Events {
    /// Reads the device's events, in system calls that do not wait.
    pub(super) fn check(&self, context: &Context) {
        loop {
            let event = match context.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => return,
                // The device was removed.
                Err(_) => return self.failed.store(true, Ordering::Relaxed),
            };
            match event.kind() {
                EventKind::DeviceFatal => self.failed.store(true, Ordering::Relaxed),
                EventKind::LastRequestReached(qpn) => drop(self.ended().insert(qpn)),
                kind => tracing::debug!(device = context.name(), ?kind, "an event"),
            }
        }
    }

    /// Returns whether an event that was read reports the failure of the device.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
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
