//! Domains and shared receive queues of extended reliable connections, of tests.

use barewire_hca::UmemAccess;
use barewire_layouts::command::answer;
use barewire_layouts::command::qp::{Qpc, ReceiveQueueType, ServiceType};
use barewire_layouts::command::xrc::{
    ARM_XRC_SRQ, AllocXrcdIn, AllocXrcdOut, ArmXrcSrqIn, CreateXrcSrqIn, CreateXrcSrqOut,
    DeallocXrcdIn, DestroyXrcSrqIn, XrcSrqc,
};
use barewire_layouts::prm::ViewMut;

use super::srq::{STRIDE, wqe};
use super::{Cq, LOG_CQ, Memory, Node, Qp, command};

pub struct Domain {
    node: Node,
    pub number: u32,
}

impl Domain {
    pub fn new(node: &Node) -> Self {
        let output = command::<AllocXrcdIn>(&node.device, |_| ()).unwrap();
        let number = answer::<AllocXrcdIn>(&output).unwrap().get(AllocXrcdOut::XRCD);
        Self { node: node.clone(), number }
    }

    /// A queue pair of the domain: one that sends, or one without queues.
    pub fn queue_pair(&self, sends: bool) -> Qp {
        self.queue_pair_in(self.node.pd, sends)
    }

    /// The same in a protection domain of its own.
    pub fn queue_pair_in(&self, pd: u32, sends: bool) -> Qp {
        let (send_cq, receive_cq) = (Cq::new(&self.node, LOG_CQ), Cq::new(&self.node, 2));
        let mut qp = Qp::with(&self.node, send_cq, receive_cq, |context| {
            context
                .set(Qpc::ST, ServiceType::Xrc)
                .set(Qpc::RQ_TYPE, ReceiveQueueType::Zero)
                .set(Qpc::XRCD, self.number)
                .set(Qpc::PD, pd)
                .set(Qpc::NO_SQ, !sends);
        });
        qp.without_receive_ring();
        qp
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let freed = command::<DeallocXrcdIn>(&self.node.device, |dealloc| {
            dealloc.set(DeallocXrcdIn::XRCD, self.number);
        });
        assert!(freed.is_ok() || std::thread::panicking(), "{freed:?}");
    }
}

/// A shared receive queue with a completion queue of its own; WQEs hold up to three segments.
pub struct XrcSrq {
    node: Node,
    pub number: u32,
    pub cq: Cq,
    memory: Memory,
    entries: usize,
    cyclic: bool,
    posted: u16,
    destroyed: bool,
}

impl XrcSrq {
    pub fn new(domain: &Domain, log_size: u8, user_index: u32, cyclic: bool) -> Self {
        let node = &domain.node;
        let cq = Cq::new(node, LOG_CQ);
        let entries = 1 << log_size;
        let memory = Memory::register(&node.device, entries * STRIDE + 64, UmemAccess::LOCAL_WRITE);
        let output = command::<CreateXrcSrqIn>(&node.device, |create| {
            create
                .set(CreateXrcSrqIn::XRC_SRQ_UMEM_VALID, true)
                .set(CreateXrcSrqIn::XRC_SRQ_UMEM_ID, memory.umem());
            let mut context: ViewMut<'_, XrcSrqc> =
                create.nested(CreateXrcSrqIn::XRC_SRQ_CONTEXT_ENTRY);
            context
                .set(XrcSrqc::LOG_XRC_SRQ_SIZE, log_size)
                .set(XrcSrqc::BASIC_CYCLIC_RCV_WQE, cyclic)
                .set(XrcSrqc::LOG_RQ_STRIDE, 2)
                .set(XrcSrqc::XRCD, domain.number)
                .set(XrcSrqc::DBR_UMEM_VALID, true)
                .set(XrcSrqc::CQN, cq.number)
                .set(XrcSrqc::DBR_UMEM_ID, memory.umem())
                .set(XrcSrqc::USER_INDEX, user_index)
                .set(XrcSrqc::PD, node.pd)
                .set(XrcSrqc::DBR_ADDR, (entries * STRIDE) as u64);
        });
        let number =
            answer::<CreateXrcSrqIn>(&output.unwrap()).unwrap().get(CreateXrcSrqOut::XRC_SRQN);
        Self {
            node: node.clone(),
            number,
            cq,
            memory,
            entries,
            cyclic,
            posted: 0,
            destroyed: false,
        }
    }

    pub fn post(&mut self, segments: &[(u64, usize, u32)]) {
        let index = usize::from(self.posted);
        let next = ((index + 1) % self.entries) as u16;
        let bytes = wqe((!self.cyclic).then_some(next), segments);
        self.memory.write(index % self.entries * STRIDE, &bytes);
        self.posted = self.posted.wrapping_add(1);
        self.memory.store_be32(self.entries * STRIDE, u32::from(self.posted));
    }

    pub fn arm(&self, limit: u16) {
        command::<ArmXrcSrqIn>(&self.node.device, |arm| {
            arm.set(ArmXrcSrqIn::OP_MOD, ARM_XRC_SRQ)
                .set(ArmXrcSrqIn::XRC_SRQN, self.number)
                .set(ArmXrcSrqIn::LWM, limit);
        })
        .unwrap();
    }

    pub fn destroy(&mut self) {
        self.destroyed = true;
        command::<DestroyXrcSrqIn>(&self.node.device, |destroy| {
            destroy.set(DestroyXrcSrqIn::XRC_SRQN, self.number);
        })
        .unwrap();
    }
}

impl Drop for XrcSrq {
    fn drop(&mut self) {
        if !self.destroyed && !std::thread::panicking() {
            self.destroy();
        }
    }
}
