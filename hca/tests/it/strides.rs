//! Shared receive queues whose WQEs have strides: a packet takes a stride and completes.
//!
//! Messages from several queue pairs share a WQE, wait in their middle, fail and get lost.

use crate::support::srq::Shape;
use crate::support::strides::{COUNT, ENTRIES, Strided, striding};
use crate::support::tags::{Xrq, append, change};
use crate::support::{
    Completion, Connection, Cq, LOG_CQ, Node, Pair, Qp, Region, Wqe, command, pattern,
};
use barewire_hca::{Config, Fabric, Faults, Mode, Strict, WireKind};
use barewire_layouts::command::answer;
use barewire_layouts::command::qp::{Mtu, ServiceType};
use barewire_layouts::command::rmp::{QueryRmpIn, QueryRmpOut, Rmpc, Wq, WqType};
use barewire_layouts::command::strides::Strides;
use barewire_layouts::command::xrq::Xrqc;
use barewire_layouts::cqe::{CqeOpcode, StrideCount, Syndrome, TagEvent};
use barewire_layouts::tag::{TagHeader, TagOpcode};
use barewire_layouts::wqe::{AddressVector, INLINE, INVALID_LKEY, Opcode, TagFlags, TagSegment};
use zerocopy::IntoBytes;

/// Bytes of a stride and of a packet.
const BYTES: usize = 256;
const LOG_BYTES: u8 = 8;
const SHAPES: [Shape; 3] = [Shape::List, Shape::Cyclic, Shape::Basic];

/// Senders on one device, and on the other as many receivers that share a pool.
///
/// Dropped in this order: the queue pairs use the pool.
struct Test {
    a: Node,
    b: Node,
    qps: Vec<(Qp, Qp)>,
    pool: Strided,
}

impl Test {
    fn new(shape: Shape, log_bytes: u8, pairs: usize) -> Self {
        Self::open(shape, log_bytes, pairs, ServiceType::Rc, &Faults::default(), 0)
    }

    fn open(
        shape: Shape,
        log_bytes: u8,
        pairs: usize,
        service: ServiceType,
        faults: &Faults,
        scatter: u8,
    ) -> Self {
        let fabric = Fabric::new();
        let open = || {
            let wire = WireKind::Fabric(fabric.clone());
            let config = Config::default().mode(Mode::Stepped).wire(wire).faults(faults.clone());
            Node::open(config.strict(Strict::Report))
        };
        let (a, b) = (open(), open());
        let pool = Strided::new(&b, shape, log_bytes);
        let connection = Connection::default();
        let pair = |_| {
            let qps = (Qp::with_service(&a, service), pool.queue_pair(service, scatter));
            let pair = Pair::of(a.clone(), b.clone(), qps, &connection);
            (pair.qa, pair.qb)
        };
        let qps = (0..pairs).map(pair).collect();
        Self { a, b, qps, pool }
    }

    fn step(&self, passes: usize) {
        for _ in 0..passes {
            self.a.device.step();
            self.b.device.step();
        }
    }

    fn settle(&self) {
        for _ in 0..1_000_000 {
            if !(self.a.device.step() | self.b.device.step()) {
                return;
            }
        }
        panic!("the devices stay busy");
    }

    /// Memory of the senders that holds `bytes`.
    fn region(&self, bytes: &[u8]) -> Region {
        let region = self.a.region(bytes.len().max(1));
        region.memory.write(0, bytes);
        region
    }

    fn send(&mut self, pair: usize, bytes: &[u8]) {
        let region = self.region(bytes);
        let wqe = Wqe::new(Opcode::Send).data(region.address(), bytes.len(), region.key);
        self.qps[pair].0.post(&wqe);
        self.settle();
        self.qps[pair].0.send_cq.drain();
    }

    fn drain(&mut self, pair: usize) -> Vec<Completion> {
        self.qps[pair].1.receive_cq.drain()
    }

    /// Takes all packets of a receiver, and returns the messages that they end.
    fn messages(&mut self, pair: usize) -> Vec<Vec<u8>> {
        let completions = self.drain(pair);
        completions.iter().filter_map(|completion| self.pool.take(completion)).collect()
    }
}

#[test]
fn each_packet_takes_a_stride() {
    for shape in SHAPES {
        let mut test = Test::new(shape, LOG_BYTES, 1);
        test.pool.refill();
        // A WQE has 2048 bytes. Three times round the ring of four.
        for length in [0, 1, 255, 256, 257, 511, 512, 513, 2047, 2048, 2049, 4096, 6400].repeat(5) {
            let message = pattern(length, length as u64);
            test.send(0, &message);
            let completions = test.drain(0);
            assert_eq!(completions.len(), length.div_ceil(BYTES).max(1));
            for (at, completion) in completions.iter().enumerate() {
                let count = StrideCount(completion.length);
                let last = at + 1 == completions.len();
                assert_eq!((count.is_first(), count.is_last()), (at == 0, last), "{shape:?}");
                assert_eq!(completion.opcode, CqeOpcode::ResponderSend);
                assert_eq!(test.pool.take(completion), last.then(|| message.clone()));
            }
            test.pool.refill();
        }
    }
}

#[test]
fn messages_of_many_senders_share_a_wqe() {
    let mut test = Test::new(Shape::Cyclic, LOG_BYTES, 3);
    test.pool.refill();
    let messages = [700, 1, 600].map(|length| pattern(length, length as u64));
    let regions = messages.each_ref().map(|message| test.region(message));
    for (((qp, _), region), message) in test.qps.iter_mut().zip(&regions).zip(&messages) {
        let wqe = Wqe::new(Opcode::SendImmediate).immediate(9);
        qp.post(&wqe.data(region.address(), message.len(), region.key));
    }
    test.settle();
    let mut arrived = vec![Vec::new(); 3];
    let immediates = collect(&mut test, &mut arrived);
    assert_eq!(arrived, messages.map(|message| vec![message]));
    // Seven packets, three of which end a message.
    assert_eq!((immediates.len(), immediates.iter().filter(|&&one| one == 9).count()), (7, 3));
}

#[test]
fn a_message_waits_for_a_stride_in_its_middle() {
    let mut test = Test::new(Shape::List, LOG_BYTES, 2);
    test.pool.post();
    let message = pattern(12 * BYTES, 4);
    let region = test.region(&message);
    test.qps[0].0.post(&Wqe::new(Opcode::Send).data(region.address(), message.len(), region.key));
    test.step(300);
    assert!(test.b.device.counters().rnr_naks_sent > 0);
    assert_eq!(test.messages(0), [[0_u8; 0]; 0]);
    test.pool.post();
    test.settle();
    assert_eq!(test.messages(0), [message]);
    // Four strides are left.
    test.send(1, &pattern(4 * BYTES, 5));
    assert_eq!(test.messages(1), [pattern(4 * BYTES, 5)]);
}

#[test]
fn a_packet_that_exceeds_a_stride_fails_with_it() {
    let mut test = Test::new(Shape::Cyclic, 6, 2);
    test.pool.refill();
    test.send(0, &[1; 64]);
    assert_eq!(test.messages(0), [[1; 64]]);
    test.send(0, &[2; 65]);
    let failed = test.drain(0);
    assert_eq!((failed.len(), failed[0].syndrome), (1, Some(Syndrome::LocalLength)));
    test.pool.skip(&failed[0]);
    // The other queue pair continues with the next stride.
    test.send(1, &[3; 60]);
    assert_eq!(test.messages(1), [[3; 60]]);
}

#[test]
fn strides_without_a_buffer_hold_nothing() {
    let mut test = Test::new(Shape::Cyclic, LOG_BYTES, 4);
    let mut segments = test.pool.segments();
    segments[0].2 = INVALID_LKEY;
    segments[1].2 = INVALID_LKEY;
    segments[2].1 |= INLINE as usize;
    // Longer than a stride: no more than that is used.
    segments[3].1 = 4096;
    segments[4].2 ^= 0x100;
    test.pool.post_segments(&segments);
    test.send(0, &[]);
    assert_eq!(test.messages(0), [[0_u8; 0]]);
    for (pair, syndrome) in [
        (0, Some(Syndrome::LocalLength)),
        (1, Some(Syndrome::LocalQpOperation)),
        (2, None),
        (2, Some(Syndrome::LocalProtection)),
    ] {
        test.send(pair, &[1; BYTES]);
        let completions = test.drain(pair);
        assert_eq!((completions.len(), completions[0].syndrome), (1, syndrome));
        test.pool.skip(&completions[0]);
    }
    assert_eq!(test.b.device.take_reports().len(), 1);
    test.send(3, &[5; 3]);
    assert_eq!(test.messages(3), [[5; 3]]);
}

/// Between two packets a message holds no stride, so its end completes none.
#[test]
fn a_message_that_is_cut_off_completes_nothing_more() {
    for reset in [false, true] {
        let mut test = Test::new(Shape::List, LOG_BYTES, 2);
        test.pool.post();
        let region = test.a.region(16 * BYTES);
        test.qps[0].0.post(&Wqe::new(Opcode::Send).data(region.address(), 16 * BYTES, region.key));
        test.step(300);
        assert_eq!(test.messages(0), [[0_u8; 0]; 0]);
        if reset {
            test.qps[0].1.reset();
        } else {
            test.qps[0].1.to_error();
        }
        test.step(20);
        assert_eq!(test.drain(0), []);
        test.pool.post();
        test.send(1, b"after");
        assert_eq!(test.messages(1), [b"after"]);
    }
}

#[test]
fn a_write_with_immediate_takes_a_stride_and_keeps_its_length() {
    let mut test = Test::new(Shape::Cyclic, LOG_BYTES, 1);
    test.pool.refill();
    let (source, target) = (test.a.region(70_000), test.b.region(70_000));
    test.qps[0].0.post(
        &Wqe::new(Opcode::RdmaWriteImmediate)
            .immediate(5)
            .remote(target.address(), target.key)
            .data(source.address(), 70_000, source.key),
    );
    test.settle();
    let [written] = test.drain(0)[..] else { panic!("one completion") };
    assert_eq!(written.opcode, CqeOpcode::ResponderWriteImmediate);
    assert_eq!((written.length, written.immediate, written.packet.stride()), (70_000, 5, 0));
    test.pool.skip(&written);
    test.send(0, b"next");
    assert_eq!(test.messages(0), [b"next"]);
}

#[test]
fn a_small_message_in_the_completion_takes_a_stride() {
    let faults = Faults::default();
    let mut test = Test::open(Shape::Cyclic, LOG_BYTES, 1, ServiceType::Rc, &faults, 1);
    test.pool.refill();
    test.send(0, b"small");
    let completion = test.qps[0].1.receive_cq.poll().unwrap();
    assert_eq!(test.qps[0].1.receive_cq.last[..5], *b"small");
    let count = StrideCount(completion.length);
    assert_eq!((count.length(), count.is_first(), count.is_last()), (5, true, true));
    test.pool.skip(&completion);
    test.send(0, &[4; 33]);
    assert_eq!(test.messages(0), [[4; 33]]);
}

#[test]
fn datagrams_take_a_stride_with_their_header() {
    const GRH: usize = 40;
    let faults = Faults::default();
    let mut test = Test::open(Shape::List, LOG_BYTES, 1, ServiceType::Ud, &faults, 0);
    test.pool.refill();
    let (gid, qpn) = (test.b.device.gid(), test.qps[0].1.number);
    let qkey = Connection::default().qkey;
    let address = AddressVector::roce(qpn, qkey, [2, 0, 0, 0, 0, 1], gid, 0xc000, 0, 64);
    for length in [0, 1, BYTES - GRH] {
        let region = test.region(&pattern(length, 3));
        let wqe = Wqe::new(Opcode::Send).addressed(&address);
        test.qps[0].0.post(&wqe.data(region.address(), length, region.key));
        test.settle();
        let messages = test.messages(0);
        assert_eq!(messages[0][GRH..], pattern(length, 3));
    }
}

/// Random messages of three senders under faults, against what was sent.
#[test]
fn every_message_arrives_once_under_faults() {
    for seed in 0..if cfg!(miri) { 1 } else { 24 } {
        let faults =
            Faults::default().drop(0.03).duplicate(0.03).reorder(0.03).corrupt(0.02).seed(seed);
        let shape = SHAPES[seed as usize % 3];
        let mut test = Test::open(shape, LOG_BYTES, 3, ServiceType::Rc, &faults, 0);
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut sent, mut arrived) = (vec![Vec::new(); 3], vec![Vec::new(); 3]);
        let mut regions = Vec::new();
        for _ in 0..60 {
            let pair = random.usize(..3);
            let message = pattern(random.usize(..6 * BYTES), random.u64(..));
            let region = test.region(&message);
            let wqe = Wqe::new(Opcode::Send).data(region.address(), message.len(), region.key);
            test.qps[pair].0.post(&wqe);
            regions.push(region);
            sent[pair].push(message);
            test.step(random.usize(..6));
            collect(&mut test, &mut arrived);
            // Sometimes senders wait for strides.
            if random.bool() {
                test.pool.refill();
            }
        }
        for _ in 0..10_000 {
            test.step(4);
            collect(&mut test, &mut arrived);
            test.pool.refill();
            if arrived.iter().map(Vec::len).sum::<usize>() == regions.len() {
                break;
            }
        }
        assert!(arrived == sent, "seed {seed}: other messages arrived");
    }
}

/// Takes packets in the order of their strides, whichever queue pair they are for, and returns
/// their immediates.
fn collect(test: &mut Test, arrived: &mut [Vec<Vec<u8>>]) -> Vec<u32> {
    let (mut packets, mut immediates) = (Vec::new(), Vec::new());
    for pair in 0..arrived.len() {
        packets.extend(test.drain(pair).into_iter().map(|completion| (pair, completion)));
    }
    while !packets.is_empty() {
        let at = packets.iter().position(|(_, completion)| test.pool.is_next(completion));
        let (pair, completion) = packets.remove(at.expect("a completion of the next stride"));
        arrived[pair].extend(test.pool.take(&completion));
        immediates.push(completion.immediate);
    }
    immediates
}

#[test]
fn a_lost_packet_ends_an_unreliable_message() {
    let faults = Faults::default().drop(0.1).seed(5);
    let mut test = Test::open(Shape::Cyclic, LOG_BYTES, 1, ServiceType::Uc, &faults, 0);
    let (mut sent, mut arrived) = (Vec::new(), Vec::new());
    for number in 0..100_u64 {
        test.pool.refill();
        let message = pattern(1 + number as usize * 17 % 900, number);
        test.send(0, &message);
        sent.push(message);
        arrived.extend(test.messages(0));
    }
    assert!(arrived.len() < 100 && arrived.len() > 30, "{}", arrived.len());
    assert!(arrived.iter().all(|message| sent.contains(message)));
}

#[test]
fn contexts_with_strides() {
    let test = Test::new(Shape::List, 12, 0);
    let output = command::<QueryRmpIn>(&test.b.device, |query| {
        query.set(QueryRmpIn::RMPN, test.pool.number);
    });
    let output = output.unwrap();
    let context = answer::<QueryRmpIn>(&output).unwrap().nested(QueryRmpOut::RMP_CONTEXT);
    let wq = context.nested(Rmpc::WQ);
    assert_eq!(wq.get(Wq::WQ_TYPE), Ok(WqType::LinkedListStriding));
    assert_eq!(Strides::read(&wq), Strides::new(3, 12));
    assert_eq!(wq.get(Wq::LOG_WQ_SZ), ENTRIES.ilog2() as u8);
}

/// Tag matching: a matched message takes no stride, an unexpected one a stride for each packet, and
/// it counts once.
#[test]
fn unexpected_messages_take_strides() {
    let fabric = Fabric::new();
    let node = || Node::stepped(&fabric, Faults::default());
    let (a, b) = (node(), node());
    // Two WQEs of 256 bytes in the ring of eight of 64.
    let mut xrq = Xrq::new(&b, Cq::new(&b, LOG_CQ), |context| {
        let mut wq = context.nested(Xrqc::WQ);
        striding(&mut wq, true, LOG_BYTES);
        wq.set(Wq::LOG_WQ_SZ, 1);
    });
    let buffers = b.region(2 * COUNT * BYTES);
    for index in 0..2 {
        let segments: [_; COUNT] = std::array::from_fn(|stride| {
            let at = (index * COUNT + stride) * BYTES;
            (buffers.address() + at as u64, BYTES, buffers.key)
        });
        xrq.post_long(index, 256, &segments);
    }
    let (qa, qb, mut list) = (Qp::new(&a), xrq.queue_pair(), xrq.list_pair());
    let mut pair = Pair::of(a, b, (qa, qb), &Connection { mtu: Mtu::Bytes256, ..<_>::default() });
    let (source, matched) = (pair.a.region(8192), pair.b.region(8192));
    let send = |pair: &mut Pair, tag, data: &[u8]| {
        let header = TagHeader::new(TagOpcode::Eager, 1, tag);
        let bytes = [header.as_bytes(), data].concat();
        source.memory.write(0, &bytes);
        pair.qa.post(&Wqe::new(Opcode::Send).data(source.address(), bytes.len(), source.key));
        pair.settle();
        bytes
    };
    let unexpected = send(&mut pair, 6, &pattern(700, 1));
    let mut got = Vec::new();
    for stride in 0..3_usize {
        let event = xrq.poll().unwrap();
        let count = StrideCount(event.length);
        assert_eq!(event.kind, Some(TagEvent::Unexpected));
        assert_eq!((count.is_first(), count.is_last()), (stride == 0, stride == 2));
        got.extend(buffers.memory.read(stride * BYTES, count.length().into()));
    }
    assert!(got == unexpected && xrq.poll().is_none());

    list.post(&append(1, (5, u64::MAX), &matched, 4096));
    pair.settle();
    let appended = xrq.poll().unwrap();
    assert_eq!(appended.result.hardware_count.get(), 1);
    let nop = TagSegment::nop(TagFlags::empty());
    list.post(&change(&nop.with_software_count(1)));
    pair.settle();
    let data = pattern(1000, 2);
    send(&mut pair, 5, &data);
    assert_eq!(xrq.poll().unwrap().kind, Some(TagEvent::Consumed));
    let expected = xrq.poll().unwrap();
    assert_eq!((expected.kind, expected.length), (Some(TagEvent::Expected), 1000));
    assert_eq!(matched.memory.read(0, 1000), data);

    // The next stride follows the unexpected message's.
    let bytes = send(&mut pair, 7, b"after");
    assert_eq!(xrq.poll().unwrap().kind, Some(TagEvent::Unexpected));
    assert_eq!(buffers.memory.read(3 * BYTES, bytes.len()), bytes);
}
