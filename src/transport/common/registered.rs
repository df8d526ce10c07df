//! Registered memory and its keys, for every driver.
//!
//! A driver has its own [`Region`]. Everything above it is the same: memory that is allocated and leaked
//! if the device does not release it, memory of the caller's, pools of buffers, and keys.

#![expect(private_bounds, reason = "sealed: the drivers are this crate's own")]

use std::fmt;
use std::mem;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use bitflags::Flags;

use crate::address::{Kind, Packed, TransportId};
use crate::error::{KeyError, MemoryError, OpenError, Source};
use crate::memory::{Access, memory_access};
use crate::transport::common::allocation::Allocation;
use crate::transport::common::copy::Bytes;
use crate::transport::common::pool::Block;

/// Memory that is registered with a device, as a driver has it. Dropping it deregisters it.
pub(crate) trait Region: fmt::Debug + Sized {
    /// Where it is registered.
    type Protection;
    /// The transport that packed keys name, and its name in errors.
    const KEYS: (TransportId, &'static str);

    /// Registers `length` bytes, at least 1, at `start`.
    ///
    /// # Safety
    /// Until [`Self::deregister`] has returned `Ok`, the bytes stay mapped, and this process accesses them
    /// only in ways that tolerate a device which reads and, as far as `access` allows, writes them.
    ///
    /// # Errors
    /// [`MemoryError::NoMemory`], [`MemoryError::Device`]
    unsafe fn register(
        protection: &Self::Protection,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Self, MemoryError>;

    /// Takes the memory from the device.
    ///
    /// # Errors
    /// [`MemoryError::Deregister`] with `length`, the region's: the device may still access the memory.
    fn deregister(self, length: usize) -> Result<(), MemoryError>;

    /// The key for work requests of this process, and the key for peers.
    fn keys(&self) -> (u32, u32);
}

/// A device and a protection domain.
///
/// # Safety
/// [`Self::protection`] is the domain's own: only transports make queue pairs in it, and no other code posts
/// with its keys or sends commands that name them.
pub(crate) unsafe trait Domain {
    /// Memory that is registered in it.
    type Region: Region;

    /// Where memory is registered.
    fn protection(&self) -> &<Self::Region as Region>::Protection;

    /// The device's name.
    fn device(&self) -> &str;

    /// The number by which slices name the domain.
    fn tag(&self) -> u32;

    /// Allocates and registers memory.
    ///
    /// # Errors
    /// [`MemoryError::Empty`], [`MemoryError::NoMemory`], [`MemoryError::Device`]
    fn buffer(&self, len: usize, access: Access) -> Result<Buffer<Self::Region>, MemoryError> {
        Buffer::allocate(self.protection(), len, access)
    }

    /// Allocates and registers memory that a pool cuts into buffers.
    ///
    /// # Errors
    /// As of [`Self::buffer`].
    fn blocks(&self, len: usize) -> Result<Registered<Self::Region>, MemoryError> {
        self.buffer(len, Access::LOCAL_WRITE).map(Registered)
    }

    /// Allocates and registers memory for the user.
    ///
    /// # Errors
    /// As of [`Self::buffer`].
    fn memory(&self, len: usize, access: Access) -> Result<Memory<Self::Region>, MemoryError> {
        Ok(Memory { buffer: self.buffer(len, access)?, tag: self.tag() })
    }

    /// Registers memory of the user's.
    ///
    /// # Safety
    /// As of [`Region::register`], until [`Memory::deregister`] has returned `Ok`.
    ///
    /// # Errors
    /// [`MemoryError::Empty`], [`MemoryError::Device`]
    unsafe fn foreign(
        &self,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Memory<Self::Region>, MemoryError> {
        // SAFETY: the caller's contract; `Memory::deregister` returns `Ok` only after `Buffer::release` has.
        let buffer = unsafe { Buffer::register(self.protection(), start, len, access) }?;
        Ok(Memory { buffer, tag: self.tag() })
    }

    /// The device refused a step of opening something.
    fn refused(&self, step: &'static str, error: impl Into<Source>) -> OpenError {
        refused(self.device(), step, error)
    }
}

/// The device refused a step of opening something.
pub(crate) fn refused(device: &str, step: &'static str, error: impl Into<Source>) -> OpenError {
    OpenError::Device { device: device.to_owned(), step, source: error.into() }
}

/// `access` in the flags of a driver, which have the same names. The device requires `LOCAL_WRITE`
/// wherever peers may write; it is added.
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

/// Registered memory, and its owner unless that is the caller of `Domain::register`.
#[derive(Debug)]
pub(crate) struct Buffer<R: Region> {
    /// `None` once it is deregistered.
    region: Option<R>,
    bytes: Bytes,
    local_key: u32,
    remote_key: u32,
    owned: Option<Allocation>,
}

impl<R: Region> Buffer<R> {
    /// Allocates zeroed, page-aligned memory and registers it.
    fn allocate(protection: &R::Protection, len: usize, access: Access) -> Result<Self, MemoryError> {
        let memory = Allocation::new(len)?;
        // SAFETY: the buffer owns the allocation, frees it after the device has released it, and leaks it
        // otherwise (`release`). Every access goes through `Bytes` or through a pool, whose buffers the
        // device writes only for an operation that holds them.
        let mut buffer = unsafe { Self::register(protection, memory.start(), len, access) }?;
        buffer.owned = Some(memory);
        Ok(buffer)
    }

    /// Registers memory of the caller's.
    ///
    /// # Safety
    /// As of [`Region::register`], until [`Self::release`] has returned `Ok`.
    unsafe fn register(
        protection: &R::Protection,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Self, MemoryError> {
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        // SAFETY: the caller's contract; `release` returns `Ok` only after `Region::deregister` has.
        let region = unsafe { R::register(protection, start, len, access) }?;
        let (local_key, remote_key) = region.keys();
        Ok(Self { region: Some(region), bytes: Bytes::new(start, len), local_key, remote_key, owned: None })
    }

    /// Address of the first byte.
    #[inline(always)]
    pub(crate) fn address(&self) -> u64 {
        self.bytes.start().addr().get() as u64
    }

    /// The key for work requests of this process.
    #[inline(always)]
    pub(crate) fn local_key(&self) -> u32 {
        self.local_key
    }

    /// The key for peers.
    pub(crate) fn remote_key(&self) -> u32 {
        self.remote_key
    }

    /// The word at `offset`, a multiple of 8, if it lies in the buffer.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> Option<&AtomicU64> {
        // SAFETY: `self` keeps the memory alive: it is owned, or the caller of `register` promised it.
        unsafe { self.bytes.atomic(offset) }
    }

    /// Takes the memory from the device. Owned memory that the device does not release is leaked.
    fn release(&mut self) -> Result<(), MemoryError> {
        let Some(region) = self.region.take() else { return Ok(()) };
        region.deregister(self.bytes.len()).inspect_err(|_| mem::forget(self.owned.take()))
    }
}

impl<R: Region> Drop for Buffer<R> {
    fn drop(&mut self) {
        // `owned` is freed after this, unless it was leaked.
        if let Err(error) = self.release() {
            tracing::error!("{error}");
        }
    }
}

/// A region registered with the device.
///
/// Dropping it takes the key from the device: an operation still in flight then fails with a protection
/// error. The device refuses that while it is in error or something else uses the registration; memory
/// that was allocated is then leaked. [`Self::deregister`] returns the refusal, a drop logs it.
#[derive(Debug)]
pub struct Memory<R: Region> {
    buffer: Buffer<R>,
    tag: u32,
}

impl<R: Region> Memory<R> {
    memory_access!();

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.buffer.bytes
    }

    pub(crate) fn local_key(&self) -> u32 {
        self.buffer.local_key
    }

    pub(crate) fn domain(&self) -> u32 {
        self.tag
    }

    /// Deregisters the region. After `Ok` no key and no operation in flight reaches the memory any more:
    /// what was allocated is freed, what was registered is the caller's again.
    ///
    /// # Errors
    /// [`MemoryError::Deregister`]: the device refused and may still access the memory. What was
    /// allocated is leaked; what was registered must stay as it is for the life of the process.
    pub fn deregister(mut self) -> Result<(), MemoryError> {
        self.buffer.release()
    }

    /// The bytes from which the peer's `Domain::unpack_key` makes a key.
    pub fn pack_key(&self) -> Vec<u8> {
        let (transport, _) = R::KEYS;
        Packed::new(Kind::Key, transport, &self.buffer.remote_key.to_be_bytes()).bytes().to_vec()
    }
}

/// A right to a peer's region, as the peer's device knows it (rkey).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteKey(pub(crate) u32);

impl RemoteKey {
    /// The key in the bytes of the peer's [`Memory::pack_key`].
    pub(crate) fn unpack<R: Region>(bytes: &[u8]) -> Result<Self, KeyError> {
        let packed = Packed::parse(Kind::Key, bytes)?;
        let (transport, expected) = R::KEYS;
        match packed.body() {
            Some(key) if packed.transport() == transport => Ok(Self(u32::from_be_bytes(*key))),
            _ => Err(KeyError::ForeignTransport { expected, found: packed.transport().name() }),
        }
    }
}

/// Registered memory that a [`Pool`](crate::transport::common::pool::Pool) cuts into buffers. It has no remote rights: only
/// this side's device writes it, and only for an operation that holds the buffer.
#[derive(Debug)]
pub(crate) struct Registered<R: Region>(Buffer<R>);

impl<R: Region> Registered<R> {
    pub(crate) fn key(&self) -> u32 {
        self.0.local_key
    }
}

// SAFETY: zeroed, page-aligned memory that is owned and unmoved. The device writes only the buffer that an
// operation of the transport names, which holds it meanwhile: local access needs the key and a queue pair of
// its protection domain, which only transports have, and no other code names the key in a command
// (`Domain`); peers have no rights.
unsafe impl<R: Region> Block for Registered<R> {
    fn start(&self) -> NonNull<u8> {
        self.0.bytes.start()
    }

    fn len(&self) -> usize {
        self.0.bytes.len()
    }
}

#[cfg(test)]
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
