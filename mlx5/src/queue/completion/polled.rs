//! A completion that was taken, while it still lies in the ring.

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use barewire_layouts::cqe::{Cqe64, CqeOpcode};

use super::entry::{self, Aligned, LAST};
use super::outcome::{self, Completion, CompletionKind};

/// A completion as [`super::CompletionQueue::poll`] returns it. Each field is loaded from the ring by
/// the method that returns it, so that unused fields cost nothing; [`Self::completion`] loads them
/// all.
///
/// In a queue that is too small for what completes to it, the device may write the entry meanwhile.
/// The fields may then belong to different completions.
#[derive(Clone, Copy)]
pub struct Polled<'q> {
    cqe: NonNull<Cqe64>,
    /// The last word as the poll saw it. Only the opcode is taken from it: the other fields are
    /// loaded after the poll's barrier.
    last: u64,
    /// The queue is not polled while the completion is in use.
    queue: PhantomData<&'q ()>,
}

impl Polled<'_> {
    /// # Safety
    /// The contract of [`entry::load`] holds for `cqe` for the lifetime of the result.
    #[inline(always)]
    pub(super) unsafe fn new(cqe: NonNull<Cqe64>) -> Self {
        // SAFETY: the caller's contract.
        let last = unsafe { entry::load(cqe, LAST, Ordering::Relaxed) };
        // SAFETY: as above.
        unsafe { Self::with_last(cqe, last) }
    }

    /// A CQE whose opcode is the one in `last`.
    ///
    /// # Safety
    /// As [`Self::new`].
    #[inline(always)]
    pub(super) unsafe fn with_last(cqe: NonNull<Cqe64>, last: u64) -> Self {
        Self { cqe, last, queue: PhantomData }
    }

    /// The opcode: see [`CqeOpcode`].
    #[inline(always)]
    pub fn opcode(self) -> u8 {
        (self.last >> 60) as u8
    }

    /// `true` for a WQE of a send queue that succeeded, and with it everything before it on that queue.
    #[inline(always)]
    pub fn is_send(self) -> bool {
        self.opcode() == CqeOpcode::Requester as u8
    }

    /// Index of the send WQE's first block, or of the receive WQE.
    #[inline(always)]
    pub fn wqe_counter(self) -> u16 {
        u16::from_be((self.word::<LAST>() >> 32) as u16)
    }

    /// Bytes received, or transferred by a read or atomic.
    #[inline(always)]
    pub fn byte_count(self) -> u32 {
        // The second half of its word.
        u64::from_be(self.word::<5>()) as u32
    }

    /// What the queue pair was created with as `user_index` (24 bits).
    #[inline(always)]
    pub fn user_index(self) -> u32 {
        u32::from_be(self.word::<4>() as u32) & 0x00ff_ffff
    }

    /// Number of the queue pair.
    #[inline(always)]
    pub fn qpn(self) -> u32 {
        u32::from_be(self.word::<LAST>() as u32) & 0x00ff_ffff
    }

    /// What completed.
    #[inline(always)]
    pub fn kind(self) -> CompletionKind {
        // The two of a loop that posts and receives first; a table of jumps for the others is out of the way.
        match self.opcode() {
            opcode if opcode == CqeOpcode::ResponderSend as u8 => CompletionKind::Receive,
            opcode if opcode == CqeOpcode::Requester as u8 => CompletionKind::Send,
            _ => outcome::other(&self.cqe()),
        }
    }

    /// All of it, as a value of its own.
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

    /// A copy of the CQE: a datagram's sender ([`Cqe64::packet`]), the timestamp.
    pub fn cqe(self) -> Cqe64 {
        // SAFETY: the contract of `new`.
        unsafe { entry::copy(self.cqe) }
    }

    /// Word `AT` of the CQE.
    #[inline(always)]
    fn word<const AT: usize>(self) -> u64 {
        const { assert!(AT <= LAST) };
        // SAFETY: the contract of `new`.
        unsafe { entry::load(self.cqe, AT, Ordering::Relaxed) }
    }
}

impl From<&Cqe64> for Completion {
    fn from(cqe: &Cqe64) -> Self {
        let mut copy = Aligned(*cqe);
        // SAFETY: an aligned local, which nothing else accesses and which outlives the value.
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

    assert!(offset_of!(Cqe64, srqn_user_index) == 4 * 8);
    assert!(offset_of!(Cqe64, byte_count) == 5 * 8 + 4);
    assert!(offset_of!(Cqe64, opcode_qpn) == LAST * 8);
    assert!(offset_of!(Cqe64, wqe_counter) == LAST * 8 + 4);
    assert!(offset_of!(Cqe64, op_own) == LAST * 8 + 7);
};
