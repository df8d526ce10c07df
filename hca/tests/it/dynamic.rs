//! Dynamic connections: initiators (DCI) whose requests name their targets (DCT).

use crate::support::dynamic::{
    KEY, Target, USER_INDEX, initiator, initiator_with, narrow, nodes, send, settle, syndromes,
};
use crate::support::{Completion, Connection, MTUS, Wqe, command, pattern};
use barewire_hca::{Fabric, Faults};
use barewire_layouts::command::answer;
use barewire_layouts::command::dct::{DctState, Dctc};
use barewire_layouts::command::q_counter::{
    AllocQCounterIn, AllocQCounterOut, QueryQCounterIn, QueryQCounterOut,
};
use barewire_layouts::command::qp::Qpc;
use barewire_layouts::cqe::{CqeOpcode, Syndrome};
use barewire_layouts::wqe::{CompactAddressVector, MaskedFetchAdd32, Opcode};
use zerocopy::IntoBytes;

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
            let there =
                |opcode| Wqe::new(opcode).addressed(&to).remote(remote.address(), remote.key);
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
            assert!(
                arrived.iter().all(|one| (one.qpn, one.user_index) == (target.number, USER_INDEX))
            );
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
    let there =
        |opcode| Wqe::new(opcode).addressed(&target.address()).remote(word.address(), word.key);
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
    assert_eq!((number(0), number(8), number(16)), (7, 12, 100));
    assert_eq!(results[24..28], 100_u32.to_be_bytes());
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
    let read = Wqe::new(Opcode::RdmaRead)
        .addressed(&target.address())
        .remote(remote.address(), remote.key);
    dci.post(&read.data(local.address(), 32, local.key));
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut dci), [None]);
    assert_eq!(
        (&dci.send_cq.last[..32], local.memory.read(0, 32)),
        (&pattern(32, 9)[..], vec![0; 32])
    );

    // At the target, up to what an entry of its queue holds.
    let mut target = Target::with(&b, &connection, |context| _ = context.set(Dctc::CS_RES, 2));
    local.memory.write(0, &pattern(32, 10));
    for length in [32, 31] {
        target.srq.post(&[(remote.address(), 32, remote.key)]);
        dci.post(&send(&target, &local, length));
        settle(&[&a, &b]);
        assert_eq!(
            target.cq.drain().iter().map(|one| one.length).collect::<Vec<_>>(),
            [length as u32]
        );
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
            let wqe =
                Wqe::new(Opcode::SendImmediate).immediate(immediate).addressed(&target.address());
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
    assert_eq!(
        done.iter().map(|one| (one.index, one.syndrome)).collect::<Vec<_>>(),
        [(last, None)]
    );
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
fn a_bad_wire_repeats_nothing_and_loses_nothing() {
    for seed in 0..40 {
        let fabric = Fabric::new();
        let faults = |seed| {
            Faults::default()
                .drop(0.05)
                .duplicate(0.05)
                .reorder(0.05)
                .delay(0.05)
                .delay_us(300)
                .corrupt(0.01)
                .seed(seed)
        };
        let [a, b, c] = [1, 2, 3].map(|number| narrow(&fabric, 3, faults(seed * 3 + number)));
        let connection = Connection { psn: 0xff_fff0, ..Connection::default() };
        let mut targets = [
            Target::new(&b, &connection),
            Target::new(&c, &connection),
            Target::new(&b, &connection),
        ];
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
fn a_counter_set_counts_what_a_targets_connections_do() {
    const LONG: usize = 1 << 20;
    let [a, b] = nodes();
    let connection = Connection::default();
    let output = command::<AllocQCounterIn>(&b.device, |_| ()).unwrap();
    let set = answer::<AllocQCounterIn>(&output).unwrap().get(AllocQCounterOut::COUNTER_SET_ID);
    let count = |field| {
        let output = command::<QueryQCounterIn>(&b.device, |query| {
            query.set(QueryQCounterIn::COUNTER_SET_ID, set);
        });
        answer::<QueryQCounterIn>(&output.unwrap()).unwrap().get(field)
    };
    let target =
        Target::with(&b, &connection, |context| _ = context.set(Dctc::COUNTER_SET_ID, set));
    let (other, remote) = (Target::new(&b, &connection), b.region(8));
    let mut dci = initiator(&a, &connection);
    for to in [&target, &other, &target] {
        let write = Wqe::new(Opcode::RdmaWrite).addressed(&to.address());
        dci.post(&write.remote(remote.address(), remote.key).inline(&[1; 8]));
    }
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut dci), [None; 3]);
    let counts =
        || [QueryQCounterOut::RX_DCT_CONNECT, QueryQCounterOut::RX_WRITE_REQUESTS].map(count);
    assert_eq!((counts(), b.device.counters().dc_connects), ([2, 2], 3));
    // An incomplete message keeps its receive WQE, which is flushed when the target is destroyed.
    let (source, inbox, mut target) = (a.region(LONG), b.region(LONG), target);
    source.memory.write(0, &[1]);
    target.srq.post(&[(inbox.address(), LONG, inbox.key)]);
    dci.post(&send(&target, &source, LONG));
    let begun = (0..1000).any(|_| {
        a.device.step();
        b.device.step();
        inbox.memory.read(0, 1) == [1]
    });
    assert!(begun);
    target.destroy();
    assert_eq!(count(QueryQCounterOut::RESP_CQE_FLUSH_ERROR), 1);
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut dci), [Some(Syndrome::RemoteAborted)]);
}
