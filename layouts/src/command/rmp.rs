//! Receive memory pools, receive queues that many queue pairs share: CREATE_RMP, MODIFY_RMP,
//! QUERY_RMP, DESTROY_RMP (mlx5_ifc.h: `create_rmp_*`, `modify_rmp_*`, `query_rmp_*`,
//! `destroy_rmp_*`, `rmpc`, `wq`).

use super::{StatusOut, requests};
use crate::prm::{Field, Layout, Nested, field_enum, layouts};

field_enum! {
    /// Whether a pool works (mlx5_ifc.h: `MLX5_RMPC_STATE_*`).
    RmpState: u8, "RMP state" {
        /// It provides WQEs.
        Ready = 0x1, "ready";
        /// It provides none.
        Failed = 0x3, "error";
    }
}

field_enum! {
    /// How the device finds the next WQE of a queue (mlx5_ifc.h: `MLX5_WQ_TYPE_*`).
    WqType: u8, "WQ type" {
        /// Each WQE names the next one.
        LinkedList = 0x0, "linked list";
        /// In the order of the ring.
        Cyclic = 0x1, "cyclic";
        /// A linked list of WQEs of many strides.
        LinkedListStriding = 0x2, "linked list striding";
        /// A ring of WQEs of many strides.
        CyclicStriding = 0x3, "cyclic striding";
    }
}

layouts! {
    /// Creates a pool. A list of page addresses may follow where no umem is given.
    CreateRmpIn: 272, "create_rmp_in";
    /// Names the new pool.
    CreateRmpOut: 16, "create_rmp_out";
    /// Changes a pool's limit or state.
    ModifyRmpIn: 272, "modify_rmp_in";
    /// Queries a pool's context.
    QueryRmpIn: 16, "query_rmp_in";
    /// The output of the query: the pool's context.
    QueryRmpOut: 272, "query_rmp_out";
    /// Destroys a pool.
    DestroyRmpIn: 16, "destroy_rmp_in";
    /// Receive memory pool context.
    Rmpc: 240, "rmpc";
    /// Work queue.
    Wq: 192, "wq";
}

requests! {
    CreateRmpIn => CreateRmp, CreateRmpOut;
    ModifyRmpIn => ModifyRmp, StatusOut;
    QueryRmpIn => QueryRmp, QueryRmpOut;
    DestroyRmpIn => DestroyRmp, StatusOut;
}

impl CreateRmpIn {
    /// The pool's context.
    pub const CTX: Nested<Self, Rmpc> = Nested::new(0x100);
}

impl CreateRmpOut {
    /// The new pool's number.
    pub const RMPN: Field<Self> = Field::new(0x48, 24);
}

impl ModifyRmpIn {
    /// The state that the pool is in.
    pub const RMP_STATE: Field<Self, RmpState> = Field::new(0x40, 4);
    /// The pool.
    pub const RMPN: Field<Self> = Field::new(0x48, 24);
    /// The limit is meant (`rmp_bitmask.lwm`).
    pub const BITMASK_LWM: Field<Self, bool> = Field::new(0xbf, 1);
    /// The new state and values.
    pub const CTX: Nested<Self, Rmpc> = Nested::new(0x100);
}

impl QueryRmpIn {
    /// The pool.
    pub const RMPN: Field<Self> = Field::new(0x48, 24);
}

impl QueryRmpOut {
    /// The pool's context.
    pub const RMP_CONTEXT: Nested<Self, Rmpc> = Nested::new(0x100);
}

impl DestroyRmpIn {
    /// The pool.
    pub const RMPN: Field<Self> = Field::new(0x48, 24);
}

impl Rmpc {
    /// Whether it works.
    pub const STATE: Field<Self, RmpState> = Field::new(0x8, 4);
    /// WQEs of a cyclic queue have no header before their segments.
    pub const BASIC_CYCLIC_RCV_WQE: Field<Self, bool> = Field::new(0x20, 1);
    /// Its queue.
    pub const WQ: Nested<Self, Wq> = Nested::new(0x180);
}

impl Wq {
    /// How the device finds the next WQE.
    pub const WQ_TYPE: Field<Self, WqType> = Field::new(0x0, 4);
    /// WQEs carry a signature.
    pub const WQ_SIGNATURE: Field<Self, bool> = Field::new(0x4, 1);
    /// Low water mark: the limit below which an event is sent.
    pub const LWM: Field<Self, u16> = Field::new(0x30, 16);
    /// The protection domain of the WQEs' buffers.
    pub const PD: Field<Self> = Field::new(0x48, 24);
    /// Offset of the doorbell record in its umem, bytes.
    pub const DBR_ADDR: Field<Self, u64> = Field::new(0x80, 64);
    /// WQEs consumed by the device.
    pub const HW_COUNTER: Field<Self> = Field::new(0xc0, 32);
    /// WQEs that software posted.
    pub const SW_COUNTER: Field<Self> = Field::new(0xe0, 32);
    /// log2 of the bytes of a WQE.
    pub const LOG_WQ_STRIDE: Field<Self, u8> = Field::new(0x10c, 4);
    /// log2 of the page size, minus 12.
    pub const LOG_WQ_PG_SZ: Field<Self, u8> = Field::new(0x113, 5);
    /// log2 of the number of WQEs.
    pub const LOG_WQ_SZ: Field<Self, u8> = Field::new(0x11b, 5);
    /// The doorbell record is in a umem.
    pub const DBR_UMEM_VALID: Field<Self, bool> = Field::new(0x120, 1);
    /// The ring is in a umem.
    pub const WQ_UMEM_VALID: Field<Self, bool> = Field::new(0x121, 1);
    /// Strides of a WQE: see [`Strides`](super::strides::Strides).
    pub const LOG_WQE_NUM_OF_STRIDES: Field<Self, u8> = Field::new(0x134, 4);
    /// Data begins two bytes into its stride (Ethernet).
    pub const TWO_BYTE_SHIFT_EN: Field<Self, bool> = Field::new(0x138, 1);
    /// Bytes of a stride: see [`Strides`](super::strides::Strides).
    pub const LOG_WQE_STRIDE_SIZE: Field<Self, u8> = Field::new(0x13d, 3);
    /// The umem that holds the doorbell record.
    pub const DBR_UMEM_ID: Field<Self> = Field::new(0x140, 32);
    /// The umem that holds the ring.
    pub const WQ_UMEM_ID: Field<Self> = Field::new(0x160, 32);
    /// Where the ring starts in its umem, bytes.
    pub const WQ_UMEM_OFFSET: Field<Self, u64> = Field::new(0x180, 64);
}

const _: () = assert!(Wq::BYTES == 0x600 / 8 && CreateRmpIn::BYTES == 0x100 / 8 + Rmpc::BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::request;

    #[test]
    fn create_rmp_byte_for_byte() {
        let mut bytes = [0; CreateRmpIn::BYTES];
        let mut create = request::<CreateRmpIn>(&mut bytes).unwrap();
        let mut context = create.nested(CreateRmpIn::CTX);
        context.set(Rmpc::STATE, RmpState::Ready).set(Rmpc::BASIC_CYCLIC_RCV_WQE, true);
        context
            .nested(Rmpc::WQ)
            .set(Wq::WQ_TYPE, WqType::Cyclic)
            .set(Wq::LWM, 0x0102)
            .set(Wq::PD, 0x03_0405)
            .set(Wq::DBR_ADDR, 0x40)
            .set(Wq::LOG_WQ_STRIDE, 5)
            .set(Wq::LOG_WQ_SZ, 7)
            .set(Wq::DBR_UMEM_VALID, true)
            .set(Wq::WQ_UMEM_VALID, true)
            .set(Wq::DBR_UMEM_ID, 8)
            .set(Wq::WQ_UMEM_ID, 9)
            .set(Wq::WQ_UMEM_OFFSET, 0x1000);
        let mut want = [0; CreateRmpIn::BYTES];
        want[..2].copy_from_slice(&[0x09, 0x0c]);
        (want[33], want[36]) = (0x10, 0x80);
        let wq = &mut want[32 + 48..];
        wq[0] = 0x10;
        wq[6..8].copy_from_slice(&[1, 2]);
        wq[9..12].copy_from_slice(&[3, 4, 5]);
        wq[16 + 7] = 0x40;
        wq[32..36].copy_from_slice(&[0, 5, 0, 7]);
        wq[36] = 0xc0;
        (wq[43], wq[47], wq[48 + 6]) = (8, 9, 0x10);
        assert_eq!(bytes, want);
    }
}
