//! Fields of the queue pair context (mlx5_ifc.h: `qpc`) and of its address paths (`ads`).

use super::{
    AddressPath, AtomicMode, Mtu, PathMigration, QpState, Qpc, QpcExt, ReceiveQueueType,
    ServiceType, TimestampFormat,
};
use crate::command::xrq::XrqOffload;
use crate::prm::{ByteField, Field, Nested};

impl Qpc {
    /// State; written by the device only.
    pub const STATE: Field<Self, QpState> = Field::new(0x0, 4);
    /// The port of a bonded device that sends the packets, from 1; 0 leaves it to the device.
    pub const LAG_TX_PORT_AFFINITY: Field<Self, u8> = Field::new(0x4, 4);
    /// Transport service.
    pub const ST: Field<Self, ServiceType> = Field::new(0x8, 8);
    /// Path migration.
    pub const PM_STATE: Field<Self, PathMigration> = Field::new(0x13, 2);
    /// The protocol that the device executes for messages to an XRQ.
    pub const OFFLOAD_TYPE: Field<Self, XrqOffload> = Field::new(0x18, 4);
    /// WQEs carry a signature.
    pub const WQ_SIGNATURE: Field<Self, bool> = Field::new(0x20, 1);
    /// A datagram that the queue pair sends to a multicast group is not delivered to itself.
    pub const BLOCK_LB_MC: Field<Self, bool> = Field::new(0x21, 1);
    /// The protection domain.
    pub const PD: Field<Self> = Field::new(0x28, 24);
    /// Path MTU.
    pub const MTU: Field<Self, Mtu> = Field::new(0x40, 3);
    /// log2 of the largest message in bytes.
    pub const LOG_MSG_MAX: Field<Self, u8> = Field::new(0x43, 5);
    /// log2 of the receive WQEs of the ring.
    pub const LOG_RQ_SIZE: Field<Self, u8> = Field::new(0x49, 4);
    /// A receive WQE has `16 << value` bytes.
    pub const LOG_RQ_STRIDE: Field<Self, u8> = Field::new(0x4d, 3);
    /// There is no send ring.
    pub const NO_SQ: Field<Self, bool> = Field::new(0x50, 1);
    /// log2 of the WQEBBs of the send ring.
    pub const LOG_SQ_SIZE: Field<Self, u8> = Field::new(0x51, 4);
    /// Format of the time stamps of completions.
    pub const TS_FORMAT: Field<Self, TimestampFormat> = Field::new(0x58, 2);
    /// May use the reserved local key.
    pub const RLKY: Field<Self, bool> = Field::new(0x5b, 1);
    /// The counter set for events of the queue pair; 0 for none.
    pub const COUNTER_SET_ID: Field<Self, u8> = Field::new(0x60, 8);
    /// The UAR page whose BlueFlame registers ring the send queue.
    pub const UAR_PAGE: Field<Self> = Field::new(0x68, 24);
    /// A DC initiator sends no request before the target has accepted the connection.
    pub const FULL_HANDSHAKE: Field<Self, bool> = Field::new(0x83, 1);
    /// A number that the user chooses; CQEs carry it.
    pub const USER_INDEX: Field<Self> = Field::new(0x88, 24);
    /// log2 of the page size, minus 12.
    pub const LOG_PAGE_SIZE: Field<Self, u8> = Field::new(0xa3, 5);
    /// The peer's queue pair.
    pub const REMOTE_QPN: Field<Self> = Field::new(0xa8, 24);
    /// The way to the peer.
    pub const PRIMARY_ADDRESS_PATH: Nested<Self, AddressPath> = Nested::new(0xc0);
    /// Another way to the peer.
    pub const SECONDARY_ADDRESS_PATH: Nested<Self, AddressPath> = Nested::new(0x220);
    /// The requester asks for an acknowledgment at least every 2^n packets.
    pub const LOG_ACK_REQ_FREQ: Field<Self, u8> = Field::new(0x380, 4);
    /// log2 of the reads and atomics that the requester keeps outstanding.
    pub const LOG_SRA_MAX: Field<Self, u8> = Field::new(0x388, 3);
    /// Retransmissions after a timeout or sequence error before giving up.
    pub const RETRY_COUNT: Field<Self, u8> = Field::new(0x38d, 3);
    /// Retransmissions after an RNR NAK before giving up, or [`super::RNR_RETRY_FOREVER`].
    pub const RNR_RETRY: Field<Self, u8> = Field::new(0x390, 3);
    /// RNR retries left.
    pub const CUR_RNR_RETRY: Field<Self, u8> = Field::new(0x395, 3);
    /// Retries left.
    pub const CUR_RETRY_COUNT: Field<Self, u8> = Field::new(0x398, 3);
    /// The requester's next packet sequence number.
    pub const NEXT_SEND_PSN: Field<Self> = Field::new(0x3c8, 24);
    /// log2 of the number of channels whose requests a DC initiator keeps apart; 0 for none.
    pub const LOG_NUM_DCI_STREAM_CHANNELS: Field<Self, u8> = Field::new(0x3e3, 5);
    /// The send queue's completion queue.
    pub const CQN_SND: Field<Self> = Field::new(0x3e8, 24);
    /// log2 of the number of channels in error that move a DC initiator to the error state.
    pub const LOG_NUM_DCI_ERRORED_STREAMS: Field<Self, u8> = Field::new(0x403, 5);
    /// The last packet sequence number that the peer acknowledged.
    pub const LAST_ACKED_PSN: Field<Self> = Field::new(0x448, 24);
    /// Messages sent.
    pub const SSN: Field<Self> = Field::new(0x468, 24);
    /// log2 of the reads and atomics that the responder serves at a time.
    pub const LOG_RRA_MAX: Field<Self, u8> = Field::new(0x488, 3);
    /// Atomics that the responder accepts.
    pub const ATOMIC_MODE: Field<Self, AtomicMode> = Field::new(0x48c, 4);
    /// The responder accepts RDMA reads.
    pub const RRE: Field<Self, bool> = Field::new(0x490, 1);
    /// The responder takes RDMA writes.
    pub const RWE: Field<Self, bool> = Field::new(0x491, 1);
    /// The responder accepts atomics.
    pub const RAE: Field<Self, bool> = Field::new(0x492, 1);
    /// Where the ring starts in its first page, in units of a 64th of the page size.
    pub const PAGE_OFFSET: Field<Self, u8> = Field::new(0x494, 6);
    /// The pause that the responder requests when it has no receive WQE: a code of IBTA's RNR timer
    /// table.
    pub const MIN_RNR_NAK: Field<Self, u8> = Field::new(0x4a3, 5);
    /// The packet sequence number that the responder expects.
    pub const NEXT_RCV_PSN: Field<Self> = Field::new(0x4a8, 24);
    /// The XRC domain.
    pub const XRCD: Field<Self> = Field::new(0x4c8, 24);
    /// The receive queue's completion queue.
    pub const CQN_RCV: Field<Self> = Field::new(0x4e8, 24);
    /// Offset of the doorbell record in its umem, bytes.
    pub const DBR_ADDR: Field<Self, u64> = Field::new(0x500, 64);
    /// Queue key of datagrams.
    pub const Q_KEY: Field<Self> = Field::new(0x540, 32);
    /// The source of receive WQEs.
    pub const RQ_TYPE: Field<Self, ReceiveQueueType> = Field::new(0x565, 3);
    /// The shared receive queue.
    pub const SRQN_RMPN_XRQN: Field<Self> = Field::new(0x568, 24);
    /// Messages received.
    pub const RMSN: Field<Self> = Field::new(0x588, 24);
    /// WQEBBs that the device executed.
    pub const HW_SQ_WQEBB_COUNTER: Field<Self, u16> = Field::new(0x5a0, 16);
    /// WQEBBs that software posted.
    pub const SW_SQ_WQEBB_COUNTER: Field<Self, u16> = Field::new(0x5b0, 16);
    /// Receive WQEs that the device consumed.
    pub const HW_RQ_COUNTER: Field<Self> = Field::new(0x5c0, 32);
    /// Receive WQEs that software posted.
    pub const SW_RQ_COUNTER: Field<Self> = Field::new(0x5e0, 32);
    /// Scatter the requester's small results into the CQE.
    pub const CS_REQ: Field<Self, u8> = Field::new(0x630, 8);
    /// Scatter small received messages into the CQE.
    pub const CS_RES: Field<Self, u8> = Field::new(0x638, 8);
    /// The doorbell record is in a umem.
    pub const DBR_UMEM_VALID: Field<Self, bool> = Field::new(0x683, 1);
    /// The umem that holds the doorbell record.
    pub const DBR_UMEM_ID: Field<Self> = Field::new(0x720, 32);
}

impl QpcExt {
    /// The channel of a DC initiator that leaves the error state.
    pub const DCI_STREAM_CHANNEL_ID: Field<Self, u16> = Field::new(0x10, 16);
}

impl AddressPath {
    /// Index into the partition key table.
    pub const PKEY_INDEX: Field<Self, u16> = Field::new(0x10, 16);
    /// Packets carry a global route header; always so on RoCE.
    pub const GRH: Field<Self, bool> = Field::new(0x28, 1);
    /// The peer's local identifier (InfiniBand).
    pub const RLID: Field<Self, u16> = Field::new(0x30, 16);
    /// Local acknowledgment timeout, 4.096 us * 2^n; 0 for never.
    pub const ACK_TIMEOUT: Field<Self, u8> = Field::new(0x40, 5);
    /// Index of the own GID.
    pub const SRC_ADDR_INDEX: Field<Self, u8> = Field::new(0x48, 8);
    /// Static rate.
    pub const STAT_RATE: Field<Self, u8> = Field::new(0x54, 4);
    /// Hop limit, or time to live.
    pub const HOP_LIMIT: Field<Self, u8> = Field::new(0x58, 8);
    /// Traffic class.
    pub const TCLASS: Field<Self, u8> = Field::new(0x64, 8);
    /// Flow label.
    pub const FLOW_LABEL: Field<Self> = Field::new(0x6c, 20);
    /// The peer's GID, or its IP address.
    pub const RGID_RIP: ByteField<Self, 16> = ByteField::new(0x80);
    /// Differentiated services code point of RoCE v2 packets.
    pub const DSCP: Field<Self, u8> = Field::new(0x10a, 6);
    /// The UDP source port of RoCE v2 packets.
    pub const UDP_SPORT: Field<Self, u16> = Field::new(0x110, 16);
    /// Ethernet priority.
    pub const ETH_PRIO: Field<Self, u8> = Field::new(0x121, 3);
    /// Service level (InfiniBand).
    pub const SL: Field<Self, u8> = Field::new(0x124, 4);
    /// The port, from 1.
    pub const VHCA_PORT_NUM: Field<Self, u8> = Field::new(0x128, 8);
    /// The peer's Ethernet address (`rmac_47_32` and `rmac_31_0`).
    pub const RMAC: ByteField<Self, 6> = ByteField::new(0x130);
}
