//! Asynchronous events: what happens to a device and its objects unasked.
#![allow(unsafe_code, reason = "which member of the event counts follows from its kind")]

use std::fmt;
use std::os::fd::BorrowedFd;

use crate::completion::CompletionQueueId;
use crate::shared_receive::SharedReceiveQueueId;
use crate::sys::AsyncEvent;
use crate::{Context, Error};

/// What happened, and to what. verbs.h: `enum ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// The completion queue has overrun, or failed.
    CompletionQueueError(CompletionQueueId),
    /// A queue pair went into error. The number is its own.
    QueuePairFatal(u32),
    /// The peer's request to a queue pair was not valid.
    QueuePairRequest(u32),
    /// The peer's request to a queue pair was one that it has no right to.
    QueuePairAccess(u32),
    /// A queue pair that is ready to receive has received.
    Established(u32),
    /// The send queue is drained.
    SendDrained(u32),
    /// The path has moved to the alternate one.
    PathMigrated(u32),
    /// The path could not move.
    PathMigrationFailed(u32),
    /// A queue pair in error has given back its last request of a shared receive queue.
    LastRequestReached(u32),
    /// The shared receive queue failed.
    SharedReceiveError(SharedReceiveQueueId),
    /// The shared receive queue has fewer requests than its limit, which is now none.
    SharedReceiveLimit(SharedReceiveQueueId),
    /// The port carries traffic.
    PortActive(u8),
    /// The port went down.
    PortError(u8),
    /// The port has another LID.
    LidChanged(u8),
    /// The port's partition table changed.
    PartitionsChanged(u8),
    /// The subnet manager changed.
    SubnetManagerChanged(u8),
    /// The subnet manager asks for registering anew.
    ReregisterAsked(u8),
    /// The port's GID table changed.
    GidsChanged(u8),
    /// The device is out of order: close it.
    DeviceFatal,
    /// A number that is not named here.
    Other(u32),
}

/// An asynchronous event. It is acknowledged when this is dropped: **the destruction of what it is about waits for that**, so
/// drop the event first.
#[must_use = "dropping it acknowledges the event"]
pub struct Event {
    kind: EventKind,
    #[expect(dead_code, reason = "acknowledges")]
    event: AsyncEvent,
}

impl Context {
    /// A descriptor that is readable when there are asynchronous events, for poll and epoll.
    ///
    /// # Errors
    /// If it cannot be made one that does not wait.
    pub fn event_descriptor(&self) -> Result<BorrowedFd<'_>, Error> {
        self.open_context()
            .async_descriptor()
            .map_err(|source| Error::new(self.name(), "prepare for asynchronous events", source))
    }

    /// The next asynchronous event, if there is one; does not wait. Whatever clone of the context asks first gets it.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn next_event(&self) -> Result<Option<Event>, Error> {
        self.event_descriptor()?;
        let event = self.open_context().next_event();
        let event = event.map_err(|source| Error::new(self.name(), "read asynchronous events", source))?;
        Ok(event.map(|event| Event { kind: decode(&event), event }))
    }
}

fn decode(event: &AsyncEvent) -> EventKind {
    let port = || u8::try_from(event.port()).unwrap_or(u8::MAX);
    let completion_queue = || CompletionQueueId(event.identity());
    let shared_receive = || SharedReceiveQueueId(event.identity());
    // SAFETY: asked for below by the kinds that are about queue pairs only.
    let queue_pair = || unsafe { event.queue_pair() };
    match event.kind() {
        0 => EventKind::CompletionQueueError(completion_queue()),
        1 => EventKind::QueuePairFatal(queue_pair()),
        2 => EventKind::QueuePairRequest(queue_pair()),
        3 => EventKind::QueuePairAccess(queue_pair()),
        4 => EventKind::Established(queue_pair()),
        5 => EventKind::SendDrained(queue_pair()),
        6 => EventKind::PathMigrated(queue_pair()),
        7 => EventKind::PathMigrationFailed(queue_pair()),
        8 => EventKind::DeviceFatal,
        9 => EventKind::PortActive(port()),
        10 => EventKind::PortError(port()),
        11 => EventKind::LidChanged(port()),
        12 => EventKind::PartitionsChanged(port()),
        13 => EventKind::SubnetManagerChanged(port()),
        14 => EventKind::SharedReceiveError(shared_receive()),
        15 => EventKind::SharedReceiveLimit(shared_receive()),
        16 => EventKind::LastRequestReached(queue_pair()),
        17 => EventKind::ReregisterAsked(port()),
        18 => EventKind::GidsChanged(port()),
        other => EventKind::Other(other),
    }
}

impl Event {
    /// What happened, and to what.
    pub fn kind(&self) -> EventKind {
        self.kind
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Event").field(&self.kind).finish()
    }
}
