//! A completion that was taken, while it still lies in the ring.

use core::fmt;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr::NonNull;

use barewire_layouts::be::{Be16, Be32};
use barewire_layouts::cqe::{Cqe64, CqeOpcode, OP_OWN_OFFSET};

use super::outcome::{self, Completion, CompletionKind};

/// A completion as [`super::CompletionQueue::poll`] gives it. Each field is read from the ring when it is asked for, so that nobody pays for what
/// he does not look at; [`Self::completion`] reads them all.
#[derive(Clone, Copy)]
pub struct Polled<'q> {
    cqe: NonNull<Cqe64>,
    /// The owner bit is not looked at.
    op_own: u8,
    /// While it is looked at, the queue is not polled.
    queue: PhantomData<&'q ()>,
}

impl Polled<'_> {
    /// # Safety
    /// `cqe` is valid for reads, whatever the bytes, for the lifetime of the result.
    #[inline(always)]
    pub(super) unsafe fn new(cqe: NonNull<Cqe64>) -> Self {
        // SAFETY: a byte of the CQE, valid for reads by the caller's contract.
        let op_own = unsafe { cqe.byte_add(OP_OWN_OFFSET).cast().read() };
        Self { cqe, op_own, queue: PhantomData }
    }

    /// This CQE, whose last byte is known to be `op_own` but for the owner bit.
    #[inline(always)]
    pub(super) fn with_op_own(self, op_own: u8) -> Self {
        Self { op_own, ..self }
    }

    /// The opcode: see [`CqeOpcode`].
    #[inline(always)]
    pub fn opcode(self) -> u8 {
        self.op_own >> 4
    }

    /// `true` for a WQE of a send queue that succeeded, and with it everything before it on that queue.
    #[inline(always)]
    pub fn is_send(self) -> bool {
        self.opcode() == CqeOpcode::Requester as u8
    }

    /// Index of the send WQE's first block, or of the receive WQE.
    #[inline(always)]
    pub fn wqe_counter(self) -> u16 {
        // SAFETY: a field of the CQE, valid for reads by the contract of `new`.
        unsafe { self.cqe.byte_add(offset_of!(Cqe64, wqe_counter)).cast::<Be16>().read() }.get()
    }

    /// Bytes received, or transferred by a read or atomic.
    #[inline(always)]
    pub fn byte_count(self) -> u32 {
        self.word(offset_of!(Cqe64, byte_count))
    }

    /// What the queue pair was created with as `user_index` (24 bits).
    #[inline(always)]
    pub fn user_index(self) -> u32 {
        self.word(offset_of!(Cqe64, srqn_user_index)) & 0x00ff_ffff
    }

    /// Number of the queue pair.
    #[inline(always)]
    pub fn qpn(self) -> u32 {
        self.word(offset_of!(Cqe64, opcode_qpn)) & 0x00ff_ffff
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
        // SAFETY: valid for reads by the contract of `new`.
        unsafe { self.cqe.read() }
    }

    #[inline(always)]
    fn word(self, offset: usize) -> u32 {
        // SAFETY: callers name a field of the CQE, valid for reads by the contract of `new`.
        unsafe { self.cqe.byte_add(offset).cast::<Be32>().read() }.get()
    }
}

impl From<&Cqe64> for Completion {
    fn from(cqe: &Cqe64) -> Self {
        // SAFETY: borrowed for longer than it is looked at.
        unsafe { Polled::new(NonNull::from(cqe)) }.completion()
    }
}

impl fmt::Debug for Polled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.completion(), f)
    }
}
