//! Asynchronous events of a device and its objects.
#![allow(unsafe_code, reason = "the valid member of the event's union follows from its kind")]

use std::fmt;
use std::os::fd::BorrowedFd;

use crate::completion::CompletionQueueId;
use crate::shared_receive::SharedReceiveQueueId;
use crate::sys::AsyncEvent;
use crate::{Context, Error};

/// The kind of an event, and the object concerned. verbs.h: `enum ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// The completion queue overflowed or failed.
    CompletionQueueError(CompletionQueueId),
    /// A queue pair entered the error state. The value is its number.
    QueuePairFatal(u32),
    /// The peer sent an invalid request to a queue pair.
    QueuePairRequest(u32),
    /// The peer sent a request that a queue pair does not permit.
    QueuePairAccess(u32),
    /// A queue pair in state RTR has received its first packet.
    Established(u32),
    /// The send queue is drained.
    SendDrained(u32),
    /// The connection has migrated to the alternate path.
    PathMigrated(u32),
    /// The connection could not migrate to the alternate path.
    PathMigrationFailed(u32),
    /// A queue pair in the error state has consumed its last request of a shared receive queue.
    LastRequestReached(u32),
    /// The shared receive queue failed.
    SharedReceiveError(SharedReceiveQueueId),
    /// The number of requests in the shared receive queue fell below its limit. The limit is
    /// disabled now.
    SharedReceiveLimit(SharedReceiveQueueId),
    /// The port became active.
    PortActive(u8),
    /// The port went down.
    PortError(u8),
    /// The port's LID changed.
    LidChanged(u8),
    /// The port's partition table changed.
    PartitionsChanged(u8),
    /// The subnet manager changed.
    SubnetManagerChanged(u8),
    /// The subnet manager requests clients to register again.
    ReregisterAsked(u8),
    /// The port's GID table changed.
    GidsChanged(u8),
    /// The device failed and must be closed.
    DeviceFatal,
    /// A kind that this crate does not name.
    Other(u32),
}

/// An asynchronous event. Dropping it acknowledges it. **Destroying the object concerned waits for
/// the acknowledgement**, so drop the event first.
#[must_use = "dropping it acknowledges the event"]
pub struct Event {
    kind: EventKind,
    #[expect(dead_code, reason = "acknowledges the event when dropped")]
    event: AsyncEvent,
}

impl Context {
    /// The file descriptor that is readable when there are asynchronous events, for poll and epoll.
    ///
    /// # Errors
    /// If the descriptor cannot be made non-blocking.
    pub fn event_descriptor(&self) -> Result<BorrowedFd<'_>, Error> {
        self.open_context()
            .async_descriptor()
            .map_err(|source| Error::new(self.name(), "prepare for asynchronous events", source))
    }

    /// Returns the next asynchronous event, or `None` if there is none. Does not block. Each event
    /// is returned once, by whichever clone of the context is called first.
    ///
    /// # Errors
    /// If the device was removed.
    pub fn next_event(&self) -> Result<Option<Event>, Error> {
        self.event_descriptor()?;
        let event = self.open_context().next_event();
        let event =
            event.map_err(|source| Error::new(self.name(), "read asynchronous events", source))?;
        Ok(event.map(|event| Event { kind: decode(&event), event }))
    }
}

fn decode(event: &AsyncEvent) -> EventKind {
    let port = || u8::try_from(event.port()).unwrap_or(u8::MAX);
    let completion_queue = || CompletionQueueId(event.identity());
    let shared_receive = || SharedReceiveQueueId(event.identity());
    // SAFETY: this closure is called below only for the kinds of event that concern a queue pair.
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
    /// The kind of the event, and the object concerned.
    pub fn kind(&self) -> EventKind {
        self.kind
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Event").field(&self.kind).finish()
    }
}
