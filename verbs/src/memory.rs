//! Protection domains and registered memory.
#![allow(unsafe_code, reason = "registering memory is a promise that the compiler cannot check")]

use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use bitflags::bitflags;

use crate::hint;
use crate::sys::{Mr, Pd};
use crate::{Context, Error};

bitflags! {
    /// What the device, and peers through it, may do with memory. Local reads are always allowed. verbs.h: `enum ibv_access_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The device may write.
        const LOCAL_WRITE = 1 << 0;
        /// Peers may write; needs [`Self::LOCAL_WRITE`].
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may execute atomics; needs [`Self::LOCAL_WRITE`].
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to it.
        const WINDOW_BIND = 1 << 4;
        /// Pages are not locked: the device asks for them as it goes.
        const ON_DEMAND = 1 << 6;
        /// All of it lies in huge pages.
        const HUGE_PAGES = 1 << 7;
        /// Writes of the device may pass one another on their way to memory. Ignored where the kernel does not know it.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// For libibverbs. Unknown bits are dropped: some change which addresses a key covers.
    pub(crate) fn to_verbs(self) -> u32 {
        self.intersection(Self::all()).bits()
    }
}

/// A protection domain: only what is in the same one works together. Clones are the same domain.
#[derive(Clone)]
pub struct ProtectionDomain(Arc<Pd>);

impl ProtectionDomain {
    /// A new domain of a device.
    ///
    /// # Errors
    /// What the device says.
    pub fn new(context: &Context) -> Result<Self, Error> {
        let domain = Pd::allocate(context.open_context())
            .map_err(|source| Error::new(context.name(), "allocate a protection domain", source))?;
        Ok(Self(Arc::new(domain)))
    }

    pub(crate) fn handle(&self) -> &Arc<Pd> {
        &self.0
    }

    pub(crate) fn device(&self) -> &str {
        self.0.context().name()
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProtectionDomain").field(&self.device()).finish()
    }
}

/// Memory that the device may use. Dropping it deregisters it.
pub struct MemoryRegion {
    region: Mr,
    local_key: u32,
    remote_key: u32,
    address: u64,
    length: usize,
}

impl MemoryRegion {
    /// Registers memory under its own addresses.
    ///
    /// # Safety
    /// Until [`Self::deregister`] has returned `Ok`, `start .. start + length` stays mapped and is accessed by this process only in ways
    /// that tolerate a device which reads and, with `access`, writes it at the same time. Dropping deregisters too, but does not tell
    /// whether it could: a memory window that is bound to the region prevents it.
    ///
    /// # Errors
    /// If the memory is not mapped or may not be locked, or the device refused; the error says what to look at.
    pub unsafe fn register(
        domain: &ProtectionDomain,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Self, Error> {
        // SAFETY: passed on to the caller.
        unsafe { Self::register_at(domain, start, length, start.addr().get() as u64, access) }
    }

    /// Registers memory under other addresses: work requests have `address` for its first byte (an I/O virtual address), which
    /// lies as far into a page as `start` does. 0 counts from the start of a page.
    ///
    /// # Safety
    /// As for [`Self::register`].
    ///
    /// # Errors
    /// As for [`Self::register`].
    pub unsafe fn register_at(
        domain: &ProtectionDomain,
        start: NonNull<u8>,
        length: usize,
        address: u64,
        access: Access,
    ) -> Result<Self, Error> {
        // SAFETY: passed on to the caller.
        let region = unsafe { Mr::register(domain.handle(), start, length, address, access.to_verbs()) };
        let region = region.map_err(|source| {
            let hint = hint::registration(&source, start, address, access, domain.0.context());
            Error::new(domain.device(), format!("register {length} bytes"), source).with_hint(hint)
        })?;
        Ok(Self::new(region, address, length))
    }

    /// Registers `length` bytes from `offset` of a dma-buf, the memory of another device. Work requests have `address` for the first byte,
    /// which lies as far into a page as `offset` does.
    ///
    /// # Safety
    /// As for [`Self::register`], for every mapping of that memory.
    ///
    /// # Errors
    /// If the descriptor is no dma-buf, is shorter, or the device cannot reach it.
    pub unsafe fn register_dmabuf(
        domain: &ProtectionDomain,
        buffer: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        address: u64,
        access: Access,
    ) -> Result<Self, Error> {
        // SAFETY: passed on to the caller.
        let region = unsafe {
            Mr::register_dmabuf(domain.handle(), buffer, offset, length, address, access.to_verbs())
        };
        let region = region.map_err(|source| {
            let hint = hint::dmabuf(&source);
            Error::new(domain.device(), format!("register {length} bytes of a dma-buf"), source)
                .with_hint(hint)
        })?;
        Ok(Self::new(region, address, length))
    }

    fn new(region: Mr, address: u64, length: usize) -> Self {
        let (local_key, remote_key) = region.keys();
        Self { region, local_key, remote_key, address, length }
    }

    /// The key by which this process's work requests name it.
    pub fn local_key(&self) -> u32 {
        self.local_key
    }

    /// The key by which peers name it.
    pub fn remote_key(&self) -> u32 {
        self.remote_key
    }

    /// The address of its first byte in work requests.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Deregisters it. Once it has, the device does not touch the memory any more, and the keys name nothing.
    ///
    /// # Errors
    /// What the device says: the memory must then stay as it is.
    pub fn deregister(&mut self) -> Result<(), Error> {
        self.region
            .deregister()
            .map_err(|source| Error::new(self.region.parents().context().name(), "deregister memory", source))
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("address", &format_args!("{:#x}", self.address))
            .field("length", &self.length)
            .field("remote_key", &format_args!("{:#x}", self.remote_key()))
            .finish_non_exhaustive()
    }
}
