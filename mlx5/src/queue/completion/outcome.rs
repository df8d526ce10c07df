//! The contents of a CQE.

use core::fmt;

use barewire_layouts::cqe::{Cqe64, CqeOpcode, ErrorCqe, KnownCause, Syndrome};

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

// Failures must not make the completions of the hot path larger.
const _: () = assert!(size_of::<CompletionKind>() == 8);

/// The reason why a WQE failed, as the device reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The syndrome byte: see [`Self::syndrome`].
    pub code: u8,
    /// The vendor's error syndrome, with more detail.
    pub vendor_code: u8,
    /// The hardware's error syndrome, the finest detail; 0 if the peer caused the failure.
    pub hardware_code: u8,
    /// Opcode byte of the send WQE: see `layouts::wqe::Opcode`. 0 for a receive WQE.
    pub opcode: u8,
}

impl Failure {
    /// Returns a failure as a device reports it, for tests of code that handles failures.
    pub const fn new(code: u8, vendor_code: u8, opcode: u8) -> Self {
        Self { code, vendor_code, hardware_code: 0, opcode }
    }

    /// Returns this failure with a hardware's syndrome.
    #[must_use]
    pub const fn with_hardware_code(self, hardware_code: u8) -> Self {
        Self { hardware_code, ..self }
    }

    /// The syndrome, if it is a known value.
    pub fn syndrome(self) -> Option<Syndrome> {
        Syndrome::from_bits(self.code)
    }

    /// Returns what users of adapters found behind these codes, and in brackets where, if anything.
    pub fn known_cause(self) -> Option<&'static str> {
        let known = KnownCause::find(self.code, self.vendor_code, self.hardware_code);
        known.map(|known| known.text)
    }

    /// Returns `true` if the WQE was not executed because the queue pair was in error.
    pub fn is_flush(self) -> bool {
        self.code == Syndrome::WorkRequestFlushed as u8
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.syndrome() {
            Some(syndrome) => write!(f, "{syndrome}")?,
            None => f.write_str("unknown error")?,
        }
        write!(f, " (syndrome {:#04x}, vendor {:#04x}", self.code, self.vendor_code)?;
        if self.hardware_code != 0 {
            write!(f, ", hardware {:#04x}", self.hardware_code)?;
        }
        f.write_str(")")?;
        self.known_cause().map_or(Ok(()), |cause| write!(f, ": {cause}"))
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
        hardware_code: error.hardware_syndrome,
        opcode: error.send_opcode(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use barewire_layouts::cqe::EVIDENCE;
    use zerocopy::FromBytes;

    #[test]
    fn completions_of_adapters_are_printed_with_their_cause() {
        let mut texts = std::collections::BTreeSet::new();
        for line in EVIDENCE.lines().filter(|line| !line.starts_with('#')) {
            let columns: Vec<&str> = line.split('\t').collect();
            let [id, _, _, entry, cause, ..] = columns[..] else { panic!("{line}") };
            let bytes: Vec<u8> = (0..64)
                .map(|at| u8::from_str_radix(&entry[2 * at..][..2], 16).expect("hexadecimal"))
                .collect();
            let cqe = Cqe64::read_from_bytes(&bytes).expect("64 bytes");
            let failure = match other(&cqe) {
                CompletionKind::SendError(failure) | CompletionKind::ReceiveError(failure) => {
                    failure
                }
                kind => panic!("{id}: {kind:?}"),
            };
            let text = failure.to_string();
            let codes = format!("(syndrome {:#04x}, vendor {:#04x}", bytes[55], bytes[54]);
            assert!(text.contains(&codes) && text.contains(cause), "{id}: {text}");
            assert_eq!(text.contains(&format!("hardware {:#04x}", bytes[52])), bytes[52] != 0);
            texts.insert(text);
        }
        assert!(texts.len() >= 16, "{texts:#?}");
    }
}
