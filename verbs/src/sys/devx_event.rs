//! Events of objects that commands made.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use barewire_mlx5dv_sys::{
    MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA, mlx5_ib_uapi_devx_async_event_hdr, mlx5dv_devx_event_channel,
};

use super::event::{nonblocking, none_yet};
use super::{Devx, DevxObject, status};

/// A channel of DEVX events, closed when dropped. Reading does not wait.
pub(crate) struct DevxChannel {
    channel: NonNull<mlx5dv_devx_event_channel>,
    devx: Devx,
}

// SAFETY: the library's description of a descriptor, which it does not change; the kernel locks what is behind it, and any thread may
// close it, once.
unsafe impl Send for DevxChannel {}
// SAFETY: as above.
unsafe impl Sync for DevxChannel {}

impl Devx {
    /// A channel that gives cookies, without the entries of the device's event queue.
    pub(crate) fn event_channel(&self) -> io::Result<DevxChannel> {
        let flags = MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA;
        // SAFETY: the context is open, and the value keeps it so.
        let channel =
            unsafe { self.library().functions.mlx5dv_devx_create_event_channel(self.context().raw(), flags) };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        let channel = DevxChannel { channel, devx: self.clone() };
        nonblocking(channel.descriptor())?;
        Ok(channel)
    }
}

impl DevxChannel {
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the channel's, which is alive.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Has events of a type of the object come with `cookie`, until it is destroyed.
    pub(crate) fn subscribe(&self, object: &DevxObject, mut event_type: u16, cookie: u64) -> io::Result<()> {
        // SAFETY: channel and object are alive; the one event type is as long as said.
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

    /// The cookie of the next event, if there is one.
    pub(crate) fn next(&self) -> io::Result<Option<u64>> {
        let mut event = mlx5_ib_uapi_devx_async_event_hdr::default();
        // SAFETY: the channel is alive; there is room for the cookie, which is all that this channel gives.
        let read = unsafe {
            let channel = self.channel.as_ptr();
            self.devx.library().functions.mlx5dv_devx_get_event(channel, &raw mut event, size_of_val(&event))
        };
        if read < 0 {
            return none_yet(io::Error::last_os_error());
        }
        Ok(Some(event.cookie))
    }
}

impl Drop for DevxChannel {
    fn drop(&mut self) {
        // SAFETY: made by the library, and closed once.
        unsafe {
            self.devx.library().functions.mlx5dv_devx_destroy_event_channel(self.channel.as_ptr());
        }
    }
}
