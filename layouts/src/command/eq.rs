//! Event queues: CREATE_EQ, DESTROY_EQ, QUERY_EQ (mlx5_ifc.h: `create_eq_*`, `destroy_eq_*`,
//! `query_eq_*`, `eqc`).
//!
//! Public headers define rings of page addresses only, since the kernel owns all event queues.
//! `EQ_UMEM_*` are barewire's own names for fields that are reserved there; their places are those
//! of CREATE_CQ as far as there is room.

use super::{StatusOut, requests};
use crate::prm::{Field, Layout, Nested, field_enum, layouts};

/// Bytes of an event queue entry.
pub const EQE_BYTES: usize = 64;

field_enum! {
    /// Whether an event queue works (mlx5_ifc.h: `MLX5_EQC_STATUS_*`).
    EqStatus: u8, "EQ status" {
        /// It works.
        Ok = 0x0, "ok";
        /// An entry was lost, because the queue was full or could not be written.
        WriteFailure = 0xa, "write failure";
    }
}

field_enum! {
    /// Whether the next event interrupts (mlx5_ifc.h: `MLX5_EQC_ST_*`).
    EqState: u8, "EQ state" {
        /// Never armed.
        Idle = 0x0, "idle";
        /// It does.
        Armed = 0x9, "armed";
        /// It did.
        Fired = 0xa, "fired";
    }
}

layouts! {
    /// Creates an event queue. A list of page addresses may follow where no umem is given.
    CreateEqIn: 272, "create_eq_in";
    /// Names the new event queue.
    CreateEqOut: 16, "create_eq_out";
    /// Destroys an event queue.
    DestroyEqIn: 16, "destroy_eq_in";
    /// Queries an event queue's context.
    QueryEqIn: 16, "query_eq_in";
    /// The context.
    QueryEqOut: 272, "query_eq_out";
    /// Event queue context.
    Eqc: 64, "eqc";
}

requests! {
    CreateEqIn => CreateEq, CreateEqOut;
    DestroyEqIn => DestroyEq, StatusOut;
    QueryEqIn => QueryEq, QueryEqOut;
}

impl CreateEqIn {
    /// The queue's context.
    pub const EQ_CONTEXT_ENTRY: Nested<Self, Eqc> = Nested::new(0x80);
    /// Where the ring starts in its umem, bytes.
    pub const EQ_UMEM_OFFSET: Field<Self, u64> = Field::new(0x280, 64);
    /// The asynchronous events of types 0 to 63 that the queue takes: bit n for type n.
    pub const EVENT_BITMASK_0: Field<Self, u64> = Field::new(0x2c0, 64);
    /// The same of types 64 to 127.
    pub const EVENT_BITMASK_1: Field<Self, u64> = Field::new(0x300, 64);
    /// The same of types 128 to 191.
    pub const EVENT_BITMASK_2: Field<Self, u64> = Field::new(0x340, 64);
    /// The same of types 192 to 255.
    pub const EVENT_BITMASK_3: Field<Self, u64> = Field::new(0x380, 64);
    /// The umem that holds the ring.
    pub const EQ_UMEM_ID: Field<Self> = Field::new(0x3c0, 32);
    /// The ring is in a umem.
    pub const EQ_UMEM_VALID: Field<Self, bool> = Field::new(0x3e0, 1);
}

impl CreateEqOut {
    /// The new queue's number.
    pub const EQ_NUMBER: Field<Self> = Field::new(0x58, 8);
}

impl DestroyEqIn {
    /// The queue.
    pub const EQ_NUMBER: Field<Self> = Field::new(0x58, 8);
}

impl QueryEqIn {
    /// The queue.
    pub const EQ_NUMBER: Field<Self> = Field::new(0x58, 8);
}

impl QueryEqOut {
    /// The queue's context.
    pub const EQ_CONTEXT_ENTRY: Nested<Self, Eqc> = Nested::new(0x80);
    /// The asynchronous events of types 0 to 63 that the queue takes.
    pub const EVENT_BITMASK: Field<Self, u64> = Field::new(0x2c0, 64);
}

impl Eqc {
    /// Whether it works.
    pub const STATUS: Field<Self, EqStatus> = Field::new(0x0, 4);
    /// Collapsed: every entry is written to index 0.
    pub const EC: Field<Self, bool> = Field::new(0xd, 1);
    /// Overrun ignore: the device ignores the consumer counter.
    pub const OI: Field<Self, bool> = Field::new(0xe, 1);
    /// Whether the next event interrupts.
    pub const ST: Field<Self, EqState> = Field::new(0x14, 4);
    /// log2 of the number of entries.
    pub const LOG_EQ_SIZE: Field<Self, u8> = Field::new(0x63, 5);
    /// The UAR page whose EQ doorbells move the consumer counter and arm the queue.
    pub const UAR_PAGE: Field<Self> = Field::new(0x68, 24);
    /// The interrupt vector.
    pub const INTR: Field<Self, u16> = Field::new(0xb4, 12);
    /// log2 of the page size, minus 12.
    pub const LOG_PAGE_SIZE: Field<Self, u8> = Field::new(0xc3, 5);
    /// Entries consumed when the device last checked.
    pub const CONSUMER_COUNTER: Field<Self> = Field::new(0x148, 24);
    /// Entries written.
    pub const PRODUCER_COUNTER: Field<Self> = Field::new(0x168, 24);
}

const _: () = assert!(CreateEqIn::BYTES == 0x880 / 8 && Eqc::BYTES == 0x200 / 8);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::request;

    #[test]
    fn create_eq_byte_for_byte() {
        let mut bytes = [0; CreateEqIn::BYTES];
        let mut create = request::<CreateEqIn>(&mut bytes).unwrap();
        create
            .set(CreateEqIn::EQ_UMEM_OFFSET, 0x1000)
            .set(CreateEqIn::EVENT_BITMASK_0, 1 << 9)
            .set(CreateEqIn::EQ_UMEM_ID, 5)
            .set(CreateEqIn::EQ_UMEM_VALID, true);
        create
            .nested(CreateEqIn::EQ_CONTEXT_ENTRY)
            .set(Eqc::OI, true)
            .set(Eqc::LOG_EQ_SIZE, 7)
            .set(Eqc::UAR_PAGE, 0x0a_0b0c)
            .set(Eqc::INTR, 0x123);
        let mut want = [0; CreateEqIn::BYTES];
        want[0..2].copy_from_slice(&[0x03, 0x01]);
        want[17] = 0x02;
        want[28..32].copy_from_slice(&[7, 0x0a, 0x0b, 0x0c]);
        want[38..40].copy_from_slice(&[0x01, 0x23]);
        want[80 + 6] = 0x10;
        want[88 + 6] = 0x02;
        want[120 + 3] = 5;
        want[124] = 0x80;
        assert_eq!(bytes, want);
    }
}
