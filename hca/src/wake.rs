//! The eventfd that ends the sleep of a device's thread.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// An eventfd that wakes a device's thread.
#[derive(Debug)]
pub(crate) struct Wake(OwnedFd);

impl Wake {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Returns the descriptor, which is readable after [`Wake::ring`].
    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Ends the current sleep, or the next one.
    pub(crate) fn ring(&self) {
        let one = 1_u64;
        // SAFETY: reads the eight bytes of a live local. Fails only if the counter is at its
        // maximum, in which case the descriptor is readable already.
        unsafe { libc::write(self.descriptor(), (&raw const one).cast(), size_of_val(&one)) };
    }

    /// Resets the descriptor to not readable.
    pub(crate) fn drain(&self) {
        let mut count = 0_u64;
        // SAFETY: writes the eight bytes of a live local. Fails only if the counter is zero
        // already.
        unsafe { libc::read(self.descriptor(), (&raw mut count).cast(), size_of_val(&count)) };
    }
}
