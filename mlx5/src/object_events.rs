//! Events of queue pairs and completion queues that commands created.
//!
//! The kernel delivers them to subscribers only (linux devx.c: `devx_event_notifier`), and libmlx5
//! does not subscribe. So each of these objects is subscribed when it is created.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use barewire_layouts::eqe::EventType;
use rustix::event::epoll;

use crate::channel::{DeviceEvent, DeviceEvents, Object, ObjectEvents};
use crate::error::Error;

/// Most events that are kept for a program that does not read them. Later ones are lost.
const MOST: usize = 4096;

/// The events of a context's objects.
#[derive(Debug)]
pub(crate) struct Hub {
    channel: Box<dyn ObjectEvents>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The queue pairs that hold no WQE of their shared receive queue any more.
    drained: BTreeSet<u32>,
    others: VecDeque<DeviceEvent>,
}

impl Hub {
    pub(crate) fn new(channel: Box<dyn ObjectEvents>) -> Self {
        Self { channel, seen: Mutex::default() }
    }

    /// Subscribes to what can happen to a queue pair, which may share a receive queue.
    pub(crate) fn watch_pair(
        self: &Arc<Self>,
        object: &dyn Object,
        number: u32,
        shares: bool,
    ) -> Result<Watched, Error> {
        use EventType::{LastWqeReached, WqAccess, WqCatastrophic, WqInvalidRequest};
        let watched = Watched { hub: Arc::clone(self), number, shares };
        // Of the queue pair that had this number before.
        self.seen().drained.remove(&number);
        for event in [WqCatastrophic, WqInvalidRequest, WqAccess, LastWqeReached] {
            if event != LastWqeReached || shares {
                self.channel.subscribe(object, event, cookie(event, number))?;
            }
        }
        Ok(watched)
    }

    /// Subscribes to the errors of a completion queue.
    pub(crate) fn watch_queue(&self, object: &dyn Object, number: u32) -> Result<(), Error> {
        self.channel.subscribe(object, EventType::CqError, cookie(EventType::CqError, number))
    }

    /// Reads what has arrived.
    fn read(&self) -> MutexGuard<'_, Seen> {
        let mut seen = self.seen();
        while let Some(cookie) = self.channel.next_event() {
            let number = cookie as u32;
            let event = match u8::try_from(cookie >> 32).ok().and_then(EventType::from_bits) {
                Some(EventType::LastWqeReached) => {
                    seen.drained.insert(number);
                    continue;
                }
                Some(EventType::WqCatastrophic) => DeviceEvent::QueuePairFatal(number),
                Some(EventType::WqInvalidRequest) => DeviceEvent::QueuePairRequest(number),
                Some(EventType::WqAccess) => DeviceEvent::QueuePairAccess(number),
                Some(EventType::CqError) => DeviceEvent::CompletionQueueError(Some(number)),
                _ => continue,
            };
            if seen.others.len() < MOST {
                seen.others.push_back(event);
            }
        }
        seen
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cookie(event: EventType, number: u32) -> u64 {
    (event as u64) << 32 | u64::from(number)
}

/// A queue pair whose events are delivered, until this is dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    hub: Arc<Hub>,
    number: u32,
    shares: bool,
}

impl Watched {
    /// Returns whether the queue pair, which is in error, holds no WQE of its shared receive queue
    /// any more: all of them have completed. `None` if it shares none.
    pub(crate) fn is_drained(&self) -> Option<bool> {
        self.shares.then(|| self.hub.read().drained.contains(&self.number))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.hub.channel.unsubscribe(self.number);
        self.hub.seen().drained.remove(&self.number);
    }
}

/// The events of a device, its ports, and a context's objects.
#[derive(Debug)]
pub(crate) struct AllEvents {
    device: Box<dyn DeviceEvents>,
    objects: Arc<Hub>,
    /// Readable while one of the two is.
    either: OwnedFd,
}

impl AllEvents {
    pub(crate) fn new(device: Box<dyn DeviceEvents>, objects: Arc<Hub>) -> io::Result<Self> {
        let either = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for descriptor in [device.descriptor()?, objects.channel.descriptor()] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&either, descriptor, data, epoll::EventFlags::IN)?;
        }
        Ok(Self { device, objects, either })
    }
}

impl DeviceEvents for AllEvents {
    fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.either.as_fd())
    }

    fn next_event(&self) -> Option<DeviceEvent> {
        let object = self.objects.read().others.pop_front();
        object.or_else(|| self.device.next_event())
    }

    fn failure(&self) -> Option<String> {
        let others = std::mem::take(&mut self.objects.read().others);
        for event in others {
            tracing::warn!(?event, "an event of an object");
        }
        self.device.failure()
    }
}
