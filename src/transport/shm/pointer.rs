//! Direct access to a peer's mapped memory.

use std::fmt;
use std::ptr::NonNull;

use barewire_shm::{Mapped, SegmentError};

use super::domain::RemoteKey;
use super::{Endpoint, ID};
use crate::base::error::{PointerError, PostError};
use crate::base::memory::Access;

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
    /// [`PostError::NoResource`] until the peer passes the region on, where the kernel does not let
    /// this process map it directly; [`PostError::AccessDenied`] for a key without the right to
    /// read; other [`PostError`]s as of a get.
    pub fn rkey_ptr(&self, key: &RemoteKey) -> Result<RemotePointer, PostError> {
        let mapped = self.0.map(key, key.address(), 0, Access::REMOTE_READ)?;
        // `map` has checked that the mapping has at least this size.
        Ok(RemotePointer { mapped, remote: key.address(), size: key.region().2 as usize })
    }
}

impl RemoteKey {
    /// Maps the key's region without an endpoint. The peer's process must be of this user (or this
    /// one of root), in the same PID namespace, and may not have made itself undumpable (prctl(2)).
    ///
    /// # Errors
    /// [`PointerError::AccessDenied`] for a key without the right to read, or of a view,
    /// [`PointerError::Expired`] if the peer has freed the region, [`PointerError::Device`] if the
    /// kernel refuses, for example because the peer has ended.
    pub fn pointer(&self) -> Result<RemotePointer, PointerError> {
        if !self.allows(Access::REMOTE_READ) || self.is_list() {
            return Err(PointerError::AccessDenied);
        }
        let (place, huge_pages) = self.place();
        let mapped = place.map(huge_pages).map_err(|error| match error {
            SegmentError::OtherFile => PointerError::Expired,
            error => {
                PointerError::Device { transport: ID, process: place.process, source: error.into() }
            }
        })?;
        // The length in the key is what its sender wrote; the mapping may be smaller.
        let size = usize::try_from(self.region().2).ok().filter(|size| *size <= mapped.size());
        let size = size.ok_or(PointerError::Expired)?;
        Ok(RemotePointer { mapped, remote: self.address(), size })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DEVICE, Domain};
    use super::*;
    use crate::transport::Domain as _;

    #[test]
    fn a_key_alone_leads_to_the_memory_and_no_further() {
        let domain = Domain::open(DEVICE).unwrap();
        let memory = domain.allocate(100, Access::all()).unwrap();
        let key = domain.unpack_key(&memory.pack_key()).unwrap();
        let pointer = key.pointer().unwrap();
        memory.write(0, b"hello").unwrap();
        let at = pointer.locate(memory.address() + 1, 4).unwrap();
        // SAFETY: four bytes of the mapping, which nothing writes now.
        assert_eq!(unsafe { at.cast::<[u8; 4]>().read_volatile() }, *b"ello");
        assert!(pointer.locate(memory.address(), 101).is_none());
        assert!(pointer.locate(memory.address() - 1, 1).is_none());
        assert!(pointer.locate(memory.address() + 100, 0).is_some());
        let mut long = memory.pack_key();
        long[36] = 0x10;
        let long = domain.unpack_key(&long).unwrap();
        assert!(matches!(long.pointer(), Err(PointerError::Expired)), "a length beyond the file");
        let hidden = domain.allocate(100, Access::REMOTE_WRITE).unwrap();
        let hidden = domain.unpack_key(&hidden.pack_key()).unwrap();
        assert!(matches!(hidden.pointer(), Err(PointerError::AccessDenied)));
        drop(memory);
        assert!(key.pointer().is_err());
        // The mapping outlives the region.
        assert!(pointer.locate(key.address(), 100).is_some());
    }
}
