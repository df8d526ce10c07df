//! What RDMA reads return if later requests of the same queue pair change the memory.

use crate::support::foreign::Foreign;
use crate::support::{Connection, Node, Pair, Wqe, pattern};
use barewire_hca::{Config, Fabric, Mode, Strict, WireKind};
use barewire_layouts::command::qp::Mtu;
use barewire_layouts::roce::{BthOpcode, Reth};
use barewire_layouts::wqe::{ControlFlags, Opcode};
use zerocopy::IntoBytes;

/// Around the MTU of 256 bytes, and more packets than one pass sends.
const SIZES: [usize; 7] = [1, 8, 255, 256, 257, 4096, 1 << 20];

/// Two devices with these requirements.
fn pair(requirements: &str, mtu: Mtu) -> Pair {
    let fabric = Fabric::new();
    let [a, b] = [(); 2].map(|()| {
        let wire = WireKind::Fabric(fabric.clone());
        let config = Config::default().mode(Mode::Stepped).wire(wire).strict(Strict::Panic);
        Node::open(config.requirements(requirements.parse().unwrap()))
    });
    Pair::over(a, b, &Connection { mtu, ..Connection::default() })
}

fn old(size: usize) -> Vec<u8> {
    pattern(size, 1)
}

/// Differs from [`old`] in every byte.
fn new(size: usize) -> Vec<u8> {
    old(size).into_iter().map(|byte| !byte).collect()
}

/// Posts a read of old bytes, and a request with these flags that replaces them by new ones. Returns
/// what the read returns.
fn read_then(pair: &mut Pair, size: usize, opcode: Opcode, flags: ControlFlags) -> Vec<u8> {
    let (remote, local) = (pair.b.region(size), pair.a.region(size));
    let source = pair.a.region(size);
    remote.memory.write(0, &old(size));
    source.memory.write(0, &new(size));
    let read = Wqe::new(Opcode::RdmaRead).remote(remote.address(), remote.key);
    pair.qa.place(&read.data(local.address(), size, local.key).unsignalled());
    let change = Wqe::new(opcode).flags(flags);
    let change = if opcode == Opcode::Send {
        pair.qb.post_receive(&[(remote.address(), size, remote.key)]);
        change
    } else {
        change.remote(remote.address(), remote.key)
    };
    pair.qa.post(&change.data(source.address(), size, source.key));
    pair.settle();
    assert!(pair.qa.send_cq.poll().unwrap().is_ok());
    assert!(remote.memory.read(0, size) == new(size));
    pair.qb.receive_cq.drain();
    local.memory.read(0, size)
}

#[test]
fn a_read_returns_the_bytes_from_before_later_requests() {
    for opcode in [Opcode::RdmaWrite, Opcode::Send] {
        let mut pair = pair("", Mtu::Bytes256);
        for size in SIZES {
            let read = read_then(&mut pair, size, opcode, ControlFlags::empty());
            assert!(read == old(size), "{opcode:?} of {size} bytes");
        }
    }
}

#[test]
fn a_late_read_returns_later_bytes_unless_a_fence_holds_them_back() {
    for opcode in [Opcode::RdmaWrite, Opcode::Send] {
        let mut pair = pair("late-reads", Mtu::Bytes256);
        // Longer reads are sent in pieces, each once the one before is answered.
        for size in SIZES.into_iter().filter(|size| *size <= 4096) {
            let read = read_then(&mut pair, size, opcode, ControlFlags::empty());
            assert!(read != old(size), "{opcode:?} of {size} bytes");
            let read = read_then(&mut pair, size, opcode, ControlFlags::FENCE);
            assert!(read == old(size), "{opcode:?} of {size} bytes behind a fence");
        }
    }
}

/// A peer that reads more than a queue pair keeps: the request behind the read is dropped, and
/// executed when it is repeated after the responses.
#[test]
fn a_write_behind_a_very_long_read_is_postponed() {
    const LENGTH: usize = 17 << 20;
    let foreign = Foreign::new(&Connection { mtu: Mtu::Bytes4096, ..Connection::default() });
    let remote = foreign.node.region(LENGTH);
    let header = |length: usize| Reth {
        address: remote.address().into(),
        rkey: remote.key.into(),
        length: (length as u32).into(),
    };
    foreign.send(BthOpcode::ReadRequest, 0, &[header(LENGTH).as_bytes()]);
    let packets = LENGTH.div_ceil(4096) as u32;
    let write = || foreign.send(BthOpcode::WriteOnly, packets, &[header(1).as_bytes(), &[7]]);
    write();
    assert_eq!(foreign.node.device.counters().postponed_behind_reads, 1);
    assert_eq!(remote.memory.read(0, 1), [0]);
    while foreign.node.device.step() {}
    write();
    assert_eq!(foreign.node.device.counters().postponed_behind_reads, 1);
    assert_eq!(remote.memory.read(0, 1), [7]);
}
