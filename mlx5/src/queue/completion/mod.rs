//! The completion queue: polling CQEs.
//!
//! A queue is generic over its entries ([`Slot`]: 64 or 128 bytes) and its layout ([`Layout`]: plain, or with blocks of compressed CQEs).
//! Both are chosen by type when it is created, so that a poll of an empty queue is one test of one byte whatever they are.

mod entry;
mod inline;
mod layout;
mod outcome;
mod polled;
mod slot;

use core::any::Any;
use core::fmt;
use core::hint::cold_path;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use barewire_layouts::cqe::compressed::MiniFormat;
use barewire_layouts::cqe::{Cqe64, CqeFormat, FORMAT, OP_OWN_OFFSET};

use crate::barrier;
use crate::doorbell::RecordWord;
use entry::{LAST, in_last};

pub use inline::InlineData;
pub use layout::{Compressed, Enhanced, Layout, Plain};
pub use outcome::{Completion, CompletionKind, Failure};
pub use polled::Polled;
pub use slot::Slot;

/// What a completion queue is built from. See [`CompletionQueue::from_parts`].
#[derive(Debug)]
pub struct CompletionParts<S: Slot = Cqe64> {
    /// The ring: `entries` CQEs, aligned to 8.
    pub ring: NonNull<S>,
    /// CQEs in the ring, a power of two up to 2^22.
    pub entries: u32,
    /// The consumer word of the doorbell record.
    pub doorbell_record: NonNull<u32>,
    /// Keeps ring and record alive, and the device's object with them.
    pub keep: Arc<dyn Any + Send + Sync>,
}

/// A completion queue.
///
/// It is created with overrun checks off, as the hot path does not publish the consumer counter. So
/// no more WQEs may be outstanding than it has entries: on an error every WQE gives one CQE. If there
/// are more, completions are lost or garbled; memory is not.
pub struct CompletionQueue<S: Slot = Cqe64, L: Layout = Plain> {
    next: NonNull<S>,
    /// The bits `L::VALIDITY` of the last word that make `next` ours on this lap.
    lap: u64,
    start: NonNull<S>,
    end: NonNull<S>,
    /// Times that `next` went back to the start.
    laps: u32,
    doorbell_record: RecordWord,
    layout: L,
    keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the queue is the only consumer of the ring and writer of the record; the pointers are not tied to a thread.
unsafe impl<S: Slot, L: Layout> Send for CompletionQueue<S, L> {}

impl<S: Slot, L: Layout> fmt::Debug for CompletionQueue<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("consumer", &self.consumer()).finish_non_exhaustive()
    }
}

impl<S: Slot> CompletionQueue<S> {
    /// Gives every entry of a ring to the device, for any layout. To be done before the device learns of the ring.
    ///
    /// # Safety
    /// `ring` is valid for writes of `entries` CQEs, and nobody else uses it.
    pub unsafe fn initialise(ring: NonNull<S>, entries: u32) {
        for entry in 0..entries as usize {
            // SAFETY: inside the caller's range.
            unsafe { ring.add(entry).write(S::INITIAL) };
        }
    }

    /// Builds a queue over a ring that [`Self::initialise`] has prepared and a device, or a test, writes CQEs to.
    ///
    /// # Safety
    /// Until `parts.keep` is dropped: `ring` is valid for reads and writes of `entries` CQEs and aligned
    /// to 8, the doorbell record word is valid and 4-byte aligned, and only this queue and the device
    /// access them. A device that is part of this process, as the software HCA is, stores to the ring
    /// by whole aligned 8-byte words, atomically, unless it does so while the queue is not used.
    /// `entries` is a power of two, at most 2^22.
    pub unsafe fn from_parts(parts: CompletionParts<S>) -> Self {
        // SAFETY: the caller's contract.
        unsafe { Self::build(parts, Plain) }
    }
}

impl<S: Slot> CompletionQueue<S, Compressed> {
    /// As [`CompletionQueue::from_parts`], for a queue that the device compresses in the basic layout (PRM: CQC, cqe_comp_en,
    /// mini_cqe_res_format).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn from_parts_compressed(parts: CompletionParts<S>, format: MiniFormat) -> Self {
        // SAFETY: the caller's contract.
        unsafe { Self::build(parts, Compressed::new(format)) }
    }
}

impl<S: Slot> CompletionQueue<S, Enhanced> {
    /// As [`CompletionQueue::from_parts`], for a queue that the device compresses in the enhanced layout (PRM: CQC, cqe_comp_en,
    /// cqe_compression_layout, mini_cqe_res_format).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn from_parts_enhanced(parts: CompletionParts<S>, format: MiniFormat) -> Self {
        // SAFETY: the caller's contract.
        unsafe { Self::build(parts, Enhanced::new(format)) }
    }
}

impl<S: Slot, L: Layout> CompletionQueue<S, L> {
    /// # Safety
    /// As [`CompletionQueue::from_parts`].
    unsafe fn build(parts: CompletionParts<S>, layout: L) -> Self {
        debug_assert!(parts.entries.is_power_of_two() && parts.entries <= 1 << 22);
        debug_assert!(parts.ring.cast::<u64>().is_aligned(), "a completion ring is aligned to 8");
        // SAFETY: one past the ring's end.
        let end = unsafe { parts.ring.add(parts.entries as usize) };
        Self {
            next: parts.ring,
            lap: 0,
            start: parts.ring,
            end,
            laps: 0,
            // SAFETY: the caller's contract covers the record.
            doorbell_record: unsafe { RecordWord::new(parts.doorbell_record) },
            layout,
            keep: parts.keep,
        }
    }

    /// `true` if [`Self::poll`] would give nothing now.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        (self.validity() ^ self.lap) & L::VALIDITY != 0
    }

    /// Takes the next completion, if there is one. Those of a compressed block come one by one, in order.
    #[inline(always)]
    pub fn poll(&mut self) -> Option<Polled<'_>> {
        let foreign = self.validity() ^ self.lap;
        if foreign & L::VALIDITY != 0 {
            return None;
        }
        barrier::owner_before_completion();
        let cqe = self.next_cqe();
        if L::EXPANDS {
            // SAFETY: a CQE of the ring: see `build`. The device may have set the format after the
            // validity byte, so that it is loaded after the barrier.
            let last = unsafe { entry::load(cqe, LAST, Ordering::Relaxed) };
            if last & in_last(OP_OWN_OFFSET, FORMAT) == COMPRESSED {
                let expanded = L::expand(self);
                // SAFETY: a CQE of the ring, or one that this queue expanded into itself and that
                // stays while the queue is borrowed.
                return Some(unsafe { Polled::new(expanded) });
            }
            self.layout.took_plain();
            self.advance();
            // SAFETY: a CQE of the ring, which stays while the queue is borrowed.
            return Some(unsafe { Polled::with_last(cqe, last) });
        }
        self.advance();
        // The word that was tested has the opcode, which need not be loaded again.
        // SAFETY: as above.
        Some(unsafe { Polled::with_last(cqe, foreign) })
    }

    /// The word of the next entry whose bits say whether it is ours.
    #[inline(always)]
    fn validity(&self) -> u64 {
        // `barrier::owner_before_completion` acquires, where there is a completion. ThreadSanitizer
        // does not see fences.
        let order = if cfg!(barewire_sanitize) { Ordering::Acquire } else { Ordering::Relaxed };
        // SAFETY: the CQE of an entry of the ring: see `build`.
        unsafe { entry::load(self.next_cqe(), LAST, order) }
    }

    /// The CQE of the next entry.
    #[inline(always)]
    fn next_cqe(&self) -> NonNull<Cqe64> {
        // SAFETY: inside the entry.
        unsafe { self.next.cast::<u8>().add(S::CQE).cast() }
    }

    #[inline(always)]
    fn advance(&mut self) {
        // SAFETY: at most one past the last entry, where it goes back to the start.
        self.next = unsafe { self.next.add(1) };
        if self.next == self.end {
            cold_path();
            self.next = self.start;
            self.laps = self.laps.wrapping_add(1);
            self.lap = L::next_lap(self.lap);
        }
    }

    /// The whole CQE of the completion that [`Self::poll`] gave last: a datagram's sender ([`Cqe64::packet`]), the user index, the
    /// timestamp. Before the first completion it is an entry that was never written.
    pub fn last_cqe(&self) -> Cqe64 {
        let slot = self.before_next();
        match self.layout.expanded() {
            Some(expanded) if slot.cqe().is_compressed() => *expanded,
            _ => *slot.cqe(),
        }
    }

    /// The data of the completion that [`Self::poll`] gave last, if the device scattered it into the CQE and not to the buffers of the
    /// WQE (PRM: QPC, cs_req and cs_res). To be asked for before the queue is polled again, and before a WQE is posted whose completion
    /// might take the entry's place.
    pub fn inline_data(&self) -> Option<InlineData> {
        InlineData::of(&self.before_next())
    }

    /// Tells the device how far this queue was consumed. Not needed as the queue is created; useful to whoever reads the record.
    #[inline]
    pub fn publish_consumer(&mut self) {
        self.doorbell_record.store(self.consumer() & 0x00ff_ffff);
    }

    /// CQEs taken, free running.
    pub(crate) fn consumer(&self) -> u32 {
        // SAFETY: both are of one ring.
        let taken = unsafe { self.next.offset_from_unsigned(self.start) } as u32;
        self.laps.wrapping_mul(self.entries()).wrapping_add(taken)
    }

    /// CQEs of the ring.
    pub fn entries(&self) -> u32 {
        // SAFETY: both are of one ring.
        unsafe { self.end.offset_from_unsigned(self.start) as u32 }
    }

    /// What keeps the device's object alive; queue pairs that complete here hold it too.
    pub(crate) fn keep(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.keep
    }

    /// A copy of the entry that is taken next.
    fn at_next(&self) -> S {
        // SAFETY: an entry of the ring: see `build`.
        unsafe { entry::copy(self.next) }
    }

    /// A copy of the entry behind it.
    fn after_next(&self) -> S {
        // SAFETY: at most one past the last entry.
        let after = unsafe { self.next.add(1) };
        // SAFETY: an entry of the ring, after going back to the start at the end.
        unsafe { entry::copy(if after == self.end { self.start } else { after }) }
    }

    /// A copy of the entry before it.
    fn before_next(&self) -> S {
        let after = if self.next == self.start { self.end } else { self.next };
        // SAFETY: `after` lies behind the first entry, so that this is an entry of the ring.
        unsafe { entry::copy(after.sub(1)) }
    }

    /// Makes the next entry ours, as a part of the block that is being expanded.
    fn mark_next(&mut self) {
        // SAFETY: a CQE of the ring, valid for writes: see `build`.
        unsafe { entry::store_last(self.next_cqe(), COMPRESSED | self.lap) };
    }
}

/// The format of an entry that is, or belongs to, a block.
const COMPRESSED: u64 = in_last(OP_OWN_OFFSET, CqeFormat::Compressed.bits());
