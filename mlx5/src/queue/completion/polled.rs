//! A completion that was taken and is still in the ring.

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use barewire_layouts::cqe::{Cqe64, CqeFormat, CqeOpcode, StrideCount};

use super::entry::{self, Aligned, LAST};
use super::outcome::{self, Completion, CompletionKind};

/// A completion that [`super::CompletionQueue::poll`] returned. Each field is loaded from the ring
/// by the method that returns it, so unused fields cost nothing; [`Self::completion`] loads all of
/// them.
///
/// In a queue that is too small for its completions, the device may write the entry at the same
/// time. The fields may then belong to different completions.
#[derive(Clone, Copy)]
pub struct Polled<'q> {
    cqe: NonNull<Cqe64>,
    /// The last word as the poll loaded it. Only the opcode and the format are taken from it; the
    /// other fields are loaded after the barrier of the poll.
    last: u64,
    /// Borrows the queue, so that it is not polled while the completion is in use.
    queue: PhantomData<&'q ()>,
}

impl Polled<'_> {
    /// # Safety
    /// The contract of [`entry::load`] holds for `cqe` for the lifetime of the result.
    #[inline(always)]
    pub(super) unsafe fn new(cqe: NonNull<Cqe64>) -> Self {
        // SAFETY: `cqe` satisfies the contract of `entry::load` by the caller's contract.
        let last = unsafe { entry::load(cqe, LAST, Ordering::Relaxed) };
        // SAFETY: this function has the contract of `with_last`.
        unsafe { Self::with_last(cqe, last) }
    }

    /// A CQE whose opcode is the one in `last`.
    ///
    /// # Safety
    /// The contract of [`Self::new`].
    #[inline(always)]
    pub(super) unsafe fn with_last(cqe: NonNull<Cqe64>, last: u64) -> Self {
        Self { cqe, last, queue: PhantomData }
    }

    /// The opcode: see [`CqeOpcode`].
    #[inline(always)]
    pub fn opcode(self) -> u8 {
        (self.last >> 60) as u8
    }

    /// Where the data is: in the buffers of the WQE, or in the CQE.
    #[inline(always)]
    pub fn format(self) -> CqeFormat {
        CqeFormat::from_op_own((self.last >> 56) as u8)
    }

    /// The first 32 bytes of the CQE, which are the message if the format is
    /// [`CqeFormat::Inline32`]. They are valid for reads as long as the queue. The device does not
    /// write them before it has completed as many more WQEs as the queue has entries.
    #[inline(always)]
    pub fn data(self) -> NonNull<[u8; 32]> {
        self.cqe.cast()
    }

    /// Returns `true` for a WQE of a send queue that succeeded, and with it all WQEs before it on
    /// that queue.
    #[inline(always)]
    pub fn is_send(self) -> bool {
        self.opcode() == CqeOpcode::Requester as u8
    }

    /// Index of the send WQE's first block, or of the receive WQE.
    #[inline(always)]
    pub fn wqe_counter(self) -> u16 {
        self.wqe_position() as u16
    }

    /// A number whose low half is [`Self::wqe_counter`]. The high half has no meaning: a caller
    /// that masks the number anyway saves the instruction that clears it.
    #[inline(always)]
    pub fn wqe_position(self) -> u32 {
        // The field is the third quarter of its word.
        (u64::from_be(self.word::<LAST>()) >> 16) as u32
    }

    /// Bytes received, or transferred by a read or atomic.
    #[inline(always)]
    pub fn byte_count(self) -> u32 {
        // The field is the second half of its word.
        u64::from_be(self.word::<5>()) as u32
    }

    /// The byte count of a packet that took a stride of a striding shared receive queue.
    #[inline(always)]
    pub fn stride_count(self) -> StrideCount {
        StrideCount(self.byte_count())
    }

    /// The stride that a packet took, in a completion without inline data.
    #[inline(always)]
    pub fn stride(self) -> u16 {
        // The field is the third quarter of its word.
        (u64::from_be(self.word::<2>()) >> 16) as u16
    }

    /// Returns `true` for a receive WQE that an RDMA write with an immediate consumed.
    #[inline(always)]
    pub fn is_write_immediate(self) -> bool {
        self.opcode() == CqeOpcode::ResponderWriteImmediate as u8
    }

    /// The immediate of a message that has one; otherwise a field without meaning.
    #[inline(always)]
    pub fn immediate(self) -> u32 {
        // The field is the second half of its word.
        u64::from_be(self.word::<4>()) as u32
    }

    /// The `user_index` of the queue pair (24 bits).
    #[inline(always)]
    pub fn user_index(self) -> u32 {
        u32::from_be(self.word::<4>() as u32) & 0x00ff_ffff
    }

    /// Number of the sender's queue pair, of a datagram.
    #[inline(always)]
    pub fn source_qpn(self) -> u32 {
        u32::from_be(self.word::<3>() as u32) & 0x00ff_ffff
    }

    /// Number of the queue pair.
    #[inline(always)]
    pub fn qpn(self) -> u32 {
        u32::from_be(self.word::<LAST>() as u32) & 0x00ff_ffff
    }

    /// The kind of the completion.
    #[inline(always)]
    pub fn kind(self) -> CompletionKind {
        // The two kinds of a loop that posts and receives come first; the jump table for the others
        // is out of the way.
        match self.opcode() {
            opcode if opcode == CqeOpcode::ResponderSend as u8 => CompletionKind::Receive,
            opcode if opcode == CqeOpcode::Requester as u8 => CompletionKind::Send,
            _ => outcome::other(&self.cqe()),
        }
    }

    /// Loads all fields.
    #[inline(always)]
    pub fn completion(self) -> Completion {
        Completion {
            kind: self.kind(),
            qpn: self.qpn(),
            wqe_counter: self.wqe_counter(),
            byte_count: self.byte_count(),
            user_index: self.user_index(),
        }
    }

    /// A copy of the CQE, with the sender of a datagram ([`Cqe64::packet`]) and the timestamp.
    pub fn cqe(self) -> Cqe64 {
        // SAFETY: `cqe` is valid for the lifetime of `self` by the contract of `new`.
        unsafe { entry::copy(self.cqe) }
    }

    /// Word `AT` of the CQE.
    #[inline(always)]
    pub(super) fn word<const AT: usize>(self) -> u64 {
        const { assert!(AT <= LAST) };
        // SAFETY: `cqe` is valid for the lifetime of `self` by the contract of `new`, and `AT` is
        // at most `LAST`.
        unsafe { entry::load(self.cqe, AT, Ordering::Relaxed) }
    }
}

impl From<&Cqe64> for Completion {
    fn from(cqe: &Cqe64) -> Self {
        let mut copy = Aligned(*cqe);
        // SAFETY: an aligned local that nothing else accesses and that outlives the value.
        unsafe { Polled::new(NonNull::from(&mut copy).cast()) }.completion()
    }
}

impl fmt::Debug for Polled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.completion(), f)
    }
}

const _: () = {
    use core::mem::offset_of;

    use barewire_layouts::cqe::PacketFields;

    assert!(offset_of!(Cqe64, metadata) + offset_of!(PacketFields, flags_source_qpn) == 3 * 8);
    assert!(offset_of!(Cqe64, metadata) + offset_of!(PacketFields, checksum) == 2 * 8 + 4);
    assert!(offset_of!(Cqe64, srqn_user_index) == 4 * 8);
    assert!(offset_of!(Cqe64, immediate) == 4 * 8 + 4);
    assert!(offset_of!(Cqe64, byte_count) == 5 * 8 + 4);
    assert!(offset_of!(Cqe64, opcode_qpn) == LAST * 8);
    assert!(offset_of!(Cqe64, wqe_counter) == LAST * 8 + 4);
    assert!(offset_of!(Cqe64, op_own) == LAST * 8 + 7);
};
