//! The receive queue: posting buffers for incoming messages.

use core::any::Any;
use core::fmt;
use core::ptr::NonNull;
use std::sync::Arc;

use barewire_layouts::wqe::DataSegment;
use zerocopy::transmute;

use crate::doorbell::RecordWord;
use crate::{barrier, store};

/// The parts of a receive queue. See [`ReceiveQueue::from_parts`].
#[derive(Debug)]
pub struct ReceiveParts {
    /// The ring: `entries` receive WQEs of `SEGMENTS` [`DataSegment`]s each.
    pub ring: NonNull<DataSegment>,
    /// Receive WQEs in the ring, a power of two up to 2^15.
    pub entries: u32,
    /// The receive word of the doorbell record.
    pub doorbell_record: NonNull<u32>,
    /// Keeps the ring, the record and the device's object alive.
    pub keep: Arc<dyn Any + Send + Sync>,
}

/// A receive queue whose WQEs have up to `SEGMENTS` segments each, a power of two (the stride of
/// the ring: PRM, QPC, log_rq_stride). It has no register: the device reads the doorbell record
/// when a message needs a WQE.
pub struct ReceiveQueue<const SEGMENTS: usize = 1> {
    ring: NonNull<DataSegment>,
    mask: u32,
    /// WQEs written, free running; the device owns those up to `published`.
    producer: u32,
    room: i32,
    doorbell_record: RecordWord,
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the queue is the only writer of ring and record, and the pointers are not tied to a
// thread.
unsafe impl<const SEGMENTS: usize> Send for ReceiveQueue<SEGMENTS> {}

impl<const SEGMENTS: usize> fmt::Debug for ReceiveQueue<SEGMENTS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveQueue")
            .field("entries", &(self.mask + 1))
            .field("producer", &self.producer)
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

impl<const SEGMENTS: usize> ReceiveQueue<SEGMENTS> {
    /// Builds a queue over memory that a device, or a test, reads.
    ///
    /// # Safety
    /// Until `parts.keep` is dropped: `ring` is valid for writes of `entries * SEGMENTS * 16` bytes
    /// and aligned to 8, the doorbell record word is valid and 4-byte aligned, and nothing but this
    /// queue writes them. A device in this process, such as the software HCA, reads the ring by
    /// atomic loads of whole aligned 8-byte words, except while the queue is not in use. `entries`
    /// is a power of two, at most 2^15.
    pub unsafe fn from_parts(parts: ReceiveParts) -> Self {
        const { assert!(SEGMENTS.is_power_of_two(), "the stride of a receive ring is a power of two") };
        debug_assert!(parts.entries.is_power_of_two() && parts.entries <= 1 << 15);
        Self {
            ring: parts.ring,
            mask: parts.entries - 1,
            producer: 0,
            room: parts.entries as i32,
            // SAFETY: the record word is valid and aligned by the caller's contract.
            doorbell_record: unsafe { RecordWord::new(parts.doorbell_record) },
            _keep: parts.keep,
        }
    }

    /// Writes a receive WQE for `buffer`; the device sees it after [`Self::publish`]. Returns
    /// `false` if the ring is full, or the buffer is empty: a byte count of zero means 2 GiB to the
    /// device.
    #[inline]
    #[must_use]
    pub fn push(&mut self, buffer: DataSegment) -> bool {
        if self.room <= 0 || buffer.byte_count.get() == 0 {
            return false;
        }
        self.room -= 1;
        let wqe = self.entry();
        // SAFETY: a WQE has room for `SEGMENTS` segments, and the ring is valid for writes and
        // aligned by the contract of `from_parts`.
        unsafe {
            store::words(wqe, transmute!(buffer));
            if SEGMENTS > 1 {
                store::words(wqe.add(1), transmute!(DataSegment::END));
            }
        }
        self.producer = self.producer.wrapping_add(1);
        true
    }

    /// Like [`Self::push`], for a message that is scattered over up to `SEGMENTS` buffers. Empty
    /// buffers are skipped. Also returns `false` if there are more than `SEGMENTS`, or if all are
    /// empty.
    #[inline]
    #[must_use]
    pub fn push_scatter(&mut self, buffers: &[DataSegment]) -> bool {
        if self.room <= 0 {
            return false;
        }
        // SAFETY: a WQE has room for `SEGMENTS` segments, and the ring is valid for writes by the
        // contract of `from_parts`.
        if !unsafe { write_scatter(self.entry(), SEGMENTS, buffers) } {
            return false;
        }
        self.room -= 1;
        self.producer = self.producer.wrapping_add(1);
        true
    }

    /// Writes a receive WQE without a buffer, for an RDMA write with an immediate. A send with data
    /// that consumes it fails. Returns `false` if the ring is full.
    #[inline]
    #[must_use]
    pub fn push_empty(&mut self) -> bool {
        if self.room <= 0 {
            return false;
        }
        self.room -= 1;
        // SAFETY: a WQE has room for a segment, and the ring is valid for writes and aligned by the
        // contract of `from_parts`.
        unsafe { store::words(self.entry(), transmute!(DataSegment::END)) };
        self.producer = self.producer.wrapping_add(1);
        true
    }

    /// Posts the WQE in entry `counter` (modulo [`Self::entries`]) again, instead of [`Self::reap`]
    /// and [`Self::push`] with the same buffer. Returns `false` without effect if that entry is not
    /// the next; then use those two.
    #[inline]
    #[must_use]
    pub fn push_again(&mut self, counter: u32) -> bool {
        // The completion returned the entry to the driver; it still contains the WQE of the
        // previous lap.
        // Not `let turn = ... == 0; producer += u32::from(turn); turn`: when inlined at -O, rustc
        // 1.95.0
        // loses the increment, because its MIR pass SimplifyComparisonIntegral removes a comparison
        // that
        // the addition still reads (rust-lang/rust#158206). It is no undefined behaviour here.
        if (self.producer ^ counter) & self.mask != 0 {
            return false;
        }
        self.producer = self.producer.wrapping_add(1);
        true
    }

    /// Like [`Self::push_again`], but wherever the next entry is: copies the WQE of entry `counter`
    /// there. The completion of that WQE was polled, and no WQE was pushed over it since. Otherwise
    /// the device gets a buffer that it has already, or an old one.
    #[inline(always)]
    pub fn push_copy(&mut self, counter: u32) {
        // SAFETY: the mask keeps the entry inside the ring.
        let from = unsafe { self.ring.add((counter & self.mask) as usize * SEGMENTS) };
        let to = self.entry();
        for at in 0..SEGMENTS {
            // SAFETY: a segment of the ring, which is valid and aligned by the contract of
            // `from_parts`; only this queue writes it, and the device reads it by atomic loads.
            unsafe { store::words(to.add(at), from.add(at).cast::<[u64; 2]>().read()) };
        }
        self.producer = self.producer.wrapping_add(1);
    }

    /// WQEs pushed, free running.
    #[inline]
    pub fn producer(&self) -> u32 {
        self.producer
    }

    /// The WQE to be written next.
    #[inline(always)]
    fn entry(&self) -> NonNull<DataSegment> {
        // SAFETY: the mask keeps the entry inside the ring.
        unsafe { self.ring.add((self.producer & self.mask) as usize * SEGMENTS) }
    }

    /// Makes all pushed WQEs visible to the device.
    #[inline]
    pub fn publish(&mut self) {
        barrier::wqe_before_doorbell_record();
        self.doorbell_record.store(self.producer & 0xffff);
    }

    /// Frees the entry of a completed receive WQE, so that it may be pushed again. The
    /// `wqe_counter` of the completion, modulo [`Self::entries`], is the index of the WQE.
    #[inline]
    pub fn reap(&mut self) {
        self.room += 1;
    }

    /// Receive WQEs that may be pushed now.
    #[inline]
    pub fn room(&self) -> u32 {
        self.room.max(0) as u32
    }

    /// Receive WQEs in the ring.
    #[inline]
    pub fn entries(&self) -> u32 {
        self.mask + 1
    }

    /// Discards everything posted, after the queue pair was moved to the reset state.
    pub(crate) fn reset(&mut self) {
        self.producer = 0;
        self.room = self.mask as i32 + 1;
        self.doorbell_record.store(0);
    }
}

/// Writes a scatter list of the non-empty `buffers`, and an end marker if there is room for more.
/// Returns `false` if more than `most` or none are non-empty; the list must then not be published.
///
/// # Safety
/// The contract of [`store::words`] holds for each of `most` segments from `place` on.
#[inline]
pub(super) unsafe fn write_scatter(
    place: NonNull<DataSegment>,
    most: usize,
    buffers: &[DataSegment],
) -> bool {
    let mut filled = 0;
    for buffer in buffers {
        // A byte count of zero means 2 GiB to the device, so an empty segment must not be written.
        if buffer.byte_count.get() == 0 {
            continue;
        }
        if filled == most {
            return false;
        }
        // SAFETY: `filled` is less than `most`, so this is one of the segments of the caller's
        // contract.
        unsafe { store::words(place.add(filled), transmute!(*buffer)) };
        filled += 1;
    }
    if filled < most {
        // SAFETY: `filled` is less than `most`, so this is one of the segments of the caller's
        // contract.
        unsafe { store::words(place.add(filled), transmute!(DataSegment::END)) };
    }
    filled > 0
}
