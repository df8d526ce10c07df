//! Memory that all rails of a set can access.

use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::sync::Arc;

use barewire_mlx5::memory::OutOfBounds;
use barewire_mlx5::{Access, DataSegment, Error as DeviceError, MemoryRegion};
use barewire_shared_bytes::SharedBytes;

use crate::config::MAX_RAILS;
use crate::error::Error;
use crate::rails::{Rails, RailsError};
use crate::ring::key_words;

/// What a region is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Sends only: no peer has a right to it.
    Send,
    /// Sends and receives. A peer of a channel that received into it can write anywhere in it, at
    /// any time until the region is freed. Only peers that know the job's key connect.
    Receive,
}

impl Usage {
    /// What devices may do with such memory.
    pub(crate) fn access(self) -> Access {
        match self {
            Self::Send => Access::LOCAL_WRITE,
            Self::Receive => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        }
    }
}

/// Memory that a [`Rails`] set owns and has registered with each of its devices. Clones refer to
/// the same memory, which is freed with the last of them; a request holds one while it is
/// outstanding.
///
/// The devices and peers may write it at any time, so it is copied to and from, never borrowed.
/// Any thread may copy.
#[derive(Clone)]
pub struct Region(Arc<Inner>);

struct Inner {
    /// A local and remote key per rail.
    keys: [u32; MAX_RAILS],
    /// The same as words of a line.
    key_words: [u64; MAX_RAILS / 2],
    bytes: SharedBytes,
    receives: bool,
    rails: Rails,
    registrations: Vec<MemoryRegion>,
    /// That of the memory if it is this value's.
    layout: Option<Layout>,
}

// SAFETY: the memory is owned and not tied to a thread; every access is an atomic copy.
unsafe impl Send for Inner {}
// SAFETY: as above: shared access copies by atomics only.
unsafe impl Sync for Inner {}

impl Region {
    pub(crate) fn allocate(
        rails: &Rails,
        length: usize,
        access: Access,
    ) -> Result<Self, RailsError> {
        let exhausted = || RailsError::Device {
            rail: rails.rails().first().map(|rail| rail.info.name.clone()).unwrap_or_default(),
            source: DeviceError::OutOfMemory { what: "a region", bytes: length },
        };
        // Whole pages of the kernel: a fork takes no other memory along.
        let page = rustix::param::page_size();
        let size = length.max(1).checked_next_multiple_of(page).ok_or_else(exhausted)?;
        let layout = Layout::from_size_align(size, page).map_err(|_| exhausted())?;
        // SAFETY: the size is at least a page.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(exhausted)?;
        // SAFETY: `Inner::drop` frees the memory only after every registration was released, and
        // leaks it otherwise. Every access of this process is an atomic copy.
        unsafe { Self::with(rails, start, length, access, Some(layout)) }
    }

    /// Registers memory of the caller with every rail.
    ///
    /// # Safety
    /// Until the last clone of the result is dropped, which requests hold while they are
    /// outstanding, the memory stays mapped, and this process accesses it only in ways that
    /// tolerate devices and peers that read it and, with [`Usage::Receive`], write it.
    ///
    /// # Errors
    /// As [`Rails::allocate`].
    pub unsafe fn register(
        rails: &Rails,
        start: NonNull<u8>,
        length: usize,
        usage: Usage,
    ) -> Result<Self, RailsError> {
        // SAFETY: this function has the contract of `with`.
        unsafe { Self::with(rails, start, length, usage.access(), None) }
    }

    /// Registers `length` bytes at `start`, which were allocated with `layout` if it is given.
    ///
    /// # Safety
    /// That of [`Self::register`] for memory of the caller. Memory with a layout belongs to the
    /// result.
    unsafe fn with(
        rails: &Rails,
        start: NonNull<u8>,
        length: usize,
        access: Access,
        layout: Option<Layout>,
    ) -> Result<Self, RailsError> {
        let mut inner = Inner {
            keys: [0; MAX_RAILS],
            key_words: [0; MAX_RAILS / 2],
            bytes: SharedBytes::new(start, length),
            receives: access.contains(Access::REMOTE_WRITE),
            rails: rails.clone(),
            registrations: Vec::new(),
            layout,
        };
        for (at, rail) in rails.rails().iter().enumerate() {
            // SAFETY: the caller guarantees that the memory outlives the registration and that
            // accesses tolerate devices.
            let made = unsafe { MemoryRegion::register(&rail.domain, start, length, access) };
            let made = made.map_err(|source| {
                let rail = rail.info.name.clone();
                RailsError::Device { rail, source }
            })?;
            inner.keys[at] = made.lkey();
            inner.registrations.push(made);
        }
        inner.key_words = key_words(&inner.keys);
        Ok(Self(Arc::new(inner)))
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.bytes.len()
    }

    /// Returns `false`: a region has at least one byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`]; then nothing is copied.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.check(offset, bytes.len())?;
        // SAFETY: the range lies in the region, which owns its memory.
        unsafe { self.0.bytes.write(offset, bytes) };
        Ok(())
    }

    /// Copies from `offset` to `bytes`.
    ///
    /// # Errors
    /// [`OutOfBounds`]; then nothing is copied.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        self.check(offset, bytes.len())?;
        // SAFETY: the range lies in the region, which owns its memory.
        unsafe { self.0.bytes.read(offset, bytes) };
        Ok(())
    }

    fn check(&self, offset: usize, length: usize) -> Result<(), OutOfBounds> {
        let size = self.len();
        let inside = self.0.bytes.contains(offset, length);
        if inside { Ok(()) } else { Err(OutOfBounds { offset, length, size }) }
    }

    /// Fails if the region cannot be used for `length` bytes at `offset` on a channel of `rails`.
    #[inline(always)]
    pub(crate) fn admit(&self, rails: &Rails, offset: usize, length: usize) -> Result<(), Error> {
        if self.0.rails.is(rails) && self.0.bytes.contains(offset, length) {
            return Ok(());
        }
        Err(self.refusal(rails, offset, length))
    }

    #[cold]
    fn refusal(&self, rails: &Rails, offset: usize, length: usize) -> Error {
        if self.0.rails.is(rails) {
            Error::OutOfBounds { offset, length, size: self.len() }
        } else {
            Error::Foreign
        }
    }

    /// Returns whether both are handles of the same memory.
    #[inline(always)]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    #[inline(always)]
    pub(crate) fn receives(&self) -> bool {
        self.0.receives
    }

    /// Address of the byte at `offset`, for a device.
    #[inline(always)]
    pub(crate) fn address(&self, offset: usize) -> u64 {
        self.0.bytes.address().wrapping_add(offset as u64)
    }

    /// The keys, one per rail of the set.
    #[inline(always)]
    pub(crate) fn keys(&self) -> [u32; MAX_RAILS] {
        self.0.keys
    }

    /// The same as words of a line.
    #[inline(always)]
    pub(crate) fn key_words(&self) -> &[u64; MAX_RAILS / 2] {
        &self.0.key_words
    }

    #[inline(always)]
    pub(crate) fn key(&self, rail: usize) -> u32 {
        self.0.keys[rail % MAX_RAILS]
    }

    /// The segment of `length` bytes at `offset` for device `rail`. The device refuses what does
    /// not lie in the region.
    #[inline(always)]
    pub(crate) fn segment(&self, offset: u64, length: u64, rail: usize) -> DataSegment {
        DataSegment::new(self.address(offset as usize), length as u32, self.key(rail))
    }

    /// Pointer to the first byte. Aligned words of 8 bytes must be accessed as such, by atomics.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.0.bytes.start()
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("len", &self.len())
            .field("receives", &self.0.receives)
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut released = true;
        for registration in self.registrations.drain(..) {
            if let Err(error) = registration.deregister() {
                tracing::error!(
                    "{} bytes are leaked, as a device still uses them: {error}",
                    self.bytes.len()
                );
                released = false;
            }
        }
        if let Some(layout) = self.layout.filter(|_| released) {
            // SAFETY: allocated with this layout, freed once, and no device has a key to it.
            unsafe { dealloc(self.bytes.start().as_ptr(), layout) };
        }
    }
}
