//! Cache lines of atomic words: the one form in which rings see memory that other processes write.
#![allow(unsafe_code, reason = "shared references to atomics in a mapping are made here and nowhere else")]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::atomic::{AtomicU64, Ordering};
use crate::segment::Segment;

/// Words of a line.
pub(crate) const WORDS: usize = 8;
/// Bytes of a line.
pub(crate) const LINE: usize = 64;

/// Eight words that travel between caches together.
#[repr(C, align(64))]
pub(crate) struct Line([AtomicU64; WORDS]);

impl Line {
    /// The word at `index`, which is below 8.
    #[inline(always)]
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index]
    }

    #[inline(always)]
    pub(crate) fn load(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn store(&self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::Relaxed);
    }
}

/// A row of lines, and what keeps its memory mapped.
#[derive(Clone)]
pub(crate) struct Lines {
    start: NonNull<Line>,
    count: usize,
    owner: Arc<dyn Send + Sync>,
}

// SAFETY: lines are atomics in memory that `owner` keeps, which can be sent and shared itself.
unsafe impl Send for Lines {}
// SAFETY: as above.
unsafe impl Sync for Lines {}

impl Lines {
    /// The first `count` lines of a segment, or `None` if it is shorter.
    pub(crate) fn of(segment: &Arc<Segment>, count: usize) -> Option<Self> {
        let fits = count.checked_mul(LINE).is_some_and(|bytes| bytes <= segment.size());
        // Mappings are aligned to pages.
        fits.then(|| Self { start: segment.as_ptr().cast(), count, owner: Arc::clone(segment) as _ })
    }

    /// Lines in memory that `owner` keeps.
    ///
    /// # Safety
    /// `count` lines from `start` on are mapped, aligned, and accessed as atomics only, while `owner` lives.
    pub(crate) unsafe fn over(start: NonNull<Line>, count: usize, owner: Arc<dyn Send + Sync>) -> Self {
        Self { start, count, owner }
    }

    /// Zeroed lines of this process.
    pub(crate) fn private(count: usize) -> Self {
        let lines: Vec<Line> = (0..count).map(|_| Line(std::array::from_fn(|_| AtomicU64::new(0)))).collect();
        let owner: Arc<Vec<Line>> = Arc::new(lines);
        let start = NonNull::new(owner.as_ptr().cast_mut()).unwrap_or(NonNull::dangling());
        Self { start, count, owner }
    }

    /// `count` lines from `first` on, or `None` if there are not so many.
    pub(crate) fn part(&self, first: usize, count: usize) -> Option<Self> {
        first.checked_add(count).filter(|end| *end <= self.count)?;
        // SAFETY: `first` lies inside or at the end.
        let start = unsafe { self.start.add(first) };
        Some(Self { start, count, owner: Arc::clone(&self.owner) })
    }

    /// These are the same lines as `other`.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.owner, &other.owner)
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The line at `index`.
    ///
    /// # Panics
    /// If there is none: indices are this process's own.
    #[inline(always)]
    pub(crate) fn line(&self, index: usize) -> &Line {
        assert!(index < self.count, "line {index} of {}", self.count);
        // SAFETY: inside the row, which `owner` keeps mapped; its words are accessed as atomics only, here and in the
        // other processes.
        unsafe { self.start.add(index).as_ref() }
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines")
            .field("start", &self.start)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

/// Lines in a ring: an index of any size leads to a slot.
#[derive(Debug, Clone)]
pub(crate) struct Ring {
    lines: Lines,
    mask: usize,
    /// Slots, as a power of two.
    log: u32,
}

impl Ring {
    /// A ring of lines, whose number is a power of two; `None` for any other.
    pub(crate) fn new(lines: Lines) -> Option<Self> {
        let count = lines.count();
        count.is_power_of_two().then(|| Self { lines, mask: count - 1, log: count.ilog2() })
    }

    /// The slot of `index`.
    #[inline(always)]
    pub(crate) fn slot(&self, index: u64) -> &Line {
        // SAFETY: the mask keeps it inside the row; see `Lines::line`.
        unsafe { self.lines.start.add(index as usize & self.mask).as_ref() }
    }

    pub(crate) fn lines(&self) -> &Lines {
        &self.lines
    }

    pub(crate) fn slots(&self) -> u64 {
        self.mask as u64 + 1
    }

    /// How often the ring was gone through before `index`.
    #[inline(always)]
    pub(crate) fn lap(&self, index: u64) -> u64 {
        index >> self.log
    }
}

/// A ring, and some of its slots that are passed one after the other.
#[derive(Debug)]
pub(crate) struct Row {
    next: NonNull<Line>,
    left: u32,
    ring: Ring,
}

impl Row {
    /// No slots of the ring.
    pub(crate) fn of(ring: Ring) -> Self {
        Self { next: ring.lines.start, left: 0, ring }
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Slots that are left.
    #[inline(always)]
    pub(crate) fn left(&self) -> u64 {
        self.left.into()
    }

    /// Goes on with the slot of `index` and those behind it, `count` in all, but not beyond the end of the lap. Answers how many.
    pub(crate) fn aim(&mut self, index: u64, count: u64) -> u64 {
        self.next = NonNull::from(self.ring.slot(index));
        let in_lap = self.ring.slots() - (index & self.ring.mask as u64);
        self.left = in_lap.min(count) as u32;
        self.left()
    }

    /// Has no slots left.
    pub(crate) fn end(&mut self) {
        self.left = 0;
    }

    /// The next slot; `None` if none is left.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<&Line> {
        self.left = self.left.checked_sub(1)?;
        // SAFETY: one of the slots that `aim` counted, which the ring keeps mapped.
        let line = unsafe { self.next.as_ref() };
        // SAFETY: inside the ring, or at its end.
        self.next = unsafe { self.next.add(1) };
        Some(line)
    }
}

// SAFETY: the pointer is to the ring's lines, whose owner may be used from every thread.
unsafe impl Send for Row {}
