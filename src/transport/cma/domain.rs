//! Memory of `cma`: any of this process, and keys to that of peers.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::address::KeyBody;
use super::{DEVICE, NAME};
use crate::allocation::Allocation;
use crate::copy::Bytes;
use crate::error::{KeyError, MemoryError, OpenError, PostError};
use crate::memory::{Access, domain_tag, memory_access};
use crate::pool::Block;
use crate::random;

/// The memory of this process as peers reach it. Cloning gives another handle to the same domain.
#[derive(Clone, Debug)]
pub struct Domain(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Told to peers in keys and addresses, so that a key is not used on another process.
    secret: u128,
    tag: u32,
    regions: Mutex<Regions>,
}

#[derive(Debug, Default)]
struct Regions {
    next: u32,
    live: HashMap<u32, Arc<Region>>,
}

/// Bits of the access rights in a slice's key, below the region's number.
const ACCESS: u32 = 4;
const MOST: u32 = u32::MAX >> ACCESS;
const _: () = assert!(Access::all().bits() >> ACCESS == 0);

/// The rights of a slice's key.
pub(super) fn access(key: u32) -> Access {
    Access::from_bits_truncate(key)
}

/// Memory that stays mapped while an operation is in progress on it.
#[derive(Debug)]
pub(super) struct Region {
    bytes: Bytes,
    access: Access,
    _allocation: Option<Allocation>,
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
        let secret = u128::from(random::number()) << 64 | u128::from(random::number());
        Ok(Self(Arc::new(Shared { secret, tag: domain_tag(), regions: Mutex::default() })))
    }

    fn regions(&self) -> MutexGuard<'_, Regions> {
        // Every change is one map operation, so a poisoned map is whole.
        self.0.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates zeroed, page-aligned memory and registers it.
    ///
    /// # Errors
    /// [`MemoryError::Empty`], [`MemoryError::NoMemory`]
    pub fn allocate(&self, len: usize, access: Access) -> Result<Memory, MemoryError> {
        let allocation = Allocation::new(len)?;
        let bytes = Bytes::new(allocation.start(), len);
        Ok(self.add(Region { bytes, access, _allocation: Some(allocation) }))
    }

    /// Registers memory that someone else owns.
    ///
    /// # Errors
    /// [`MemoryError::Empty`]
    ///
    /// # Safety
    /// `[start, start + len)` stays mapped, and is accessed in no other way than through atomics or this API, until
    /// the returned memory is dropped and no operation on it is in progress.
    pub unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Memory, MemoryError> {
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        Ok(self.add(Region { bytes: Bytes::new(start, len), access, _allocation: None }))
    }

    fn add(&self, region: Region) -> Memory {
        let region = Arc::new(region);
        let mut regions = self.regions();
        let mut number = regions.next;
        while regions.live.contains_key(&number) {
            number = (number + 1) & MOST;
        }
        regions.next = (number + 1) & MOST;
        regions.live.insert(number, Arc::clone(&region));
        Memory { number, region, domain: self.clone() }
    }

    /// The region of a slice's key, to keep it mapped.
    pub(super) fn region(&self, key: u32) -> Result<Arc<Region>, PostError> {
        self.regions().live.get(&(key >> ACCESS)).cloned().ok_or(PostError::ForeignMemory)
    }

    /// Makes a key from the bytes of the peer's [`Memory::pack_key`].
    ///
    /// # Errors
    /// [`KeyError`]: not a key, or of another transport.
    pub fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey, KeyError> {
        KeyBody::unpack(bytes).map(RemoteKey)
    }

    pub(super) fn tag(&self) -> u32 {
        self.0.tag
    }

    pub(super) fn secret(&self) -> u128 {
        self.0.secret
    }
}

/// A region of `cma`.
#[derive(Debug)]
pub struct Memory {
    number: u32,
    region: Arc<Region>,
    domain: Domain,
}

impl Memory {
    memory_access!();

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.region.bytes
    }

    /// The region's number and its rights.
    pub(crate) fn local_key(&self) -> u32 {
        self.number << ACCESS | self.region.access.bits()
    }

    pub(crate) fn domain(&self) -> u32 {
        self.domain.tag()
    }

    /// The bytes from which a peer's [`Domain::unpack_key`] makes a key.
    pub fn pack_key(&self) -> Vec<u8> {
        let key = KeyBody {
            domain: self.domain.secret() as u64,
            address: self.address(),
            length: self.len() as u64,
            access: self.region.access,
        };
        key.pack()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.domain.regions().live.remove(&self.number);
    }
}

/// A right to a region of a peer.
#[derive(Debug, Clone)]
pub struct RemoteKey(KeyBody);

impl RemoteKey {
    /// Refuses a range that the key gives no `need` on, and a key of another domain than the one with `secret`.
    pub(super) fn check(
        &self,
        secret: u128,
        remote: u64,
        length: usize,
        need: Access,
    ) -> Result<(), PostError> {
        let body = &self.0;
        if body.domain != secret as u64 {
            return Err(PostError::ForeignKey);
        }
        if !body.access.contains(need) {
            return Err(PostError::AccessDenied);
        }
        let offset = remote.wrapping_sub(body.address);
        if offset > body.length || length as u64 > body.length - offset {
            return Err(PostError::OutOfRange);
        }
        Ok(())
    }
}
