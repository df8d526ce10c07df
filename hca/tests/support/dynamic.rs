//! Targets and initiators of dynamic connections of tests.

use barewire_hca::{Config, Fabric, Faults, Mode, ReservedBits, Strict, WireKind};
use barewire_layouts::command::dct::{
    CreateDctIn, CreateDctOut, DctState, Dctc, DestroyDctIn, DrainDctIn, QueryDctIn, QueryDctOut,
};
use barewire_layouts::command::qp::{
    AtomicMode, ExtendedParameters, ModifyQp, Qpc, QpcExt, QueryQpIn, QueryQpOut, ReceiveQueueType,
    Rts2RtsQpIn, ServiceType,
};
use barewire_layouts::command::{CommandError, answer};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::prm::{Layout, View, ViewMut};
use barewire_layouts::wqe::{AddressVector, Opcode};

use super::srq::{Shape, Srq};
use super::{Connection, Cq, LOG_CQ, Node, Qp, Region, Wqe, command, input, run};

pub const KEY: u64 = 0x0123_4567_89ab_cdef;
pub const USER_INDEX: u32 = 0x55;

/// A target with a shared receive queue and a completion queue of its own.
pub struct Target {
    pub node: Node,
    pub number: u32,
    pub cq: Cq,
    pub srq: Srq,
    destroyed: bool,
}

impl Target {
    pub fn new(node: &Node, connection: &Connection) -> Self {
        Self::with(node, connection, |_| ())
    }

    pub fn with(
        node: &Node,
        connection: &Connection,
        change: impl FnOnce(&mut ViewMut<'_, Dctc>),
    ) -> Self {
        let (cq, srq) = (Cq::new(node, LOG_CQ), Srq::new(node, 6, Shape::Basic));
        let output = command::<CreateDctIn>(&node.device, |create| {
            let mut context = create.nested(CreateDctIn::DCT_CONTEXT_ENTRY);
            context
                .set(Dctc::USER_INDEX, USER_INDEX)
                .set(Dctc::CQN, cq.number)
                .set(Dctc::ATOMIC_MODE, AtomicMode::IbSpec)
                .set(Dctc::RRE, connection.remote_read)
                .set(Dctc::RWE, connection.remote_write)
                .set(Dctc::RAE, connection.remote_atomic)
                .set(Dctc::MIN_RNR_NAK, connection.min_rnr_nak)
                .set(Dctc::SRQN_XRQN, srq.number)
                .set(Dctc::PD, node.pd)
                .set(Dctc::DC_ACCESS_KEY, KEY)
                .set(Dctc::MTU, connection.mtu)
                .set(Dctc::PORT, 1);
            change(&mut context);
        });
        let number = answer::<CreateDctIn>(&output.unwrap()).unwrap().get(CreateDctOut::DCTN);
        Self { node: node.clone(), number, cq, srq, destroyed: false }
    }

    /// Its address, for WQEs.
    pub fn address(&self) -> AddressVector {
        self.address_with(KEY)
    }

    pub fn address_with(&self, key: u64) -> AddressVector {
        let mut vector = AddressVector::roce(0, 0, [0; 6], self.node.device.gid(), 0, 0, 64);
        vector.base = vector.base.to_target(self.number, key);
        vector
    }

    /// State, and how many requests had a wrong key.
    pub fn query(&self) -> (DctState, u32) {
        let output = command::<QueryDctIn>(&self.node.device, |query| {
            query.set(QueryDctIn::DCTN, self.number);
        });
        let output = output.unwrap();
        let context = answer::<QueryDctIn>(&output).unwrap().nested(QueryDctOut::DCT_CONTEXT_ENTRY);
        (context.get(Dctc::STATE).unwrap(), context.get(Dctc::DC_ACCESS_KEY_VIOLATION_COUNT))
    }

    pub fn drain(&self) {
        command::<DrainDctIn>(&self.node.device, |drain| {
            _ = drain.set(DrainDctIn::DCTN, self.number);
        })
        .unwrap();
    }

    pub fn destroy(&mut self) {
        self.destroyed = true;
        command::<DestroyDctIn>(&self.node.device, |destroy| {
            destroy.set(DestroyDctIn::DCTN, self.number);
        })
        .unwrap();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.destroyed && !std::thread::panicking() {
            self.destroy();
        }
    }
}

/// An initiator that is ready to send.
pub fn initiator(node: &Node, connection: &Connection) -> Qp {
    initiator_with(node, connection, |_| ())
}

pub fn initiator_with(
    node: &Node,
    connection: &Connection,
    change: impl FnOnce(&mut ViewMut<'_, Qpc>),
) -> Qp {
    let (send_cq, receive_cq) = (Cq::new(node, LOG_CQ), Cq::new(node, 2));
    let mut qp = Qp::with(node, send_cq, receive_cq, |context| {
        context.set(Qpc::ST, ServiceType::Dci).set(Qpc::RQ_TYPE, ReceiveQueueType::Zero);
        change(context);
    });
    qp.without_receive_ring();
    // As UCX does it, without an address.
    qp.connect_to([0; 16], 0, connection, (connection.psn, 0));
    qp
}

/// An initiator with `1 << log_channels` streams, which `1 << log_failed` of them in error stop.
pub fn with_streams(node: &Node, connection: &Connection, log_channels: u8, log_failed: u8) -> Qp {
    initiator_with(node, connection, |context| {
        context
            .set(Qpc::LOG_NUM_DCI_STREAM_CHANNELS, log_channels)
            .set(Qpc::LOG_NUM_DCI_ERRORED_STREAMS, log_failed);
    })
}

/// Ends the error state of an initiator's stream.
pub fn reset_stream(dci: &Qp, stream: u16) -> Result<(), CommandError> {
    let mut bytes = input::<Rts2RtsQpIn>(|modify| {
        let selected = ExtendedParameters::DCI_STREAM_CHANNEL_ID.bits();
        modify
            .set(Rts2RtsQpIn::QPN, dci.number)
            .set(Rts2RtsQpIn::QPC_EXT, true)
            .set(Rts2RtsQpIn::OPT_PARAM_MASK_95_32, selected);
    });
    let mut extension = [0; QpcExt::BYTES];
    ViewMut::<QpcExt>::new(&mut extension).unwrap().set(QpcExt::DCI_STREAM_CHANNEL_ID, stream);
    bytes.extend(extension);
    run::<Rts2RtsQpIn>(&dci.node.device, &bytes).map(drop)
}

/// The context of a queue pair.
pub fn context<T>(qp: &Qp, read: impl FnOnce(View<'_, Qpc>) -> T) -> T {
    let output =
        command::<QueryQpIn>(&qp.node.device, |query| _ = query.set(QueryQpIn::QPN, qp.number));
    let output = output.unwrap();
    read(answer::<QueryQpIn>(&output).unwrap().nested(QueryQpOut::QPC))
}

/// Steps devices until none has anything to do or to wait for.
pub fn settle(nodes: &[&Node]) {
    for _ in 0..1_000_000 {
        if !nodes.iter().fold(false, |busy, node| busy | node.device.step()) {
            return;
        }
    }
    panic!(
        "the devices do not come to rest: {:?}",
        nodes.iter().map(|node| node.device.counters()).collect::<Vec<_>>()
    );
}

pub fn nodes<const N: usize>() -> [Node; N] {
    let fabric = Fabric::new();
    std::array::from_fn(|_| Node::stepped(&fabric, Faults::default()))
}

/// One with room for so many connections.
pub fn narrow(fabric: &Fabric, connections: usize, faults: Faults) -> Node {
    Node::open(
        Config::default()
            .mode(Mode::Stepped)
            .wire(WireKind::Fabric(fabric.clone()))
            .faults(faults)
            .strict(Strict::Panic)
            .reserved_bits(ReservedBits::Refuse)
            .dynamic_connections(connections),
    )
}

pub fn send(target: &Target, region: &Region, length: usize) -> Wqe {
    Wqe::new(Opcode::Send).addressed(&target.address()).data(region.address(), length, region.key)
}

pub fn syndromes(qp: &mut Qp) -> Vec<Option<Syndrome>> {
    qp.send_cq.drain().iter().map(|one| one.syndrome).collect()
}
