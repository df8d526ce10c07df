//! Every operation of a reliable connection, in Stepped mode over an in-process fabric.

use crate::support::{self, Completion, Connection, MTUS, Node, Pair, Qp, Wqe, pattern};
use barewire_hca::{Fabric, Faults};
use barewire_layouts::command::qp::Mtu;
use barewire_layouts::cqe::CqeOpcode;
use barewire_layouts::wqe::{ControlFlags, Opcode};

fn sizes(mtu: usize) -> [usize; 7] {
    [0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu + 5, 1 << 20]
}

fn connected(mtu: Mtu) -> Pair {
    Pair::new(&Connection { mtu, ..Connection::default() })
}

/// The one completion of the requester's send queue.
fn sent(pair: &mut Pair) -> Completion {
    let all = pair.qa.send_cq.drain();
    let [one] = all[..] else { panic!("one completion wanted: {all:?}") };
    assert!(one.is_ok(), "{one:?}");
    assert_eq!((one.opcode, one.qpn), (CqeOpcode::Requester, pair.qa.number));
    one
}

#[test]
fn writes_of_every_size_arrive() {
    for (mtu, bytes) in MTUS {
        let mut pair = connected(mtu);
        for (round, size) in sizes(bytes).into_iter().enumerate() {
            let (source, target) = (pair.a.region(size), pair.b.region(size + 2));
            let data = pattern(size, round as u64 + 1);
            source.memory.write(0, &data);
            let wqe = Wqe::new(Opcode::RdmaWrite).remote(target.address() + 1, target.key).data(
                source.address(),
                size,
                source.key,
            );
            let index = pair.qa.post(&wqe);
            pair.settle();
            assert_eq!(sent(&mut pair).index, index);
            assert_eq!(target.memory.read(1, size), data, "{size} bytes");
            assert_eq!(
                (target.memory.read(0, 1), target.memory.read(size + 1, 1)),
                (vec![0], vec![0])
            );
        }
        assert!(pair.qb.receive_cq.drain().is_empty());
    }
}

#[test]
fn sends_of_every_size_arrive_scattered() {
    for (mtu, bytes) in MTUS {
        let mut pair = connected(mtu);
        for (round, size) in sizes(bytes).into_iter().enumerate() {
            let (source, target) = (pair.a.region(size), pair.b.region(size + 100));
            let data = pattern(size, round as u64 + 1);
            source.memory.write(0, &data);
            // Three pieces on either side, cut at different places.
            let (cut, at, key) = (size / 3, source.address(), source.key);
            let (first, to, remote) = (size / 2 + 3, target.address(), target.key);
            pair.qb.post_receive(&[
                (to, first, remote),
                (to + first as u64, 1, remote),
                (to + first as u64 + 1, size, remote),
            ]);
            let wqe = Wqe::new(if round % 2 == 0 { Opcode::SendImmediate } else { Opcode::Send })
                .immediate(0x0102_0304)
                .flags(ControlFlags::SOLICITED)
                .data(at, cut, key)
                .data(at + cut as u64, cut, key)
                .data(at + 2 * cut as u64, size - 2 * cut, key);
            pair.qa.post(&wqe);
            pair.settle();
            sent(&mut pair);
            let opcode = if round % 2 == 0 {
                CqeOpcode::ResponderSendImmediate
            } else {
                CqeOpcode::ResponderSend
            };
            let immediate = if round % 2 == 0 { 0x0102_0304 } else { 0 };
            let qpn = pair.qb.number;
            let want = Completion {
                user_index: 0x77,
                packet: zerocopy::FromZeros::new_zeroed(),
                opcode,
                qpn,
                index: round as u16,
                length: size as u32,
                immediate,
                syndrome: None,
            };
            assert_eq!(pair.qb.receive_cq.drain(), [want]);
            assert_eq!(target.memory.read(0, size), data, "{size} bytes");
        }
    }
}

#[test]
fn writes_with_immediate_take_a_receive() {
    for (mtu, bytes) in MTUS {
        let mut pair = connected(mtu);
        for (round, size) in sizes(bytes).into_iter().enumerate() {
            let (source, target) = (pair.a.region(size), pair.b.region(size));
            let data = pattern(size, round as u64 + 1);
            source.memory.write(0, &data);
            pair.qb.post_receive(&[]);
            let wqe = Wqe::new(Opcode::RdmaWriteImmediate)
                .immediate(round as u32)
                .remote(target.address(), target.key)
                .data(source.address(), size, source.key);
            pair.qa.post(&wqe);
            pair.settle();
            sent(&mut pair);
            let want = Completion {
                user_index: 0x77,
                packet: zerocopy::FromZeros::new_zeroed(),
                opcode: CqeOpcode::ResponderWriteImmediate,
                qpn: pair.qb.number,
                index: round as u16,
                length: size as u32,
                immediate: round as u32,
                syndrome: None,
            };
            assert_eq!(pair.qb.receive_cq.drain(), [want]);
            assert_eq!(target.memory.read(0, size), data, "{size} bytes");
        }
    }
}

#[test]
fn reads_of_every_size_come_back() {
    for (mtu, bytes) in MTUS {
        for log_depth in [0, 2] {
            let mut pair = Pair::new(&Connection { mtu, log_depth, ..Connection::default() });
            for (round, size) in sizes(bytes).into_iter().enumerate() {
                let (target, source) = (pair.a.region(size), pair.b.region(size));
                let data = pattern(size, round as u64 + 1);
                source.memory.write(0, &data);
                let cut = size / 3;
                let wqe = Wqe::new(Opcode::RdmaRead)
                    .remote(source.address(), source.key)
                    .data(target.address(), cut, target.key)
                    .data(target.address() + cut as u64, size - cut, target.key);
                pair.qa.post(&wqe);
                pair.settle();
                assert_eq!(sent(&mut pair).length, size as u32);
                assert_eq!(
                    target.memory.read(0, size),
                    data,
                    "{size} bytes, depth {}",
                    1 << log_depth
                );
            }
        }
    }
}

#[test]
fn atomics_act_on_the_peer_and_return_the_old_value() {
    let mut pair = connected(Mtu::Bytes1024);
    let (result, target) = (pair.a.region(64), pair.b.region(64));
    target.memory.word(8).store(40, std::sync::atomic::Ordering::SeqCst);
    let fetch_add =
        Wqe::new(Opcode::AtomicFetchAdd).remote(target.address() + 8, target.key).atomic(2, 0);
    let compare_swap = |compare, swap| {
        Wqe::new(Opcode::AtomicCompareSwap)
            .remote(target.address() + 8, target.key)
            .atomic(swap, compare)
    };
    for (place, (wqe, old, new)) in [
        (fetch_add, 40, 42),
        (compare_swap(41, 7), 42, 42),
        (compare_swap(42, u64::MAX), 42, u64::MAX),
    ]
    .into_iter()
    .enumerate()
    {
        let place = place * 8;
        pair.qa.post(&wqe.data(result.address() + place as u64, 8, result.key));
        pair.settle();
        assert_eq!(sent(&mut pair).length, 8);
        assert_eq!(result.memory.read(place, 8), u64::to_ne_bytes(old));
        assert_eq!(target.memory.read(8, 8), u64::to_ne_bytes(new));
    }
}

#[test]
fn inline_data_wraps_the_ring_end() {
    let mut pair = connected(Mtu::Bytes256);
    let target = pair.b.region(4096);
    // 200 inline bytes take four WQEBBs, so that some WQEs wrap around the end of the ring of 64.
    for round in 0..200_u64 {
        let data = pattern(200, round);
        let wqe = Wqe::new(Opcode::RdmaWrite).remote(target.address(), target.key).inline(&data);
        if round % 2 == 0 {
            pair.qa.post(&wqe)
        } else {
            pair.qa.post_plain(&wqe)
        };
        pair.qa.post(&Wqe::new(Opcode::Nop).unsignalled());
        pair.settle();
        sent(&mut pair);
        assert_eq!(target.memory.read(0, 200), data, "round {round}");
    }
    assert_eq!(pair.a.device.counters().findings, 0);
}

#[test]
fn a_million_sequence_numbers_are_not_needed_to_wrap() {
    for psn in [0xff_fffe, 0xff_ffff, 0xff_fff0, 0x7f_fffe] {
        let mut pair = Pair::new(&Connection { psn, ..Connection::default() });
        let (local, remote) = (pair.a.region(20_000), pair.b.region(20_000));
        let data = pattern(20_000, 9);
        local.memory.write(0, &data);
        let (at, key) = (local.address(), local.key);
        pair.qa.post(
            &Wqe::new(Opcode::RdmaWrite).remote(remote.address(), remote.key).data(at, 20_000, key),
        );
        pair.settle();
        sent(&mut pair);
        assert_eq!(remote.memory.read(0, 20_000), data);
        local.memory.write(0, &vec![0; 20_000]);
        pair.qa.post(
            &Wqe::new(Opcode::RdmaRead).remote(remote.address(), remote.key).data(at, 20_000, key),
        );
        pair.settle();
        sent(&mut pair);
        assert_eq!(local.memory.read(0, 20_000), data);
    }
}

#[test]
fn many_messages_wrap_the_rings_and_the_index() {
    let mut pair = connected(Mtu::Bytes256);
    let (source, target) = (pair.a.region(8), pair.b.region(8));
    let (mut done, mut received) = (0_u32, 0_u32);
    // More than 2^16, the range of WQE indices and doorbell counters.
    let total = 70_000_u32;
    let (mut posted, mut receives) = (0_u32, 0_u32);
    while done < total || received < total {
        while receives < total && receives - received < 32 {
            pair.qb.post_receive(&[(target.address(), 8, target.key)]);
            receives += 1;
        }
        while posted < total && posted - done < 64 {
            pair.qa.post(&Wqe::new(Opcode::Send).data(source.address(), 8, source.key));
            posted += 1;
        }
        pair.step(1);
        for completion in pair.qa.send_cq.drain() {
            assert!(completion.is_ok(), "{completion:?}");
            assert_eq!(completion.index, done as u16);
            done += 1;
        }
        for completion in pair.qb.receive_cq.drain() {
            assert!(completion.is_ok(), "{completion:?}");
            assert_eq!(completion.index, received as u16);
            received += 1;
        }
    }
    let counters = pair.a.device.counters();
    assert_eq!((counters.findings, counters.wqes, counters.timeouts), (0, 70_000, 0));
}

#[test]
fn unsignalled_work_is_done_before_the_next_signal() {
    let mut pair = connected(Mtu::Bytes256);
    let (source, target) = (pair.a.region(4096), pair.b.region(4096));
    let data = pattern(4096, 5);
    source.memory.write(0, &data);
    for part in 0..8 {
        let offset = part * 512;
        let wqe = Wqe::new(Opcode::RdmaWrite).remote(target.address() + offset, target.key).data(
            source.address() + offset,
            512,
            source.key,
        );
        pair.qa.post(&if part < 7 { wqe.unsignalled() } else { wqe });
    }
    pair.settle();
    assert_eq!(sent(&mut pair).index, 7);
    assert_eq!(target.memory.read(0, 4096), data);
}

#[test]
fn unsignalled_work_alone_is_acknowledged() {
    let mut pair = connected(Mtu::Bytes256);
    let (source, target) = (pair.a.region(64), pair.b.region(64));
    for _ in 0..3 {
        let wqe = Wqe::new(Opcode::RdmaWrite).remote(target.address(), target.key).data(
            source.address(),
            64,
            source.key,
        );
        pair.qa.post(&wqe.unsignalled());
    }
    pair.settle();
    assert!(pair.qa.send_cq.drain().is_empty());
    let counters = pair.a.device.counters();
    assert_eq!((counters.timeouts, counters.retransmitted), (0, 0));
}

#[test]
fn a_fenced_write_waits_for_the_read_before_it() {
    let mut pair = connected(Mtu::Bytes256);
    let (local, remote) = (pair.a.region(20_000), pair.b.region(20_000));
    let data = pattern(20_000, 3);
    remote.memory.write(0, &data);
    let (at, key) = (local.address(), local.key);
    pair.qa.post(
        &Wqe::new(Opcode::RdmaRead).remote(remote.address(), remote.key).data(at, 20_000, key),
    );
    let overwrite = Wqe::new(Opcode::RdmaWrite)
        .remote(remote.address() + 19_999, remote.key)
        .inline(&[!data[19_999]]);
    pair.qa.post(&overwrite.flags(ControlFlags::FENCE));
    pair.settle();
    let done = pair.qa.send_cq.drain();
    assert_eq!(
        done.iter().map(|one| (one.is_ok(), one.index)).collect::<Vec<_>>(),
        [(true, 0), (true, 1)]
    );
    assert_eq!(local.memory.read(0, 20_000), data);
    assert_eq!(remote.memory.read(19_999, 1), [!data[19_999]]);
}

#[test]
fn completions_keep_the_order_of_posting() {
    let mut pair = connected(Mtu::Bytes256);
    let (local, remote) = (pair.a.region(8192), pair.b.region(8192));
    let (at, key, to, rkey) = (local.address(), local.key, remote.address(), remote.key);
    for round in 0..40_u16 {
        let wqe = match round % 4 {
            0 => Wqe::new(Opcode::RdmaRead).remote(to, rkey).data(at, 3000, key),
            1 => Wqe::new(Opcode::RdmaWrite).remote(to + 4096, rkey).data(at + 4096, 700, key),
            2 => Wqe::new(Opcode::AtomicFetchAdd).remote(to + 8184, rkey).atomic(1, 0).data(
                at + 8184,
                8,
                key,
            ),
            _ => Wqe::new(Opcode::Nop),
        };
        pair.qa.post(&wqe);
    }
    pair.settle();
    let done = pair.qa.send_cq.drain();
    assert!(done.iter().all(Completion::is_ok));
    assert_eq!(done.len(), 40);
    assert!(done.is_sorted_by_key(|one| one.index));
    assert_eq!(remote.memory.read(8184, 8), u64::to_ne_bytes(10));
}

#[test]
fn a_queue_pair_talks_to_another_of_its_own_device() {
    let node =
        support::Node::stepped(&barewire_hca::Fabric::new(), barewire_hca::Faults::default());
    let mut pair = Pair::over(node.clone(), node, &Connection::default());
    let (source, target) = (pair.a.region(5000), pair.b.region(5000));
    let data = pattern(5000, 4);
    source.memory.write(0, &data);
    pair.qb.post_receive(&[(target.address(), 5000, target.key)]);
    pair.qa.post(&Wqe::new(Opcode::Send).data(source.address(), 5000, source.key));
    pair.settle();
    sent(&mut pair);
    assert_eq!(pair.qb.receive_cq.drain().len(), 1);
    assert_eq!(target.memory.read(0, 5000), data);
}

#[test]
fn a_reset_queue_pair_starts_anew_with_equal_doorbells() {
    let mut pair = connected(Mtu::Bytes256);
    let target = pair.b.region(64);
    for round in 0..5_u8 {
        // The first WQE after each reset gives the very same 8 bytes in the same register half.
        let wqe =
            Wqe::new(Opcode::RdmaWrite).remote(target.address(), target.key).inline(&[round + 1]);
        pair.qa.post(&wqe);
        pair.qa.post(&Wqe::new(Opcode::Nop).unsignalled());
        pair.settle();
        sent(&mut pair);
        assert_eq!(target.memory.read(0, 1), [round + 1]);
        let connection = Connection { psn: u32::from(round), ..Connection::default() };
        pair.qa.reset();
        pair.qb.reset();
        let (psn_a, psn_b) = (connection.psn, connection.psn + 77);
        pair.qa.connect(&pair.b, pair.qb.number, &connection, (psn_a, psn_b));
        pair.qb.connect(&pair.a, pair.qa.number, &connection, (psn_b, psn_a));
    }
}

/// UCX does not clear the record of a DC initiator that it resets: an adapter reads it only when a
/// doorbell rings.
#[test]
fn a_doorbell_record_from_before_a_reset_posts_nothing() {
    let mut pair = connected(Mtu::Bytes256);
    let target = pair.b.region(64);
    for round in 0..4_u8 {
        let wqe =
            Wqe::new(Opcode::RdmaWrite).remote(target.address(), target.key).inline(&[round + 1]);
        // As many as before the reset, and fewer.
        for _ in 0..[3, 3, 1, 2][usize::from(round)] {
            pair.qa.post(&wqe);
            pair.settle();
            sent(&mut pair);
        }
        assert_eq!(target.memory.read(0, 1), [round + 1]);
        let connection = Connection { psn: u32::from(round), ..Connection::default() };
        pair.qa.reset_device();
        pair.qb.reset();
        let (psn_a, psn_b) = (connection.psn, connection.psn + 77);
        pair.qa.connect(&pair.b, pair.qb.number, &connection, (psn_a, psn_b));
        pair.qb.connect(&pair.a, pair.qa.number, &connection, (psn_b, psn_a));
        pair.settle();
        assert!(pair.qa.send_cq.poll().is_none(), "an old WQE was executed");
    }
}

#[test]
fn an_atomic_does_not_overtake_the_reads_before_it() {
    let mut pair = Pair::new(&Connection { log_depth: 4, ..Connection::default() });
    let (remote, local, result) = (pair.b.region(8192), pair.a.region(8192), pair.a.region(64));
    for round in 0..8_u64 {
        let read = Wqe::new(Opcode::RdmaRead).remote(remote.address(), remote.key);
        pair.qa.place(&read.data(local.address(), 4096, local.key).unsignalled());
        let add = Wqe::new(Opcode::AtomicFetchAdd)
            .remote(remote.address() + 4088, remote.key)
            .atomic(1, 0);
        pair.qa.place(&add.data(result.address(), 8, result.key).unsignalled());
        let read = Wqe::new(Opcode::RdmaRead).remote(remote.address() + 4088, remote.key);
        pair.qa.post(&read.data(local.address() + 4096, 8, local.key));
        pair.settle();
        assert!(pair.qa.send_cq.poll().unwrap().is_ok());
        let numbers = [4088, 4096].map(|at| local.memory.read(at, 8));
        assert_eq!(numbers, [round, round + 1].map(|number| number.to_ne_bytes().to_vec()));
    }
    assert_eq!(pair.b.device.counters().postponed_behind_reads, 0);
}

/// Once a peer's operation is seen to complete, it may end: more queue pairs may then wait for a
/// turn than one pass serves.
#[test]
fn a_connection_that_ends_acknowledges_what_it_completed() {
    const PAIRS: usize = 20;
    let fabric = Fabric::default();
    let (a, b) =
        (Node::stepped(&fabric, Faults::default()), Node::stepped(&fabric, Faults::default()));
    let connection = Connection::default();
    let mut pairs: Vec<(Qp, Qp)> = (0..PAIRS)
        .map(|_| {
            let (mut qa, mut qb) = (Qp::new(&a), Qp::new(&b));
            let (to_a, to_b) = (qa.number, qb.number);
            qa.connect(&b, to_b, &connection, (connection.psn, connection.psn));
            qb.connect(&a, to_a, &connection, (connection.psn, connection.psn));
            qb.post_receive(&[]);
            (qa, qb)
        })
        .collect();
    for (qa, _) in &mut pairs {
        qa.post(&Wqe::new(Opcode::Send));
    }
    // A pass of the one sends what a pass of the other takes.
    for _ in 0..PAIRS.div_ceil(8) {
        a.device.step();
    }
    b.device.step();
    let ends: [fn(&mut Qp); 3] = [Qp::reset, |qp| qp.to_error(), Qp::destroy];
    for (at, (_, qb)) in pairs.iter_mut().enumerate() {
        assert!(
            qb.receive_cq.poll().is_some_and(|completion| completion.is_ok()),
            "{at}: it was received"
        );
        ends[at % ends.len()](qb);
    }
    while a.device.step() | b.device.step() {}
    for (at, (qa, _)) in pairs.iter_mut().enumerate() {
        assert!(
            qa.send_cq.poll().is_some_and(|completion| completion.is_ok()),
            "{at}: it was acknowledged"
        );
    }
    assert_eq!(a.device.counters().retransmitted, 0);
}
