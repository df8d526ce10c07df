//! What a device can do: QUERY_HCA_CAP (mlx5_ifc.h: `query_hca_cap_*`, `cmd_hca_cap`,
//! `atomic_caps`, `roce_cap`, `odp_cap`, `device_mem_cap`).
//!
//! Only the fields that barewire reads or writes are named. The rest of a page is zero, which means
//! 'not supported'.

use super::requests;
use crate::prm::{Field, Nested, field_enum, layouts};

/// Bytes of a capability page.
const PAGE: usize = 4096;

field_enum! {
    /// Which page (mlx5 device.h: `MLX5_CAP_*`); goes into the command's `op_mod` through
    /// [`op_mod`].
    CapabilityPage: u16, "capability page" {
        /// The device in general: [`HcaCap`].
        General = 0x0, "general";
        /// Ethernet offloads.
        Ethernet = 0x1, "Ethernet offloads";
        /// On-demand paging.
        Odp = 0x2, "ODP";
        /// Atomic operations: [`AtomicCap`].
        Atomic = 0x3, "atomic";
        /// RoCE: [`RoceCap`].
        Roce = 0x4, "RoCE";
        /// Steering of what the port receives and sends.
        FlowTable = 0x7, "flow table";
        /// Steering inside the embedded switch.
        EswitchFlowTable = 0x8, "embedded switch's flow table";
        /// The embedded switch.
        Eswitch = 0x9, "embedded switch";
        /// Quality of service.
        Qos = 0xc, "QoS";
        /// Memory on the device.
        DeviceMemory = 0xf, "device memory";
        /// Emulated virtio devices.
        VdpaEmulation = 0x13, "VDPA emulation";
        /// Events of the device that DEVX may subscribe to.
        DeviceEvent = 0x14, "device event";
        /// Encryption.
        Crypto = 0x1a, "crypto";
        /// The second general page.
        General2 = 0x20, "general 2";
    }
}

field_enum! {
    /// Which values of a page (mlx5 device.h: `HCA_CAP_OPMOD_GET_*`).
    CapabilityMode: u16, "capability mode" {
        /// The largest values that can be set.
        Maximum = 0, "maximum";
        /// The current values.
        Current = 1, "current";
    }
}

/// The command's `op_mod`: the page above the mode.
pub const fn op_mod(page: CapabilityPage, mode: CapabilityMode) -> u16 {
    (page as u16) << 1 | mode as u16
}

layouts! {
    /// Queries a page; which one is in the header's `op_mod`.
    QueryHcaCapIn: 16, "query_hca_cap_in";
    /// The page.
    QueryHcaCapOut: 16 + PAGE, "query_hca_cap_out";
    /// The general page.
    HcaCap: PAGE, "cmd_hca_cap";
    /// The page on atomic operations.
    AtomicCap: PAGE, "atomic_caps";
    /// The page on RoCE.
    RoceCap: PAGE, "roce_cap";
    /// The page on on-demand paging.
    OdpCap: PAGE, "odp_cap";
    /// The page on memory of the device.
    DeviceMemCap: PAGE, "device_mem_cap";
}

requests! {
    QueryHcaCapIn => QueryHcaCap, QueryHcaCapOut;
}

impl QueryHcaCapIn {
    /// [`op_mod`] of the page and mode.
    pub const OP_MOD: Field<Self, u16> = Field::new(0x30, 16);
}

impl QueryHcaCapOut {
    /// Output for [`CapabilityPage::General`].
    pub const GENERAL: Nested<Self, HcaCap> = Nested::new(0x80);
    /// Output for [`CapabilityPage::Atomic`].
    pub const ATOMIC: Nested<Self, AtomicCap> = Nested::new(0x80);
    /// Output for [`CapabilityPage::Odp`].
    pub const ODP: Nested<Self, OdpCap> = Nested::new(0x80);
    /// Output for [`CapabilityPage::Roce`].
    pub const ROCE: Nested<Self, RoceCap> = Nested::new(0x80);
    /// Output for [`CapabilityPage::DeviceMemory`].
    pub const DEVICE_MEM: Nested<Self, DeviceMemCap> = Nested::new(0x80);
}

impl DeviceMemCap {
    /// Programs can allocate memory on the device: [`AllocMemicIn`](super::memic::AllocMemicIn).
    pub const MEMIC: Field<Self, bool> = Field::new(0x0, 1);
    /// log2 of the unit of lengths.
    pub const LOG_MIN_MEMIC_ALLOC_SIZE: Field<Self, u8> = Field::new(0x2b, 5);
    /// log2 of the largest alignment, minus [`LOG_UNIT`](super::memic::LOG_UNIT).
    pub const LOG_MAX_MEMIC_ADDR_ALIGNMENT: Field<Self, u8> = Field::new(0x38, 8);
    /// Where the memory is mapped in the BAR.
    pub const MEMIC_BAR_START_ADDR: Field<Self, u64> = Field::new(0x40, 64);
    /// Bytes of the BAR for it.
    pub const MEMIC_BAR_SIZE: Field<Self> = Field::new(0x80, 32);
    /// Bytes of the largest allocation.
    pub const MAX_MEMIC_SIZE: Field<Self> = Field::new(0xa0, 32);
}

field_enum! {
    /// Link layer of a port (mlx5_ifc.h: cmd_hca_cap.port_type).
    PortType: u8, "port type" {
        /// InfiniBand.
        InfiniBand = 0, "InfiniBand";
        /// Ethernet.
        Ethernet = 1, "Ethernet";
    }
}

bitflags::bitflags! {
    /// Operations of a transport service on memory that is paged in on demand (mlx5_ifc.h:
    /// `odp_per_transport_service_cap`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OdpServices: u32 {
        /// Send from it.
        const SEND = 1 << 31;
        /// Receive into it.
        const RECEIVE = 1 << 30;
        /// Write to it.
        const WRITE = 1 << 29;
        /// Read from it.
        const READ = 1 << 28;
        /// Run atomic operations on it.
        const ATOMIC = 1 << 27;
        /// Receive into it by a shared receive queue.
        const SRQ_RECEIVE = 1 << 26;
    }
}

impl OdpCap {
    /// [`OdpServices`] of RC.
    pub const RC_ODP_CAPS: Field<Self> = Field::new(0x80, 32);
    /// [`OdpServices`] of UD.
    pub const UD_ODP_CAPS: Field<Self> = Field::new(0xc0, 32);
    /// [`OdpServices`] of XRC.
    pub const XRC_ODP_CAPS: Field<Self> = Field::new(0xe0, 32);
    /// [`OdpServices`] of dynamic connections.
    pub const DC_ODP_CAPS: Field<Self> = Field::new(0x100, 32);
    /// Page faults name the memory instead of a WQE.
    pub const MEM_PAGE_FAULT: Field<Self, bool> = Field::new(0x600, 1);
}

impl HcaCap {
    /// There is on-demand paging.
    pub const PG: Field<Self, bool> = Field::new(0x227, 1);
    /// Formats of time stamps of send queues, for devices without RoCE; see
    /// [`RoceCap::QP_TS_FORMAT`].
    pub const SQ_TS_FORMAT: Field<Self, u8> = Field::new(0x440, 2);
    /// The second general page exists.
    pub const HCA_CAP_2: Field<Self, bool> = Field::new(0x20, 1);
    /// Number of this function among those of the card.
    pub const VHCA_ID: Field<Self, u16> = Field::new(0x30, 16);
    /// log2 of the largest number of WQEs of a shared receive queue.
    pub const LOG_MAX_SRQ_SZ: Field<Self, u8> = Field::new(0x80, 8);
    /// Enhanced connection establishment: commands that create and connect a queue pair exchange
    /// options.
    pub const ECE: Field<Self, bool> = Field::new(0xa3, 1);
    /// log2 of the largest number of shared receive queues.
    pub const LOG_MAX_SRQ: Field<Self, u8> = Field::new(0xab, 5);
    /// log2 of the largest number of entries of an event queue.
    pub const LOG_MAX_EQ_SZ: Field<Self, u8> = Field::new(0xe0, 8);
    /// Memory keys may let writes be reordered on the bus.
    pub const RELAXED_ORDERING_WRITE: Field<Self, bool> = Field::new(0xe8, 1);
    /// log2 of the largest number of event queues.
    pub const LOG_MAX_EQ: Field<Self, u8> = Field::new(0xfc, 4);
    /// Indirect keys may lead to indirect keys so many times.
    pub const MAX_INDIRECTION: Field<Self, u8> = Field::new(0x100, 8);
    /// Indirect keys over ranges of one size (KSM).
    pub const FIXED_BUFFER_SIZE: Field<Self, bool> = Field::new(0x108, 1);
    /// log2 of the largest number of ranges of an indirect key.
    pub const LOG_MAX_KLM_LIST_SIZE: Field<Self, u8> = Field::new(0x11a, 6);
    /// Commands that change queue pairs may be longer by a [`QpcExt`](super::qp::QpcExt).
    pub const QPC_EXTENSION: Field<Self, bool> = Field::new(0x122, 1);
    /// Counters of retransmissions exist.
    pub const RETRANSMISSION_Q_COUNTERS: Field<Self, bool> = Field::new(0x182, 1);
    /// Counter sets.
    pub const MAX_QP_CNT: Field<Self, u16> = Field::new(0x186, 10);
    /// WQEs of shared receive queues for InfiniBand messages may have many strides.
    pub const IB_STRIDING_WQ: Field<Self, bool> = Field::new(0x205, 1);
    /// Completions of such queues mark the first packet of a message.
    pub const IB_STRIDING_WQ_CQ_FIRST_INDICATION: Field<Self, bool> = Field::new(0x225, 1);
    /// WQEs may have fewer than 512 strides, from 8 on.
    pub const EXT_STRIDE_NUM_RANGE: Field<Self, bool> = Field::new(0x3a0, 1);
    /// Small results of dynamic connections may be stored in the completion.
    pub const DC_REQ_SCAT_DATA_CQE: Field<Self, bool> = Field::new(0x20c, 1);
    /// Dynamic connections.
    pub const DCT: Field<Self, bool> = Field::new(0x21a, 1);
    /// Small results may be stored in the completion.
    pub const SCTR_DATA_CQE: Field<Self, bool> = Field::new(0x215, 1);
    /// A completion queue may be resized.
    pub const CQ_RESIZE: Field<Self, bool> = Field::new(0x221, 1);
    /// Events of completion queues may be moderated.
    pub const CQ_MODERATION: Field<Self, bool> = Field::new(0x222, 1);
    /// Memory keys may let reads be reordered on the bus.
    pub const RELAXED_ORDERING_READ: Field<Self, bool> = Field::new(0x32a, 1);
    /// Every memory key must let writes be reordered on the bus.
    pub const MKC_ORDER_WRITE_AFTER_WRITE_RO_ONLY: Field<Self, bool> = Field::new(0x3a9, 1);
    /// WQEs of cyclic receive memory pools may come without a header.
    pub const BASIC_CYCLIC_RCV_WQE: Field<Self, bool> = Field::new(0x380, 1);
    /// log2 of the largest number of receive memory pools.
    pub const LOG_MAX_RMP: Field<Self, u8> = Field::new(0x383, 5);
    /// log2 of the largest number of WQEs of a work queue.
    pub const LOG_MAX_WQ_SZ: Field<Self, u8> = Field::new(0x3db, 5);
    /// Number of event queues.
    pub const MAX_NUM_EQS: Field<Self, u16> = Field::new(0x470, 16);
    /// log2 of the largest number of WQEs of a queue.
    pub const LOG_MAX_QP_SZ: Field<Self, u8> = Field::new(0x88, 8);
    /// log2 of the largest number of queue pairs.
    pub const LOG_MAX_QP: Field<Self, u8> = Field::new(0x9b, 5);
    /// log2 of the largest number of entries of a completion queue.
    pub const LOG_MAX_CQ_SZ: Field<Self, u8> = Field::new(0xc8, 8);
    /// log2 of the largest number of completion queues.
    pub const LOG_MAX_CQ: Field<Self, u8> = Field::new(0xdb, 5);
    /// log2 of the largest number of memory keys.
    pub const LOG_MAX_MKEY: Field<Self, u8> = Field::new(0xea, 6);
    /// log2 of the largest memory region in bytes.
    pub const LOG_MAX_MRW_SZ: Field<Self, u8> = Field::new(0x109, 7);
    /// log2 of the largest number of outstanding reads and atomics that a DC initiator may request.
    pub const LOG_MAX_RA_REQ_DC: Field<Self, u8> = Field::new(0x12a, 6);
    /// log2 of the largest number of outstanding reads and atomics that a DC target serves per
    /// initiator.
    pub const LOG_MAX_RA_RES_DC: Field<Self, u8> = Field::new(0x13a, 6);
    /// log2 of the largest number of outstanding reads and atomics that a queue pair may request.
    pub const LOG_MAX_RA_REQ_QP: Field<Self, u8> = Field::new(0x14a, 6);
    /// log2 of the largest number of reads and atomics that a queue pair may serve at a time.
    pub const LOG_MAX_RA_RES_QP: Field<Self, u8> = Field::new(0x15a, 6);
    /// Entries of the GID table, coded by the kernel as `8 << value`.
    pub const GID_TABLE_SIZE: Field<Self, u16> = Field::new(0x170, 16);
    /// Entries of the partition key table, coded by the kernel as `128 << value`.
    pub const PKEY_TABLE_SIZE: Field<Self, u16> = Field::new(0x190, 16);
    /// The page on memory of the device exists.
    pub const DEVICE_MEMORY: Field<Self, bool> = Field::new(0x1a8, 1);
    /// Time that the device needs to respond, 4.096 us * 2^n.
    pub const LOCAL_CA_ACK_DELAY: Field<Self, u8> = Field::new(0x1ab, 5);
    /// INIT2RTR_QP may set the port of a bonded device that sends a queue pair's packets.
    pub const INIT2_LAG_TX_PORT_AFFINITY: Field<Self, bool> = Field::new(0x1f8, 1);
    /// A queue pair may choose the port of a bonded device.
    pub const LAG_TX_PORT_AFFINITY: Field<Self, bool> = Field::new(0x278, 1);
    /// How targets of DC work on a bonded card; 0: they do not.
    pub const LAG_DCT: Field<Self, u8> = Field::new(0x276, 2);
    /// Ports that can be bonded.
    pub const NUM_LAG_PORTS: Field<Self, u8> = Field::new(0x27c, 4);
    /// The link layer of the ports.
    pub const PORT_TYPE: Field<Self, PortType> = Field::new(0x1b6, 2);
    /// Number of ports.
    pub const NUM_PORTS: Field<Self, u8> = Field::new(0x1b8, 8);
    /// log2 of the largest message in bytes.
    pub const LOG_MAX_MSG: Field<Self, u8> = Field::new(0x1c3, 5);
    /// Version of the CQE format; 1 has the user index in it.
    pub const CQE_VERSION: Field<Self, u8> = Field::new(0x1fc, 4);
    /// Address vectors of 16 bytes in datagram WQEs.
    pub const COMPACT_ADDRESS_VECTOR: Field<Self, bool> = Field::new(0x200, 1);
    /// The RoCE page exists and RoCE is on.
    pub const ROCE: Field<Self, bool> = Field::new(0x21d, 1);
    /// The atomic page exists.
    pub const ATOMIC: Field<Self, bool> = Field::new(0x21e, 1);
    /// A completion queue may ignore overruns.
    pub const CQ_OI: Field<Self, bool> = Field::new(0x220, 1);
    /// Indirect memory keys, of which memory windows consist, may be used as local keys.
    pub const IMAICL: Field<Self, bool> = Field::new(0x231, 1);
    /// Extended reliable connected queue pairs.
    pub const XRC: Field<Self, bool> = Field::new(0x23c, 1);
    /// Unreliable datagram queue pairs.
    pub const UD: Field<Self, bool> = Field::new(0x23d, 1);
    /// Unreliable connected queue pairs.
    pub const UC: Field<Self, bool> = Field::new(0x23e, 1);
    /// Reliable connected queue pairs.
    pub const RC: Field<Self, bool> = Field::new(0x23f, 1);
    /// A UAR page is 4 KiB, whatever the host's page.
    pub const UAR_4K: Field<Self, bool> = Field::new(0x240, 1);
    /// A user of number 0 may name a umem.
    pub const UMEM_UID_0: Field<Self, bool> = Field::new(0x252, 1);
    /// log2 of the smallest page.
    pub const LOG_PG_SZ: Field<Self, u8> = Field::new(0x258, 8);
    /// UAR pages have BlueFlame registers.
    pub const BF: Field<Self, bool> = Field::new(0x260, 1);
    /// log2 of the bytes of a BlueFlame register, both halves.
    pub const LOG_BF_REG_SIZE: Field<Self, u8> = Field::new(0x26b, 5);
    /// The most bytes of a send WQE.
    pub const MAX_WQE_SZ_SQ: Field<Self, u16> = Field::new(0x290, 16);
    /// The most bytes of a receive WQE.
    pub const MAX_WQE_SZ_RQ: Field<Self, u16> = Field::new(0x2b0, 16);
    /// The largest number of queue pairs of a multicast group.
    pub const MAX_QP_MCG: Field<Self> = Field::new(0x2e7, 25);
    /// log2 of the largest number of multicast groups.
    pub const LOG_MAX_MCG: Field<Self, u8> = Field::new(0x318, 8);
    /// Queue pairs may refuse their own multicast datagrams.
    pub const BLOCK_LB_MC: Field<Self, bool> = Field::new(0x228, 1);
    /// log2 of the largest number of protection domains.
    pub const LOG_MAX_PD: Field<Self, u8> = Field::new(0x32b, 5);
    /// log2 of the largest number of XRC domains.
    pub const LOG_MAX_XRCD: Field<Self, u8> = Field::new(0x33b, 5);
    /// log2 of the largest number of umems.
    pub const LOG_MAX_UMEM: Field<Self, u8> = Field::new(0x46b, 5);
    /// log2 of a UAR page's bytes, minus 12.
    pub const LOG_UAR_PAGE_SZ: Field<Self, u16> = Field::new(0x490, 16);
    /// UARs of one UAR page.
    pub const NUM_OF_UARS_PER_PAGE: Field<Self> = Field::new(0x520, 32);
    /// log2 of the largest number of channels of a DC initiator; 0 for no streams.
    pub const LOG_MAX_DCI_STREAM_CHANNELS: Field<Self, u8> = Field::new(0x58b, 5);
    /// log2 of the largest number of channels in error that a DC initiator survives, plus one.
    pub const LOG_MAX_DCI_ERRORED_STREAMS: Field<Self, u8> = Field::new(0x593, 5);
    /// Completion queues may compress in the enhanced layout.
    pub const ENHANCED_CQE_COMPRESSION: Field<Self, bool> = Field::new(0x5b0, 1);
    /// Mini CQEs may carry the index of the stride.
    pub const MINI_CQE_RESP_STRIDE_INDEX: Field<Self, bool> = Field::new(0x5bc, 1);
    /// Completion queues of 128-byte entries may compress.
    pub const CQE_COMPRESSION_128: Field<Self, bool> = Field::new(0x5be, 1);
    /// Completion queues may compress.
    pub const CQE_COMPRESSION: Field<Self, bool> = Field::new(0x5bf, 1);
    /// Shared receive queues with tag matching (XRQs).
    pub const TAG_MATCHING: Field<Self, bool> = Field::new(0x5f0, 1);
    /// An XRQ executes the rendezvous protocol for messages that arrive on RC queue pairs.
    pub const RNDV_OFFLOAD_RC: Field<Self, bool> = Field::new(0x5f1, 1);
    /// The same for DC targets.
    pub const RNDV_OFFLOAD_DC: Field<Self, bool> = Field::new(0x5f2, 1);
    /// log2 of the largest number of entries of a tag matching list.
    pub const LOG_TAG_MATCHING_LIST_SZ: Field<Self, u8> = Field::new(0x5f3, 5);
    /// log2 of the largest number of XRQs.
    pub const LOG_MAX_XRQ: Field<Self, u8> = Field::new(0x5fb, 5);
    /// The most completions of a compressed block.
    pub const CQE_COMPRESSION_MAX_NUM: Field<Self, u16> = Field::new(0x5d0, 16);
}

/// In [`AtomicCap::ATOMIC_OPERATIONS`]: compare and swap (mlx5 driver.h:
/// `MLX5_ATOMIC_OPS_CMP_SWAP`).
pub const ATOMIC_COMPARE_SWAP: u16 = 1 << 0;
/// In [`AtomicCap::ATOMIC_OPERATIONS`]: fetch and add (mlx5 driver.h: `MLX5_ATOMIC_OPS_FETCH_ADD`).
pub const ATOMIC_FETCH_ADD: u16 = 1 << 1;

/// In [`AtomicCap::ATOMIC_OPERATIONS`]: masked compare and swap (mlx5 driver.h:
/// `MLX5_ATOMIC_OPS_EXTENDED_CMP_SWAP`).
pub const ATOMIC_MASKED_COMPARE_SWAP: u16 = 1 << 2;
/// In [`AtomicCap::ATOMIC_OPERATIONS`]: masked fetch and add (mlx5 driver.h:
/// `MLX5_ATOMIC_OPS_EXTENDED_FETCH_ADD`).
pub const ATOMIC_MASKED_FETCH_ADD: u16 = 1 << 3;

impl AtomicCap {
    /// 1: an 8-byte atomic works on, and returns, a number in host byte order; 0: in big-endian
    /// order.
    pub const REQ_8B_ENDIANNESS_MODE: Field<Self, u8> = Field::new(0x40, 2);
    /// The mode above can be set to 1.
    pub const SUPPORTED_REQ_8B_ENDIANNESS_MODE_1: Field<Self, bool> = Field::new(0x46, 1);
    /// A mask of operations, see [`ATOMIC_COMPARE_SWAP`].
    pub const ATOMIC_OPERATIONS: Field<Self, u16> = Field::new(0x90, 16);
    /// A mask of operand sizes in bytes.
    pub const ATOMIC_SIZE_QP: Field<Self, u16> = Field::new(0xb0, 16);
    /// The same of dynamic connections.
    pub const ATOMIC_SIZE_DC: Field<Self, u16> = Field::new(0xd0, 16);
}

/// In [`RoceCap::ROCE_VERSION`]: RoCE v2 (mlx5 device.h: `MLX5_ROCE_VERSION_2_CAP`).
pub const ROCE_VERSION_2: u8 = 1 << 2;
/// In [`RoceCap::L3_TYPE`]: IPv4 (mlx5 device.h: `MLX5_ROCE_L3_TYPE_IPV4_CAP`).
pub const ROCE_L3_IPV4: u8 = 1 << 1;

/// In [`RoceCap::L3_TYPE`]: IPv6 (mlx5 device.h: `MLX5_ROCE_L3_TYPE_IPV6_CAP`).
pub const ROCE_L3_IPV6: u8 = 1 << 2;

impl RoceCap {
    /// Formats of time stamps of queue pairs (mlx5_ifc.h: `MLX5_TIMESTAMP_FORMAT_CAP_*`): 0 free
    /// running, 1 real time, 2 both. If it is not 0, a queue pair should have
    /// [`TimestampFormat::Default`](super::qp::TimestampFormat::Default).
    pub const QP_TS_FORMAT: Field<Self, u8> = Field::new(0x1e, 2);
    /// A mask of IP versions, see [`ROCE_L3_IPV4`].
    pub const L3_TYPE: Field<Self, u8> = Field::new(0x8c, 4);
    /// A mask of RoCE versions, see [`ROCE_VERSION_2`].
    pub const ROCE_VERSION: Field<Self, u8> = Field::new(0x98, 8);
    /// The UDP port that packets go to.
    pub const R_ROCE_DEST_UDP_PORT: Field<Self, u16> = Field::new(0xb0, 16);
    /// The largest UDP source port.
    pub const R_ROCE_MAX_SRC_UDP_PORT: Field<Self, u16> = Field::new(0xc0, 16);
    /// The smallest UDP source port.
    pub const R_ROCE_MIN_SRC_UDP_PORT: Field<Self, u16> = Field::new(0xd0, 16);
    /// Entries of the GID table.
    pub const ROCE_ADDRESS_TABLE_SIZE: Field<Self, u16> = Field::new(0xf0, 16);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prm::{Layout, ViewMut};

    #[test]
    fn op_mods_are_the_headers_own() {
        // mlx5dv users send 1 for general/current, 5 for ODP/current, 7 for atomic/current, 9 for
        // RoCE/current, 0x41 for general 2/current.
        let current = |page| op_mod(page, CapabilityMode::Current);
        for (page, wanted) in [
            (CapabilityPage::General, 1),
            (CapabilityPage::Odp, 5),
            (CapabilityPage::Atomic, 7),
            (CapabilityPage::Roce, 9),
            (CapabilityPage::General2, 0x41),
        ] {
            assert_eq!(current(page), wanted, "{page}");
        }
        assert_eq!(op_mod(CapabilityPage::General, CapabilityMode::Maximum), 0);
    }

    #[test]
    fn general_page_byte_for_byte() {
        let mut bytes = [0; QueryHcaCapOut::BYTES];
        let mut out = ViewMut::<QueryHcaCapOut>::new(&mut bytes).unwrap();
        out.nested(QueryHcaCapOut::GENERAL)
            .set(HcaCap::LOG_MAX_QP_SZ, 15)
            .set(HcaCap::LOG_MAX_QP, 0x12)
            .set(HcaCap::NUM_PORTS, 1)
            .set(HcaCap::LOG_MAX_MSG, 30)
            .set(HcaCap::PORT_TYPE, PortType::Ethernet)
            .set(HcaCap::CQE_VERSION, 1)
            .set(HcaCap::LOG_BF_REG_SIZE, 9)
            .set(HcaCap::TAG_MATCHING, true)
            .set(HcaCap::RNDV_OFFLOAD_RC, true)
            .set(HcaCap::LOG_TAG_MATCHING_LIST_SZ, 12)
            .set(HcaCap::LOG_MAX_XRQ, 14)
            .set(HcaCap::IB_STRIDING_WQ, true)
            .set(HcaCap::IB_STRIDING_WQ_CQ_FIRST_INDICATION, true)
            .set(HcaCap::EXT_STRIDE_NUM_RANGE, true);
        let page = &bytes[16..];
        assert_eq!((page[0x40], page[0x44], page[0x74]), (0x04, 0x04, 0x80));
        assert_eq!((page[0x11], page[0x13]), (15, 0x12));
        assert_eq!((page[0x36], page[0x37]), (1, 1));
        assert_eq!((page[0x38], page[0x3f]), (30, 1));
        assert_eq!(page[0x4d], 9);
        assert_eq!((page[0xbe], page[0xbf]), (0xcc, 14));
    }
}
