//! The parameters of queue pairs, at creation and in each state.

use rdma_sys::{ibv_qp_create_send_ops_flags as has, ibv_qp_state};

use crate::completion::CompletionQueueRef;
use crate::{Access, Route, SharedReceiveQueueRef};

/// The type of a queue pair. verbs.h: `enum ibv_qp_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairKind {
    /// Reliable connection.
    ReliableConnection,
    /// Unreliable connection.
    UnreliableConnection,
    /// Unreliable datagrams.
    UnreliableDatagram,
}

impl QueuePairKind {
    /// The operations that the type supports, as `enum ibv_qp_create_send_ops_flags`.
    pub(crate) fn operations(self) -> u32 {
        let send = has::IBV_QP_EX_WITH_SEND | has::IBV_QP_EX_WITH_SEND_WITH_IMM;
        let write = has::IBV_QP_EX_WITH_RDMA_WRITE | has::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
        let fetch = has::IBV_QP_EX_WITH_RDMA_READ
            | has::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
            | has::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
        match self {
            Self::ReliableConnection => send | write | fetch,
            Self::UnreliableConnection => send | write,
            Self::UnreliableDatagram => send,
        }
        .0
    }
}

/// Vendor-specific enhancements of a connection (ECE). verbs.h: `struct ibv_ece`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enhancements {
    /// The vendor id.
    pub vendor: u32,
    /// The vendor's option bits.
    pub options: u32,
    /// The mask of additional fields.
    pub mask: u32,
}

/// The capacity of a queue pair. verbs.h: `struct ibv_qp_cap`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// The maximum number of outstanding send requests.
    pub sends: u32,
    /// The maximum number of outstanding receive requests.
    pub receives: u32,
    /// The maximum number of scatter/gather elements of a send request.
    pub send_elements: u32,
    /// The maximum number of scatter elements of a receive request.
    pub receive_elements: u32,
    /// The maximum number of bytes of inline data in a send request.
    pub inline: u32,
}

/// The parameters for creating a queue pair.
#[derive(Clone, Debug)]
pub struct QueuePairOptions {
    /// The type.
    pub kind: QueuePairKind,
    /// The queue for completions of send requests.
    pub send_queue: CompletionQueueRef,
    /// The queue for completions of receive requests.
    pub receive_queue: CompletionQueueRef,
    /// The shared receive queue; if `None`, the queue pair has its own receive queue.
    pub shared_receive: Option<SharedReceiveQueueRef>,
    /// The minimum capacity.
    pub capacity: Capacity,
    /// Every send request reports a completion, whether it has [`crate::SendFlags::SIGNALED`] or
    /// not.
    pub signal_all: bool,
}

/// The parameters of the transition from RESET to INIT, after which receive requests may be posted.
#[derive(Clone, Copy, Debug)]
pub struct Initialize {
    /// The port.
    pub port: u8,
    /// The index of the partition key in the port's table; 0 is the default partition.
    pub partition_index: u16,
    /// The access that the peer has through the queue pair. Not used by datagrams.
    pub access: Access,
    /// The queue key. Used by datagrams only.
    pub queue_key: u32,
}

/// The parameters of the transition from INIT to RTR, after which the queue pair receives.
#[derive(Clone, Copy, Debug)]
pub struct ReadyToReceive {
    /// The path MTU in bytes: 256 to 4096.
    pub mtu: u32,
    /// The peer's queue pair number.
    pub peer: u32,
    /// The initial packet sequence number of the peer, 24 bits.
    pub packet_sequence_number: u32,
    /// The maximum number of reads and atomics of the peer that are executed at a time. RC only.
    pub responder_resources: u8,
    /// The RNR timer, in the encoding of verbs: the peer waits this long before it retries if there
    /// is no receive request. 12 is 0.64 ms. RC only.
    pub rnr_timer: u8,
    /// The route to the peer.
    pub route: Route,
}

/// The parameters of the transition from RTR to RTS, after which the queue pair sends.
#[derive(Clone, Copy, Debug)]
pub struct ReadyToSend {
    /// The initial packet sequence number of this side, 24 bits.
    pub packet_sequence_number: u32,
    /// The acknowledgement timeout: 4.096 us shifted left by this value; 0 is infinite. RC only.
    pub timeout: u8,
    /// The maximum number of retries after this timeout, up to 7. RC only.
    pub retries: u8,
    /// The maximum number of retries if the peer has no receive request; 7 is infinite. RC only.
    pub rnr_retries: u8,
    /// The maximum number of outstanding reads and atomics. RC only.
    pub initiator_depth: u8,
}

/// The state of a queue pair. verbs.h: `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairState {
    /// RESET: accepts no requests.
    Reset,
    /// INIT: accepts receive requests.
    Initialized,
    /// RTR: receives.
    ReadyToReceive,
    /// RTS: receives and sends.
    ReadyToSend,
    /// SQD: the send queue is being drained.
    SendDrained,
    /// SQE: the send queue failed; the queue pair still receives.
    SendError,
    /// ERR: all requests complete as flushed.
    Error,
    /// A value that verbs.h does not define.
    Unknown(u32),
}

impl QueuePairState {
    pub(crate) fn from_verbs(state: u32) -> Self {
        match state {
            ibv_qp_state::IBV_QPS_RESET => Self::Reset,
            ibv_qp_state::IBV_QPS_INIT => Self::Initialized,
            ibv_qp_state::IBV_QPS_RTR => Self::ReadyToReceive,
            ibv_qp_state::IBV_QPS_RTS => Self::ReadyToSend,
            ibv_qp_state::IBV_QPS_SQD => Self::SendDrained,
            ibv_qp_state::IBV_QPS_SQE => Self::SendError,
            ibv_qp_state::IBV_QPS_ERR => Self::Error,
            other => Self::Unknown(other),
        }
    }
}
