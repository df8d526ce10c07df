//! The interrupt of an event queue, as a file descriptor to sleep on.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// The interrupt of an event queue. Its descriptor is readable if the device has written entries
/// since [`EventChannel::take`].
///
/// Unlike a device's interrupt it is never masked: every entry signals it, armed or not, so that no
/// wake-up is lost. To wait, call `take`, consume all entries of the ring, and only then sleep on
/// the descriptor.
#[derive(Debug)]
pub struct EventChannel {
    descriptor: OwnedFd,
}

impl EventChannel {
    /// # Errors
    /// The kernel's error, if no descriptor is left.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        Ok(Self { descriptor: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Signals that an entry was written.
    pub(crate) fn ring(&self) {
        let one = 1_u64;
        // SAFETY: reads the eight bytes of a live local. It fails only if the counter is at its
        // maximum, in which case the descriptor is readable already.
        unsafe { libc::write(self.as_raw_fd(), (&raw const one).cast(), size_of_val(&one)) };
    }

    /// Returns how many entries were signalled since the last call. Does not block.
    pub fn take(&self) -> u64 {
        let mut count = 0_u64;
        // SAFETY: writes the eight bytes of a live local, which stays zero if the counter is zero.
        unsafe { libc::read(self.as_raw_fd(), (&raw mut count).cast(), size_of_val(&count)) };
        count
    }

    /// Sleeps until the descriptor is readable. Returns false if `timeout` passed first. Does not
    /// call `take`.
    ///
    /// # Errors
    /// The kernel's error; a signal ends the sleep with [`io::ErrorKind::Interrupted`].
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let mut descriptor =
            libc::pollfd { fd: self.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let time = timeout.map(|time| libc::timespec {
            tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the descriptor and the optional time live until the call returns; no signal mask
        // is passed.
        match unsafe { libc::ppoll(&raw mut descriptor, 1, time, std::ptr::null()) } {
            ready if ready < 0 => Err(io::Error::last_os_error()),
            ready => Ok(ready > 0),
        }
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_counted_and_taken_once() {
        let channel = EventChannel::new().unwrap();
        assert!(!channel.wait(Some(Duration::ZERO)).unwrap());
        channel.ring();
        channel.ring();
        assert!(channel.wait(None).unwrap());
        assert_eq!((channel.take(), channel.take()), (2, 0));
        assert!(!channel.wait(Some(Duration::from_millis(1))).unwrap());
    }
}
