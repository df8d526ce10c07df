//! The wire over IPv6. The loopback interface has one such address, `::1`, so over UDP a device can
//! talk to itself there, and two devices need addresses that someone gave the host; on a fabric any
//! will do.

use std::net::IpAddr;

use crate::support::{Connection, Node, Pair, Wqe, pattern};
use barewire_hca::{Config, Device, Fabric, Mode, OpenError, WireKind};
use barewire_layouts::command::qp::{Mtu, ServiceType};
use barewire_layouts::wqe::{AddressVector, Opcode};

fn config(address: &str, mode: Mode, wire: WireKind) -> Config {
    Config::default().address(Some(address.parse().unwrap())).mode(mode).wire(wire)
}

fn exchange(pair: &mut Pair) {
    const SIZE: usize = 100_000;
    let (local, remote) = (pair.a.region(SIZE), pair.b.region(SIZE));
    let data = pattern(SIZE, 1);
    local.memory.write(0, &data);
    let wqe = Wqe::new(Opcode::RdmaWrite).remote(remote.address(), remote.key);
    pair.qa.post(&wqe.data(local.address(), SIZE, local.key));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let done = loop {
        pair.step(1);
        if let Some(done) = pair.qa.send_cq.poll() {
            break done;
        }
        assert!(std::time::Instant::now() < deadline, "{:?}", pair.a.device.counters());
        std::thread::yield_now();
    };
    assert!(done.is_ok(), "{done:?}");
    assert!(remote.memory.read(0, SIZE) == data);
    let counters = pair.b.device.counters();
    assert_eq!((counters.bad_icrc, counters.malformed, counters.send_failures), (0, 0, 0));
}

#[test]
fn devices_on_a_fabric_have_any_address() {
    let fabric = Fabric::new();
    let [a, b] = ["fd00::1", "fd00::2"].map(|address| {
        Node::open(config(address, Mode::Stepped, WireKind::Fabric(fabric.clone())))
    });
    assert_eq!(b.device.gid(), "fd00::2".parse::<std::net::Ipv6Addr>().unwrap().octets());
    exchange(&mut Pair::over(a.clone(), b.clone(), &Connection::default()));

    let mut ud = Pair::with_service(ServiceType::Ud, a, b, &Connection::default());
    let inbox = ud.b.region(128);
    ud.qb.post_receive(&[(inbox.address(), 128, inbox.key)]);
    let to = AddressVector::roce(ud.qb.number, 0x1111_1111, [0; 6], ud.b.device.gid(), 0, 0, 64);
    ud.qa.post(&Wqe::new(Opcode::Send).addressed(&to).inline(b"six"));
    ud.settle();
    let done = ud.qb.receive_cq.poll().unwrap();
    // linux device.h, CQE_ROCE_L3_HEADER_TYPE_IPV6.
    assert_eq!((done.length, done.packet.service_level() & 3), (43, 1));
    let header = inbox.memory.read(0, 43);
    assert_eq!((header[0], header[6], &header[8..24]), (0x60, 17, &ud.a.device.gid()[..]));
    assert_eq!(&header[40..], b"six");
}

#[test]
fn a_device_on_the_loopback_address_reaches_itself() {
    let device = match Device::open(config("::1", Mode::Thread, WireKind::Udp)) {
        Ok(device) => device,
        Err(error @ OpenError::Bind { .. }) => return println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(device.address(), "::1".parse::<IpAddr>().unwrap());
    drop(device);
    let node = Node::open(config("::1", Mode::Thread, WireKind::Udp));
    exchange(&mut Pair::over(
        node.clone(),
        node,
        &Connection { mtu: Mtu::Bytes4096, ..Connection::default() },
    ));
}

/// Needs two addresses on one host, such as `ip -6 addr add fd00:4791::1/128 dev lo` and the same
/// with `::2` make.
#[test]
fn two_devices_talk_over_udp() {
    let open = |address| Device::open(config(address, Mode::Thread, WireKind::Udp));
    if let Err(error) = open("fd00:4791::1").and(open("fd00:4791::2")) {
        return println!("skipped: {error}");
    }
    let [a, b] = ["fd00:4791::1", "fd00:4791::2"]
        .map(|address| Node::open(config(address, Mode::Thread, WireKind::Udp)));
    exchange(&mut Pair::over(a, b, &Connection { mtu: Mtu::Bytes4096, ..Connection::default() }));
}

#[test]
fn families_do_not_mix() {
    let fabric = Fabric::new();
    let [a, b] = ["fd00::1", "10.0.0.2"].map(|address| {
        Node::open(config(address, Mode::Stepped, WireKind::Fabric(fabric.clone())))
    });
    let connection = Connection { ack_timeout: 8, retry_count: 1, ..Connection::default() };
    let mut pair = Pair::over(a, b, &connection);
    pair.qa.post(&Wqe::new(Opcode::RdmaWrite).remote(0, 0));
    pair.settle();
    assert!(!pair.qa.send_cq.poll().unwrap().is_ok());
    assert!(pair.b.device.counters().bad_icrc > 0);
}
