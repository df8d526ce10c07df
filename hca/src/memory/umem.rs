//! User memory: what the device may access at all.

use std::ptr::NonNull;

use bitflags::bitflags;
use thiserror::Error;

use super::paging::pages_of;
use super::presence::Presence;
use super::window::Window;

bitflags! {
    /// What a registration of user memory allows (verbs.h: `IBV_ACCESS_*`, same bits).
    ///
    /// As in a kernel that pins pages, any right to write makes the memory writable for the device;
    /// memory keys grant the rights individually.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct UmemAccess: u32 {
        /// The device writes received data and completions.
        const LOCAL_WRITE = 1 << 0;
        /// Peers write.
        const REMOTE_WRITE = 1 << 1;
        /// Peers read.
        const REMOTE_READ = 1 << 2;
        /// Peers run atomic operations.
        const REMOTE_ATOMIC = 1 << 3;
    }
}

impl UmemAccess {
    /// Whether the device may change the memory.
    pub const fn writable(self) -> bool {
        self.intersects(Self::LOCAL_WRITE.union(Self::REMOTE_WRITE).union(Self::REMOTE_ATOMIC))
    }
}

/// Memory could not be registered or deregistered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UmemError {
    /// The range is empty, wraps around the end of the address space, or exceeds the device's
    /// limit.
    #[error(
        "user memory of {length} bytes at {start:#x} is empty or exceeds what the device can address ({limit} bytes)"
    )]
    BadRange {
        /// Address of the first byte.
        start: usize,
        /// Length in bytes.
        length: usize,
        /// Maximum length of a registration.
        limit: usize,
    },
    /// The device has no number left.
    #[error("the device holds {limit} user memory registrations already; deregister some")]
    NoResources {
        /// Maximum number of registrations.
        limit: usize,
    },
    /// No registration has this number.
    #[error("there is no user memory {id}")]
    Unknown {
        /// The given number.
        id: u32,
    },
    /// The device's engine panicked; its message is on standard error.
    #[error("the device stopped after a panic in its engine; its message is on standard error")]
    Stopped,
    /// The registration has references.
    #[error("user memory {id} is in use by {users} memory keys or queues; destroy them first")]
    Busy {
        /// The given number.
        id: u32,
        /// The number of references.
        users: u32,
    },
}

/// Registered user memory.
#[derive(Debug)]
pub(crate) struct Umem {
    memory: Window,
    pub(super) access: UmemAccess,
    /// Memory keys and queues that refer to it.
    pub(super) users: u32,
    /// Bytes of a page, a power of two; 1 if keys to any address may cover the memory.
    pub(super) page: u64,
    /// The present pages of memory that is paged in on demand, if page faults are reported.
    pub(super) presence: Presence,
}

impl Umem {
    /// # Safety
    /// The contract of `Device::register_umem`, or of `Device::register_umem_on_demand`, holds
    /// until the value is dropped.
    pub(super) unsafe fn new(
        start: NonNull<u8>,
        length: usize,
        access: UmemAccess,
        on_demand: bool,
    ) -> Self {
        // SAFETY: the caller's contract. No window outlives the registration: spans borrow the
        // tables, and a queue's windows count as references, with which the umem is not removed.
        let memory = unsafe {
            if on_demand { Window::on_demand(start, length) } else { Window::new(start, length) }
        };
        Self { memory, access, users: 0, page: 1, presence: Presence::default() }
    }

    /// Returns all of the memory.
    pub(super) fn whole(&self) -> Window {
        self.memory
    }

    /// Returns whether pages of a part are absent, or not there for this access.
    pub(super) fn lacks(&self, window: Window, write: bool) -> bool {
        let pages = pages_of(window.addresses());
        pages.is_none_or(|pages| !self.presence.missing(pages, write).is_empty())
    }

    /// Returns part of the memory; `None` if it is not within.
    pub(super) fn window(&self, offset: u64, length: u64) -> Option<Window> {
        self.memory.slice(usize::try_from(offset).ok()?, usize::try_from(length).ok()?)
    }
}
