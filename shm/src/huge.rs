//! Private memory in transparent huge pages, for copies by the kernel.
//!
//! process_vm_writev(2) looks up and pins the pages of the target one at a time. A huge page is 512
//! of them at once, so a copy into huge pages does not wait for their table.
#![allow(unsafe_code, reason = "computes addresses in a mapping, and clears memory for reuse")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::error::HugeError;

/// Bytes of a huge page of a kernel with pages of 4 KiB.
const PAGE: usize = 2 << 20;
const SMALL_PAGE: usize = 4096;
/// A huge page is divided into as many units as a mask has bits.
const UNIT: usize = PAGE / u32::BITS as usize;

/// A source of zeroed memory in huge pages. Memory that is shorter than a huge page shares it with
/// other memory of the pool; a huge page that nothing uses is returned to the kernel.
///
/// ```
/// let pool = barewire_shm::HugePool::default();
/// match pool.take(1 << 20) {
///     Ok(memory) => assert_eq!(memory.len(), 1 << 20),
///     Err(error) => println!("no huge pages: {error}"),
/// }
/// ```
#[derive(Debug, Default)]
pub struct HugePool {
    pages: Mutex<Vec<Weak<Page>>>,
}

/// A mapping in huge pages: one that is divided into units, or longer and not divided.
#[derive(Debug)]
struct Page {
    start: NonNull<u8>,
    /// Masks of the units that are in use, and that have been since the page was mapped.
    taken: AtomicU32,
    used: AtomicU32,
    _map: MmapRaw,
}

// SAFETY: `start` is an address in `_map`, which is `Send`. Only `HugeMemory` uses it.
unsafe impl Send for Page {}
// SAFETY: as above, and the masks are atomics.
unsafe impl Sync for Page {}

/// Memory of a [`HugePool`]; the drop returns it.
#[derive(Debug)]
pub struct HugeMemory {
    page: Arc<Page>,
    start: NonNull<u8>,
    len: usize,
    /// Mask of its units; not used if it has the whole mapping.
    units: u32,
}

// SAFETY: the value owns its memory and gives out its address only. Each access through that
// address has its own proof.
unsafe impl Send for HugeMemory {}
// SAFETY: `&HugeMemory` gives out the address and the length only, which never change.
unsafe impl Sync for HugeMemory {}

impl Page {
    /// Maps `len` bytes, aligned to a huge page.
    fn map(len: usize) -> Result<Self, HugeError> {
        let failed = |call| move |source| HugeError::System { call, source };
        let small = rustix::param::page_size();
        if small != SMALL_PAGE {
            return Err(HugeError::PageSize(small));
        }
        // The kernel aligns mappings to its small pages. What lies before the first huge page and
        // behind the last one is never accessed, so it takes no memory.
        let all = len.checked_add(PAGE).ok_or(HugeError::Length(len))?;
        let map: MmapRaw = MmapOptions::new().len(all).map_anon().map_err(failed("mmap"))?.into();
        let skipped = map.as_mut_ptr().align_offset(PAGE);
        map.advise_range(Advice::HugePage, skipped, len)
            .map_err(failed("madvise(MADV_HUGEPAGE)"))?;
        // SAFETY: `skipped` is less than `PAGE`, and the mapping has `PAGE` bytes more than `len`.
        let start = unsafe { map.as_mut_ptr().add(skipped) };
        let start = NonNull::new(start).ok_or(HugeError::Length(len))?;
        Ok(Self { start, taken: AtomicU32::new(0), used: AtomicU32::new(0), _map: map })
    }

    /// Takes `count` contiguous units; `None` if there are not as many. Only one thread takes units
    /// of a page at a time.
    fn take(self: &Arc<Self>, count: u32, len: usize) -> Option<HugeMemory> {
        let taken = self.taken.load(Ordering::Acquire);
        let first = (0..=u32::BITS - count).find(|at| taken & mask(*at, count) == 0)?;
        let units = mask(first, count);
        self.taken.fetch_or(units, Ordering::AcqRel);
        // SAFETY: the units lie within the huge page, which is mapped.
        let start = unsafe { self.start.add(first as usize * UNIT) };
        let memory = HugeMemory { page: Arc::clone(self), start, len, units };
        if self.used.fetch_or(units, Ordering::Relaxed) & units != 0 {
            // SAFETY: `len` is at most the length of the units, which only `memory` has now.
            unsafe { start.as_ptr().write_bytes(0, len) };
        }
        Some(memory)
    }
}

/// The mask of `count` units, at least 1, from unit `first` on.
fn mask(first: u32, count: u32) -> u32 {
    u32::MAX >> (u32::BITS - count) << first
}

impl HugePool {
    /// The shortest memory in bytes that is worth a part of a huge page.
    pub const LEAST: usize = UNIT;

    /// Takes `len` zeroed bytes. The first access to a huge page takes 2 MiB of the machine's
    /// memory. The end of memory longer than a huge page, if it does not fill one, is in small
    /// pages.
    ///
    /// # Errors
    /// [`HugeError`]. This function does not wait for a thread that takes memory at the same time,
    /// so that a forked process can call it.
    pub fn take(&self, len: usize) -> Result<HugeMemory, HugeError> {
        if len == 0 {
            return Err(HugeError::Length(len));
        }
        if len >= PAGE {
            let page = Arc::new(Page::map(len)?);
            return Ok(HugeMemory { start: page.start, page, len, units: 0 });
        }
        let count = len.div_ceil(UNIT) as u32;
        let mut pages = self.pages.try_lock().map_err(|_| HugeError::Busy)?;
        pages.retain(|page| page.strong_count() > 0);
        let found = pages.iter().filter_map(Weak::upgrade).find_map(|page| page.take(count, len));
        if let Some(memory) = found {
            return Ok(memory);
        }
        let page = Arc::new(Page::map(PAGE)?);
        pages.push(Arc::downgrade(&page));
        page.take(count, len).ok_or(HugeError::Length(len))
    }
}

impl HugeMemory {
    /// The first byte. The memory is zeroed, aligned to 64 KiB, and stays mapped and unmoved until
    /// the drop.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "there is at least one byte")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for HugeMemory {
    fn drop(&mut self) {
        self.page.taken.fetch_and(!self.units, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn at(memory: &HugeMemory) -> usize {
        memory.start().addr().get()
    }

    fn fill(memory: &HugeMemory, byte: u8) {
        // SAFETY: the memory has `len` bytes, which only this test accesses.
        unsafe { memory.start().as_ptr().write_bytes(byte, memory.len()) };
    }

    fn is_filled(memory: &HugeMemory, byte: u8) -> bool {
        // SAFETY: the memory has `len` initialised bytes, which only this test accesses.
        let bytes = unsafe { std::slice::from_raw_parts(memory.start().as_ptr(), memory.len()) };
        bytes.iter().all(|found| *found == byte)
    }

    #[test]
    fn short_memory_shares_a_page_and_is_zeroed_when_it_is_reused() {
        let pool = HugePool::default();
        let Ok(first) = pool.take(UNIT + 1) else {
            eprintln!("not checked: the kernel has no huge pages");
            return;
        };
        let second = pool.take(PAGE - 2 * UNIT).unwrap();
        assert!(is_filled(&first, 0) && is_filled(&second, 0));
        fill(&first, 1);
        fill(&second, 2);
        assert!(is_filled(&first, 1), "the second overlaps the first");
        assert_eq!(at(&second), at(&first) + 2 * UNIT);
        let third = pool.take(UNIT).unwrap();
        assert_ne!(at(&third) / PAGE, at(&first) / PAGE, "the page was full");
        let place = at(&first);
        drop(first);
        let again = pool.take(2 * UNIT).unwrap();
        assert_eq!(at(&again), place);
        assert!(is_filled(&again, 0));
        assert!(is_filled(&second, 2));
    }

    #[test]
    fn long_memory_has_its_own_pages_and_unused_pages_are_unmapped() {
        let pool = HugePool::default();
        for len in [PAGE, PAGE + 1, 3 * PAGE] {
            let Ok(memory) = pool.take(len) else { return };
            assert!(at(&memory).is_multiple_of(PAGE) && memory.len() == len);
            fill(&memory, 7);
        }
        assert!(pool.pages.lock().unwrap().is_empty());
        drop(pool.take(UNIT).unwrap());
        drop(pool.take(UNIT).unwrap());
        assert_eq!(pool.pages.lock().unwrap().len(), 1, "the first page is not in the list");
        assert!(pool.take(0).is_err() && pool.take(usize::MAX).is_err());
    }

    #[test]
    fn a_taken_lock_is_an_error_and_not_a_wait() {
        let pool = HugePool::default();
        let _locked = pool.pages.lock().unwrap();
        assert!(pool.take(UNIT).is_err());
    }
}
