//! Memory regions, slices of them and keys to the peer's: the dynamic door.

use bitflags::bitflags;

use crate::error::MemoryError;
use crate::transport::common::copy::Bytes;
#[cfg(feature = "verbs")]
use crate::transport::rc_verbs;
use crate::transport::{cma, rc_mlx5, self_, shm, tcp};

bitflags! {
    /// What may be done to a region. Reading it locally is always possible. Unknown bits are ignored
    /// wherever a region is made.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The local device may write it (gets into it, atomic results).
        const LOCAL_WRITE = 1 << 0;
        /// Peers may put.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may get.
        const REMOTE_READ = 1 << 2;
        /// Peers may use atomics.
        const REMOTE_ATOMIC = 1 << 3;
    }
}

/// A range of registered memory as zero-copy operations take it.
///
/// It borrows the memory for the post only: freeing the memory while an operation is in flight is safe
/// (the device loses its right first, the operation fails) but rarely what one wants.
#[derive(Debug, Clone, Copy)]
pub struct Slice<'a> {
    pub(crate) address: u64,
    pub(crate) length: usize,
    /// The device's local key (lkey); for `self` the access bits.
    pub(crate) key: u32,
    /// Whose memory it is; see [`domain_tag`].
    pub(crate) domain: u32,
    pub(crate) memory: &'a Bytes,
}

impl Slice<'_> {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True for a slice of no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// One of a list of puts or gets: local memory, and where on the other side.
#[derive(Debug, Clone, Copy)]
pub struct Transfer<'a, K = RemoteKey> {
    /// What is read by a put, written by a get.
    pub local: Slice<'a>,
    /// Remote address.
    pub remote: u64,
    /// The right to it.
    pub key: &'a K,
}

/// A number of its own for each domain of this process, so that a slice cannot stray to another device.
pub(crate) fn domain_tag() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The operations on a region's bytes that are the same for every transport.
macro_rules! memory_access {
    () => {
        /// Address of the first byte, as peers name it in puts, gets and atomics.
        #[inline]
        pub fn address(&self) -> u64 {
            self.bytes().address()
        }

        /// Bytes.
        #[inline]
        #[allow(clippy::len_without_is_empty, reason = "regions have at least one byte")]
        pub fn len(&self) -> usize {
            self.bytes().len()
        }

        /// Copies `source` to `offset`.
        ///
        /// # Errors
        /// [`MemoryError::OutOfRange`](crate::MemoryError::OutOfRange)
        pub fn write(&self, offset: usize, source: &[u8]) -> Result<(), $crate::error::MemoryError> {
            let bytes = $crate::memory::checked(self.bytes(), offset, source.len())?;
            // SAFETY: `self` keeps the memory alive, and the range was checked.
            unsafe { bytes.write(offset, source) };
            Ok(())
        }

        /// Copies from `offset` into `target`.
        ///
        /// # Errors
        /// [`MemoryError::OutOfRange`](crate::MemoryError::OutOfRange)
        pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), $crate::error::MemoryError> {
            let bytes = $crate::memory::checked(self.bytes(), offset, target.len())?;
            // SAFETY: `self` keeps the memory alive, and the range was checked.
            unsafe { bytes.read(offset, target) };
            Ok(())
        }

        /// The word at `offset`, for who looks at it again and again.
        ///
        /// # Errors
        /// [`MemoryError::OutOfRange`](crate::MemoryError::OutOfRange),
        /// [`MemoryError::Unaligned`](crate::MemoryError::Unaligned)
        #[inline]
        pub fn word(
            &self,
            offset: usize,
        ) -> Result<&::std::sync::atomic::AtomicU64, $crate::error::MemoryError> {
            // SAFETY: `self` keeps the memory alive.
            let word = unsafe { self.bytes().atomic(offset) };
            word.ok_or_else(|| $crate::memory::no_word(self.bytes(), offset))
        }

        /// Loads the word at `offset` with acquire ordering: what a peer wrote before it is visible after.
        ///
        /// # Errors
        /// As [`Self::word`].
        #[inline]
        pub fn load_u64(&self, offset: usize) -> Result<u64, $crate::error::MemoryError> {
            Ok(self.word(offset)?.load(::std::sync::atomic::Ordering::Acquire))
        }

        /// Stores the word at `offset` with release ordering.
        ///
        /// # Errors
        /// As [`Self::word`].
        #[inline]
        pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), $crate::error::MemoryError> {
            self.word(offset)?.store(value, ::std::sync::atomic::Ordering::Release);
            Ok(())
        }

        /// Loads the byte at `offset` with acquire ordering.
        ///
        /// # Errors
        /// [`MemoryError::OutOfRange`](crate::MemoryError::OutOfRange)
        #[inline]
        pub fn load_u8(&self, offset: usize) -> Result<u8, $crate::error::MemoryError> {
            let bytes = $crate::memory::checked(self.bytes(), offset, 1)?;
            // SAFETY: `self` keeps the memory alive, and the range was checked.
            Ok(unsafe { bytes.load_u8(offset) })
        }

        /// A range of this memory for zero-copy operations.
        ///
        /// # Errors
        /// [`MemoryError::OutOfRange`](crate::MemoryError::OutOfRange)
        #[inline]
        pub fn slice(
            &self,
            offset: usize,
            length: usize,
        ) -> Result<$crate::memory::Slice<'_>, $crate::error::MemoryError> {
            let bytes = $crate::memory::checked(self.bytes(), offset, length)?;
            Ok($crate::memory::Slice {
                address: bytes.address() + offset as u64,
                length,
                key: self.local_key(),
                domain: self.domain(),
                memory: bytes,
            })
        }
    };
}
pub(crate) use memory_access;

#[inline]
pub(crate) fn checked(bytes: &Bytes, offset: usize, length: usize) -> Result<&Bytes, MemoryError> {
    if bytes.contains(offset, length) { Ok(bytes) } else { Err(out_of_range(bytes, offset, length)) }
}

#[cold]
fn out_of_range(bytes: &Bytes, offset: usize, length: usize) -> MemoryError {
    MemoryError::OutOfRange { offset, length, region: bytes.len() }
}

/// Why there is no word at `offset`.
#[cold]
pub(crate) fn no_word(bytes: &Bytes, offset: usize) -> MemoryError {
    if bytes.contains(offset, size_of::<u64>()) {
        MemoryError::Unaligned { offset }
    } else {
        out_of_range(bytes, offset, size_of::<u64>())
    }
}

/// A registered region of any transport. It owns its memory, unless it was registered by
/// [`Domain::register`](crate::Domain::register).
///
/// Dropping it deregisters it, and frees memory that it owns. Where the device refuses, owned memory is
/// leaked and the refusal is logged; [`Self::deregister`] returns it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Memory {
    /// Of `self`.
    Self_(self_::Memory),
    /// Of `rc_mlx5`.
    RcMlx5(rc_mlx5::Memory),
    /// Of `shm`.
    Shm(shm::Memory),
    /// Of `cma`.
    Cma(cma::Memory),
    /// Of `rc_verbs` and `ud_verbs`.
    #[cfg(feature = "verbs")]
    RcVerbs(rc_verbs::Memory),
    /// Of `tcp`.
    Tcp(tcp::Memory),
}

impl Memory {
    fn bytes(&self) -> &Bytes {
        match self {
            Self::Self_(memory) => memory.bytes(),
            Self::RcMlx5(memory) => memory.bytes(),
            Self::Shm(memory) => memory.bytes(),
            Self::Cma(memory) => memory.bytes(),
            #[cfg(feature = "verbs")]
            Self::RcVerbs(memory) => memory.bytes(),
            Self::Tcp(memory) => memory.bytes(),
        }
    }

    fn local_key(&self) -> u32 {
        match self {
            Self::Self_(memory) => memory.local_key(),
            Self::RcMlx5(memory) => memory.local_key(),
            Self::Shm(memory) => memory.local_key(),
            Self::Cma(memory) => memory.local_key(),
            #[cfg(feature = "verbs")]
            Self::RcVerbs(memory) => memory.local_key(),
            Self::Tcp(memory) => memory.local_key(),
        }
    }

    fn domain(&self) -> u32 {
        match self {
            Self::Self_(memory) => memory.domain(),
            Self::RcMlx5(memory) => memory.domain(),
            Self::Shm(memory) => memory.domain(),
            Self::Cma(memory) => memory.domain(),
            #[cfg(feature = "verbs")]
            Self::RcVerbs(memory) => memory.domain(),
            Self::Tcp(memory) => memory.domain(),
        }
    }

    memory_access!();

    /// Deregisters the region. After `Ok` no key and no operation in flight reaches the memory any more:
    /// what was allocated is freed, what was registered is the caller's again.
    ///
    /// # Errors
    /// [`MemoryError::Deregister`]: the device refused. It then may still access the memory. What was
    /// allocated is leaked; what was registered must stay as it is for the life of the process. Over `cma`
    /// it means that a peer was stopped or killed while it used registered memory. The other transports
    /// without a device never fail.
    pub fn deregister(self) -> Result<(), MemoryError> {
        match self {
            Self::Self_(memory) => memory.deregister(),
            Self::RcMlx5(memory) => memory.deregister(),
            Self::Shm(memory) => memory.deregister(),
            Self::Cma(memory) => memory.deregister(),
            #[cfg(feature = "verbs")]
            Self::RcVerbs(memory) => memory.deregister(),
            Self::Tcp(memory) => memory.deregister(),
        }
    }

    /// The bytes from which a peer makes its [`RemoteKey`].
    pub fn pack_key(&self) -> Vec<u8> {
        match self {
            Self::Self_(memory) => memory.pack_key(),
            Self::RcMlx5(memory) => memory.pack_key(),
            Self::Shm(memory) => memory.pack_key(),
            Self::Cma(memory) => memory.pack_key(),
            #[cfg(feature = "verbs")]
            Self::RcVerbs(memory) => memory.pack_key(),
            Self::Tcp(memory) => memory.pack_key(),
        }
    }
}

/// A right to a peer's region, of any transport.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum RemoteKey {
    /// Of `self`.
    Self_(self_::RemoteKey),
    /// Of `rc_mlx5`.
    RcMlx5(rc_mlx5::RemoteKey),
    /// Of `shm`.
    Shm(shm::RemoteKey),
    /// Of `cma`.
    Cma(cma::RemoteKey),
    /// Of `rc_verbs`.
    #[cfg(feature = "verbs")]
    RcVerbs(rc_verbs::RemoteKey),
    /// Of `tcp`.
    Tcp(tcp::RemoteKey),
}
