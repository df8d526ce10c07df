//! Memory that the device can access, and its keys.
//!
//! A device accesses only memory that an mkey covers, so posting needs no `unsafe`. Memory safety
//! is promised where memory is registered, by [`MemoryRegion::register`], and where commands create
//! mkeys ([`crate::channel::CommandChannel::execute`]). [`Buffer`] owns its memory and is safe.

mod change;
mod device;
mod list_key;
mod view;
mod window;

pub use change::ChangeError;
pub use device::DeviceMemory;
pub use view::{Interleaved, View};
pub use window::Window;

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::BorrowedFd;

use barewire_layouts::wqe::{DataSegment, RemoteAddressSegment};
use barewire_shared_bytes::SharedBytes;

use crate::address::RemoteMemory;
#[cfg(feature = "verbs")]
use crate::backend::region;
use crate::backend::{Backend, commands};
#[cfg(feature = "verbs")]
use crate::context::Context;
use crate::context::{DomainObject, ProtectionDomain};
use crate::error::Error;
pub use crate::pages::{PAGE, Pages};
pub use crate::values::Access;

/// How memory is registered. Rights alone convert to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it describes a registration"]
pub struct MemoryConfig {
    access: Access,
    address: Option<u64>,
    on_demand: bool,
    relaxed_order: bool,
}

impl MemoryConfig {
    /// Memory that WQEs name by its address in this process.
    pub fn new(access: Access) -> Self {
        Self { access, address: None, on_demand: false, relaxed_order: false }
    }

    /// WQEs and peers name the first byte by `address` (IOVA), which must have the same offset in
    /// a page as the memory.
    pub fn at(mut self, address: u64) -> Self {
        self.address = Some(address);
        self
    }

    /// WQEs and peers name bytes by their offsets. The memory must start at a page.
    pub fn zero_based(self) -> Self {
        self.at(0)
    }

    /// The kernel pins no pages: the device requests them when it accesses them (on-demand paging).
    /// Only so may the device write to a file's mapping whose pages the kernel writes back. The
    /// software HCA pins no pages in any case.
    ///
    /// Where [`Capabilities::on_demand`](crate::Capabilities::on_demand) is not set, registration
    /// is refused. DEVX sets it for devices whose page faults name the memory. For others, open the
    /// device with [`SetupWay::InitObj`](crate::setup::SetupWay::InitObj).
    pub fn on_demand(mut self) -> Self {
        self.on_demand = true;
        self
    }

    /// Lets the device's writes to the memory overtake each other on the bus (relaxed ordering of
    /// PCI Express), which some hosts need for full bandwidth. The last byte of a message may then
    /// arrive before the first: only a completion tells that all of it has arrived. Kernels without
    /// this choice ignore it.
    pub fn relaxed_order(mut self) -> Self {
        self.relaxed_order = true;
        self
    }
}

impl From<Access> for MemoryConfig {
    fn from(access: Access) -> Self {
        Self::new(access)
    }
}

/// Registered memory: an address range under an mkey (CREATE_MKEY).
///
/// Dropping the region deregisters it and logs a refusal; [`Self::deregister`] returns the refusal
/// instead. A WQE that still names the region then fails with a protection error.
#[derive(Debug)]
#[must_use = "dropping it deregisters the memory"]
pub struct MemoryRegion {
    start: NonNull<u8>,
    length: usize,
    /// Of the first byte, as WQEs name it.
    address: u64,
    key: u32,
    access: Access,
    registration: Option<Registration>,
    domain: ProtectionDomain,
}

/// An mkey as the protection domain represents it.
#[derive(Debug)]
enum Registration {
    Commands(commands::Key),
    OnDevice(device::OnDevice),
    #[cfg(feature = "verbs")]
    Verbs(barewire_verbs::MemoryRegion),
}

// SAFETY: the region is an address and a key; accesses to the memory are governed by the contract
// of `register`.
unsafe impl Send for MemoryRegion {}
// SAFETY: shared access only reads the address, the length and the key.
unsafe impl Sync for MemoryRegion {}

/// Checks that peers that may write imply that the device may.
fn check_rights(access: Access) -> Result<(), Error> {
    let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    if writes && !access.contains(Access::LOCAL_WRITE) {
        return Err(Error::Rights(access));
    }
    Ok(())
}

/// The error for memory on demand where the device cannot use it.
fn no_paging(backend: &Backend) -> Error {
    let reason = match backend {
        Backend::Commands(_) => {
            "page faults of queues that DEVX creates are not resumed (mem_page_fault is 0): set \
             the device up by init_obj, or register the memory without on_demand"
        }
        #[cfg(feature = "verbs")]
        Backend::InitObj(_) => {
            "the device has no on-demand paging for reliable connections (rc_odp_caps of \
             ibv_devinfo -v): register memory that the kernel can pin, without on_demand"
        }
    };
    Error::Unsupported { what: "memory on demand", reason }
}

impl MemoryRegion {
    /// Registers `length` bytes at `start`.
    ///
    /// # Safety
    /// Until [`Self::deregister`] has returned `Ok` the bytes stay mapped, and this process
    /// accesses them only in ways that tolerate a device that concurrently reads and (with a write
    /// right) writes them: atomically, or while no operation on them is in progress. Posting is
    /// safe and accepts any key, so only the owner of all queue pairs of `domain` and, with remote
    /// rights, of all peers can know whether an operation is in progress.
    ///
    /// # Errors
    /// If the length is zero, write rights contradict each other, the address has another offset
    /// in a page than the memory, or the device or the kernel refused. With a right to write, the
    /// kernel and the software HCA refuse a writable shared mapping of a file (`EFAULT`) that is
    /// neither in tmpfs nor in hugetlbfs, unless it is registered
    /// [on demand](MemoryConfig::on_demand).
    pub unsafe fn register(
        domain: &ProtectionDomain,
        start: NonNull<u8>,
        length: usize,
        config: impl Into<MemoryConfig>,
    ) -> Result<Self, Error> {
        if length == 0 {
            return Err(Error::parameter("region length", 0u32, "at least 1 byte"));
        }
        let config: MemoryConfig = config.into();
        let access = config.access & Access::all();
        let here = start.addr().get() as u64;
        let address = config.address.unwrap_or(here);
        let fits = address.checked_add(length as u64).is_some();
        if !fits || !(address ^ here).is_multiple_of(PAGE as u64) {
            let offset = here % PAGE as u64;
            let wanted = format!("{offset} above a multiple of {PAGE}, and {length} below 2^64");
            return Err(Error::parameter("region address", address, wanted));
        }
        check_rights(access)?;
        let context = domain.context();
        if config.on_demand && !context.capabilities().on_demand {
            return Err(no_paging(context.backend()));
        }
        let (registration, key) = match (context.backend(), domain.object()) {
            (Backend::Commands(channel), DomainObject::Commands { number, .. }) => {
                if access.contains(Access::LOCAL_WRITE) && !config.on_demand {
                    channel.check_pin(start, length)?;
                }
                let variant = context.next_key_variant();
                let wanted = commands::Wanted {
                    domain: *number,
                    address,
                    access,
                    relaxed: config.relaxed_order || context.capabilities().relaxed_keys,
                    variant,
                };
                // SAFETY: this function has the contract of `create_key`.
                let made = unsafe { commands::create_key(&**channel, start, length, wanted) };
                made.map(|(made, key)| (Registration::Commands(made), key))?
            }
            #[cfg(feature = "verbs")]
            (_, DomainObject::Verbs { domain, .. }) => {
                let access = (access, config.on_demand, config.relaxed_order);
                // SAFETY: this function has the contract of `region::register`.
                let made = unsafe { region::register(domain, start, length, address, access) };
                made.map(|(made, key)| (Registration::Verbs(made), key))?
            }
            #[cfg(feature = "verbs")]
            _ => Context::foreign()?,
        };
        Ok(Self {
            start,
            length,
            address,
            key,
            access,
            registration: Some(registration),
            domain: domain.clone(),
        })
    }

    /// Registers the whole address space of the process, on demand: offsets in the region are
    /// addresses of any memory, also of memory that is mapped later. Devices of the machine need
    /// implicit on-demand paging.
    ///
    /// # Safety
    /// Until [`Self::deregister`] has returned `Ok`, this process accesses all memory that WQEs
    /// name by this region's key, its own and those of peers, only in ways that tolerate a device
    /// that concurrently reads and (with a write right) writes it. Memory that an atomic operation
    /// names stays mapped while the operation is executed. Posting is safe and accepts any address,
    /// so only the owner of all queue pairs of `domain` and, with remote rights, of all peers can
    /// know which memory that is.
    ///
    /// # Errors
    /// [`Error::Unsupported`], if write rights contradict each other, or if the device refused.
    pub unsafe fn register_address_space(
        domain: &ProtectionDomain,
        access: Access,
    ) -> Result<Self, Error> {
        let access = access & Access::all();
        check_rights(access)?;
        let context = domain.context();
        let (registration, key) = match (context.backend(), domain.object()) {
            (Backend::Commands(channel), DomainObject::Commands { number, .. }) => {
                let variant = context.next_key_variant();
                let relaxed = context.capabilities().relaxed_keys;
                let wanted =
                    commands::Wanted { domain: *number, address: 0, access, relaxed, variant };
                // SAFETY: this function has the contract of `create_address_space_key`.
                let made = unsafe { commands::create_address_space_key(&**channel, wanted) };
                made.map(|(made, key)| (Registration::Commands(made), key))?
            }
            #[cfg(feature = "verbs")]
            (_, DomainObject::Verbs { domain, .. }) => {
                // SAFETY: this function has the contract of `region::register_address_space`.
                let made = unsafe { region::register_address_space(domain, access) };
                made.map(|(made, key)| (Registration::Verbs(made), key))?
            }
            #[cfg(feature = "verbs")]
            _ => Context::foreign()?,
        };
        Ok(Self {
            start: NonNull::dangling(),
            length: usize::MAX,
            address: 0,
            key,
            access,
            registration: Some(registration),
            domain: domain.clone(),
        })
    }

    /// Registers `length` bytes at `offset` of a dma-buf, memory of another device such as a GPU.
    /// WQEs and peers name the first byte by the address of `config`, or by `offset`; both have the
    /// same offset in a page. [`Self::as_ptr`] is dangling.
    ///
    /// # Safety
    /// Until [`Self::deregister`] has returned `Ok`, all users of the dma-buf access the bytes only
    /// in ways that tolerate a device that concurrently reads and (with a write right) writes them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if commands allocate the domain, as on the software HCA: such domains
    /// register memory of this process only; if the descriptor is no dma-buf, the range is not inside, or the kernel or the device refused.
    pub unsafe fn register_dma_buf(
        domain: &ProtectionDomain,
        buffer: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        config: impl Into<MemoryConfig>,
    ) -> Result<Self, Error> {
        let config: MemoryConfig = config.into();
        let access = config.access & Access::all();
        check_rights(access)?;
        match domain.object() {
            DomainObject::Commands { .. } => {
                let _ = (buffer, offset, length);
                let reason = "domains that commands allocate register memory of this process only";
                Err(Error::Unsupported { what: "registration of dma-bufs", reason })
            }
            #[cfg(feature = "verbs")]
            DomainObject::Verbs { domain: kernel, .. } => {
                let address = config.address.unwrap_or(offset);
                let range = (offset, length);
                // SAFETY: this function has the contract of `region::register_dma_buf`.
                let made =
                    unsafe { region::register_dma_buf(kernel, buffer, range, address, access) };
                let (made, key) = made?;
                Ok(Self {
                    start: NonNull::dangling(),
                    length,
                    address,
                    key,
                    access,
                    registration: Some(Registration::Verbs(made)),
                    domain: domain.clone(),
                })
            }
        }
    }

    /// Address of the first byte, as WQEs and peers name it.
    #[inline]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Pointer to the first byte; dangling for an address space and a dma-buf.
    #[inline]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes, at least 1.
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns `false`: a region has at least one byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The key for WQEs of this process.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.key
    }

    /// The key for a peer, valid for the accesses in [`Self::access`].
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.key
    }

    /// The rights of the key.
    #[inline]
    pub fn access(&self) -> Access {
        self.access
    }

    /// The domain in which it is registered.
    #[inline]
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// A segment of `length` bytes at `offset` for WQEs of this process. `None` if it does not lie
    /// in the region or is longer than a segment can be (2^31 - 1 bytes).
    #[inline]
    pub fn segment(&self, offset: usize, length: usize) -> Option<DataSegment> {
        let end = offset.checked_add(length)?;
        (end <= self.length && length < 1 << 31)
            .then(|| DataSegment::new(self.address() + offset as u64, length as u32, self.key))
    }

    /// The region as a peer addresses it.
    pub fn to_remote(&self) -> RemoteMemory {
        RemoteMemory { address: self.address(), length: self.length as u64, key: self.key }
    }

    /// The remote address of the byte at `offset`, for WQEs of a peer. The offset is not checked:
    /// the device refuses accesses outside the region. [`RemoteMemory::segment`] checks.
    #[inline]
    pub fn remote(&self, offset: usize) -> RemoteAddressSegment {
        RemoteAddressSegment::new(self.address().wrapping_add(offset as u64), self.key)
    }

    /// Lets the device request the pages of `range`, for writes if `write`, and waits until it has
    /// them: for memory [on demand](MemoryConfig::on_demand) of a device of the machine. For other
    /// memory it does nothing.
    ///
    /// # Errors
    /// If the range does not lie in the region, or the kernel refused.
    pub fn prefetch(&self, range: Range<usize>, write: bool) -> Result<(), Error> {
        if range.start > range.end || range.end > self.length {
            let wanted = format!("up to {}", self.length);
            return Err(Error::parameter("end of a range to prefetch", range.end as u64, wanted));
        }
        match &self.registration {
            #[cfg(feature = "verbs")]
            Some(Registration::Verbs(region)) => region
                .prefetch(range, write)
                .map_err(|error| crate::error::system("prefetching memory", error)),
            Some(Registration::Commands(_) | Registration::OnDevice(_)) | None => {
                let _ = write;
                Ok(())
            }
        }
    }

    /// Deregisters the memory. After `Ok` the device does not access it.
    ///
    /// # Errors
    /// If the device still uses the memory, which must then stay mapped for the life of the
    /// process.
    pub fn deregister(mut self) -> Result<(), Error> {
        self.release()
    }

    fn release(&mut self) -> Result<(), Error> {
        match self.registration.take() {
            Some(Registration::Commands(key)) => key.release(),
            Some(Registration::OnDevice(made)) => made.release(),
            #[cfg(feature = "verbs")]
            Some(Registration::Verbs(region)) => region::deregister(region),
            None => Ok(()),
        }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::error!("could not deregister {} bytes: {error}", self.length);
        }
    }
}

/// An offset or length that does not lie in a [`Buffer`].
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{length} bytes at offset {offset} do not lie in a buffer of {size} bytes, or are not aligned"
)]
pub struct OutOfBounds {
    /// Offset of the access.
    pub offset: usize,
    /// Length of the access in bytes.
    pub length: usize,
    /// Size of the buffer in bytes.
    pub size: usize,
}

/// Bytes that a [`Buffer`] can own: a `Vec<u8>`, or the caller's own mapping, such as huge pages,
/// but not every mapping of a file: see [`MemoryRegion::register`].
///
/// # Safety
/// The bytes that [`Self::bytes`] returns stay valid for reads and writes, at the same address,
/// until the value is dropped, whether or not it moves; they are initialised; and nothing accesses
/// them through the value except [`Self::bytes`] and its destructor.
pub unsafe trait OwnedBytes: Send + Sync + 'static {
    /// The first byte, and the number of bytes.
    fn bytes(&mut self) -> (NonNull<u8>, usize);
}

// SAFETY: the heap memory of a vector does not move with it, and its elements are initialised.
unsafe impl OwnedBytes for Vec<u8> {
    fn bytes(&mut self) -> (NonNull<u8>, usize) {
        let length = self.len();
        (NonNull::new(self.as_mut_ptr()).unwrap_or(NonNull::dangling()), length)
    }
}

// SAFETY: the pages are zeroed, and freed by the destructor.
unsafe impl OwnedBytes for Pages {
    fn bytes(&mut self) -> (NonNull<u8>, usize) {
        (self.start(), Pages::bytes(self))
    }
}

/// Registered memory that the buffer owns: zeroed pages of [`Buffer::allocate`] (a plain `Buffer`),
/// or memory of the caller that is passed to [`Buffer::register`] (`Buffer<Vec<u8>>`, for example).
/// A function that takes either is generic in `M`. The memory is freed once the device cannot
/// access it, and leaked if the device does not release it.
///
/// A peer or the device may write the memory at any time, so it is copied to and from, never
/// borrowed. Any thread may copy: accesses to one byte are atomic and of one size
/// ([`SharedBytes`]).
pub struct Buffer<M: OwnedBytes = Pages> {
    region: MemoryRegion,
    bytes: SharedBytes,
    /// `None` after release.
    memory: Option<M>,
}

impl<M: OwnedBytes> fmt::Debug for Buffer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("region", &self.region).finish_non_exhaustive()
    }
}

impl Buffer {
    /// Allocates and registers `length` bytes.
    ///
    /// # Errors
    /// Those of [`MemoryRegion::register`], and [`Error::OutOfMemory`].
    pub fn allocate(
        domain: &ProtectionDomain,
        length: usize,
        config: impl Into<MemoryConfig>,
    ) -> Result<Self, Error> {
        let pages = Pages::allocate(length, "a buffer")?;
        // SAFETY: `release` frees the pages only after the device released them, and leaks them
        // otherwise. Every access goes through the copying methods, which are atomic.
        let region = unsafe { MemoryRegion::register(domain, pages.start(), length, config) }?;
        Ok(Self { region, bytes: SharedBytes::new(pages.start(), length), memory: Some(pages) })
    }
}

impl<M: OwnedBytes> Buffer<M> {
    /// Registers memory of the caller.
    ///
    /// ```
    /// # #[cfg(feature = "soft")] {
    /// # use barewire_mlx5::{Access, Buffer, Context, ProtectionDomain, channel::soft::Soft, hca};
    /// # let context = Context::open(Soft::new(hca::Device::open(hca::Config::default())?))?;
    /// # let domain = ProtectionDomain::allocate(&context)?;
    /// let buffer = Buffer::register(&domain, b"a page".to_vec(), Access::REMOTE_READ)?;
    /// assert_eq!(buffer.load_u8(2)?, b'p');
    /// let vector: Vec<u8> = buffer.into_inner()?;
    /// assert_eq!(vector, b"a page");
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`MemoryRegion::register`]; the memory is then dropped.
    pub fn register(
        domain: &ProtectionDomain,
        mut memory: M,
        config: impl Into<MemoryConfig>,
    ) -> Result<Self, Error> {
        let (start, length) = memory.bytes();
        // SAFETY: the bytes stay valid until `memory` is dropped, which `release` does only after
        // the device released them, and `into_inner` returns it only then. Every access until then
        // goes through the copying methods, which are atomic.
        let region = unsafe { MemoryRegion::register(domain, start, length, config) }?;
        Ok(Self { region, bytes: SharedBytes::new(start, length), memory: Some(memory) })
    }

    /// Deregisters the memory and returns it.
    ///
    /// # Errors
    /// If the device still uses it. The memory is then leaked.
    pub fn into_inner(mut self) -> Result<M, Error> {
        let lacks = || Error::parameter("buffer", 0u32, "a buffer with memory");
        self.take()?.ok_or_else(lacks)
    }

    /// Address, length and keys.
    #[inline]
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Deregisters and frees the memory.
    ///
    /// # Errors
    /// If the device still uses it. The memory is then leaked.
    pub fn deregister(mut self) -> Result<(), Error> {
        self.release()
    }

    fn release(&mut self) -> Result<(), Error> {
        self.take().map(drop)
    }

    /// Deregisters the memory and takes it out; `None` if that was done before. On an error, the
    /// memory is leaked.
    fn take(&mut self) -> Result<Option<M>, Error> {
        let Some(memory) = self.memory.take() else { return Ok(None) };
        let memory = ManuallyDrop::new(memory);
        self.region.release()?;
        Ok(Some(ManuallyDrop::into_inner(memory)))
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`]; then nothing is copied.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.check(offset, bytes.len())?;
        // SAFETY: the range lies in the buffer, which owns its memory.
        unsafe { self.bytes.write(offset, bytes) };
        Ok(())
    }

    /// Copies from `offset` to `bytes`.
    ///
    /// # Errors
    /// [`OutOfBounds`]; then nothing is copied.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        self.check(offset, bytes.len())?;
        // SAFETY: the range lies in the buffer, which owns its memory.
        unsafe { self.bytes.read(offset, bytes) };
        Ok(())
    }

    /// Loads the byte at `offset` with acquire ordering: data that a peer wrote before it is
    /// visible afterwards.
    #[inline]
    pub fn load_u8(&self, offset: usize) -> Result<u8, OutOfBounds> {
        self.check(offset, 1)?;
        // SAFETY: the byte lies in the buffer, which owns its memory.
        Ok(unsafe { self.bytes.load_u8(offset) })
    }

    /// Loads 8 bytes at `offset`, a multiple of 8, with acquire ordering: data that was in memory
    /// before them is visible afterwards. Whether that of an earlier WQE was there before is up to
    /// the device and the host: see [what programs ask].
    ///
    /// [what programs ask]: https://github.com/barewire/barewire/blob/main/docs/guide/embedding.md#what-programs-ask
    #[inline]
    pub fn load_u64(&self, offset: usize) -> Result<u64, OutOfBounds> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    /// Stores 8 bytes at `offset`, a multiple of 8, with release ordering.
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), OutOfBounds> {
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn word(&self, offset: usize) -> Result<&AtomicU64, OutOfBounds> {
        // SAFETY: the buffer owns its memory, which lives as long as `self`.
        unsafe { self.bytes.atomic(offset) }
            .ok_or_else(|| self.out_of_bounds(offset, size_of::<u64>()))
    }

    #[inline]
    fn check(&self, offset: usize, length: usize) -> Result<(), OutOfBounds> {
        if self.bytes.contains(offset, length) {
            Ok(())
        } else {
            Err(self.out_of_bounds(offset, length))
        }
    }

    #[cold]
    fn out_of_bounds(&self, offset: usize, length: usize) -> OutOfBounds {
        OutOfBounds { offset, length, size: self.region.len() }
    }
}

impl<M: OwnedBytes> Drop for Buffer<M> {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::error!(
                "{} bytes are leaked, as the device still uses them: {error}",
                self.region.len()
            );
        }
    }
}
