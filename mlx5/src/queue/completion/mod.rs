//! The completion queue: polling CQEs.
//!
//! A queue is generic over its entries ([`Slot`]: 64 or 128 bytes) and its layout ([`Layout`]: plain, or with blocks of compressed CQEs).
//! Both are chosen by type when it is created, so that a poll of an empty queue is one test of one byte whatever they are.

mod inline;
mod layout;
mod outcome;
mod polled;
mod slot;

use core::any::Any;
use core::fmt;
use core::hint::cold_path;
use core::ptr::NonNull;
use std::sync::Arc;

use barewire_layouts::cqe::compressed::MiniFormat;
use barewire_layouts::cqe::{Cqe64, OP_OWN_OFFSET, SIGNATURE_OFFSET};
use volatile::VolatilePtr;
use volatile::access::ReadOnly;

use crate::barrier;
use crate::doorbell::RecordWord;

pub use inline::InlineData;
pub use layout::{Compressed, Enhanced, Layout, Plain};
pub use outcome::{Completion, CompletionKind, Failure};
pub use polled::Polled;
pub use slot::Slot;

/// What a completion queue is built from. See [`CompletionQueue::from_parts`].
#[derive(Debug)]
pub struct CompletionParts<S: Slot = Cqe64> {
    /// The ring: `entries` CQEs.
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
/// It is created with overrun checks off, as the hot path does not publish the consumer counter. So whoever posts to it must not have more
/// WQEs outstanding than it has entries: on an error every WQE gives one CQE.
pub struct CompletionQueue<S: Slot = Cqe64, L: Layout = Plain> {
    next: NonNull<S>,
    /// The validity byte, as far as the layout looks at it, that makes `next` ours on this lap.
    lap: u8,
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
    /// Until `parts.keep` is dropped: `ring` is valid for reads of `entries` CQEs, the doorbell record word is valid and 4-byte aligned,
    /// and only this queue and the device touch them. `entries` is a power of two, at most 2^22.
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
    /// As there, and `ring` is valid for writes too.
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
    /// As there, and `ring` is valid for writes too.
    pub unsafe fn from_parts_enhanced(parts: CompletionParts<S>, format: MiniFormat) -> Self {
        // SAFETY: the caller's contract.
        unsafe { Self::build(parts, Enhanced::new(format)) }
    }
}

impl<S: Slot, L: Layout> CompletionQueue<S, L> {
    /// # Safety
    /// As [`CompletionQueue::from_parts`], and `ring` is valid for writes if `L` expands.
    unsafe fn build(parts: CompletionParts<S>, layout: L) -> Self {
        debug_assert!(parts.entries.is_power_of_two() && parts.entries <= 1 << 22);
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
        (self.validity() ^ self.lap) & L::VALIDITY_MASK != 0
    }

    /// Takes the next completion, if there is one. Those of a compressed block come one by one, in order.
    #[inline(always)]
    pub fn poll(&mut self) -> Option<Polled<'_>> {
        let foreign = self.validity() ^ self.lap;
        if foreign & L::VALIDITY_MASK != 0 {
            return None;
        }
        barrier::owner_before_completion();
        let cqe = self.take(self.next_cqe());
        // SAFETY: `take` gives a CQE of the ring, or one that it expanded in this queue. Both stay while the queue is borrowed, and any
        // bytes are a CQE.
        let polled = unsafe { Polled::new(cqe) };
        // What was tested has the opcode, unless a block was expanded: it need not be read again.
        Some(if L::EXPANDS { polled } else { polled.with_op_own(foreign) })
    }

    /// The byte of the next entry that says whose it is.
    #[inline(always)]
    fn validity(&self) -> u8 {
        // SAFETY: `next` is an entry of the ring, and this byte of it is one the device may write at any time.
        unsafe {
            VolatilePtr::new_restricted(ReadOnly, self.next.cast::<u8>().add(S::CQE + L::VALIDITY)).read()
        }
    }

    /// The CQE of the next entry.
    #[inline(always)]
    fn next_cqe(&self) -> NonNull<Cqe64> {
        // SAFETY: inside the entry.
        unsafe { self.next.cast::<u8>().add(S::CQE).cast() }
    }

    /// Steps over the entry whose CQE is `cqe`. Answers where the CQE of the completion is.
    #[inline(always)]
    fn take(&mut self, cqe: NonNull<Cqe64>) -> NonNull<Cqe64> {
        if L::EXPANDS {
            // SAFETY: a CQE of the ring. The device does not come back to it before a whole lap, which the bound on outstanding WQEs
            // excludes; one that broke this bound would give garbled numbers, nothing worse: plain bytes.
            let taken = unsafe { cqe.read() };
            if taken.is_compressed() {
                return L::expand(self, taken);
            }
            self.layout.took_plain();
        }
        self.advance();
        cqe
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

    /// The entry that is taken next.
    fn at_next(&self) -> S {
        // SAFETY: an entry of the ring, valid for reads by the contract of `build`; plain bytes, whatever they are.
        unsafe { self.next.read() }
    }

    /// The entry behind it.
    fn after_next(&self) -> S {
        // SAFETY: at most one past the last entry.
        let after = unsafe { self.next.add(1) };
        // SAFETY: as `at_next`, after going back to the start at the end.
        unsafe { if after == self.end { self.start } else { after }.read() }
    }

    /// The entry before it.
    fn before_next(&self) -> S {
        let after = if self.next == self.start { self.end } else { self.next };
        // SAFETY: as `at_next`: `after` lies behind the first entry.
        unsafe { after.sub(1).read() }
    }

    /// Gives the next entry the validity of its lap and says what it is.
    fn mark_next(&mut self, op_own: u8, signature: u8) {
        // SAFETY: two bytes of an entry of the ring, valid for writes by the contract of `build`. The device left the entry to the block
        // that is being expanded.
        unsafe {
            let cqe = self.next.cast::<u8>().add(S::CQE);
            cqe.add(SIGNATURE_OFFSET).write(signature);
            cqe.add(OP_OWN_OFFSET).write(op_own);
        }
    }
}
