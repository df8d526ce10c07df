//! Protection domains and registered memory.
#![allow(unsafe_code, reason = "registration has a contract that the compiler cannot check")]

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use bitflags::bitflags;

use crate::hint;
use crate::sys::{Mr, Mw, Pd};
use crate::{Context, Error};

bitflags! {
    /// The access that the device, and peers through it, have to memory. Local reads are always
    /// allowed. verbs.h: `enum ibv_access_flags`.
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
        /// On-demand paging: pages are not locked; the device requests them when it accesses them.
        const ON_DEMAND = 1 << 6;
        /// The memory lies entirely in huge pages.
        const HUGE_PAGES = 1 << 7;
        /// Relaxed ordering: writes of the device may overtake one another. Ignored by kernels that
        /// do not support it.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// The flags for libibverbs. Unknown bits are cleared: some would change the range of addresses
    /// that a key covers.
    pub(crate) fn to_verbs(self) -> u32 {
        self.intersection(Self::all()).bits()
    }
}

/// A protection domain. Objects can be used together only if they belong to the same domain.
/// Cloning returns another handle to the domain.
#[derive(Clone)]
#[must_use = "dropping it frees the domain"]
pub struct ProtectionDomain(Arc<Pd>);

impl ProtectionDomain {
    /// Creates a domain of a device.
    ///
    /// # Errors
    /// The error of libibverbs.
    pub fn new(context: &Context) -> Result<Self, Error> {
        let domain = Pd::allocate(context.open_context())
            .map_err(|source| Error::new(context.name(), "allocate a protection domain", source))?;
        Ok(Self(Arc::new(domain)))
    }

    /// The domain's number in the commands of mlx5 devices. mlx5dv.h: `struct mlx5dv_pd`.
    ///
    /// # Errors
    /// If the device's driver is not libmlx5, or libmlx5 is not installed.
    pub fn number(&self) -> Result<u32, Error> {
        crate::dv::open(self.0.context(), "a protection domain", &*self.0).map(|info| info.pdn)
    }

    pub(crate) fn handle(&self) -> &Arc<Pd> {
        &self.0
    }

    /// Returns whether the device accepts only memory keys with [`Access::RELAXED_ORDERING`]: then
    /// every region gets it. The kernel sets it in a key only if the program asks for it (linux
    /// mr.c: `set_mkc_access_pd_addr_fields`), and reports such devices to no program without DEVX,
    /// so the first call for a device registers a page both ways.
    pub fn requires_relaxed_order(&self) -> bool {
        /// The largest page of a kernel that is common.
        const PAGE: usize = 1 << 16;
        let accepts = |access: Access| {
            let mut memory = vec![0_u8; 2 * PAGE];
            let skip = memory.as_ptr().align_offset(PAGE);
            let Some(page) = memory.get_mut(skip..skip.saturating_add(PAGE)) else { return false };
            let start = NonNull::from(page).cast();
            let address = start.addr().get() as u64;
            // SAFETY: the page stays allocated until the region is deregistered, or for ever. No
            // request names it.
            let region = unsafe { Mr::register(&self.0, start, PAGE, address, access.to_verbs()) };
            let Ok(mut region) = region else { return false };
            if region.deregister().is_err() {
                memory.leak();
            }
            true
        };
        *self.0.context().relaxed().get_or_init(|| {
            !accepts(Access::LOCAL_WRITE) && accepts(Access::LOCAL_WRITE | Access::RELAXED_ORDERING)
        })
    }

    /// The flags for libibverbs of a region with this access.
    pub(crate) fn flags(&self, access: Access) -> u32 {
        let relaxed = self.requires_relaxed_order();
        let required = if relaxed { Access::RELAXED_ORDERING } else { Access::empty() };
        (access | required).to_verbs()
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

/// A memory window: a key that work requests of a queue pair bind to part of a memory region, and
/// invalidate. Dropping it frees the key; a peer that uses the key fails from then on.
#[must_use = "dropping it frees the window"]
pub struct MemoryWindow {
    window: Mw,
    device: String,
}

impl MemoryWindow {
    /// Allocates a window of type 2, which is free. A send of a peer may invalidate it.
    ///
    /// # Errors
    /// The error of libibverbs.
    pub fn allocate(domain: &ProtectionDomain) -> Result<Self, Error> {
        Self::of(domain, false)
    }

    /// Allocates a window of type 1, which is free. No send of a peer invalidates it.
    ///
    /// # Errors
    /// The error of libibverbs.
    pub fn allocate_shared(domain: &ProtectionDomain) -> Result<Self, Error> {
        Self::of(domain, true)
    }

    fn of(domain: &ProtectionDomain, is_shared: bool) -> Result<Self, Error> {
        let device = domain.device().to_owned();
        let window = Mw::allocate(domain.handle(), is_shared)
            .map_err(|source| Error::new(&device, "allocate a memory window", source))?;
        Ok(Self { window, device })
    }

    /// The key with which the window was allocated. Binds choose its low byte.
    pub fn key(&self) -> u32 {
        self.window.key()
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryWindow").field(&self.device).finish()
    }
}

/// A memory region: memory that the device may access. Dropping it deregisters the memory.
#[must_use = "dropping it deregisters the memory"]
pub struct MemoryRegion {
    region: Mr,
    local_key: u32,
    remote_key: u32,
    address: u64,
    length: usize,
    on_demand: bool,
}

impl MemoryRegion {
    /// Registers memory. Work requests use its virtual addresses.
    ///
    /// # Safety
    /// Until [`Self::deregister`] has returned `Ok`, `start .. start + length` must stay mapped,
    /// and this process must access it only in ways that tolerate a device which reads it and, as
    /// far as `access` allows, writes it at the same time. Dropping the region also deregisters it,
    /// but does not report whether that succeeded: a memory window that is bound to the region
    /// prevents it.
    ///
    /// # Errors
    /// If the memory is not mapped or may not be locked, or if the device refuses. The error
    /// contains a hint on the cause.
    pub unsafe fn register(
        domain: &ProtectionDomain,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Self, Error> {
        // SAFETY: the caller guarantees the same contract: the memory stays mapped and tolerates
        // accesses by the device until the region is deregistered.
        unsafe { Self::register_at(domain, start, length, start.addr().get() as u64, access) }
    }

    /// Registers memory under an I/O virtual address: work requests use `address` for its first
    /// byte. `address` and `start` must have the same offset within a page. With address 0, for
    /// which `start` must be page-aligned, work requests use offsets.
    ///
    /// # Safety
    /// The contract of [`Self::register`].
    ///
    /// # Errors
    /// Those of [`Self::register`].
    pub unsafe fn register_at(
        domain: &ProtectionDomain,
        start: NonNull<u8>,
        length: usize,
        address: u64,
        access: Access,
    ) -> Result<Self, Error> {
        // SAFETY: the caller guarantees that the memory stays mapped and tolerates accesses by the
        // device until the region is deregistered, which is the contract of `Mr::register`.
        let region =
            unsafe { Mr::register(domain.handle(), start, length, address, domain.flags(access)) };
        let region = region.map_err(|source| {
            let hint = hint::registration(&source, start, address, access, domain.0.context());
            Error::new(domain.device(), format!("register {length} bytes"), source).with_hint(hint)
        })?;
        let on_demand = access.contains(Access::ON_DEMAND);
        Ok(Self { on_demand, ..Self::new(region, address, length) })
    }

    /// Registers the whole address space of the process, on demand (implicit on-demand paging):
    /// work requests use the virtual addresses of any memory, also of memory that is mapped later.
    ///
    /// # Safety
    /// Until [`Self::deregister`] has returned `Ok`, this process accesses all memory that work
    /// requests name, its own and those of peers with the key, only in ways that tolerate a device
    /// which reads it and, as far as `access` allows, writes it at the same time.
    ///
    /// # Errors
    /// If the device has no implicit on-demand paging.
    pub unsafe fn register_address_space(
        domain: &ProtectionDomain,
        access: Access,
    ) -> Result<Self, Error> {
        let access = access | Access::ON_DEMAND;
        // SAFETY: this function has the contract of `Mr::register_address_space`.
        let region = unsafe { Mr::register_address_space(domain.handle(), domain.flags(access)) };
        let region = region.map_err(|source| {
            Error::new(domain.device(), "register the whole address space", source)
        })?;
        Ok(Self { on_demand: true, ..Self::new(region, 0, usize::MAX) })
    }

    /// Registers `length` bytes at `offset` of a dma-buf, which is memory of another device. Work
    /// requests use `address` for the first byte. `address` and `offset` must have the same offset
    /// within a page.
    ///
    /// # Safety
    /// The contract of [`Self::register`], for all mappings of that memory.
    ///
    /// # Errors
    /// If the descriptor is not a dma-buf, the range is not inside it, or the device cannot access
    /// it.
    pub unsafe fn register_dmabuf(
        domain: &ProtectionDomain,
        buffer: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        address: u64,
        access: Access,
    ) -> Result<Self, Error> {
        let flags = domain.flags(access);
        // SAFETY: the caller guarantees that every mapping of the buffer tolerates accesses by the
        // device until the region is deregistered, which is the contract of `Mr::register_dmabuf`.
        let region =
            unsafe { Mr::register_dmabuf(domain.handle(), buffer, offset, length, address, flags) };
        let region = region.map_err(|source| {
            let hint = hint::dmabuf(&source);
            Error::new(domain.device(), format!("register {length} bytes of a dma-buf"), source)
                .with_hint(hint)
        })?;
        Ok(Self::new(region, address, length))
    }

    pub(crate) fn new(region: Mr, address: u64, length: usize) -> Self {
        let (local_key, remote_key) = region.keys();
        Self { region, local_key, remote_key, address, length, on_demand: false }
    }

    /// The key of the region in work requests of this process.
    pub fn local_key(&self) -> u32 {
        self.local_key
    }

    /// The key of the region in work requests of peers.
    pub fn remote_key(&self) -> u32 {
        self.remote_key
    }

    /// The address of the first byte in work requests.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length of the region in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Lets the device request the pages of `range`, for writes if `write`, and waits until it has
    /// them. For memory that is not [on demand](Access::ON_DEMAND) it does nothing.
    ///
    /// # Errors
    /// If the range does not lie in the region, or the error of libibverbs: writes need
    /// [`Access::LOCAL_WRITE`].
    pub fn prefetch(&self, range: Range<usize>, write: bool) -> Result<(), Error> {
        /// Bytes of one request, whose length has 32 bits.
        const MOST: usize = 1 << 30;
        let failed =
            |source| Error::new(self.region.parents().context().name(), "prefetch memory", source);
        if range.start > range.end || range.end > self.length {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        }
        if !self.on_demand {
            return Ok(());
        }
        for start in range.clone().step_by(MOST) {
            let length = (range.end - start).min(MOST) as u32;
            let address = self.address + start as u64;
            self.region.prefetch(address, length, self.local_key, write).map_err(failed)?;
        }
        Ok(())
    }

    /// Deregisters the memory. After `Ok` the device does not access the memory any more, and the
    /// keys are invalid.
    ///
    /// # Errors
    /// The error of libibverbs. The memory is still registered then.
    pub fn deregister(&mut self) -> Result<(), Error> {
        self.region.deregister().map_err(|source| {
            Error::new(self.region.parents().context().name(), "deregister memory", source)
        })
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
