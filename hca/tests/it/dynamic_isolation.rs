//! A dead peer, a failed initiator and an exhausted target fail only the requests that concern them.

use crate::support::dynamic::{Target, initiator, narrow, nodes, send, settle, syndromes};
use crate::support::{Connection, Node, Qp, Region, Wqe, pattern};
use barewire_hca::{Fabric, Faults};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::wqe::Opcode;

/// Gives up soon.
fn impatient() -> Connection {
    Connection { retry_count: 2, rnr_retry: 1, ack_timeout: 1, ..Connection::default() }
}

fn write(target: &Target, from: &Region, to: &Region) -> Wqe {
    Wqe::new(Opcode::RdmaWrite).addressed(&target.address()).remote(to.address(), to.key).data(
        from.address(),
        64,
        from.key,
    )
}

/// Writes through `dci` and checks what arrived.
fn works(dci: &mut Qp, target: &Target, (a, b): (&Node, &Node), salt: u64) {
    let (from, to) = (a.region(64), b.region(64));
    from.memory.write(0, &pattern(64, salt));
    dci.post(&write(target, &from, &to));
    settle(&[a, b]);
    assert_eq!((syndromes(dci), to.memory.read(0, 64)), (vec![None], pattern(64, salt)));
}

#[test]
fn a_device_that_disappears_fails_those_that_use_it() {
    let [a, b, dead] = nodes();
    let connection = impatient();
    let (near, mut far) = (Target::new(&b, &connection), Target::new(&dead, &connection));
    let [mut good, mut bad] = [(); 2].map(|()| initiator(&a, &connection));
    let (from, to, lost) = (a.region(64), b.region(64), dead.region(64));
    // Both are connected, and requests are in flight, when the device stops.
    bad.post(&write(&far, &from, &lost));
    good.post(&write(&near, &from, &to));
    settle(&[&a, &b, &dead]);
    assert_eq!((syndromes(&mut bad), syndromes(&mut good)), (vec![None], vec![None]));
    for _ in 0..4 {
        bad.post(&write(&far, &from, &lost));
        good.post(&write(&near, &from, &to));
    }
    settle(&[&a, &b]);
    let mut failed = vec![Some(Syndrome::WorkRequestFlushed); 4];
    failed[0] = Some(Syndrome::TransportRetryExceeded);
    assert_eq!((syndromes(&mut bad), syndromes(&mut good)), (failed, vec![None; 4]));
    // The failed initiator is reset, and serves the living device.
    bad.reset();
    bad.connect_to([0; 16], 0, &connection, (7, 0));
    works(&mut bad, &near, (&a, &b), 1);
    works(&mut good, &near, (&a, &b), 2);
    far.destroy();
}

#[test]
fn a_target_without_receives_fails_the_messages_to_it() {
    let [a, b] = nodes();
    let connection = impatient();
    let [full, mut ready] = [(); 2].map(|()| Target::new(&b, &connection));
    let [mut one, mut other, mut third] = [(); 3].map(|()| initiator(&a, &connection));
    let (data, inbox) = (a.region(64), b.region(64));
    ready.srq.post(&[(inbox.address(), 64, inbox.key)]);
    one.post(&send(&full, &data, 8));
    other.post(&send(&ready, &data, 8));
    third.post(&write(&full, &data, &inbox));
    settle(&[&a, &b]);
    assert_eq!(syndromes(&mut one), [Some(Syndrome::RnrRetryExceeded)]);
    // Writes need no receive WQE, and other targets have their own.
    assert_eq!((syndromes(&mut other), syndromes(&mut third)), (vec![None], vec![None]));
    assert_eq!(ready.cq.drain().len(), 1);
    works(&mut third, &full, (&a, &b), 3);
}

#[test]
fn a_device_without_free_contexts_refuses_new_connections_only() {
    let fabric = Fabric::new();
    let (a, b) = (narrow(&fabric, 8, Faults::default()), narrow(&fabric, 1, Faults::default()));
    let connection = impatient();
    let mut target = Target::new(&b, &Connection { min_rnr_nak: 20, ..connection });
    let patient = Connection { rnr_retry: 7, ..connection };
    let (mut holder, mut hasty) = (initiator(&a, &patient), initiator(&a, &connection));
    let (from, to) = (a.region(64), b.region(64));
    // It waits for a receive WQE, and keeps the only context.
    holder.post(&send(&target, &from, 8));
    (0..50).for_each(|_| _ = a.device.step() | b.device.step());
    hasty.post(&write(&target, &from, &to));
    let mut failed = Vec::new();
    for _ in 0..100_000 {
        _ = a.device.step() | b.device.step();
        failed.extend(syndromes(&mut hasty));
        if !failed.is_empty() {
            break;
        }
    }
    assert_eq!(failed, [Some(Syndrome::RnrRetryExceeded)]);
    assert_eq!((syndromes(&mut holder), b.device.objects().dynamic_connections), (vec![], 1));
    target.srq.post(&[(to.address(), 64, to.key)]);
    settle(&[&a, &b]);
    assert_eq!((syndromes(&mut holder), target.cq.drain().len()), (vec![None], 1));
    works(&mut holder, &target, (&a, &b), 4);
}
