//! Dynamic connections: initiators (DCI) whose requests name their targets (DCT).

mod support;

use barewire_hca::{Config, Fabric, Faults, Mode, Strict, WireKind};
use barewire_layouts::command::dct::{ArmDctIn, DctState, Dctc};
use barewire_layouts::command::qp::{Mtu, Qpc};
use barewire_layouts::cqe::{CqeOpcode, Syndrome};
use barewire_layouts::eqe::EventType;
use barewire_layouts::wqe::{CompactAddressVector, MaskedFetchAdd32, Opcode};
use support::dynamic::{KEY, Target, USER_INDEX, initiator, initiator_with};
use support::events::{ALL, Eq};
use support::{Completion, Connection, MTUS, Node, Qp, Region, Wqe, command, pattern};
use zerocopy::IntoBytes;

/// Steps devices until none has anything to do or to wait for.
fn settle(nodes: &[&Node]) {
    for _ in 0..1_000_000 {
        if !nodes.iter().fold(false, |busy, node| busy | node.device.step()) {
            return;
        }
    }
    panic!(
        "the devices do not come to rest: {:?}",
        nodes.iter().map(|node| node.device.counters()).collect::<Vec<_>>()
    );
}

fn nodes<const N: usize>() -> [Node; N] {
    let fabric = Fabric::new();
    std::array::from_fn(|_| Node::stepped(&fabric, Faults::default()))
}

/// One with room for so many connections.
fn narrow(fabric: &Fabric, connections: usize, faults: Faults) -> Node {
    Node::open(Config {
        mode: Mode::Stepped,
        wire: WireKind::Fabric(fabric.clone()),
        faults,
        strict: Strict::Panic,
        dynamic_connections: connections,
        ..Config::default()
    })
}

fn send(target: &Target, region: &Region, length: usize) -> Wqe {
    Wqe::new(Opcode::Send).addressed(&target.address()).data(region.address(), length, region.key)
}

fn syndromes(qp: &mut Qp) -> Vec<Option<Syndrome>> {
    qp.send_cq.drain().iter().map(|one| one.syndrome).collect()
}

#[test]
fn every_operation_of_every_size() {
    for (mtu, bytes) in MTUS {
        let [a, b] = nodes();
        let connection = Connection { mtu, psn: 0xff_fffe, ..Connection::default() };
        let (mut dci, mut target) = (initiator(&a, &connection), Target::new(&b, &connection));
        let to = target.address();
        for (round, size) in
            [0, 1, bytes - 1, bytes, bytes + 1, 3 * bytes + 5, 1 << 20].into_iter().enumerate()
        {
            let (local, remote, inbox) = (a.region(size), b.region(size), b.region(size + 1));
            let fetched = a.region(size);
            let data = pattern(size, round as u64 + 1);
            local.memory.write(0, &data);
            let immediate = 0x0102_0300 + round as u32;
            target.srq.post(&[(inbox.address(), size, inbox.key)]);
            target.srq.post(&[]);
            let there = |opcode| Wqe::new(opcode).addressed(&to).remote(remote.address(), remote.key);
            dci.post(&there(Opcode::RdmaWrite).data(local.address(), size, local.key));
            dci.post(&Wqe::new(Opcode::SendImmediate).immediate(immediate).addressed(&to).data(
                local.address(),
                size,
                local.key,
            ));
            dci.post(&there(Opcode::RdmaRead).data(fetched.address(), size, fetched.key));
            dci.post(&there(Opcode::RdmaWriteImmediate).immediate(!immediate).data(
                local.address(),
                size,
                local.key,
            ));
            settle(&[&a, &b]);
            assert_eq!(syndromes(&mut dci), [None; 4], "{size} bytes");
            assert!(remote.memory.read(0, size) == data && inbox.memory.read(0, size) == data);
            assert!(fetched.memory.read(0, size) == data);
            let arrived = target.cq.drain();
            let want = [
                (CqeOpcode::ResponderSendImmediate, size as u32, immediate),
                (CqeOpcode::ResponderWriteImmediate, size as u32, !immediate),
            ];
            let got = |one: &Completion| (one.opcode, one.length, one.immediate);
            assert_eq!(arrived.iter().map(got).collect::<Vec<_>>(), want);
            assert!(arrived.iter().all(|one| (one.qpn, one.user_index) == (target.number, USER_INDEX)));
        }
        assert!(dci.receive_cq.drain().is_empty());
        // Idle connections end.
        assert_eq!(b.device.objects().dynamic_connections, 0);
    }
}

#[test]
fn atomics_return_and_change() {
    let [a, b] = nodes();
    let connection = Connection::default();
    let (mut dci, target) = (initiator(&a, &connection), Target::new(&b, &connection));
    let (result, word) = (a.region(32), b.region(16));
    word.memory.write(0, &7_u64.to_ne_bytes());
    let there = |opcode| Wqe::new(opcode).addressed(&target.address()).remote(word.address(), word.key);
    let here = |wqe: Wqe, at: u64, length| wqe.data(result.address() + at, length, result.key);
    dci.post(&here(there(Opcode::AtomicFetchAdd).atomic(5, 0), 0, 8));
    dci.post(&here(there(Opcode::AtomicCompareSwap).atomic(100, 12), 8, 8));
    dci.post(&here(there(Opcode::AtomicCompareSwap).atomic(1, 12), 16, 8));
    let add = MaskedFetchAdd32 { add: 2.into(), ..MaskedFetchAdd32::default() };
    dci.post(&here(there(Opcode::MaskedFetchAdd).masked(2, add.as_bytes()), 24, 4));
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut dci), [None; 4]);
    let results = result.memory.read(0, 32);
    let number = |at: usize| u64::from_ne_bytes(results[at..at + 8].try_into().unwrap());
    assert_eq!((number(0), number(8), number(16), number(24)), (7, 12, 100, 100));
    assert_eq!(word.memory.read(0, 8), 102_u64.to_ne_bytes());
    assert_eq!(target.query(), (DctState::Active, 0));
}

#[test]
fn small_results_lie_in_the_completion() {
    let [a, b] = nodes();
    let connection = Connection::default();
    let mut dci = initiator_with(&a, &connection, |context| _ = context.set(Qpc::CS_REQ, 0x11));
    let target = Target::new(&b, &connection);
    let (local, remote) = (a.region(32), b.region(32));
    remote.memory.write(0, &pattern(32, 9));
    let read = Wqe::new(Opcode::RdmaRead).addressed(&target.address()).remote(remote.address(), remote.key);
    dci.post(&read.data(local.address(), 32, local.key));
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut dci), [None]);
    assert_eq!((&dci.send_cq.last[..32], local.memory.read(0, 32)), (&pattern(32, 9)[..], vec![0; 32]));

    // At the target, up to what an entry of its queue holds.
    let mut target = Target::with(&b, &connection, |context| _ = context.set(Dctc::CS_RES, 2));
    local.memory.write(0, &pattern(32, 10));
    for length in [32, 31] {
        target.srq.post(&[(remote.address(), 32, remote.key)]);
        dci.post(&send(&target, &local, length));
        settle(&[&a, &b]);
        assert_eq!(target.cq.drain().iter().map(|one| one.length).collect::<Vec<_>>(), [length as u32]);
        assert_eq!(target.cq.last[..length], pattern(32, 10)[..length]);
    }
    assert_eq!(remote.memory.read(0, 32), pattern(32, 9));
}

#[test]
fn many_initiators_share_a_target() {
    const EACH: usize = 3;
    let [a, b, c] = nodes();
    let connection = Connection::default();
    let mut target = Target::new(&c, &connection);
    let inbox = c.region(64 * 600);
    (0..60).for_each(|at| target.srq.post(&[(inbox.address() + at * 600, 600, inbox.key)]));
    let mut dcis: Vec<_> = (0..20).map(|at| initiator([&a, &b][at % 2], &connection)).collect();
    let data: Vec<_> = dcis.iter().map(|dci| dci.node.region(EACH * 600)).collect();
    for (at, (dci, region)) in dcis.iter_mut().zip(&data).enumerate() {
        region.memory.write(0, &pattern(EACH * 600, at as u64));
        for message in 0..EACH {
            let immediate = (at * EACH + message) as u32;
            let wqe = Wqe::new(Opcode::SendImmediate).immediate(immediate).addressed(&target.address());
            dci.post(&wqe.data(region.address() + 600 * message as u64, 600, region.key));
        }
    }
    // All at once.
    for _ in 0..200 {
        for node in [&a, &b, &c] {
            node.device.step();
        }
        if c.device.objects().dynamic_connections == dcis.len() {
            break;
        }
    }
    assert_eq!(c.device.objects().dynamic_connections, dcis.len());
    settle(&[&a, &b, &c]);
    assert!(dcis.iter_mut().all(|dci| syndromes(dci) == [None; EACH]));
    let arrived = target.cq.drain();
    assert_eq!(arrived.len(), dcis.len() * EACH);
    let mut next = vec![0; dcis.len()];
    for one in arrived {
        let (at, message) = (one.immediate as usize / EACH, one.immediate as usize % EACH);
        // Of each initiator in order.
        assert_eq!(std::mem::replace(&mut next[at], message + 1), message);
        let want = &pattern(EACH * 600, at as u64)[message * 600..][..600];
        assert_eq!(inbox.memory.read(usize::from(one.index) * 600, 600), want);
    }
    assert_eq!(c.device.objects().dynamic_connections, 0);
    assert_eq!((c.device.counters().dc_connects, c.device.counters().dc_refusals_sent), (20, 0));
}

#[test]
fn one_initiator_goes_from_target_to_target_in_order() {
    let [a, b, c] = nodes();
    let connection = Connection::default();
    let mut dci = initiator(&a, &connection);
    let mut targets = [
        Target::new(&b, &connection),
        Target::new(&c, &connection),
        Target::new(&b, &connection),
        Target::new(&a, &connection),
    ];
    let words: Vec<_> = targets.iter().map(|target| target.node.region(8)).collect();
    let (data, results) = (a.region(1000), a.region(16 * 8));
    let inboxes: Vec<_> = targets.iter().map(|target| target.node.region(1000)).collect();
    for (target, inbox) in targets.iter_mut().zip(&inboxes) {
        (0..8).for_each(|_| target.srq.post(&[(inbox.address(), 1000, inbox.key)]));
    }
    let order = [0, 1, 2, 2, 3, 0, 3, 1];
    for (round, &at) in order.iter().enumerate() {
        let (target, word) = (&targets[at], &words[at]);
        // Small and unsignalled, then several packets: a switch in the middle of everything.
        dci.post(
            &Wqe::new(Opcode::AtomicFetchAdd)
                .unsignalled()
                .addressed(&target.address())
                .remote(word.address(), word.key)
                .atomic(1, 0)
                .data(results.address() + 8 * round as u64, 8, results.key),
        );
        dci.post(&send(target, &data, 1000).unsignalled());
    }
    let last = dci.post(&Wqe::new(Opcode::Nop));
    settle(&[&a, &b, &c]);
    let done = dci.send_cq.drain();
    assert_eq!(done.iter().map(|one| (one.index, one.syndrome)).collect::<Vec<_>>(), [(last, None)]);
    for (at, (target, word)) in targets.iter_mut().zip(&words).enumerate() {
        let count = order.iter().filter(|&&one| one == at).count();
        assert_eq!(word.memory.read(0, 8), (count as u64).to_ne_bytes());
        assert_eq!(target.cq.drain().len(), count);
        assert_eq!(target.node.device.objects().dynamic_connections, 0);
    }
    let connects: u64 = [&a, &b, &c].map(|node| node.device.counters().dc_connects).iter().sum();
    assert_eq!(connects, 7);
}

#[test]
fn a_wrong_key_fails_the_initiator_and_is_told_once() {
    let [a, b] = nodes();
    let connection = Connection::default();
    let mut target = Target::new(&b, &connection);
    let mut events = Eq::new(&b, 4, ALL);
    let region = a.region(64);
    let mut good = initiator(&a, &connection);
    let inbox = b.region(64);
    target.srq.post(&[(inbox.address(), 64, inbox.key)]);
    for (number, armed) in [(1, false), (2, true), (3, false)] {
        if armed {
            command::<ArmDctIn>(&b.device, |arm| _ = arm.set(ArmDctIn::DCT_NUMBER, target.number)).unwrap();
        }
        let mut bad = initiator(&a, &connection);
        let wqe = Wqe::new(Opcode::Send).addressed(&target.address_with(KEY ^ 1 << number));
        bad.post(&wqe.data(region.address(), 8, region.key));
        bad.post(&send(&target, &region, 8));
        settle(&[&a, &b]);
        assert_eq!(syndromes(&mut bad), [Some(Syndrome::RemoteAccess), Some(Syndrome::WorkRequestFlushed)]);
        let want = if armed { vec![(EventType::DctKeyViolation, target.number)] } else { vec![] };
        assert_eq!((events.drain(), target.query()), (want, (DctState::Active, number)));
    }
    good.post(&send(&target, &region, 64));
    settle(&[&a, &b]);
    assert_eq!((syndromes(&mut good), target.cq.drain().len()), (vec![None], 1));
}

#[test]
fn without_a_free_context_initiators_come_again() {
    let fabric = Fabric::new();
    let (a, b) = (narrow(&fabric, 1, Faults::default()), narrow(&fabric, 2, Faults::default()));
    let connection = Connection::default();
    let mut target = Target::new(&b, &connection);
    let (data, inbox) = (a.region(5000), b.region(5000));
    let mut dcis: Vec<_> = (0..6).map(|_| initiator(&a, &connection)).collect();
    for dci in &mut dcis {
        target.srq.post(&[(inbox.address(), 5000, inbox.key)]);
        dci.post(&send(&target, &data, 5000));
    }
    for _ in 0..100_000 {
        a.device.step();
        b.device.step();
        assert!(b.device.objects().dynamic_connections <= 2);
    }
    assert!(dcis.iter_mut().all(|dci| syndromes(dci) == [None]));
    assert_eq!(target.cq.drain().len(), 6);
    assert!(a.device.counters().dc_refusals_received >= 4);

    // Who does not wait for ever gives up.
    let mut holder = initiator(&b, &connection);
    let mut other = initiator(&b, &connection);
    let mut hasty = initiator(&a, &Connection { rnr_retry: 2, ..connection });
    // Receives are missing: two of them hold their contexts.
    holder.post(&send(&target, &b.region(8), 8));
    other.post(&send(&target, &b.region(8), 8));
    (0..50).for_each(|_| _ = b.device.step());
    assert_eq!(b.device.objects().dynamic_connections, 2);
    hasty.post(&send(&target, &data, 8));
    for _ in 0..2000 {
        a.device.step();
        b.device.step();
    }
    assert_eq!(syndromes(&mut hasty), [Some(Syndrome::RnrRetryExceeded)]);
}

#[test]
fn a_target_that_is_gone_fails_who_asks_for_it() {
    let [a, b] = nodes();
    let connection = Connection { retry_count: 3, ..Connection::default() };
    let mut target = Target::new(&b, &connection);
    let (data, inbox) = (a.region(64), b.region(64));
    let mut dci = initiator(&a, &connection);
    target.srq.post(&[(inbox.address(), 64, inbox.key)]);
    dci.post(&send(&target, &data, 8));
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut dci), [None]);
    // Nothing is on its way: nobody fails yet.
    let address = target.address();
    target.destroy();
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut dci), []);
    dci.post(&Wqe::new(Opcode::Send).addressed(&address).data(data.address(), 8, data.key));
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut dci), [Some(Syndrome::TransportRetryExceeded)]);
    assert_eq!(a.device.counters().dc_refusals_received, 4);

    // A host that does not answer at all, and an address that no host has.
    for gid in [[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 99, 99, 99], [0xff; 16]] {
        let mut lost = initiator(&a, &connection);
        let mut nowhere = address;
        nowhere.gid = gid;
        lost.post(&Wqe::new(Opcode::Send).addressed(&nowhere).data(data.address(), 8, data.key));
        settle(&[&a, &b]);
        assert_eq!(syndromes(&mut lost), [Some(Syndrome::TransportRetryExceeded)]);
    }
}

#[test]
fn a_target_destroyed_in_flight_aborts_and_flushes() {
    let [a, b] = nodes();
    let connection = Connection::default();
    let mut target = Target::new(&b, &connection);
    let (data, inbox) = (a.region(1 << 20), b.region(1 << 20));
    let mut dci = initiator(&a, &connection);
    target.srq.post(&[(inbox.address(), 1 << 20, inbox.key)]);
    dci.post(&send(&target, &data, 1 << 20));
    dci.post(&send(&target, &data, 8));
    for _ in 0..20 {
        a.device.step();
        b.device.step();
    }
    assert_eq!(b.device.objects().dynamic_connections, 1);
    target.destroy();
    assert_eq!(b.device.objects().dynamic_connections, 0);
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut dci), [Some(Syndrome::RemoteAborted), Some(Syndrome::WorkRequestFlushed)]);
    // The receive WQE that was half filled comes back.
    let flushed: Vec<_> = target.cq.drain().iter().map(|one| (one.qpn, one.syndrome)).collect();
    assert_eq!(flushed, [(target.number, Some(Syndrome::WorkRequestFlushed))]);
    // The initiator can be used again.
    dci.reset();
    let again = Target::new(&b, &connection);
    dci.connect_to([0; 16], 0, &connection, (77, 0));
    dci.post(
        &Wqe::new(Opcode::RdmaWrite).addressed(&again.address()).remote(inbox.address(), inbox.key).data(
            data.address(),
            8,
            data.key,
        ),
    );
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut dci), [None]);
}

#[test]
fn a_drained_target_tells_and_takes_nobody() {
    let [a, b] = nodes();
    let connection = Connection { retry_count: 1, ..Connection::default() };
    let mut events = Eq::new(&b, 4, ALL);
    let mut target = Target::new(&b, &connection);
    let (data, inbox) = (a.region(1 << 16), b.region(1 << 16));
    let (mut inside, mut outside) = (initiator(&a, &connection), initiator(&a, &connection));
    target.srq.post(&[(inbox.address(), 1 << 16, inbox.key)]);
    inside.post(&send(&target, &data, 1 << 16));
    for _ in 0..8 {
        a.device.step();
        b.device.step();
    }
    assert_eq!(b.device.objects().dynamic_connections, 1);
    target.drain();
    assert_eq!((target.query().0, events.drain()), (DctState::Draining, vec![]));
    outside.post(&send(&target, &data, 8));
    settle(&[&a, &b]);
    // What was on its way arrives; its connection ends when it is idle.
    assert_eq!((syndromes(&mut inside), target.cq.drain().len()), (vec![None], 1));
    assert_eq!(syndromes(&mut outside), [Some(Syndrome::TransportRetryExceeded)]);
    assert_eq!(
        (target.query().0, events.drain()),
        (DctState::Drained, vec![(EventType::DctDrained, target.number)])
    );

    // Without connections at once.
    let idle = Target::new(&b, &connection);
    idle.drain();
    assert_eq!(
        (idle.query().0, events.drain()),
        (DctState::Drained, vec![(EventType::DctDrained, idle.number)])
    );
    // An initiator that never ends is cut off after a second.
    let stuck = Target::new(&b, &connection);
    let mut waiting = initiator(&a, &Connection { rnr_retry: 7, ..connection });
    waiting.post(&send(&stuck, &data, 8));
    for _ in 0..50 {
        a.device.step();
        b.device.step();
    }
    stuck.drain();
    assert_eq!(stuck.query().0, DctState::Draining);
    settle(&[&a, &b]);
    assert_eq!(
        (stuck.query().0, events.drain()),
        (DctState::Drained, vec![(EventType::DctDrained, stuck.number)])
    );
    assert_eq!(syndromes(&mut waiting), [Some(Syndrome::RemoteAborted)]);
}

#[test]
fn a_bad_wire_repeats_nothing_and_loses_nothing() {
    for seed in 0..40 {
        let fabric = Fabric::new();
        let faults = |seed| Faults {
            drop: 0.05,
            duplicate: 0.05,
            reorder: 0.05,
            delay: 0.05,
            delay_us: 300,
            corrupt: 0.01,
            seed,
            ..Faults::default()
        };
        let [a, b, c] = [1, 2, 3].map(|number| narrow(&fabric, 3, faults(seed * 3 + number)));
        let connection = Connection { psn: 0xff_fff0, ..Connection::default() };
        let mut targets =
            [Target::new(&b, &connection), Target::new(&c, &connection), Target::new(&b, &connection)];
        let words: Vec<_> = targets.iter().map(|target| target.node.region(8)).collect();
        let inboxes: Vec<_> = targets.iter().map(|target| target.node.region(1000)).collect();
        for (target, inbox) in targets.iter_mut().zip(&inboxes) {
            (0..60).for_each(|_| target.srq.post(&[(inbox.address(), 1000, inbox.key)]));
        }
        let mut dcis: Vec<_> = (0..4).map(|_| initiator(&a, &connection)).collect();
        let (data, results) = (a.region(1000), a.region(8));
        let mut counts = [0_u64; 3];
        let mut sent = 0;
        for (number, dci) in dcis.iter_mut().enumerate() {
            for round in 0..10 {
                let at = (number + round * round + seed as usize) % 3;
                let (target, word) = (&targets[at], &words[at]);
                let add = Wqe::new(Opcode::AtomicFetchAdd)
                    .addressed(&target.address())
                    .remote(word.address(), word.key);
                dci.post(&add.atomic(1, 0).data(results.address(), 8, results.key));
                dci.post(&send(target, &data, 100 * round));
                counts[at] += 1;
                sent += 2;
            }
        }
        settle(&[&a, &b, &c]);
        let done: Vec<_> = dcis.iter_mut().flat_map(syndromes).collect();
        assert_eq!((done.len(), done.iter().flatten().next()), (sent, None), "seed {seed}");
        for (at, (target, word)) in targets.iter_mut().zip(&words).enumerate() {
            assert_eq!(word.memory.read(0, 8), counts[at].to_ne_bytes(), "seed {seed}");
            let arrived = target.cq.drain();
            assert!(arrived.iter().all(Completion::is_ok), "seed {seed}");
            assert_eq!(arrived.len() as u64, counts[at], "seed {seed}");
        }
    }
}

#[test]
fn contexts_of_initiators_that_died_are_taken_back() {
    let fabric = Fabric::new();
    let b = narrow(&fabric, 1, Faults::default());
    let connection = Connection { ack_timeout: 8, ..Connection::default() };
    let mut target = Target::new(&b, &connection);
    {
        let a = narrow(&fabric, 1, Faults::default());
        let data = a.region(1 << 16);
        let inbox = b.region(1 << 16);
        target.srq.post(&[(inbox.address(), 1 << 16, inbox.key)]);
        let mut dci = initiator(&a, &connection);
        dci.post(&send(&target, &data, 1 << 16));
        for _ in 0..6 {
            a.device.step();
            b.device.step();
        }
        assert_eq!(b.device.objects().dynamic_connections, 1);
        // It goes without a word.
        a.device.inject(barewire_hca::Fault::LinkDown);
    }
    // Of the target's own device, whose clock goes on while it waits.
    let mut dci = initiator(&b, &connection);
    let (data, inbox) = (b.region(8), b.region(8));
    target.srq.post(&[(inbox.address(), 8, inbox.key)]);
    dci.post(&send(&target, &data, 8));
    settle(&[&b]);
    let refused = b.device.counters().dc_refusals_received;
    assert!(refused > 50, "{refused}");
    assert_eq!(syndromes(&mut dci), [None]);
    // The receive WQE that the dead one had begun to fill, and the other's.
    let arrived: Vec<_> = target.cq.drain().iter().map(|one| one.syndrome).collect();
    assert_eq!(arrived, [Some(Syndrome::WorkRequestFlushed), None]);
}

#[test]
fn a_failed_request_ends_one_connection_only() {
    let [a, b] = nodes();
    let connection = Connection { remote_write: false, ..Connection::default() };
    let mut target = Target::new(&b, &connection);
    let (data, inbox) = (a.region(64), b.region(64));
    let [mut bad, mut long, mut good, mut keyless] = [(); 4].map(|()| initiator(&a, &connection));
    let there = Wqe::new(Opcode::RdmaWrite).addressed(&target.address()).remote(inbox.address(), inbox.key);
    bad.post(&there.data(data.address(), 8, data.key));
    let read =
        Wqe::new(Opcode::RdmaRead).addressed(&target.address()).remote(inbox.address(), inbox.key ^ 0x100);
    keyless.post(&read.data(data.address(), 8, data.key));
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut bad), [Some(Syndrome::RemoteInvalidRequest)]);
    assert_eq!(syndromes(&mut keyless), [Some(Syndrome::RemoteAccess)]);
    target.srq.post(&[(inbox.address(), 8, inbox.key)]);
    long.post(&send(&target, &data, 9));
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut long), [Some(Syndrome::RemoteInvalidRequest)]);
    let failed: Vec<_> = target.cq.drain().iter().map(|one| (one.qpn, one.syndrome)).collect();
    assert_eq!(failed, [(target.number, Some(Syndrome::LocalLength))]);
    // Those that failed have hung up.
    assert_eq!(b.device.objects().dynamic_connections, 0);
    target.srq.post(&[(inbox.address(), 8, inbox.key)]);
    good.post(&send(&target, &data, 8));
    settle(&[&a, &b]);
    assert_eq!((syndromes(&mut good), target.cq.drain().len()), (vec![None], 1));
}

#[test]
fn a_larger_mtu_than_the_targets_is_refused_and_a_smaller_one_taken() {
    let [a, b] = nodes();
    let small = Connection::default();
    let large = Connection { mtu: Mtu::Bytes1024, ..small };
    let (target, wide) = (Target::new(&b, &small), Target::new(&b, &large));
    let (local, remote) = (a.region(3000), b.region(3000));
    remote.memory.write(0, &pattern(3000, 4));
    let read = |target: &Target| {
        let wqe =
            Wqe::new(Opcode::RdmaRead).addressed(&target.address()).remote(remote.address(), remote.key);
        wqe.data(local.address(), 3000, local.key)
    };
    let (mut fits, mut not) = (initiator(&a, &small), initiator(&a, &large));
    fits.post(&read(&wide));
    not.post(&read(&target));
    settle(&[&a, &b]);
    assert_eq!((syndromes(&mut fits), local.memory.read(0, 3000)), (vec![None], pattern(3000, 4)));
    assert_eq!(syndromes(&mut not), [Some(Syndrome::RemoteInvalidRequest)]);
}

#[test]
fn receives_that_are_missing_are_waited_for() {
    let [a, b] = nodes();
    let connection = Connection { min_rnr_nak: 1, ..Connection::default() };
    let mut target = Target::new(&b, &connection);
    let (data, inbox) = (a.region(64), b.region(64));
    let (mut patient, mut hasty) =
        (initiator(&a, &connection), initiator(&a, &Connection { rnr_retry: 1, ..connection }));
    patient.post(&send(&target, &data, 8));
    hasty.post(&send(&target, &data, 8));
    for _ in 0..500 {
        a.device.step();
        b.device.step();
    }
    assert_eq!(syndromes(&mut hasty), [Some(Syndrome::RnrRetryExceeded)]);
    target.srq.post(&[(inbox.address(), 8, inbox.key)]);
    settle(&[&a, &b]);
    assert_eq!((syndromes(&mut patient), target.cq.drain().len()), (vec![None], 1));
}

#[test]
fn the_short_address_names_a_host_by_its_last_bits() {
    let [a, b] = nodes();
    let connection = Connection::default();
    let (mut dci, target) = (initiator(&a, &connection), Target::new(&b, &connection));
    let gid = b.device.gid();
    let lid = u16::from_be_bytes([gid[14], gid[15]]);
    let short = CompactAddressVector::new(0, 0, lid).to_target(target.number, KEY);
    let (local, remote) = (a.region(8), b.region(8));
    local.memory.write(0, b"shortcut");
    let wqe = Wqe::new(Opcode::RdmaWrite).via_lid(&short).remote(remote.address(), remote.key);
    dci.post(&wqe.data(local.address(), 8, local.key));
    settle(&[&a, &b]);
    assert_eq!((syndromes(&mut dci), remote.memory.read(0, 8)), (vec![None], b"shortcut".to_vec()));
}

#[test]
fn bad_addresses_are_found() {
    let fabric = Fabric::new();
    let a = Node::open(Config {
        mode: Mode::Stepped,
        wire: WireKind::Fabric(fabric),
        strict: Strict::Report,
        ..Config::default()
    });
    let connection = Connection::default();
    let target = Target::with(&a, &connection, |context| _ = context.set(Dctc::PORT, 0));
    let data = a.region(8);
    let bits = {
        let mut vector = target.address();
        vector.base.qpn = (vector.base.qpn.get() | 1 << 30).into();
        Wqe::new(Opcode::Send).addressed(&vector)
    };
    let reserved = {
        let mut vector = target.address();
        vector.reserved = 1.into();
        Wqe::new(Opcode::Send).addressed(&vector)
    };
    let short = Wqe::new(Opcode::Send).raw(&target.address().as_bytes()[..32]);
    for (wqe, want) in [
        (
            bits.data(data.address(), 8, data.key),
            "address vector: target number: reserved bits are 0x40000000",
        ),
        (reserved.data(data.address(), 8, data.key), "address vector: reserved bits are 0x1"),
        (short, "ds is 3, must be room for the address vector"),
    ] {
        let mut dci = initiator(&a, &connection);
        dci.post(&wqe);
        settle(&[&a]);
        assert_eq!(syndromes(&mut dci), [Some(Syndrome::LocalQpOperation)]);
        let reports: Vec<_> = a.device.take_reports().iter().map(ToString::to_string).collect();
        assert!(reports.len() == 1 && reports[0].contains(want), "{reports:?}");
    }
}
