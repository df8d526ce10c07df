//! The completion queue: polling CQEs.
//!
//! A queue is generic over its entries ([`Slot`]: 64 or 128 bytes) and its layout ([`Layout`]:
//! plain, or with blocks of compressed CQEs). Both are selected by type when the queue is created,
//! so a poll of an empty queue tests one byte for all of them.

mod entry;
mod inline;
mod layout;
mod outcome;
mod polled;
mod slot;
mod tag;

use core::any::Any;
use core::fmt;
use core::hint::cold_path;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use barewire_layouts::cqe::compressed::MiniFormat;
use barewire_layouts::cqe::{Cqe64, CqeFormat, CqeOpcode, FORMAT, OP_OWN_OFFSET};

use crate::barrier;
use crate::doorbell::RecordWord;
use entry::{LAST, in_last};

pub use inline::InlineData;
pub use layout::{Compressed, Enhanced, Layout, Plain};
pub use outcome::{Completion, CompletionKind, Failure};
pub use polled::Polled;
pub use slot::Slot;

/// The parts of a completion queue. See [`CompletionQueue::from_parts`].
#[derive(Debug)]
pub struct CompletionParts<S: Slot = Cqe64> {
    /// The ring: `entries` CQEs, aligned to 8.
    pub ring: NonNull<S>,
    /// CQEs in the ring, a power of two up to 2^22.
    pub entries: u32,
    /// The consumer word of the doorbell record.
    pub doorbell_record: NonNull<u32>,
    /// Keeps the ring, the record and the device's object alive.
    pub keep: Arc<dyn Any + Send + Sync>,
}

/// A completion queue.
///
/// It is created with overrun checks off, because the hot path does not publish the consumer
/// counter. The WQEs outstanding must therefore not exceed its entries: on an error every WQE
/// generates a CQE. An overrun loses or garbles completions, but does not affect other memory.
#[must_use = "dropping it destroys the queue"]
#[repr(C)]
pub struct CompletionQueue<S: Slot = Cqe64, L: Layout = Plain> {
    next: NonNull<S>,
    start: NonNull<S>,
    end: NonNull<S>,
    keep: Arc<dyn Any + Send + Sync>,
    doorbell_record: RecordWord,
    /// The value of the bits `L::VALIDITY` in the last word with which the driver owns `next` on
    /// this lap.
    lap: u64,
    /// How often `next` has wrapped to the start.
    laps: u32,
    layout: L,
    /// The last word of `next`, as [`Self::note_empty`] found it on this lap, when the device owned
    /// it; or [`UNKNOWN`].
    empty: u64,
}

// SAFETY: the queue is the only consumer of the ring and the only writer of the record, and the
// pointers are not tied to a thread.
unsafe impl<S: Slot, L: Layout> Send for CompletionQueue<S, L> {}

impl<S: Slot, L: Layout> fmt::Debug for CompletionQueue<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("consumer", &self.consumer())
            .finish_non_exhaustive()
    }
}

impl<S: Slot> CompletionQueue<S> {
    /// Gives every entry of a ring to the device, for any layout. Must be called before the ring is
    /// passed to the device.
    ///
    /// # Safety
    /// `ring` is valid for writes of `entries` CQEs, and nothing else accesses it.
    pub unsafe fn initialise(ring: NonNull<S>, entries: u32) {
        for entry in 0..entries as usize {
            // SAFETY: the entry is one of the `entries` that are valid by the caller's contract.
            unsafe { ring.add(entry).write(S::INITIAL) };
        }
    }

    /// Builds a queue over a ring that [`Self::initialise`] has prepared and to which a device, or
    /// a test, writes CQEs.
    ///
    /// # Safety
    /// Until `parts.keep` is dropped: `ring` is valid for reads and writes of `entries` CQEs and
    /// aligned to 8, the doorbell record word is valid and 4-byte aligned, and only this queue and
    /// the device access them. A device in this process, such as the software HCA, stores to the
    /// ring atomically by whole aligned 8-byte words, except while the queue is not in use.
    /// `entries` is a power of two, at most 2^22.
    pub unsafe fn from_parts(parts: CompletionParts<S>) -> Self {
        // SAFETY: this function has the contract of `build`.
        unsafe { Self::build(parts, Plain) }
    }

    /// Returns the completion that [`Self::poll`] returned last, in place. Before the first completion
    /// it is an entry that was never written.
    #[inline]
    pub fn last(&self) -> Polled<'_> {
        let after = if self.next == self.start { self.end } else { self.next };
        // SAFETY: `after` is past the first entry, so the entry before it is in the ring, which stays
        // valid while the queue is borrowed.
        unsafe { Polled::new(Self::cqe_of(after.sub(1))) }
    }
}

impl<S: Slot> CompletionQueue<S, Compressed> {
    /// Like [`CompletionQueue::from_parts`], for a queue that the device compresses in the basic
    /// layout (PRM: CQC, cqe_comp_en, mini_cqe_res_format).
    ///
    /// # Safety
    /// The contract of [`CompletionQueue::from_parts`].
    pub unsafe fn from_parts_compressed(parts: CompletionParts<S>, format: MiniFormat) -> Self {
        // SAFETY: this function has the contract of `build`.
        unsafe { Self::build(parts, Compressed::new(format)) }
    }
}

impl<S: Slot> CompletionQueue<S, Enhanced> {
    /// Like [`CompletionQueue::from_parts`], for a queue that the device compresses in the enhanced
    /// layout (PRM: CQC, cqe_comp_en, cqe_compression_layout, mini_cqe_res_format).
    ///
    /// # Safety
    /// The contract of [`CompletionQueue::from_parts`].
    pub unsafe fn from_parts_enhanced(parts: CompletionParts<S>, format: MiniFormat) -> Self {
        // SAFETY: this function has the contract of `build`.
        unsafe { Self::build(parts, Enhanced::new(format)) }
    }
}

impl<S: Slot, L: Layout> CompletionQueue<S, L> {
    /// # Safety
    /// The contract of [`CompletionQueue::from_parts`].
    unsafe fn build(parts: CompletionParts<S>, layout: L) -> Self {
        debug_assert!(parts.entries.is_power_of_two() && parts.entries <= 1 << 22);
        debug_assert!(parts.ring.cast::<u64>().is_aligned(), "a completion ring is aligned to 8");
        // SAFETY: one past the end of the ring, which has `entries` CQEs by the caller's contract.
        let end = unsafe { parts.ring.add(parts.entries as usize) };
        Self {
            next: parts.ring,
            lap: 0,
            start: parts.ring,
            end,
            empty: UNKNOWN,
            laps: 0,
            // SAFETY: the record word is valid and aligned by the caller's contract.
            doorbell_record: unsafe { RecordWord::new(parts.doorbell_record) },
            layout,
            keep: parts.keep,
        }
    }

    /// Returns `true` if [`Self::poll`] would return `None`.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        (self.validity() ^ self.lap) & L::VALIDITY != 0
    }

    /// Returns whether more than `ahead` completions, which are less than the entries, wait to be
    /// polled. Those of a compressed block count as one.
    pub fn has(&self, ahead: u32) -> bool {
        // SAFETY: both pointers are into the same ring.
        let left = unsafe { self.end.offset_from_unsigned(self.next) };
        // A power of two.
        let ahead = (ahead & (self.entries() - 1)) as usize;
        // SAFETY: the entry is in the ring: it wraps to the start.
        let (entry, lap) = unsafe {
            if ahead < left {
                (self.next.add(ahead), self.lap)
            } else {
                (self.start.add(ahead - left), L::next_lap(self.lap))
            }
        };
        // SAFETY: `S::CQE` is an offset inside the entry, which is in the ring, valid by the
        // contract of `build`.
        let word =
            unsafe { entry::load(entry.cast::<u8>().add(S::CQE).cast(), LAST, Ordering::Relaxed) };
        (word ^ lap) & L::VALIDITY == 0
    }

    /// Takes the next completion, if there is one. Those of a compressed block are returned one by
    /// one, in order.
    #[inline(always)]
    #[must_use = "the completion is consumed"]
    pub fn poll(&mut self) -> Option<Polled<'_>> {
        let foreign = self.validity() ^ self.lap;
        if foreign & L::VALIDITY != 0 {
            return None;
        }
        barrier::owner_before_completion();
        let cqe = self.next_cqe();
        if L::EXPANDS {
            // SAFETY: `cqe` is in the ring, which is valid by the contract of `build`. The device
            // may set the format after the validity byte, so it is loaded after the barrier.
            let last = unsafe { entry::load(cqe, LAST, Ordering::Relaxed) };
            if last & in_last(OP_OWN_OFFSET, FORMAT) == COMPRESSED {
                let expanded = L::expand(self);
                // SAFETY: the CQE is in the ring, or was expanded into this queue; both stay valid
                // while the queue is borrowed.
                return Some(unsafe { Polled::new(expanded) });
            }
            self.layout.took_plain();
            self.advance();
            // SAFETY: the CQE is in the ring, which stays valid while the queue is borrowed.
            return Some(unsafe { Polled::with_last(cqe, last) });
        }
        self.advance();
        // The word that was tested contains the opcode, so it is not loaded again.
        // SAFETY: the CQE is in the ring, which stays valid while the queue is borrowed.
        Some(unsafe { Polled::with_last(cqe, foreign) })
    }

    /// Takes the next completion if it has this opcode. Owner and opcode are one test, for a loop
    /// that expects one kind. Returns `None` if there is no completion, if it has another opcode, and
    /// always for a queue with compressed CQEs; [`Self::poll`] takes those.
    #[inline(always)]
    #[must_use = "the completion is consumed"]
    pub fn poll_only(&mut self, opcode: CqeOpcode) -> Option<Polled<'_>> {
        // SAFETY: these are the words of the next CQE.
        unsafe {
            self.take_words::<OPCODE>(self.next_words(), self.validity(), (opcode as u64) << 60)
        }
    }

    /// Like [`Self::poll_only`], but takes a completion only if its data has this format. The
    /// caller has already loaded [`Self::next_words`] and the last of them.
    ///
    /// # Safety
    /// `words` are [`Self::next_words`]; or `word` is all ones, and `opcode` is not
    /// [`CqeOpcode::Invalid`], so that nothing is taken.
    #[inline(always)]
    #[must_use = "the completion is consumed"]
    pub unsafe fn poll_words(
        &mut self,
        words: NonNull<[AtomicU64; 8]>,
        word: u64,
        opcode: CqeOpcode,
        format: CqeFormat,
    ) -> Option<Polled<'_>> {
        const BITS: u64 = OPCODE | in_last(OP_OWN_OFFSET, FORMAT);
        let wanted = (opcode as u64) << 60 | in_last(OP_OWN_OFFSET, format.bits());
        // SAFETY: this function has the contract of `take_words`.
        unsafe { self.take_words::<BITS>(words, word, wanted) }
    }

    /// Takes the next completion if the `BITS` of its last word, which is `word`, are `wanted`.
    ///
    /// # Safety
    /// `words` are [`Self::next_words`]; or `word` is all ones, and `wanted` is not.
    #[inline(always)]
    unsafe fn take_words<const BITS: u64>(
        &mut self,
        words: NonNull<[AtomicU64; 8]>,
        word: u64,
        wanted: u64,
    ) -> Option<Polled<'_>> {
        let foreign = word ^ self.lap;
        if L::EXPANDS || foreign & (L::VALIDITY | BITS) != wanted {
            return None;
        }
        barrier::owner_before_completion();
        let cqe = words.cast();
        // SAFETY: `word` has the bits, so these are the words of the next CQE (contract of this
        // function), which begins `S::CQE` bytes behind the start of its entry.
        self.advance_from::<true>(unsafe { words.byte_sub(S::CQE).cast() });
        // SAFETY: the CQE is in the ring, which stays valid while the queue is borrowed.
        Some(unsafe { Polled::with_last(cqe, foreign) })
    }

    /// The words of the CQE that is polled next. The last one changes when it is complete. They
    /// stay valid as long as the queue.
    #[inline(always)]
    pub fn next_words(&self) -> NonNull<[AtomicU64; 8]> {
        self.next_cqe().cast()
    }

    /// Remembers the last word of the next CQE, if it is not complete.
    pub fn note_empty(&mut self) {
        let word = self.validity();
        let is_complete = (word ^ self.lap) & L::VALIDITY == 0;
        self.empty = if is_complete { UNKNOWN } else { word };
    }

    /// Returns whether `word` is the one that [`Self::note_empty`] found in the next CQE, so that
    /// this is still not complete. It is the last word of [`Self::next_words`], which the caller
    /// has just loaded; or all ones, which is never unchanged, so that one test finds something
    /// else as well. After [`Self::poll`] the result means nothing until the next
    /// [`Self::note_empty`].
    #[inline(always)]
    pub fn is_unchanged(&self, word: u64) -> bool {
        word == self.empty
    }

    /// The word of the next entry with the bits that determine its owner.
    #[inline(always)]
    fn validity(&self) -> u64 {
        // `barrier::owner_before_completion` acquires if there is a completion. ThreadSanitizer
        // does not support fences.
        let order = if cfg!(barewire_sanitize) { Ordering::Acquire } else { Ordering::Relaxed };
        // SAFETY: the next entry is in the ring, which is valid by the contract of `build`.
        unsafe { entry::load(self.next_cqe(), LAST, order) }
    }

    /// The CQE of the next entry.
    #[inline(always)]
    fn next_cqe(&self) -> NonNull<Cqe64> {
        Self::cqe_of(self.next)
    }

    /// The CQE of an entry of the ring.
    #[inline(always)]
    fn cqe_of(entry: NonNull<S>) -> NonNull<Cqe64> {
        // SAFETY: `S::CQE` is an offset inside the entry.
        unsafe { entry.cast::<u8>().add(S::CQE).cast() }
    }

    #[inline(always)]
    fn advance(&mut self) {
        self.advance_from::<false>(self.next);
    }

    /// Advances from `next`, the next entry. `FORGETS`: [`Self::is_unchanged`] stays right.
    #[inline(always)]
    fn advance_from<const FORGETS: bool>(&mut self, next: NonNull<S>) {
        // SAFETY: at most one past the last entry, where it wraps to the start.
        self.next = unsafe { next.add(1) };
        if self.next == self.end {
            cold_path();
            self.next = self.start;
            self.laps = self.laps.wrapping_add(1);
            self.lap = L::next_lap(self.lap);
            if FORGETS {
                // An entry of the lap before may have been what a completion of this one is.
                self.empty = UNKNOWN;
            }
        }
    }

    /// Returns a copy of the CQE of the completion that [`Self::poll`] returned last: the sender of
    /// a datagram ([`Cqe64::packet`]), the user index, the timestamp. Before the first completion
    /// it is an entry that was never written.
    pub fn last_cqe(&self) -> Cqe64 {
        let slot = self.before_next();
        match self.layout.expanded() {
            Some(expanded) if slot.cqe().is_compressed() => *expanded,
            _ => *slot.cqe(),
        }
    }

    /// Returns the data of the completion that [`Self::poll`] returned last, if the device
    /// scattered it to the CQE instead of the buffers of the WQE (PRM: QPC, cs_req and cs_res).
    /// Call it before the queue is polled again, and before a WQE is posted whose completion could
    /// overwrite the entry.
    pub fn inline_data(&self) -> Option<InlineData> {
        InlineData::of(&self.before_next())
    }

    /// Publishes the consumer counter in the doorbell record. Not required, because overrun checks
    /// are off; of use to tools that read the record.
    #[inline]
    pub fn publish_consumer(&mut self) {
        self.doorbell_record.store(self.consumer() & 0x00ff_ffff);
    }

    /// CQEs taken, free running.
    pub(crate) fn consumer(&self) -> u32 {
        // SAFETY: both pointers are into the same ring.
        let taken = unsafe { self.next.offset_from_unsigned(self.start) } as u32;
        self.laps.wrapping_mul(self.entries()).wrapping_add(taken)
    }

    /// CQEs in the ring.
    pub fn entries(&self) -> u32 {
        // SAFETY: both pointers are into the same ring.
        unsafe { self.end.offset_from_unsigned(self.start) as u32 }
    }

    /// The owner of the device's object. Queue pairs that complete to this queue hold it as well.
    pub(crate) fn keep(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.keep
    }

    /// A copy of the entry to be taken next.
    fn at_next(&self) -> S {
        // SAFETY: `next` is an entry of the ring, which is valid by the contract of `build`.
        unsafe { entry::copy(self.next) }
    }

    /// A copy of the entry after it.
    fn after_next(&self) -> S {
        // SAFETY: at most one past the last entry.
        let after = unsafe { self.next.add(1) };
        // SAFETY: an entry of the ring: one past the end wraps to the start.
        unsafe { entry::copy(if after == self.end { self.start } else { after }) }
    }

    /// A copy of the entry before it.
    fn before_next(&self) -> S {
        let after = if self.next == self.start { self.end } else { self.next };
        // SAFETY: `after` is past the first entry, so the entry before it is in the ring.
        unsafe { entry::copy(after.sub(1)) }
    }

    /// Marks the next entry as owned by the driver and part of the block that is being expanded.
    fn mark_next(&mut self) {
        // SAFETY: a CQE of the ring, valid for writes by the contract of `build`.
        unsafe { entry::store_last(self.next_cqe(), COMPRESSED | self.lap) };
    }
}

/// The opcode in the last word of a CQE.
const OPCODE: u64 = 0xf << 60;
/// The last word of no CQE, complete or not.
const UNKNOWN: u64 = 0xf0 << 56;
/// The format of an entry that starts or belongs to a block.
const COMPRESSED: u64 = in_last(OP_OWN_OFFSET, CqeFormat::Compressed.bits());
