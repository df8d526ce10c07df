//! Shared receive queues and receive memory pools: order, several segments, the limit, errors, the
//! last WQE.

use crate::support::events::{ALL, Eq};
use crate::support::srq::{Shape, Srq};
use crate::support::{Connection, Cq, LOG_CQ, Node, Pair, Qp, Wqe, command, pattern};
use barewire_hca::{Config, Fabric, Mode, Strict, WireKind};
use barewire_layouts::command::qp::{Qpc, ReceiveQueueType};
use barewire_layouts::command::rmp::{QueryRmpIn, QueryRmpOut, Rmpc, Wq};
use barewire_layouts::command::srq::DestroySrqIn;
use barewire_layouts::command::{CommandStatus, answer};
use barewire_layouts::cqe::{CqeOpcode, Syndrome};
use barewire_layouts::eqe::EventType;
use barewire_layouts::wqe::Opcode;

const SHAPES: [Shape; 4] = [Shape::Srq, Shape::List, Shape::Cyclic, Shape::Basic];

/// A pair whose second queue pair takes from a shared queue of eight, and that one's events.
///
/// Dropped in this order: the queue pair uses the others.
struct Shared {
    pair: Pair,
    srq: Srq,
    events: Eq,
}

impl Shared {
    fn new(shape: Shape, connection: &Connection) -> Self {
        let fabric = Fabric::new();
        let open = || {
            let wire = WireKind::Fabric(fabric.clone());
            Node::open(Config::default().mode(Mode::Stepped).wire(wire).strict(Strict::Report))
        };
        let (a, b) = (open(), open());
        let (srq, events) = (Srq::new(&b, 3, shape), Eq::new(&b, 6, ALL));
        let qb = Qp::with(&b, Cq::new(&b, LOG_CQ), Cq::new(&b, LOG_CQ), |context| {
            context
                .set(Qpc::RQ_TYPE, ReceiveQueueType::Shared)
                .set(Qpc::SRQN_RMPN_XRQN, srq.number);
        });
        let qa = Qp::new(&a);
        Self { pair: Pair::of(a, b, (qa, qb), connection), srq, events }
    }

    fn send(&mut self, bytes: &[u8]) {
        let region = self.pair.a.region(bytes.len().max(1));
        region.memory.write(0, bytes);
        self.pair.qa.post(&Wqe::new(Opcode::Send).data(region.address(), bytes.len(), region.key));
        self.pair.settle();
        self.pair.qa.send_cq.drain();
    }
}

#[test]
fn messages_scatter_over_the_segments_of_shared_wqes() {
    for shape in SHAPES {
        let mut test = Shared::new(shape, &Connection::default());
        let target = test.pair.b.region(4096);
        let (start, key) = (target.address(), target.key);
        let data = pattern(700, 3);
        // Twice round the ring.
        for round in 0..16_u16 {
            target.memory.write(0, &[0; 4096]);
            test.srq.post(&[(start, 100, key), (start + 1000, 1, key)]);
            test.send(&data[..101]);
            assert_eq!(target.memory.read(0, 100), data[..100], "{shape:?}");
            assert_eq!(target.memory.read(1000, 2), [data[100], 0]);
            let completion = test.pair.qb.receive_cq.poll().expect("one message");
            assert_eq!((completion.opcode, completion.length), (CqeOpcode::ResponderSend, 101));
            assert_eq!(completion.index % 8, round % 8);
        }
        // Longer than a packet, over as many segments as a WQE has.
        test.srq.post(&[(start, 300, key), (start + 2000, 300, key)]);
        test.send(&data[..600]);
        assert_eq!(target.memory.read(0, 300), data[..300]);
        assert_eq!(target.memory.read(2000, 300), data[300..600]);
        assert_eq!(test.events.drain(), []);
    }
}

#[test]
fn a_list_gives_its_wqes_in_the_order_of_the_free_list() {
    let mut test = Shared::new(Shape::List, &Connection::default());
    let target = test.pair.b.region(4096);
    let (start, key) = (target.address(), target.key);
    for (index, next) in [(0, 5), (5, 2), (2, 7)] {
        test.srq.post_at(index, next, &[(start + 100 * index as u64, 8, key)]);
    }
    for (byte, index) in [(1, 0), (2, 5), (3, 2)] {
        test.send(&[byte; 8]);
        assert_eq!(test.pair.qb.receive_cq.poll().map(|completion| completion.index), Some(index));
        assert_eq!(target.memory.read(100 * usize::from(index), 8), [byte; 8]);
    }
}

#[test]
fn an_empty_queue_makes_senders_wait() {
    let mut test = Shared::new(Shape::Cyclic, &Connection::default());
    test.pair.qa.post(&Wqe::new(Opcode::Send));
    test.pair.step(200);
    assert!(test.pair.b.device.counters().rnr_naks_sent > 0);
    test.srq.post(&[]);
    test.pair.settle();
    assert_eq!(test.pair.qb.receive_cq.drain().len(), 1);
}

#[test]
fn the_limit_is_told_once_until_it_is_set_again() {
    for shape in [Shape::Srq, Shape::List] {
        let mut test = Shared::new(shape, &Connection::default());
        for _ in 0..5 {
            test.srq.post(&[]);
        }
        test.srq.arm(4);
        test.send(&[]);
        assert_eq!(test.events.drain(), []);
        test.send(&[]);
        test.send(&[]);
        assert_eq!(test.events.drain(), [(EventType::SrqLimit, test.srq.number)]);
        // It holds fewer already.
        test.srq.arm(4);
        assert_eq!(test.events.drain(), [(EventType::SrqLimit, test.srq.number)]);
    }
}

#[test]
fn a_queue_pair_in_error_tells_its_last_wqe_and_leaves_the_others() {
    let mut test = Shared::new(Shape::List, &Connection::default());
    let target = test.pair.b.region(64);
    for _ in 0..3 {
        test.srq.post(&[(target.address(), 8, target.key)]);
    }
    // Too long: it takes one, fails with it, and the queue pair with it.
    test.send(&[1; 9]);
    let failed = test.pair.qb.receive_cq.drain();
    assert_eq!(
        failed.iter().map(|one| one.syndrome).collect::<Vec<_>>(),
        [Some(Syndrome::LocalLength)]
    );
    let qpn = test.pair.qb.number;
    assert_eq!(
        test.events.drain(),
        [(EventType::WqInvalidRequest, qpn), (EventType::LastWqeReached, qpn)]
    );
    test.pair.step(10);
    assert_eq!(test.events.drain(), []);
    let output = command::<QueryRmpIn>(&test.pair.b.device, |query| {
        query.set(QueryRmpIn::RMPN, test.srq.number);
    });
    let output = output.unwrap();
    let wq =
        answer::<QueryRmpIn>(&output).unwrap().nested(QueryRmpOut::RMP_CONTEXT).nested(Rmpc::WQ);
    assert_eq!((wq.get(Wq::HW_COUNTER), wq.get(Wq::SW_COUNTER), wq.get(Wq::LOG_WQ_SZ)), (1, 3, 3));
}

#[test]
fn a_queue_in_use_stays_and_a_pool_is_no_srq() {
    let test = Shared::new(Shape::Srq, &Connection::default());
    let destroy = |number| {
        let refused = command::<DestroySrqIn>(&test.pair.b.device, |destroy| {
            destroy.set(DestroySrqIn::SRQN, number);
        });
        refused.unwrap_err().status
    };
    assert_eq!(destroy(test.srq.number), Ok(CommandStatus::ResourceBusy));
    let pool = Srq::new(&test.pair.b, 2, Shape::Basic);
    assert_eq!(destroy(pool.number), Ok(CommandStatus::BadResource));
}

#[test]
fn more_posted_than_there_is_room_for_is_found() {
    let mut test = Shared::new(Shape::Cyclic, &Connection::default());
    for _ in 0..9 {
        test.srq.post(&[]);
    }
    test.send(&[]);
    let reports = test.pair.b.device.take_reports();
    assert!(
        reports
            .iter()
            .any(|report| report.to_string().contains("shared receive doorbell record: 9"))
    );
    assert_eq!(test.pair.qb.receive_cq.drain()[0].syndrome, Some(Syndrome::LocalQpOperation));
}
