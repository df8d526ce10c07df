//! Memory of `self`: regions of this process, found by number.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::address::{AddressError, Kind, Packed, TransportId};
use crate::allocation::Allocation;
use crate::copy::Bytes;
use crate::error::{KeyError, MemoryError, OpenError, PostError};
use crate::memory::{Access, domain_tag, memory_access};
use crate::pool::Block;
use crate::random;

/// The process's memory as `self` sees it. Cloning gives another handle to the same domain.
#[derive(Clone, Debug)]
pub struct Domain(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Told to peers in keys; random, so that a key of another process is not taken for one of ours.
    id: u64,
    tag: u32,
    regions: Mutex<Regions>,
}

#[derive(Debug, Default)]
struct Regions {
    next: u64,
    live: HashMap<u64, Weak<Region>>,
}

impl Shared {
    fn regions(&self) -> MutexGuard<'_, Regions> {
        // Every change is one map operation, so a poisoned map is whole.
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Domain {
    /// Opens the transport's one device.
    ///
    /// # Errors
    /// [`OpenError::UnknownDevice`] for any other name.
    pub fn open(device: &str) -> Result<Self, OpenError> {
        if device != super::DEVICE {
            return Err(OpenError::UnknownDevice {
                transport: super::NAME,
                device: device.to_owned(),
                known: super::DEVICE.to_owned(),
            });
        }
        Ok(Self(Arc::new(Shared { id: random::number(), tag: domain_tag(), regions: Mutex::default() })))
    }

    /// Allocates zeroed, page-aligned memory and registers it.
    ///
    /// # Errors
    /// [`MemoryError::Empty`], [`MemoryError::NoMemory`]
    pub fn allocate(&self, len: usize, access: Access) -> Result<Memory, MemoryError> {
        let allocation = Allocation::new(len)?;
        let bytes = Bytes::new(allocation.start(), len);
        Ok(self.add(bytes, access, Some(allocation)))
    }

    /// Registers memory that someone else owns.
    ///
    /// # Errors
    /// [`MemoryError::Empty`]
    ///
    /// # Safety
    /// `[start, start + len)` stays mapped, and is accessed in no other way than through atomics or this API, until
    /// the returned memory and every key unpacked from it are dropped.
    pub unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Memory, MemoryError> {
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        Ok(self.add(Bytes::new(start, len), access, None))
    }

    fn add(&self, bytes: Bytes, access: Access, allocation: Option<Allocation>) -> Memory {
        let mut regions = self.0.regions();
        let id = regions.next;
        regions.next += 1;
        let region = Arc::new(Region {
            bytes,
            access,
            tag: self.0.tag,
            live: AtomicBool::new(true),
            _allocation: allocation,
        });
        regions.live.insert(id, Arc::downgrade(&region));
        Memory { id, region, domain: self.clone() }
    }

    /// Makes a key from the bytes of [`Memory::pack_key`].
    ///
    /// # Errors
    /// [`KeyError`]: not a key, of another transport or domain, or its region was freed.
    pub fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey, KeyError> {
        let packed = Packed::parse(Kind::Key, bytes)?;
        let transport = packed.transport();
        let (TransportId::Self_, Some(body)) = (transport, packed.body::<16>()) else {
            return Err(KeyError::ForeignTransport { expected: super::NAME, found: transport.name() });
        };
        let (domain, region) = halves(body);
        if domain != self.0.id {
            return Err(KeyError::ForeignDomain);
        }
        let regions = self.0.regions();
        if region >= regions.next {
            return Err(KeyError::Format(AddressError::Field("region")));
        }
        let region = regions.live.get(&region).and_then(Weak::upgrade).ok_or(KeyError::Expired)?;
        Ok(RemoteKey(region))
    }

    pub(super) fn tag(&self) -> u32 {
        self.0.tag
    }
}

fn halves(body: &[u8; 16]) -> (u64, u64) {
    let all = u128::from_be_bytes(*body);
    ((all >> 64) as u64, all as u64)
}

#[derive(Debug)]
struct Region {
    bytes: Bytes,
    access: Access,
    tag: u32,
    /// Cleared when the `Memory` is dropped; keys keep the bytes themselves alive.
    live: AtomicBool,
    _allocation: Option<Allocation>,
}

/// A region of `self`. Dropping it ends the rights of every key to it.
#[derive(Debug)]
pub struct Memory {
    id: u64,
    region: Arc<Region>,
    domain: Domain,
}

impl Memory {
    memory_access!();

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.region.bytes
    }

    /// `self` has no device keys: slices carry the access rights.
    pub(crate) fn local_key(&self) -> u32 {
        self.region.access.bits()
    }

    pub(crate) fn domain(&self) -> u32 {
        self.region.tag
    }

    /// The bytes from which [`Domain::unpack_key`] makes a key.
    pub fn pack_key(&self) -> Vec<u8> {
        let body = u128::from(self.domain.0.id) << 64 | u128::from(self.id);
        Packed::new(Kind::Key, TransportId::Self_, &body.to_be_bytes()).bytes().to_vec()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.region.live.store(false, Ordering::Release);
        self.domain.0.regions().live.remove(&self.id);
    }
}

/// A right to a region of this process.
#[derive(Debug, Clone)]
pub struct RemoteKey(Arc<Region>);

impl RemoteKey {
    /// The bytes of the region and the offset of `remote` in them, if the key gives `need` on the range.
    #[inline]
    pub(super) fn resolve(
        &self,
        domain: u32,
        remote: u64,
        length: usize,
        need: Access,
    ) -> Result<(&Bytes, usize), PostError> {
        let region = &*self.0;
        if region.tag != domain {
            return Err(PostError::ForeignKey);
        }
        if !region.live.load(Ordering::Acquire) {
            return Err(PostError::KeyExpired);
        }
        if !region.access.contains(need) {
            return Err(PostError::AccessDenied);
        }
        let offset = region.bytes.offset_of(remote, length).ok_or(PostError::OutOfRange)?;
        Ok((&region.bytes, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_checked() {
        let domain = Domain::open("memory").unwrap();
        let memory = domain.allocate(16, Access::REMOTE_READ).unwrap();
        let packed = memory.pack_key();
        let key = domain.unpack_key(&packed).unwrap();
        let at = memory.address();
        let try_read = |offset, length| {
            key.resolve(domain.tag(), at + offset, length, Access::REMOTE_READ).map(|(_, at)| at)
        };
        assert_eq!(try_read(0, 16), Ok(0));
        assert_eq!(try_read(16, 0), Ok(16));
        assert_eq!(try_read(1, 16), Err(PostError::OutOfRange));
        assert_eq!(
            key.resolve(domain.tag(), at, 1, Access::REMOTE_WRITE).map(|_| ()),
            Err(PostError::AccessDenied)
        );
        let other = Domain::open("memory").unwrap();
        assert_eq!(other.unpack_key(&packed).map(|_| ()), Err(KeyError::ForeignDomain));
        assert_eq!(
            key.resolve(other.tag(), at, 1, Access::REMOTE_READ).map(|_| ()),
            Err(PostError::ForeignKey)
        );
        drop(memory);
        assert_eq!(
            key.resolve(domain.tag(), at, 1, Access::REMOTE_READ).map(|_| ()),
            Err(PostError::KeyExpired)
        );
        assert_eq!(domain.unpack_key(&packed).map(|_| ()), Err(KeyError::Expired));
        assert!(matches!(domain.unpack_key(&packed[..9]), Err(KeyError::Format(_))));
    }
}
