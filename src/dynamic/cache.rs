//! A cache of registrations, for memory that the caller allocates.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

use crate::base::error::MemoryError;
use crate::base::memory::{Access, Slice};
use crate::dynamic::domain::Domain;
use crate::dynamic::memory::Memory;

/// Limits of a [`RegistrationCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheLimits {
    /// Most regions.
    pub regions: usize,
    /// Most bytes of all regions together.
    pub bytes: usize,
}

impl CacheLimits {
    /// Most regions.
    #[must_use]
    pub fn regions(mut self, regions: usize) -> Self {
        self.regions = regions;
        self
    }

    /// Most bytes of all regions together.
    #[must_use]
    pub fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self { regions: 1024, bytes: usize::MAX }
    }
}

/// Statistics of a [`RegistrationCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CacheStatistics {
    /// Ranges that were registered already.
    pub hits: u64,
    /// Ranges that had to be registered.
    pub misses: u64,
    /// Regions that were removed because of the limits.
    pub evictions: u64,
    /// Regions that were removed by invalidation.
    pub invalidations: u64,
    /// Regions in the cache.
    pub regions: usize,
    /// Bytes of these regions.
    pub bytes: usize,
}

/// Ranges that the device did not release.
type Stuck = Rc<RefCell<Vec<Range<usize>>>>;

/// A region. Dropping it deregisters it, and records its range if the device refuses.
#[derive(Debug)]
struct Region {
    memory: ManuallyDrop<Memory>,
    stuck: Stuck,
}

impl Drop for Region {
    fn drop(&mut self) {
        let first = self.memory.address() as usize;
        let range = first..first + self.memory.len();
        // SAFETY: `memory` is taken only here, in the drop, and not used afterwards.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        if let Err(error) = memory.deregister() {
            tracing::error!("{error}");
            self.stuck.borrow_mut().push(range);
        }
    }
}

struct Entry {
    region: Rc<Region>,
    access: Access,
    /// The key of the entry in `by_use`.
    used: u64,
}

/// Registrations of one domain, kept for reuse. The least recently used ones are evicted first.
///
/// There are no allocator hooks: call [`Self::invalidate`] before memory is freed. [`Self::get`] is
/// `unsafe` for this reason.
///
/// ```
/// use barewire::cache::{CacheLimits, RegistrationCache};
/// use barewire::{Access, Domain};
/// use std::ptr::NonNull;
///
/// let domain = Domain::open(&"self/memory".parse()?)?;
/// let mut cache = RegistrationCache::new(&domain, CacheLimits::default());
/// let mut buffer = vec![0_u8; 8192];
/// let start = NonNull::from(&mut buffer[..]).cast::<u8>();
/// // SAFETY: the buffer lives until it is invalidated below, and nothing else accesses it.
/// let whole = unsafe { cache.get(start, 8192, Access::REMOTE_READ) }?;
/// // SAFETY: the range lies in the same buffer, which lives until it is invalidated below.
/// let part = unsafe { cache.get(start.add(100), 10, Access::REMOTE_READ) }?;
/// assert_eq!((part.slice().len(), cache.statistics().hits), (10, 1));
/// drop((whole, part));
/// assert_eq!(cache.invalidate(start, 8192), 0, "unused: the buffer may be freed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping the cache deregisters its regions"]
pub struct RegistrationCache {
    domain: Domain,
    limits: CacheLimits,
    /// By first address. No region lies inside another, so their ends are sorted, too.
    regions: BTreeMap<usize, Entry>,
    /// First addresses of regions, by last use.
    by_use: BTreeMap<u64, usize>,
    /// Removed regions that were still in use.
    retired: Vec<Weak<Region>>,
    /// Removed regions that stay registered for ever.
    stuck: Stuck,
    clock: u64,
    statistics: CacheStatistics,
}

/// A range of a registered region. The region stays registered while one of these exists, even
/// after its eviction.
#[derive(Debug, Clone)]
pub struct Cached {
    region: Rc<Region>,
    offset: usize,
    length: usize,
}

impl Cached {
    /// Returns the range, for zero-copy operations.
    pub fn slice(&self) -> Slice<'_> {
        self.region.memory.slice(self.offset, self.length).expect("`get` checked the range")
    }

    /// Returns the whole region, for its key.
    pub fn memory(&self) -> &Memory {
        &self.region.memory
    }

    /// Returns the offset of the range in the region.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl RegistrationCache {
    /// Creates an empty cache for `domain`.
    pub fn new(domain: &Domain, limits: CacheLimits) -> Self {
        Self {
            domain: domain.clone(),
            limits,
            regions: BTreeMap::new(),
            by_use: BTreeMap::new(),
            retired: Vec::new(),
            stuck: Stuck::default(),
            clock: 0,
            statistics: CacheStatistics::default(),
        }
    }

    /// Returns a registration that covers the range with the rights `access`, creating one if
    /// necessary.
    ///
    /// # Errors
    /// [`MemoryError`]. If the reason may be that the device has no room, the least recently used
    /// region is evicted and the registration is tried again.
    ///
    /// # Safety
    /// Until [`Self::invalidate`] of the range has returned 0, `[start, start + length)` stays
    /// mapped, and this process accesses it only through atomics or this API. Dropping the cache
    /// and all values from it deregisters too, but cannot report that the device refused: memory
    /// that was not invalidated before must stay mapped for the life of the process.
    pub unsafe fn get(
        &mut self,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Cached, MemoryError> {
        let access = access & Access::all();
        let first = start.addr().get();
        let end = first.checked_add(length).ok_or(MemoryError::NoMemory { length })?;
        if let Some((&at, entry)) = self.regions.range(..=first).next_back()
            && at + entry.region.memory.len() >= end
            && entry.access.contains(access)
        {
            let region = Rc::clone(&entry.region);
            self.statistics.hits += 1;
            self.touch(at);
            return Ok(Cached { region, offset: first - at, length });
        }
        self.statistics.misses += 1;
        // Registers the union with regions inside the range, and with one around it that lacks a
        // right: no region may lie in another.
        let (mut from, mut to, mut rights) = (first, end, access);
        if let Some((&at, entry)) = self.regions.range(..=first).next_back()
            && at + entry.region.memory.len() >= end
        {
            (from, to, rights) = (at, at + entry.region.memory.len(), access | entry.access);
        }
        let inside: Vec<usize> = self.inside(from, to).collect();
        for at in &inside {
            rights |= self.regions.get(at).map_or(Access::empty(), |entry| entry.access);
        }
        // SAFETY: `from` is the start of the range itself, or of a region of an earlier call that
        // contains `start`, so the result stays inside memory that is mapped.
        let whole = unsafe { start.sub(first - from) };
        let memory = loop {
            // SAFETY: the range consists of the range of this call and of regions of earlier calls.
            // The contract of this function covers each: it stays mapped, and is accessed only
            // through atomics or this API, until it was invalidated.
            match unsafe { self.domain.register(whole, to - from, rights) } {
                Err(error) if !is_final(&error) && self.evict() => {}
                answer => break answer?,
            }
        };
        let region =
            Rc::new(Region { memory: ManuallyDrop::new(memory), stuck: Rc::clone(&self.stuck) });
        for at in inside {
            self.remove(at);
        }
        self.clock += 1;
        self.by_use.insert(self.clock, from);
        self.statistics.bytes += to - from;
        self.statistics.regions += 1;
        let entry = Entry { region: Rc::clone(&region), access: rights, used: self.clock };
        self.regions.insert(from, entry);
        while self.statistics.regions > self.limits.regions
            || self.statistics.bytes > self.limits.bytes
        {
            if !self.evict() {
                break;
            }
        }
        Ok(Cached { region, offset: first - from, length })
    }

    /// Removes every region that overlaps the range. Returns how many regions still cover a part of
    /// it, because a value from [`Self::get`] uses them, or, for the life of the process, because
    /// the device refused to release them. The memory may be freed when the result is 0.
    pub fn invalidate(&mut self, start: NonNull<u8>, length: usize) -> usize {
        let first = start.addr().get();
        let end = first.saturating_add(length);
        let touched: Vec<usize> = self
            .regions
            .range(..end)
            .rev()
            .take_while(|&(&at, entry)| at + entry.region.memory.len() > first)
            .map(|(&at, _)| at)
            .collect();
        self.statistics.invalidations += touched.len() as u64;
        for at in touched {
            self.remove(at);
        }
        let covers = |at: usize, length: usize| at < end && at + length > first;
        let used = self.retired.iter().filter_map(Weak::upgrade);
        let used = used
            .filter(|region| covers(region.memory.address() as usize, region.memory.len()))
            .count();
        used + self.stuck.borrow().iter().filter(|range| covers(range.start, range.len())).count()
    }

    /// Returns the statistics.
    pub fn statistics(&self) -> CacheStatistics {
        self.statistics
    }

    /// Returns the first addresses of regions that lie in the range.
    fn inside(&self, from: usize, to: usize) -> impl Iterator<Item = usize> {
        self.regions
            .range(from..to)
            .filter(move |&(&at, entry)| at + entry.region.memory.len() <= to)
            .map(|(&at, _)| at)
    }

    fn touch(&mut self, at: usize) {
        if let Some(entry) = self.regions.get_mut(&at) {
            self.by_use.remove(&entry.used);
            self.clock += 1;
            entry.used = self.clock;
            self.by_use.insert(self.clock, at);
        }
    }

    fn remove(&mut self, at: usize) {
        let Some(entry) = self.regions.remove(&at) else { return };
        self.by_use.remove(&entry.used);
        self.statistics.bytes -= entry.region.memory.len();
        self.statistics.regions -= 1;
        self.retired.retain(|region| region.strong_count() > 0);
        if Rc::strong_count(&entry.region) > 1 {
            self.retired.push(Rc::downgrade(&entry.region));
        }
    }

    /// Removes the least recently used region. Returns false if there is none.
    fn evict(&mut self) -> bool {
        let Some((_, &at)) = self.by_use.first_key_value() else { return false };
        self.remove(at);
        self.statistics.evictions += 1;
        true
    }
}

impl std::fmt::Debug for RegistrationCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegistrationCache")
            .field("limits", &self.limits)
            .field("statistics", &self.statistics)
            .finish_non_exhaustive()
    }
}

/// Returns whether the same attempt would fail again with less memory registered.
fn is_final(error: &MemoryError) -> bool {
    match error {
        MemoryError::NoMemory { .. } => false,
        MemoryError::Device { source, .. } => has_final_cause(&**source),
        // The request itself is wrong, or the device cannot do it.
        _ => true,
    }
}

/// Returns whether an error of a device or of the kernel certainly has another reason than a lack of
/// room.
fn has_final_cause(error: &(dyn std::error::Error + 'static)) -> bool {
    const FINAL: [i32; 5] =
        [libc::EFAULT, libc::EINVAL, libc::EACCES, libc::EPERM, libc::EOPNOTSUPP];
    #[cfg(feature = "mlx5")]
    if let Some(error) = error.downcast_ref::<barewire_mlx5::Error>() {
        use barewire_mlx5::Error;
        if matches!(error, Error::Rights(_) | Error::Parameter { .. } | Error::Unsupported { .. }) {
            return true;
        }
    }
    if let Some(error) = error.downcast_ref::<std::io::Error>() {
        return match error.raw_os_error() {
            Some(code) => FINAL.contains(&code),
            None => error.get_ref().is_some_and(|inner| has_final_cause(inner)),
        };
    }
    error.source().is_some_and(has_final_cause)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ARENA: usize = 1 << 12;

    proptest! {
        /// Results have the range and the rights, the cache stays within its limits, and no region
        /// lies in another.
        #[test]
        fn gives_what_was_asked_for_and_keeps_within_limits(
            steps in proptest::collection::vec((0..10u8, 0..ARENA, 1..600_usize, 0..16u32), 1..120),
        ) {
            let mut arena = vec![0u64; ARENA / 8];
            let base = NonNull::new(arena.as_mut_ptr().cast::<u8>()).unwrap();
            let domain = Domain::open(&"self/memory".parse().unwrap()).unwrap();
            let limits = CacheLimits { regions: 7, bytes: 2000 };
            let mut cache = RegistrationCache::new(&domain, limits);
            let mut gets = 0;
            for (kind, offset, length, access) in steps {
                let length = length.min(ARENA - offset);
                // SAFETY: the offset lies inside the arena.
                let start = unsafe { base.add(offset) };
                if kind == 0 {
                    prop_assert_eq!(cache.invalidate(start, length), 0);
                    continue;
                }
                let access = Access::from_bits_truncate(access);
                gets += 1;
                // SAFETY: the arena outlives the cache, and only the cache accesses it.
                let cached = unsafe { cache.get(start, length, access) }.unwrap();
                let memory = cached.memory();
                prop_assert_eq!(memory.address() + cached.offset() as u64, start.addr().get() as u64);
                prop_assert_eq!(cached.slice().len(), length);
                let statistics = cache.statistics();
                prop_assert_eq!(statistics.hits + statistics.misses, gets);
                prop_assert!(statistics.regions <= limits.regions);
                prop_assert!(statistics.bytes <= limits.bytes || statistics.regions == 0);
                // The same region again, unless it is too long to be kept.
                let kept = cache.regions.values().any(|entry| Rc::ptr_eq(&entry.region, &cached.region));
                // SAFETY: the arena outlives the cache, and only the cache accesses it.
                let again = unsafe { cache.get(start, length, access) }.unwrap();
                gets += 1;
                prop_assert_eq!(Rc::ptr_eq(&again.region, &cached.region), kept);
                let ends: Vec<_> = cache.regions.iter().map(|(at, entry)| at + entry.region.memory.len()).collect();
                prop_assert!(ends.is_sorted_by(|a, b| a < b), "one region lies in another: {:?}", ends);
                let bytes: usize = cache.regions.values().map(|entry| entry.region.memory.len()).sum();
                prop_assert_eq!((bytes, cache.regions.len()), (cache.statistics().bytes, cache.statistics().regions));
            }
        }
    }

    #[test]
    fn a_registration_that_cannot_succeed_evicts_nothing() {
        let mut buffer = [0u64; 64];
        let start = NonNull::from(&mut buffer).cast::<u8>();
        let domain = Domain::open(&"self/memory".parse().unwrap()).unwrap();
        let mut cache = RegistrationCache::new(&domain, CacheLimits::default());
        // SAFETY: the buffer outlives the cache and all values from it; no bytes are registered
        // behind it.
        let refused = unsafe {
            for offset in [0, 64, 128] {
                drop(cache.get(start.add(offset), 16, Access::all()).unwrap());
            }
            cache.get(start.add(256), 0, Access::all()).unwrap_err()
        };
        assert!(matches!(refused, MemoryError::Empty), "{refused}");
        let statistics = cache.statistics();
        assert_eq!((statistics.regions, statistics.evictions), (3, 0));
    }

    #[test]
    fn what_is_used_is_told_when_it_is_invalidated() {
        let mut buffer = [0u64; 64];
        let start = NonNull::from(&mut buffer).cast::<u8>();
        let domain = Domain::open(&"self/memory".parse().unwrap()).unwrap();
        let mut cache =
            RegistrationCache::new(&domain, CacheLimits { regions: 1, bytes: usize::MAX });
        // SAFETY: the buffer outlives the cache and all values from it.
        let (first, second) = unsafe {
            let first = cache.get(start, 16, Access::all()).unwrap();
            (first, cache.get(start.add(256), 16, Access::all()).unwrap())
        };
        assert_eq!(cache.statistics().evictions, 1);
        // The first is still registered, although the cache has evicted it.
        first.memory().write(0, &[1; 16]).unwrap();
        assert_eq!(cache.invalidate(start, 512), 2);
        drop((first, second));
        assert_eq!((cache.invalidate(start, 512), cache.statistics().invalidations), (0, 1));
    }
}
