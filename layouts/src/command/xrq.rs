//! Shared receive queues with tag matching (XRQs): CREATE_XRQ, QUERY_XRQ, DESTROY_XRQ, ARM_XRQ
//! (mlx5_ifc.h: `create_xrq_*`, `query_xrq_*`, `destroy_xrq_*`, `xrqc`,
//! `tag_matching_topology_context`).

use super::rmp::Wq;
use super::srq::SrqState;
use super::{StatusOut, requests};
use crate::prm::{Field, Layout, Nested, field_enum, layouts};

field_enum! {
    /// What the queue does with messages (mlx5_ifc.h: `MLX5_XRQC_TOPOLOGY_*`).
    XrqTopology: u8, "XRQ topology" {
        /// It is a plain shared receive queue.
        None = 0x0, "none";
        /// It matches tags.
        TagMatching = 0x1, "tag matching";
    }
}

field_enum! {
    /// The protocol that the device executes for matched messages (mlx5_ifc.h:
    /// `MLX5_XRQC_OFFLOAD_*`; also `MLX5_QPC_OFFLOAD_TYPE_*`).
    XrqOffload: u8, "XRQ offload" {
        /// None.
        None = 0x0, "none";
        /// Rendezvous: it reads the message from the sender.
        Rendezvous = 0x1, "rendezvous";
    }
}

layouts! {
    /// Creates a queue. A list of page addresses may follow where no umem is given.
    CreateXrqIn: 336, "create_xrq_in";
    /// Names the new queue.
    CreateXrqOut: 16, "create_xrq_out";
    /// Queries a queue's context.
    QueryXrqIn: 16, "query_xrq_in";
    /// The context.
    QueryXrqOut: 336, "query_xrq_out";
    /// Destroys a queue.
    DestroyXrqIn: 16, "destroy_xrq_in";
    /// Sets the limit below which an event is sent, once. The kernel uses ARM_RQ for it.
    ArmXrqIn: 16, "arm_xrq_in";
    /// XRQ context.
    Xrqc: 320, "xrqc";
    /// State of the tag matching list.
    TagMatchingContext: 16, "tag_matching_topology_context";
}

requests! {
    CreateXrqIn => CreateXrq, CreateXrqOut;
    QueryXrqIn => QueryXrq, QueryXrqOut;
    DestroyXrqIn => DestroyXrq, StatusOut;
    ArmXrqIn => ArmXrq, StatusOut;
}

impl CreateXrqIn {
    /// The queue's context.
    pub const XRQ_CONTEXT: Nested<Self, Xrqc> = Nested::new(0x80);
}

impl CreateXrqOut {
    /// The new queue's number.
    pub const XRQN: Field<Self> = Field::new(0x48, 24);
}

impl QueryXrqIn {
    /// The queue.
    pub const XRQN: Field<Self> = Field::new(0x48, 24);
}

impl QueryXrqOut {
    /// The queue's context.
    pub const XRQ_CONTEXT: Nested<Self, Xrqc> = Nested::new(0x80);
}

impl DestroyXrqIn {
    /// The queue.
    pub const XRQN: Field<Self> = Field::new(0x48, 24);
}

impl ArmXrqIn {
    /// The queue.
    pub const XRQN: Field<Self> = Field::new(0x48, 24);
    /// The limit; 0 for none.
    pub const LWM: Field<Self, u16> = Field::new(0x70, 16);
}

impl Xrqc {
    /// Whether it works.
    pub const STATE: Field<Self, SrqState> = Field::new(0x0, 4);
    /// Buffers are named by the reserved key.
    pub const RLKEY: Field<Self, bool> = Field::new(0x4, 1);
    /// What the queue does with messages.
    pub const TOPOLOGY: Field<Self, XrqTopology> = Field::new(0x14, 4);
    /// The protocol that the device executes.
    pub const OFFLOAD: Field<Self, XrqOffload> = Field::new(0x1c, 4);
    /// User index, for CQEs.
    pub const USER_INDEX: Field<Self> = Field::new(0x28, 24);
    /// The completion queue of received messages and of list operations.
    pub const CQN: Field<Self> = Field::new(0x48, 24);
    /// Targets of dynamic connections use it.
    pub const DC: Field<Self, bool> = Field::new(0x7f, 1);
    /// State of the tag matching list.
    pub const TAG_MATCHING_TOPOLOGY_CONTEXT: Nested<Self, TagMatchingContext> = Nested::new(0x100);
    /// The queue of buffers for messages without a match.
    pub const WQ: Nested<Self, Wq> = Nested::new(0x400);
}

impl TagMatchingContext {
    /// log2 of the number of entries.
    pub const LOG_MATCHING_LIST_SZ: Field<Self, u8> = Field::new(0x0, 4);
    /// The entry that the next append fills.
    pub const APPEND_NEXT_INDEX: Field<Self, u16> = Field::new(0x10, 16);
    /// Unexpected messages that software has processed, modulo 2^16.
    pub const SW_PHASE_CNT: Field<Self, u16> = Field::new(0x20, 16);
    /// Unexpected messages that the device has received, modulo 2^16.
    pub const HW_PHASE_CNT: Field<Self, u16> = Field::new(0x30, 16);
}

const _: () = assert!(Xrqc::BYTES == 0x400 / 8 + Wq::BYTES);
const _: () = assert!(CreateXrqIn::BYTES == 0x80 / 8 + Xrqc::BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::request;
    use crate::command::rmp::WqType;

    #[test]
    fn create_xrq_byte_for_byte() {
        let mut bytes = [0; CreateXrqIn::BYTES];
        let mut create = request::<CreateXrqIn>(&mut bytes).unwrap();
        let mut context = create.nested(CreateXrqIn::XRQ_CONTEXT);
        context
            .set(Xrqc::TOPOLOGY, XrqTopology::TagMatching)
            .set(Xrqc::OFFLOAD, XrqOffload::Rendezvous)
            .set(Xrqc::USER_INDEX, 0x01_0203)
            .set(Xrqc::CQN, 0x04_0506)
            .set(Xrqc::DC, true);
        context
            .nested(Xrqc::TAG_MATCHING_TOPOLOGY_CONTEXT)
            .set(TagMatchingContext::LOG_MATCHING_LIST_SZ, 11)
            .set(TagMatchingContext::APPEND_NEXT_INDEX, 0x0708)
            .set(TagMatchingContext::SW_PHASE_CNT, 0x090a)
            .set(TagMatchingContext::HW_PHASE_CNT, 0x0b0c);
        context.nested(Xrqc::WQ).set(Wq::WQ_TYPE, WqType::Cyclic);
        let mut want = [0; CreateXrqIn::BYTES];
        want[..2].copy_from_slice(&[0x07, 0x17]);
        let context = &mut want[16..];
        (context[2], context[3]) = (0x01, 0x01);
        context[5..8].copy_from_slice(&[1, 2, 3]);
        context[9..12].copy_from_slice(&[4, 5, 6]);
        context[15] = 1;
        context[32..40].copy_from_slice(&[0xb0, 0, 7, 8, 9, 10, 11, 12]);
        context[128] = 0x10;
        assert_eq!(bytes, want);
    }
}
