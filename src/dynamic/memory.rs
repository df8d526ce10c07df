//! Memory regions and keys to the regions of peers: the dynamic API.

use std::ops::Range;

use barewire_shared_bytes::SharedBytes;

use super::table::transports;
use super::transport::Transport;
use crate::base::address::TransportId;
#[cfg(feature = "shm")]
use crate::base::error::PointerError;
use crate::base::error::{MemoryError, PostError};
use crate::base::memory::{self, checked, memory_access};
use crate::transport::common::populate::populate;
#[cfg(feature = "shm")]
use crate::transport::shm::RemotePointer;

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
    pub(crate) fn of_mlx5(&self) -> Option<&crate::transport::mlx5::Memory> {
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
    /// while for memory [on demand](crate::MemoryConfig::on_demand), which a device otherwise
    /// requests page by page: there it waits until the device has the pages. For other memory it
    /// makes the kernel provide them. The contents stay as they are.
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

/// A put or get in a list: local memory and a remote address.
pub type Transfer<'a, K = RemoteKey> = memory::Transfer<'a, K>;

/// Returns the transfers of a list, with the keys of one transport. A list pays for one allocation.
pub(super) fn transfers_of<'a, T: Transport>(
    transfers: &[Transfer<'a>],
) -> Result<Vec<Transfer<'a, T::RemoteKey>>, PostError> {
    let of = |&Transfer { local, remote, key }: &Transfer<'a>| {
        let key = T::from_key(key).ok_or(PostError::ForeignKey)?;
        Ok(Transfer { local, remote, key })
    };
    transfers.iter().map(of).collect()
}
