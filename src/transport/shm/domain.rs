//! Memory of `shm`: regions that peers map, memory that they do not, and keys to the regions of peers.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use barewire_shm::{Region, RegionSet, SegmentError};

use super::address::{KeyBody, UNSHARED, find_host};
use super::{DEVICE, NAME};
use crate::error::{KeyError, MemoryError, OpenError};
use crate::memory::{Access, domain_tag, memory_access};
use crate::transport::common::copy::Bytes;
use crate::transport::common::random;

/// The memory that this process shares with others. Cloning gives another handle to the same domain.
#[derive(Clone, Debug)]
pub struct Domain(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    regions: RegionSet,
    tag: u32,
    huge_pages: AtomicBool,
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
        find_host(device)?;
        Ok(Self(Arc::new(Shared {
            regions: RegionSet::new(random::number()),
            tag: domain_tag(),
            huge_pages: AtomicBool::new(false),
        })))
    }

    /// Allocates zeroed, page-aligned memory that peers can map.
    ///
    /// # Errors
    /// [`MemoryError::Empty`], [`MemoryError::NoMemory`], [`MemoryError::Device`]
    pub fn allocate(&self, len: usize, access: Access) -> Result<Memory, MemoryError> {
        self.allocated(len, access, self.0.regions.region(len))
    }

    /// The same in the machine's huge pages, which someone must have reserved (`sysctl vm.nr_hugepages`): fewer entries of the TLB for who
    /// touches much of it. Peers reach it that called [`accept_huge_pages`](Self::accept_huge_pages).
    ///
    /// # Errors
    /// As [`Self::allocate`]; [`MemoryError::Device`] says how many pages there are.
    pub fn allocate_huge(&self, len: usize, access: Access) -> Result<Memory, MemoryError> {
        self.allocated(len, access, self.0.regions.huge_region(len))
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
        let access = access & Access::all();
        Ok(Memory { bytes, access, region: Some(region), domain: self.clone() })
    }

    /// Lets endpoints of interfaces that are opened from now on reach peers' memory in huge pages
    /// ([`allocate_huge`](Self::allocate_huge)), which is refused otherwise: a peer that gives a huge page
    /// back while the machine has none free makes the next access to it here end the process (SIGBUS).
    pub fn accept_huge_pages(&self) {
        self.0.huge_pages.store(true, Ordering::Relaxed);
    }

    pub(super) fn accepts_huge_pages(&self) -> bool {
        self.0.huge_pages.load(Ordering::Relaxed)
    }

    /// Takes memory that someone else owns, as a source or target of operations here. Peers cannot reach it.
    ///
    /// # Errors
    /// [`MemoryError::Empty`]
    ///
    /// # Safety
    /// Until [`Memory::deregister`] has returned `Ok`, `[start, start + len)` stays mapped, and this process
    /// accesses it in no other way than through atomics or this API. Dropping the memory deregisters it
    /// too, but cannot report that the device refused: memory that was dropped stays as it is for the
    /// life of the process.
    pub unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Memory, MemoryError> {
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        let access = access & Access::all();
        Ok(Memory { bytes: Bytes::new(start, len), access, region: None, domain: self.clone() })
    }

    /// Makes a key from the bytes of the peer's [`Memory::pack_key`]. The first operation that uses
    /// a key to a region asks the peer for the region and returns
    /// [`NoResource`](crate::PostError::NoResource) until the peer makes progress.
    ///
    /// # Errors
    /// [`KeyError`]: not a key, of another transport, or to memory that cannot be shared.
    pub fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey, KeyError> {
        let body = KeyBody::unpack(bytes)?;
        Ok(RemoteKey { id: body.region_set.wrapping_add(body.region), body })
    }

    pub(super) fn tag(&self) -> u32 {
        self.0.tag
    }

    pub(super) fn regions(&self) -> &RegionSet {
        &self.0.regions
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

    /// Deregisters the region. After `Ok` no key and no operation in flight reaches the memory any more:
    /// what was allocated is freed, what was registered is the caller's again.
    ///
    /// # Errors
    /// None: there is no device that could refuse.
    pub fn deregister(self) -> Result<(), MemoryError> {
        // Peers reach only memory that was allocated here. A post copies from and to a slice before it
        // returns, and borrows the memory until then.
        drop(self);
        Ok(())
    }

    /// The bytes from which a peer's [`Domain::unpack_key`] makes a key.
    pub fn pack_key(&self) -> Vec<u8> {
        let key = KeyBody {
            region_set: self.domain.regions().number(),
            region: self.region.as_ref().map_or(UNSHARED, Region::number),
            address: self.address(),
            length: self.len() as u64,
            access: self.access,
        };
        key.pack()
    }
}

/// A right to a region of a peer.
#[derive(Clone)]
pub struct RemoteKey {
    body: KeyBody,
    id: u64,
}

impl RemoteKey {
    /// The region's number among all of all processes. In one set the lowest two bits count.
    #[inline(always)]
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The process's regions, the one among them, and its length.
    pub(super) fn region(&self) -> (u64, u64, u64) {
        (self.body.region_set, self.body.region, self.body.length)
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

/// Without the region's number, which is the secret of its keys.
impl fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteKey")
            .field("length", &self.body.length)
            .field("access", &self.body.access)
            .finish_non_exhaustive()
    }
}
