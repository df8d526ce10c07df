//! DC targets: CREATE_DCT, DESTROY_DCT, DRAIN_DCT, QUERY_DCT, ARM_DCT_FOR_KEY_VIOLATION
//! (mlx5_ifc.h: `create_dct_*`, `destroy_dct_*`, `drain_dct_*`, `query_dct_*`, `arm_dct_*`,
//! `dctc`).

use super::qp::{AtomicMode, Mtu};
use super::{StatusOut, requests};
use crate::prm::{Field, Layout, Nested, field_enum, layouts};

field_enum! {
    /// Whether a target takes connections (mlx5_ifc.h: `MLX5_DCTC_STATE_*`).
    DctState: u8, "DCT state" {
        /// It does.
        Active = 0x0, "active";
        /// It accepts no new connections, and waits for the others to end.
        Draining = 0x1, "draining";
        /// All have ended.
        Drained = 0x2, "drained";
    }
}

layouts! {
    /// Creates a target.
    CreateDctIn: 128, "create_dct_in";
    /// Names the new target.
    CreateDctOut: 16, "create_dct_out";
    /// Destroys a target.
    DestroyDctIn: 16, "destroy_dct_in";
    /// Makes a target refuse new connections; an event reports the end of the last one.
    DrainDctIn: 16, "drain_dct_in";
    /// Queries a target's context.
    QueryDctIn: 16, "query_dct_in";
    /// The context.
    QueryDctOut: 128, "query_dct_out";
    /// Requests an event of the next request with a wrong access key.
    ArmDctIn: 16, "arm_dct_in";
    /// Context of a DC target.
    Dctc: 112, "dctc";
}

requests! {
    CreateDctIn => CreateDct, CreateDctOut;
    DestroyDctIn => DestroyDct, StatusOut;
    DrainDctIn => DrainDct, StatusOut;
    QueryDctIn => QueryDct, QueryDctOut;
    ArmDctIn => ArmDctForKeyViolation, StatusOut;
}

impl CreateDctIn {
    /// The target's context.
    pub const DCT_CONTEXT_ENTRY: Nested<Self, Dctc> = Nested::new(0x80);
}

impl CreateDctOut {
    /// The new target's number.
    pub const DCTN: Field<Self> = Field::new(0x48, 24);
    /// The [`Enhancements`](super::qp::Enhancements) that the device supports of those requested.
    pub const ECE: Field<Self> = Field::new(0x60, 32);
}

impl DestroyDctIn {
    /// The target.
    pub const DCTN: Field<Self> = Field::new(0x48, 24);
}

impl DrainDctIn {
    /// The target.
    pub const DCTN: Field<Self> = Field::new(0x48, 24);
}

impl QueryDctIn {
    /// The target.
    pub const DCTN: Field<Self> = Field::new(0x48, 24);
}

impl QueryDctOut {
    /// The target's context.
    pub const DCT_CONTEXT_ENTRY: Nested<Self, Dctc> = Nested::new(0x80);
}

impl ArmDctIn {
    /// The target.
    pub const DCT_NUMBER: Field<Self> = Field::new(0x48, 24);
}

impl Dctc {
    /// Whether it takes connections; written by the device only.
    pub const STATE: Field<Self, DctState> = Field::new(0x4, 4);
    /// A number that the user chooses; CQEs carry it.
    pub const USER_INDEX: Field<Self> = Field::new(0x28, 24);
    /// The completion queue of what arrives.
    pub const CQN: Field<Self> = Field::new(0x48, 24);
    /// The counter set.
    pub const COUNTER_SET_ID: Field<Self, u8> = Field::new(0x60, 8);
    /// Atomics that it accepts.
    pub const ATOMIC_MODE: Field<Self, AtomicMode> = Field::new(0x68, 4);
    /// Accepts RDMA reads.
    pub const RRE: Field<Self, bool> = Field::new(0x6c, 1);
    /// It takes RDMA writes.
    pub const RWE: Field<Self, bool> = Field::new(0x6d, 1);
    /// Accepts atomics.
    pub const RAE: Field<Self, bool> = Field::new(0x6e, 1);
    /// Accepts no request before its initiator has the acceptance of the connection.
    pub const FORCE_FULL_HANDSHAKE: Field<Self, bool> = Field::new(0x72, 1);
    /// Scatter small received messages into the CQE: 0 for no, 2 for up to 64 bytes.
    pub const CS_RES: Field<Self, u8> = Field::new(0x88, 8);
    /// The pause that the target requests when it has no receive WQE: a code of IBTA's RNR timer
    /// table.
    pub const MIN_RNR_NAK: Field<Self, u8> = Field::new(0x93, 5);
    /// The shared receive queue.
    pub const SRQN_XRQN: Field<Self> = Field::new(0xa8, 24);
    /// The protection domain.
    pub const PD: Field<Self> = Field::new(0xc8, 24);
    /// Traffic class.
    pub const TCLASS: Field<Self, u8> = Field::new(0xe0, 8);
    /// Flow label.
    pub const FLOW_LABEL: Field<Self> = Field::new(0xec, 20);
    /// The key that an initiator must send.
    pub const DC_ACCESS_KEY: Field<Self, u64> = Field::new(0x100, 64);
    /// Path MTU.
    pub const MTU: Field<Self, Mtu> = Field::new(0x145, 3);
    /// The port, from 1; 0 for any.
    pub const PORT: Field<Self, u8> = Field::new(0x148, 8);
    /// Index into the partition key table.
    pub const PKEY_INDEX: Field<Self, u16> = Field::new(0x150, 16);
    /// Index of the own GID.
    pub const MY_ADDR_INDEX: Field<Self, u8> = Field::new(0x168, 8);
    /// Hop limit, or time to live.
    pub const HOP_LIMIT: Field<Self, u8> = Field::new(0x178, 8);
    /// Requests that had a wrong access key.
    pub const DC_ACCESS_KEY_VIOLATION_COUNT: Field<Self> = Field::new(0x180, 32);
    /// Ethernet priority of the packets that the target sends.
    pub const ETH_PRIO: Field<Self, u8> = Field::new(0x1b5, 3);
    /// DSCP of these packets. On RoCE v2 it counts instead of [`Self::TCLASS`].
    pub const DSCP: Field<Self, u8> = Field::new(0x1ba, 6);
    /// The [`Enhancements`](super::qp::Enhancements) of its connections.
    pub const ECE: Field<Self> = Field::new(0x200, 32);
}

const _: () = assert!(CreateDctIn::BYTES == 0x400 / 8 && Dctc::BYTES == 0x380 / 8);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::request;

    #[test]
    fn create_dct_byte_for_byte() {
        let mut bytes = [0; CreateDctIn::BYTES];
        let mut create = request::<CreateDctIn>(&mut bytes).unwrap();
        create
            .nested(CreateDctIn::DCT_CONTEXT_ENTRY)
            .set(Dctc::USER_INDEX, 0x01_0203)
            .set(Dctc::CQN, 0x11)
            .set(Dctc::COUNTER_SET_ID, 3)
            .set(Dctc::ATOMIC_MODE, AtomicMode::UpTo8)
            .set(Dctc::RRE, true)
            .set(Dctc::RAE, true)
            .set(Dctc::CS_RES, 2)
            .set(Dctc::MIN_RNR_NAK, 12)
            .set(Dctc::SRQN_XRQN, 0x12)
            .set(Dctc::PD, 0x13)
            .set(Dctc::TCLASS, 0x14)
            .set(Dctc::DC_ACCESS_KEY, 0x2122_2324_2526_2728)
            .set(Dctc::MTU, Mtu::Bytes4096)
            .set(Dctc::PORT, 1)
            .set(Dctc::PKEY_INDEX, 0x15)
            .set(Dctc::MY_ADDR_INDEX, 0x16)
            .set(Dctc::HOP_LIMIT, 64);
        let mut want = [0; CreateDctIn::BYTES];
        want[..2].copy_from_slice(&[0x07, 0x10]);
        let context = &mut want[16..];
        context[5..8].copy_from_slice(&[1, 2, 3]);
        (context[11], context[12], context[13]) = (0x11, 3, 0x3a);
        (context[17], context[18], context[23], context[27], context[28]) =
            (2, 12, 0x12, 0x13, 0x14);
        context[32..40].copy_from_slice(&[0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28]);
        (context[40], context[41], context[43], context[45], context[47]) = (5, 1, 0x15, 0x16, 64);
        assert_eq!(bytes, want);
    }
}
