//! What published measurements say of adapters, and another implementation might do otherwise: the
//! vendor's and the hardware's syndromes, where local keys are checked, what a refused write leaves
//! behind, queue pairs that are connected to themselves, counters and sequence numbers.

use crate::datagrams::{QKEY, address};
use crate::support::{Connection, Cq, Node, Pair, Qp, Region, Rights, Wqe, command, pattern};
use barewire_hca::{Fabric, Faults};
use barewire_layouts::command::answer;
use barewire_layouts::command::pd::{AllocPdIn, AllocPdOut};
use barewire_layouts::command::q_counter::{
    AllocQCounterIn, AllocQCounterOut, QueryQCounterIn, QueryQCounterOut,
};
use barewire_layouts::command::qp::{Mtu, Qpc, QueryQpIn, QueryQpOut, ServiceType};
use barewire_layouts::cqe::{ErrorCqe, SOLICITED};
use barewire_layouts::wqe::Opcode;
use zerocopy::FromBytes;

/// Syndrome, vendor's syndrome, hardware's syndrome.
type Failure = (u8, u8, u8);

const OK: Failure = (0, 0, 0);
const FLUSHED: Failure = (0x05, 0xf9, 0);
const REMOTE_ACCESS: Failure = (0x13, 0x88, 0);
const REMOTE_REQUEST: Failure = (0x12, 0x8a, 0);

/// Returns how the completions of a queue that has not wrapped ended, `before` of which were polled
/// earlier.
fn failures_after(cq: &mut Cq, before: u32) -> Vec<Failure> {
    let mut index = before;
    std::iter::from_fn(|| {
        let completion = cq.poll()?;
        let sum = cq.last.iter().chain(&index.to_ne_bytes()).fold(0_u8, |sum, byte| sum ^ byte);
        assert_eq!(sum, 0xff, "the signature of entry {index}");
        index += 1;
        if completion.is_ok() {
            return Some(OK);
        }
        let error = ErrorCqe::read_from_bytes(&cq.last[..]).unwrap();
        assert!(error.op_own & SOLICITED != 0, "{error:?}");
        assert_eq!(error.hardware_syndrome_type, 0);
        Some((error.syndrome, error.vendor_syndrome, error.hardware_syndrome))
    })
    .collect()
}

fn failures(cq: &mut Cq) -> Vec<Failure> {
    failures_after(cq, 0)
}

/// A region of another protection domain.
fn foreign(node: &Node) -> Region {
    let output = command::<AllocPdIn>(&node.device, |_| ()).unwrap();
    let pd = answer::<AllocPdIn>(&output).unwrap().get(AllocPdOut::PD);
    Node { pd, ..node.clone() }.region(64)
}

/// A key without local writes.
fn read_only(node: &Node, region: &Region) -> u32 {
    let rights = Rights { local_write: false, remote_write: false, ..Rights::ALL };
    node.key(&region.memory, 0, 64, Rights { remote_atomic: false, ..rights })
}

#[test]
fn frames_to_the_own_port_are_not_lost() {
    const PAIRS: usize = 100;
    const EACH: u64 = 32;
    let node = Node::stepped(&Fabric::new(), Faults::default());
    let counter = node.region(8);
    // Without timeouts, nothing that is lost is sent again.
    let connection = Connection { ack_timeout: 0, ..Connection::default() };
    let mut qps: Vec<[Qp; 2]> = (0..PAIRS)
        .map(|_| {
            let [mut one, mut other] = [(); 2].map(|()| Qp::with_cqs(&node, 6, 6));
            one.connect(&node, other.number, &connection, (1, 2));
            other.connect(&node, one.number, &connection, (2, 1));
            [one, other]
        })
        .collect();
    for [one, _] in &mut qps {
        for number in 0..EACH {
            let write = Wqe::new(Opcode::RdmaWrite).remote(counter.address(), counter.key);
            one.post(&write.inline(&number.to_ne_bytes()));
        }
    }
    while node.device.step() {}
    for [one, _] in &mut qps {
        let done = one.send_cq.drain();
        assert_eq!(done.iter().filter(|one| one.is_ok()).count() as u64, EACH);
    }
    assert_eq!(node.device.counters().send_failures, 0);
}

#[test]
fn gathering_errors_name_their_cause() {
    type Case = fn(&Node) -> (Wqe, Failure);
    let cases: [Case; 3] = [
        |node| {
            let local = node.region(64);
            (Wqe::new(Opcode::Send).data(local.address(), 8, local.key ^ 1), (0x04, 0x52, 0x92))
        },
        |node| {
            let local = foreign(node);
            (Wqe::new(Opcode::Send).data(local.address(), 8, local.key), (0x04, 0x52, 0x93))
        },
        |node| {
            let local = node.region(64);
            (Wqe::new(Opcode::Send).data(local.address(), 65, local.key), (0x04, 0x53, 0x9d))
        },
    ];
    for case in cases {
        let mut pair = Pair::new(&Connection::default());
        let (wqe, failure) = case(&pair.a);
        pair.qa.post(&wqe);
        pair.qa.post(&Wqe::new(Opcode::Nop));
        pair.settle();
        // A flush repeats what the hardware said of the error.
        let flushed = (0x05, 0xf9, failure.2);
        assert_eq!(failures(&mut pair.qa.send_cq), [failure, flushed]);
        assert_eq!(pair.b.device.counters().packets_received, 0);
    }
}

#[test]
fn packets_before_the_end_of_a_local_key_are_sent() {
    let mut pair = Pair::new(&Connection { mtu: Mtu::Bytes256, ..Connection::default() });
    let (local, remote) = (pair.a.region(4096), pair.b.region(4096));
    local.memory.write(0, &pattern(4096, 1));
    let key = pair.a.key(&local.memory, 0, 1000, Rights::ALL);
    let write = Wqe::new(Opcode::RdmaWrite).remote(remote.address(), remote.key);
    pair.qa.post(&write.data(local.address(), 2000, key));
    pair.settle();
    assert_eq!(failures(&mut pair.qa.send_cq), [(0x04, 0x53, 0x9d)]);
    assert_eq!(pair.b.device.counters().packets_received, 3);
    assert_eq!(remote.memory.read(0, 768), pattern(4096, 1)[..768]);
    assert_eq!(remote.memory.read(768, 256), [0; 256]);
}

#[test]
fn local_keys_of_responses_are_checked_when_the_response_arrives() {
    type Case = fn(&Node, &Region) -> (u32, Failure);
    let cases: [Case; 4] = [
        |_, local| (local.key ^ 1, (0x04, 0x32, 0x92)),
        |node, _| (foreign(node).key, (0x04, 0x32, 0x93)),
        |node, local| (read_only(node, local), (0x04, 0x33, 0x9d)),
        |node, local| (node.key(&local.memory, 0, 4, Rights::ALL), (0x04, 0x33, 0x9d)),
    ];
    for case in cases {
        for opcode in [Opcode::RdmaRead, Opcode::AtomicFetchAdd] {
            let mut pair = Pair::new(&Connection::default());
            let (local, remote) = (pair.a.region(64), pair.b.region(64));
            let (lkey, failure) = case(&pair.a, &local);
            let wqe = Wqe::new(opcode).remote(remote.address(), remote.key);
            let wqe = if opcode == Opcode::RdmaRead { wqe } else { wqe.atomic(3, 0) };
            pair.qa.post(&wqe.data(local.address(), 8, lkey));
            pair.qa.post(&Wqe::new(Opcode::Nop));
            pair.settle();
            let want = [failure, (0x05, 0xf9, failure.2)];
            assert_eq!(failures(&mut pair.qa.send_cq), want, "{opcode:?}");
            // The peer has executed the request.
            let counters = pair.b.device.counters();
            assert_eq!(counters.reads + counters.atomics, 1);
            let atomic = u64::from(opcode != Opcode::RdmaRead);
            assert_eq!(remote.memory.read(0, 8), (3 * atomic).to_ne_bytes());
        }
    }
}

#[test]
fn a_refusal_by_the_peer_is_reported_before_a_bad_local_key() {
    for (opcode, offset, wrong, failure) in [
        (Opcode::RdmaRead, 0, 1, REMOTE_ACCESS),
        (Opcode::AtomicFetchAdd, 0, 1, REMOTE_ACCESS),
        (Opcode::AtomicCompareSwap, 4, 0, REMOTE_REQUEST),
    ] {
        let mut pair = Pair::new(&Connection::default());
        let (local, remote) = (pair.a.region(64), pair.b.region(64));
        let wqe = Wqe::new(opcode).remote(remote.address() + offset, remote.key ^ wrong);
        let wqe = if opcode == Opcode::RdmaRead { wqe } else { wqe.atomic(3, 0) };
        pair.qa.post(&wqe.data(local.address(), 8, local.key ^ 1));
        pair.settle();
        assert_eq!(failures(&mut pair.qa.send_cq), [failure], "{opcode:?}");
    }
}

#[test]
fn scattering_errors_of_receives_name_their_cause() {
    type Case = fn(&Node, &Region) -> (u32, Failure);
    let cases: [Case; 3] = [
        |_, region| (region.key ^ 1, (0x04, 0x32, 0x92)),
        |node, region| (read_only(node, region), (0x04, 0x33, 0x9d)),
        |node, region| (node.key(&region.memory, 0, 4, Rights::ALL), (0x04, 0x33, 0x9d)),
    ];
    for case in cases {
        let mut pair = Pair::new(&Connection::default());
        let region = pair.b.region(64);
        let (lkey, failure) = case(&pair.b, &region);
        pair.qb.post_receive(&[(region.address(), 64, lkey)]);
        pair.qb.post_receive(&[]);
        pair.qa.post(&Wqe::new(Opcode::Send).inline(&[1; 8]));
        pair.settle();
        let want = [failure, (0x05, 0xf9, failure.2)];
        assert_eq!(failures(&mut pair.qb.receive_cq), want);
        assert_eq!(failures(&mut pair.qa.send_cq), [(0x14, 0x89, 0)]);
    }
}

/// Posts a write of `length` bytes to a key of `covered` bytes. Returns what was written, and by how
/// many packets the next sequence number to send has advanced.
fn write_beyond(covered: usize, length: usize) -> (usize, u32) {
    let psn = 0x1000;
    let connection = Connection { mtu: Mtu::Bytes1024, psn, ..Connection::default() };
    let mut pair = Pair::new(&connection);
    let (local, remote) = (pair.a.region(length), pair.b.region(length));
    local.memory.write(0, &vec![0xab; length]);
    let rkey = pair.b.key(&remote.memory, 0, covered, Rights::ALL);
    let wqe = Wqe::new(Opcode::RdmaWrite).remote(remote.address(), rkey);
    pair.qa.post(&wqe.data(local.address(), length, local.key));
    pair.settle();
    assert_eq!(failures(&mut pair.qa.send_cq), [REMOTE_ACCESS]);
    assert_eq!(pair.b.device.counters().writes, 1);
    let output = command::<QueryQpIn>(&pair.a.device, |query| {
        query.set(QueryQpIn::QPN, pair.qa.number);
    });
    let output = output.unwrap();
    let context = answer::<QueryQpIn>(&output).unwrap().nested(QueryQpOut::QPC);
    let written = remote.memory.read(0, length);
    let written = written.iter().take_while(|&&byte| byte == 0xab).count();
    (written, context.get(Qpc::NEXT_SEND_PSN) - psn)
}

#[test]
fn packets_before_the_end_of_a_remote_key_are_written() {
    // The packet that crosses the end writes nothing, and the sequence number goes back to its own.
    assert_eq!(write_beyond(2048, 4096), (2048, 2));
    assert_eq!(write_beyond(2560, 3072), (2048, 2));
    assert_eq!(write_beyond(500, 1000), (0, 0));
}

#[test]
fn a_queue_pair_that_is_connected_to_itself_reports_the_refusal() {
    type Case = fn(&Node) -> (Wqe, Failure);
    let cases: [Case; 3] = [
        |node| {
            let region = node.region(64);
            let wqe = Wqe::new(Opcode::RdmaWrite).remote(region.address(), region.key ^ 1);
            (wqe.inline(&[1; 8]), REMOTE_ACCESS)
        },
        |node| {
            let region = node.region(64);
            let wqe = Wqe::new(Opcode::RdmaRead).remote(region.address() + 60, region.key);
            (wqe.data(region.address(), 8, region.key), REMOTE_ACCESS)
        },
        |node| {
            let region = node.region(64);
            let wqe = Wqe::new(Opcode::AtomicFetchAdd).remote(region.address() + 4, region.key);
            (wqe.atomic(1, 0).data(region.address(), 8, region.key), REMOTE_REQUEST)
        },
    ];
    for case in cases {
        let node = Node::stepped(&Fabric::new(), Faults::default());
        let mut qp = Qp::new(&node);
        qp.connect(&node, qp.number, &Connection::default(), (7, 7));
        qp.post_receive(&[]);
        let (wqe, failure) = case(&node);
        qp.post(&wqe);
        qp.post(&Wqe::new(Opcode::Nop));
        while node.device.step() {}
        assert_eq!(failures(&mut qp.send_cq), [failure, FLUSHED]);
        assert_eq!(failures(&mut qp.receive_cq), [FLUSHED]);
    }
}

#[test]
fn a_write_with_immediate_without_access_fails_its_receive() {
    let mut pair = Pair::new(&Connection::default());
    let remote = pair.b.region(64);
    for _ in 0..2 {
        pair.qb.post_receive(&[]);
    }
    let wqe = Wqe::new(Opcode::RdmaWriteImmediate).remote(remote.address(), remote.key ^ 1);
    pair.qa.post(&wqe.inline(&[1; 8]));
    pair.settle();
    assert_eq!(failures(&mut pair.qa.send_cq), [REMOTE_ACCESS]);
    assert_eq!(failures(&mut pair.qb.receive_cq), [(0x11, 0, 0), FLUSHED]);
}

#[test]
fn the_first_flush_behind_a_command_says_so_and_is_not_counted_as_flush() {
    let fabric = Fabric::new();
    let (a, b) =
        (Node::stepped(&fabric, Faults::default()), Node::stepped(&fabric, Faults::default()));
    let device = a.device.clone();
    let output = command::<AllocQCounterIn>(&device, |_| ()).unwrap();
    let set = answer::<AllocQCounterIn>(&output).unwrap().get(AllocQCounterOut::COUNTER_SET_ID);
    let (mut qa, qb) = (Qp::new(&a), Qp::new(&b));
    qa.counter_set = set;
    let mut pair = Pair::of(a, b, (qa, qb), &Connection::default());
    // The peer has no receives, so that all stay outstanding.
    for _ in 0..3 {
        pair.qa.post(&Wqe::new(Opcode::Send).unsignalled());
    }
    pair.step(20);
    pair.qa.to_error();
    pair.settle();
    let by_command = (0x05, 0xf5, 0);
    assert_eq!(failures(&mut pair.qa.send_cq), [by_command, FLUSHED, FLUSHED]);
    let output = command::<QueryQCounterIn>(&device, |query| {
        query.set(QueryQCounterIn::COUNTER_SET_ID, set);
    })
    .unwrap();
    let counts = answer::<QueryQCounterIn>(&output).unwrap();
    let counts = [QueryQCounterOut::REQ_CQE_ERROR, QueryQCounterOut::REQ_CQE_FLUSH_ERROR]
        .map(|field| counts.get(field));
    assert_eq!(counts, [3, 2]);
    // With nothing outstanding, the next post is the first.
    pair.qb.to_error();
    pair.settle();
    assert!(pair.qb.send_cq.drain().is_empty());
    pair.qb.post(&Wqe::new(Opcode::Nop));
    pair.qb.post(&Wqe::new(Opcode::Nop));
    pair.settle();
    assert_eq!(failures(&mut pair.qb.send_cq), [by_command, FLUSHED]);
}

#[test]
fn a_queue_without_user_index_completes_with_zero_in_its_place() {
    let fabric = Fabric::new();
    let (a, b) =
        (Node::stepped(&fabric, Faults::default()), Node::stepped(&fabric, Faults::default()));
    let [qa, qb] = [&a, &b].map(|node| {
        Qp::with(node, Cq::new(node, 5), Cq::new(node, 5), |context| {
            context.set(Qpc::USER_INDEX, 0x00ff_ffff);
        })
    });
    let mut pair = Pair::of(a, b, (qa, qb), &Connection::default());
    pair.qb.post_receive(&[]);
    pair.qb.post_receive(&[]);
    pair.qa.post(&Wqe::new(Opcode::Send));
    pair.qa.post(&Wqe::new(Opcode::RdmaWrite).remote(0, 0x1234).inline(&[1]));
    pair.settle();
    for (cq, count) in [(&mut pair.qa.send_cq, 2), (&mut pair.qb.receive_cq, 2)] {
        let done = cq.drain();
        assert_eq!(done.iter().map(|one| one.user_index).collect::<Vec<_>>(), vec![0; count]);
        assert!(done[0].is_ok() && !done[1].is_ok());
    }
}

#[test]
fn a_datagram_arrives_with_the_traffic_class_of_its_address() {
    let fabric = Fabric::new();
    let nodes: Vec<Node> = (0..2).map(|_| Node::stepped(&fabric, Faults::default())).collect();
    let connection = Connection { mtu: Mtu::Bytes1024, qkey: QKEY, ..Connection::default() };
    // To another port, and to the sender's own.
    for to in &nodes {
        let mut sender = Qp::with_service(&nodes[0], ServiceType::Ud);
        let mut receiver = Qp::with_service(to, ServiceType::Ud);
        for qp in [&mut sender, &mut receiver] {
            qp.connect_to([0; 16], 0, &connection, (5, 5));
        }
        let region = to.region(256);
        for class in [0xb8, 0] {
            receiver.post_receive(&[(region.address(), 256, region.key)]);
            let mut to = address(&to.device, receiver.number, QKEY);
            to.traffic_class = class;
            sender.post(&Wqe::new(Opcode::Send).addressed(&to).inline(b"x"));
            while nodes.iter().fold(false, |busy, node| node.device.step() | busy) {}
            assert!(receiver.receive_cq.poll().unwrap().is_ok());
            // The second byte of the IPv4 header, behind 20 unused bytes.
            assert_eq!(region.memory.read(20, 2), [0x45, class]);
        }
    }
}
