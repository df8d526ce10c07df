//! Events of objects created by commands.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::devx::{Devx, Object};
use crate::sys::DevxChannel;

/// The event type of completion queues in event queue entries. linux mlx5/device.h:
/// `MLX5_EVENT_TYPE_COMP`.
const COMPLETION: u16 = 0;

/// Receives events of objects that were created by commands. Its descriptor is readable when there
/// is an event, for poll and epoll. mlx5dv.h: `mlx5dv_devx_create_event_channel`.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use barewire_verbs::dv::EventChannel;
///
/// let context = barewire_verbs::Context::open_devx("mlx5_0")?;
/// let channel = EventChannel::new(&context.devx().ok_or("opened without")?)?;
/// # let queue: barewire_verbs::dv::Object = return Ok(());
/// // `queue` was made by CREATE_CQ, names `Devx::event_queue`, and is armed by its doorbell.
/// channel.subscribe_completions(&queue, 7)?;
/// // When the descriptor is readable:
/// assert_eq!(channel.next_event()?, Some(7));
/// # Ok(())
/// # }
/// ```
pub struct EventChannel(DevxChannel);

impl EventChannel {
    /// Creates a channel.
    ///
    /// # Errors
    /// If the kernel does not support these channels, or the process has no free file descriptor.
    pub fn new(devx: &Devx) -> io::Result<Self> {
        devx.handle().event_channel().map(Self)
    }

    /// Subscribes to the completions of `queue`, which must have been created by CREATE_CQ: reports
    /// an event with `cookie` for each time that the queue is armed by its doorbell.
    ///
    /// # Errors
    /// If the object is not a completion queue of the same context.
    pub fn subscribe_completions(&self, queue: &Object, cookie: u64) -> io::Result<()> {
        self.0.subscribe(queue.handle(), COMPLETION, cookie)
    }

    /// Subscribes to events of a type of `object`, and reports each with `cookie`. The types are
    /// those of event queue entries (linux mlx5/device.h: `MLX5_EVENT_TYPE_...`).
    ///
    /// # Errors
    /// If the kernel does not deliver events of this type (linux devx.c: `is_valid_events`).
    pub fn subscribe(&self, object: &Object, event_type: u16, cookie: u64) -> io::Result<()> {
        self.0.subscribe(object.handle(), event_type, cookie)
    }

    /// Returns the cookie of the next event, or `None` if there is none. Does not block.
    ///
    /// # Errors
    /// If the device was removed.
    pub fn next_event(&self) -> io::Result<Option<u64>> {
        self.0.next()
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel").field("descriptor", &self.as_fd()).finish()
    }
}
