//! The contents of a CQE.

use core::fmt;

use barewire_layouts::cqe::{Cqe64, CqeOpcode, ErrorCqe, Syndrome};

/// The kind of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompletionKind {
    /// A WQE of a send queue, and with it all WQEs before it on that queue.
    Send,
    /// A receive WQE, by a send.
    Receive,
    /// A receive WQE, by a send with an immediate.
    ReceiveImmediate(u32),
    /// A receive WQE, by a send that invalidated this local key.
    ReceiveInvalidate(u32),
    /// A receive WQE, by an RDMA write with an immediate. Its buffer is unchanged.
    WriteImmediate(u32),
    /// A send queue's WQE failed; the queue pair is in error.
    SendError(Failure),
    /// A receive WQE failed; the queue pair is in error.
    ReceiveError(Failure),
    /// A CQE that does not complete a WQE, by its opcode ([`CqeOpcode`]): the queue was resized, a
    /// signature did not match, a receive WQE was returned, or the opcode is unknown to this
    /// driver. It is consumed like any other.
    Other(u8),
}

/// The reason why a WQE failed, as the device reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The syndrome byte: see [`Self::syndrome`].
    pub code: u8,
    /// The vendor's error syndrome, with more detail.
    pub vendor_code: u8,
    /// Opcode byte of the send WQE: see `layouts::wqe::Opcode`. 0 for a receive WQE.
    pub opcode: u8,
}

impl Failure {
    /// Returns a failure as a device reports it, for tests of code that handles failures.
    pub const fn new(code: u8, vendor_code: u8, opcode: u8) -> Self {
        Self { code, vendor_code, opcode }
    }

    /// The syndrome, if it is a known value.
    pub fn syndrome(self) -> Option<Syndrome> {
        Syndrome::from_bits(self.code)
    }

    /// Returns `true` if the WQE was not executed because the queue pair was in error.
    pub fn is_flush(self) -> bool {
        self.code == Syndrome::WorkRequestFlushed as u8
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.syndrome() {
            Some(syndrome) => {
                write!(
                    f,
                    "{syndrome} (syndrome {:#04x}, vendor {:#04x})",
                    self.code, self.vendor_code
                )
            }
            None => {
                write!(
                    f,
                    "unknown error (syndrome {:#04x}, vendor {:#04x})",
                    self.code, self.vendor_code
                )
            }
        }
    }
}

/// One completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completion {
    /// The kind of the completion.
    pub kind: CompletionKind,
    /// Number of the queue pair.
    pub qpn: u32,
    /// Index of the send WQE's first block, or of the receive WQE.
    pub wqe_counter: u16,
    /// Bytes received, or transferred by a read or atomic.
    pub byte_count: u32,
    /// The `user_index` of the queue pair (24 bits).
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
    Failure {
        code: error.syndrome,
        vendor_code: error.vendor_syndrome,
        opcode: error.send_opcode(),
    }
}
