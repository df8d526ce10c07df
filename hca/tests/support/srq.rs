//! Shared receive queues of tests.

use barewire_hca::UmemAccess;
use barewire_layouts::command::answer;
use barewire_layouts::command::rmp::{
    CreateRmpIn, CreateRmpOut, DestroyRmpIn, ModifyRmpIn, RmpState, Rmpc, Wq, WqType,
};
use barewire_layouts::command::srq::{
    ArmRqIn, ArmRqKind, CreateSrqIn, CreateSrqOut, DestroySrqIn, Srqc,
};
use barewire_layouts::wqe::{DataSegment, SharedReceiveHeader};
use zerocopy::IntoBytes;

use super::{Memory, Node, command};

/// Bytes of a WQE.
pub const STRIDE: usize = 64;
const LOG_STRIDE: u8 = 6;

/// What a queue is made as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// CREATE_SRQ.
    Srq,
    /// CREATE_RMP, a linked list.
    List,
    /// CREATE_RMP, cyclic.
    Cyclic,
    /// CREATE_RMP, cyclic and without headers.
    Basic,
}

/// Returns a receive WQE of [`STRIDE`] bytes or less, with a header that leads to `next`.
pub fn wqe(next: Option<u16>, segments: &[(u64, usize, u32)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(next) = next {
        bytes.extend(SharedReceiveHeader::new(next).as_bytes());
    }
    for &(address, length, lkey) in segments {
        bytes.extend(DataSegment::new(address, length as u32, lkey).as_bytes());
    }
    if bytes.len() < STRIDE {
        bytes.extend(DataSegment::END.as_bytes());
    }
    bytes
}

/// A shared receive queue; WQEs hold up to three segments.
pub struct Srq {
    node: Node,
    pub number: u32,
    shape: Shape,
    memory: Memory,
    entries: usize,
    posted: u16,
}

impl Srq {
    pub fn new(node: &Node, log_size: u8, shape: Shape) -> Self {
        let entries = 1 << log_size;
        let memory = Memory::register(&node.device, entries * STRIDE + 64, UmemAccess::LOCAL_WRITE);
        let record = (entries * STRIDE) as u64;
        let number = if shape == Shape::Srq {
            let output = command::<CreateSrqIn>(&node.device, |create| {
                create
                    .set(CreateSrqIn::SRQ_UMEM_VALID, true)
                    .set(CreateSrqIn::SRQ_UMEM_ID, memory.umem());
                create
                    .nested(CreateSrqIn::SRQ_CONTEXT_ENTRY)
                    .set(Srqc::LOG_SRQ_SIZE, log_size)
                    .set(Srqc::LOG_RQ_STRIDE, LOG_STRIDE - 4)
                    .set(Srqc::PD, node.pd)
                    .set(Srqc::DBR_UMEM_VALID, true)
                    .set(Srqc::DBR_UMEM_ID, memory.umem())
                    .set(Srqc::DBR_ADDR, record);
            });
            answer::<CreateSrqIn>(&output.unwrap()).unwrap().get(CreateSrqOut::SRQN)
        } else {
            let output = command::<CreateRmpIn>(&node.device, |create| {
                let mut context = create.nested(CreateRmpIn::CTX);
                context
                    .set(Rmpc::STATE, RmpState::Ready)
                    .set(Rmpc::BASIC_CYCLIC_RCV_WQE, shape == Shape::Basic);
                let order = if shape == Shape::List { WqType::LinkedList } else { WqType::Cyclic };
                context
                    .nested(Rmpc::WQ)
                    .set(Wq::WQ_TYPE, order)
                    .set(Wq::PD, node.pd)
                    .set(Wq::DBR_ADDR, record)
                    .set(Wq::LOG_WQ_STRIDE, LOG_STRIDE)
                    .set(Wq::LOG_WQ_SZ, log_size)
                    .set(Wq::DBR_UMEM_VALID, true)
                    .set(Wq::WQ_UMEM_VALID, true)
                    .set(Wq::DBR_UMEM_ID, memory.umem())
                    .set(Wq::WQ_UMEM_ID, memory.umem());
            });
            answer::<CreateRmpIn>(&output.unwrap()).unwrap().get(CreateRmpOut::RMPN)
        };
        Self { node: node.clone(), number, shape, memory, entries, posted: 0 }
    }

    /// Writes a WQE at `index` that leads to `next`, and posts one more.
    pub fn post_at(&mut self, index: usize, next: u16, segments: &[(u64, usize, u32)]) {
        let bytes = wqe((self.shape != Shape::Basic).then_some(next), segments);
        self.memory.write(index % self.entries * STRIDE, &bytes);
        self.posted = self.posted.wrapping_add(1);
        self.memory.store_be32(self.entries * STRIDE, u32::from(self.posted));
    }

    /// Posts in the order of the ring.
    pub fn post(&mut self, segments: &[(u64, usize, u32)]) {
        let index = usize::from(self.posted);
        self.post_at(index, ((index + 1) % self.entries) as u16, segments);
    }

    pub fn arm(&self, limit: u16) {
        if self.shape == Shape::Srq {
            command::<ArmRqIn>(&self.node.device, |arm| {
                arm.set(ArmRqIn::OP_MOD, ArmRqKind::Srq)
                    .set(ArmRqIn::SRQ_NUMBER, self.number)
                    .set(ArmRqIn::LWM, limit);
            })
            .unwrap();
        } else {
            command::<ModifyRmpIn>(&self.node.device, |modify| {
                modify
                    .set(ModifyRmpIn::RMP_STATE, RmpState::Ready)
                    .set(ModifyRmpIn::RMPN, self.number)
                    .set(ModifyRmpIn::BITMASK_LWM, true);
                let mut context = modify.nested(ModifyRmpIn::CTX);
                context.set(Rmpc::STATE, RmpState::Ready);
                context.nested(Rmpc::WQ).set(Wq::LWM, limit);
            })
            .unwrap();
        }
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        let destroyed = if self.shape == Shape::Srq {
            command::<DestroySrqIn>(&self.node.device, |destroy| {
                destroy.set(DestroySrqIn::SRQN, self.number);
            })
        } else {
            command::<DestroyRmpIn>(&self.node.device, |destroy| {
                destroy.set(DestroyRmpIn::RMPN, self.number);
            })
        };
        assert!(destroyed.is_ok() || std::thread::panicking(), "{destroyed:?}");
    }
}
