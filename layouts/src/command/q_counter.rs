//! Counter sets of queues: ALLOC_Q_COUNTER, DEALLOC_Q_COUNTER, QUERY_Q_COUNTER (mlx5_ifc.h: structures of these names).
//!
//! Only the counters that barewire keeps are named.

use super::{StatusOut, requests};
use crate::prm::{Field, layouts};

layouts! {
    /// Takes a counter set.
    AllocQCounterIn: 16, "alloc_q_counter_in";
    /// Names it.
    AllocQCounterOut: 16, "alloc_q_counter_out";
    /// Gives a counter set back.
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
    /// Responses found missing because a later one came.
    pub const IMPLIED_NAK_SEQ_ERR: Field<Self> = Field::new(0x2c0, 32);
    /// Acknowledgments that did not come in time.
    pub const LOCAL_ACK_TIMEOUT_ERR: Field<Self> = Field::new(0x300, 32);
    /// Completions that found their queue full.
    pub const CQ_OVERFLOW: Field<Self> = Field::new(0x5c0, 32);
}
