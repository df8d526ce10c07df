//! The descriptor by which a program waits for events.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::errno::Errno;

/// A duplicate of the program's descriptor, an eventfd, which is readable while it is set. The
/// program may set it to blocking or not, poll it, or close it.
#[derive(Debug)]
pub(super) struct Signal {
    descriptor: OwnedFd,
}

impl Signal {
    /// Creates a descriptor for the program, and the signal of it.
    pub(super) fn new(flags: i32) -> Result<(OwnedFd, Self), Errno> {
        let close = if flags & libc::O_CLOEXEC != 0 { libc::EFD_CLOEXEC } else { 0 };
        let block = if flags & libc::O_NONBLOCK != 0 { libc::EFD_NONBLOCK } else { 0 };
        // SAFETY: no pointers; the result is checked.
        let descriptor = unsafe { libc::eventfd(0, close | block) };
        if descriptor < 0 {
            return Err(Errno::last());
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        let theirs = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let descriptor = theirs.try_clone().map_err(|_| Errno(libc::EMFILE))?;
        Ok((theirs, Self { descriptor }))
    }

    /// Makes the descriptor readable.
    pub(super) fn set(&self) {
        if is_readable(self.descriptor.as_raw_fd(), 0) {
            return;
        }
        let one = 1_u64;
        // SAFETY: reads the eight bytes of a live local. The raw call is not interposed.
        unsafe {
            libc::syscall(
                libc::SYS_write,
                self.descriptor.as_raw_fd(),
                &raw const one,
                size_of_val(&one),
            )
        };
    }

    /// Makes it unreadable.
    pub(super) fn clear(&self) {
        // The descriptor may be blocking.
        if is_readable(self.descriptor.as_raw_fd(), 0) {
            let mut count = 0_u64;
            // SAFETY: writes the eight bytes of a live local.
            unsafe {
                libc::syscall(
                    libc::SYS_read,
                    self.descriptor.as_raw_fd(),
                    &raw mut count,
                    size_of_val(&count),
                )
            };
        }
    }
}

/// Returns whether a descriptor is readable within `milliseconds`. Not a cancellation point.
pub(super) fn is_readable(descriptor: RawFd, milliseconds: i32) -> bool {
    let mut polled = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    let mut time = libc::timespec {
        tv_sec: (milliseconds / 1000).into(),
        tv_nsec: libc::c_long::from(milliseconds % 1000) * 1_000_000,
    };
    // SAFETY: the descriptor's structure and the time are live; no signal mask is passed.
    let ready = unsafe {
        libc::syscall(
            libc::SYS_ppoll,
            &raw mut polled,
            1,
            &raw mut time,
            std::ptr::null::<libc::sigset_t>(),
            0,
        )
    };
    ready > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_readable_while_it_is_set() {
        let (theirs, signal) = Signal::new(libc::O_CLOEXEC).unwrap();
        let readable = || is_readable(theirs.as_raw_fd(), 0);
        assert!(!readable());
        signal.set();
        signal.set();
        assert!(readable());
        signal.clear();
        assert!(!readable());
        signal.clear();
    }
}
