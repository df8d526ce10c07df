//! Rights to memory, slices of it, and what the regions of all transports have in common.

use bitflags::bitflags;

use crate::base::error::MemoryError;
pub(crate) use crate::base::registration::MemoryConfig;
use barewire_shared_bytes::SharedBytes;

bitflags! {
    /// Access rights to a region. Local reads are always allowed. Unknown bits are ignored.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The local device may write to the region (gets into it, atomic results).
        const LOCAL_WRITE = 1 << 0;
        /// Peers may put.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may get.
        const REMOTE_READ = 1 << 2;
        /// Peers may use atomics.
        const REMOTE_ATOMIC = 1 << 3;
    }
}

/// A range of registered memory for zero-copy operations.
///
/// It borrows the memory only for the post. Freeing the memory while an operation is in flight is
/// safe (the device loses access first, and the operation fails), but rarely intended.
#[derive(Debug, Clone, Copy)]
pub struct Slice<'a> {
    pub(crate) address: u64,
    pub(crate) length: usize,
    /// The lkey. Without a device, over `tcp` the number of the region or view, otherwise the
    /// access rights, above which are the slot of a view (`self`) or the index of the region
    /// (`cma`).
    pub(crate) key: u32,
    /// The tag of its domain; see [`domain_tag`].
    pub(crate) domain: u32,
    pub(crate) memory: &'a SharedBytes,
}

impl Slice<'_> {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the slice has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns whether it is of a view: such slices have no contiguous bytes.
    #[inline]
    pub(crate) fn is_of_view(&self) -> bool {
        self.memory.is_empty()
    }

    /// Returns the address of the first byte in this process.
    pub(crate) fn start(&self) -> u64 {
        let offset = self.address.wrapping_sub(self.memory.address());
        (self.memory.start().addr().get() as u64).wrapping_add(offset)
    }
}

/// A put or get in a list: local memory and a remote address.
#[derive(Debug, Clone, Copy)]
pub struct Transfer<'a, K> {
    /// The source of a put, or the target of a get.
    pub local: Slice<'a>,
    /// Remote address.
    pub remote: u64,
    /// The key to it.
    pub key: &'a K,
}

/// Returns a number that is unique among the domains of this process, so that a slice is not used
/// with another device.
pub(crate) fn domain_tag() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Implements the access to a region's bytes, which is the same for every transport.
macro_rules! memory_access {
    () => {
        /// Returns the address of the first byte, which peers use in puts, gets and atomics.
        #[inline]
        pub fn address(&self) -> u64 {
            self.bytes().address()
        }

        /// Returns the first byte, which is valid for [`len`](Self::len) bytes while this value
        /// lives. Peers and devices may access the bytes at any time: access them by atomics only.
        #[inline]
        pub fn start(&self) -> std::ptr::NonNull<u8> {
            self.bytes().start()
        }

        /// Returns the length in bytes.
        #[inline]
        #[allow(clippy::len_without_is_empty, reason = "regions have at least one byte")]
        pub fn len(&self) -> usize {
            self.bytes().len()
        }

        /// Copies `source` to `offset`.
        pub fn write(
            &self,
            offset: usize,
            source: &[u8],
        ) -> Result<(), $crate::base::error::MemoryError> {
            let bytes = $crate::base::memory::checked(self.bytes(), offset, source.len())?;
            // SAFETY: `self` keeps the memory alive, and `checked` has checked the range.
            unsafe { bytes.write(offset, source) };
            Ok(())
        }

        /// Copies from `offset` into `target`.
        pub fn read(
            &self,
            offset: usize,
            target: &mut [u8],
        ) -> Result<(), $crate::base::error::MemoryError> {
            let bytes = $crate::base::memory::checked(self.bytes(), offset, target.len())?;
            // SAFETY: `self` keeps the memory alive, and `checked` has checked the range.
            unsafe { bytes.read(offset, target) };
            Ok(())
        }

        /// Returns the word at `offset` as an atomic, for polling loops.
        ///
        /// # Errors
        /// [`MemoryError::OutOfRange`](crate::MemoryError::OutOfRange),
        /// [`MemoryError::Unaligned`](crate::MemoryError::Unaligned)
        #[inline]
        pub fn word(
            &self,
            offset: usize,
        ) -> Result<&::std::sync::atomic::AtomicU64, $crate::base::error::MemoryError> {
            // SAFETY: `self` keeps the memory alive, and the result borrows `self`.
            let word = unsafe { self.bytes().atomic(offset) };
            word.ok_or_else(|| $crate::base::memory::no_word(self.bytes(), offset))
        }

        /// Loads the word at `offset` with acquire ordering: what a peer wrote before the word is
        /// visible after the load.
        ///
        /// # Errors
        /// As [`Self::word`].
        #[inline]
        pub fn load_u64(&self, offset: usize) -> Result<u64, $crate::base::error::MemoryError> {
            Ok(self.word(offset)?.load(::std::sync::atomic::Ordering::Acquire))
        }

        /// Stores the word at `offset` with release ordering.
        ///
        /// # Errors
        /// As [`Self::word`].
        #[inline]
        pub fn store_u64(
            &self,
            offset: usize,
            value: u64,
        ) -> Result<(), $crate::base::error::MemoryError> {
            self.word(offset)?.store(value, ::std::sync::atomic::Ordering::Release);
            Ok(())
        }

        /// Loads the byte at `offset` with acquire ordering.
        #[inline]
        pub fn load_u8(&self, offset: usize) -> Result<u8, $crate::base::error::MemoryError> {
            let bytes = $crate::base::memory::checked(self.bytes(), offset, 1)?;
            // SAFETY: `self` keeps the memory alive, and `checked` has checked the range.
            Ok(unsafe { bytes.load_u8(offset) })
        }

        /// Returns a range of this memory for zero-copy operations.
        #[inline]
        pub fn slice(
            &self,
            offset: usize,
            length: usize,
        ) -> Result<$crate::base::memory::Slice<'_>, $crate::base::error::MemoryError> {
            let bytes = $crate::base::memory::checked(self.bytes(), offset, length)?;
            Ok($crate::base::memory::Slice {
                address: bytes.address() + offset as u64,
                length,
                key: self.local_key(),
                domain: self.domain(),
                memory: bytes,
            })
        }

        /// As [`slice`](Self::slice), for the bytes at an [`address`](Self::address) of the region;
        /// `None` if they are not all inside.
        #[inline(always)]
        pub fn slice_at(
            &self,
            address: u64,
            length: usize,
        ) -> Option<$crate::base::memory::Slice<'_>> {
            let bytes = self.bytes();
            let offset = address.wrapping_sub(bytes.address()) as usize;
            bytes.contains(offset, length).then(|| $crate::base::memory::Slice {
                address,
                length,
                key: self.local_key(),
                domain: self.domain(),
                memory: bytes,
            })
        }

        /// Returns `count` ranges of `length` bytes for zero-copy operations, the first one at
        /// `offset`, each `stride` bytes after the previous one: the column of a matrix. One
        /// operation takes as many slices as
        /// [`RmaLimits::max_iov`](crate::RmaLimits::max_iov) says.
        pub fn strided(
            &self,
            offset: usize,
            length: usize,
            stride: usize,
            count: usize,
        ) -> Result<
            impl ExactSizeIterator<Item = $crate::base::memory::Slice<'_>> + Clone,
            $crate::base::error::MemoryError,
        > {
            let all = count.saturating_sub(1).saturating_mul(stride).saturating_add(length);
            let first = self.slice(offset, all)?;
            // Without elements, none of the addresses is used.
            Ok((0..count).map(move |number| $crate::base::memory::Slice {
                address: first.address + (number * stride) as u64,
                length,
                ..first
            }))
        }
    };
}
pub(crate) use memory_access;

#[inline]
pub(crate) fn checked(
    bytes: &SharedBytes,
    offset: usize,
    length: usize,
) -> Result<&SharedBytes, MemoryError> {
    if bytes.contains(offset, length) {
        Ok(bytes)
    } else {
        Err(out_of_range(bytes, offset, length))
    }
}

#[cold]
fn out_of_range(bytes: &SharedBytes, offset: usize, length: usize) -> MemoryError {
    MemoryError::OutOfRange { offset, length, region: bytes.len() }
}

/// Returns the error of an `offset` at which there is no word.
#[cold]
pub(crate) fn no_word(bytes: &SharedBytes, offset: usize) -> MemoryError {
    if bytes.contains(offset, size_of::<u64>()) {
        MemoryError::Unaligned { offset }
    } else {
        out_of_range(bytes, offset, size_of::<u64>())
    }
}
