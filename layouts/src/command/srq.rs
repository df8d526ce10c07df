//! Shared receive queues: CREATE_SRQ, QUERY_SRQ, DESTROY_SRQ, ARM_RQ (mlx5_ifc.h: `create_srq_*`,
//! `query_srq_*`, `destroy_srq_*`, `arm_rq_*`, `srqc`). They are linked lists; [`super::rmp`] is
//! the newer form.
//!
//! `SRQ_UMEM_*` and `DBR_UMEM_*` have the offsets of CREATE_XRC_SRQ, which has the same layout.

use super::{StatusOut, requests};
use crate::prm::{Field, Layout, Nested, field_enum, layouts};

field_enum! {
    /// State of a shared receive queue (mlx5_ifc.h: `MLX5_SRQC_STATE_*`).
    SrqState: u8, "SRQ state" {
        /// It provides WQEs.
        Good = 0x0, "good";
        /// It provides none.
        Failed = 0x1, "error";
    }
}

field_enum! {
    /// What ARM_RQ arms: its `op_mod` (mlx5_ifc.h: `MLX5_ARM_RQ_IN_OP_MOD_*`).
    ArmRqKind: u16, "ARM_RQ op_mod" {
        /// A shared receive queue.
        Srq = 1, "SRQ";
        /// One with tag matching.
        Xrq = 2, "XRQ";
    }
}

layouts! {
    /// Creates a shared receive queue. A list of page addresses may follow where no umem is given.
    CreateSrqIn: 272, "create_srq_in";
    /// Names the new queue.
    CreateSrqOut: 16, "create_srq_out";
    /// Queries a queue's context.
    QuerySrqIn: 16, "query_srq_in";
    /// The context.
    QuerySrqOut: 272, "query_srq_out";
    /// Destroys a queue.
    DestroySrqIn: 16, "destroy_srq_in";
    /// Sets the limit below which an event is sent, once.
    ArmRqIn: 16, "arm_rq_in";
    /// Shared receive queue context.
    Srqc: 64, "srqc";
}

requests! {
    CreateSrqIn => CreateSrq, CreateSrqOut;
    QuerySrqIn => QuerySrq, QuerySrqOut;
    DestroySrqIn => DestroySrq, StatusOut;
    ArmRqIn => ArmRq, StatusOut;
}

impl CreateSrqIn {
    /// The queue's context.
    pub const SRQ_CONTEXT_ENTRY: Nested<Self, Srqc> = Nested::new(0x80);
    /// Where the ring starts in its umem, bytes.
    pub const SRQ_UMEM_OFFSET: Field<Self, u64> = Field::new(0x280, 64);
    /// The umem that holds the ring.
    pub const SRQ_UMEM_ID: Field<Self> = Field::new(0x2c0, 32);
    /// The ring is in a umem.
    pub const SRQ_UMEM_VALID: Field<Self, bool> = Field::new(0x2e0, 1);
}

impl CreateSrqOut {
    /// The new queue's number.
    pub const SRQN: Field<Self> = Field::new(0x48, 24);
}

impl QuerySrqIn {
    /// The queue.
    pub const SRQN: Field<Self> = Field::new(0x48, 24);
}

impl QuerySrqOut {
    /// The queue's context.
    pub const SRQ_CONTEXT_ENTRY: Nested<Self, Srqc> = Nested::new(0x80);
}

impl DestroySrqIn {
    /// The queue.
    pub const SRQN: Field<Self> = Field::new(0x48, 24);
}

impl ArmRqIn {
    /// [`ArmRqKind`].
    pub const OP_MOD: Field<Self, ArmRqKind> = Field::new(0x30, 16);
    /// The queue.
    pub const SRQ_NUMBER: Field<Self> = Field::new(0x48, 24);
    /// The limit; 0 for none.
    pub const LWM: Field<Self, u16> = Field::new(0x70, 16);
}

impl Srqc {
    /// The state.
    pub const STATE: Field<Self, SrqState> = Field::new(0x0, 4);
    /// log2 of the number of WQEs.
    pub const LOG_SRQ_SIZE: Field<Self, u8> = Field::new(0x4, 4);
    /// WQEs carry a signature.
    pub const WQ_SIGNATURE: Field<Self, bool> = Field::new(0x20, 1);
    /// A WQE has `16 << value` bytes.
    pub const LOG_RQ_STRIDE: Field<Self, u8> = Field::new(0x25, 3);
    /// The doorbell record is in a umem.
    pub const DBR_UMEM_VALID: Field<Self, bool> = Field::new(0x47, 1);
    /// The umem that holds the doorbell record.
    pub const DBR_UMEM_ID: Field<Self> = Field::new(0x60, 32);
    /// The protection domain of the WQEs' buffers.
    pub const PD: Field<Self> = Field::new(0xc8, 24);
    /// Low water mark: the limit below which an event is sent.
    pub const LWM: Field<Self, u16> = Field::new(0xe0, 16);
    /// WQEs posted and not yet consumed.
    pub const WQE_CNT: Field<Self, u16> = Field::new(0xf0, 16);
    /// Offset of the doorbell record in its umem, bytes.
    pub const DBR_ADDR: Field<Self, u64> = Field::new(0x140, 64);
}

const _: () = assert!(CreateSrqIn::BYTES == 0x880 / 8 && Srqc::BYTES == 0x200 / 8);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::request;

    #[test]
    fn create_srq_byte_for_byte() {
        let mut bytes = [0; CreateSrqIn::BYTES];
        let mut create = request::<CreateSrqIn>(&mut bytes).unwrap();
        create.set(CreateSrqIn::SRQ_UMEM_ID, 4).set(CreateSrqIn::SRQ_UMEM_VALID, true);
        create
            .nested(CreateSrqIn::SRQ_CONTEXT_ENTRY)
            .set(Srqc::LOG_SRQ_SIZE, 6)
            .set(Srqc::LOG_RQ_STRIDE, 2)
            .set(Srqc::DBR_UMEM_ID, 5)
            .set(Srqc::PD, 0x01_0203)
            .set(Srqc::LWM, 7)
            .set(Srqc::DBR_ADDR, 0x80);
        let mut want = [0; CreateSrqIn::BYTES];
        want[0] = 0x07;
        (want[16], want[20], want[31]) = (0x06, 0x02, 5);
        want[41..44].copy_from_slice(&[1, 2, 3]);
        (want[45], want[63]) = (7, 0x80);
        (want[91], want[92]) = (4, 0x80);
        assert_eq!(bytes, want);
    }
}
