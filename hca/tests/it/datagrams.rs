//! Unreliable datagrams: addressed by each WQE, delivered with a network header, dropped without a
//! report.

use crate::support::{Completion, Connection, Cq, Node, Pair, Qp, Wqe, pattern};
use barewire_hca::{Device, Fabric, Faults};
use barewire_layouts::command::cq::CqeSize;
use barewire_layouts::command::qp::{Mtu, Qpc, ServiceType};
use barewire_layouts::cqe::{CqeFormat, CqeOpcode, Syndrome};
use barewire_layouts::wqe::{AddressVector, CompactAddressVector, Opcode};

pub(crate) const QKEY: u32 = 0x1111_1111;
const GRH: usize = 40;

fn connection() -> Connection {
    Connection { mtu: Mtu::Bytes1024, qkey: QKEY, ..Connection::default() }
}

fn pair() -> Pair {
    let fabric = Fabric::new();
    let (a, b) =
        (Node::stepped(&fabric, Faults::default()), Node::stepped(&fabric, Faults::default()));
    Pair::with_service(ServiceType::Ud, a, b, &connection())
}

pub(crate) fn address(device: &Device, qpn: u32, qkey: u32) -> AddressVector {
    AddressVector::roce(qpn, qkey, [2, 0, 0, 0, 0, 1], device.gid(), 0xc000, 0, 64)
}

#[test]
fn a_datagram_arrives_behind_its_network_header() {
    let mut pair = pair();
    let inbox = pair.b.region(2048);
    let index = pair
        .qb
        .post_receive(&[(inbox.address(), 50, inbox.key), (inbox.address() + 50, 1998, inbox.key)]);
    let data = pattern(700, 1);
    let local = pair.a.region(1024);
    local.memory.write(0, &data);
    let to = address(&pair.b.device, pair.qb.number, QKEY);
    let sent = pair.qa.post(&Wqe::new(Opcode::SendImmediate).immediate(7).addressed(&to).data(
        local.address(),
        700,
        local.key,
    ));
    pair.settle();
    let done = pair.qa.send_cq.drain();
    assert!(matches!(done[..], [one] if one.is_ok() && one.index == sent), "{done:?}");
    let done = pair.qb.receive_cq.drain();
    let [one] = done[..] else { panic!("{done:?}") };
    assert_eq!(
        (one.opcode, one.index, one.immediate),
        (CqeOpcode::ResponderSendImmediate, index, 7)
    );
    assert_eq!(one.length as usize, GRH + 700);
    assert_eq!(one.packet.source_qpn(), pair.qa.number);
    assert!(one.packet.has_global_route());
    // linux device.h, CQE_ROCE_L3_HEADER_TYPE_IPV4.
    assert_eq!(one.packet.service_level() & 3, 2);
    // Addresses of the fabric are 10.0.0.1 and 10.0.0.2.
    assert_eq!(one.packet.source_lid.get(), 1);
    assert_eq!(inbox.memory.read(GRH, 700), data);
    let header = inbox.memory.read(0, GRH);
    assert_eq!((&header[..20], header[20], header[29]), (&[0; 20][..], 0x45, 17));
    assert_eq!(header[32..], [10, 0, 0, 1, 10, 0, 0, 2]);
    // UDP header, BTH, DETH, immediate, payload and CRC: what the length field counts.
    assert_eq!(u16::from_be_bytes([header[22], header[23]]), 20 + 8 + 12 + 8 + 4 + 700 + 4);
    assert_eq!(pair.a.device.counters().acks_sent + pair.b.device.counters().acks_sent, 0);
}

#[test]
fn one_queue_pair_reaches_many_and_itself() {
    let fabric = Fabric::new();
    let nodes: Vec<Node> = (0..3).map(|_| Node::stepped(&fabric, Faults::default())).collect();
    let mut qps: Vec<Qp> =
        nodes.iter().map(|node| Qp::with_service(node, ServiceType::Ud)).collect();
    for qp in &mut qps {
        qp.connect_to([0; 16], 0, &connection(), (5, 5));
    }
    let regions: Vec<_> = nodes.iter().map(|node| node.region(1024)).collect();
    for (qp, region) in qps.iter_mut().zip(&regions) {
        qp.post_receive(&[(region.address(), 1024, region.key)]);
    }
    for target in 0..3_u8 {
        let at = usize::from(target);
        let wqe = Wqe::new(Opcode::Send);
        let wqe = if target == 2 {
            // The compact form: a LID is the last 16 bits of an address beside the sender's own.
            wqe.via_lid(&CompactAddressVector::new(qps[at].number, QKEY, 3))
        } else {
            wqe.addressed(&address(&nodes[at].device, qps[at].number, QKEY))
        };
        qps[0].post(&wqe.inline(&[target; 9]));
    }
    while nodes.iter().fold(false, |busy, node| node.device.step() | busy) {}
    assert_eq!(qps[0].send_cq.drain().len(), 3);
    for (target, region) in regions.iter().enumerate() {
        assert_eq!(region.memory.read(GRH, 9), [target as u8; 9]);
        assert_eq!(qps[target].receive_cq.drain().len(), 1);
    }
}

#[test]
fn a_wrong_key_or_no_receive_drops_and_counts() {
    let mut pair = pair();
    let inbox = pair.b.region(256);
    let post = |pair: &mut Pair, qkey| {
        let to = address(&pair.b.device, pair.qb.number, qkey);
        pair.qa.post(&Wqe::new(Opcode::Send).addressed(&to).inline(b"x"));
        pair.settle();
    };
    post(&mut pair, QKEY);
    pair.qb.post_receive(&[(inbox.address(), 256, inbox.key)]);
    post(&mut pair, QKEY ^ 1);
    assert!(pair.qb.receive_cq.drain().is_empty());
    // The highest bit stands for the sender's own key, which is the same here.
    post(&mut pair, 0x8000_0000);
    assert_eq!(pair.qb.receive_cq.drain().len(), 1);
    let done = pair.qa.send_cq.drain();
    assert!(done.len() == 3 && done.iter().all(Completion::is_ok), "{done:?}");
    let counters = pair.b.device.counters();
    assert_eq!((counters.messages_dropped, counters.wrong_qkey), (1, 1));
    // A datagram to an address without a device completes like any other.
    for gid in [[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 9, 9], [0; 16]] {
        let to = AddressVector::roce(1, QKEY, [0; 6], gid, 0, 0, 64);
        pair.qa.post(&Wqe::new(Opcode::Send).addressed(&to).inline(b"x"));
        pair.settle();
        assert!(pair.qa.send_cq.poll().unwrap().is_ok());
    }
    assert_eq!(pair.a.device.counters().send_failures, 1);
}

#[test]
fn more_than_a_packet_is_no_datagram() {
    let mut pair = pair();
    let local = pair.a.region(4096);
    let to = address(&pair.b.device, pair.qb.number, QKEY);
    let wqe =
        |length| Wqe::new(Opcode::Send).addressed(&to).data(local.address(), length, local.key);
    pair.qa.post(&wqe(1024));
    pair.qa.post(&wqe(1025));
    pair.settle();
    let syndromes: Vec<_> = pair.qa.send_cq.drain().iter().map(|one| one.syndrome).collect();
    assert_eq!(syndromes, [None, Some(Syndrome::LocalLength)]);
}

#[test]
fn a_buffer_without_room_for_the_header_fails_the_receive() {
    let mut pair = pair();
    let inbox = pair.b.region(256);
    pair.qb.post_receive(&[(inbox.address(), GRH + 3, inbox.key)]);
    pair.qb.post_receive(&[(inbox.address(), 256, inbox.key)]);
    let to = address(&pair.b.device, pair.qb.number, QKEY);
    pair.qa.post(&Wqe::new(Opcode::Send).addressed(&to).inline(b"four"));
    pair.settle();
    let syndromes: Vec<_> = pair.qb.receive_cq.drain().iter().map(|one| one.syndrome).collect();
    assert_eq!(syndromes, [Some(Syndrome::LocalLength), Some(Syndrome::WorkRequestFlushed)]);
}

#[test]
fn what_a_datagram_queue_does_not_do_is_named() {
    use barewire_hca::{Config, Mode, ReservedBits, Strict, WireKind};
    let wire = WireKind::Fabric(Fabric::new());
    let config = Config::default()
        .mode(Mode::Stepped)
        .wire(wire)
        .strict(Strict::Report)
        .reserved_bits(ReservedBits::Refuse);
    let mut bad = address_vector_with(|bytes| bytes[7] = 1);
    bad.extend([0; 16]);
    for (opcode, body, want) in [
        (Opcode::RdmaWrite, vec![0; 16], "opcode is 0x08, which an UD send queue does not know"),
        (Opcode::Send, vec![], "ds is 1, must be room for the address vector"),
        (Opcode::Send, bad, "address vector: reserved bits are 0x1, must be 0"),
        (
            Opcode::Send,
            address_vector_with(|bytes| bytes[28] |= 1),
            "address vector: source GID index is 0x10, must be below the size of the GID table",
        ),
    ] {
        let node = Node::open(config.clone());
        let mut qp = Qp::with_service(&node, ServiceType::Ud);
        qp.connect_to([0; 16], 0, &connection(), (5, 5));
        qp.post(&Wqe::new(opcode).raw(&body));
        for _ in 0..10 {
            node.device.step();
        }
        let reports = node.device.take_reports();
        assert!(reports.len() == 1 && reports[0].to_string().ends_with(want), "{reports:?}");
        assert_eq!(qp.send_cq.poll().unwrap().syndrome, Some(Syndrome::LocalQpOperation));
    }
}

fn address_vector_with(spoil: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes =
        zerocopy::IntoBytes::as_bytes(&AddressVector::roce(1, 2, [0; 6], [1; 16], 0, 0, 1))
            .to_vec();
    spoil(&mut bytes);
    bytes
}

#[test]
fn a_short_datagram_lies_in_the_entry_with_its_header() {
    let fabric = Fabric::new();
    let (a, b) =
        (Node::stepped(&fabric, Faults::default()), Node::stepped(&fabric, Faults::default()));
    let qp = |node: &Node, mode| {
        let cq = || Cq::with(node, 4, CqeSize::Bytes128, |_| ());
        Qp::with(node, cq(), cq(), |context| {
            context.set(Qpc::ST, ServiceType::Ud).set(Qpc::CS_RES, mode);
        })
    };
    let (qa, qb) = (qp(&a, 0), qp(&b, 2));
    let mut pair = Pair::of(a, b, (qa, qb), &connection());
    let inbox = pair.b.region(256);
    // 64 bytes hold the header and 24 more.
    for length in [1, 24, 25] {
        inbox.memory.write(0, &[0; 256]);
        pair.qb.post_receive(&[(inbox.address(), 256, inbox.key)]);
        let to = address(&pair.b.device, pair.qb.number, QKEY);
        pair.qa.post(&Wqe::new(Opcode::Send).addressed(&to).inline(&pattern(length, 5)));
        pair.settle();
        let done = pair.qb.receive_cq.poll().unwrap();
        assert_eq!(
            (done.length as usize, done.packet.source_qpn()),
            (GRH + length, pair.qa.number)
        );
        let entry = &pair.qb.receive_cq.last;
        let inline = CqeFormat::from_op_own(entry[127]) == CqeFormat::Inline64;
        assert_eq!(inline, length <= 24);
        let bytes = if inline { entry[..64].to_vec() } else { inbox.memory.read(0, 256) };
        assert_eq!((bytes[20], &bytes[GRH..GRH + length]), (0x45, &pattern(length, 5)[..]));
        assert_eq!(inbox.memory.read(GRH, 1) == [0], inline);
    }
}
