//! Memory of `self`: regions of this process, found by id.

use std::collections::HashMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::base::address::{AddressError, Kind, Packed, TransportId};
use crate::base::error::{KeyError, MemoryError, OpenError, PostError};
use crate::base::fork::Maker;
use crate::base::memory::{Access, MemoryConfig, domain_tag, memory_access};
use crate::base::random;
use crate::transport;
use crate::transport::common::allocation::Allocation;
use crate::transport::common::pool::Block;
use crate::transport::common::slots::{Slots, slice_key};
use barewire_shared_bytes::{Layout, SharedBytes};

/// The memory of this process. Cloning gives another handle to the same domain.
#[derive(Clone, Debug)]
pub struct Domain(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Part of each key; random, so that a key of another process is recognised as foreign.
    id: u64,
    tag: u32,
    regions: Mutex<Regions>,
    /// A forked child does not lock `regions`: a thread that exists only in the parent may hold the
    /// lock.
    maker: Maker,
}

#[derive(Debug, Default)]
struct Regions {
    next: u64,
    live: HashMap<u64, Weak<Region>>,
    /// Lists by the numbers in their slices.
    lists: Slots<Arc<Region>>,
}

impl Shared {
    fn regions(&self) -> MutexGuard<'_, Regions> {
        // Each change is one map operation, so the map is consistent even if the lock is poisoned.
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Domain {
    /// Opens the transport's one device.
    ///
    /// # Errors
    /// [`OpenError::UnknownDevice`] for any other name.
    pub fn open(device: &str) -> Result<Self, OpenError> {
        transport::only_device(super::ID, super::DEVICE, device)?;
        Ok(Self(Arc::new(Shared {
            id: random::number(),
            tag: domain_tag(),
            regions: Mutex::default(),
            maker: Maker::this_process(),
        })))
    }

    fn add(&self, bytes: SharedBytes, access: Access, owner: Owner) -> Memory {
        let (id, region) = self.insert(bytes, access, owner);
        Memory { id, region, domain: self.clone() }
    }

    fn insert(&self, bytes: SharedBytes, access: Access, owner: Owner) -> (u64, Arc<Region>) {
        let mut regions = self.0.regions();
        let id = regions.next;
        regions.next += 1;
        let (access, live) = (access & Access::all(), AtomicBool::new(true));
        let region = Arc::new(Region { bytes, access, tag: self.0.tag, live, owner });
        regions.live.insert(id, Arc::downgrade(&region));
        (id, region)
    }

    /// Ends a region, unless this is a forked child, in which the parent's stays.
    pub(super) fn close(&self, id: u64, region: &Region) {
        if !self.0.maker.is_parent() {
            self.0.regions().live.remove(&id);
            region.end();
        }
    }

    /// Adds a list of ranges of regions.
    pub(super) fn insert_list(
        &self,
        layout: Layout<Arc<Region>>,
        access: Access,
    ) -> (u64, Arc<Region>) {
        let nothing = SharedBytes::at(NonNull::dangling(), 0, 0);
        self.insert(nothing, access, Owner::List(layout))
    }

    /// Returns a number by which slices name a list; `None` if all are in use.
    pub(super) fn claim_slot(&self, list: &Arc<Region>) -> Option<u32> {
        self.0.regions().lists.claim(Arc::clone(list))
    }

    pub(super) fn release_slot(&self, slot: u32) {
        if !self.0.maker.is_parent() {
            self.0.regions().lists.release(slot);
        }
    }

    /// Returns the list whose slices have `key`.
    pub(super) fn list_of_slice(&self, key: u32) -> Option<Arc<Region>> {
        self.0.regions().lists.of_slice(key)
    }

    /// Returns the bytes of the key of a region.
    pub(super) fn pack(&self, id: u64) -> Vec<u8> {
        let body = u128::from(self.0.id) << 64 | u128::from(id);
        Packed::new(Kind::Key, TransportId::Self_, &body.to_be_bytes()).bytes().to_vec()
    }

    pub(super) fn tag(&self) -> u32 {
        self.0.tag
    }
}

impl transport::Domain for Domain {
    type Memory = Memory;
    type RemoteKey = RemoteKey;

    fn name(&self) -> &str {
        super::DEVICE
    }

    fn allocate(&self, len: usize, config: impl Into<MemoryConfig>) -> Result<Memory, MemoryError> {
        let config = config.into();
        let allocation = Allocation::new(len)?;
        let bytes = config.bytes(allocation.start(), len)?;
        Ok(self.add(bytes, config.access(), Owner::Region(allocation)))
    }

    unsafe fn register(
        &self,
        start: NonNull<u8>,
        len: usize,
        config: impl Into<MemoryConfig>,
    ) -> Result<Memory, MemoryError> {
        let config = config.into();
        let bytes = config.bytes(start, len)?;
        Ok(self.add(bytes, config.access(), Owner::Caller { users: AtomicUsize::new(0) }))
    }

    fn unpack_key(&self, bytes: &[u8]) -> Result<RemoteKey, KeyError> {
        let packed = Packed::parse(Kind::Key, bytes)?;
        let transport = packed.transport();
        let (TransportId::Self_, Some(body)) = (transport, packed.body::<16>()) else {
            return Err(KeyError::ForeignTransport { expected: super::ID, found: transport });
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
}

fn halves(body: &[u8; 16]) -> (u64, u64) {
    let all = u128::from_be_bytes(*body);
    ((all >> 64) as u64, all as u64)
}

#[derive(Debug)]
pub(crate) struct Region {
    bytes: SharedBytes,
    access: Access,
    tag: u32,
    /// Cleared when the `Memory` is deregistered or dropped.
    live: AtomicBool,
    owner: Owner,
}

#[derive(Debug)]
enum Owner {
    /// Memory of the region, which every key keeps alive.
    #[expect(dead_code, reason = "held for its drop")]
    Region(Allocation),
    /// Memory of the caller, reusable once the region has ended and no operation uses it.
    Caller {
        /// Operations in progress through keys, which may be on other threads.
        users: AtomicUsize,
    },
    /// Ranges of other regions.
    List(Layout<Arc<Region>>),
    /// Memory of another region, of which only a range may be accessed.
    Part { whole: Arc<Region>, range: Range<usize> },
}

impl Region {
    /// Prevents the owner from reusing the memory. `None` if the region has ended.
    #[inline]
    pub(super) fn hold(&self) -> Option<Hold<'_>> {
        let users = match &self.owner {
            Owner::Region(_) | Owner::List(_) => None,
            Owner::Caller { users } => {
                // Before the load below, as `end` stores before it loads: at least one of the two
                // sees the other.
                users.fetch_add(1, Ordering::SeqCst);
                Some(users)
            }
            Owner::Part { whole, .. } => return self.hold_part(whole),
        };
        let hold = Hold(users);
        self.live.load(Ordering::SeqCst).then_some(hold)
    }

    #[inline(never)]
    fn hold_part<'a>(&self, whole: &'a Self) -> Option<Hold<'a>> {
        // Windows are parts of memory, not of windows or lists, so that this recursion ends here.
        whole.hold().filter(|_| self.live.load(Ordering::SeqCst))
    }

    /// Returns the `key` of slices: the rights, and the slot of a list.
    pub(super) fn slice_key(&self, slot: Option<u32>) -> u32 {
        slice_key(self.access, slot)
    }

    /// Returns the ranges, if it is a list.
    pub(super) fn list(&self) -> Option<&Layout<Arc<Self>>> {
        match &self.owner {
            Owner::List(layout) => Some(layout),
            Owner::Region(_) | Owner::Caller { .. } | Owner::Part { .. } => None,
        }
    }

    pub(super) fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }

    /// Returns whether its keys give access.
    pub(super) fn is_live(&self) -> bool {
        self.live.load(Ordering::SeqCst)
    }

    /// Revokes every key. On return no operation uses memory of the caller.
    fn end(&self) {
        self.live.store(false, Ordering::SeqCst);
        if let Owner::Caller { users } = &self.owner {
            // Waits for at most one copy per user: no user code runs under a `Hold`.
            while users.load(Ordering::SeqCst) > 0 {
                std::thread::yield_now();
            }
        }
    }
}

/// Keeps the region's memory alive. No user code may run meanwhile.
#[derive(Debug)]
pub(super) struct Hold<'a>(Option<&'a AtomicUsize>);

impl Drop for Hold<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(users) = self.0 {
            users.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A region of `self`. Dropping it revokes every key to it.
#[derive(Debug)]
#[must_use = "dropping the memory deregisters it"]
pub struct Memory {
    id: u64,
    region: Arc<Region>,
    domain: Domain,
}

impl Memory {
    memory_access!();

    pub(crate) fn bytes(&self) -> &SharedBytes {
        &self.region.bytes
    }

    /// Returns the access rights: `self` has no device keys, so slices carry these instead.
    pub(crate) fn local_key(&self) -> u32 {
        self.region.slice_key(None)
    }

    pub(crate) fn domain(&self) -> u32 {
        self.region.tag
    }

    /// Deregisters the region. After `Ok` no key and no operation in flight reaches the memory:
    /// allocated memory is freed, and registered memory is under the caller's control again.
    ///
    /// # Errors
    /// None: there is no device that could refuse.
    pub fn deregister(self) -> Result<(), MemoryError> {
        // The drop waits until no operation uses the memory.
        drop(self);
        Ok(())
    }

    /// Returns the bytes from which [`unpack_key`](crate::Domain::unpack_key) creates a key.
    pub fn pack_key(&self) -> Vec<u8> {
        self.domain.pack(self.id)
    }

    /// Opens a part to the key of the returned number, until [`Domain::close`].
    pub(super) fn open(&self, range: Range<usize>, access: Access) -> (u64, Arc<Region>) {
        let owner = Owner::Part { whole: Arc::clone(&self.region), range };
        self.domain.insert(self.region.bytes, access & Access::all(), owner)
    }

    pub(super) fn access(&self) -> Access {
        self.region.access
    }

    pub(super) fn region(&self) -> Arc<Region> {
        Arc::clone(&self.region)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.domain.close(self.id, &self.region);
    }
}

/// The right to access a region of this process.
#[derive(Debug, Clone)]
pub struct RemoteKey(Arc<Region>);

impl RemoteKey {
    /// Ends the access by the key of a window.
    pub(super) fn end_window(&self, domain: u32) -> Result<(), PostError> {
        let region = &self.0;
        if region.tag != domain {
            return Err(PostError::ForeignKey);
        }
        if !matches!(region.owner, Owner::Part { .. }) {
            return Err(PostError::AccessDenied);
        }
        if !region.is_live() {
            return Err(PostError::KeyExpired);
        }
        region.end();
        Ok(())
    }

    /// Returns the list that the key grants `need` on, if it is the key of a list.
    pub(super) fn list(
        &self,
        domain: u32,
        need: Access,
    ) -> Result<Option<&Arc<Region>>, PostError> {
        let region = &self.0;
        if region.list().is_none() {
            return Ok(None);
        }
        if region.tag != domain {
            return Err(PostError::ForeignKey);
        }
        if region.hold().is_none() {
            return Err(PostError::KeyExpired);
        }
        if region.access.contains(need) { Ok(Some(region)) } else { Err(PostError::AccessDenied) }
    }

    /// Returns the bytes of the region and the offset of `remote` in them, if the key grants `need`
    /// on the range. The memory stays alive as long as the [`Hold`].
    #[inline]
    pub(super) fn resolve(
        &self,
        domain: u32,
        remote: u64,
        length: usize,
        need: Access,
    ) -> Result<(&SharedBytes, usize, Hold<'_>), PostError> {
        let region = &*self.0;
        if region.tag != domain {
            return Err(PostError::ForeignKey);
        }
        let hold = region.hold().ok_or(PostError::KeyExpired)?;
        if !region.access.contains(need) {
            return Err(PostError::AccessDenied);
        }
        let offset = region.bytes.offset_of(remote, length).ok_or(PostError::OutOfRange)?;
        if let Owner::Part { range, .. } = &region.owner
            && !(range.start <= offset && offset + length <= range.end)
        {
            return Err(PostError::OutOfRange);
        }
        Ok((&region.bytes, offset, hold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Domain as _;

    #[test]
    fn keys_are_checked() {
        let domain = Domain::open("memory").unwrap();
        let memory = domain.allocate(16, Access::REMOTE_READ).unwrap();
        let packed = memory.pack_key();
        let key = domain.unpack_key(&packed).unwrap();
        let at = memory.address();
        let try_read = |offset, length| {
            key.resolve(domain.tag(), at + offset, length, Access::REMOTE_READ).map(|(_, at, _)| at)
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

    #[test]
    fn registered_memory_is_given_back_after_its_last_use() {
        let domain = Domain::open("memory").unwrap();
        let words = Box::into_raw(Box::new([0_u64; 2]));
        let start = NonNull::new(words).unwrap().cast();
        // SAFETY: `words` is freed at the end of the test, after the deregistration, and is not
        // accessed before.
        let memory = unsafe { domain.register(start, 16, Access::REMOTE_READ) }.unwrap();
        let (at, key) = (memory.address(), domain.unpack_key(&memory.pack_key()).unwrap());
        let (_, _, hold) = key.resolve(domain.tag(), at, 16, Access::REMOTE_READ).unwrap();
        let deregistering = std::thread::spawn(move || memory.deregister().unwrap());
        // The key ends first; then `deregister` waits for the operation in progress.
        while key.resolve(domain.tag(), at, 16, Access::REMOTE_READ).is_ok() {
            std::thread::yield_now();
        }
        assert!(!deregistering.is_finished());
        drop(hold);
        deregistering.join().unwrap();
        // SAFETY: `words` is the pointer of `Box::into_raw` above, and no longer registered.
        drop(unsafe { Box::from_raw(words) });
    }
}
