//! Memory regions, slices of them, and keys to the regions of peers: the dynamic API.

use bitflags::bitflags;

use crate::error::MemoryError;
use crate::transport::Transport;
use crate::transport::common::copy::Bytes;
use crate::transport::table::transports;

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
#[must_use = "dropping the memory deregisters it"]
pub struct Memory(pub(crate) Kind);

transports!(one_of!
    #[derive(Debug)]
    pub(crate) enum Kind of Memory
);

impl Memory {
    fn bytes(&self) -> &Bytes {
        transports!(each! &self.0, memory => memory.bytes())
    }

    fn local_key(&self) -> u32 {
        transports!(each! &self.0, memory => memory.local_key())
    }

    fn domain(&self) -> u32 {
        transports!(each! &self.0, memory => memory.domain())
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
        transports!(each! self.0, memory => memory.deregister())
    }

    /// The bytes from which a peer makes its [`RemoteKey`].
    pub fn pack_key(&self) -> Vec<u8> {
        transports!(each! &self.0, memory => memory.pack_key())
    }

    /// The memory of a transport's own type.
    pub fn from_static<T: Transport>(memory: T::Memory) -> Self {
        T::into_memory(memory)
    }

    /// The memory as the transport's own type; `None` if it is another transport's.
    pub fn as_static<T: Transport>(&self) -> Option<&T::Memory> {
        T::from_memory(self)
    }
}

/// A right to a peer's region, of any transport.
#[derive(Debug, Clone)]
pub struct RemoteKey(pub(crate) KeyKind);

transports!(one_of!
    #[derive(Debug, Clone)]
    pub(crate) enum KeyKind of RemoteKey
);

impl RemoteKey {
    /// The key of a transport's own type.
    pub fn from_static<T: Transport>(key: T::RemoteKey) -> Self {
        T::into_key(key)
    }

    /// The key as the transport's own type; `None` if it is another transport's.
    pub fn as_static<T: Transport>(&self) -> Option<&T::RemoteKey> {
        T::from_key(self)
    }
}
