//! Faults at the buffers of receives.

use barewire_hca::{Fabric, Faults};
use barewire_layouts::command::qp::ServiceType;
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::page_fault::{FaultKind, PageFault};
use barewire_layouts::wqe::Opcode;

use super::{PAGE, PASSES, at_wqe, finish, pages, syndromes, wait};
use crate::datagrams::{QKEY, address};
use crate::soak::receiver;
use crate::support::paging::{Kernel, node, pair, part, region};
use crate::support::srq::{Shape, Srq};
use crate::support::{Connection, Pair, Qp, Wqe, pattern};

#[test]
#[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
fn a_receive_waits_and_the_peer_gets_rnr_naks() {
    let (mut pair, mut kernels) = pair(&Connection::default());
    let (local, inbox) = (pair.a.region(2 * PAGE), region(&pair.b, 3 * PAGE));
    let data = pattern(PAGE + 1000, 1);
    local.memory.write(0, &data);
    pair.qb.post_receive(&[]);
    let index = pair.qb.post_receive(&[
        (inbox.address() + 512, 1000, inbox.key),
        (inbox.address() + PAGE as u64 + 500, PAGE, inbox.key),
    ]);
    pair.qa.post(&Wqe::new(Opcode::Send).unsignalled());
    pair.qa.post(&Wqe::new(Opcode::Send).data(local.address(), data.len(), local.key));
    pair.step(PASSES);
    assert_eq!((pair.qa.send_cq.poll(), pair.qb.receive_cq.drain().len()), (None, 1));
    let naks = pair.b.device.counters().rnr_naks_sent;
    assert!(naks > 1 && pair.a.device.counters().rnr_naks_received > 1);
    let fault = kernels[1].fault();
    assert_eq!(fault, at_wqe(FaultKind::WRITE, pair.qb.number, index, 0, 256));
    let umem = inbox.memory.umem();
    let absent = [pages(umem, 0, PAGE, true), pages(umem, PAGE, 2 * PAGE, true)];
    assert_eq!(pair.b.device.absent_pages(&fault), absent);
    pair.b.device.page_in(absent[0]).unwrap();
    kernels[1].resume(&fault, false).unwrap();
    wait(&mut pair);
    // The packet that crosses from one buffer to the next.
    let fault = kernels[1].fault();
    assert_eq!(fault, at_wqe(FaultKind::WRITE, pair.qb.number, index, 768, 256));
    kernels[1].serve(&fault);
    assert_eq!(finish(&mut pair, &mut kernels), []);
    assert_eq!(syndromes(&mut pair.qa.send_cq), [None]);
    let done = pair.qb.receive_cq.poll().expect("a completion");
    assert_eq!((done.index, done.length as usize, done.syndrome), (index, data.len(), None));
    assert_eq!(inbox.memory.read(512, 1000), data[..1000]);
    assert_eq!(inbox.memory.read(PAGE + 500, data.len() - 1000), data[1000..]);
    let counters = pair.b.device.counters();
    assert_eq!((counters.page_faults, counters.out_of_buffer), (2, 0));
}

#[test]
#[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
fn a_shared_receive_queue_is_named_in_the_event() {
    let fabric = Fabric::new();
    let [a, b] = [(); 2].map(|()| node(&fabric, Faults::default()));
    for shape in [Shape::Srq, Shape::Cyclic] {
        let mut srq = Srq::new(&b, 3, shape);
        let qps = (Qp::new(&a), receiver(&b, ServiceType::Rc, &srq));
        let mut pair = Pair::of(a.clone(), b.clone(), qps, &Connection::default());
        let mut kernels = [Kernel::new(&a), Kernel::new(&b)];
        let inbox = region(&b, PAGE);
        srq.post(&[(inbox.address(), PAGE, inbox.key)]);
        pair.qa.post(&Wqe::new(Opcode::Send).inline(&[7; 30]));
        wait(&mut pair);
        let fault = kernels[1].fault();
        let (kind, token, queue) = (FaultKind::empty(), pair.qb.number, srq.number);
        let wanted = PageFault::Wqe { kind, committed: 0, index: 0, packet: 30, token, queue };
        assert_eq!(fault, wanted);
        kernels[1].serve(&fault);
        finish(&mut pair, &mut kernels);
        assert_eq!(syndromes(&mut pair.qb.receive_cq), [None]);
        assert_eq!(inbox.memory.read(0, 31), [[7; 30].as_slice(), &[0]].concat());
        b.destroy_key(inbox.key);
    }
}

#[test]
fn without_pages_the_receive_fails() {
    let (mut pair, mut kernels) = pair(&Connection::default());
    let inbox = region(&pair.b, PAGE);
    pair.qb.post_receive(&[(inbox.address(), PAGE, inbox.key)]);
    pair.qb.post_receive(&[(inbox.address(), PAGE, inbox.key)]);
    pair.qa.post(&Wqe::new(Opcode::Send).inline(&[1; 8]));
    wait(&mut pair);
    let fault = kernels[1].fault();
    kernels[1].resume(&fault, true).unwrap();
    assert_eq!(finish(&mut pair, &mut kernels), []);
    assert_eq!(syndromes(&mut pair.qa.send_cq), [Some(Syndrome::RemoteOperation)]);
    let (failed, flushed) = (Syndrome::LocalProtection, Syndrome::WorkRequestFlushed);
    assert_eq!(syndromes(&mut pair.qb.receive_cq), [Some(failed), Some(flushed)]);
    assert_eq!(inbox.memory.read(0, 8), [0; 8]);
}

#[test]
#[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
fn a_datagram_is_lost_and_the_next_one_arrives() {
    let fabric = Fabric::new();
    let [a, b] = [(); 2].map(|()| node(&fabric, Faults::default()));
    for service in [ServiceType::Uc, ServiceType::Ud] {
        let mut kernels = [Kernel::new(&a), Kernel::new(&b)];
        let pair = Pair::with_service(service, a.clone(), b.clone(), &Connection::default());
        let mut pair = pair;
        let inbox = region(&b, PAGE);
        pair.qb.post_receive(&[(inbox.address(), PAGE, inbox.key)]);
        let send = |bytes: &[u8], pair: &mut Pair| {
            let wqe = Wqe::new(Opcode::Send);
            let wqe = match service {
                ServiceType::Ud => wqe.addressed(&address(&pair.b.device, pair.qb.number, QKEY)),
                _ => wqe,
            };
            pair.qa.post(&wqe.inline(bytes));
            pair.settle();
            assert_eq!(syndromes(&mut pair.qa.send_cq), [None]);
        };
        let dropped = b.device.counters().messages_dropped;
        send(&[1; 8], &mut pair);
        send(&[2; 8], &mut pair);
        let fault = kernels[1].fault();
        assert_eq!(b.device.counters().messages_dropped - dropped, 2);
        assert_eq!(pair.qb.receive_cq.poll(), None);
        kernels[1].serve(&fault);
        send(&[3; 8], &mut pair);
        let done = pair.qb.receive_cq.poll().expect("a completion");
        assert_eq!((done.index, done.syndrome), (0, None));
        let start = done.length as usize - 8;
        assert_eq!(inbox.memory.read(start, 8), [3; 8]);

        // The kernel cannot help: the WQE fails.
        b.device.page_out(part(&inbox, 0, PAGE, true)).unwrap();
        pair.qb.post_receive(&[(inbox.address(), PAGE, inbox.key)]);
        send(&[4; 8], &mut pair);
        let fault = kernels[1].fault();
        kernels[1].resume(&fault, true).unwrap();
        pair.settle();
        assert_eq!(syndromes(&mut pair.qb.receive_cq), [Some(Syndrome::LocalProtection)]);
        assert_eq!(finish(&mut pair, &mut kernels), []);
        b.destroy_key(inbox.key);
    }
}
