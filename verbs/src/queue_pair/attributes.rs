//! What queue pairs are made of, and what they need to know in each state.

use rdma_sys::{ibv_qp_create_send_ops_flags as has, ibv_qp_state};

use crate::completion::CompletionQueueRef;
use crate::{Access, Route, SharedReceiveQueueRef};

/// What a queue pair does. verbs.h: `enum ibv_qp_type`.
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
    /// The operations of its requests, as `enum ibv_qp_create_send_ops_flags` has them.
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

/// Enhancements of a connection beyond the standard. verbs.h: `struct ibv_ece`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enhancements {
    /// Whose they are.
    pub vendor: u32,
    /// The vendor's bits.
    pub options: u32,
    /// What else there is.
    pub mask: u32,
}

/// How much a queue pair holds. verbs.h: `struct ibv_qp_cap`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Send requests outstanding.
    pub sends: u32,
    /// Receive requests outstanding.
    pub receives: u32,
    /// Scatter/gather elements of a send request.
    pub send_elements: u32,
    /// Scatter/gather elements of a receive request.
    pub receive_elements: u32,
    /// Bytes that a send request may carry itself.
    pub inline: u32,
}

/// What a queue pair is to be.
#[derive(Clone, Debug)]
pub struct QueuePairOptions {
    /// What it does.
    pub kind: QueuePairKind,
    /// Where sends complete.
    pub send_queue: CompletionQueueRef,
    /// Where receives complete.
    pub receive_queue: CompletionQueueRef,
    /// Where its receive requests come from, if not from its own queue.
    pub shared_receive: Option<SharedReceiveQueueRef>,
    /// How much it holds, at least.
    pub capacity: Capacity,
    /// Every send request completes with an entry, asked for or not.
    pub signal_all: bool,
}

/// What a queue pair needs to receive requests into its queue: the way from RESET to INIT.
#[derive(Clone, Copy, Debug)]
pub struct Initialize {
    /// The port.
    pub port: u8,
    /// The partition, as an index into the port's table; 0 is the default one.
    pub partition_index: u16,
    /// What peers may do through it. Not for datagrams.
    pub access: Access,
    /// The queue key. For datagrams only.
    pub queue_key: u32,
}

/// What a connection needs to receive: the way from INIT to RTR.
#[derive(Clone, Copy, Debug)]
pub struct ReadyToReceive {
    /// The path MTU in bytes: 256 to 4096.
    pub mtu: u32,
    /// The peer's queue pair number.
    pub peer: u32,
    /// The peer's first packet sequence number, 24 bits.
    pub packet_sequence_number: u32,
    /// Reads and atomics of the peer that are worked on at a time. RC only.
    pub responder_resources: u8,
    /// How long the peer is asked to wait when no receive request is there, as verbs code it: 12 is 0.64 ms. RC only.
    pub rnr_timer: u8,
    /// The way to the peer.
    pub route: Route,
}

/// What a connection needs to send: the way from RTR to RTS.
#[derive(Clone, Copy, Debug)]
pub struct ReadyToSend {
    /// The own first packet sequence number, 24 bits.
    pub packet_sequence_number: u32,
    /// How long to wait for an acknowledgement: 4.096 us shifted left by this; 0 is forever. RC only.
    pub timeout: u8,
    /// How often to try again after that, at most 7. RC only.
    pub retries: u8,
    /// How often to try again when the peer has no receive request; 7 is for ever. RC only.
    pub rnr_retries: u8,
    /// Reads and atomics outstanding. RC only.
    pub initiator_depth: u8,
}

/// The state of a queue pair. verbs.h: `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairState {
    /// Takes nothing.
    Reset,
    /// Takes receive requests.
    Initialized,
    /// Receives.
    ReadyToReceive,
    /// Receives and sends.
    ReadyToSend,
    /// Sends are being drained.
    SendDrained,
    /// Sends failed; it still receives.
    SendError,
    /// Whatever is posted is given back as flushed.
    Error,
    /// A value that verbs.h does not name.
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
