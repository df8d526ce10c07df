//! A device with two ports, each with an address and a wire of its own.

use crate::support::{Connection, Node, Qp, Wqe, command, pattern};
use barewire_hca::{CommandSyndrome as Why, Config, Fabric, Mode, Strict, WireKind};
use barewire_layouts::command::answer;
use barewire_layouts::command::capability::{
    CapabilityMode, CapabilityPage, HcaCap, QueryHcaCapIn, QueryHcaCapOut, op_mod,
};
use barewire_layouts::command::gid::{QueryRoceAddressIn, QueryRoceAddressOut, RoceAddress};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::wqe::Opcode;

fn node(fabric: &Fabric, ports: u8) -> Node {
    Node::open(
        Config::default()
            .mode(Mode::Stepped)
            .wire(WireKind::Fabric(fabric.clone()))
            .ports(ports)
            .strict(Strict::Panic),
    )
}

/// The address of a port.
fn gid(node: &Node, port: u8) -> [u8; 16] {
    let output = command::<QueryRoceAddressIn>(&node.device, |query| {
        query.set(QueryRoceAddressIn::VHCA_PORT_NUM, port);
    });
    let output = output.unwrap();
    let entry =
        answer::<QueryRoceAddressIn>(&output).unwrap().nested(QueryRoceAddressOut::ROCE_ADDRESS);
    entry.array(RoceAddress::SOURCE_L3_ADDRESS)
}

/// Connects a queue pair on a port of `a` with one on a port of `b`.
fn connect(a: (&Node, u8), b: (&Node, u8)) -> (Qp, Qp) {
    let connection = Connection::default();
    let (mut qa, mut qb) = (Qp::new(a.0), Qp::new(b.0));
    (qa.port, qb.port) = (a.1, b.1);
    qa.connect_to(gid(b.0, b.1), qb.number, &connection, (1, 2));
    qb.connect_to(gid(a.0, a.1), qa.number, &connection, (2, 1));
    (qa, qb)
}

fn settle(nodes: &[&Node]) {
    for _ in 0..1_000_000 {
        if !nodes.iter().fold(false, |busy, node| node.device.step() | busy) {
            return;
        }
    }
    panic!("it does not come to rest");
}

#[test]
fn each_port_has_its_address() {
    let fabric = Fabric::new();
    let node = node(&fabric, 2);
    let output = command::<QueryHcaCapIn>(&node.device, |query| {
        query.set(QueryHcaCapIn::OP_MOD, op_mod(CapabilityPage::General, CapabilityMode::Current));
    });
    let output = output.unwrap();
    let general = answer::<QueryHcaCapIn>(&output).unwrap().nested(QueryHcaCapOut::GENERAL);
    assert_eq!(general.get(HcaCap::NUM_PORTS), 2);
    assert_eq!(gid(&node, 1), node.device.gid());
    assert_ne!(gid(&node, 2), gid(&node, 1));
    let refused = command::<QueryRoceAddressIn>(&node.device, |query| {
        query.set(QueryRoceAddressIn::VHCA_PORT_NUM, 3);
    });
    assert_eq!(refused.unwrap_err().syndrome, Why::GidPort as u32);
}

#[test]
fn data_goes_by_every_port() {
    let fabric = Fabric::new();
    let (a, b) = (node(&fabric, 2), node(&fabric, 2));
    for (from, to) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        let (mut qa, _qb) = connect((&a, from), (&b, to));
        let (local, remote) = (a.region(5000), b.region(5000));
        local.memory.write(0, &pattern(5000, u64::from(from * 2 + to)));
        let write = Wqe::new(Opcode::RdmaWrite).remote(remote.address(), remote.key);
        qa.post(&write.data(local.address(), 5000, local.key));
        let read = Wqe::new(Opcode::RdmaRead).remote(remote.address(), remote.key);
        qa.post(&read.data(local.address(), 16, local.key));
        settle(&[&a, &b]);
        assert_eq!(
            qa.send_cq.drain().iter().map(|one| one.syndrome).collect::<Vec<_>>(),
            [None, None]
        );
        assert_eq!(remote.memory.read(0, 5000), local.memory.read(0, 5000));
    }
}

#[test]
fn a_device_talks_to_itself_from_port_to_port() {
    let fabric = Fabric::new();
    let a = node(&fabric, 2);
    let (mut first, _second) = connect((&a, 1), (&a, 2));
    let (local, remote) = (a.region(100), a.region(100));
    local.memory.write(0, &pattern(100, 9));
    let write = Wqe::new(Opcode::RdmaWrite).remote(remote.address(), remote.key);
    first.post(&write.data(local.address(), 100, local.key));
    settle(&[&a]);
    assert_eq!(first.send_cq.drain().iter().map(|one| one.syndrome).collect::<Vec<_>>(), [None]);
    assert_eq!(remote.memory.read(0, 100), pattern(100, 9));
}

#[test]
fn a_packet_by_the_wrong_port_is_nobodys() {
    let fabric = Fabric::new();
    let (a, b) = (node(&fabric, 1), node(&fabric, 2));
    let (mut qa, mut qb) = (Qp::new(&a), Qp::new(&b));
    qb.port = 2;
    let connection = Connection::default();
    qa.connect_to(gid(&b, 1), qb.number, &connection, (1, 2));
    qb.connect_to(gid(&a, 1), qa.number, &connection, (2, 1));
    let (local, remote) = (a.region(8), b.region(8));
    let write = Wqe::new(Opcode::RdmaWrite).remote(remote.address(), remote.key);
    qa.post(&write.data(local.address(), 8, local.key));
    settle(&[&a, &b]);
    let syndromes: Vec<_> = qa.send_cq.drain().iter().map(|one| one.syndrome).collect();
    assert_eq!(syndromes, [Some(Syndrome::TransportRetryExceeded)]);
    assert!(b.device.counters().wrong_source > 0);
}
