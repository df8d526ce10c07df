//! Memory of `shm`: regions that peers can map, memory that they cannot, and keys to regions of
//! peers.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use barewire_shared_bytes::{Layout, SharedBytes};
use barewire_shm::{Region, RegionPlace, RegionSet, SegmentError};

use super::address::{KeyBody, UNSHARED};
use super::{DEVICE, ID};
use crate::base::error::{KeyError, MemoryError, OpenError};
use crate::base::memory::{Access, MemoryConfig, domain_tag, memory_access};
use crate::base::random;
use crate::transport;
use crate::transport::common::host::find_host;
use crate::transport::common::slots::Slots;

/// The memory that this process shares. Cloning gives another handle to the same domain.
#[derive(Clone, Debug)]
pub struct Domain(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    regions: RegionSet,
    tag: u32,
    huge_pages: AtomicBool,
    /// The lists of views, by the numbers in their slices.
    lists: Mutex<Slots<Arc<Layout<Range>>>>,
}

/// A range's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(super) bytes: SharedBytes,
    /// [`UNSHARED`] for memory that peers cannot map.
    pub(super) region: u64,
}

impl Domain {
    /// Opens the transport's one device.
    ///
    /// # Errors
    /// [`OpenError::UnknownDevice`] for any other name.
    pub fn open(device: &str) -> Result<Self, OpenError> {
        transport::only_device(ID, DEVICE, device)?;
        find_host(device)?;
        Ok(Self(Arc::new(Shared {
            regions: RegionSet::new(random::number()),
            tag: domain_tag(),
            huge_pages: AtomicBool::new(false),
            lists: Mutex::default(),
        })))
    }

    /// As [`allocate`](crate::Domain::allocate), in huge pages, which must have been reserved
    /// (`sysctl vm.nr_hugepages`). They need fewer TLB entries. Only peers that called
    /// [`accept_huge_pages`](Self::accept_huge_pages) can access them.
    ///
    /// # Errors
    /// As [`allocate`](crate::Domain::allocate); [`MemoryError::Device`] gives the number of
    /// reserved pages.
    pub fn allocate_huge(&self, len: usize, access: Access) -> Result<Memory, MemoryError> {
        self.allocated(len, access.into(), self.0.regions.huge_region(len))
    }

    fn allocated(
        &self,
        len: usize,
        config: MemoryConfig,
        region: Result<Region, SegmentError>,
    ) -> Result<Memory, MemoryError> {
        let region = region.map_err(|error| match error {
            SegmentError::Empty => MemoryError::Empty,
            SegmentError::NoMemory { .. } => MemoryError::NoMemory { length: len },
            error => MemoryError::Device { length: len, source: error.into() },
        })?;
        let bytes = config.bytes(region.mapped().start(), len)?;
        let access = config.access();
        Ok(Memory { bytes, access, region: Some(region), domain: self.clone() })
    }

    /// Lets endpoints of interfaces that are opened from now on access peers' memory in huge pages
    /// ([`allocate_huge`](Self::allocate_huge)). By default this is refused: if a peer releases a
    /// huge page while the machine has none free, the next access here ends this process (SIGBUS).
    pub fn accept_huge_pages(&self) {
        self.0.huge_pages.store(true, Ordering::Relaxed);
    }

    pub(super) fn accepts_huge_pages(&self) -> bool {
        self.0.huge_pages.load(Ordering::Relaxed)
    }

    pub(super) fn tag(&self) -> u32 {
        self.0.tag
    }

    pub(super) fn regions(&self) -> &RegionSet {
        &self.0.regions
    }

    pub(super) fn lists(&self) -> MutexGuard<'_, Slots<Arc<Layout<Range>>>> {
        // Each change is one store, so the table is consistent even if the lock is poisoned.
        self.0.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl transport::Domain for Domain {
    type Memory = Memory;
    type RemoteKey = RemoteKey;

    fn name(&self) -> &str {
        DEVICE
    }

    fn allocate(&self, len: usize, config: impl Into<MemoryConfig>) -> Result<Memory, MemoryError> {
        self.allocated(len, config.into(), self.0.regions.region(len))
    }

    unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        config: impl Into<MemoryConfig>,
    ) -> Result<Memory, MemoryError> {
        let config = config.into();
        let bytes = config.bytes(start, len)?;
        Ok(Memory { bytes, access: config.access(), region: None, domain: self.clone() })
    }

    fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey, KeyError> {
        let body = KeyBody::unpack(bytes)?;
        // The cache of mapped regions has none with this number.
        let id = if body.is_list { 0 } else { body.region_set.wrapping_add(body.region) };
        Ok(RemoteKey { id, body, huge_pages: self.accepts_huge_pages() })
    }
}

/// A region of `shm`. Dropping it revokes every key to it.
#[derive(Debug)]
#[must_use = "dropping the memory deregisters it"]
pub struct Memory {
    bytes: SharedBytes,
    access: Access,
    /// `None` for registered memory.
    region: Option<Region>,
    domain: Domain,
}

impl Memory {
    memory_access!();

    pub(crate) fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }

    /// Returns the access rights: there are no device keys, so slices carry these instead.
    pub(crate) fn local_key(&self) -> u32 {
        self.access.bits()
    }

    pub(crate) fn domain(&self) -> u32 {
        self.domain.tag()
    }

    /// Returns the number of the region for keys; [`UNSHARED`] if peers cannot map it.
    pub(super) fn region(&self) -> u64 {
        self.region.as_ref().map_or(UNSHARED, Region::number)
    }

    /// Deregisters the region. After `Ok` no key and no operation in flight reaches the memory:
    /// allocated memory is freed, and registered memory is under the caller's control again.
    ///
    /// # Errors
    /// None: there is no device that could refuse.
    pub fn deregister(self) -> Result<(), MemoryError> {
        // Peers access only allocated memory. A post borrows its slices and finishes the copy
        // before it returns, so no operation uses registered memory now.
        drop(self);
        Ok(())
    }

    /// Returns the bytes from which a peer's [`unpack_key`](crate::Domain::unpack_key) creates a
    /// key.
    pub fn pack_key(&self) -> Vec<u8> {
        let place = self.region.as_ref().map(Region::place);
        let key = KeyBody {
            region_set: self.domain.regions().number(),
            region: self.region(),
            address: self.address(),
            length: self.len() as u64,
            process: place.map_or(0, |place| place.process),
            descriptor: place.map_or(0, |place| place.descriptor),
            access: self.access,
            is_list: false,
        };
        key.pack()
    }
}

/// The right to access a region of a peer.
#[derive(Clone)]
pub struct RemoteKey {
    body: KeyBody,
    id: u64,
    /// The domain accepts memory in huge pages.
    huge_pages: bool,
}

impl RemoteKey {
    /// Identifies the region among all regions of all processes. Within one set only the lowest two
    /// bits differ.
    #[inline(always)]
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the set of the process's regions, the region in it, and its length.
    pub(super) fn region(&self) -> (u64, u64, u64) {
        (self.body.region_set, self.body.region, self.body.length)
    }

    /// Returns where the region is, and whether it may be in huge pages.
    pub(super) fn place(&self) -> (RegionPlace, bool) {
        let KeyBody { process, descriptor, region_set, region, .. } = self.body;
        (RegionPlace { process, descriptor, region_set, region }, self.huge_pages)
    }

    /// Returns whether the region is the list of a view.
    pub(super) fn is_list(&self) -> bool {
        self.body.is_list
    }

    /// Address of the region in its own process.
    pub(super) fn address(&self) -> u64 {
        self.body.address
    }

    #[inline(always)]
    pub(super) fn allows(&self, need: Access) -> bool {
        self.body.access.contains(need)
    }

    /// Returns the offset of an address from the region's start; the caller checks it against the
    /// length.
    #[inline(always)]
    pub(super) fn offset(&self, remote: u64) -> u64 {
        remote.wrapping_sub(self.body.address)
    }
}

/// Omits the region's number, which is the secret of its keys.
impl fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteKey")
            .field("length", &self.body.length)
            .field("access", &self.body.access)
            .finish_non_exhaustive()
    }
}
