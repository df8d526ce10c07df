//! Dynamic connections that are refused, fail or end: keys, room, destroyed targets, dead
//! initiators, invalid WQEs.

use crate::support::dynamic::{KEY, Target, initiator, narrow, nodes, send, settle, syndromes};
use crate::support::events::{ALL, Eq};
use crate::support::{Connection, Node, Wqe, command, pattern};
use barewire_hca::{Config, Fabric, Faults, Mode, ReservedBits, Strict, WireKind};
use barewire_layouts::command::dct::{ArmDctIn, DctState, Dctc};
use barewire_layouts::command::qp::Mtu;
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::eqe::EventType;
use barewire_layouts::wqe::Opcode;
use zerocopy::IntoBytes;

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
            command::<ArmDctIn>(&b.device, |arm| _ = arm.set(ArmDctIn::DCT_NUMBER, target.number))
                .unwrap();
        }
        let mut bad = initiator(&a, &connection);
        let wqe = Wqe::new(Opcode::Send).addressed(&target.address_with(KEY ^ 1 << number));
        bad.post(&wqe.data(region.address(), 8, region.key));
        bad.post(&send(&target, &region, 8));
        settle(&[&a, &b]);
        assert_eq!(
            syndromes(&mut bad),
            [Some(Syndrome::RemoteAccess), Some(Syndrome::WorkRequestFlushed)]
        );
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
    // Nothing is outstanding, so no request fails yet.
    let address = target.address();
    target.destroy();
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut dci), []);
    dci.post(&Wqe::new(Opcode::Send).addressed(&address).data(data.address(), 8, data.key));
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut dci), [Some(Syndrome::TransportRetryExceeded)]);
    assert_eq!(a.device.counters().dc_refusals_received, 4);

    // A host that does not respond, and an address without a host.
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
    assert_eq!(
        syndromes(&mut dci),
        [Some(Syndrome::RemoteAborted), Some(Syndrome::WorkRequestFlushed)]
    );
    // The receive WQE that was half filled comes back.
    let flushed: Vec<_> = target.cq.drain().iter().map(|one| (one.qpn, one.syndrome)).collect();
    assert_eq!(flushed, [(target.number, Some(Syndrome::WorkRequestFlushed))]);
    // The initiator can be used again.
    dci.reset();
    let again = Target::new(&b, &connection);
    dci.connect_to([0; 16], 0, &connection, (77, 0));
    dci.post(
        &Wqe::new(Opcode::RdmaWrite)
            .addressed(&again.address())
            .remote(inbox.address(), inbox.key)
            .data(data.address(), 8, data.key),
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
        assert!(a.device.inject(barewire_hca::Fault::LinkDown));
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
    let there =
        Wqe::new(Opcode::RdmaWrite).addressed(&target.address()).remote(inbox.address(), inbox.key);
    bad.post(&there.data(data.address(), 8, data.key));
    let read = Wqe::new(Opcode::RdmaRead)
        .addressed(&target.address())
        .remote(inbox.address(), inbox.key ^ 0x100);
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
        let wqe = Wqe::new(Opcode::RdmaRead)
            .addressed(&target.address())
            .remote(remote.address(), remote.key);
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
fn bad_addresses_are_found() {
    let fabric = Fabric::new();
    let a = Node::open(
        Config::default()
            .mode(Mode::Stepped)
            .wire(WireKind::Fabric(fabric))
            .strict(Strict::Report)
            .reserved_bits(ReservedBits::Refuse),
    );
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
