//! What a device tells of its objects unasked, kept until whom it concerns asks.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use barewire_verbs::{Context, EventKind, SharedReceiveQueueId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) enum Told {
    /// The queue pair of this number is in error, and takes no more requests from its shared receive queue (IBTA 11.6.3.2).
    LastRequest(u32),
    /// The shared receive queue has fewer requests than its limit.
    Low(SharedReceiveQueueId),
}

/// The events of a device, of which every interface over it sees to its own.
#[derive(Debug, Default)]
pub(super) struct Events(Mutex<HashSet<Told>>);

impl Events {
    /// Whether this was told since it was asked for last. A system call; nothing waits.
    pub(super) fn take(&self, context: &Context, what: Told) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A device that is gone tells nothing more.
        while let Ok(Some(event)) = context.next_event() {
            match event.kind() {
                EventKind::LastRequestReached(qpn) => told.insert(Told::LastRequest(qpn)),
                EventKind::SharedReceiveLimit(id) => told.insert(Told::Low(id)),
                kind => {
                    tracing::debug!(device = context.name(), ?kind, "an event");
                    false
                }
            };
        }
        told.remove(&what)
    }
}
