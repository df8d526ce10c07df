//! Events of objects that commands made, by a descriptor.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::devx::{Devx, Object};
use crate::sys::DevxChannel;

/// The type of a completion queue's events in event queue entries. linux mlx5/device.h: `MLX5_EVENT_TYPE_COMP`.
const COMPLETION: u16 = 0;

/// Where events of objects that commands made arrive. Its descriptor is readable when there is one, for poll and epoll.
/// mlx5dv.h: `mlx5dv_devx_create_event_channel`.
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
    /// A new channel.
    ///
    /// # Errors
    /// If the kernel has none of these channels, or there are too many descriptors.
    pub fn new(devx: &Devx) -> io::Result<Self> {
        devx.handle().event_channel().map(Self)
    }

    /// Has completions of `queue`, which CREATE_CQ made, be told here with `cookie`: once for each time that the queue is armed by its doorbell.
    ///
    /// # Errors
    /// If the object is not a completion queue of the same context.
    pub fn subscribe_completions(&self, queue: &Object, cookie: u64) -> io::Result<()> {
        self.0.subscribe(queue.handle(), COMPLETION, cookie)
    }

    /// The cookie of the next event, if there is one; does not wait.
    ///
    /// # Errors
    /// If the device is gone.
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
