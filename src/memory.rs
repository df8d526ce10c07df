//! Memory regions, slices of them, and keys to the regions of peers: the dynamic API.

use std::ops::Range;

use bitflags::bitflags;

use crate::address::TransportId;
use crate::error::MemoryError;
pub(crate) use crate::registration::MemoryConfig;
use crate::transport::Transport;
use crate::transport::common::populate::populate;
use crate::transport::table::transports;
#[cfg(feature = "shm")]
use crate::{error::PointerError, transport::shm::RemotePointer};
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
pub struct Transfer<'a, K = RemoteKey> {
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
        ///
        /// # Errors
        /// [`MemoryError::OutOfRange`](crate::MemoryError::OutOfRange)
        pub fn write(
            &self,
            offset: usize,
            source: &[u8],
        ) -> Result<(), $crate::error::MemoryError> {
            let bytes = $crate::memory::checked(self.bytes(), offset, source.len())?;
            // SAFETY: `self` keeps the memory alive, and `checked` has checked the range.
            unsafe { bytes.write(offset, source) };
            Ok(())
        }

        /// Copies from `offset` into `target`.
        ///
        /// # Errors
        /// [`MemoryError::OutOfRange`](crate::MemoryError::OutOfRange)
        pub fn read(
            &self,
            offset: usize,
            target: &mut [u8],
        ) -> Result<(), $crate::error::MemoryError> {
            let bytes = $crate::memory::checked(self.bytes(), offset, target.len())?;
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
        ) -> Result<&::std::sync::atomic::AtomicU64, $crate::error::MemoryError> {
            // SAFETY: `self` keeps the memory alive, and the result borrows `self`.
            let word = unsafe { self.bytes().atomic(offset) };
            word.ok_or_else(|| $crate::memory::no_word(self.bytes(), offset))
        }

        /// Loads the word at `offset` with acquire ordering: what a peer wrote before the word is
        /// visible after the load.
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
        pub fn store_u64(
            &self,
            offset: usize,
            value: u64,
        ) -> Result<(), $crate::error::MemoryError> {
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
            // SAFETY: `self` keeps the memory alive, and `checked` has checked the range.
            Ok(unsafe { bytes.load_u8(offset) })
        }

        /// Returns a range of this memory for zero-copy operations.
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

        /// As [`slice`](Self::slice), for the bytes at an [`address`](Self::address) of the region;
        /// `None` if they are not all inside.
        #[inline(always)]
        pub fn slice_at(&self, address: u64, length: usize) -> Option<$crate::memory::Slice<'_>> {
            let bytes = self.bytes();
            let offset = address.wrapping_sub(bytes.address()) as usize;
            bytes.contains(offset, length).then(|| $crate::memory::Slice {
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
        ///
        /// # Errors
        /// [`MemoryError::OutOfRange`](crate::MemoryError::OutOfRange)
        pub fn strided(
            &self,
            offset: usize,
            length: usize,
            stride: usize,
            count: usize,
        ) -> Result<
            impl ExactSizeIterator<Item = $crate::memory::Slice<'_>> + Clone,
            $crate::error::MemoryError,
        > {
            let all = count.saturating_sub(1).saturating_mul(stride).saturating_add(length);
            let first = self.slice(offset, all)?;
            // Without elements, none of the addresses is used.
            Ok((0..count).map(move |number| $crate::memory::Slice {
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

/// A registered region of any transport. It owns its memory, unless
/// [`Domain::register`](crate::Domain::register) returned it.
///
/// Dropping it deregisters it and frees memory that it owns. If the device refuses, owned memory is
/// leaked and the refusal is logged; [`Self::deregister`] returns it.
#[derive(Debug)]
#[must_use = "dropping the memory deregisters it"]
pub struct Memory(pub(crate) Kind);

transports!(one_of!
    #[derive(Debug)]
    pub(crate) enum Kind of Memory
);

#[cfg(feature = "mlx5")]
impl Kind {
    /// Returns memory whose keys the posts of mlx5 devices change.
    pub(crate) fn of_mlx5(&self) -> Option<&crate::transport::rc_mlx5::Memory> {
        match self {
            Self::RcMlx5(memory) | Self::XrcMlx5(memory) | Self::DcMlx5(memory) => Some(memory),
            _ => None,
        }
    }
}

impl Memory {
    fn bytes(&self) -> &SharedBytes {
        transports!(each! &self.0, memory => memory.bytes())
    }

    fn local_key(&self) -> u32 {
        transports!(each! &self.0, memory => memory.local_key())
    }

    fn domain(&self) -> u32 {
        transports!(each! &self.0, memory => memory.domain())
    }

    memory_access!();

    /// Brings in the pages of a range before they are accessed, for writes if `write`. It is worth
    /// while for memory [on demand](MemoryConfig::on_demand), which a device otherwise requests
    /// page by page: there it waits until the device has the pages. For other memory it makes the
    /// kernel provide them. The contents stay as they are.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], [`MemoryError::Prefetch`]
    pub fn prefetch(&self, range: Range<usize>, write: bool) -> Result<(), MemoryError> {
        let length = range.end.wrapping_sub(range.start);
        let bytes = checked(self.bytes(), range.start, length)?;
        if length == 0 {
            return Ok(());
        }
        // SAFETY: `self` keeps the memory alive, and `checked` has checked the range.
        unsafe { populate(bytes, range.start, length, write) }
            .map_err(|source| MemoryError::Prefetch { length, source: source.into() })?;
        match &self.0 {
            #[cfg(feature = "mlx5")]
            Kind::RcMlx5(memory)
            | Kind::XrcMlx5(memory)
            | Kind::DcMlx5(memory)
            | Kind::UdMlx5(memory) => memory.prefetch(range, write),
            #[cfg(feature = "verbs")]
            Kind::RcVerbs(memory) | Kind::UdVerbs(memory) => memory.prefetch(range, write),
            #[allow(unreachable_patterns, reason = "a build may have these transports only")]
            _ => Ok(()),
        }
    }

    /// Deregisters the region. After `Ok` no key and no operation in flight reaches the memory:
    /// allocated memory is freed, and registered memory is under the caller's control again.
    ///
    /// # Errors
    /// [`MemoryError::Deregister`]: the device refused and may still access the memory. Allocated
    /// memory is leaked; registered memory must stay mapped for the life of the process. Over `cma`
    /// it means that a peer was stopped or killed while it used registered memory. The other
    /// transports without a device never fail.
    pub fn deregister(self) -> Result<(), MemoryError> {
        transports!(each! self.0, memory => memory.deregister())
    }

    /// Returns the bytes from which a peer creates its [`RemoteKey`].
    pub fn pack_key(&self) -> Vec<u8> {
        transports!(each! &self.0, memory => memory.pack_key())
    }

    /// Wraps memory of a transport's own type.
    pub fn from_static<T: Transport>(memory: T::Memory) -> Self {
        T::into_memory(memory)
    }

    /// Returns the memory as the transport's own type; `None` if it is of another transport.
    pub fn as_static<T: Transport>(&self) -> Option<&T::Memory> {
        T::from_memory(self)
    }
}

/// The right to access a peer's region, of any transport.
#[derive(Debug, Clone)]
pub struct RemoteKey(pub(crate) KeyKind);

transports!(one_of!
    #[derive(Debug, Clone)]
    pub(crate) enum KeyKind of RemoteKey
);

impl RemoteKey {
    /// Returns the number of bytes that [`Memory::pack_key`] returns for every memory of a
    /// transport.
    pub const fn packed_length(transport: TransportId) -> usize {
        transport.packed_key()
    }

    /// Wraps a key of a transport's own type.
    pub fn from_static<T: Transport>(key: T::RemoteKey) -> Self {
        T::into_key(key)
    }

    /// Returns the key as the transport's own type; `None` if it is of another transport.
    pub fn as_static<T: Transport>(&self) -> Option<&T::RemoteKey> {
        T::from_key(self)
    }

    /// Maps the key's memory into this process without an endpoint; `shm` only. With an endpoint,
    /// [`Endpoint::rkey_ptr`](crate::Endpoint::rkey_ptr) needs no access to the peer's process.
    ///
    /// # Errors
    /// [`PointerError::Unsupported`] over other transports, and those of
    /// [`shm::RemoteKey::pointer`](crate::transport::shm::RemoteKey::pointer).
    #[cfg(feature = "shm")]
    pub fn pointer(&self) -> Result<RemotePointer, PointerError> {
        match &self.0 {
            KeyKind::Shm(key) => key.pointer(),
            #[allow(unreachable_patterns, reason = "a build may have one transport only")]
            key => {
                Err(PointerError::Unsupported(transports!(each_of! KeyKind, key, _key => T::ID)))
            }
        }
    }
}
