//! Completion queues: CREATE_CQ, DESTROY_CQ, QUERY_CQ (mlx5_ifc.h: `create_cq_*`, `destroy_cq_*`,
//! `query_cq_*`, `cqc`).

use super::{StatusOut, requests};
use crate::prm::{Field, Layout, Nested, field_enum, layouts};

field_enum! {
    /// Bytes of a completion queue entry (mlx5_ifc.h: cqc.cqe_sz).
    CqeSize: u8, "CQE size" {
        /// 64 bytes.
        Bytes64 = 0, "64 B";
        /// 128 bytes: the second half is the 64-byte entry, the first may hold scattered data.
        Bytes128 = 1, "128 B";
    }
}

impl CqeSize {
    /// The size in bytes.
    pub const fn bytes(self) -> usize {
        64 << self as usize
    }
}

field_enum! {
    /// Whether a completion queue works (mlx5_ifc.h: `MLX5_CQC_STATUS_*`).
    CqStatus: u8, "CQ status" {
        /// It works.
        Ok = 0x0, "ok";
        /// An entry was lost because the consumer was too slow.
        Overflow = 0x9, "overflow";
        /// The device could not write an entry.
        WriteFail = 0xa, "write failure";
    }
}

field_enum! {
    /// Whether the next completion is reported to the event queue (mlx5_ifc.h: `MLX5_CQC_ST_*`).
    CqState: u8, "CQ event state" {
        /// Never armed.
        Idle = 0x0, "idle";
        /// The next solicited completion is.
        SolicitedArmed = 0x6, "solicited armed";
        /// The next completion is.
        Armed = 0x9, "armed";
        /// It was.
        Fired = 0xa, "fired";
    }
}

layouts! {
    /// Creates a completion queue. A list of page addresses may follow where no umem is given.
    CreateCqIn: 272, "create_cq_in";
    /// Names the new completion queue.
    CreateCqOut: 16, "create_cq_out";
    /// Destroys a completion queue.
    DestroyCqIn: 16, "destroy_cq_in";
    /// Queries a completion queue's context.
    QueryCqIn: 16, "query_cq_in";
    /// The context.
    QueryCqOut: 272, "query_cq_out";
    /// Changes a completion queue, or moves it to another ring. A list of page addresses may follow
    /// where no umem is given.
    ModifyCqIn: 272, "modify_cq_in";
    /// Completion queue context.
    Cqc: 64, "cqc";
}

requests! {
    CreateCqIn => CreateCq, CreateCqOut;
    DestroyCqIn => DestroyCq, StatusOut;
    QueryCqIn => QueryCq, QueryCqOut;
    ModifyCqIn => ModifyCq, StatusOut;
}

field_enum! {
    /// What MODIFY_CQ does: its `op_mod` (mlx5_ifc.h: `MLX5_MODIFY_CQ_IN_OP_MOD_*`).
    ModifyCqKind: u16, "MODIFY_CQ op_mod" {
        /// Changes the parameters that [`CqParameters`] selects.
        Modify = 0, "modify";
        /// Moves the queue to another ring, as [`CqResize`] selects.
        Resize = 1, "resize";
    }
}

field_enum! {
    /// The layout of compressed entries (linux device.h: `MLX5_CQE_COMPRESS_LAYOUT_*`): see
    /// [`crate::cqe::compressed`].
    CompressionLayout: u8, "CQE compression layout" {
        /// A title, and arrays of mini CQEs behind it.
        Basic = 0, "basic";
        /// Blocks behind an entry that is not compressed.
        Enhanced = 1, "enhanced";
    }
}

bitflags::bitflags! {
    /// Parameters that MODIFY_CQ changes (mlx5 cq.h: `MLX5_CQ_MODIFY_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CqParameters: u32 {
        /// `cq_period`.
        const PERIOD = 1 << 0;
        /// `cq_max_count`.
        const MAX_COUNT = 1 << 1;
        /// `oi`.
        const OVERRUN = 1 << 2;
    }
}

bitflags::bitflags! {
    /// The parameters of the ring that a resize provides (mlx5 device.h: `MLX5_MODIFY_CQ_MASK_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CqResize: u32 {
        /// `log_cq_size`.
        const LOG_SIZE = 1 << 0;
        /// `page_offset`.
        const PAGE_OFFSET = 1 << 1;
        /// `log_page_size`.
        const PAGE_SIZE = 1 << 2;
    }
}

impl ModifyCqIn {
    /// What the command changes.
    pub const OP_MOD: Field<Self, ModifyCqKind> = Field::new(0x30, 16);
    /// The queue.
    pub const CQN: Field<Self> = Field::new(0x48, 24);
    /// [`CqParameters`] or [`CqResize`].
    pub const FIELD_SELECT: Field<Self> = Field::new(0x60, 32);
    /// The new values.
    pub const CQ_CONTEXT: Nested<Self, Cqc> = Nested::new(0x80);
    /// Where the new ring starts in its umem, bytes.
    pub const CQ_UMEM_OFFSET: Field<Self, u64> = Field::new(0x280, 64);
    /// The umem that holds the new ring.
    pub const CQ_UMEM_ID: Field<Self> = Field::new(0x2c0, 32);
    /// The new ring is in a umem. The kernel sets it on behalf of a DEVX user.
    pub const CQ_UMEM_VALID: Field<Self, bool> = Field::new(0x2e0, 1);
}

impl CreateCqIn {
    /// The queue's context.
    pub const CQ_CONTEXT: Nested<Self, Cqc> = Nested::new(0x80);
    /// Where the ring starts in its umem, bytes.
    pub const CQ_UMEM_OFFSET: Field<Self, u64> = Field::new(0x280, 64);
    /// The umem that holds the ring.
    pub const CQ_UMEM_ID: Field<Self> = Field::new(0x2c0, 32);
    /// The ring is in a umem. The kernel sets it on behalf of a DEVX user.
    pub const CQ_UMEM_VALID: Field<Self, bool> = Field::new(0x2e0, 1);
}

impl CreateCqOut {
    /// The new queue's number.
    pub const CQN: Field<Self> = Field::new(0x48, 24);
}

impl DestroyCqIn {
    /// The queue.
    pub const CQN: Field<Self> = Field::new(0x48, 24);
}

impl QueryCqIn {
    /// The queue.
    pub const CQN: Field<Self> = Field::new(0x48, 24);
}

impl QueryCqOut {
    /// The queue's context.
    pub const CQ_CONTEXT: Nested<Self, Cqc> = Nested::new(0x80);
}

impl Cqc {
    /// Whether it works.
    pub const STATUS: Field<Self, CqStatus> = Field::new(0x0, 4);
    /// The doorbell record is in a umem.
    pub const DBR_UMEM_VALID: Field<Self, bool> = Field::new(0x6, 1);
    /// Size of an entry.
    pub const CQE_SZ: Field<Self, CqeSize> = Field::new(0x8, 3);
    /// Collapsed: every entry is written to index 0.
    pub const CC: Field<Self, bool> = Field::new(0xb, 1);
    /// Overrun ignore: the device ignores the consumer counter.
    pub const OI: Field<Self, bool> = Field::new(0xe, 1);
    /// Entries may be compressed.
    pub const CQE_COMP_EN: Field<Self, bool> = Field::new(0x11, 1);
    /// What mini CQEs carry (mlx5dv.h: `MLX5DV_CQE_RES_FORMAT_*`): see
    /// [`crate::cqe::compressed::MiniFormat`].
    pub const MINI_CQE_RES_FORMAT: Field<Self, u8> = Field::new(0x12, 2);
    /// The layout of compressed entries.
    pub const CQE_COMPRESSION_LAYOUT: Field<Self, CompressionLayout> = Field::new(0x1e, 2);
    /// Event state.
    pub const ST: Field<Self, CqState> = Field::new(0x14, 4);
    /// The umem that holds the doorbell record.
    pub const DBR_UMEM_ID: Field<Self> = Field::new(0x20, 32);
    /// Where the ring starts in its first page, in units of a 64th of the page size.
    pub const PAGE_OFFSET: Field<Self, u8> = Field::new(0x54, 6);
    /// log2 of the number of entries.
    pub const LOG_CQ_SIZE: Field<Self, u8> = Field::new(0x63, 5);
    /// The UAR page whose CQ doorbell arms the queue.
    pub const UAR_PAGE: Field<Self> = Field::new(0x68, 24);
    /// Event moderation: microseconds.
    pub const CQ_PERIOD: Field<Self, u16> = Field::new(0x84, 12);
    /// Event moderation: entries.
    pub const CQ_MAX_COUNT: Field<Self, u16> = Field::new(0x90, 16);
    /// The event queue.
    pub const C_EQN: Field<Self> = Field::new(0xa0, 32);
    /// log2 of the page size, minus 12.
    pub const LOG_PAGE_SIZE: Field<Self, u8> = Field::new(0xc3, 5);
    /// Entries written when the last event was sent.
    pub const LAST_NOTIFIED_INDEX: Field<Self> = Field::new(0x108, 24);
    /// One past the last solicited entry.
    pub const LAST_SOLICIT_INDEX: Field<Self> = Field::new(0x128, 24);
    /// Entries consumed when the device last checked.
    pub const CONSUMER_COUNTER: Field<Self> = Field::new(0x148, 24);
    /// Entries written.
    pub const PRODUCER_COUNTER: Field<Self> = Field::new(0x168, 24);
    /// Offset of the doorbell record in its umem, bytes.
    pub const DBR_ADDR: Field<Self, u64> = Field::new(0x1c0, 64);
}

const _: () = assert!(CreateCqIn::BYTES == 0x880 / 8 && Cqc::BYTES == 0x200 / 8);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::request;

    #[test]
    fn create_cq_byte_for_byte() {
        let mut bytes = [0; CreateCqIn::BYTES];
        let mut create = request::<CreateCqIn>(&mut bytes).unwrap();
        create
            .set(CreateCqIn::CQ_UMEM_OFFSET, 0x1122_3344_5566_7788)
            .set(CreateCqIn::CQ_UMEM_ID, 0xa0b0_c0d0)
            .set(CreateCqIn::CQ_UMEM_VALID, true);
        create
            .nested(CreateCqIn::CQ_CONTEXT)
            .set(Cqc::DBR_UMEM_VALID, true)
            .set(Cqc::CQE_SZ, CqeSize::Bytes128)
            .set(Cqc::OI, true)
            .set(Cqc::DBR_UMEM_ID, 0x0102_0304)
            .set(Cqc::LOG_CQ_SIZE, 7)
            .set(Cqc::UAR_PAGE, 0x00ab_cdef)
            .set(Cqc::DBR_ADDR, 0x40);
        let mut want = [0; CreateCqIn::BYTES];
        want[0] = 0x04;
        want[16..20].copy_from_slice(&[0x02, 0x22, 0, 0]);
        want[20..24].copy_from_slice(&[1, 2, 3, 4]);
        want[28..32].copy_from_slice(&[7, 0xab, 0xcd, 0xef]);
        want[16 + 63] = 0x40;
        want[80..88].copy_from_slice(&[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        want[88..92].copy_from_slice(&[0xa0, 0xb0, 0xc0, 0xd0]);
        want[92] = 0x80;
        assert_eq!(bytes, want);
    }

    #[test]
    fn entry_sizes() {
        assert_eq!((CqeSize::Bytes64.bytes(), CqeSize::Bytes128.bytes()), (64, 128));
    }
}
