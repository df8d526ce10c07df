//! Readiness of several descriptors: epoll(7), level-triggered.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Readable when one of its descriptors is.
#[derive(Debug)]
pub(super) struct Epoll(OwnedFd);

impl Epoll {
    /// Creates one for these descriptors. A descriptor that is closed is removed.
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

    /// Returns a descriptor that is readable and that `wanted` accepts. In turn, since the kernel
    /// returns those that were returned last behind the others.
    pub(super) fn ready(&self, wanted: impl Fn(RawFd) -> bool) -> Option<RawFd> {
        /// More than the descriptors that are not wanted.
        const MOST: usize = 8;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST];
        // SAFETY: the array is live and has this length.
        let count = unsafe {
            libc::epoll_wait(self.descriptor(), events.as_mut_ptr(), MOST as libc::c_int, 0)
        };
        let found = events.iter().take(count.max(0) as usize);
        found.map(|event| event.u64 as RawFd).find(|&descriptor| wanted(descriptor))
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
