//! Memory that the device can reach, and the keys to it.
//!
//! A device touches what a key covers and nothing else, so that posting needs no `unsafe`: memory safety is
//! promised where memory is registered, by [`MemoryRegion::register`], and where commands make keys
//! ([`crate::channel::CommandChannel::execute`]). [`Buffer`] owns its memory and is safe.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use barewire_layouts::wqe::{DataSegment, RemoteAddressSegment};

#[cfg(feature = "verbs")]
use crate::backend::init_obj;
use crate::backend::{Backend, commands};
use crate::bytes::Bytes;
#[cfg(feature = "verbs")]
use crate::context::Context;
use crate::context::{DomainObject, ProtectionDomain};
use crate::error::Error;
pub use crate::pages::PAGE;
use crate::pages::Pages;
pub use crate::values::Access;

/// Registered memory: an address range under a key (CREATE_MKEY).
///
/// Dropping it takes the key and the memory from the device and logs a refusal; [`Self::deregister`]
/// returns it. A WQE that still names the region then fails with a protection error.
#[derive(Debug)]
pub struct MemoryRegion {
    start: NonNull<u8>,
    length: usize,
    key: u32,
    access: Access,
    registration: Option<Registration>,
    _domain: ProtectionDomain,
}

/// A key as its context's [`Backend`] has it.
#[derive(Debug)]
enum Registration {
    Commands(commands::Key),
    #[cfg(feature = "verbs")]
    InitObj(barewire_verbs::MemoryRegion),
}

// SAFETY: the region only names memory; what may be done with the memory is in the contract of `register`.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above; no method changes anything.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers `length` bytes at `start`.
    ///
    /// # Safety
    /// Until [`Self::deregister`] has returned `Ok` the bytes stay mapped, and this process accesses them only
    /// in ways that tolerate a device which reads and (with a write right) writes them at the same time:
    /// atomically, or while no operation that involves them is under way. Posting is safe and takes any key:
    /// whether an operation is under way knows only who owns every queue pair of `domain` and, if there
    /// are remote rights, of every peer.
    ///
    /// # Errors
    /// If the length is zero, write rights contradict each other, or the device refused.
    pub unsafe fn register(
        domain: &ProtectionDomain,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Self, Error> {
        if length == 0 {
            return Err(Error::parameter("region length", 0u32, "at least 1 byte"));
        }
        let access = access & Access::all();
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
            && !access.contains(Access::LOCAL_WRITE)
        {
            return Err(Error::parameter(
                "access",
                access.bits(),
                "LOCAL_WRITE together with REMOTE_WRITE or REMOTE_ATOMIC",
            ));
        }
        let context = domain.context();
        let (registration, key) = match (context.backend(), domain.object()) {
            (Backend::Commands(channel), DomainObject::Commands { number, .. }) => {
                let variant = context.next_key_variant();
                // SAFETY: the caller's contract is the channel's.
                let made =
                    unsafe { commands::create_key(&**channel, *number, start, length, access, variant) };
                made.map(|(made, key)| (Registration::Commands(made), key))?
            }
            #[cfg(feature = "verbs")]
            (Backend::InitObj(_), DomainObject::InitObj(domain)) => {
                // SAFETY: the caller's contract is the same.
                let made = unsafe { init_obj::register(domain, start, length, access) };
                made.map(|(made, key)| (Registration::InitObj(made), key))?
            }
            #[cfg(feature = "verbs")]
            _ => Context::foreign()?,
        };
        Ok(Self { start, length, key, access, registration: Some(registration), _domain: domain.clone() })
    }

    /// First address.
    #[inline]
    pub fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }

    /// First byte.
    #[inline]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes, at least 1.
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Never: a region has at least one byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The key for this side's segments.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.key
    }

    /// The key for a peer. It works as far as [`Self::access`] lets it.
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.key
    }

    /// What the key allows.
    #[inline]
    pub fn access(&self) -> Access {
        self.access
    }

    /// A segment of `length` bytes at `offset`, for this side's WQEs. `None` if it does not lie in the region or is longer than a segment
    /// can be (2^31 - 1 bytes).
    #[inline]
    pub fn segment(&self, offset: usize, length: usize) -> Option<DataSegment> {
        let end = offset.checked_add(length)?;
        (end <= self.length && length < 1 << 31)
            .then(|| DataSegment::new(self.address() + offset as u64, length as u32, self.key))
    }

    /// Where a peer finds the byte at `offset`.
    #[inline]
    pub fn remote(&self, offset: usize) -> RemoteAddressSegment {
        RemoteAddressSegment::new(self.address().wrapping_add(offset as u64), self.key)
    }

    /// Takes key and memory from the device. After `Ok` the memory is the caller's alone.
    ///
    /// # Errors
    /// If the device still uses it: the memory must then stay as it is for the life of the process.
    pub fn deregister(mut self) -> Result<(), Error> {
        self.release()
    }

    fn release(&mut self) -> Result<(), Error> {
        match self.registration.take() {
            Some(Registration::Commands(key)) => key.release(),
            #[cfg(feature = "verbs")]
            Some(Registration::InitObj(region)) => init_obj::deregister(region),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes at offset {offset} do not lie in a buffer of {size} bytes, or are not aligned")]
pub struct OutOfBounds {
    /// First byte asked for.
    pub offset: usize,
    /// Bytes asked for.
    pub length: usize,
    /// Bytes of the buffer.
    pub size: usize,
}

/// Registered memory that is owned: zeroed, page-aligned, freed when the device cannot reach it any more
/// and leaked if it does not let go.
///
/// A peer or the device may write it at any time, so that it is only copied to and from, never borrowed. Any
/// thread may do so: accesses to one byte are atomic and of one size ([`crate::bytes`]).
pub struct Buffer {
    region: MemoryRegion,
    bytes: Bytes,
    /// `None` once it was released.
    pages: Option<Pages>,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("region", &self.region).finish_non_exhaustive()
    }
}

impl Buffer {
    /// Allocates and registers `length` bytes.
    ///
    /// # Errors
    /// As [`MemoryRegion::register`], and [`Error::OutOfMemory`].
    pub fn allocate(domain: &ProtectionDomain, length: usize, access: Access) -> Result<Self, Error> {
        let pages = Pages::allocate(length, "a buffer")?;
        // SAFETY: `release` frees the pages after the device let them go and leaks them if it did not. Every
        // access goes through the copying methods, which are atomic.
        let region = unsafe { MemoryRegion::register(domain, pages.start(), length, access) }?;
        Ok(Self { region, bytes: Bytes::new(pages.start(), length), pages: Some(pages) })
    }

    /// Address, length and keys.
    #[inline]
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Deregisters the memory and frees it.
    ///
    /// # Errors
    /// If the device still uses it. The memory is then leaked.
    pub fn deregister(mut self) -> Result<(), Error> {
        self.release()
    }

    fn release(&mut self) -> Result<(), Error> {
        let Some(pages) = self.pages.take() else { return Ok(()) };
        let pages = ManuallyDrop::new(pages);
        self.region.release()?;
        drop(ManuallyDrop::into_inner(pages));
        Ok(())
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing was copied then.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.check(offset, bytes.len())?;
        // SAFETY: the range lies in the buffer, which owns its memory.
        unsafe { self.bytes.write(offset, bytes) };
        Ok(())
    }

    /// Copies from `offset` to `bytes`.
    ///
    /// # Errors
    /// [`OutOfBounds`]; nothing was copied then.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        self.check(offset, bytes.len())?;
        // SAFETY: the range lies in the buffer, which owns its memory.
        unsafe { self.bytes.read(offset, bytes) };
        Ok(())
    }

    /// Reads the byte at `offset`; what a peer wrote before it is visible after.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub fn load_u8(&self, offset: usize) -> Result<u8, OutOfBounds> {
        self.check(offset, 1)?;
        // SAFETY: the byte lies in the buffer, which owns its memory.
        Ok(unsafe { self.bytes.load_u8(offset) })
    }

    /// Reads 8 bytes at `offset`, a multiple of 8; what a peer wrote before them is visible after.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub fn load_u64(&self, offset: usize) -> Result<u64, OutOfBounds> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    /// Writes 8 bytes at `offset`, a multiple of 8.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), OutOfBounds> {
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn word(&self, offset: usize) -> Result<&AtomicU64, OutOfBounds> {
        // SAFETY: the buffer owns its memory, which lives as long as `self`.
        unsafe { self.bytes.atomic(offset) }.ok_or_else(|| self.out_of_bounds(offset, size_of::<u64>()))
    }

    #[inline]
    fn check(&self, offset: usize, length: usize) -> Result<(), OutOfBounds> {
        if self.bytes.contains(offset, length) { Ok(()) } else { Err(self.out_of_bounds(offset, length)) }
    }

    #[cold]
    fn out_of_bounds(&self, offset: usize, length: usize) -> OutOfBounds {
        OutOfBounds { offset, length, size: self.region.len() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::error!("{} bytes are leaked, as the device still uses them: {error}", self.region.len());
        }
    }
}
