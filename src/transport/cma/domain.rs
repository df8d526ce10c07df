//! Memory of `cma`: regions of this process that peers can access, and keys to regions of peers.

use std::mem::{forget, take};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use barewire_shared_bytes::SharedBytes;
use barewire_shm::{Entry, HugeMemory, HugePool, RegionKey, Table, TableError};

use super::address::KeyBody;
use super::transfer::Remote;
use super::{DEVICE, ID};
use crate::base::error::{KeyError, MemoryError, OpenError, PostError};
use crate::base::memory::{Access, MemoryConfig, domain_tag, memory_access};
use crate::transport;
use crate::transport::common::allocation::Allocation;
use crate::transport::common::host::find_host;
use crate::transport::common::pool::Block;

/// The memory of this process that peers can access. Cloning gives another handle to the same
/// domain.
#[derive(Clone, Debug)]
pub struct Domain(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    table: Table,
    tag: u32,
    pool: HugePool,
    /// Ended regions that a peer still had pinned, because it was stopped or killed during a copy.
    kept: Mutex<Vec<Region>>,
}

/// Number of bits of the access rights in a slice's key, below the region's index.
const ACCESS: u32 = 4;
const _: () = assert!(Access::all().bits() >> ACCESS == 0);

/// How long a deregistration waits for copies in progress. A copy takes less than a millisecond of
/// CPU time.
const PATIENCE: Duration = Duration::from_secs(1);

/// A region that peers can access: its table entry, and the memory if the domain owns it.
#[derive(Debug)]
struct Region {
    entry: Entry,
    allocation: Option<Owned>,
}

/// Memory that the domain allocated.
#[derive(Debug)]
enum Owned {
    Huge(HugeMemory),
    Small(Allocation),
}

impl Owned {
    /// Allocates `len` bytes: in huge pages if a part of one is not wasted on them, and if the
    /// kernel has huge pages.
    fn new(pool: &HugePool, len: usize) -> Result<Self, MemoryError> {
        if len >= HugePool::LEAST {
            match pool.take(len) {
                Ok(memory) => return Ok(Self::Huge(memory)),
                Err(error) => tracing::debug!(%error, len, "memory is allocated in small pages"),
            }
        }
        Allocation::new(len).map(Self::Small)
    }

    fn start(&self) -> NonNull<u8> {
        match self {
            Self::Huge(memory) => memory.start(),
            Self::Small(memory) => memory.start(),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let kept = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner);
        for mut region in take(kept) {
            if !region.entry.reclaim() {
                // Leaked: a peer may still write to it.
                forget(region.allocation.take());
            }
        }
    }
}

impl Domain {
    /// Opens the transport's one device.
    ///
    /// # Errors
    /// [`OpenError::UnknownDevice`] for any other name, [`OpenError::Device`] if the kernel has no
    /// memory for the region table.
    pub fn open(device: &str) -> Result<Self, OpenError> {
        transport::only_device(ID, DEVICE, device)?;
        find_host(device)?;
        let table = Table::new().map_err(|error| OpenError::Device {
            device: device.to_owned(),
            step: "create the region table",
            source: error.into(),
        })?;
        Ok(Self(Arc::new(Shared {
            table,
            tag: domain_tag(),
            pool: HugePool::default(),
            kept: Mutex::default(),
        })))
    }

    /// Returns the kept regions, without those that no peer has pinned any more.
    fn kept(&self) -> MutexGuard<'_, Vec<Region>> {
        // Each change is one operation on the vector, so it is consistent even if the lock is
        // poisoned.
        let mut kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain_mut(|region| !region.entry.reclaim());
        kept
    }

    /// # Safety
    /// Until the entry of the region was reclaimed, the bytes stay mapped, and are accessed only
    /// through atomics or the kernel.
    unsafe fn add(
        &self,
        bytes: SharedBytes,
        access: Access,
        allocation: Option<Owned>,
    ) -> Result<Memory, MemoryError> {
        // SAFETY: the bytes stay mapped and are accessed only through atomics or the kernel until
        // the entry was reclaimed (contract of this function), as `publish` requires.
        let entry = unsafe {
            let start = bytes.start().addr().get() as u64;
            self.0.table.publish(start, bytes.len() as u64, access.bits())
        };
        let entry = entry
            .map_err(|error| MemoryError::Device { length: bytes.len(), source: error.into() })?;
        // Only after `publish`, which fails in a forked child: a child must not take this lock.
        drop(self.kept());
        let key = entry.key();
        Ok(Memory {
            bytes,
            access,
            key,
            region: Some(Region { entry, allocation }),
            domain: self.clone(),
        })
    }

    /// Returns the region of a slice's key.
    pub(super) fn region(&self, key: u32) -> Result<RegionKey, PostError> {
        self.0.table.key(key >> ACCESS).ok_or(PostError::ForeignMemory)
    }

    pub(super) fn table(&self) -> &Table {
        &self.0.table
    }

    pub(super) fn tag(&self) -> u32 {
        self.0.tag
    }
}

impl transport::Domain for Domain {
    type Memory = Memory;
    type RemoteKey = RemoteKey;

    fn name(&self) -> &str {
        DEVICE
    }

    fn allocate(&self, len: usize, config: impl Into<MemoryConfig>) -> Result<Memory, MemoryError> {
        let config = config.into();
        let allocation = Owned::new(&self.0.pool, len)?;
        let bytes = config.bytes(allocation.start(), len)?;
        // SAFETY: a region frees or releases its allocation only after its entry was reclaimed, and
        // this process accesses the bytes only as atomics or through the kernel.
        unsafe { self.add(bytes, config.access(), Some(allocation)) }
    }

    unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        config: impl Into<MemoryConfig>,
    ) -> Result<Memory, MemoryError> {
        let config = config.into();
        let bytes = config.bytes(start, len)?;
        // SAFETY: the caller keeps the bytes mapped and accesses them only through atomics or this
        // API until `deregister` returns `Ok` (contract of this function), which happens only after
        // the entry was reclaimed.
        unsafe { self.add(bytes, config.access(), None) }
    }

    fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey, KeyError> {
        KeyBody::unpack(bytes).map(RemoteKey)
    }
}

/// A region of `cma`. Dropping it revokes every key to it.
#[derive(Debug)]
#[must_use = "dropping the memory deregisters it"]
pub struct Memory {
    bytes: SharedBytes,
    access: Access,
    key: RegionKey,
    /// `None` after deregistration.
    region: Option<Region>,
    domain: Domain,
}

impl Memory {
    memory_access!();

    pub(crate) fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }

    /// Returns the region's index and its rights.
    pub(crate) fn local_key(&self) -> u32 {
        self.key.index << ACCESS | self.access.bits()
    }

    pub(crate) fn domain(&self) -> u32 {
        self.domain.tag()
    }

    /// Returns the bytes from which a peer's [`unpack_key`](crate::Domain::unpack_key) creates a
    /// key.
    pub fn pack_key(&self) -> Vec<u8> {
        let domain = self.domain.table().address().secret as u64;
        let start = self.bytes.start().addr().get() as u64;
        KeyBody { domain, region: self.key, shift: self.address().wrapping_sub(start) }.pack()
    }

    /// Deregisters the region. After `Ok` no key and no operation in flight reaches the memory:
    /// registered memory is under the caller's control again. Allocated memory is freed, or kept as
    /// long as an operation of a stopped peer could access it.
    ///
    /// # Errors
    /// [`MemoryError::Deregister`] if memory of [`register`](crate::Domain::register) is still in
    /// use after a second, because a peer was stopped or killed during an operation on it.
    pub fn deregister(mut self) -> Result<(), MemoryError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), MemoryError> {
        let Some(mut region) = self.region.take() else { return Ok(()) };
        let is_ours = region.allocation.is_some();
        let begin = Instant::now();
        while !region.entry.reclaim() {
            if !is_ours && begin.elapsed() < PATIENCE {
                thread::sleep(Duration::from_micros(50));
                continue;
            }
            self.domain.kept().push(region);
            let error =
                MemoryError::Deregister { length: self.len(), source: TableError::Pinned.into() };
            return if is_ours { Ok(()) } else { Err(error) };
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, address = self.address(), "memory was dropped while a peer uses it");
        }
    }
}

/// The right to access a region of a peer.
#[derive(Debug, Clone)]
pub struct RemoteKey(KeyBody);

impl RemoteKey {
    /// Returns the memory at `remote`, if the key is of the domain with `secret`.
    pub(super) fn resolve(&self, remote: u64, secret: u128) -> Result<Remote, PostError> {
        if self.0.domain != secret as u64 {
            return Err(PostError::ForeignKey);
        }
        Ok(Remote { address: remote.wrapping_sub(self.0.shift), key: self.0.region })
    }
}
