//! A receive memory pool whose WQEs have strides, and the messages that its completions make up.

use std::collections::HashMap;

use barewire_hca::UmemAccess;
use barewire_layouts::command::answer;
use barewire_layouts::command::qp::{Qpc, ReceiveQueueType, ServiceType};
use barewire_layouts::command::rmp::{
    CreateRmpIn, CreateRmpOut, DestroyRmpIn, RmpState, Rmpc, Wq, WqType,
};
use barewire_layouts::command::strides::Strides;
use barewire_layouts::cqe::StrideCount;
use barewire_layouts::prm::ViewMut;

use super::srq::{Shape, wqe};
use super::{Completion, Cq, LOG_CQ, Memory, Node, Qp, Region, command};

/// log2 of the strides of a WQE.
pub const LOG_COUNT: u8 = 3;
/// Strides of a WQE.
pub const COUNT: usize = 1 << LOG_COUNT;
/// Room for a header and a segment for each stride.
const LOG_WQE: u8 = 8;
const WQE: usize = 1 << LOG_WQE;
/// log2 of the WQEs of a ring.
const LOG_SIZE: u8 = 2;
/// WQEs of a ring.
pub const ENTRIES: usize = 1 << LOG_SIZE;

/// Makes `wq` striding.
pub fn striding(wq: &mut ViewMut<'_, Wq>, linked: bool, log_bytes: u8) {
    let kind = if linked { WqType::LinkedListStriding } else { WqType::CyclicStriding };
    wq.set(Wq::WQ_TYPE, kind).set(Wq::LOG_WQ_STRIDE, LOG_WQE);
    Strides::new(LOG_COUNT, log_bytes).expect("valid").write(wq);
}

/// A pool of [`ENTRIES`] WQEs; none is posted at first.
pub struct Strided {
    node: Node,
    pub number: u32,
    shape: Shape,
    memory: Memory,
    /// The buffers of the strides, in the order of the ring.
    pub buffers: Region,
    bytes: usize,
    posted: u16,
    /// Strides that completions have named.
    taken: usize,
    /// The bytes of messages that have begun, by queue pair.
    open: HashMap<u32, Vec<u8>>,
}

impl Strided {
    /// The shape is one of a receive memory pool.
    pub fn new(node: &Node, shape: Shape, log_bytes: u8) -> Self {
        let memory = Memory::register(&node.device, ENTRIES * WQE + 64, UmemAccess::LOCAL_WRITE);
        let output = command::<CreateRmpIn>(&node.device, |create| {
            let mut context = create.nested(CreateRmpIn::CTX);
            context
                .set(Rmpc::STATE, RmpState::Ready)
                .set(Rmpc::BASIC_CYCLIC_RCV_WQE, shape == Shape::Basic);
            let mut wq = context.nested(Rmpc::WQ);
            striding(&mut wq, shape == Shape::List, log_bytes);
            wq.set(Wq::PD, node.pd)
                .set(Wq::DBR_ADDR, (ENTRIES * WQE) as u64)
                .set(Wq::LOG_WQ_SZ, LOG_SIZE)
                .set(Wq::DBR_UMEM_ID, memory.umem())
                .set(Wq::WQ_UMEM_ID, memory.umem());
        });
        let number = answer::<CreateRmpIn>(&output.unwrap()).unwrap().get(CreateRmpOut::RMPN);
        let bytes = 1 << log_bytes;
        Self {
            node: node.clone(),
            number,
            shape,
            memory,
            buffers: node.region(ENTRIES * COUNT * bytes),
            bytes,
            posted: 0,
            taken: 0,
            open: HashMap::new(),
        }
    }

    /// A queue pair that takes from it.
    pub fn queue_pair(&self, service: ServiceType, scatter: u8) -> Qp {
        let cqs = (Cq::new(&self.node, LOG_CQ), Cq::new(&self.node, LOG_CQ));
        Qp::with(&self.node, cqs.0, cqs.1, |context| {
            context
                .set(Qpc::ST, service)
                .set(Qpc::RQ_TYPE, ReceiveQueueType::Shared)
                .set(Qpc::CS_RES, scatter)
                .set(Qpc::SRQN_RMPN_XRQN, self.number);
        })
    }

    /// The buffers of the next WQE.
    pub fn segments(&self) -> [(u64, usize, u32); COUNT] {
        let start = usize::from(self.posted) % ENTRIES * COUNT;
        std::array::from_fn(|stride| {
            let at = (start + stride) * self.bytes;
            (self.buffers.address() + at as u64, self.bytes, self.buffers.key)
        })
    }

    /// Posts the next WQE.
    pub fn post(&mut self) {
        self.post_segments(&self.segments());
    }

    pub fn post_segments(&mut self, segments: &[(u64, usize, u32)]) {
        let index = usize::from(self.posted) % ENTRIES;
        let next = (self.shape != Shape::Basic).then_some(((index + 1) % ENTRIES) as u16);
        self.memory.write(index * WQE, &wqe(next, segments));
        self.posted = self.posted.wrapping_add(1);
        self.memory.store_be32(ENTRIES * WQE, u32::from(self.posted));
    }

    /// Posts again what is taken.
    pub fn refill(&mut self) {
        while usize::from(self.posted) < self.taken / COUNT + ENTRIES {
            self.post();
        }
    }

    /// Checks that `completion` names the next stride, and skips it.
    pub fn skip(&mut self, completion: &Completion) {
        assert_eq!(usize::from(completion.index) % ENTRIES, self.taken / COUNT % ENTRIES);
        self.taken += 1;
    }

    /// Returns whether `completion` names the next stride.
    pub fn is_next(&self, completion: &Completion) -> bool {
        usize::from(completion.index) % ENTRIES == self.taken / COUNT % ENTRIES
            && usize::from(completion.packet.stride()) == self.taken % COUNT
    }

    /// Takes the packet of a completion, which must name the next stride. Returns the message that
    /// ends with it.
    pub fn take(&mut self, completion: &Completion) -> Option<Vec<u8>> {
        assert!(completion.is_ok(), "{completion:?}");
        assert_eq!(usize::from(completion.packet.stride()), self.taken % COUNT);
        let (at, count) =
            (self.taken % (ENTRIES * COUNT) * self.bytes, StrideCount(completion.length));
        self.skip(completion);
        assert!(!count.is_filler());
        let begun = self.open.remove(&completion.qpn);
        // A message may end early when its queue pair is reset.
        let mut message =
            if count.is_first() { Vec::new() } else { begun.expect("a first packet") };
        message.extend(self.buffers.memory.read(at, count.length().into()));
        if count.is_last() {
            return Some(message);
        }
        self.open.insert(completion.qpn, message);
        None
    }
}

impl Drop for Strided {
    fn drop(&mut self) {
        let destroyed = command::<DestroyRmpIn>(&self.node.device, |destroy| {
            destroy.set(DestroyRmpIn::RMPN, self.number);
        });
        assert!(destroyed.is_ok() || std::thread::panicking(), "{destroyed:?}");
    }
}
