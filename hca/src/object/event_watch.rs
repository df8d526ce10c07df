//! The asynchronous events of a device, for a program without an event queue.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use barewire_layouts::eqe::{Eqe, EventType};

use super::EventChannel;

/// Most events that are kept for a program that does not read them. Later ones are lost.
const MOST: usize = 4096;

/// Events of a device, its ports and its queues, as the kernel reports them to a program.
#[derive(Debug)]
pub struct EventWatch {
    channel: EventChannel,
    events: Mutex<VecDeque<Eqe>>,
}

impl EventWatch {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { channel: EventChannel::new()?, events: Mutex::default() })
    }

    /// Adds an event. Those of ordinary work are left out, so that none of the others is lost.
    pub(crate) fn push(&self, event_type: EventType, event: Eqe) {
        let is_ordinary = matches!(
            event_type,
            EventType::Completion
                | EventType::CommunicationEstablished
                | EventType::SendQueueDrained
        );
        let mut events = self.events();
        // The failure of the device is never lost.
        let has_room = events.len() < MOST || event_type == EventType::InternalError;
        if !is_ordinary && has_room {
            events.push_back(event);
            self.channel.ring();
        }
    }

    /// Takes the oldest event, without waiting.
    pub fn next_event(&self) -> Option<Eqe> {
        let mut events = self.events();
        let event = events.pop_front();
        if events.is_empty() {
            self.channel.take();
        }
        event
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<Eqe>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Readable while there are events.
impl AsFd for EventWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
