//! What users of adapters found behind the syndromes of refused commands.

use super::CommandOpcode;

/// A cause that a maintainer, a patch or a measurement named for the syndrome of a refused command.
struct Known {
    opcode: CommandOpcode,
    syndrome: u32,
    text: &'static str,
}

macro_rules! known {
    ($($opcode:ident $syndrome:literal: $cause:literal, $source:literal;)+) => {
        const KNOWN: &[Known] = &[$(Known {
            opcode: CommandOpcode::$opcode,
            syndrome: $syndrome,
            text: concat!($cause, " [", $source, "]"),
        }),+];
    };
}

known! {
    QueryHcaCap 0x005a_dd95: "the firmware is too old to know this page of capabilities", "a published log of UCX 1.16.0";
    QueryHcaCap 0x003a_3846: "the capability is another function's, and switchdev is not enabled", "linux-rdma mail 34d573a9a38a";
    CreateMkey 0x0003_bf6f: "the key has no room for translations (translations_octword_size is 0)", "netdev mail 2024-09-25, linux-rdma 2021-01-11";
    CreateMkey 0x0038_a711: "the page size (log_page_size) is above the limit of the access mode", "linux-rdma mail e03d0c79a322";
    CreateMkey 0x0059_c8a4: "the limit of memory keys (log_max_mkey) is reached", "openucx/ucx#6264";
    CreateMkey 0x0035_e6ec: "the driver and the firmware disagree about keys with signatures: update them", "openucx/ucx#9488";
    CreateEq 0x8fef: "fields of the request are wrong, as by a driver for other firmware", "netdev mail 2019-05-01";
    DestroyCq 0x0018_70ad: "a queue pair still uses the completion queue", "linux-pci mail 2022-01-21";
    CreateQp 0x002c_4154: "the firmware's limit of queue pairs by DEVX is reached: update it, or create them by verbs", "openucx/ucx#10451";
    CreateQp 0x0065_b500: "the limit of queue pairs is reached, which is below max_qp", "linux-rdma 2022-06-27";
    DestroyQp 0x0025_b161: "the queue pair does not exist any more", "linux-pci mail 2022-01-21";
    Rst2InitQp 0x0017_7405: "the port is beyond those of the function", "linux-rdma mail 2020-05-06";
    ToErrQp 0x007e_a02d: "the queue pair does not exist any more", "linux-pci mail 2022-01-21";
    ToRstQp 0x007e_a02d: "the queue pair does not exist any more", "linux-pci mail 2022-01-21";
    CreateDct 0x00a2_2b82: "the function is in VF LAG, where this firmware has no targets of dynamic connections", "linux-rdma 2021-05-18";
    SetRoceAddress 0x0006_3c66: "the MAC address is a multicast address, or the entry conflicts with another", "linux-rdma 2023-07-19";
    SetRoceAddress 0x0012_822d: "the function has no RoCE v1, also when an entry is deleted", "linux-rdma mail 3b6749db10c5";
    DeallocPd 0x0031_b635: "memory keys of the protection domain still exist", "linux-rdma 2021-03-11";
    DeallocPd 0x00ef_0c8a: "encryption keys of the protection domain still exist", "linux-rdma mail 975b5682a623";
}

/// Returns the cause of a refused command and, in brackets, where it was found.
pub(super) fn known_cause(opcode: CommandOpcode, syndrome: u32) -> Option<&'static str> {
    let known = KNOWN.iter().find(|known| (known.opcode, known.syndrome) == (opcode, syndrome));
    known.map(|known| known.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_has_one_text_with_a_source() {
        for known in KNOWN {
            assert_eq!(known_cause(known.opcode, known.syndrome), Some(known.text));
            assert!(known.text.ends_with(']') && known.text.contains(" ["), "{}", known.text);
        }
        assert_eq!(known_cause(CommandOpcode::DeallocPd, 0x3bf6f), None);
    }
}
