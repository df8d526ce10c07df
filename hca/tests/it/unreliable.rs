//! Unreliable connections: received messages are complete and in order, and losses are not
//! reported.

use crate::support::{self, Connection, Node, Pair, Wqe, pattern};
use barewire_hca::{Config, Fabric, Faults, Mode, WireKind};
use barewire_layouts::command::qp::ServiceType;
use barewire_layouts::cqe::{CqeOpcode, Syndrome};
use barewire_layouts::wqe::Opcode;

const MTU: usize = 256;

fn pair(faults: Faults) -> Pair {
    let fabric = Fabric::new();
    let (a, b) = (Node::stepped(&fabric, faults), Node::stepped(&fabric, Faults::default()));
    Pair::with_service(ServiceType::Uc, a, b, &Connection::default())
}

#[test]
fn sends_and_writes_of_many_packets_need_no_acknowledgment() {
    let mut pair = pair(Faults::default());
    let size = 40 * MTU + 3;
    let (local, target, inbox) = (pair.a.region(size), pair.b.region(size), pair.b.region(size));
    let data = pattern(size, 1);
    local.memory.write(0, &data);
    pair.qb.post_receive(&[(inbox.address(), size, inbox.key)]);
    pair.qb.post_receive(&[]);
    let source = |wqe: Wqe| wqe.data(local.address(), size, local.key);
    pair.qa.post(&source(Wqe::new(Opcode::RdmaWrite).remote(target.address(), target.key)));
    pair.qa.post(&source(Wqe::new(Opcode::Send)));
    pair.qa.post(&source(
        Wqe::new(Opcode::RdmaWriteImmediate).immediate(9).remote(target.address(), target.key),
    ));
    pair.settle();
    assert!(
        pair.qa
            .send_cq
            .drain()
            .iter()
            .map(|one| (one.index, one.is_ok()))
            .eq((0..3).map(|at| (at, true)))
    );
    let done = pair.qb.receive_cq.drain();
    assert_eq!(
        done.iter().map(|one| (one.opcode, one.length as usize, one.immediate)).collect::<Vec<_>>(),
        [(CqeOpcode::ResponderSend, size, 0), (CqeOpcode::ResponderWriteImmediate, size, 9)]
    );
    assert_eq!((target.memory.read(0, size), inbox.memory.read(0, size)), (data.clone(), data));
    let (a, b) = (pair.a.device.counters(), pair.b.device.counters());
    assert_eq!((b.packets_sent, a.packets_received, a.packets_sent), (0, 0, 3 * 41));
}

#[test]
fn a_message_that_lost_a_packet_never_arrives_and_the_next_one_does() {
    let mut whole = 0;
    for seed in 0..40 {
        let mut pair = pair(Faults::default().drop(0.1).seed(seed));
        let size = 4 * MTU;
        let (local, inbox) = (pair.a.region(size), pair.b.region(32 * size));
        for slot in 0..20 {
            pair.qb.post_receive(&[(inbox.address() + (slot * size) as u64, size, inbox.key)]);
        }
        for round in 0..20_u32 {
            local.memory.write(0, &pattern(size, u64::from(round)));
            let wqe = Wqe::new(Opcode::SendImmediate).immediate(round);
            pair.qa.post(&wqe.data(local.address(), size, local.key));
            pair.settle();
        }
        assert_eq!(pair.qa.send_cq.drain().len(), 20);
        let done = pair.qb.receive_cq.drain();
        // Slots are used one after the other: what is lost takes no receive WQE away.
        for (slot, one) in done.iter().enumerate() {
            assert!(
                one.is_ok() && usize::from(one.index) == slot && one.length as usize == size,
                "{one:?}"
            );
            let data = inbox.memory.read(slot * size, size);
            assert!(
                data == pattern(size, u64::from(one.immediate)),
                "seed {seed}, message {}",
                one.immediate
            );
        }
        assert!(done.is_sorted_by_key(|one| one.immediate));
        let counters = pair.b.device.counters();
        assert!(done.len() as u64 + counters.messages_dropped <= 20, "{counters:?}");
        whole += done.len();
    }
    // 0.9^4 of 800 messages.
    assert!((400..650).contains(&whole), "{whole}");
}

#[test]
fn what_is_not_allowed_is_dropped() {
    let mut pair = pair(Faults::default());
    let (local, target) = (pair.a.region(64), pair.b.region(64));
    local.memory.write(0, &[7; 64]);
    let read_only = pair.b.key(
        &target.memory,
        0,
        64,
        support::Rights { remote_write: false, ..support::Rights::ALL },
    );
    // No receive WQE, a foreign key, and then something that is right.
    pair.qa.post(&Wqe::new(Opcode::Send).inline(b"x"));
    for key in [read_only, target.key] {
        pair.qa.post(&Wqe::new(Opcode::RdmaWrite).remote(target.address(), key).data(
            local.address(),
            8,
            local.key,
        ));
        pair.settle();
    }
    assert_eq!(pair.b.device.counters().messages_dropped, 2);
    assert_eq!(pair.qa.send_cq.drain().len(), 3);
    assert_eq!(target.memory.read(0, 9), [7, 7, 7, 7, 7, 7, 7, 7, 0]);
    // A receive WQE that is too small fails, and its queue with it.
    pair.qb.post_receive(&[(target.address(), 4, target.key)]);
    pair.qa.post(&Wqe::new(Opcode::Send).inline(b"12345"));
    pair.settle();
    assert_eq!(pair.qb.receive_cq.poll().unwrap().syndrome, Some(Syndrome::LocalLength));
    pair.b.destroy_key(read_only);
}

#[test]
fn packets_of_another_service_are_dropped_and_counted() {
    let config = Config::default().mode(Mode::Stepped).wire(WireKind::Fabric(Fabric::new()));
    let (a, b) = (Node::open(config.clone()), Node::open(config));
    let connection = Connection::default();
    let (mut rc, mut uc) = (support::Qp::new(&a), support::Qp::with_service(&b, ServiceType::Uc));
    rc.connect(&b, uc.number, &connection, (1, 1));
    uc.connect(&a, rc.number, &connection, (1, 1));
    rc.post(&Wqe::new(Opcode::RdmaWrite).remote(0, 0));
    uc.post(&Wqe::new(Opcode::RdmaWrite).remote(0, 0));
    for _ in 0..4 {
        a.device.step();
        b.device.step();
    }
    assert_eq!((a.device.counters().wrong_service, b.device.counters().wrong_service), (1, 1));
    assert!(uc.send_cq.poll().is_some() && rc.send_cq.poll().is_none());
}
