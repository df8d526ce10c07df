//! Extended reliable connections: their domains, ALLOC_XRCD and DEALLOC_XRCD, and their shared
//! receive queues, CREATE_XRC_SRQ, QUERY_XRC_SRQ, DESTROY_XRC_SRQ, ARM_XRC_SRQ (mlx5_ifc.h:
//! `alloc_xrcd_*`, `dealloc_xrcd_*`, `create_xrc_srq_*`, `query_xrc_srq_*`, `destroy_xrc_srq_*`,
//! `arm_xrc_srq_*`, `xrc_srqc`).

use super::srq::SrqState;
use super::{StatusOut, requests};
use crate::prm::{Field, Layout, Nested, layouts};

layouts! {
    /// Asks for an XRC domain.
    AllocXrcdIn: 16, "alloc_xrcd_in";
    /// Names the new domain.
    AllocXrcdOut: 16, "alloc_xrcd_out";
    /// Deallocates a domain.
    DeallocXrcdIn: 16, "dealloc_xrcd_in";
    /// Creates a shared receive queue. A list of page addresses may follow where no umem is given.
    CreateXrcSrqIn: 272, "create_xrc_srq_in";
    /// Names the new queue.
    CreateXrcSrqOut: 16, "create_xrc_srq_out";
    /// Queries a queue's context.
    QueryXrcSrqIn: 16, "query_xrc_srq_in";
    /// The context.
    QueryXrcSrqOut: 272, "query_xrc_srq_out";
    /// Destroys a queue.
    DestroyXrcSrqIn: 16, "destroy_xrc_srq_in";
    /// Sets the limit below which an event is sent, once.
    ArmXrcSrqIn: 16, "arm_xrc_srq_in";
    /// Context of a shared receive queue of an XRC domain.
    XrcSrqc: 64, "xrc_srqc";
}

requests! {
    AllocXrcdIn => AllocXrcd, AllocXrcdOut;
    DeallocXrcdIn => DeallocXrcd, StatusOut;
    CreateXrcSrqIn => CreateXrcSrq, CreateXrcSrqOut;
    QueryXrcSrqIn => QueryXrcSrq, QueryXrcSrqOut;
    DestroyXrcSrqIn => DestroyXrcSrq, StatusOut;
    ArmXrcSrqIn => ArmXrcSrq, StatusOut;
}

impl AllocXrcdOut {
    /// The new domain's number.
    pub const XRCD: Field<Self> = Field::new(0x48, 24);
}

impl DeallocXrcdIn {
    /// The domain.
    pub const XRCD: Field<Self> = Field::new(0x48, 24);
}

impl CreateXrcSrqIn {
    /// The queue's context.
    pub const XRC_SRQ_CONTEXT_ENTRY: Nested<Self, XrcSrqc> = Nested::new(0x80);
    /// Where the ring starts in its umem, bytes.
    pub const XRC_SRQ_UMEM_OFFSET: Field<Self, u64> = Field::new(0x280, 64);
    /// The umem that holds the ring.
    pub const XRC_SRQ_UMEM_ID: Field<Self> = Field::new(0x2c0, 32);
    /// The ring is in a umem.
    pub const XRC_SRQ_UMEM_VALID: Field<Self, bool> = Field::new(0x2e0, 1);
}

impl CreateXrcSrqOut {
    /// The new queue's number.
    pub const XRC_SRQN: Field<Self> = Field::new(0x48, 24);
}

impl QueryXrcSrqIn {
    /// The queue.
    pub const XRC_SRQN: Field<Self> = Field::new(0x48, 24);
}

impl QueryXrcSrqOut {
    /// The queue's context.
    pub const XRC_SRQ_CONTEXT_ENTRY: Nested<Self, XrcSrqc> = Nested::new(0x80);
}

impl DestroyXrcSrqIn {
    /// The queue.
    pub const XRC_SRQN: Field<Self> = Field::new(0x48, 24);
}

/// The only [`ArmXrcSrqIn::OP_MOD`] (mlx5_ifc.h: `MLX5_ARM_XRC_SRQ_IN_OP_MOD_XRC_SRQ`).
pub const ARM_XRC_SRQ: u16 = 1;

impl ArmXrcSrqIn {
    /// [`ARM_XRC_SRQ`].
    pub const OP_MOD: Field<Self, u16> = Field::new(0x30, 16);
    /// The queue.
    pub const XRC_SRQN: Field<Self> = Field::new(0x48, 24);
    /// The limit; 0 for none.
    pub const LWM: Field<Self, u16> = Field::new(0x70, 16);
}

impl XrcSrqc {
    /// Whether it works.
    pub const STATE: Field<Self, SrqState> = Field::new(0x0, 4);
    /// log2 of the number of WQEs.
    pub const LOG_XRC_SRQ_SIZE: Field<Self, u8> = Field::new(0x4, 4);
    /// WQEs carry a signature.
    pub const WQ_SIGNATURE: Field<Self, bool> = Field::new(0x20, 1);
    /// A cyclic ring, whose WQEs have no header before their segments; otherwise a linked list.
    pub const BASIC_CYCLIC_RCV_WQE: Field<Self, bool> = Field::new(0x24, 1);
    /// A WQE has `16 << value` bytes.
    pub const LOG_RQ_STRIDE: Field<Self, u8> = Field::new(0x25, 3);
    /// The XRC domain.
    pub const XRCD: Field<Self> = Field::new(0x28, 24);
    /// The doorbell record is in a umem.
    pub const DBR_UMEM_VALID: Field<Self, bool> = Field::new(0x47, 1);
    /// The completion queue of what arrives.
    pub const CQN: Field<Self> = Field::new(0x48, 24);
    /// The umem that holds the doorbell record.
    pub const DBR_UMEM_ID: Field<Self> = Field::new(0x60, 32);
    /// CQEs carry the queue's number in the place of the user index.
    pub const USER_INDEX_EQUAL_XRC_SRQN: Field<Self, bool> = Field::new(0x80, 1);
    /// A number that the user chooses; CQEs carry it.
    pub const USER_INDEX: Field<Self> = Field::new(0x88, 24);
    /// The protection domain of the WQEs' buffers.
    pub const PD: Field<Self> = Field::new(0xc8, 24);
    /// Low water mark: the limit below which an event is sent.
    pub const LWM: Field<Self, u16> = Field::new(0xe0, 16);
    /// WQEs posted and not yet consumed.
    pub const WQE_CNT: Field<Self, u16> = Field::new(0xf0, 16);
    /// Offset of the doorbell record in its umem, bytes (`db_record_addr_h` and `_l`).
    pub const DBR_ADDR: Field<Self, u64> = Field::new(0x140, 64);
}

const _: () = assert!(CreateXrcSrqIn::BYTES == 0x880 / 8 && XrcSrqc::BYTES == 0x200 / 8);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::request;

    #[test]
    fn create_xrc_srq_byte_for_byte() {
        let mut bytes = [0; CreateXrcSrqIn::BYTES];
        let mut create = request::<CreateXrcSrqIn>(&mut bytes).unwrap();
        create
            .set(CreateXrcSrqIn::XRC_SRQ_UMEM_ID, 4)
            .set(CreateXrcSrqIn::XRC_SRQ_UMEM_VALID, true);
        create
            .nested(CreateXrcSrqIn::XRC_SRQ_CONTEXT_ENTRY)
            .set(XrcSrqc::LOG_XRC_SRQ_SIZE, 6)
            .set(XrcSrqc::BASIC_CYCLIC_RCV_WQE, true)
            .set(XrcSrqc::LOG_RQ_STRIDE, 2)
            .set(XrcSrqc::XRCD, 0x01_0203)
            .set(XrcSrqc::DBR_UMEM_VALID, true)
            .set(XrcSrqc::CQN, 0x11)
            .set(XrcSrqc::DBR_UMEM_ID, 5)
            .set(XrcSrqc::USER_INDEX_EQUAL_XRC_SRQN, true)
            .set(XrcSrqc::USER_INDEX, 0x12)
            .set(XrcSrqc::PD, 0x13)
            .set(XrcSrqc::LWM, 7)
            .set(XrcSrqc::DBR_ADDR, 0x80);
        let mut want = [0; CreateXrcSrqIn::BYTES];
        want[..2].copy_from_slice(&[0x07, 0x05]);
        let context = &mut want[16..];
        context[0] = 0x06;
        context[4..8].copy_from_slice(&[0x0a, 1, 2, 3]);
        (context[8], context[11], context[15]) = (1, 0x11, 5);
        (context[16], context[19], context[27], context[29], context[47]) =
            (0x80, 0x12, 0x13, 7, 0x80);
        (want[91], want[92]) = (4, 0x80);
        assert_eq!(bytes, want);
    }
}
