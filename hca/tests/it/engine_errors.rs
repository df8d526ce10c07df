//! Errors between two queue pairs give the right syndromes on both sides, and everything posted
//! completes once.

use crate::support::{Completion, Connection, Node, Pair, Qp, Rights, Wqe, pattern};
use barewire_hca::{Config, Fabric, Faults, Finding, Mode, Strict, WireKind};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::wqe::Opcode;

fn syndromes(completions: &[Completion]) -> Vec<Option<Syndrome>> {
    completions.iter().map(|one| one.syndrome).collect()
}

const FLUSHED: Option<Syndrome> = Some(Syndrome::WorkRequestFlushed);

#[test]
fn a_receiver_without_receives_is_waited_for() {
    let mut pair = Pair::new(&Connection::default());
    let (source, target) = (pair.a.region(1000), pair.b.region(1000));
    let data = pattern(1000, 1);
    source.memory.write(0, &data);
    for immediate in [false, true] {
        let wqe = if immediate {
            Wqe::new(Opcode::RdmaWriteImmediate).remote(target.address(), target.key)
        } else {
            Wqe::new(Opcode::Send)
        };
        pair.qa.post(&wqe.data(source.address(), 1000, source.key));
        pair.step(300);
        assert!(pair.qa.send_cq.drain().is_empty());
        assert!(pair.b.device.counters().rnr_naks_sent > 3);
        pair.qb.post_receive(&[(target.address(), 1000, target.key)]);
        pair.settle();
        assert_eq!(syndromes(&pair.qa.send_cq.drain()), [None]);
        assert_eq!(syndromes(&pair.qb.receive_cq.drain()), [None]);
        assert_eq!(target.memory.read(0, 1000), data);
        target.memory.write(0, &[0; 1000]);
    }
}

#[test]
fn a_receiver_that_never_is_ready_exhausts_the_rnr_retries() {
    let mut pair = Pair::new(&Connection { rnr_retry: 3, ..Connection::default() });
    for _ in 0..3 {
        pair.qa.post(&Wqe::new(Opcode::Send).unsignalled());
    }
    pair.settle();
    let want = [Some(Syndrome::RnrRetryExceeded), FLUSHED, FLUSHED];
    assert_eq!(syndromes(&pair.qa.send_cq.drain()), want);
    assert_eq!(pair.b.device.counters().rnr_naks_sent, 4);
    assert!(pair.qb.receive_cq.drain().is_empty());
}

#[test]
fn a_peer_that_is_gone_exhausts_the_retries() {
    for device_too in [false, true] {
        let fabric = Fabric::new();
        let a = Node::stepped(&fabric, Faults::default());
        let b = Node::stepped(&fabric, Faults::default());
        let (mut qa, mut qb) = (Qp::new(&a), Qp::new(&b));
        let connection = Connection { retry_count: 4, ..Connection::default() };
        qa.connect(&b, qb.number, &connection, (1, 2));
        qb.connect(&a, qa.number, &connection, (2, 1));
        let source = a.region(64);
        qb.destroy();
        if device_too {
            drop((qb, b));
        }
        for _ in 0..3 {
            qa.post(&Wqe::new(Opcode::Send).data(source.address(), 64, source.key).unsignalled());
        }
        qa.post_receive(&[]);
        while a.device.step() {}
        let want = [Some(Syndrome::TransportRetryExceeded), FLUSHED, FLUSHED];
        assert_eq!(syndromes(&qa.send_cq.drain()), want);
        assert_eq!(syndromes(&qa.receive_cq.drain()), [FLUSHED]);
        assert_eq!(a.device.counters().timeouts, 5);
    }
}

/// The requester does not run for some passes. Those before its timer expires are not counted, so
/// each number is tried.
#[test]
fn a_response_that_has_arrived_is_not_late_if_the_requester_ran_late() {
    for idle in 0..100 {
        let mut pair = Pair::new(&Connection::default());
        let target = pair.b.region(64);
        let write = Wqe::new(Opcode::RdmaWrite).remote(target.address(), target.key);
        pair.qa.post(&write.inline(b"data"));
        for _ in 0..=idle {
            pair.a.device.step();
        }
        if pair.a.device.counters().timeouts > 0 {
            assert!(idle > 0);
            return;
        }
        for _ in 0..8 {
            pair.b.device.step();
        }
        pair.settle();
        assert_eq!(syndromes(&pair.qa.send_cq.drain()), [None]);
        assert_eq!(pair.a.device.counters().timeouts, 0, "after {idle} passes");
    }
    panic!("no timer has expired");
}

/// Posts a good write, `bad` and two more, and checks that they fail with `syndrome` after the good
/// one. Returns the peer's receive completions.
fn fails(pair: &mut Pair, bad: &Wqe, syndrome: Syndrome) -> Vec<Completion> {
    let good = pair.b.region(64);
    pair.qb.post_receive(&[]);
    pair.qb.post_receive(&[]);
    pair.qa.post_receive(&[]);
    pair.qa.post(&Wqe::new(Opcode::RdmaWrite).remote(good.address(), good.key).inline(b"good"));
    pair.qa.post(bad);
    pair.qa.post(
        &Wqe::new(Opcode::RdmaWrite).remote(good.address(), good.key).inline(b"late").unsignalled(),
    );
    pair.qa.post(&Wqe::new(Opcode::Nop));
    pair.settle();
    let done = pair.qa.send_cq.drain();
    assert_eq!(syndromes(&done), [None, Some(syndrome), FLUSHED, FLUSHED]);
    assert!(done.iter().map(|one| one.index).eq(0..4));
    assert_eq!(syndromes(&pair.qa.receive_cq.drain()), [FLUSHED]);
    assert_eq!(good.memory.read(0, 4), b"good");
    // What is posted to a queue pair in error is flushed, too.
    let index = pair.qa.post(&Wqe::new(Opcode::Nop).unsignalled());
    pair.qa.post_receive(&[]);
    pair.settle();
    let done = pair.qa.send_cq.drain();
    assert_eq!((syndromes(&done), done[0].index), (vec![FLUSHED], index));
    assert_eq!(syndromes(&pair.qa.receive_cq.drain()), [FLUSHED]);
    pair.qb.receive_cq.drain()
}

/// A request that the responder refuses ends both queue pairs.
fn refused(connection: &Connection, syndrome: Syndrome, bad: impl FnOnce(&Pair) -> Wqe) {
    let mut pair = Pair::new(connection);
    let bad = bad(&pair);
    let flushed = fails(&mut pair, &bad, syndrome);
    assert_eq!(syndromes(&flushed), [FLUSHED, FLUSHED]);
    assert_eq!(flushed.iter().map(|one| one.index).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn remote_keys_are_checked() {
    type Case = fn(&Pair) -> (u64, u32);
    let cases: [Case; 5] = [
        // A wrong key byte.
        |pair| {
            let region = pair.b.region(64);
            (region.address(), region.key ^ 1)
        },
        // A key that was never given out.
        |pair| (pair.b.region(64).address(), 0x00ff_ff00),
        // A freed key.
        |pair| {
            let region = pair.b.region(64);
            pair.b.destroy_key(region.key);
            (region.address(), region.key)
        },
        // One byte past the end.
        |pair| {
            let region = pair.b.region(64);
            (region.address() + 57, region.key)
        },
        // No remote right at all.
        |pair| {
            let region = pair.b.region(64);
            let rights = Rights {
                remote_read: false,
                remote_write: false,
                remote_atomic: false,
                local_write: true,
            };
            (region.address(), pair.b.key(&region.memory, 0, 64, rights))
        },
    ];
    for case in cases {
        refused(&Connection::default(), Syndrome::RemoteAccess, |pair| {
            let (address, rkey) = case(pair);
            Wqe::new(Opcode::RdmaWrite).remote(address, rkey).inline(&[1; 8])
        });
        refused(&Connection::default(), Syndrome::RemoteAccess, |pair| {
            let ((address, rkey), local) = (case(pair), pair.a.region(8));
            Wqe::new(Opcode::RdmaRead).remote(address, rkey).data(local.address(), 8, local.key)
        });
        refused(&Connection::default(), Syndrome::RemoteAccess, |pair| {
            let ((address, rkey), local) = (case(pair), pair.a.region(8));
            // Aligned up: of the address one byte past the end the whole word is outside.
            let address = address.next_multiple_of(8);
            Wqe::new(Opcode::AtomicFetchAdd).remote(address, rkey).atomic(1, 0).data(
                local.address(),
                8,
                local.key,
            )
        });
    }
}

#[test]
fn each_missing_right_is_noticed() {
    for opcode in [Opcode::RdmaWrite, Opcode::RdmaRead, Opcode::AtomicCompareSwap] {
        refused(&Connection::default(), Syndrome::RemoteAccess, |pair| {
            let (region, local) = (pair.b.region(64), pair.a.region(8));
            let rights = Rights {
                remote_write: opcode != Opcode::RdmaWrite,
                remote_read: opcode != Opcode::RdmaRead,
                remote_atomic: opcode != Opcode::AtomicCompareSwap,
                local_write: true,
            };
            let wqe = Wqe::new(opcode)
                .remote(region.address(), pair.b.key(&region.memory, 0, 64, rights));
            let wqe = if opcode == Opcode::AtomicCompareSwap { wqe.atomic(1, 0) } else { wqe };
            wqe.data(local.address(), 8, local.key)
        });
    }
}

#[test]
fn what_the_queue_pair_does_not_allow_is_an_invalid_request() {
    // A good write goes first, so writes stay allowed.
    let connection =
        Connection { remote_read: false, remote_atomic: false, ..Connection::default() };
    for opcode in [Opcode::RdmaRead, Opcode::AtomicFetchAdd] {
        refused(&connection, Syndrome::RemoteInvalidRequest, |pair| {
            let (region, local) = (pair.b.region(64), pair.a.region(8));
            let wqe = Wqe::new(opcode).remote(region.address(), region.key);
            let wqe = if opcode == Opcode::AtomicFetchAdd { wqe.atomic(1, 0) } else { wqe };
            wqe.data(local.address(), 8, local.key)
        });
    }
}

#[test]
fn an_atomic_must_be_aligned() {
    refused(&Connection::default(), Syndrome::RemoteInvalidRequest, |pair| {
        let (region, local) = (pair.b.region(64), pair.a.region(8));
        let wqe =
            Wqe::new(Opcode::AtomicFetchAdd).remote(region.address() + 4, region.key).atomic(1, 0);
        wqe.data(local.address(), 8, local.key)
    });
}

#[test]
fn local_keys_of_what_is_sent_are_checked() {
    let cases: [fn(&Pair) -> Wqe; 3] = [
        |pair| {
            let (local, remote) = (pair.a.region(64), pair.b.region(64));
            Wqe::new(Opcode::RdmaWrite).remote(remote.address(), remote.key).data(
                local.address(),
                8,
                local.key ^ 1,
            )
        },
        |pair| {
            let (local, remote) = (pair.a.region(64), pair.b.region(64));
            Wqe::new(Opcode::RdmaWrite).remote(remote.address(), remote.key).data(
                local.address(),
                65,
                local.key,
            )
        },
        |pair| {
            let local = pair.a.region(64);
            pair.a.destroy_key(local.key);
            Wqe::new(Opcode::Send).data(local.address(), 8, local.key)
        },
    ];
    for case in cases {
        let mut pair = Pair::new(&Connection::default());
        let bad = case(&pair);
        // The peer receives no packet.
        assert!(fails(&mut pair, &bad, Syndrome::LocalProtection).is_empty());
    }
}

#[test]
fn a_receive_that_is_too_small_fails_on_both_sides() {
    let mut pair = Pair::new(&Connection::default());
    let (source, target) = (pair.a.region(1000), pair.b.region(1000));
    pair.qb
        .post_receive(&[(target.address(), 600, target.key), (target.address(), 399, target.key)]);
    pair.qb.post_receive(&[]);
    pair.qa.post(&Wqe::new(Opcode::Send).data(source.address(), 1000, source.key));
    pair.settle();
    assert_eq!(syndromes(&pair.qa.send_cq.drain()), [Some(Syndrome::RemoteInvalidRequest)]);
    assert_eq!(syndromes(&pair.qb.receive_cq.drain()), [Some(Syndrome::LocalLength), FLUSHED]);
}

#[test]
fn a_receive_under_a_bad_key_fails_on_both_sides() {
    let mut pair = Pair::new(&Connection::default());
    let (source, target) = (pair.a.region(64), pair.b.region(64));
    pair.qb.post_receive(&[(target.address(), 64, target.key ^ 1)]);
    pair.qa.post(&Wqe::new(Opcode::Send).data(source.address(), 64, source.key));
    pair.settle();
    assert_eq!(syndromes(&pair.qa.send_cq.drain()), [Some(Syndrome::RemoteOperation)]);
    assert_eq!(syndromes(&pair.qb.receive_cq.drain()), [Some(Syndrome::LocalProtection)]);
}

#[test]
fn keys_that_go_away_in_the_middle_of_a_message_end_it() {
    // 1 MiB at 256 bytes is far more than the window, so a few passes leave the message unfinished.
    let size = 1 << 20;
    for (opcode, local_goes, syndrome) in [
        (Opcode::RdmaWrite, true, Syndrome::LocalProtection),
        (Opcode::RdmaRead, true, Syndrome::LocalProtection),
        (Opcode::RdmaWrite, false, Syndrome::RemoteAccess),
        (Opcode::RdmaRead, false, Syndrome::RemoteAccess),
    ] {
        let mut pair = Pair::new(&Connection::default());
        let (local, remote) = (pair.a.region(size), pair.b.region(size));
        pair.qa.post(&Wqe::new(opcode).remote(remote.address(), remote.key).data(
            local.address(),
            size,
            local.key,
        ));
        pair.step(5);
        assert!(pair.qa.send_cq.drain().is_empty());
        if local_goes {
            pair.a.destroy_key(local.key);
        } else {
            pair.b.destroy_key(remote.key);
        }
        pair.settle();
        assert_eq!(syndromes(&pair.qa.send_cq.drain()), [Some(syndrome)], "{opcode:?}");
    }
}

#[test]
fn a_nak_that_is_lost_is_repeated() {
    for seed in 0..20 {
        let faults = Faults::default().drop(0.5).seed(seed);
        let mut pair = Pair::with_faults(&Connection::default(), Faults::default(), faults);
        pair.qa.post(&Wqe::new(Opcode::RdmaWrite).remote(0, 0x1234).inline(b"x"));
        pair.settle();
        assert_eq!(
            syndromes(&pair.qa.send_cq.drain()),
            [Some(Syndrome::RemoteAccess)],
            "seed {seed}"
        );
    }
}

#[test]
fn a_command_to_error_flushes_everything_once() {
    let mut pair = Pair::new(&Connection::default());
    let source = pair.a.region(1000);
    pair.qa.post_receive(&[]);
    pair.qa.post_receive(&[]);
    // The second send waits for a receive, and the device has not seen the last two at all.
    pair.qb.post_receive(&[(0, 0, 0)]);
    for _ in 0..2 {
        pair.qa.post(&Wqe::new(Opcode::Send));
    }
    pair.step(100);
    assert_eq!(syndromes(&pair.qa.send_cq.drain()), [None]);
    for _ in 0..2 {
        pair.qa
            .post(&Wqe::new(Opcode::Send).data(source.address(), 1000, source.key).unsignalled());
    }
    pair.qa.to_error();
    pair.settle();
    let done = pair.qa.send_cq.drain();
    assert_eq!(syndromes(&done), [FLUSHED; 3]);
    assert!(done.iter().map(|one| one.index).eq(1..4));
    let received = pair.qa.receive_cq.drain();
    assert!(syndromes(&received) == [FLUSHED; 2] && received.iter().map(|one| one.index).eq(0..2));
}

/// As an adapter, which has sent the messages long before it executes the command. They are as many
/// packets as the requester sends without an acknowledgment.
#[test]
fn messages_posted_before_a_command_to_error_arrive() {
    const MESSAGES: usize = 8;
    let mut pair = Pair::new(&Connection::default());
    let (source, target) = (pair.a.region(1000), pair.b.region(1000 * MESSAGES));
    let data = pattern(1000, 3);
    source.memory.write(0, &data);
    for at in 0..MESSAGES {
        pair.qb.post_receive(&[(target.address() + 1000 * at as u64, 1000, target.key)]);
        pair.qa.post(&Wqe::new(Opcode::Send).data(source.address(), 1000, source.key));
    }
    // The requester's device runs no pass in between.
    pair.qa.to_error();
    pair.settle();
    assert_eq!(syndromes(&pair.qb.receive_cq.drain()), [None; MESSAGES]);
    for at in 0..MESSAGES {
        assert_eq!(target.memory.read(1000 * at, 1000), data, "message {at}");
    }
    // The acknowledgments come too late.
    assert_eq!(syndromes(&pair.qa.send_cq.drain()), [FLUSHED; MESSAGES]);
}

#[test]
fn a_message_that_had_begun_gives_its_receive_back() {
    let mut pair = Pair::new(&Connection::default());
    let (source, target) = (pair.a.region(100_000), pair.b.region(100_000));
    pair.qb.post_receive(&[(target.address(), 100_000, target.key)]);
    pair.qa.post(&Wqe::new(Opcode::Send).data(source.address(), 100_000, source.key));
    pair.step(3);
    pair.qb.to_error();
    pair.settle();
    assert_eq!(syndromes(&pair.qb.receive_cq.drain()), [FLUSHED]);
    assert_eq!(syndromes(&pair.qa.send_cq.drain()), [Some(Syndrome::TransportRetryExceeded)]);
}

#[test]
fn an_overrun_completion_queue_stops_its_queue_pair() {
    let fabric = Fabric::new();
    let config =
        Config::default().mode(Mode::Stepped).wire(WireKind::Fabric(fabric)).strict(Strict::Report);
    let (a, b) = (Node::open(config.clone()), Node::open(config));
    let (mut qa, mut qb) = (Qp::with_cqs(&a, 2, 2), Qp::new(&b));
    qa.connect(&b, qb.number, &Connection::default(), (1, 1));
    qb.connect(&a, qa.number, &Connection::default(), (1, 1));
    for _ in 0..6 {
        qa.post(&Wqe::new(Opcode::Nop));
    }
    while a.device.step() {}
    let counters = a.device.counters();
    assert_eq!(counters.cq_overruns, 1);
    let reports = a.device.take_reports();
    assert_eq!(reports.len(), 1);
    assert_eq!((reports[0].qpn, reports[0].index), (qa.number, 4));
    assert_eq!(reports[0].finding, Finding::CompletionOverrun { cqn: qa.send_cq.number });
    assert_eq!(syndromes(&qa.send_cq.drain()), [None; 4]);
}
