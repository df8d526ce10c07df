//! Multicast groups: a datagram to a group reaches every queue pair that is attached to it, on
//! every device.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use crate::datagrams::QKEY;
use crate::support::rig::Rig;
use crate::support::{Connection, Cq, Node, Qp, Region, Wqe, command, pattern};
use barewire_hca::{CommandSyndrome as Why, Config, Fabric, Faults, Key, Mode, WireKind};
use barewire_layouts::command::capability::{
    CapabilityMode, CapabilityPage, HcaCap, QueryHcaCapIn, QueryHcaCapOut, op_mod,
};
use barewire_layouts::command::mcg::{AttachToMcgIn, DetachFromMcgIn};
use barewire_layouts::command::qp::{CreateQpIn, Mtu, Qpc, ServiceType};
use barewire_layouts::command::{CommandError, CommandStatus, answer};
use barewire_layouts::cqe::PacketFields;
use barewire_layouts::prm::ViewMut;
use barewire_layouts::roce::MULTICAST_QPN;
use barewire_layouts::wqe::{AddressVector, Opcode};

const GRH: usize = 40;
const BUFFER: usize = 1024;
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);

fn gid(group: impl Into<IpAddr>) -> [u8; 16] {
    match group.into() {
        IpAddr::V4(group) => group.to_ipv6_mapped().octets(),
        IpAddr::V6(group) => group.octets(),
    }
}

fn attach(node: &Node, qpn: u32, gid: [u8; 16]) -> Result<(), CommandError> {
    command::<AttachToMcgIn>(&node.device, |input| {
        input.set(AttachToMcgIn::QPN, qpn).set_array(AttachToMcgIn::MULTICAST_GID, gid);
    })
    .map(drop)
}

fn detach(node: &Node, qpn: u32, gid: [u8; 16]) -> Result<(), CommandError> {
    command::<DetachFromMcgIn>(&node.device, |input| {
        input.set(DetachFromMcgIn::QPN, qpn).set_array(DetachFromMcgIn::MULTICAST_GID, gid);
    })
    .map(drop)
}

/// A datagram queue pair with its buffers.
struct Member {
    qp: Qp,
    inbox: Region,
    posted: usize,
}

impl Member {
    fn with(node: &Node, mut qp: Qp) -> Self {
        let connection = Connection { mtu: Mtu::Bytes4096, qkey: QKEY, ..Connection::default() };
        qp.connect_to([0; 16], 0, &connection, (5, 5));
        Self { qp, inbox: node.region(8 * BUFFER), posted: 0 }
    }

    fn new(node: &Node) -> Self {
        Self::with(node, Qp::with_service(node, ServiceType::Ud))
    }

    fn post(&mut self, count: usize) {
        for _ in 0..count {
            let address = self.inbox.address() + (self.posted % 8 * BUFFER) as u64;
            self.qp.post_receive(&[(address, BUFFER, self.inbox.key)]);
            self.posted += 1;
        }
    }

    fn send(&mut self, gid: [u8; 16], qpn: u32, data: &[u8]) {
        let to = AddressVector::roce(qpn, QKEY, [0; 6], gid, 0, 0, 64);
        self.qp.post(&Wqe::new(Opcode::Send).addressed(&to).inline(data));
    }

    /// What arrived, in the order of the buffers.
    fn received(&mut self) -> Vec<Vec<u8>> {
        let done = self.qp.receive_cq.drain();
        done.iter()
            .map(|one| {
                assert!(one.is_ok() && one.packet.path_bits == PacketFields::MULTICAST, "{one:?}");
                let at = usize::from(one.index) % 8 * BUFFER;
                self.inbox.memory.read(at + GRH, one.length as usize - GRH)
            })
            .collect()
    }
}

fn settle(nodes: &[&Node]) {
    while nodes.iter().fold(false, |busy, node| node.device.step() | busy) {}
}

fn stepped<const N: usize>() -> [Node; N] {
    let fabric = Fabric::new();
    std::array::from_fn(|_| Node::stepped(&fabric, Faults::default()))
}

#[test]
fn every_attached_queue_pair_of_every_device_gets_a_copy() {
    let [a, b, c] = &stepped();
    let mut sender = Member::new(a);
    let mut attached = [a, b, b].map(Member::new);
    let (mut other, mut outside) = (Member::new(b), Member::new(c));
    for (node, member) in [a, b, b].into_iter().zip(&mut attached) {
        attach(node, member.qp.number, gid(GROUP)).unwrap();
        member.post(2);
    }
    // Another group, and none.
    attach(b, other.qp.number, gid([239, 1, 2, 4])).unwrap();
    other.post(2);
    outside.post(2);
    sender.post(2);
    sender.send(gid(GROUP), MULTICAST_QPN, b"to all");
    settle(&[a, b, c]);
    assert!(sender.qp.send_cq.poll().unwrap().is_ok());
    for member in &mut attached {
        assert_eq!(member.received(), [b"to all"]);
        // The network header names the group.
        assert_eq!(member.inbox.memory.read(32, 8), [10, 0, 0, 1, 239, 1, 2, 3]);
    }
    for member in [&mut sender, &mut other, &mut outside] {
        assert!(member.received().is_empty());
    }
    assert_eq!(c.device.counters().packets_received, 0);
}

/// The requirement `deaf`: the device accepts the queue pair, and drops all packets to it.
#[test]
fn a_deaf_queue_pair_gets_no_copy() {
    let deaf = "deaf=ud".parse().unwrap();
    let config = Config::default().mode(Mode::Stepped).wire(WireKind::Fabric(Fabric::new()));
    let node = Node::open(config.requirements(deaf));
    let mut member = Member::new(&node);
    attach(&node, member.qp.number, gid(GROUP)).unwrap();
    member.post(1);
    member.send(gid(GROUP), MULTICAST_QPN, b"to all");
    settle(&[&node]);
    assert!(member.qp.send_cq.poll().unwrap().is_ok() && member.received().is_empty());
}

/// As on adapters: linux ipoib_ib.c drops what the HCA has replicated.
#[test]
fn an_attached_sender_gets_its_own_copy_unless_it_blocks_it() {
    let [a, b] = &stepped();
    let blocking = |node: &Node| {
        let qp = Qp::with(node, Cq::new(node, 4), Cq::new(node, 4), |context| {
            context.set(Qpc::ST, ServiceType::Ud).set(Qpc::BLOCK_LB_MC, true);
        });
        Member::with(node, qp)
    };
    let (mut open, mut blocked, mut peer) = (Member::new(a), blocking(a), blocking(b));
    for (node, member) in [(a, &mut open), (a, &mut blocked), (b, &mut peer)] {
        attach(node, member.qp.number, gid(GROUP)).unwrap();
        member.post(2);
    }
    open.send(gid(GROUP), MULTICAST_QPN, b"open");
    settle(&[a, b]);
    blocked.send(gid(GROUP), MULTICAST_QPN, b"blocked");
    settle(&[a, b]);
    assert_eq!(open.received(), [&b"open"[..], b"blocked"]);
    assert_eq!(blocked.received(), [b"open"]);
    assert_eq!(peer.received(), [&b"open"[..], b"blocked"]);
}

#[test]
fn nothing_arrives_after_detaching_or_destroying() {
    let [a, b] = &stepped();
    let (mut sender, mut member, mut other) = (Member::new(a), Member::new(b), Member::new(b));
    // A second time changes nothing: one copy arrives.
    for _ in 0..2 {
        attach(b, member.qp.number, gid(GROUP)).unwrap();
    }
    attach(b, other.qp.number, gid(GROUP)).unwrap();
    member.post(4);
    other.post(4);
    let mut send = |data: &[u8]| {
        sender.send(gid(GROUP), MULTICAST_QPN, data);
        settle(&[a, b]);
    };
    send(b"1");
    detach(b, member.qp.number, gid(GROUP)).unwrap();
    send(b"2");
    attach(b, member.qp.number, gid(GROUP)).unwrap();
    send(b"3");
    assert_eq!(member.received(), [b"1", b"3"]);
    assert_eq!(other.received(), [b"1", b"2", b"3"]);
    let before = b.device.counters().packets_received;
    member.qp.destroy();
    other.qp.destroy();
    send(b"4");
    assert_eq!(b.device.counters().packets_received, before);
}

#[test]
fn a_copy_without_a_buffer_or_the_key_is_dropped_and_others_arrive() {
    let [a, b] = &stepped();
    let (mut sender, mut full, mut empty) = (Member::new(a), Member::new(b), Member::new(b));
    for member in [&empty, &full] {
        attach(b, member.qp.number, gid(GROUP)).unwrap();
    }
    full.post(2);
    sender.send(gid(GROUP), MULTICAST_QPN, b"x");
    settle(&[a, b]);
    assert_eq!((full.received().len(), empty.received().len()), (1, 0));
    let counters = b.device.counters();
    assert_eq!((counters.out_of_buffer, counters.messages_dropped), (1, 1));
    // To the group, but for one queue pair.
    let number = full.qp.number;
    sender.send(gid(GROUP), number, b"y");
    settle(&[a, b]);
    assert_eq!((full.received().len(), b.device.counters().unknown_qp), (0, 1));
    let to = AddressVector::roce(MULTICAST_QPN, QKEY ^ 1, [0; 6], gid(GROUP), 0, 0, 64);
    sender.qp.post(&Wqe::new(Opcode::Send).addressed(&to).inline(b"z"));
    settle(&[a, b]);
    assert_eq!((full.received().len(), b.device.counters().wrong_qkey), (0, 2));
}

#[test]
fn groups_of_ipv6_work_on_ports_of_ipv6() {
    let fabric = Fabric::new();
    let [a, b] = ["fd00::1", "fd00::2"].map(|address| {
        let wire = WireKind::Fabric(fabric.clone());
        let config = Config::default().address(Some(address.parse().unwrap()));
        Node::open(config.mode(Mode::Stepped).wire(wire))
    });
    let six = gid("ff0e::77".parse::<IpAddr>().unwrap());
    let (mut sender, mut member) = (Member::new(&a), Member::new(&b));
    attach(&b, member.qp.number, six).unwrap();
    // Without an effect here.
    attach(&b, member.qp.number, gid(GROUP)).unwrap();
    member.post(2);
    sender.send(gid(GROUP), MULTICAST_QPN, b"four");
    sender.send(six, MULTICAST_QPN, b"six");
    settle(&[&a, &b]);
    assert_eq!(member.received(), [b"six"]);
    assert_eq!(member.inbox.memory.read(24, 16), six);
}

fn why(refused: Result<(), CommandError>) -> (CommandStatus, Why) {
    let error = refused.unwrap_err();
    (error.status.unwrap(), Why::from_bits(error.syndrome).unwrap())
}

#[test]
fn what_cannot_be_attached_is_named() {
    let rig = Rig::new();
    let cqn = rig.create_cq(|_| ()).unwrap();
    let create = |service| {
        rig.create_qp(cqn, |create: &mut ViewMut<'_, CreateQpIn>| {
            create.nested(CreateQpIn::QPC).set(Qpc::ST, service);
        })
        .unwrap()
    };
    let (rc, ud) = (create(ServiceType::Rc), create(ServiceType::Ud));
    let group = |number: u8| gid([239, 9, 9, number]);
    let refused = |qpn, gid| why(attach(&rig, qpn, gid)).1;
    assert_eq!(refused(rc, group(0)), Why::GroupService);
    assert_eq!(refused(ud + 1, group(0)), Why::UnknownQp);
    for host in ["10.0.0.1", "fd00::1", "::"] {
        assert_eq!(refused(ud, gid(host.parse::<IpAddr>().unwrap())), Why::GroupGid);
    }
    assert_eq!(why(detach(&rig, ud, group(0))), (CommandStatus::BadResource, Why::NotAttached));
    // The limits are those that the capabilities name.
    let page = op_mod(CapabilityPage::General, CapabilityMode::Current);
    let bytes = command::<QueryHcaCapIn>(&rig.device, |input| {
        input.set(QueryHcaCapIn::OP_MOD, page);
    })
    .unwrap();
    let general = answer::<QueryHcaCapIn>(&bytes).unwrap().nested(QueryHcaCapOut::GENERAL);
    let (groups, members) =
        (1_u8 << general.get(HcaCap::LOG_MAX_MCG), general.get(HcaCap::MAX_QP_MCG));
    for number in 0..groups {
        attach(&rig, ud, group(number)).unwrap();
    }
    assert_eq!(
        why(attach(&rig, ud, group(groups))),
        (CommandStatus::LimitExceeded, Why::GroupLimit)
    );
    for _ in 1..members {
        attach(&rig, create(ServiceType::Ud), group(0)).unwrap();
    }
    let last = create(ServiceType::Ud);
    assert_eq!(refused(last, group(0)), Why::GroupMembers);
    attach(&rig, last, group(1)).unwrap();
    detach(&rig, ud, group(2)).unwrap();
    attach(&rig, last, group(groups)).unwrap();
}

/// mckey destroys its queue pair without waiting for the completions.
#[test]
fn datagrams_that_were_posted_before_the_queue_pair_was_destroyed_are_sent() {
    let [a, b] = &stepped();
    let (mut sender, mut member) = (Member::new(a), Member::new(b));
    attach(b, member.qp.number, gid(GROUP)).unwrap();
    member.post(5);
    for number in 0..5 {
        sender.send(gid(GROUP), MULTICAST_QPN, &[number]);
    }
    sender.qp.destroy();
    settle(&[a, b]);
    assert_eq!(member.received(), [[0], [1], [2], [3], [4]]);
}

/// A group that no other test uses.
fn random_group() -> Ipv4Addr {
    Ipv4Addr::new(239, fastrand::u8(..), fastrand::u8(..), fastrand::u8(..))
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// Over sockets, with devices that have slept: with tags, also to devices nearby, and without.
#[test]
fn groups_work_over_udp() {
    for wire in [WireKind::Auto, WireKind::Udp, WireKind::Roce] {
        let key = Key::random().unwrap();
        let open = |key| Node::open(Config::default().wire(wire.clone()).key(Some(key)));
        let (a, b, stranger) = (open(key), open(key), open(Key::random().unwrap()));
        let group = gid(random_group());
        let mut sender = Member::new(&a);
        let mut members = [Member::new(&a), Member::new(&b), Member::new(&b)];
        for (node, member) in [&a, &b, &b].into_iter().zip(&mut members) {
            member.post(8);
            attach(node, member.qp.number, group).unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
        let sent: Vec<Vec<u8>> = (0..8).map(|number| pattern(200, number)).collect();
        for data in &sent {
            sender.send(group, MULTICAST_QPN, data);
        }
        for member in &mut members {
            let mut got = Vec::new();
            wait(&format!("{wire:?}"), || {
                got.extend(member.received());
                got.len() == sent.len()
            });
            assert!(got == sent, "{wire:?}");
        }
        // Of another key, and therefore not taken.
        if !matches!(wire, WireKind::Roce) {
            let mut outside = Member::new(&stranger);
            outside.send(group, MULTICAST_QPN, b"from outside");
            wait("a wrong tag", || b.device.counters().bad_tags == 1);
        }
        // Without members, the kernel delivers nothing to the device any more.
        detach(&b, members[1].qp.number, group).unwrap();
        members[2].qp.destroy();
        let before = b.device.counters().packets_received;
        members[0].post(1);
        sender.send(group, MULTICAST_QPN, b"to one");
        wait("the last copy", || members[0].received() == [b"to one"]);
        assert_eq!(b.device.counters().packets_received, before);
        assert_eq!(a.device.counters().send_failures, 0);
    }
}
