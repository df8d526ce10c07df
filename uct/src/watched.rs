//! A descriptor for libucs to watch, which stands for several others.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{Timespec, epoll};

/// Events that one call takes from the kernel.
const EVENTS: usize = 64;

/// A set of descriptors with their numbers: readable if one of them is.
pub(crate) struct Watched(OwnedFd);

impl Watched {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    pub(crate) fn add(&self, number: u64, descriptor: impl AsFd) -> io::Result<()> {
        let token = epoll::EventData::new_u64(number);
        Ok(epoll::add(&self.0, descriptor, token, epoll::EventFlags::IN)?)
    }

    /// Sets whether a descriptor of the set makes it readable.
    pub(crate) fn set(&self, number: u64, descriptor: impl AsFd, on: bool) -> io::Result<()> {
        let token = epoll::EventData::new_u64(number);
        let events = if on { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        Ok(epoll::modify(&self.0, descriptor, token, events)?)
    }

    /// Removes a descriptor, which may not be in the set.
    pub(crate) fn remove(&self, descriptor: impl AsFd) {
        let _ = epoll::delete(&self.0, descriptor);
    }

    /// Returns the numbers of readable descriptors, without waiting.
    pub(crate) fn ready(&self) -> Vec<u64> {
        let mut events = Vec::with_capacity(EVENTS);
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interrupted call finds its events the next time.
        let _ = epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events), Some(&none));
        events.iter().map(|event| event.data.u64()).collect()
    }
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Returns the limit of descriptors of the process, divided by `part`.
pub(crate) fn share_of_descriptors(part: u64) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| (limit / part) as usize)
}
