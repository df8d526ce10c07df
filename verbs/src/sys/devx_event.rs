//! Event channels for objects created by commands.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use barewire_mlx5dv_sys::{
    MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA, mlx5_ib_uapi_devx_async_event_hdr,
    mlx5dv_devx_event_channel,
};

use super::event::{nonblocking, none_yet};
use super::{Devx, DevxObject, status};

/// A channel of DEVX events, closed when dropped. Its descriptor is non-blocking.
pub(crate) struct DevxChannel {
    channel: NonNull<mlx5dv_devx_event_channel>,
    devx: Devx,
}

// SAFETY: the pointer refers to a structure that holds a file descriptor and that libmlx5 does not
// modify. The kernel serialises accesses to the descriptor, and any thread may close the channel,
// once, in `drop`.
unsafe impl Send for DevxChannel {}
// SAFETY: methods with `&self` read the descriptor from a structure that is not modified, and make
// system calls on it, which the kernel serialises.
unsafe impl Sync for DevxChannel {}

impl Devx {
    /// Creates a channel that delivers cookies, without the entries of the device's event queue.
    pub(crate) fn event_channel(&self) -> io::Result<DevxChannel> {
        let flags = MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA;
        // SAFETY: `self` holds the context open, and the channel keeps a clone of it.
        let channel = unsafe {
            self.library().functions.mlx5dv_devx_create_event_channel(self.context().raw(), flags)
        };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        let channel = DevxChannel { channel, devx: self.clone() };
        nonblocking(channel.descriptor())?;
        Ok(channel)
    }
}

impl DevxChannel {
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the channel, which is open as long as `self` is
        // borrowed.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Subscribes to events of one type of `object`, with `cookie`, until the object is destroyed.
    pub(crate) fn subscribe(
        &self,
        object: &DevxObject,
        mut event_type: u16,
        cookie: u64,
    ) -> io::Result<()> {
        // SAFETY: `self` and `object` are alive during the call. `event_type` is a list of one
        // event type, and its size in bytes is passed.
        status(unsafe {
            self.devx.library().functions.mlx5dv_devx_subscribe_devx_event(
                self.channel.as_ptr(),
                object.raw(),
                size_of_val(&event_type) as u16,
                &raw mut event_type,
                cookie,
            )
        })
    }

    /// Returns the cookie of the next event, or `None` if there is none.
    pub(crate) fn next(&self) -> io::Result<Option<u64>> {
        let mut event = mlx5_ib_uapi_devx_async_event_hdr::default();
        // SAFETY: the channel is open, and the buffer has room for the cookie, which is all that a
        // channel of this kind delivers.
        let read = unsafe {
            let channel = self.channel.as_ptr();
            self.devx.library().functions.mlx5dv_devx_get_event(
                channel,
                &raw mut event,
                size_of_val(&event),
            )
        };
        if read < 0 {
            return none_yet(io::Error::last_os_error());
        }
        Ok(Some(event.cookie))
    }
}

impl Drop for DevxChannel {
    fn drop(&mut self) {
        // SAFETY: the channel was created by libmlx5, and `drop` is the only place that destroys
        // it.
        unsafe {
            self.devx.library().functions.mlx5dv_devx_destroy_event_channel(self.channel.as_ptr());
        }
    }
}
