//! The events of single queues, for a program that subscribes to them.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use barewire_layouts::eqe::EventType;

use super::EventChannel;

/// Most events that are kept for a program that does not read them. Later ones are lost.
const MOST: usize = 4096;

/// Events of the queue pairs and completion queues that a program has subscribed to, as the kernel
/// delivers those of objects that the program creates by DEVX (linux devx.c:
/// `devx_event_notifier`). The destruction of a queue ends its subscriptions.
#[derive(Debug)]
pub struct ObjectWatch {
    channel: EventChannel,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The cookie for a type of event of a queue.
    subscribed: HashMap<(EventType, u32), u64>,
    /// The cookies of what has happened.
    cookies: VecDeque<u64>,
}

impl ObjectWatch {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { channel: EventChannel::new()?, inner: Mutex::default() })
    }

    /// Subscribes to events of queue `number`: a completion queue for [`EventType::CqError`], a
    /// queue pair for others. Each is reported as `cookie`.
    pub fn subscribe(&self, event_type: EventType, number: u32, cookie: u64) {
        self.inner().subscribed.insert((event_type, number), cookie);
    }

    /// Takes the cookie of the oldest event, without waiting.
    pub fn next_event(&self) -> Option<u64> {
        let mut inner = self.inner();
        let cookie = inner.cookies.pop_front();
        if inner.cookies.is_empty() {
            self.channel.take();
        }
        cookie
    }

    pub(crate) fn push(&self, event_type: EventType, number: u32) {
        let mut inner = self.inner();
        let Some(&cookie) = inner.subscribed.get(&(event_type, number)) else { return };
        if inner.cookies.len() < MOST {
            inner.cookies.push_back(cookie);
            self.channel.ring();
        }
    }

    /// Ends the subscriptions of a completion queue, or of a queue pair.
    pub(crate) fn end(&self, is_completion_queue: bool, number: u32) {
        let is_other = |event: EventType| (event == EventType::CqError) != is_completion_queue;
        self.inner().subscribed.retain(|&(event, of), _| of != number || is_other(event));
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Readable while there are events.
impl AsFd for ObjectWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscribed_events_arrive_until_the_queue_ends() {
        let watch = ObjectWatch::new().unwrap();
        watch.subscribe(EventType::WqAccess, 7, 1);
        watch.subscribe(EventType::CqError, 7, 2);
        watch.push(EventType::LastWqeReached, 7);
        watch.push(EventType::WqAccess, 8);
        assert_eq!(watch.next_event(), None);
        watch.push(EventType::WqAccess, 7);
        watch.push(EventType::CqError, 7);
        assert_eq!([(); 3].map(|()| watch.next_event()), [Some(1), Some(2), None]);
        watch.end(false, 7);
        watch.push(EventType::WqAccess, 7);
        watch.push(EventType::CqError, 7);
        assert_eq!([(); 2].map(|()| watch.next_event()), [Some(2), None]);
    }
}
