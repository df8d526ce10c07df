//! Registered memory and its keys, for every driver.
//!
//! A driver implements [`Region`]. Everything above it is shared: owned memory, which is leaked if
//! the device does not release it, memory of the caller, pools of buffers, and keys.

use std::fmt;
use std::mem;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use bitflags::Flags;

use crate::base::address::{Kind, Packed, TransportId};
use crate::base::error::{KeyError, MemoryError, OpenError, Source};
use crate::base::memory::{Access, MemoryConfig, memory_access};
use crate::transport::common::pool::Block;
use crate::transport::{self, common::allocation::Allocation};
use barewire_shared_bytes::SharedBytes;

/// Memory that is registered with a device. Dropping it deregisters it.
pub trait Region: fmt::Debug + Sized {
    /// The protection domain of the driver.
    type Protection;
    /// The transport that packed keys name.
    const KEYS: TransportId;

    /// Registers `length` bytes, at least 1, at `start`. Peers and work requests name the first
    /// byte by `address`.
    ///
    /// # Safety
    /// Until [`Self::deregister`] has returned `Ok`, the bytes stay mapped, and this process
    /// accesses them only in ways that tolerate a device which reads and, as far as `access`
    /// allows, writes them.
    unsafe fn register(
        protection: &Self::Protection,
        start: NonNull<u8>,
        length: usize,
        address: u64,
        config: MemoryConfig,
    ) -> Result<Self, MemoryError>;

    /// Registers the whole address space, on demand: addresses are those of this process.
    ///
    /// # Safety
    /// As [`Self::register`], for all memory that work requests name by the region's keys, which
    /// need be mapped during atomic operations only.
    unsafe fn register_address_space(
        protection: &Self::Protection,
        access: Access,
    ) -> Result<Self, MemoryError>;

    /// Registers `length` bytes at `offset` of a dma-buf, which peers name by the address of
    /// `config`, or by `offset`.
    ///
    /// # Safety
    /// Until [`Self::deregister`] has returned `Ok`, all users of the dma-buf access the bytes only
    /// in ways that tolerate a device which reads and, as far as `config` allows, writes them.
    unsafe fn register_dma_buf(
        protection: &Self::Protection,
        buffer: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        config: MemoryConfig,
    ) -> Result<Self, MemoryError>;

    /// Lets the device request the pages of a range of memory on demand, and waits until it has
    /// them. For other memory, does nothing.
    fn prefetch(&self, range: Range<usize>, write: bool) -> Result<(), MemoryError>;

    /// Deregisters the memory.
    ///
    /// # Errors
    /// [`MemoryError::Deregister`] with `length`, the region's: the device may still access the
    /// memory.
    fn deregister(self, length: usize) -> Result<(), MemoryError>;

    /// Returns the lkey and the rkey.
    fn keys(&self) -> (u32, u32);
}

/// A device and a protection domain.
///
/// # Safety
/// [`Self::protection`] is private to the domain: only transports create queue pairs in it, and no
/// other code posts with its keys or sends commands that name them.
pub unsafe trait Domain {
    /// Memory that is registered in the domain.
    type Region: Region;

    /// The protection domain in which memory is registered.
    fn protection(&self) -> &<Self::Region as Region>::Protection;

    /// The device's name.
    fn device(&self) -> &str;

    /// The tag by which slices name the domain.
    fn tag(&self) -> u32;

    /// Allocates and registers memory.
    fn buffer(
        &self,
        len: usize,
        config: impl Into<MemoryConfig>,
    ) -> Result<Buffer<Self::Region>, MemoryError> {
        Buffer::allocate(self.protection(), len, config.into())
    }

    /// Allocates and registers memory for a pool of buffers.
    ///
    /// # Errors
    /// As [`Self::buffer`].
    fn blocks(&self, len: usize) -> Result<Registered<Self::Region>, MemoryError> {
        self.buffer(len, Access::LOCAL_WRITE).map(Registered)
    }

    /// Returns the error of a device that refused a step of opening something.
    fn refused(&self, step: &'static str, error: impl Into<Source>) -> OpenError {
        refused(self.device(), step, error)
    }
}

impl<D: Domain + Clone + fmt::Debug + Send + Sync + 'static> transport::Domain for D
where
    Memory<D::Region>: transport::Memory,
{
    type Memory = Memory<D::Region>;
    type RemoteKey = RemoteKey;

    fn name(&self) -> &str {
        self.device()
    }

    fn allocate(
        &self,
        len: usize,
        config: impl Into<MemoryConfig>,
    ) -> Result<Self::Memory, MemoryError> {
        Ok(Memory { buffer: self.buffer(len, config)?, tag: self.tag() })
    }

    unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        config: impl Into<MemoryConfig>,
    ) -> Result<Self::Memory, MemoryError> {
        // SAFETY: until `Memory::deregister` returns `Ok`, the caller keeps the bytes mapped and
        // accesses them only through atomics or this API, which tolerate a device (contract of this
        // function). `Memory::deregister` returns `Ok` only after `Buffer::release` has, which is
        // what `Buffer::register` requires.
        let buffer = unsafe { Buffer::register(self.protection(), start, len, config.into()) }?;
        Ok(Memory { buffer, tag: self.tag() })
    }

    fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey, KeyError> {
        RemoteKey::unpack::<D::Region>(bytes)
    }
}

/// Returns the error of a device that refused a step of opening something.
pub(crate) fn refused(device: &str, step: &'static str, error: impl Into<Source>) -> OpenError {
    OpenError::Device { device: device.to_owned(), step, source: error.into() }
}

/// Converts `access` to the flags of a driver, which have the same names. `LOCAL_WRITE` is added
/// wherever peers may write, since the device requires it.
pub(crate) fn device_access<F: Flags>(access: Access) -> F {
    let mut access = access;
    access.set(
        Access::LOCAL_WRITE,
        access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC),
    );
    let mut rights = F::empty();
    for (name, _) in access.iter_names() {
        if let Some(right) = F::from_name(name) {
            rights.insert(right);
        }
    }
    rights
}

/// Registered memory. It owns the memory unless the caller of `Domain::register` does.
#[derive(Debug)]
pub struct Buffer<R: Region> {
    /// `None` after deregistration.
    region: Option<R>,
    bytes: SharedBytes,
    local_key: u32,
    remote_key: u32,
    owned: Option<Allocation>,
}

impl<R: Region> Buffer<R> {
    /// Allocates zeroed, page-aligned memory and registers it.
    fn allocate(
        protection: &R::Protection,
        len: usize,
        config: MemoryConfig,
    ) -> Result<Self, MemoryError> {
        let memory = Allocation::new(len)?;
        // SAFETY: the buffer owns the allocation. It frees the allocation after the device has
        // released it, and leaks it otherwise (`release`). Every access goes through `SharedBytes`
        // or through a pool, whose buffers the device writes only for an operation that holds them.
        let mut buffer = unsafe { Self::register(protection, memory.start(), len, config) }?;
        buffer.owned = Some(memory);
        Ok(buffer)
    }

    /// Registers memory of the caller.
    ///
    /// # Safety
    /// As [`Region::register`], until [`Self::release`] has returned `Ok`.
    unsafe fn register(
        protection: &R::Protection,
        start: NonNull<u8>,
        len: usize,
        config: MemoryConfig,
    ) -> Result<Self, MemoryError> {
        let bytes = config.bytes(start, len)?;
        // SAFETY: until `release` returns `Ok`, the caller keeps the bytes mapped and accesses them
        // as `Region::register` requires (contract of this function). `release` returns `Ok` only
        // after `Region::deregister` has.
        let region = unsafe { R::register(protection, start, len, bytes.address(), config) }?;
        let (local_key, remote_key) = region.keys();
        Ok(Self { region: Some(region), bytes, local_key, remote_key, owned: None })
    }

    /// Address of the first byte.
    #[inline(always)]
    pub(crate) fn address(&self) -> u64 {
        self.bytes.start().addr().get() as u64
    }

    /// The lkey, for work requests of this process.
    #[inline(always)]
    pub(crate) fn local_key(&self) -> u32 {
        self.local_key
    }

    /// The rkey, for peers.
    pub(crate) fn remote_key(&self) -> u32 {
        self.remote_key
    }

    /// Returns the word at `offset`, a multiple of 8, if it lies in the buffer.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> Option<&AtomicU64> {
        // SAFETY: the memory lives as long as `self`: the buffer owns it, or the caller of
        // `register` keeps it mapped until `release` has returned `Ok`.
        unsafe { self.bytes.atomic(offset) }
    }

    /// Deregisters the memory. Owned memory is leaked if the device refuses.
    fn release(&mut self) -> Result<(), MemoryError> {
        let Some(region) = self.region.take() else { return Ok(()) };
        region.deregister(self.bytes.len()).inspect_err(|_| mem::forget(self.owned.take()))
    }
}

impl<R: Region> Drop for Buffer<R> {
    fn drop(&mut self) {
        // `owned` is dropped after this body, unless `release` leaked it.
        if let Err(error) = self.release() {
            tracing::error!("{error}");
        }
    }
}

/// A region registered with the device.
///
/// Dropping it deregisters the key: an operation still in flight then fails with a protection
/// error. The device refuses the deregistration while it is in error or while another object uses
/// the key; allocated memory is then leaked. [`Self::deregister`] returns the refusal, a drop logs
/// it.
#[derive(Debug)]
#[must_use = "dropping the memory deregisters it"]
pub struct Memory<R: Region> {
    buffer: Buffer<R>,
    tag: u32,
}

impl<R: Region> Memory<R> {
    memory_access!();

    /// Wraps memory that `region` keeps, such as memory on a device.
    ///
    /// # Safety
    /// The bytes are alive, and may be accessed as memory that a device writes, until
    /// [`Region::deregister`] is called.
    pub(crate) unsafe fn kept_by(region: R, bytes: SharedBytes, tag: u32) -> Self {
        let (local_key, remote_key) = region.keys();
        let buffer = Buffer { region: Some(region), bytes, local_key, remote_key, owned: None };
        Self { buffer, tag }
    }

    pub(crate) fn bytes(&self) -> &SharedBytes {
        &self.buffer.bytes
    }

    pub(crate) fn local_key(&self) -> u32 {
        self.buffer.local_key
    }

    /// Brings in the pages of a range, which lies inside.
    pub(crate) fn prefetch(&self, range: Range<usize>, write: bool) -> Result<(), MemoryError> {
        self.region().map_or(Ok(()), |region| region.prefetch(range, write))
    }

    /// Returns the region of the driver; `None` after deregistration.
    pub(crate) fn region(&self) -> Option<&R> {
        self.buffer.region.as_ref()
    }

    pub(crate) fn domain(&self) -> u32 {
        self.tag
    }

    /// Deregisters the region. After `Ok` no key and no operation in flight reaches the memory:
    /// allocated memory is freed, and registered memory is under the caller's control again.
    ///
    /// # Errors
    /// [`MemoryError::Deregister`]: the device refused and may still access the memory. Allocated
    /// memory is leaked; registered memory must stay mapped and unused for the life of the process.
    pub fn deregister(mut self) -> Result<(), MemoryError> {
        self.buffer.release()
    }

    /// Returns the bytes from which the peer's `Domain::unpack_key` creates a key.
    pub fn pack_key(&self) -> Vec<u8> {
        Packed::new(Kind::Key, R::KEYS, &self.buffer.remote_key.to_be_bytes()).bytes().to_vec()
    }
}

/// The right to access a region of a peer (rkey).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteKey {
    /// In the byte order of requests, so that no post reverses it.
    big_endian: u32,
}

impl RemoteKey {
    pub(crate) fn new(rkey: u32) -> Self {
        Self { big_endian: rkey.to_be() }
    }

    #[inline(always)]
    pub(crate) fn rkey(self) -> u32 {
        u32::from_be(self.big_endian)
    }

    /// Creates the key from the bytes of the peer's [`Memory::pack_key`].
    pub(crate) fn unpack<R: Region>(bytes: &[u8]) -> Result<Self, KeyError> {
        let packed = Packed::parse(Kind::Key, bytes)?;
        match packed.body() {
            Some(key) if packed.transport() == R::KEYS => Ok(Self::new(u32::from_be_bytes(*key))),
            _ => Err(KeyError::ForeignTransport { expected: R::KEYS, found: packed.transport() }),
        }
    }
}

/// Registered memory that a [`Pool`](crate::transport::common::pool::Pool) divides into buffers. It
/// grants no remote rights: only the local device writes it, and only for an operation that holds
/// the buffer.
#[derive(Debug)]
pub struct Registered<R: Region>(Buffer<R>);

impl<R: Region> Registered<R> {
    pub(crate) fn key(&self) -> u32 {
        self.0.local_key
    }
}

// SAFETY: the memory is zeroed, page-aligned, owned and unmoved. The device writes only the buffer
// that an operation of the transport names, which holds the buffer meanwhile: local access needs
// the key and a queue pair of its protection domain, which only transports have, and no other code
// names the key in a command (contract of `Domain`). Peers have no rights.
unsafe impl<R: Region> Block for Registered<R> {
    fn start(&self) -> NonNull<u8> {
        self.0.bytes.start()
    }

    fn len(&self) -> usize {
        self.0.bytes.len()
    }
}

#[cfg(all(test, feature = "mlx5"))]
mod tests {
    use super::*;

    #[test]
    fn every_access_has_a_right_of_the_driver() {
        for access in Access::all().iter() {
            let written = !access.contains(Access::REMOTE_READ);
            let rights: barewire_mlx5::Access = device_access(access);
            let names: Vec<_> = rights.iter_names().map(|(name, _)| name).collect();
            let own = access.iter_names().map(|(name, _)| name);
            assert!(own.into_iter().all(|name| names.contains(&name)), "{access:?}: {names:?}");
            assert_eq!(names.contains(&"LOCAL_WRITE"), written);
            #[cfg(feature = "verbs")]
            {
                let rights: barewire_verbs::Access = device_access(access);
                assert!(names.iter().copied().eq(rights.iter_names().map(|(name, _)| name)));
            }
        }
        assert!(device_access::<barewire_mlx5::Access>(Access::empty()).is_empty());
    }
}
