//! Memory of `shm`: regions that peers map, memory that they do not, and keys to the regions of peers.

use std::ptr::NonNull;
use std::sync::Arc;

use barewire_shm::{Region, SegmentError, Shelf};

use super::address::{KeyBody, UNSHARED};
use super::{DEVICE, NAME};
use crate::copy::Bytes;
use crate::error::{KeyError, MemoryError, OpenError};
use crate::memory::{Access, domain_tag, memory_access};
use crate::random;

/// The memory that this process shares with others. Cloning gives another handle to the same domain.
#[derive(Clone, Debug)]
pub struct Domain(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    shelf: Shelf,
    tag: u32,
}

impl Domain {
    /// Opens the transport's one device.
    ///
    /// # Errors
    /// [`OpenError::UnknownDevice`] for any other name.
    pub fn open(device: &str) -> Result<Self, OpenError> {
        if device != DEVICE {
            return Err(OpenError::UnknownDevice {
                transport: NAME,
                device: device.to_owned(),
                known: DEVICE.to_owned(),
            });
        }
        Ok(Self(Arc::new(Shared { shelf: Shelf::new(random::number()), tag: domain_tag() })))
    }

    /// Allocates zeroed, page-aligned memory that peers can map.
    ///
    /// # Errors
    /// [`MemoryError::Empty`], [`MemoryError::NoMemory`], [`MemoryError::Device`]
    pub fn allocate(&self, len: usize, access: Access) -> Result<Memory, MemoryError> {
        self.allocated(len, access, self.0.shelf.region(len))
    }

    /// The same in the machine's huge pages, which someone must have reserved (`sysctl vm.nr_hugepages`): fewer entries of the TLB for who
    /// touches much of it.
    ///
    /// # Errors
    /// As [`Self::allocate`]; [`MemoryError::Device`] says how many pages there are.
    pub fn allocate_huge(&self, len: usize, access: Access) -> Result<Memory, MemoryError> {
        self.allocated(len, access, self.0.shelf.huge_region(len))
    }

    fn allocated(
        &self,
        len: usize,
        access: Access,
        region: Result<Region, SegmentError>,
    ) -> Result<Memory, MemoryError> {
        let region = region.map_err(|error| match error {
            SegmentError::Empty => MemoryError::Empty,
            SegmentError::NoMemory { .. } => MemoryError::NoMemory { length: len },
            error => MemoryError::Device { length: len, source: error.into() },
        })?;
        let bytes = Bytes::new(region.mapped().start(), len);
        Ok(Memory { bytes, access, region: Some(region), domain: self.clone() })
    }

    /// Takes memory that someone else owns, as a source or target of operations here. Peers cannot reach it.
    ///
    /// # Errors
    /// [`MemoryError::Empty`]
    ///
    /// # Safety
    /// `[start, start + len)` stays mapped, and is accessed in no other way than through atomics or this API, until
    /// the returned memory is dropped.
    pub unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Memory, MemoryError> {
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        Ok(Memory { bytes: Bytes::new(start, len), access, region: None, domain: self.clone() })
    }

    /// Makes a key from the bytes of the peer's [`Memory::pack_key`].
    ///
    /// # Errors
    /// [`KeyError`]: not a key, of another transport, or to memory that cannot be shared.
    pub fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey, KeyError> {
        let body = KeyBody::unpack(bytes)?;
        Ok(RemoteKey { id: body.shelf.wrapping_add(body.region), body })
    }

    pub(super) fn tag(&self) -> u32 {
        self.0.tag
    }

    pub(super) fn shelf(&self) -> &Shelf {
        &self.0.shelf
    }
}

/// A region of `shm`. Dropping it ends the rights of every key to it.
#[derive(Debug)]
pub struct Memory {
    bytes: Bytes,
    access: Access,
    /// `None` for memory of someone else.
    region: Option<Region>,
    domain: Domain,
}

impl Memory {
    memory_access!();

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// There are no device keys: slices carry the access rights.
    pub(crate) fn local_key(&self) -> u32 {
        self.access.bits()
    }

    pub(crate) fn domain(&self) -> u32 {
        self.domain.tag()
    }

    /// The bytes from which a peer's [`Domain::unpack_key`] makes a key.
    pub fn pack_key(&self) -> Vec<u8> {
        let key = KeyBody {
            shelf: self.domain.shelf().number(),
            region: self.region.as_ref().map_or(UNSHARED, Region::number),
            address: self.address(),
            length: self.len() as u64,
            access: self.access,
        };
        key.pack()
    }
}

/// A right to a region of a peer.
#[derive(Debug, Clone)]
pub struct RemoteKey {
    body: KeyBody,
    id: u64,
}

impl RemoteKey {
    /// The region's number among all of all processes: shelves have random numbers, and on each the first region is 0, the next 1.
    #[inline(always)]
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The process's regions, the one among them, and its length.
    pub(super) fn region(&self) -> (u64, u64, u64) {
        (self.body.shelf, self.body.region, self.body.length)
    }

    /// Where the region is in its own process.
    pub(super) fn address(&self) -> u64 {
        self.body.address
    }

    #[inline(always)]
    pub(super) fn allows(&self, need: Access) -> bool {
        self.body.access.contains(need)
    }

    /// The offset of an address in the region, if it is there at all.
    #[inline(always)]
    pub(super) fn offset(&self, remote: u64) -> u64 {
        remote.wrapping_sub(self.body.address)
    }
}
