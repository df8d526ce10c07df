//! Direct access to a peer's mapped memory.

use std::fmt;
use std::ptr::NonNull;

use barewire_shm::Mapped;

use super::Endpoint;
use super::domain::RemoteKey;
use crate::error::PostError;
use crate::memory::Access;

/// A peer's region, mapped into this process, for callers that move data themselves. It stays
/// mapped while this value lives, even after the endpoint is closed or the peer has exited.
///
/// The peer and other processes access the same bytes concurrently. Use atomics, or volatile
/// accesses that are ordered by other means. A reference (`&[u8]`) would be undefined behaviour,
/// since the bytes can change. The caller must respect the rights of the key.
#[derive(Clone)]
pub struct RemotePointer {
    mapped: Mapped,
    remote: u64,
    size: usize,
}

impl RemotePointer {
    /// Returns the first byte of the region, valid for reads and writes of [`Self::size`] bytes.
    pub fn start(&self) -> NonNull<u8> {
        self.mapped.start()
    }

    /// Returns the size of the region in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the local address of the `length` bytes that operations call `remote`; `None` if
    /// they are not all in the region.
    pub fn locate(&self, remote: u64, length: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(remote.checked_sub(self.remote)?).ok()?;
        let end = offset.checked_add(length)?;
        (end <= self.size())
            .then(|| self.start().with_addr(self.start().addr().saturating_add(offset)))
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
    /// Maps the region of the key.
    ///
    /// # Errors
    /// [`PostError::NoResource`] until the peer passes the region on; [`PostError::AccessDenied`]
    /// for a key without the right to read; other [`PostError`]s as of a get.
    pub fn rkey_ptr(&self, key: &RemoteKey) -> Result<RemotePointer, PostError> {
        let mapped = self.0.map(key, key.address(), 0, Access::REMOTE_READ)?;
        // `map` has checked that the mapping has at least this size.
        Ok(RemotePointer { mapped, remote: key.address(), size: key.region().2 as usize })
    }
}
