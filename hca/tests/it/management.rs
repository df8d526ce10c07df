//! Queue pair 1: management datagrams to and from a manager.

use std::os::fd::{AsFd, AsRawFd};

use crate::datagrams::address;
use crate::support::{Connection, Node, Pair, Wqe};
use barewire_hca::{Fabric, Faults};
use barewire_layouts::command::qp::{Mtu, ServiceType};
use barewire_layouts::management::{GENERAL_SERVICES_QKEY, GENERAL_SERVICES_QPN, MAD_BYTES};
use barewire_layouts::wqe::Opcode;

fn is_readable(descriptor: &impl AsFd) -> bool {
    let mut polled =
        libc::pollfd { fd: descriptor.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the structure is live.
    unsafe { libc::poll(&raw mut polled, 1, 0) == 1 }
}

fn pair() -> Pair {
    let fabric = Fabric::new();
    let node = || Node::stepped(&fabric, Faults::default());
    let connection = Connection { mtu: Mtu::Bytes1024, ..Connection::default() };
    Pair::with_service(ServiceType::Ud, node(), node(), &connection)
}

#[test]
fn a_datagram_arrives_at_the_manager_of_the_port() {
    let mut pair = pair();
    let (a, b) = (pair.a.device.clone(), pair.b.device.clone());
    let bytes: [u8; MAD_BYTES] = std::array::from_fn(|at| at as u8);
    // Without a manager, the port has no queue pair 1.
    assert!(a.send_management(1, b.address(), &bytes));
    pair.settle();
    assert_eq!(b.counters().unknown_qp, 1);
    let management = b.management().unwrap();
    assert!(!is_readable(&management));
    assert!(a.send_management(1, b.address(), &bytes));
    assert!(!a.send_management(2, b.address(), &bytes), "there is no second port");
    pair.settle();
    assert!(is_readable(&management));
    let datagram = management.next_datagram().unwrap();
    assert_eq!((datagram.port, datagram.source, datagram.bytes), (1, a.address(), bytes));
    assert!(management.next_datagram().is_none() && !is_readable(&management));
}

#[test]
fn other_packets_to_queue_pair_1_are_dropped() {
    let mut pair = pair();
    let device = pair.b.device.clone();
    let management = device.management().unwrap();
    let local = pair.a.region(1024);
    for (qkey, length) in [(GENERAL_SERVICES_QKEY & 0xffff, MAD_BYTES), (7, MAD_BYTES), (7, 255)] {
        let to = address(&device, GENERAL_SERVICES_QPN, qkey);
        let wqe = Wqe::new(Opcode::Send).addressed(&to);
        pair.qa.post(&wqe.data(local.address(), length, local.key));
    }
    pair.settle();
    assert_eq!(device.counters().wrong_qkey, 3);
    assert!(management.next_datagram().is_none());
}
