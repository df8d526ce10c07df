//! A peer's memory, mapped.

use std::fmt;
use std::ptr::NonNull;

use barewire_shm::Mapped;

use super::domain::RemoteKey;
use super::endpoint::Endpoint;
use crate::error::PostError;
use crate::memory::Access;

/// A region of a peer in this process's mappings, for who moves data himself. It stays mapped while this value lives, also when the
/// endpoint is gone, and when the peer is.
///
/// The peer, and others, access the same bytes at the same time: they are to be reached by atomics, or by volatile accesses and with some
/// order made by other means; a reference to them (`&[u8]`) would promise what nobody keeps. Rights of the key are the caller's to respect.
#[derive(Clone)]
pub struct RemotePointer {
    mapped: Mapped,
    remote: u64,
    size: usize,
}

impl RemotePointer {
    /// The first byte of the region, valid for reads and writes of [`Self::size`] bytes.
    pub fn start(&self) -> NonNull<u8> {
        self.mapped.start()
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Where the `length` bytes are that operations call `remote`; `None` if they are not all inside.
    pub fn locate(&self, remote: u64, length: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(remote.checked_sub(self.remote)?).ok()?;
        let end = offset.checked_add(length)?;
        (end <= self.size()).then(|| self.start().with_addr(self.start().addr().saturating_add(offset)))
    }
}

impl fmt::Debug for RemotePointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemotePointer")
            .field("start", &self.start())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// The region of the key, mapped.
    ///
    /// # Errors
    /// [`PostError::NoResource`] until the peer hands the region over; [`PostError::AccessDenied`] for a key that gives no right to
    /// read; [`PostError`]
    pub fn rkey_ptr(&self, key: &RemoteKey) -> Result<RemotePointer, PostError> {
        let mapped = self.0.map(key, key.address(), 0, Access::REMOTE_READ)?;
        // No more than the mapping has, as was checked.
        Ok(RemotePointer { mapped, remote: key.address(), size: key.region().2 as usize })
    }
}
