//! Readiness of several descriptors: epoll(7), level-triggered.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Readable when one of its descriptors is.
#[derive(Debug)]
pub(super) struct Epoll(OwnedFd);

impl Epoll {
    /// Creates one for these descriptors.
    pub(super) fn new(descriptors: &[BorrowedFd<'_>]) -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked.
        let events = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if events < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        let epoll = Self(unsafe { OwnedFd::from_raw_fd(events) });
        descriptors.iter().try_for_each(|descriptor| epoll.add(descriptor.as_raw_fd()))?;
        Ok(epoll)
    }

    /// Adds a descriptor.
    pub(super) fn add(&self, descriptor: RawFd) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: descriptor as u64 };
        // SAFETY: `event` is live; the kernel only reads it.
        let added = unsafe {
            libc::epoll_ctl(self.descriptor(), libc::EPOLL_CTL_ADD, descriptor, &raw mut event)
        };
        if added < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Removes a descriptor that is about to be closed: a forked child may have it, too, so that
    /// closing it here does not end its events.
    pub(super) fn remove(&self, descriptor: RawFd) {
        let none = std::ptr::null_mut();
        // SAFETY: this operation ignores the pointer (epoll_ctl(2)).
        unsafe { libc::epoll_ctl(self.descriptor(), libc::EPOLL_CTL_DEL, descriptor, none) };
    }

    /// Returns the readable descriptor with the lowest `rank`; those without one do not count.
    pub(super) fn ready(&self, rank: impl Fn(RawFd) -> Option<usize>) -> Option<RawFd> {
        /// More than the descriptors without a rank. If more are readable, the kernel returns the
        /// others next time.
        const MOST: usize = 8;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST];
        // SAFETY: the array is live and has this length.
        let count = unsafe {
            libc::epoll_wait(self.descriptor(), events.as_mut_ptr(), MOST as libc::c_int, 0)
        };
        let found = events.iter().take(count.max(0) as usize).map(|event| event.u64 as RawFd);
        found.filter_map(|fd| rank(fd).map(|rank| (rank, fd))).min().map(|(_, fd)| fd)
    }

    fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
