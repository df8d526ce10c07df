//! Why a command was refused: this device's syndrome numbers, in one table.
//!
//! Firmware has its own numbers, which vendors decode. Those whose meaning users have published are
//! used here (`layouts/src/command/known.rs`). The others have a group in the second byte, so that a
//! reader of a log recognises the kind of object.

use std::fmt;

use barewire_layouts::command::CommandStatus;

macro_rules! syndromes {
    ($($name:ident = $number:literal, $status:ident, $text:literal;)+) => {
        /// Why a command was refused: the `syndrome` of its output. `Display` describes it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[non_exhaustive]
        pub enum CommandSyndrome {
            $(#[doc = $text] $name = $number,)+
        }

        impl CommandSyndrome {
            /// Every syndrome, in ascending order.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Returns the syndrome of that number, if it is one of this device's.
            pub const fn from_bits(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)+
                    _ => None,
                }
            }

            /// Returns the status of the syndrome.
            pub const fn status(self) -> CommandStatus {
                match self {
                    $(Self::$name => CommandStatus::$status,)+
                }
            }
        }

        impl fmt::Display for CommandSyndrome {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self {
                    $(Self::$name => $text,)+
                })
            }
        }
    };
}

syndromes! {
    UnknownOpcode = 0x0101, BadOperation, "the opcode is none that this device knows";
    UnknownModifier = 0x0102, BadOperation, "the operation modifier (op_mod) is none that this command knows";
    InputLength = 0x0103, BadInputLength, "the request is shorter than the command's layout";
    OutputLength = 0x0104, BadOutputLength, "the answer buffer is shorter than the command's layout";
    Stopped = 0x0105, Internal, "the device's engine panicked and stopped; its message is on standard error";
    Unplugged = 0x0106, Internal, "the device was removed";

    UnknownPd = 0x0201, BadResource, "there is no such protection domain";
    PdInUse = 0x0031_b635, BadResourceState, "queue pairs or memory keys of the protection domain still exist";
    NoPds = 0x0203, NoResources, "the device has no protection domain left";

    UnknownUar = 0x0301, BadResource, "there is no such UAR page";
    UarInUse = 0x0302, ResourceBusy, "queues that use the UAR page still exist";
    NoUars = 0x0303, NoResources, "the device has no UAR page left";

    UnknownUmem = 0x0401, BadResource, "there is no such user memory";
    UmemInUse = 0x0402, ResourceBusy, "memory keys or queues that use the user memory still exist";
    RingUnknownUmem = 0x0403, BadResource, "there is no such user memory to hold the ring";
    RingBounds = 0x0404, BadParameter, "the ring does not fit into its user memory at that offset";
    RingAlignment = 0x0405, BadParameter, "the ring does not start at a multiple of 64 bytes";
    RingReadOnly = 0x0406, BadParameter, "the device may not write to the user memory of the ring";
    DoorbellUnknownUmem = 0x0407, BadResource, "there is no such user memory to hold the doorbell record";
    DoorbellBounds = 0x0408, BadParameter, "the doorbell record does not fit into its user memory at that offset";
    DoorbellAlignment = 0x0409, BadParameter, "the doorbell record does not start at a multiple of 8 bytes";
    RingOnDemand = 0x040a, BadParameter, "a queue cannot lie in memory that is brought in on demand";
    UnknownMemic = 0x040b, BadResource, "no memory on the device has this address and size";
    NoMemic = 0x040c, NoResources, "the range has no room for that much memory on the device";
    MemicSize = 0x040d, BadParameter, "the size of memory on the device is not a positive multiple of 64 bytes";
    RingPageOffset = 0x040f, BadParameter, "the offset of the ring is no multiple of a 64th of the page of its user memory, the unit of its 6 bits: register it with smaller pages (pgsz_bitmap)";
    MemicAlignment = 0x040e, BadParameter, "the alignment of memory on the device (log_memic_addr_alignment) is more than a page";

    UnknownCq = 0x0501, BadResource, "there is no such completion queue";
    CqInUse = 0x0018_70ad, BadResourceState, "queue pairs that complete to the queue still exist";
    NoCqs = 0x0503, NoResources, "the device has no completion queue left";
    CqSize = 0x0504, LimitExceeded, "more completion queue entries than log_max_cq_sz allows";
    CqEntrySize = 0x0505, BadParameter, "the CQE size (cqe_sz) is neither 64 nor 128 bytes";
    CqFeature = 0x0506, BadParameter, "collapsed (cc) completion queues are not supported";
    CqCompression = 0x050d, BadParameter, "what mini CQEs carry (mini_cqe_res_format) is not a hash (0), a checksum (1), or a checksum and a stride index (3), or their layout (cqe_compression_layout) is not basic (0) or enhanced (1)";
    CqUnknownEq = 0x0507, BadResource, "there is no such event queue (c_eqn)";
    CqResizeSelect = 0x0508, BadParameter, "a resize must select the ring's size (log_cq_size)";
    CqResizeFull = 0x0509, BadSize, "more completions wait than the new ring holds, or the old one has no room for the resize CQE";
    CqStopped = 0x050a, BadResourceState, "the completion queue is in error: an entry was lost";
    CqSelect = 0x050b, BadParameter, "MODIFY_CQ selects parameters that cannot be changed";
    CqNoEvents = 0x050c, BadResourceState, "moderation needs an event queue, which the completion queue was made without";

    UnknownQp = 0x0601, BadResource, "there is no such queue pair";
    UnknownQpToEnd = 0x007e_a02d, BadResourceState, "there is no such queue pair to be moved to error or reset";
    UnknownQpToDestroy = 0x0025_b161, BadResourceState, "there is no such queue pair to be destroyed";
    Service = 0x0603, BadParameter, "the service type (st) is none of RC, UC, UD, XRC and DCI";
    ReceiveSource = 0x0604, BadParameter, "the receive queue type (rq_type) is not regular, shared or none";
    ReceiveStride = 0x0605, LimitExceeded, "a receive WQE (log_rq_stride) is longer than max_wqe_sz_rq";
    QpFeature = 0x0606, BadParameter, "WQE signatures (wq_signature) are not supported";
    UnknownSendCq = 0x0607, BadResource, "there is no such completion queue for the send queue (cqn_snd)";
    UnknownReceiveCq = 0x0608, BadResource, "there is no such completion queue for the receive queue (cqn_rcv)";
    UnknownSharedQueue = 0x0609, BadResource, "there is no such shared receive queue for the queue pair (srqn_rmpn_xrqn)";
    ScatterToCqe = 0x060a, BadParameter, "scatter to CQE is none of off, 32 and 64 bytes (cs_req 0, 0x11, 0x22; cs_res 0, 1, 2)";
    StreamChannels = 0x060b, LimitExceeded, "a DC initiator has more stream channels (log_num_dci_stream_channels) than log_max_dci_stream_channels";
    TimestampFormat = 0x00d6_1c0b, BadParameter, "the clock runs in real time: the format of time stamps (ts_format) is neither default nor real time";
    QpLimit = 0x0065_b500, BadResource, "the limit of queue pairs is reached: destroy others, or use fewer connections";
    ErroredStreams = 0x060e, LimitExceeded, "a DC initiator survives more streams in error (log_num_dci_errored_streams) than log_max_dci_errored_streams";
    StreamNotInError = 0x060f, BadResourceState, "the stream (dci_stream_channel_id) is not in error: only a stream whose request failed is reset";
    QpTransition = 0x0610, BadResourceState, "the queue pair is not in the state that this move starts from";
    Port = 0x0017_7405, BadParameter, "there is no such port (vhca_port_num)";
    PkeyIndex = 0x0612, BadIndex, "the partition key index (pkey_index) is beyond the table";
    PathMtu = 0x0613, BadParameter, "the path MTU (mtu) is none of 256 to 4096 bytes";
    MessageMax = 0x0614, LimitExceeded, "messages (log_msg_max) are longer than the device's log_max_msg";
    RemoteGid = 0x0615, BadParameter, "the remote GID (rgid_rip) is no unicast IPv4 address in IPv6 form (::ffff:a.b.c.d)";
    SourceGid = 0x0616, BadIndex, "the source address index (src_addr_index) is beyond the GID table, or its entry is empty";
    SourceAddress = 0x061a, BadParameter, "the source address (src_addr_index) is in the GID table, but the device's wire does not carry it";
    PortMtu = 0x061b, BadParameter, "packets of the path MTU (mtu) do not fit the port";
    UdpSourcePort = 0x061c, BadParameter, "the UDP source port (udp_sport) is outside the range of the device";
    GlobalRoute = 0x061d, BadParameter, "the port requires a global route (grh), and the path has none";
    LagPort = 0x061e, BadParameter, "the queue pair names none of the bonded ports (lag_tx_port_affinity)";
    TagService = 0x061f, BadParameter, "a queue pair with tag matching (srqn_rmpn_xrqn) is not of the service RC";
    QpOffload = 0x0620, BadParameter, "the offload of the queue pair (offload_type) is neither none (0) nor rendezvous (1)";
    QpOffloadRing = 0x0622, BadParameter, "a queue pair with rendezvous offload (offload_type) has a send ring (no_sq is 0): the device posts to its send queue";
    XrcQueue = 0x0623, BadResource, "the shared receive queue that an XRC queue pair names (srqn_rmpn_xrqn) is none of an XRC domain";
    Enhancements = 0x0621, BadParameter, "the queue pair or target requests enhancements (ece), and the device supports none";
    GroupService = 0x0624, BadParameter, "the queue pair to be attached to a multicast group is not of the service UD";
    GroupGid = 0x0625, BadParameter, "the GID (multicast_gid) is that of no multicast group";
    GroupLimit = 0x0626, LimitExceeded, "the device has as many multicast groups as log_max_mcg allows";
    GroupMembers = 0x0627, LimitExceeded, "the multicast group has as many queue pairs as max_qp_mcg allows";
    GroupWire = 0x0628, NoResources, "the host does not let the device join the multicast group: its limit of descriptors is reached, or the interface of the device's address has no multicast";
    NotAttached = 0x0629, BadResource, "the queue pair is not attached to the multicast group";
    ResponderDepth = 0x0617, LimitExceeded, "responder resources (log_rra_max) exceed log_max_ra_res_qp";
    InitiatorDepth = 0x0618, LimitExceeded, "outstanding reads and atomics (log_sra_max) exceed log_max_ra_req_qp";
    AtomicMode = 0x0619, BadParameter, "remote atomics are enabled (rae) without an atomic mode that the device has";

    FamilyRefused = 0x062a, BadParameter, "the device has no such objects for programs (requirement 'refuse')";

    UnknownMkey = 0x0701, BadResource, "there is no such memory key";
    NoMkeys = 0x0059_c8a4, LimitExceeded, "the device has no memory key left";
    MkeyMode = 0x0703, BadParameter, "the memory key's access mode is none of MTT, KLM, KSM and MEMIC";
    MkeyDeviceMemory = 0x0710, BadParameter, "the memory key is not inside memory that was allocated on the device (ALLOC_MEMIC)";
    MkeyUnknownUmem = 0x0704, BadResource, "there is no such user memory for the memory key to cover";
    MkeyBounds = 0x0705, BadParameter, "the memory key is not inside its user memory";
    MkeyRights = 0x0706, BadParameter, "the memory key grants writing, its user memory does not";
    MkeyAddress = 0x0707, BadParameter, "the memory key's addresses wrap around";
    MkeyWhole = 0x0709, BadParameter, "a memory key over the whole address space (length64) needs a list of ranges (KLM, KSM): user memory, or that of the device, does not cover it";
    MkeyEntrySize = 0x0038_a711, BadParameter, "the ranges of a KSM list have 2^8 to 2^63 bytes (log_page_size), and together at most 2^64";
    MkeyNoList = 0x0003_bf6f, BadParameter, "an indirect memory key has no room for a list (translations_octword_size)";
    MkeyListSize = 0x070a, LimitExceeded, "more ranges in an indirect memory key than log_max_klm_list_size allows";
    MkeyListLength = 0x070b, BadInputLength, "the request ends before the indirect memory key's list does";
    MkeyList = 0x070d, BadParameter, "a strided block in the memory key's list is not whole, or the list covers more than 2^64 bytes";
    MkeyListBytes = 0x070c, BadParameter, "the ranges of the indirect memory key cover less than its length";
    MkeyOrder = 0x070e, BadParameter, "the device has only keys with relaxed order of writes (relaxed_ordering_write)";

    MkeyPageOffset = 0x0031_7175, BadParameter, "the memory key's start_addr has another offset in a page of the user memory than the user memory";

    GidIndex = 0x0801, BadIndex, "the index is beyond the GID table";
    GidPort = 0x0802, BadParameter, "there is no such port";
    GidAddress = 0x0803, BadParameter, "no host has such an address (source_l3_address), or it is of another version than roce_l3_type says";
    GidMac = 0x0006_3c66, BadParameter, "the MAC address (source_mac) is that of a group";
    GidVersion = 0x0012_822d, BadParameter, "the RoCE version (roce_version) is not 2, the only one that packets have here";

    UnknownEq = 0x0901, BadResource, "there is no such event queue";
    EqInUse = 0x0902, ResourceBusy, "completion queues that tell the event queue still exist";
    NoEqs = 0x0903, NoResources, "the device has no event queue left";
    EqSize = 0x0904, LimitExceeded, "more event queue entries than log_max_eq_sz allows";
    EqFeature = 0x0905, BadParameter, "collapsed event queues (ec) are not supported";
    NoDescriptor = 0x0906, NoResources, "the process has no file descriptor left for the event queue's interrupt: see ulimit -n";

    UnknownSrq = 0x0a01, BadResource, "there is no such shared receive queue or receive memory pool";
    SrqInUse = 0x0a02, ResourceBusy, "queue pairs that take from the shared receive queue still exist";
    NoSrqs = 0x0a03, NoResources, "the device has no shared receive queue left";
    SrqSize = 0x0a04, LimitExceeded, "more WQEs in a shared receive queue than log_max_srq_sz allows";
    SrqStride = 0x0a05, BadParameter, "a WQE of a shared receive queue has no room for its header and one segment, or is too long";
    SrqLimit = 0x0a06, BadParameter, "the limit (lwm) is more than the shared receive queue holds";
    SrqFeature = 0x0a07, BadParameter, "signatures (wq_signature) in shared receive queues are not supported";
    RmpState = 0x0a08, BadParameter, "the receive memory pool's state is neither ready nor error, or not ready when it is made";
    RmpType = 0x0a09, BadParameter, "the queue type (wq_type) of the shared receive queue is not linked list, cyclic, or a striding type of these";
    RmpTransition = 0x0a0a, BadResourceState, "the receive memory pool is not in the state that the command says (rmp_state)";

    XrqTopology = 0x0a0b, BadParameter, "the topology of the shared receive queue (xrqc.topology) is not tag matching (1)";
    XrqOffload = 0x0a0c, BadParameter, "the offload of the shared receive queue (xrqc.offload) is neither none (0) nor rendezvous (1)";
    XrqListSize = 0x0a0d, LimitExceeded, "more entries in a tag matching list (log_matching_list_sz) than log_tag_matching_list_sz allows";
    XrqNextIndex = 0x0a0e, BadParameter, "a new tag matching list begins with entry 0 (append_next_index)";
    SrqStrides = 0x0a15, BadParameter, "a WQE has fewer than 8 strides or more than 65536 (log_wqe_num_of_strides), a segment for each does not fit (log_wq_stride), or data is to begin two bytes into its stride (two_byte_shift_en)";
    XrqUnknownCq = 0x0a0f, BadResource, "there is no such completion queue (cqn) for the shared receive queue with tag matching";

    UnknownXrcd = 0x0a10, BadResource, "there is no such XRC domain (xrcd)";
    XrcdInUse = 0x0a11, ResourceBusy, "queue pairs or shared receive queues of the XRC domain still exist";
    NoXrcds = 0x0a12, NoResources, "the device has no XRC domain left";
    XrcSrqUnknownCq = 0x0a13, BadResource, "there is no such completion queue (cqn) for the shared receive queue";

    UnknownCounterSet = 0x0b01, BadResource, "there is no such counter set";
    NoCounterSets = 0x0b02, NoResources, "the device has no counter set left";

    VportPort = 0x0c01, BadParameter, "there is no such port, or it is another function's";
    VportPkey = 0x0c02, BadIndex, "the index is beyond the partition key table";

    UnknownDct = 0x0d01, BadResource, "there is no such target of dynamic connections (dctn)";
    NoDcts = 0x0d02, NoResources, "the device has no target of dynamic connections left";
    DctTransition = 0x0d03, BadResourceState, "the target is draining or drained already";
    DctUnknownCq = 0x0d04, BadResource, "there is no such completion queue (cqn) for the target";
    DctUnknownSrq = 0x0d05, BadResource, "there is no such shared receive queue (srqn_xrqn) for the target";
    DctMtu = 0x0d06, BadParameter, "the target's path MTU (mtu) is none of 256 to 4096 bytes";
    DctPort = 0x0d07, BadParameter, "the target's port (port) is neither 0 nor one that exists";
    DctPkeyIndex = 0x0d08, BadIndex, "the target's partition key index (pkey_index) is beyond the table";
    DctGid = 0x0d09, BadIndex, "the target's source address index (my_addr_index) is beyond the GID table, or its entry is not the address of the device";
    DctScatterToCqe = 0x0d0a, BadParameter, "scatter to CQE of a target (cs_res) is neither off (0) nor up to 64 bytes (2)";
    DctLag = 0x0d0c, BadParameter, "the ports are bonded, and the device has no targets there (lag_dct is 0)";
    DctAtomicMode = 0x0d0b, BadParameter, "remote atomics of the target are enabled (rae) without an atomic mode that the device has";

    UnknownPageFault = 0x0e01, BadResource, "no work waits for the pages of the fault (token)";
    PageFaultType = 0x0e02, BadParameter, "the fault (token) is of another type (page_fault_type)";
    PageFaultQueue = 0x0e03, BadParameter, "the fault (token) is of another queue (wq_number)";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_and_texts_are_distinct() {
        let numbers: BTreeSet<u32> =
            CommandSyndrome::ALL.iter().map(|&syndrome| syndrome as u32).collect();
        let texts: BTreeSet<String> =
            CommandSyndrome::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(
            (numbers.len(), texts.len()),
            (CommandSyndrome::ALL.len(), CommandSyndrome::ALL.len())
        );
        assert!(CommandSyndrome::ALL.iter().all(|&syndrome| {
            CommandSyndrome::from_bits(syndrome as u32) == Some(syndrome)
                && syndrome.status() != CommandStatus::Ok
        }));
        assert_eq!(CommandSyndrome::from_bits(0), None);
    }
}
