//! The completion queue: polling CQEs.

use core::any::Any;
use core::fmt;
use core::ptr::NonNull;
use std::sync::Arc;

use barewire_layouts::cqe::{Cqe64, CqeOpcode, ErrorCqe, HARDWARE_OP_OWN, OP_OWN_OFFSET, OWNER, Syndrome};
use volatile::VolatilePtr;
use volatile::access::ReadOnly;

use crate::barrier;
use crate::doorbell::RecordWord;

/// What a completion queue is built from. See [`CompletionQueue::from_parts`].
#[derive(Debug)]
pub struct CompletionParts {
    /// The ring: `entries` CQEs of 64 bytes.
    pub ring: NonNull<Cqe64>,
    /// CQEs in the ring, a power of two up to 2^22.
    pub entries: u32,
    /// The consumer word of the doorbell record.
    pub doorbell_record: NonNull<u32>,
    /// Keeps ring and record alive, and the device's object with them.
    pub keep: Arc<dyn Any + Send + Sync>,
}

/// A completion queue with 64-byte entries.
///
/// It is created with overrun checks off, as the hot path does not publish the consumer counter. So whoever posts to it must not have more
/// WQEs outstanding than it has entries: on an error every WQE gives one CQE.
pub struct CompletionQueue {
    next: NonNull<Cqe64>,
    /// The owner bit that makes `next` ours on this lap.
    owner: u8,
    start: NonNull<Cqe64>,
    end: NonNull<Cqe64>,
    /// CQEs taken, free running.
    consumer: u32,
    doorbell_record: RecordWord,
    keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the queue is the only consumer of the ring and writer of the record; the pointers are not tied to a thread.
unsafe impl Send for CompletionQueue {}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}

/// What completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// A send queue's WQE, and with it everything before it on that queue.
    Send,
    /// A receive WQE, by a send.
    Receive,
    /// A receive WQE, by a send with an immediate.
    ReceiveImmediate(u32),
    /// A receive WQE, by an RDMA write with an immediate: its buffer was not touched.
    WriteImmediate(u32),
    /// A send queue's WQE failed; the queue pair is in error.
    SendError(Failure),
    /// A receive WQE failed; the queue pair is in error.
    ReceiveError(Failure),
    /// A CQE that this driver has no use for, by its opcode.
    Other(u8),
}

/// Why a WQE failed, as the device says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The syndrome byte: see [`Self::syndrome`].
    pub code: u8,
    /// The vendor's finer reason.
    pub vendor_code: u8,
    /// Opcode byte of the send WQE: see `layouts::wqe::Opcode`. 0 for a receive WQE.
    pub opcode: u8,
}

impl Failure {
    /// The syndrome, if it is a known one.
    pub fn syndrome(self) -> Option<Syndrome> {
        Syndrome::from_bits(self.code)
    }

    /// `true` if the WQE itself was not executed: the queue pair was in error before its turn came.
    pub fn is_flush(self) -> bool {
        self.code == Syndrome::WorkRequestFlushed as u8
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.syndrome() {
            Some(syndrome) => {
                write!(f, "{syndrome} (syndrome {:#04x}, vendor {:#04x})", self.code, self.vendor_code)
            }
            None => {
                write!(f, "unknown error (syndrome {:#04x}, vendor {:#04x})", self.code, self.vendor_code)
            }
        }
    }
}

/// One completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What completed.
    pub kind: CompletionKind,
    /// Number of the queue pair.
    pub qpn: u32,
    /// Index of the send WQE's first block, or of the receive WQE.
    pub wqe_counter: u16,
    /// Bytes received, or transferred by a read or atomic.
    pub byte_count: u32,
}

impl CompletionQueue {
    /// Gives every entry of a ring to the device. To be done before the device learns of the ring.
    ///
    /// # Safety
    /// `ring` is valid for writes of `entries` CQEs, and nobody else uses it.
    pub unsafe fn initialise(ring: NonNull<Cqe64>, entries: u32) {
        for entry in 0..entries as usize {
            // SAFETY: inside the caller's range.
            unsafe { ring.add(entry).write(Cqe64 { op_own: HARDWARE_OP_OWN, ..Cqe64::INITIAL }) };
        }
    }

    /// Builds a queue over a ring that [`Self::initialise`] has prepared and a device, or a test, writes CQEs to.
    ///
    /// # Safety
    /// Until `parts.keep` is dropped: `ring` is valid for reads of `entries * 64` bytes, the doorbell record word is valid and 4-byte aligned,
    /// and only this queue and the device touch them. `entries` is a power of two, at most 2^22.
    pub unsafe fn from_parts(parts: CompletionParts) -> Self {
        debug_assert!(parts.entries.is_power_of_two() && parts.entries <= 1 << 22);
        // SAFETY: one past the ring's end.
        let end = unsafe { parts.ring.add(parts.entries as usize) };
        Self {
            next: parts.ring,
            owner: 0,
            start: parts.ring,
            end,
            consumer: 0,
            // SAFETY: the caller's contract covers the record.
            doorbell_record: unsafe { RecordWord::new(parts.doorbell_record) },
            keep: parts.keep,
        }
    }

    /// Takes the next completion, if there is one.
    #[inline]
    pub fn poll(&mut self) -> Option<Completion> {
        // SAFETY: `next` is an entry of the ring, and its last byte is one the device may write at any time.
        let op_own = unsafe {
            VolatilePtr::new_restricted(ReadOnly, self.next.cast::<u8>().add(OP_OWN_OFFSET)).read()
        };
        if (op_own ^ self.owner) & OWNER != 0 {
            return None;
        }
        Some(self.take(op_own))
    }

    #[inline(always)]
    fn take(&mut self, op_own: u8) -> Completion {
        barrier::owner_before_completion();
        // SAFETY: the owner byte says that the device is done with the entry, and it does not come back to it before a whole lap, which the
        // bound on outstanding WQEs excludes. A device that broke this bound would give garbled numbers, nothing worse: plain bytes.
        let cqe = unsafe { self.next.read() };
        // SAFETY: at most one past the last entry, where it goes back to the start.
        self.next = unsafe { self.next.add(1) };
        self.consumer = self.consumer.wrapping_add(1);
        if self.next == self.end {
            self.next = self.start;
            self.owner ^= OWNER;
        }
        let immediate = cqe.immediate.get();
        let kind = match CqeOpcode::from_bits(op_own >> 4) {
            Some(CqeOpcode::Requester) => CompletionKind::Send,
            Some(CqeOpcode::ResponderSend) => CompletionKind::Receive,
            Some(CqeOpcode::ResponderSendImmediate) => CompletionKind::ReceiveImmediate(immediate),
            Some(CqeOpcode::ResponderWriteImmediate) => CompletionKind::WriteImmediate(immediate),
            Some(CqeOpcode::RequesterError) => CompletionKind::SendError(failure(cqe)),
            Some(CqeOpcode::ResponderError) => CompletionKind::ReceiveError(failure(cqe)),
            _ => CompletionKind::Other(op_own >> 4),
        };
        Completion {
            kind,
            qpn: cqe.qpn(),
            wqe_counter: cqe.wqe_counter.get(),
            byte_count: cqe.byte_count.get(),
        }
    }

    /// Tells the device how far this queue was consumed. Not needed as the queue is created; useful to whoever reads the record.
    #[inline]
    pub fn publish_consumer(&mut self) {
        self.doorbell_record.store(self.consumer & 0x00ff_ffff);
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
}

#[cold]
fn failure(cqe: Cqe64) -> Failure {
    let error: ErrorCqe = zerocopy::transmute!(cqe);
    Failure {
        code: error.syndrome,
        vendor_code: error.vendor_syndrome,
        opcode: (error.opcode_qpn.get() >> 24) as u8,
    }
}
