//! A shared receive queue with tag matching (XRQ), and a queue pair that uses it, of tests.

use barewire_hca::UmemAccess;
use barewire_layouts::command::answer;
use barewire_layouts::command::qp::{Qpc, ReceiveQueueType};
use barewire_layouts::command::rmp::Wq;
use barewire_layouts::command::xrq::{
    CreateXrqIn, CreateXrqOut, DestroyXrqIn, TagMatchingContext, XrqOffload, XrqTopology, Xrqc,
};
use barewire_layouts::cqe::{Application, Cqe64, CqeOpcode, SOLICITED, TagEvent, TagListResult};
use barewire_layouts::prm::ViewMut;
use barewire_layouts::tag::TagHeader;
use barewire_layouts::wqe::{DataSegment, Opcode, TagFlags, TagSegment};
use zerocopy::{FromBytes, IntoBytes};

use super::srq::{STRIDE, wqe};
use super::{Connection, Cq, LOG_CQ, Memory, Node, Qp, Region, Wqe, command};

/// The user index of the queue.
pub const USER_INDEX: u32 = 0x99;
pub const LOG_LIST: u8 = 3;

/// A completion of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub opcode: CqeOpcode,
    pub kind: Option<TagEvent>,
    pub entry: u16,
    pub length: u32,
    pub immediate: u32,
    pub solicited: bool,
    pub header: TagHeader,
    pub result: TagListResult,
}

pub struct Xrq {
    node: Node,
    pub number: u32,
    pub cq: Cq,
    memory: Memory,
    entries: usize,
    posted: u16,
}

impl Xrq {
    /// A queue of eight WQEs, with `change`s in its context.
    pub fn new(node: &Node, cq: Cq, change: impl FnOnce(&mut ViewMut<'_, Xrqc>)) -> Self {
        const LOG_SIZE: u8 = 3;
        let entries = 1 << LOG_SIZE;
        let memory = Memory::register(&node.device, entries * STRIDE + 64, UmemAccess::LOCAL_WRITE);
        let output = command::<CreateXrqIn>(&node.device, |create| {
            let mut context = create.nested(CreateXrqIn::XRQ_CONTEXT);
            context
                .set(Xrqc::TOPOLOGY, XrqTopology::TagMatching)
                .set(Xrqc::OFFLOAD, XrqOffload::Rendezvous)
                .set(Xrqc::USER_INDEX, USER_INDEX)
                .set(Xrqc::CQN, cq.number);
            context
                .nested(Xrqc::TAG_MATCHING_TOPOLOGY_CONTEXT)
                .set(TagMatchingContext::LOG_MATCHING_LIST_SZ, LOG_LIST);
            context
                .nested(Xrqc::WQ)
                .set(Wq::PD, node.pd)
                .set(Wq::DBR_ADDR, (entries * STRIDE) as u64)
                .set(Wq::LOG_WQ_STRIDE, STRIDE.ilog2() as u8)
                .set(Wq::LOG_WQ_SZ, LOG_SIZE)
                .set(Wq::DBR_UMEM_ID, memory.umem())
                .set(Wq::WQ_UMEM_ID, memory.umem());
            change(&mut context);
        });
        let number = answer::<CreateXrqIn>(&output.unwrap()).unwrap().get(CreateXrqOut::XRQN);
        Self { node: node.clone(), number, cq, memory, entries, posted: 0 }
    }

    /// A queue pair for messages and rendezvous: the device posts to its send queue.
    pub fn queue_pair(&self) -> Qp {
        self.queue_pair_with(|_| ())
    }

    /// One with `change`s in its context.
    pub fn queue_pair_with(&self, change: impl FnOnce(&mut ViewMut<'_, Qpc>)) -> Qp {
        self.using(|context| {
            context.set(Qpc::OFFLOAD_TYPE, XrqOffload::Rendezvous).set(Qpc::NO_SQ, true);
            change(context);
        })
    }

    /// A queue pair for changes of the list, which is connected to itself.
    pub fn list_pair(&self) -> Qp {
        let mut qp = self.using(|_| ());
        qp.connect(&self.node, qp.number, &Connection::default(), (0, 0));
        qp
    }

    fn using(&self, change: impl FnOnce(&mut ViewMut<'_, Qpc>)) -> Qp {
        let (send, receive) = (Cq::new(&self.node, LOG_CQ), Cq::new(&self.node, 2));
        let mut qp = Qp::with(&self.node, send, receive, |context| {
            context
                .set(Qpc::RQ_TYPE, ReceiveQueueType::Shared)
                .set(Qpc::SRQN_RMPN_XRQN, self.number);
            change(context);
        });
        qp.without_receive_ring();
        qp
    }

    pub fn post(&mut self, segments: &[(u64, usize, u32)]) {
        let index = usize::from(self.posted);
        let next = ((index + 1) % self.entries) as u16;
        let bytes = wqe(Some(next), segments);
        self.memory.write(index % self.entries * STRIDE, &bytes);
        self.posted = self.posted.wrapping_add(1);
        self.memory.store_be32(self.entries * STRIDE, u32::from(self.posted));
    }

    /// Posts the WQE at `index` of a ring of WQEs of `bytes` bytes.
    pub fn post_long(&mut self, index: usize, bytes: usize, segments: &[(u64, usize, u32)]) {
        self.memory.write(index * bytes, &wqe(Some(index as u16 + 1), segments));
        self.posted = self.posted.wrapping_add(1);
        self.memory.store_be32(self.entries * STRIDE, u32::from(self.posted));
    }

    pub fn poll(&mut self) -> Option<Event> {
        let completion = self.cq.poll()?;
        assert_eq!(completion.user_index, USER_INDEX);
        let bytes = &self.cq.last[self.cq.last.len() - size_of::<Cqe64>()..];
        let cqe = Cqe64::read_from_bytes(bytes).unwrap();
        let application = Application::read_from_bytes(cqe.application.as_bytes()).unwrap();
        assert_eq!(application.kind, Application::TAG_MATCHING);
        Some(Event {
            opcode: completion.opcode,
            kind: TagEvent::from_bits(application.event),
            entry: application.index.get(),
            length: completion.length,
            immediate: completion.immediate,
            solicited: cqe.op_own & SOLICITED != 0,
            header: TagHeader::read_from_prefix(&cqe.metadata).unwrap().0,
            result: TagListResult::read_from_prefix(&cqe.metadata).unwrap().0,
        })
    }

    /// The kinds and entries of all completions.
    pub fn drain(&mut self) -> Vec<(TagEvent, u16)> {
        let events = std::iter::from_fn(|| self.poll());
        events.map(|event| (event.kind.expect("a known event"), event.entry)).collect()
    }
}

impl Drop for Xrq {
    fn drop(&mut self) {
        let destroyed = command::<DestroyXrqIn>(&self.node.device, |destroy| {
            destroy.set(DestroyXrqIn::XRQN, self.number);
        });
        assert!(destroyed.is_ok() || std::thread::panicking(), "{destroyed:?}");
    }
}

/// A WQE that changes the list; the device writes no send completion.
pub fn change(segment: &TagSegment) -> Wqe {
    Wqe::new(Opcode::TagMatching).unsignalled().raw(segment.as_bytes())
}

/// A WQE that appends a buffer of `length` bytes at the start of `region`.
pub fn append(next: u16, (tag, mask): (u64, u64), region: &Region, length: usize) -> Wqe {
    let data = DataSegment::new(region.address(), length as u32, region.key);
    change(&TagSegment::append(next, tag, mask, TagFlags::COMPLETION)).raw(data.as_bytes())
}
