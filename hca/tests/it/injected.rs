//! Faults beyond lost packets: delay, a link that goes down, slow memory, an overrun, a broken
//! device.

use crate::support::{Completion, Connection, Node, Pair, Wqe, pattern};
use barewire_hca::{Fabric, Fault, Faults};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::wqe::Opcode;

fn write(pair: &mut Pair, length: usize) {
    let (local, remote) = (pair.a.region(length), pair.b.region(length));
    let data = pattern(length, 3);
    local.memory.write(0, &data);
    let wqe = Wqe::new(Opcode::RdmaWrite).remote(remote.address(), remote.key);
    for _ in 0..8 {
        pair.qa.post(&wqe.clone().data(local.address(), length, local.key));
    }
    pair.settle();
    let done = pair.qa.send_cq.drain();
    assert!(done.len() == 8 && done.iter().all(Completion::is_ok), "{done:?}");
    assert_eq!(remote.memory.read(0, length), data);
}

#[test]
fn delayed_packets_arrive_and_a_flapping_link_is_repaired() {
    for seed in 0..10 {
        let late = Faults::default().delay(0.2).delay_us(300).seed(seed);
        let mut pair = Pair::with_faults(&Connection::default(), late.clone(), late);
        write(&mut pair, 5000);
        assert!(pair.a.device.counters().fault_delayed > 0);
        let flap = Faults::default().flap(0.02).flap_us(50).seed(seed);
        let mut pair = Pair::with_faults(&Connection::default(), flap.clone(), flap);
        write(&mut pair, 5000);
        let counters = pair.a.device.counters();
        assert!(counters.fault_flaps == 0 || counters.link_dropped > 0, "{counters:?}");
    }
}

#[test]
fn slow_memory_is_slow_and_right() {
    let slow = Faults::default().slow_dma_us(10);
    let mut pair = Pair::with_faults(&Connection::default(), slow.clone(), slow);
    write(&mut pair, 3000);
}

#[test]
fn a_link_that_stays_down_exhausts_the_retries_and_one_that_returns_does_not() {
    let connection = Connection { retry_count: 3, ..Connection::default() };
    let mut pair = Pair::new(&connection);
    assert!(pair.a.device.inject(Fault::LinkDown));
    pair.qa.post(&Wqe::new(Opcode::RdmaWrite).remote(0, 0));
    pair.step(40);
    assert!(pair.a.device.inject(Fault::LinkUp));
    pair.settle();
    assert!(pair.qa.send_cq.poll().unwrap().is_ok());
    assert!(pair.a.device.counters().link_dropped > 0);
    assert!(pair.b.device.inject(Fault::LinkDown));
    pair.qa.post(&Wqe::new(Opcode::RdmaWrite).remote(0, 0));
    pair.settle();
    assert_eq!(pair.qa.send_cq.poll().unwrap().syndrome, Some(Syndrome::TransportRetryExceeded));
}

#[test]
fn an_overrun_queue_takes_its_queue_pairs_down() {
    let mut pair = Pair::new(&Connection::default());
    let cqn = pair.qa.send_cq.number;
    pair.qa.post_receive(&[]);
    assert!(!pair.a.device.inject(Fault::CqOverrun { cqn: 0x00ff_0000 }));
    assert!(pair.a.device.inject(Fault::CqOverrun { cqn }));
    assert!(!pair.a.device.inject(Fault::CqOverrun { cqn }), "once");
    pair.qa.post(&Wqe::new(Opcode::Nop));
    pair.settle();
    assert_eq!(pair.qa.send_cq.poll(), None);
    assert_eq!(pair.qa.receive_cq.poll().unwrap().syndrome, Some(Syndrome::WorkRequestFlushed));
    assert_eq!(pair.a.device.counters().cq_overruns, 1);
}

#[test]
fn a_broken_device_does_nothing_but_commands() {
    let fabric = Fabric::new();
    let (a, b) =
        (Node::stepped(&fabric, Faults::default()), Node::stepped(&fabric, Faults::default()));
    let connection = Connection { ack_timeout: 8, retry_count: 2, ..Connection::default() };
    let mut pair = Pair::over(a, b, &connection);
    assert!(pair.b.device.inject(Fault::Fatal));
    pair.qa.post(&Wqe::new(Opcode::RdmaWrite).remote(0, 0));
    pair.qb.post(&Wqe::new(Opcode::Nop));
    pair.settle();
    assert_eq!(pair.qa.send_cq.poll().unwrap().syndrome, Some(Syndrome::TransportRetryExceeded));
    assert_eq!(pair.qb.send_cq.poll(), None);
    // Tear-down works: dropping the pair asserts that every command succeeds.
}

#[test]
fn the_configuration_can_ask_for_an_overrun_and_for_the_end() {
    let overrun: Faults = "cq_overrun_after=3".parse().unwrap();
    let mut pair = Pair::with_faults(&Connection::default(), overrun, Faults::default());
    for number in 1..=3 {
        pair.qa.post(&Wqe::new(Opcode::Nop));
        pair.settle();
        assert!(pair.qa.send_cq.poll().unwrap().is_ok());
        assert_eq!(pair.a.device.counters().cq_overruns, u64::from(number == 3));
    }
    pair.qa.post(&Wqe::new(Opcode::Nop));
    pair.settle();
    assert_eq!((pair.qa.send_cq.poll(), pair.a.device.counters().cq_overruns), (None, 1));
    let fatal: Faults = "fatal_after=2".parse().unwrap();
    let mut pair = Pair::with_faults(&Connection::default(), fatal, Faults::default());
    for _ in 0..3 {
        pair.qa.post(&Wqe::new(Opcode::Nop));
        pair.settle();
    }
    assert_eq!(pair.qa.send_cq.drain().len(), 2);
}
