//! Cache lines of atomic words: the only form in which the rings access memory that other processes
//! write.
#![allow(unsafe_code, reason = "the only place that creates references to atomics in a mapping")]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::atomic::{AtomicU64, Ordering};
use crate::segment::Segment;

/// Words per line.
pub(crate) const WORDS: usize = 8;
/// Words per half line.
pub(crate) const HALF: usize = WORDS / 2;
/// Bytes per line.
pub(crate) const LINE: usize = 64;

/// Half of a cache line.
#[repr(C, align(32))]
pub(crate) struct Half([AtomicU64; HALF]);

/// Eight words that share a cache line.
#[repr(C, align(64))]
pub(crate) struct Line([Half; 2]);

impl Half {
    /// The word at `index`, which must be less than 4.
    #[inline(always)]
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index]
    }

    #[inline(always)]
    pub(crate) fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Relaxed);
    }
}

impl Line {
    /// The half at `index`, which must be less than 2.
    pub(crate) fn half(&self, index: usize) -> &Half {
        &self.0[index]
    }

    /// The word at `index`, which must be less than 8.
    #[inline(always)]
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        self.0[index / HALF].word(index % HALF)
    }

    #[inline(always)]
    pub(crate) fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Relaxed);
    }
}

/// A contiguous range of lines. `owner` keeps the memory mapped.
#[derive(Clone)]
pub(crate) struct Lines {
    start: NonNull<Line>,
    count: usize,
    owner: Arc<dyn Send + Sync>,
}

// SAFETY: `start` points to atomics, which any thread may access, in memory that `owner` keeps
// alive; `owner` is `Send + Sync`.
unsafe impl Send for Lines {}
// SAFETY: the lines are atomics, which threads may access at the same time, in memory that `owner`
// keeps alive; `owner` is `Send + Sync`.
unsafe impl Sync for Lines {}

impl Lines {
    /// The first `count` lines of a segment, or `None` if it is shorter.
    pub(crate) fn of(segment: &Arc<Segment>, count: usize) -> Option<Self> {
        let fits = count.checked_mul(LINE).is_some_and(|bytes| bytes <= segment.size());
        // A mapping is aligned to a page, and so to a line.
        fits.then(|| Self {
            start: segment.as_ptr().cast(),
            count,
            owner: Arc::clone(segment) as _,
        })
    }

    /// Creates a range of lines in memory that `owner` keeps alive.
    ///
    /// # Safety
    /// As long as `owner` lives, `count` lines from `start` on must be mapped, aligned to [`LINE`]
    /// and accessed through atomics only.
    pub(crate) unsafe fn over(
        start: NonNull<Line>,
        count: usize,
        owner: Arc<dyn Send + Sync>,
    ) -> Self {
        Self { start, count, owner }
    }

    /// Allocates zeroed lines in private memory.
    pub(crate) fn private(count: usize) -> Self {
        let half = || Half(std::array::from_fn(|_| AtomicU64::new(0)));
        let lines: Vec<Line> =
            std::iter::repeat_with(|| Line([half(), half()])).take(count).collect();
        let owner: Arc<Vec<Line>> = Arc::new(lines);
        let start = NonNull::new(owner.as_ptr().cast_mut()).unwrap_or(NonNull::dangling());
        Self { start, count, owner }
    }

    /// The `count` lines from index `first` on, or `None` if there are fewer.
    pub(crate) fn part(&self, first: usize, count: usize) -> Option<Self> {
        first.checked_add(count).filter(|end| *end <= self.count)?;
        // SAFETY: `first` is at most `self.count`, so the result is inside the range or at its end.
        let start = unsafe { self.start.add(first) };
        Some(Self { start, count, owner: Arc::clone(&self.owner) })
    }

    /// The half line at `index`, which must be less than twice the count. The pointer may be moved
    /// within the range.
    #[inline(always)]
    pub(crate) fn half(&self, index: usize) -> NonNull<Half> {
        assert!(index / 2 < self.count, "half line {index} of {} lines", self.count);
        // SAFETY: each of the `count` lines consists of two halves.
        unsafe { self.start.cast().add(index) }
    }

    /// Returns true if both ranges have the same owner.
    pub(crate) fn same_owner(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.owner, &other.owner)
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The line at `index`.
    ///
    /// # Panics
    /// If `index` is out of range. Indices never come from shared memory.
    #[inline(always)]
    pub(crate) fn line(&self, index: usize) -> &Line {
        assert!(index < self.count, "line {index} of {}", self.count);
        // SAFETY: `index` is less than `count`, and `owner` keeps `count` aligned lines from
        // `start` on mapped for at least as long as `self` lives. All processes access the words
        // through atomics only.
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

/// A ring of lines: every index maps to a slot.
#[derive(Debug, Clone)]
pub(crate) struct Ring {
    lines: Lines,
    mask: usize,
    /// Binary logarithm of the number of slots.
    log: u32,
}

impl Ring {
    /// Makes a ring of `lines`. Returns `None` unless their count is a power of two.
    pub(crate) fn new(lines: Lines) -> Option<Self> {
        let count = lines.count();
        count.is_power_of_two().then(|| Self { lines, mask: count - 1, log: count.ilog2() })
    }

    /// The slot of `index`, modulo the number of slots.
    #[inline(always)]
    pub(crate) fn slot(&self, index: u64) -> &Line {
        // SAFETY: masked by `count - 1`, the index is less than the count of `lines`, whose owner
        // keeps that many aligned lines mapped for at least as long as `self` lives. All processes
        // access the words through atomics only.
        unsafe { self.lines.start.add(index as usize & self.mask).as_ref() }
    }

    /// The half line of `index`, modulo twice the number of slots. The pointer may be moved within
    /// the lines.
    #[inline(always)]
    pub(crate) fn half(&self, index: u64) -> NonNull<Half> {
        // SAFETY: masked by twice the count less one, the index is less than the number of halves
        // of `lines`, whose memory is a line of two halves for each of the count.
        unsafe { self.lines.start.cast().add(index as usize & (2 * self.mask + 1)) }
    }

    pub(crate) fn lines(&self) -> &Lines {
        &self.lines
    }

    pub(crate) fn slots(&self) -> u64 {
        self.mask as u64 + 1
    }

    /// The number of complete laps before `index`.
    #[inline(always)]
    pub(crate) fn lap(&self, index: u64) -> u64 {
        index >> self.log
    }
}

/// A ring, and a run of contiguous half lines in it that are taken one by one. It ends at the end
/// of a line.
#[derive(Debug)]
pub(crate) struct Run {
    next: NonNull<Half>,
    /// Half lines left; odd if and only if `next` is the second half of its line.
    left: u32,
    ring: Ring,
}

impl Run {
    /// An empty run.
    pub(crate) fn empty(ring: Ring) -> Self {
        Self { next: ring.half(0), left: 0, ring }
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Half lines left in the run.
    #[inline(always)]
    pub(crate) fn left(&self) -> u64 {
        self.left.into()
    }

    /// Starts a run at half line `index`: `count` of them, or fewer to end with a line and in the
    /// lap. Returns the number of half lines.
    pub(crate) fn start(&mut self, index: u64, count: u64) -> u64 {
        let halves = 2 * self.ring.slots();
        let in_lap = index & (halves - 1);
        let end = in_lap.saturating_add(count).min(halves) & !1;
        self.next = self.ring.half(index);
        self.left = end.saturating_sub(in_lap) as u32;
        self.left()
    }

    /// Makes the run empty.
    pub(crate) fn clear(&mut self) {
        self.left = 0;
    }

    /// Takes the next half line, and returns the address behind it as well. Returns `None` if the
    /// run is empty.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<(&Half, *const u8)> {
        self.left = self.left.checked_sub(1)?;
        // SAFETY: `left` was not zero, so `next` is one of the half lines that `start` counted up
        // to the end of the lap. The ring keeps them mapped for at least as long as `self` lives,
        // and all processes access their words through atomics only.
        let half = unsafe { self.next.as_ref() };
        // SAFETY: `next` is a half line of the ring, so the address behind it is inside the ring's
        // memory or at its end.
        self.next = unsafe { self.next.add(1) };
        Some((half, self.next.as_ptr().cast_const().cast()))
    }

    /// As [`Self::take`], the next line; `None` at the second half of a line, too.
    pub(crate) fn take_line(&mut self) -> Option<(&Line, *const u8)> {
        if !self.left.is_multiple_of(2) {
            return None;
        }
        self.left = self.left.checked_sub(2)?;
        // SAFETY: `left` was even and not zero, so `next` is the first half of a line of the run,
        // and aligned like one. The rest is as in `take`.
        let line = unsafe { self.next.cast().as_ref() };
        // SAFETY: the line has two halves, and the address behind it is inside the ring's memory or
        // at its end.
        self.next = unsafe { self.next.add(2) };
        Some((line, self.next.as_ptr().cast_const().cast()))
    }
}

// SAFETY: `next` points to atomics in the lines of `ring`, whose owner is `Send + Sync`.
unsafe impl Send for Run {}
