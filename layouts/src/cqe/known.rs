//! What users of adapters found behind the codes of error CQEs.

use super::{ErrorCqe, Syndrome};

/// Error CQEs of adapters that users have published, for the tests of this crate and of the driver.
#[doc(hidden)]
pub const EVIDENCE: &str = include_str!("evidence.txt");

/// A cause that a user, a maintainer or a measurement found behind the codes of an error CQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KnownCause {
    /// The syndrome.
    pub syndrome: Syndrome,
    /// The vendor's syndrome.
    pub vendor: u8,
    /// The hardware's syndrome; `None` for any.
    pub hardware: Option<u8>,
    /// The cause, what to check, and in brackets where it was found.
    pub text: &'static str,
}

macro_rules! known {
    ($($syndrome:ident $vendor:literal $($hardware:literal)?: $cause:literal, $source:literal;)+) => {
        /// All of them. Those of one hardware syndrome are before those of any.
        const KNOWN: &[KnownCause] = &[$(KnownCause {
            syndrome: Syndrome::$syndrome,
            vendor: $vendor,
            hardware: known!(@ $($hardware)?),
            text: concat!($cause, " [", $source, "]"),
        }),+];
    };
    (@) => { None };
    (@ $hardware:literal) => { Some($hardware) };
}

known! {
    LocalLength 0x68: "a raw Ethernet send lacks the inline header that this adapter requires", "netdev mail 2021-01-21";
    LocalQpOperation 0x61: "the WQE is malformed: it may have been read before it was written", "openucx/ucx#857";
    LocalQpOperation 0x68 0x01: "the WQE has an opcode that the queue does not know, or was overwritten", "linux-rdma mail 422c13eb00cf";
    LocalQpOperation 0x68 0x1f: "the queue pair of datagrams was in error", "openucx/ucx#3618";
    LocalQpOperation 0x68 0x86: "the UMR is malformed", "linux-block mail 2022-10-04";
    LocalQpOperation 0x68: "the device refused the WQE: it is malformed, or an operation that the firmware does not do", "openucx/ucx#1151";
    LocalProtection 0x51: "the device could not read the memory: check the IOMMU, PCIe ACS and the peer memory of a GPU", "openucx/ucx#9515, NVIDIA/nccl#928";
    LocalProtection 0x52 0x92: "the local key does not exist, or not any more", "openucx/ucx#6414";
    LocalProtection 0x52 0x93: "the local key is of another protection domain, or does not exist any more", "spdk/spdk#961";
    LocalProtection 0x52: "the local key does not exist any more, or is of another protection domain", "unionxic/rdma-fault-characterization";
    LocalProtection 0x53: "the memory is beyond the range of its local key", "Juniper/warp17#81, unionxic/rdma-fault-characterization";
    LocalProtection 0x32 0x92: "the key of a buffer to be written does not exist, or not any more", "openucx/ucx#7801";
    LocalProtection 0x32 0x93: "the key of a buffer to be written is of another protection domain, or has no entry for it", "netdev mail 2025-10-28";
    LocalProtection 0x32: "the key of a buffer to be written does not exist any more, or is of another protection domain", "openucx/ucx#9167";
    LocalProtection 0x33: "the memory to be written is beyond the range of its local key, or the key lacks LOCAL_WRITE", "unionxic/rdma-fault-characterization, ai-dynamo/modelexpress";
    LocalProtection 0x56: "the device could not write the memory: the IOMMU does not map it, or no longer", "linux-nvme mails 2022-02-09, 2022-05-17";
    WorkRequestFlushed 0xf5: "software had moved the queue pair to the error state", "unionxic/rdma-fault-characterization";
    WorkRequestFlushed 0xf9: "an earlier request had failed: see its completion", "linux-block mail 2022-10-04, NVIDIA/nccl#1353";
    MemoryWindowBind 0x78 0x08: "the memory key is free", "linux-rdma mail 2025-01-21";
    MemoryWindowBind 0x78 0x0f: "the list is longer than the memory key has room for", "linux-rdma mail 2023-07-19";
    MemoryWindowBind 0x78: "the memory key does not allow the change", "linux-rdma mail 2023-07-19";
    RemoteInvalidRequest 0x8a: "the peer's queue pair does not allow the operation, could not take the message, or the address of an atomic is not a multiple of its size", "openucx/ucx#1770, unionxic/rdma-fault-characterization";
    RemoteAccess 0x88: "the peer's key does not exist any more, or does not allow the access or its range", "spdk/spdk#1387, unionxic/rdma-fault-characterization";
    RemoteOperation 0x89: "the peer's device could not access its own memory", "open-mpi/ompi#13183";
    TransportRetryExceeded 0x81: "no acknowledgment: the peer is gone, its queue pair is in error, or the path loses packets (GID, MTU, route)", "openucx/ucx#3679, NVIDIA/nccl#426, unionxic/rdma-fault-characterization";
    RnrRetryExceeded 0x87: "the peer had posted no receive", "unionxic/rdma-fault-characterization";
}

impl KnownCause {
    /// Returns what is known of a syndrome and the vendor's and hardware's finer ones.
    pub fn find(syndrome: u8, vendor: u8, hardware: u8) -> Option<&'static Self> {
        let syndrome = Syndrome::from_bits(syndrome)?;
        KNOWN.iter().find(|known| {
            (known.syndrome, known.vendor) == (syndrome, vendor)
                && known.hardware.is_none_or(|of| of == hardware)
        })
    }
}

impl ErrorCqe {
    /// Returns what is known of the codes of this completion.
    pub fn known_cause(&self) -> Option<&'static KnownCause> {
        KnownCause::find(self.syndrome, self.vendor_syndrome, self.hardware_syndrome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cqe::{CqeFormat, CqeOpcode, SOLICITED};
    use std::collections::BTreeSet;
    use std::format;
    use std::string::{String, ToString};
    use std::vec::Vec;
    use zerocopy::{FromBytes, IntoBytes};

    fn hex(text: &str) -> u32 {
        u32::from_str_radix(text, 16).expect("hexadecimal")
    }

    fn bytes(text: &str) -> Vec<u8> {
        (0..text.len() / 2).map(|at| hex(&text[2 * at..][..2]) as u8).collect()
    }

    #[test]
    fn completions_of_adapters_decode_and_have_their_cause() {
        let (mut codes, mut entries, mut signed) = (BTreeSet::new(), BTreeSet::new(), 0);
        for line in EVIDENCE.lines().filter(|line| !line.starts_with('#')) {
            let columns: Vec<&str> = line.split('\t').collect();
            let [id, fields, index, entry, cause, ..] = columns[..] else { panic!("{line}") };
            let cqe = ErrorCqe::read_from_bytes(&bytes(entry)).expect("64 bytes");
            let decoded = format!(
                "{:x} {:02x} {:02x} {:02x} {:02x} {:02x} {:x} {:x} {:x}",
                cqe.op_own >> 4,
                cqe.syndrome,
                cqe.vendor_syndrome,
                cqe.hardware_syndrome,
                cqe.hardware_syndrome_type,
                cqe.send_opcode(),
                cqe.qpn(),
                cqe.wqe_counter.get(),
                cqe.user_index(),
            );
            assert_eq!(decoded, fields, "{id}");
            let opcode = CqeOpcode::from_bits(cqe.op_own >> 4);
            let is_error =
                matches!(opcode, Some(CqeOpcode::RequesterError | CqeOpcode::ResponderError));
            assert!(is_error && CqeFormat::from_op_own(cqe.op_own) == CqeFormat::Plain, "{id}");
            // Queues of the network driver (number 0) do not set it.
            assert_eq!(cqe.op_own & SOLICITED != 0, cqe.qpn() != 0, "{id}");
            if index != "-" {
                let index = hex(index).to_ne_bytes();
                let sum = cqe.as_bytes().iter().chain(&index).fold(0_u8, |sum, byte| sum ^ byte);
                assert_eq!(sum, 0xff, "{id}");
                signed += 1;
            }
            let text = cqe.known_cause().map_or("unknown", |known| known.text);
            assert!(text.contains(cause), "{id}: {text}");
            codes.insert((cqe.syndrome, cqe.vendor_syndrome, cqe.hardware_syndrome));
            entries.insert(entry);
        }
        assert!(entries.len() >= 58 && codes.len() >= 16 && signed >= 38, "{codes:?}, {signed}");
    }

    #[test]
    fn finer_codes_are_found_first_and_each_text_has_a_source() {
        for (at, known) in KNOWN.iter().enumerate() {
            let hardware = known.hardware.unwrap_or(0xee);
            let found = KnownCause::find(known.syndrome as u8, known.vendor, hardware);
            assert_eq!(found, Some(&KNOWN[at]));
            assert!(known.text.ends_with(']') && known.text.contains(" ["), "{}", known.text);
        }
        let texts: BTreeSet<String> = KNOWN.iter().map(|known| known.text.to_string()).collect();
        assert_eq!(texts.len(), KNOWN.len());
        assert_eq!(KnownCause::find(0x04, 0x50, 0), None);
        assert_eq!(KnownCause::find(0xff, 0x51, 0), None);
    }
}
