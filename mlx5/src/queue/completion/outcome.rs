//! What a CQE says.

use core::fmt;

use barewire_layouts::cqe::{Cqe64, CqeOpcode, ErrorCqe, Syndrome};

/// What completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// A send queue's WQE, and with it everything before it on that queue.
    Send,
    /// A receive WQE, by a send.
    Receive,
    /// A receive WQE, by a send with an immediate.
    ReceiveImmediate(u32),
    /// A receive WQE, by a send that invalidated this key of ours.
    ReceiveInvalidate(u32),
    /// A receive WQE, by an RDMA write with an immediate: its buffer was not touched.
    WriteImmediate(u32),
    /// A send queue's WQE failed; the queue pair is in error.
    SendError(Failure),
    /// A receive WQE failed; the queue pair is in error.
    ReceiveError(Failure),
    /// A CQE that is no completion of a WQE, by its opcode ([`CqeOpcode`]): the queue was resized here, a signature did not match, a
    /// receive WQE was given back, or an opcode that this driver does not know. It was taken like any other.
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
    /// What the queue pair was created with as `user_index` (24 bits).
    pub user_index: u32,
}

#[cold]
#[inline(never)]
pub(super) fn other(cqe: &Cqe64) -> CompletionKind {
    let (opcode, immediate) = (cqe.opcode(), cqe.immediate.get());
    match CqeOpcode::from_bits(opcode) {
        Some(CqeOpcode::ResponderSendImmediate) => CompletionKind::ReceiveImmediate(immediate),
        Some(CqeOpcode::ResponderSendInvalidate) => CompletionKind::ReceiveInvalidate(immediate),
        Some(CqeOpcode::ResponderWriteImmediate) => CompletionKind::WriteImmediate(immediate),
        Some(CqeOpcode::RequesterError) => CompletionKind::SendError(failure(*cqe)),
        Some(CqeOpcode::ResponderError) => CompletionKind::ReceiveError(failure(*cqe)),
        _ => CompletionKind::Other(opcode),
    }
}

fn failure(cqe: Cqe64) -> Failure {
    let error: ErrorCqe = zerocopy::transmute!(cqe);
    Failure { code: error.syndrome, vendor_code: error.vendor_syndrome, opcode: error.send_opcode() }
}
