//! Counter sets of queues: ALLOC_Q_COUNTER, DEALLOC_Q_COUNTER, QUERY_Q_COUNTER (mlx5_ifc.h:
//! structures of these names).
//!
//! Only the counters that barewire keeps are named.

use super::{StatusOut, requests};
use crate::prm::{Field, layouts};

layouts! {
    /// Allocates a counter set.
    AllocQCounterIn: 16, "alloc_q_counter_in";
    /// Names it.
    AllocQCounterOut: 16, "alloc_q_counter_out";
    /// Deallocates a counter set.
    DeallocQCounterIn: 16, "dealloc_q_counter_in";
    /// Reads a counter set.
    QueryQCounterIn: 32, "query_q_counter_in";
    /// The counts.
    QueryQCounterOut: 256, "query_q_counter_out";
}

requests! {
    AllocQCounterIn => AllocQCounter, AllocQCounterOut;
    DeallocQCounterIn => DeallocQCounter, StatusOut;
    QueryQCounterIn => QueryQCounter, QueryQCounterOut;
}

impl AllocQCounterOut {
    /// The set.
    pub const COUNTER_SET_ID: Field<Self, u8> = Field::new(0x58, 8);
}

impl DeallocQCounterIn {
    /// The set.
    pub const COUNTER_SET_ID: Field<Self, u8> = Field::new(0x58, 8);
}

impl QueryQCounterIn {
    /// Starts from zero after this.
    pub const CLEAR: Field<Self, bool> = Field::new(0xc0, 1);
    /// The set.
    pub const COUNTER_SET_ID: Field<Self, u8> = Field::new(0xf8, 8);
}

impl QueryQCounterOut {
    /// RDMA writes executed for peers.
    pub const RX_WRITE_REQUESTS: Field<Self> = Field::new(0x80, 32);
    /// RDMA reads executed for peers.
    pub const RX_READ_REQUESTS: Field<Self> = Field::new(0xc0, 32);
    /// Atomics executed for peers.
    pub const RX_ATOMIC_REQUESTS: Field<Self> = Field::new(0x100, 32);
    /// Dynamic connections accepted.
    pub const RX_DCT_CONNECT: Field<Self> = Field::new(0x140, 32);
    /// Messages that found no receive WQE.
    pub const OUT_OF_BUFFER: Field<Self> = Field::new(0x180, 32);
    /// Requests ahead of the expected packet sequence number.
    pub const OUT_OF_SEQUENCE: Field<Self> = Field::new(0x1c0, 32);
    /// Requests that came again.
    pub const DUPLICATE_REQUEST: Field<Self> = Field::new(0x200, 32);
    /// RNR NAKs received.
    pub const RNR_NAK_RETRY_ERR: Field<Self> = Field::new(0x240, 32);
    /// NAKs received for a sequence number.
    pub const PACKET_SEQ_ERR: Field<Self> = Field::new(0x280, 32);
    /// Responses found missing because a later one came.
    pub const IMPLIED_NAK_SEQ_ERR: Field<Self> = Field::new(0x2c0, 32);
    /// Acknowledgments that did not arrive in time.
    pub const LOCAL_ACK_TIMEOUT_ERR: Field<Self> = Field::new(0x300, 32);
    /// Send WQEs that failed because the receiver was not ready for too long.
    pub const REQ_RNR_RETRIES_EXCEEDED: Field<Self> = Field::new(0x380, 32);
    /// Receive WQEs that were too short.
    pub const RESP_LOCAL_LENGTH_ERROR: Field<Self> = Field::new(0x3c0, 32);
    /// Send WQEs that were too long.
    pub const REQ_LOCAL_LENGTH_ERROR: Field<Self> = Field::new(0x3e0, 32);
    /// Receive WQEs that were malformed.
    pub const RESP_LOCAL_QP_ERROR: Field<Self> = Field::new(0x400, 32);
    /// Send WQEs that were malformed.
    pub const LOCAL_OPERATION_ERROR: Field<Self> = Field::new(0x420, 32);
    /// Receive WQEs whose local keys did not do.
    pub const RESP_LOCAL_PROTECTION: Field<Self> = Field::new(0x440, 32);
    /// Send WQEs whose local keys did not do.
    pub const REQ_LOCAL_PROTECTION: Field<Self> = Field::new(0x460, 32);
    /// Receive WQEs that failed.
    pub const RESP_CQE_ERROR: Field<Self> = Field::new(0x480, 32);
    /// Send WQEs that failed.
    pub const REQ_CQE_ERROR: Field<Self> = Field::new(0x4a0, 32);
    /// Send WQEs that could not change a memory key.
    pub const REQ_MW_BINDING: Field<Self> = Field::new(0x4c0, 32);
    /// Send WQEs that got a response they did not ask for.
    pub const REQ_BAD_RESPONSE: Field<Self> = Field::new(0x4e0, 32);
    /// Send WQEs that the peer took for invalid.
    pub const REQ_REMOTE_INVALID_REQUEST: Field<Self> = Field::new(0x500, 32);
    /// Invalid requests from peers.
    pub const RESP_REMOTE_INVALID_REQUEST: Field<Self> = Field::new(0x520, 32);
    /// Send WQEs whose remote keys did not do.
    pub const REQ_REMOTE_ACCESS_ERRORS: Field<Self> = Field::new(0x540, 32);
    /// Requests from peers whose keys did not do.
    pub const RESP_REMOTE_ACCESS_ERRORS: Field<Self> = Field::new(0x560, 32);
    /// Send WQEs that the peer could not execute.
    pub const REQ_REMOTE_OPERATION_ERRORS: Field<Self> = Field::new(0x580, 32);
    /// Send WQEs that were never acknowledged.
    pub const REQ_TRANSPORT_RETRIES_EXCEEDED: Field<Self> = Field::new(0x5a0, 32);
    /// Completions that found their queue full.
    pub const CQ_OVERFLOW: Field<Self> = Field::new(0x5c0, 32);
    /// Receive WQEs flushed.
    pub const RESP_CQE_FLUSH_ERROR: Field<Self> = Field::new(0x5e0, 32);
    /// Send WQEs flushed.
    pub const REQ_CQE_FLUSH_ERROR: Field<Self> = Field::new(0x600, 32);
}
