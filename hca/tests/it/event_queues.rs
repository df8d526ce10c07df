//! Event queues: completion events by arming, asynchronous events by mask, the interrupt,
//! moderation, and overruns.

use std::time::Duration;

use crate::support::events::{ALL, Eq, ring_cq};
use crate::support::{Connection, Cq, Node, Pair, Qp, Wqe, command};
use barewire_hca::{Config, Fabric, Faults, Mode, Strict, WireKind};
use barewire_layouts::command::answer;
use barewire_layouts::command::cq::{CqState, Cqc, CqeSize, QueryCqIn, QueryCqOut};
use barewire_layouts::command::eq::{EqState, EqStatus, Eqc, QueryEqIn, QueryEqOut};
use barewire_layouts::eqe::EventType;
use barewire_layouts::wqe::{ControlFlags, Opcode};

fn node(fabric: &Fabric, strict: Strict) -> Node {
    let wire = WireKind::Fabric(fabric.clone());
    Node::open(Config::default().mode(Mode::Stepped).wire(wire).strict(strict))
}

/// Two devices, with event queues for the first one's asynchronous events and for both completion
/// queues of the second.
///
/// Dropped in this order: completion queues use their event queue.
struct Eventful {
    pair: Pair,
    asynchronous: Eq,
    completions: Eq,
}

impl Eventful {
    fn new(
        connection: &Connection,
        change: impl Fn(&mut barewire_layouts::prm::ViewMut<'_, Cqc>),
    ) -> Self {
        let fabric = Fabric::new();
        let (a, b) = (node(&fabric, Strict::Report), node(&fabric, Strict::Report));
        let completions = Eq::new(&b, 4, 0);
        let asynchronous = Eq::new(&b, 4, ALL);
        let cq = || {
            Cq::with(&b, 5, CqeSize::Bytes64, |context| {
                context.set(Cqc::C_EQN, completions.number);
                change(context);
            })
        };
        let qa = Qp::new(&a);
        let qb = Qp::with(&b, cq(), cq(), |_| ());
        let pair = Pair::of(a, b, (qa, qb), connection);
        Self { pair, asynchronous, completions }
    }

    /// Sends one empty message to the second device.
    fn send(&mut self, solicited: bool) {
        self.pair.qb.post_receive(&[]);
        let flags = if solicited { ControlFlags::SOLICITED } else { ControlFlags::empty() };
        self.pair.qa.post(&Wqe::new(Opcode::Send).flags(flags));
        self.pair.settle();
    }

    fn state(&self) -> CqState {
        let output = command::<QueryCqIn>(&self.pair.b.device, |query| {
            query.set(QueryCqIn::CQN, self.pair.qb.receive_cq.number);
        });
        let output = output.unwrap();
        let context = answer::<QueryCqIn>(&output).unwrap().nested(QueryCqOut::CQ_CONTEXT);
        context.get(Cqc::ST).unwrap()
    }
}

#[test]
fn an_armed_queue_tells_once() {
    let mut test = Eventful::new(&Connection::default(), |_| ());
    let cqn = test.pair.qb.receive_cq.number;
    test.send(false);
    assert_eq!((test.completions.drain(), test.state()), (vec![], CqState::Idle));
    // A completion is there already: the request is answered at once.
    test.pair.qb.receive_cq.arm(false);
    test.pair.settle();
    assert!(test.completions.channel.wait(Some(Duration::ZERO)).unwrap());
    assert_eq!(test.completions.channel.take(), 1);
    assert_eq!(
        (test.completions.drain(), test.state()),
        (vec![(EventType::Completion, cqn)], CqState::Fired)
    );
    test.send(false);
    assert_eq!(test.completions.drain(), []);
    assert_eq!(test.pair.qb.receive_cq.drain().len(), 2);
    test.pair.qb.receive_cq.arm(false);
    test.pair.settle();
    assert_eq!((test.completions.drain(), test.state()), (vec![], CqState::Armed));
    test.send(false);
    assert_eq!(test.completions.drain(), [(EventType::Completion, cqn)]);
    assert_eq!(test.asynchronous.drain(), []);
}

#[test]
fn a_solicited_request_waits_for_a_solicited_completion_or_an_error() {
    let mut test = Eventful::new(&Connection::default(), |_| ());
    let cqn = test.pair.qb.receive_cq.number;
    test.pair.qb.receive_cq.arm(true);
    test.send(false);
    assert_eq!((test.completions.drain(), test.state()), (vec![], CqState::SolicitedArmed));
    test.send(true);
    assert_eq!(test.completions.drain(), [(EventType::Completion, cqn)]);
    test.pair.qb.receive_cq.drain();
    test.pair.qb.receive_cq.arm(true);
    test.pair.qb.post_receive(&[]);
    test.pair.qb.to_error();
    test.pair.settle();
    assert_eq!(test.completions.drain(), [(EventType::Completion, cqn)]);
}

#[test]
fn doorbells_that_overwrite_each_other_lose_no_request() {
    let mut test = Eventful::new(&Connection::default(), |_| ());
    let (sent, received) = (test.pair.qb.send_cq.number, test.pair.qb.receive_cq.number);
    test.send(false);
    test.pair.qa.post_receive(&[]);
    test.pair.qb.post(&Wqe::new(Opcode::Send));
    test.pair.settle();
    // Both first words are alike, and only one doorbell is seen.
    let first = test.pair.qb.receive_cq.note_arm(false);
    ring_cq(&test.pair.b, first, received);
    test.pair.qb.send_cq.arm(false);
    test.pair.settle();
    let mut told = test.completions.drain();
    told.sort_by_key(|event| event.1);
    assert_eq!(told, [(EventType::Completion, sent), (EventType::Completion, received)]);
}

#[test]
fn moderation_waits_for_the_count_or_the_time() {
    let by_count = |context: &mut barewire_layouts::prm::ViewMut<'_, Cqc>| {
        _ = context.set(Cqc::CQ_MAX_COUNT, 3);
    };
    let mut test = Eventful::new(&Connection::default(), by_count);
    test.pair.qb.receive_cq.arm(false);
    for _ in 0..2 {
        test.send(false);
        assert_eq!(test.completions.drain(), []);
    }
    test.send(false);
    assert_eq!(test.completions.drain().len(), 1);

    let mut test = Eventful::new(&Connection::default(), |context| {
        context.set(Cqc::CQ_MAX_COUNT, 100).set(Cqc::CQ_PERIOD, 50);
    });
    test.pair.qb.receive_cq.arm(false);
    // To come to rest the devices wait for the moderation, too.
    test.send(false);
    assert_eq!(test.completions.drain().len(), 1);
}

#[test]
fn refused_requests_are_told_to_the_responders_user() {
    let mut test =
        Eventful::new(&Connection { remote_read: false, ..Connection::default() }, |_| ());
    let qpn = test.pair.qb.number;
    let source = test.pair.a.region(8);
    test.pair.qa.post(&Wqe::new(Opcode::RdmaWrite).remote(0, 0x1234).data(
        source.address(),
        8,
        source.key,
    ));
    test.pair.settle();
    assert_eq!(test.asynchronous.drain(), [(EventType::WqAccess, qpn)]);

    let mut test =
        Eventful::new(&Connection { remote_read: false, ..Connection::default() }, |_| ());
    let (qpn, source) = (test.pair.qb.number, test.pair.a.region(8));
    test.pair.qa.post(&Wqe::new(Opcode::RdmaRead).remote(0, 0x1234).data(
        source.address(),
        8,
        source.key,
    ));
    test.pair.settle();
    assert_eq!(test.asynchronous.drain(), [(EventType::WqInvalidRequest, qpn)]);
    assert_eq!(test.completions.drain(), []);
}

#[test]
fn an_overrun_is_told_as_queue_and_queue_pair_error() {
    let fabric = Fabric::new();
    let (a, b) = (node(&fabric, Strict::Report), node(&fabric, Strict::Report));
    let mut asynchronous = Eq::new(&b, 4, ALL);
    let (qa, qb) = (Qp::new(&a), Qp::with(&b, Cq::new(&b, 4), Cq::new(&b, 1), |_| ()));
    let mut pair = Pair::of(a, b, (qa, qb), &Connection::default());
    for _ in 0..3 {
        pair.qb.post_receive(&[]);
        pair.qa.post(&Wqe::new(Opcode::Send));
    }
    pair.settle();
    let (cqn, qpn) = (pair.qb.receive_cq.number, pair.qb.number);
    assert_eq!(asynchronous.drain(), [(EventType::CqError, cqn), (EventType::WqCatastrophic, qpn)]);
    assert_eq!(pair.b.device.take_reports().len(), 1);
}

#[test]
fn an_event_queue_that_nobody_reads_stops_and_says_so() {
    let mut test = Eventful::new(&Connection::default(), |_| ());
    let context = |test: &Eventful| {
        let output = command::<QueryEqIn>(&test.pair.b.device, |query| {
            query.set(QueryEqIn::EQ_NUMBER, test.completions.number);
        });
        let output = output.unwrap();
        let context = answer::<QueryEqIn>(&output).unwrap().nested(QueryEqOut::EQ_CONTEXT_ENTRY);
        let state = (context.get(Eqc::STATUS).unwrap(), context.get(Eqc::ST).unwrap());
        (state, context.get(Eqc::PRODUCER_COUNTER), context.get(Eqc::CONSUMER_COUNTER))
    };
    let step = |test: &mut Eventful| {
        test.pair.qb.receive_cq.arm(false);
        test.send(false);
        test.pair.qb.receive_cq.drain();
    };
    for _ in 0..16 {
        step(&mut test);
    }
    assert_eq!(context(&test), ((EqStatus::Ok, EqState::Idle), 16, 0));
    assert_eq!(test.completions.drain().len(), 16);
    test.completions.arm();
    test.pair.settle();
    assert_eq!(context(&test), ((EqStatus::Ok, EqState::Armed), 16, 16));
    for _ in 0..17 {
        step(&mut test);
    }
    assert_eq!(context(&test), ((EqStatus::WriteFailure, EqState::Fired), 32, 16));
    assert_eq!(test.pair.b.device.counters().events_lost, 1);
    // Telling the device directly is as good as the doorbell.
    test.pair.b.device.consume_events(test.completions.number, 32);
    assert_eq!(context(&test).2, 32);
}

#[test]
fn a_thread_wakes_the_sleeper() {
    let (a, b) = (Node::threaded(Faults::default()), Node::threaded(Faults::default()));
    let completions = Eq::new(&b, 4, 0);
    let qa = Qp::new(&a);
    let qb = Qp::with(&b, Cq::new(&b, 4), Cq::reporting(&b, 4, completions.number), |_| ());
    let mut pair = Pair::of(a, b, (qa, qb), &Connection::default());
    pair.qb.post_receive(&[]);
    pair.qb.receive_cq.arm(false);
    pair.qa.post(&Wqe::new(Opcode::Send));
    assert!(completions.channel.wait(Some(Duration::from_secs(30))).unwrap());
    assert_eq!(pair.qb.receive_cq.wait().length, 0);
}

#[test]
fn the_first_packet_at_a_queue_pair_that_only_receives_is_told() {
    let fabric = Fabric::new();
    let (a, b) = (node(&fabric, Strict::Panic), node(&fabric, Strict::Panic));
    let mut events = Eq::new(&b, 4, ALL);
    let (mut qa, mut qb) = (Qp::new(&a), Qp::new(&b));
    let connection = Connection::default();
    qb.ready_to_receive(a.device.gid(), qa.number, &connection, connection.psn);
    qa.connect(&b, qb.number, &connection, (connection.psn, 5));
    (0..2).for_each(|_| _ = qb.post_receive(&[]));
    for told in [true, false] {
        qa.post(&Wqe::new(Opcode::Send));
        while a.device.step() | b.device.step() {}
        let want = [(EventType::CommunicationEstablished, qb.number)];
        assert_eq!(events.drain(), want[..usize::from(told)]);
        assert!(qa.send_cq.poll().is_some_and(|one| one.is_ok()));
        if told {
            qb.ready_to_send(&connection, 5);
        }
    }
    // From ready-to-send on the user knows anyway.
    assert_eq!(qb.receive_cq.drain().len(), 2);
}
