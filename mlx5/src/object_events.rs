//! Events of queue pairs and completion queues that commands created.
//!
//! The kernel delivers them to subscribers only (linux devx.c: `devx_event_notifier`), and libmlx5
//! does not subscribe. So each of these objects is subscribed when it is created.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use barewire_layouts::eqe::EventType;
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::channel::{CommandChannel, DeviceEvent, DeviceEvents, Object, ObjectEvents};
use crate::error::{Error, system};

/// Most events that are kept for a program that does not read them. Later ones are lost.
const MOST: usize = 4096;
/// Most objects that use a channel. The kernel keeps each subscription of a destroyed object until
/// the channel is closed (linux devx.c: `devx_async_event_destroy_uobj`), so that a channel for all
/// objects of a long run would grow without limit.
const MOST_OBJECTS: usize = 1024;

/// The events of a context's objects.
#[derive(Debug)]
pub(crate) struct Hub {
    inner: Mutex<Inner>,
    /// Readable while one of the channels is.
    readable: OwnedFd,
}

#[derive(Debug, Default)]
struct Inner {
    /// The channel that new objects use, and how many have used it.
    newest: Option<(Arc<Source>, usize)>,
    /// All channels. The objects that use one keep it open.
    sources: Vec<Weak<Source>>,
    /// The objects by their cookies without the type of the event. No cookie is used twice, so that
    /// an event of a destroyed object concerns no other with its number.
    objects: HashMap<u64, Arc<Entry>>,
    last: u64,
    watchers: Vec<Weak<Watcher>>,
}

/// A channel for events.
#[derive(Debug)]
struct Source(Box<dyn ObjectEvents>);

/// What is known of an object.
#[derive(Debug)]
struct Entry {
    number: u32,
    /// It holds no WQE of its shared receive queue any more.
    drained: AtomicBool,
}

/// One receiver of all events.
#[derive(Debug)]
struct Watcher {
    events: Mutex<VecDeque<DeviceEvent>>,
    /// Readable while there are events.
    readable: OwnedFd,
}

impl Hub {
    pub(crate) fn new() -> io::Result<Self> {
        let readable = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { inner: Mutex::default(), readable })
    }

    /// Subscribes to what can happen to a queue pair, which may share a receive queue. `None` if
    /// the channel has no such events, or the kernel refuses.
    pub(crate) fn watch_pair(
        self: &Arc<Self>,
        channel: &dyn CommandChannel,
        object: &dyn Object,
        number: u32,
        shares: bool,
    ) -> Option<Watched> {
        use EventType::{LastWqeReached, WqAccess, WqCatastrophic, WqInvalidRequest};
        let events = [WqCatastrophic, WqInvalidRequest, WqAccess, LastWqeReached];
        let events = if shares { &events[..] } else { &events[..3] };
        self.watch(channel, object, number, shares, events)
    }

    /// Subscribes to the errors of a completion queue.
    pub(crate) fn watch_queue(
        self: &Arc<Self>,
        channel: &dyn CommandChannel,
        object: &dyn Object,
        number: u32,
    ) -> Option<Watched> {
        self.watch(channel, object, number, false, &[EventType::CqError])
    }

    fn watch(
        self: &Arc<Self>,
        channel: &dyn CommandChannel,
        object: &dyn Object,
        number: u32,
        shares: bool,
        events: &[EventType],
    ) -> Option<Watched> {
        let refused = |error: &Error| {
            tracing::debug!(%error, number, "the events of a queue are not delivered");
        };
        let mut inner = self.inner();
        let source = self.source(&mut inner, channel).inspect_err(refused).ok()??;
        inner.last += 1;
        let cookie = inner.last;
        let entry = Arc::new(Entry { number, drained: AtomicBool::new(false) });
        inner.objects.insert(cookie, Arc::clone(&entry));
        drop(inner);
        let hub = Arc::clone(self);
        let watched =
            Watched { hub, source, cookie, entry, shares, was_reset: AtomicBool::new(false) };
        for event in events {
            let cookie = cookie << 8 | u64::from(*event as u8);
            watched.source.0.subscribe(object, *event, cookie).inspect_err(refused).ok()?;
        }
        Some(watched)
    }

    /// The channel for one more object; `None` if there are no such channels.
    fn source(
        &self,
        inner: &mut Inner,
        channel: &dyn CommandChannel,
    ) -> Result<Option<Arc<Source>>, Error> {
        if let Some((source, objects)) = &mut inner.newest
            && *objects < MOST_OBJECTS
        {
            *objects += 1;
            return Ok(Some(Arc::clone(source)));
        }
        let Some(opened) = channel.object_events()? else { return Ok(None) };
        // The kernel removes a closed descriptor.
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.readable, opened.descriptor(), data, epoll::EventFlags::IN)
            .map_err(|error| system("watching objects", error))?;
        let source = Arc::new(Source(opened));
        inner.sources.retain(|source| source.strong_count() > 0);
        inner.sources.push(Arc::downgrade(&source));
        inner.newest = Some((Arc::clone(&source), 1));
        Ok(Some(source))
    }

    /// Reads what has arrived.
    pub(crate) fn read(&self) {
        let mut inner = self.inner();
        let Inner { sources, objects, watchers, .. } = &mut *inner;
        for source in sources.iter().filter_map(Weak::upgrade) {
            while let Some(cookie) = source.0.next_event() {
                let Some(entry) = objects.get(&(cookie >> 8)) else { continue };
                let number = entry.number;
                let event = match EventType::from_bits(cookie as u8) {
                    Some(EventType::LastWqeReached) => {
                        entry.drained.store(true, Ordering::Relaxed);
                        continue;
                    }
                    Some(EventType::WqCatastrophic) => DeviceEvent::QueuePairFatal(number),
                    Some(EventType::WqInvalidRequest) => DeviceEvent::QueuePairRequest(number),
                    Some(EventType::WqAccess) => DeviceEvent::QueuePairAccess(number),
                    Some(EventType::CqError) => DeviceEvent::CompletionQueueError(Some(number)),
                    _ => continue,
                };
                watchers.retain(|watcher| watcher.strong_count() > 0);
                for watcher in watchers.iter().filter_map(Weak::upgrade) {
                    watcher.push(event.clone());
                }
            }
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher {
    fn events(&self) -> MutexGuard<'_, VecDeque<DeviceEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: DeviceEvent) {
        let mut events = self.events();
        if events.len() < MOST {
            events.push_back(event);
            // It fails only if the counter is at its maximum: then it is readable.
            let _ = rustix::io::write(&self.readable, &1_u64.to_ne_bytes());
        }
    }

    fn pop(&self) -> Option<DeviceEvent> {
        let mut events = self.events();
        let event = events.pop_front();
        if events.is_empty() {
            // It fails if the counter is 0.
            let _ = rustix::io::read(&self.readable, &mut [0; 8]);
        }
        event
    }
}

/// An object whose events are delivered, until this is dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    hub: Arc<Hub>,
    /// Open as long as the object exists.
    source: Arc<Source>,
    cookie: u64,
    entry: Arc<Entry>,
    shares: bool,
    was_reset: AtomicBool,
}

impl Watched {
    /// Returns whether the queue pair, which is in error, holds no WQE of its shared receive queue
    /// any more, as of the last [`Hub::read`]: all of them have completed. `None` if it shares
    /// none, or if it was reset: an event of before may still be on its way.
    pub(crate) fn is_drained(&self) -> Option<bool> {
        if !self.shares || self.was_reset.load(Ordering::Relaxed) {
            return None;
        }
        Some(self.entry.drained.load(Ordering::Relaxed))
    }

    /// Notes that the queue pair is reset.
    pub(crate) fn reset(&self) {
        self.was_reset.store(true, Ordering::Relaxed);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.hub.inner().objects.remove(&self.cookie);
    }
}

/// The events of a device, its ports, and a context's objects.
#[derive(Debug)]
pub(crate) struct AllEvents {
    device: Box<dyn DeviceEvents>,
    hub: Arc<Hub>,
    watcher: Arc<Watcher>,
    /// Readable while one of these is.
    either: OwnedFd,
}

impl AllEvents {
    pub(crate) fn new(device: Box<dyn DeviceEvents>, hub: Arc<Hub>) -> io::Result<Self> {
        let either = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let watcher = Arc::new(Watcher { events: Mutex::default(), readable });
        for descriptor in [device.descriptor()?, hub.readable.as_fd(), watcher.readable.as_fd()] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&either, descriptor, data, epoll::EventFlags::IN)?;
        }
        hub.inner().watchers.push(Arc::downgrade(&watcher));
        Ok(Self { device, hub, watcher, either })
    }
}

impl DeviceEvents for AllEvents {
    fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.either.as_fd())
    }

    fn next_event(&self) -> Option<DeviceEvent> {
        self.hub.read();
        self.watcher.pop().or_else(|| self.device.next_event())
    }

    fn failure(&self) -> Option<String> {
        self.hub.read();
        while let Some(event) = self.watcher.pop() {
            tracing::warn!(?event, "an event of a queue");
        }
        self.device.failure()
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::channel::soft::Soft;
    use crate::doorbell::BlueFlame;
    use crate::queue::shared_receive::{List, SharedReceiveQueue};
    use crate::{CompletionQueue, Context, ProtectionDomain, RcConfig, RcQueuePair, Uar};

    fn open() -> Context {
        let device = barewire_hca::Device::open(barewire_hca::Config::default()).unwrap();
        Context::open(Soft::new(device)).unwrap()
    }

    #[test]
    #[cfg_attr(miri, ignore = "the device reads files")]
    fn channels_of_many_destroyed_queues_are_closed() {
        let context = open();
        let uar = Uar::allocate(&context).unwrap();
        let hub = Arc::clone(context.object_events().unwrap());
        let create = || CompletionQueue::create(&context, &uar, 64).unwrap();
        let oldest = create();
        for _ in 0..3 * MOST_OBJECTS {
            drop(create());
        }
        let open = || hub.inner().sources.iter().filter(|one| one.strong_count() > 0).count();
        // The newest, and that of the queue that still exists.
        assert_eq!((open(), hub.inner().objects.len()), (2, 1));
        drop(oldest);
        assert_eq!((open(), hub.inner().objects.len()), (1, 0));
    }

    /// Events that have not been read.
    #[derive(Debug)]
    struct Unread(Mutex<VecDeque<u64>>, OwnedFd);

    impl ObjectEvents for Unread {
        fn subscribe(&self, _: &dyn Object, _: EventType, _: u64) -> Result<(), Error> {
            Ok(())
        }

        fn descriptor(&self) -> BorrowedFd<'_> {
            self.1.as_fd()
        }

        fn next_event(&self) -> Option<u64> {
            self.0.lock().unwrap().pop_front()
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "the device reads files")]
    fn an_unread_event_of_a_destroyed_queue_pair_concerns_no_later_one() {
        let context = open();
        let hub = Arc::clone(context.object_events().unwrap());
        let domain = ProtectionDomain::allocate(&context).unwrap();
        let uar = Uar::allocate(&context).unwrap();
        let queue = CompletionQueue::create(&context, &uar, 1024).unwrap();
        let shared = SharedReceiveQueue::<List>::create(&domain, 16, 1).unwrap();
        let create = || {
            let (shared, config) = (Some(&shared), RcConfig::default());
            let pair = RcQueuePair::<BlueFlame, _>::create_sharing(
                &domain, &uar, &queue, &queue, shared, &config,
            );
            (pair.unwrap(), hub.inner().last)
        };
        let (old, of_old) = create();
        drop(old);
        let (pair, cookie) = create();
        let drained = |cookie: u64| cookie << 8 | u64::from(EventType::LastWqeReached as u8);
        for (event, expected) in [(drained(of_old), false), (drained(cookie), true)] {
            let descriptor = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            let source = Source(Box::new(Unread(Mutex::new([event].into()), descriptor)));
            let source = Arc::new(source);
            hub.inner().sources.push(Arc::downgrade(&source));
            assert_eq!(pair.is_drained(), Some(false));
            context.read_queue_events();
            assert_eq!(pair.is_drained(), Some(expected));
        }
    }
}
