//! Extended reliable connections: each message names the shared receive queue that it goes to.

use crate::support::events::{ALL, Eq};
use crate::support::xrc::{Domain, XrcSrq};
use crate::support::{
    self, Completion, Connection, MTUS, Node, Pair, Qp, Region, Wqe, command, pattern,
};
use barewire_hca::{Config, Fabric, Faults, Mode, ReservedBits, Strict, WireKind};
use barewire_layouts::command::pd::{AllocPdIn, AllocPdOut};
use barewire_layouts::command::qp::{
    QpState, Qpc, QueryQpIn, QueryQpOut, ReceiveQueueType, ServiceType,
};
use barewire_layouts::command::xrc::{DeallocXrcdIn, QueryXrcSrqIn, QueryXrcSrqOut, XrcSrqc};
use barewire_layouts::command::{CommandStatus, answer};
use barewire_layouts::cqe::{CqeOpcode, Syndrome};
use barewire_layouts::eqe::EventType;
use barewire_layouts::wqe::{MaskedFetchAdd64, Opcode};
use zerocopy::IntoBytes;

/// A sender, and a receiver without queues that has two shared receive queues behind it.
struct Extended {
    pair: Pair,
    queues: [XrcSrq; 2],
    domains: [Domain; 2],
}

const USERS: [u32; 2] = [0x31, 0x32];

impl Extended {
    fn over(a: Node, b: Node, connection: &Connection) -> Self {
        let domains = [Domain::new(&a), Domain::new(&b)];
        let qps = (domains[0].queue_pair(true), domains[1].queue_pair(false));
        // One is a ring, the other a list.
        let queues = [0, 1].map(|at| XrcSrq::new(&domains[1], 5, USERS[at], at == 0));
        Self { pair: Pair::of(a, b, qps, connection), queues, domains }
    }

    fn new(connection: &Connection, faults: Faults) -> Self {
        let fabric = Fabric::new();
        let other = faults.clone().seed(!faults.seed);
        Self::over(Node::stepped(&fabric, faults), Node::stepped(&fabric, other), connection)
    }

    fn send(&self, at: usize, region: &Region, offset: usize, length: usize) -> Wqe {
        let wqe = Wqe::new(Opcode::Send).shared_queue(self.queues[at].number);
        wqe.data(region.address() + offset as u64, length, region.key)
    }

    fn syndromes(&mut self) -> Vec<Option<Syndrome>> {
        self.pair.qa.send_cq.drain().iter().map(|one| one.syndrome).collect()
    }
}

#[test]
fn messages_of_every_size_reach_the_queue_that_they_name() {
    for (mtu, bytes) in MTUS {
        let connection = Connection { mtu, psn: 0xff_ffff, ..Connection::default() };
        let mut test = Extended::new(&connection, Faults::default());
        for (round, size) in [0, 1, bytes - 1, bytes, bytes + 1, 1 << 20].into_iter().enumerate() {
            let at = round % 2;
            let (local, inbox, target) =
                (test.pair.a.region(size), test.pair.b.region(size), test.pair.b.region(size));
            let data = pattern(size, round as u64 + 7);
            local.memory.write(0, &data);
            test.queues[at].post(&[(inbox.address(), size, inbox.key)]);
            test.queues[1 - at].post(&[]);
            let first = test.send(at, &local, 0, size);
            test.pair.qa.post(&first);
            let second = Wqe::new(Opcode::RdmaWriteImmediate)
                .immediate(round as u32)
                .shared_queue(test.queues[1 - at].number)
                .remote(target.address(), target.key);
            test.pair.qa.post(&second.data(local.address(), size, local.key));
            test.pair.settle();
            assert_eq!(test.syndromes(), [None, None]);
            assert!(inbox.memory.read(0, size) == data && target.memory.read(0, size) == data);
            let qpn = test.pair.qb.number;
            let got =
                |one: &Completion| (one.opcode, one.qpn, one.user_index, one.length, one.immediate);
            let sent = (CqeOpcode::ResponderSend, qpn, USERS[at], size as u32, 0);
            let written =
                (CqeOpcode::ResponderWriteImmediate, qpn, USERS[1 - at], size as u32, round as u32);
            assert_eq!(test.queues[at].cq.drain().iter().map(got).collect::<Vec<_>>(), [sent]);
            assert_eq!(
                test.queues[1 - at].cq.drain().iter().map(got).collect::<Vec<_>>(),
                [written]
            );
        }
        assert!(test.pair.qb.receive_cq.drain().is_empty());
    }
}

#[test]
fn one_sided_operations_need_no_queue() {
    let mut test = Extended::new(&Connection::default(), Faults::default());
    let (local, remote) = (test.pair.a.region(2000), test.pair.b.region(2000));
    local.memory.write(0, &pattern(1000, 1));
    let there =
        |opcode, at| Wqe::new(opcode).shared_queue(0).remote(remote.address() + at, remote.key);
    let here = |wqe: Wqe, at, length| wqe.data(local.address() + at, length, local.key);
    test.pair.qa.post(&here(there(Opcode::RdmaWrite, 0), 0, 1000));
    test.pair.qa.post(&here(there(Opcode::RdmaRead, 0), 1000, 900));
    test.pair.qa.post(&here(there(Opcode::AtomicFetchAdd, 1600).atomic(3, 0), 1904, 8));
    test.pair.qa.post(&here(there(Opcode::AtomicCompareSwap, 1600).atomic(9, 3), 1912, 8));
    let add = MaskedFetchAdd64 { add: 1.into(), field_boundary: (1 << 31).into() };
    test.pair.qa.post(&here(
        there(Opcode::MaskedFetchAdd, 1600).masked(3, add.as_bytes()),
        1920,
        8,
    ));
    test.pair.qa.post(&Wqe::new(Opcode::Nop));
    test.pair.settle();
    assert_eq!(test.syndromes(), [None; 6]);
    assert_eq!(local.memory.read(1000, 900), pattern(1000, 1)[..900]);
    assert_eq!(remote.memory.read(1600, 8), 10_u64.to_ne_bytes());
    assert_eq!(local.memory.read(1904, 24), [0_u64, 3, 9].map(u64::to_ne_bytes).concat());
}

#[test]
fn a_request_has_the_rights_of_the_queue_that_it_names() {
    let mut test = Extended::new(&Connection::default(), Faults::default());
    let nobody = command::<AllocPdIn>(&test.pair.b.device, |_| ()).unwrap();
    let nobody = answer::<AllocPdIn>(&nobody).unwrap().get(AllocPdOut::PD);
    let receiver = test.domains[1].queue_pair_in(nobody, false);
    let Pair { a, b, .. } = &test.pair;
    let sender = test.domains[0].queue_pair(true);
    test.pair = Pair::of(a.clone(), b.clone(), (sender, receiver), &Connection::default());
    let (local, remote) = (test.pair.a.region(100), test.pair.b.region(100));
    local.memory.write(0, &pattern(50, 3));
    let there = |opcode, at, queue| {
        Wqe::new(opcode).shared_queue(queue).remote(remote.address() + at, remote.key)
    };
    let here = |wqe: Wqe, at, length| wqe.data(local.address() + at, length, local.key);
    let queue = test.queues[0].number;
    test.pair.qa.post(&here(there(Opcode::RdmaWrite, 0, queue), 0, 50));
    test.pair.qa.post(&here(there(Opcode::RdmaRead, 0, queue), 50, 40));
    test.pair.qa.post(&here(there(Opcode::AtomicFetchAdd, 56, queue).atomic(3, 0), 90, 8));
    // No queue, no rights.
    test.pair.qa.post(&here(there(Opcode::RdmaWrite, 0, 0), 0, 50));
    test.pair.settle();
    assert_eq!(test.syndromes(), [None, None, None, Some(Syndrome::RemoteAccess)]);
    assert_eq!(local.memory.read(50, 40), pattern(50, 3)[..40]);
    assert_eq!(remote.memory.read(56, 8), 3_u64.to_ne_bytes());
}

#[test]
fn a_queue_of_another_domain_or_none_is_refused() {
    for wrong in [true, false] {
        let mut test = Extended::new(&Connection::default(), Faults::default());
        let mut events = Eq::new(&test.pair.b, 4, ALL);
        let foreign = Domain::new(&test.pair.b);
        let elsewhere = XrcSrq::new(&foreign, 2, 1, true);
        let number = if wrong { elsewhere.number } else { 0x00ff_fff0 };
        test.pair.qa.post(&Wqe::new(Opcode::Send).shared_queue(number));
        test.pair.settle();
        assert_eq!(test.syndromes(), [Some(Syndrome::RemoteInvalidRequest)]);
        let qpn = test.pair.qb.number;
        assert_eq!(events.drain(), [(EventType::WqInvalidRequest, qpn)]);
    }
}

/// A shared receive queue that is none of an XRC domain.
#[test]
fn an_ordinary_shared_queue_is_refused() {
    let mut test = Extended::new(&Connection::default(), Faults::default());
    let plain = support::srq::Srq::new(&test.pair.b, 2, support::srq::Shape::Srq);
    test.pair.qa.post(&Wqe::new(Opcode::Send).shared_queue(plain.number));
    test.pair.settle();
    assert_eq!(test.syndromes(), [Some(Syndrome::RemoteInvalidRequest)]);
}

#[test]
fn an_empty_queue_lets_the_sender_wait_and_tells_its_limit() {
    let mut test = Extended::new(&Connection::default(), Faults::default());
    let mut events = Eq::new(&test.pair.b, 4, EventType::SrqLimit.mask());
    let (local, inbox) = (test.pair.a.region(8), test.pair.b.region(16));
    let wqe = test.send(1, &local, 0, 8);
    test.pair.qa.post(&wqe);
    test.pair.step(60);
    assert_eq!(test.syndromes(), []);
    (0..2).for_each(|at| test.queues[1].post(&[(inbox.address() + 8 * at, 8, inbox.key)]));
    test.queues[1].arm(2);
    test.pair.settle();
    assert_eq!(
        (test.syndromes(), events.drain()),
        (vec![None], vec![(EventType::SrqLimit, test.queues[1].number)])
    );
}

#[test]
fn a_queue_destroyed_in_the_middle_of_a_message_fails_the_sender() {
    let mut test = Extended::new(&Connection::default(), Faults::default());
    let (local, inbox) = (test.pair.a.region(1 << 16), test.pair.b.region(1 << 16));
    test.queues[0].post(&[(inbox.address(), 1 << 16, inbox.key)]);
    let wqe = test.send(0, &local, 0, 1 << 16);
    test.pair.qa.post(&wqe);
    test.pair.step(3);
    assert_eq!(test.syndromes(), []);
    test.queues[0].destroy();
    test.pair.settle();
    assert_eq!(test.syndromes(), [Some(Syndrome::RemoteInvalidRequest)]);
    assert!(test.queues[0].cq.drain().is_empty());
}

#[test]
fn too_long_a_message_fails_its_receive_where_it_belongs() {
    let mut test = Extended::new(&Connection::default(), Faults::default());
    let (local, inbox) = (test.pair.a.region(64), test.pair.b.region(64));
    test.queues[1].post(&[(inbox.address(), 8, inbox.key)]);
    let wqe = test.send(1, &local, 0, 9);
    test.pair.qa.post(&wqe);
    test.pair.settle();
    assert_eq!(test.syndromes(), [Some(Syndrome::RemoteInvalidRequest)]);
    let failed = test.queues[1].cq.drain();
    let got: Vec<_> = failed.iter().map(|one| (one.syndrome, one.qpn, one.user_index)).collect();
    assert_eq!(got, [(Some(Syndrome::LocalLength), test.pair.qb.number, USERS[1])]);
}

#[test]
fn a_bad_wire_changes_nothing() {
    for seed in 0..20 {
        let faults = Faults::default().drop(0.05).duplicate(0.05).reorder(0.05).seed(seed);
        let mut test =
            Extended::new(&Connection { psn: 0xff_fff0, ..Connection::default() }, faults);
        let (local, inbox) = (test.pair.a.region(20 * 1000), test.pair.b.region(20 * 1000));
        local.memory.write(0, &pattern(20 * 1000, seed));
        for message in 0..20 {
            let at = (message * message + seed as usize) % 2;
            let offset = message * 1000;
            test.queues[at].post(&[(inbox.address() + offset as u64, 1000, inbox.key)]);
            let wqe = test.send(at, &local, offset, 1000);
            test.pair.qa.post(&wqe);
        }
        test.pair.settle();
        assert_eq!(test.syndromes(), [None; 20]);
        let arrived: usize = test.queues.iter_mut().map(|queue| queue.cq.drain().len()).sum();
        assert_eq!((arrived, inbox.memory.read(0, 20 * 1000)), (20, pattern(20 * 1000, seed)));
    }
}

#[test]
fn domains_and_queues_are_counted_and_queried() {
    let test = Extended::new(&Connection::default(), Faults::default());
    let device = &test.pair.b.device;
    let busy = command::<DeallocXrcdIn>(device, |dealloc| {
        dealloc.set(DeallocXrcdIn::XRCD, test.domains[1].number);
    });
    assert_eq!(busy.unwrap_err().status, Ok(CommandStatus::ResourceBusy));
    let queue = &test.queues[0];
    let output = command::<QueryXrcSrqIn>(device, |query| {
        _ = query.set(QueryXrcSrqIn::XRC_SRQN, queue.number);
    });
    let output = output.unwrap();
    let context =
        answer::<QueryXrcSrqIn>(&output).unwrap().nested(QueryXrcSrqOut::XRC_SRQ_CONTEXT_ENTRY);
    assert_eq!(
        (context.get(XrcSrqc::XRCD), context.get(XrcSrqc::CQN), context.get(XrcSrqc::USER_INDEX)),
        (test.domains[1].number, queue.cq.number, USERS[0])
    );
    assert_eq!(
        (context.get(XrcSrqc::LOG_XRC_SRQ_SIZE), context.get(XrcSrqc::LOG_RQ_STRIDE)),
        (5, 2)
    );
    assert!(context.get(XrcSrqc::BASIC_CYCLIC_RCV_WQE));
    let output =
        command::<QueryQpIn>(device, |query| _ = query.set(QueryQpIn::QPN, test.pair.qb.number));
    let output = output.unwrap();
    let context = answer::<QueryQpIn>(&output).unwrap().nested(QueryQpOut::QPC);
    assert_eq!(
        (
            context.get(Qpc::ST),
            context.get(Qpc::STATE),
            context.get(Qpc::XRCD),
            context.get(Qpc::NO_SQ)
        ),
        (Ok(ServiceType::Xrc), Ok(QpState::Rts), test.domains[1].number, true)
    );
    assert_eq!(device.objects().xrc_domains, 1);
}

#[test]
fn bad_segments_are_found() {
    let fabric = Fabric::new();
    let node = Node::open(
        Config::default()
            .mode(Mode::Stepped)
            .wire(WireKind::Fabric(fabric))
            .strict(Strict::Report)
            .reserved_bits(ReservedBits::Refuse),
    );
    let segment = |srqn: u32, last: u32| [srqn, 0, 0, last].map(u32::to_be_bytes).concat();
    for (segment, want) in [
        (vec![], "ds is 1, must be room for the XRC segment"),
        (segment(1 << 31, 0), "XRC segment: shared receive queue: reserved bits are 0x80000000"),
        (segment(1, 3), "XRC segment: reserved bits are 0x3"),
    ] {
        let mut test = Extended::over(node.clone(), node.clone(), &Connection::default());
        test.pair.qa.post(&Wqe::new(Opcode::Send).raw(&segment));
        test.pair.settle();
        assert_eq!(test.syndromes(), [Some(Syndrome::LocalQpOperation)]);
        let reports: Vec<_> = node.device.take_reports().iter().map(ToString::to_string).collect();
        assert!(reports.len() == 1 && reports[0].contains(want), "{reports:?}");
    }
}

/// With version 0 of the CQE a completion has the number of the shared receive queue in place of
/// the user index.
#[test]
fn without_a_user_index_completions_tell_the_shared_queue() {
    const NONE: u32 = 0x00ff_ffff;
    let fabric = Fabric::new();
    let [a, b] = [1, 2].map(|_| Node::stepped(&fabric, Faults::default()));
    let domain = Domain::new(&b);
    let mut queue = XrcSrq::new(&domain, 2, NONE, true);
    let own = Domain::new(&a);
    let qps = (own.queue_pair(true), domain.queue_pair(false));
    let mut pair = Pair::of(a.clone(), b.clone(), qps, &Connection::default());
    queue.post(&[]);
    pair.qa.post(&Wqe::new(Opcode::Send).shared_queue(queue.number));
    pair.settle();
    assert_eq!(queue.cq.drain()[0].user_index, queue.number);

    let mut plain = support::srq::Srq::new(&b, 2, support::srq::Shape::List);
    let shared = Qp::with(&b, support::Cq::new(&b, 4), support::Cq::new(&b, 4), |context| {
        context
            .set(Qpc::RQ_TYPE, ReceiveQueueType::Shared)
            .set(Qpc::SRQN_RMPN_XRQN, plain.number)
            .set(Qpc::USER_INDEX, NONE);
    });
    let mut pair = Pair::of(a.clone(), b, (Qp::new(&a), shared), &Connection::default());
    plain.post(&[]);
    pair.qa.post(&Wqe::new(Opcode::Send));
    pair.settle();
    assert_eq!(pair.qb.receive_cq.drain()[0].user_index, plain.number);
}
