//! A wire that loses, duplicates, reorders and corrupts packets: contents arrive intact, and every
//! completion arrives exactly once.

use crate::support::{Completion, Connection, Pair, Wqe, pattern};
use barewire_hca::{Counters, Faults};
use barewire_layouts::command::qp::Mtu;
use barewire_layouts::wqe::Opcode;

const SIZE: usize = 3000;
const SLOT: usize = 4096;
const ROUNDS: usize = 12;

/// Runs all operations over a wire with `faults` in both directions, checks the outcome and returns
/// both devices' counters.
fn run(faults: &Faults) -> (Counters, Counters) {
    let other = faults.clone().seed(faults.seed ^ 0xffff);
    let connection = Connection { mtu: Mtu::Bytes512, psn: 0xff_fff0, ..Connection::default() };
    let mut pair = Pair::with_faults(&connection, faults.clone(), other);
    let length = ROUNDS * SLOT;
    let (local, remote) = (pair.a.region(length), pair.b.region(length));
    let (readable, counter) = (pair.b.region(length), pair.b.region(8));
    let (landing, results) = (pair.a.region(length), pair.a.region(8 * ROUNDS));
    let (written, sent, served) = (pattern(length, 1), pattern(length, 2), pattern(length, 3));
    readable.memory.write(0, &served);
    let inbox = pair.b.region(length);
    let outbox = pair.a.region(length);
    local.memory.write(0, &written);
    outbox.memory.write(0, &sent);

    let mut wqes = Vec::new();
    for round in 0..ROUNDS {
        let at = (round * SLOT) as u64;
        pair.qb.post_receive(&[(inbox.address() + at, SIZE, inbox.key)]);
        pair.qb.post_receive(&[]);
        wqes.extend([
            Wqe::new(Opcode::RdmaWrite).remote(remote.address() + at, remote.key).data(
                local.address() + at,
                SIZE,
                local.key,
            ),
            Wqe::new(Opcode::SendImmediate).immediate(round as u32).data(
                outbox.address() + at,
                SIZE,
                outbox.key,
            ),
            Wqe::new(Opcode::RdmaRead).remote(readable.address() + at, readable.key).data(
                landing.address() + at,
                SIZE,
                landing.key,
            ),
            Wqe::new(Opcode::AtomicFetchAdd)
                .remote(counter.address(), counter.key)
                .atomic(1, 0)
                .data(results.address() + 8 * round as u64, 8, results.key),
            Wqe::new(Opcode::RdmaWriteImmediate)
                .immediate(round as u32)
                .remote(remote.address(), remote.key),
        ]);
    }
    // 60 WQEs of one WQEBB each: all of them fit the ring of 64.
    for wqe in &wqes {
        pair.qa.post(wqe);
    }
    pair.settle();

    let done = pair.qa.send_cq.drain();
    assert!(
        done.iter().all(Completion::is_ok),
        "{faults:?}: {:?} {:?} {:?}",
        done.iter().find(|one| !one.is_ok()),
        pair.a.device.counters(),
        pair.b.device.counters()
    );
    assert!(done.iter().map(|one| one.index).eq(0..wqes.len() as u16), "{faults:?}: {done:?}");
    let received = pair.qb.receive_cq.drain();
    assert!(received.iter().all(Completion::is_ok), "{faults:?}: {received:?}");
    assert!(
        received.iter().map(|one| one.index).eq(0..2 * ROUNDS as u16),
        "{faults:?}: {received:?}"
    );
    assert!(
        received
            .iter()
            .map(|one| one.immediate)
            .eq((0..ROUNDS as u32).flat_map(|round| [round, round]))
    );
    for round in 0..ROUNDS {
        let slot = round * SLOT..round * SLOT + SIZE;
        assert_eq!(remote.memory.read(slot.start, SIZE), written[slot.clone()], "{faults:?}");
        assert_eq!(inbox.memory.read(slot.start, SIZE), sent[slot.clone()], "{faults:?}");
        assert_eq!(landing.memory.read(slot.start, SIZE), served[slot.clone()], "{faults:?}");
        assert_eq!(results.memory.read(8 * round, 8), (round as u64).to_ne_bytes(), "{faults:?}");
    }
    assert_eq!(counter.memory.read(0, 8), (ROUNDS as u64).to_ne_bytes(), "{faults:?}");
    (pair.a.device.counters(), pair.b.device.counters())
}

/// Runs 50 seeds at 1, 5, 10 and 20 % of the `faults` given, and adds up what matters.
fn seeds(faults: &Faults) -> Counters {
    let mut sum = Counters::default();
    for seed in 0..50 {
        let probability = [0.01, 0.05, 0.1, 0.2][seed as usize % 4];
        let scale = |share: f64| share * probability;
        let (a, b) = run(&Faults::default()
            .drop(scale(faults.drop))
            .duplicate(scale(faults.duplicate))
            .reorder(scale(faults.reorder))
            .corrupt(scale(faults.corrupt))
            .seed(seed));
        assert_eq!(b.atomics, ROUNDS as u64, "each atomic is executed once");
        for counters in [a, b] {
            sum.fault_dropped += counters.fault_dropped;
            sum.fault_duplicated += counters.fault_duplicated;
            sum.fault_reordered += counters.fault_reordered;
            sum.fault_corrupted += counters.fault_corrupted;
            sum.bad_icrc += counters.bad_icrc;
            sum.retransmitted += counters.retransmitted;
            sum.duplicates += counters.duplicates;
            sum.atomics_replayed += counters.atomics_replayed;
        }
    }
    sum
}

#[test]
fn lost_packets_are_sent_again() {
    let sum = seeds(&Faults::default().drop(1.0));
    assert!(sum.fault_dropped > 100 && sum.retransmitted > 100, "{sum:?}");
}

#[test]
fn doubled_packets_are_executed_once() {
    let sum = seeds(&Faults::default().duplicate(1.0));
    assert!(
        sum.fault_duplicated > 100 && sum.duplicates > 100 && sum.atomics_replayed > 0,
        "{sum:?}"
    );
}

#[test]
fn reordered_packets_find_their_place() {
    let sum = seeds(&Faults::default().reorder(1.0));
    assert!(sum.fault_reordered > 100, "{sum:?}");
}

#[test]
fn corrupted_packets_are_dropped() {
    let sum = seeds(&Faults::default().corrupt(1.0));
    assert!(sum.fault_corrupted > 100 && sum.bad_icrc > 100, "{sum:?}");
}

#[test]
fn everything_at_once() {
    // A quarter of the single faults' probabilities each, so that seven retries in a row do not
    // fail.
    let sum =
        seeds(&Faults::default().drop(0.25).duplicate(0.25).reorder(0.25).corrupt(0.25).seed(0));
    assert!(sum.fault_dropped > 100 && sum.fault_corrupted > 100, "{sum:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let faults = Faults::default().drop(0.1).duplicate(0.1).reorder(0.1).corrupt(0.1).seed(11);
    assert_eq!(run(&faults), run(&faults));
}
