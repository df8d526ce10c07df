//! Devices with threads, over UDP on addresses of their own.

use std::time::{Duration, Instant};

use crate::support::{Completion, Connection, Node, Pair, Wqe, pattern};
use barewire_hca::Faults;
use barewire_layouts::command::qp::Mtu;
use barewire_layouts::wqe::Opcode;

fn large() -> Connection {
    Connection { mtu: Mtu::Bytes4096, log_depth: 4, ..Connection::default() }
}

/// Writes and reads `total` bytes in pieces of `piece`, and checks them; gives the pair.
fn transfer(faults: &Faults, total: usize, piece: usize) -> Pair {
    let other = faults.clone().seed(faults.seed + 1);
    let mut pair = Pair::over(Node::threaded(faults.clone()), Node::threaded(other), &large());
    let (local, remote) = (pair.a.region(total), pair.b.region(total));
    let data = pattern(total, 1);
    local.memory.write(0, &data);
    for opcode in [Opcode::RdmaWrite, Opcode::RdmaRead] {
        let start = Instant::now();
        let (mut posted, mut done) = (0, 0);
        while done < total / piece {
            if posted < total / piece && posted - done < 32 {
                let at = (posted * piece) as u64;
                pair.qa.post(&Wqe::new(opcode).remote(remote.address() + at, remote.key).data(
                    local.address() + at,
                    piece,
                    local.key,
                ));
                posted += 1;
            } else {
                let completion = pair.qa.send_cq.wait();
                assert!(completion.is_ok(), "{completion:?}");
                done += 1;
            }
        }
        println!("{opcode:?}: {} MiB in {:?}", total >> 20, start.elapsed());
        assert!(
            remote.memory.read(0, total) == data && local.memory.read(0, total) == data,
            "{opcode:?}"
        );
        if opcode == Opcode::RdmaWrite {
            local.memory.write(0, &vec![0; total]);
        }
    }
    pair
}

#[test]
fn sixteen_mebibytes_cross_two_sockets() {
    let pair = transfer(&Faults::default(), 16 << 20, 1 << 20);
    let (a, b) = (pair.a.device.counters(), pair.b.device.counters());
    println!("{a:?}\n{b:?}");
    assert_eq!((a.bad_icrc, b.bad_icrc, a.findings, b.findings), (0, 0, 0, 0));
}

#[test]
fn a_wire_that_loses_a_percent_is_repaired() {
    let faults = Faults::default().drop(0.01).duplicate(0.01).reorder(0.01).corrupt(0.01).seed(5);
    let pair = transfer(&faults, 4 << 20, 256 << 10);
    assert!(pair.a.device.counters().retransmitted > 0);
}

#[test]
fn small_messages_go_back_and_forth() {
    let mut pair = Pair::over(
        Node::threaded(Faults::default()),
        Node::threaded(Faults::default()),
        &Connection::default(),
    );
    let (inbox_a, inbox_b) = (pair.a.region(8), pair.b.region(8));
    let start = Instant::now();
    for round in 0..500_u64 {
        pair.qa.post_receive(&[(inbox_a.address(), 8, inbox_a.key)]);
        pair.qb.post_receive(&[(inbox_b.address(), 8, inbox_b.key)]);
        pair.qa.post(&Wqe::new(Opcode::Send).inline(&round.to_le_bytes()));
        assert!(pair.qb.receive_cq.wait().is_ok());
        assert_eq!(inbox_b.memory.read(0, 8), round.to_le_bytes());
        pair.qb.post(&Wqe::new(Opcode::Send).inline(&(!round).to_le_bytes()));
        assert!(pair.qa.receive_cq.wait().is_ok());
        assert_eq!(inbox_a.memory.read(0, 8), (!round).to_le_bytes());
        assert!(pair.qa.send_cq.wait().is_ok() && pair.qb.send_cq.wait().is_ok());
    }
    println!("500 round trips in {:?}", start.elapsed());
    assert_eq!(pair.a.device.counters().findings, 0);
}

#[test]
fn posts_from_many_threads_are_all_noticed() {
    let (a, b) = (Node::threaded(Faults::default()), Node::threaded(Faults::default()));
    let counter = b.region(8);
    let (address, key) = (counter.address(), counter.key);
    // All queue pairs ring through one page of registers and take turns, as with a driver that
    // shares it.
    let register = std::sync::Mutex::new(());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (a, b, register) = (a.clone(), b.clone(), &register);
            scope.spawn(move || {
                let mut pair = Pair::over(a, b, &large());
                let result = pair.a.region(8);
                let mut done = 0;
                for posted in 0..300 {
                    let wqe = Wqe::new(Opcode::AtomicFetchAdd).remote(address, key).atomic(1, 0);
                    let turn = register.lock().unwrap();
                    pair.qa.post(&wqe.data(result.address(), 8, result.key));
                    drop(turn);
                    while posted - done >= 20 {
                        assert!(pair.qa.send_cq.wait().is_ok());
                        done += 1;
                    }
                }
                while done < 300 {
                    assert!(pair.qa.send_cq.wait().is_ok());
                    done += 1;
                }
            });
        }
    });
    assert_eq!(counter.memory.read(0, 8), 1200_u64.to_ne_bytes());
    assert_eq!(a.device.take_reports(), []);
}

#[test]
fn a_device_that_closes_is_noticed_by_its_peer() {
    let connection = Connection { ack_timeout: 8, retry_count: 2, ..large() };
    let Pair { a, b, mut qa, qb } = Pair::over(
        Node::threaded(Faults::default()),
        Node::threaded(Faults::default()),
        &connection,
    );
    drop((qb, b));
    for _ in 0..3 {
        qa.post(&Wqe::new(Opcode::Send).unsignalled());
    }
    let start = Instant::now();
    let syndromes: Vec<_> =
        (0..3).map(|_| qa.send_cq.wait().syndrome.expect("an error") as u8).collect();
    assert_eq!(syndromes, [0x15, 5, 5]);
    assert!(start.elapsed() < Duration::from_secs(10));
    drop(a);
}

#[test]
fn no_queue_pair_starves_another() {
    let (a, b) = (Node::threaded(Faults::default()), Node::threaded(Faults::default()));
    let mut busy = Pair::over(a.clone(), b.clone(), &large());
    let mut quiet = Pair::over(a, b, &large());
    let size = 1 << 20;
    let (local, remote) = (busy.a.region(size), busy.b.region(size));
    let mut overtaken = 0;
    for _ in 0..24 {
        busy.qa.post(&Wqe::new(Opcode::RdmaWrite).remote(remote.address(), remote.key).data(
            local.address(),
            size,
            local.key,
        ));
    }
    for _ in 0..5 {
        quiet.qa.post(
            &Wqe::new(Opcode::RdmaWrite).remote(remote.address(), remote.key).inline(b"quick"),
        );
        assert!(quiet.qa.send_cq.wait().is_ok());
        overtaken += busy.qa.send_cq.drain().iter().filter(|one| Completion::is_ok(one)).count();
    }
    // Five small writes pass while at least some of 24 MiB are still on their way.
    assert!(overtaken < 24, "{overtaken}");
    while overtaken < 24 {
        assert!(busy.qa.send_cq.wait().is_ok());
        overtaken += 1;
    }
}
