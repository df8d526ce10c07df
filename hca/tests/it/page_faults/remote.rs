//! Faults at the memory that a peer's requests name.

use barewire_layouts::command::klm::Klm;
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::page_fault::{FaultKind, PageFault};
use barewire_layouts::wqe::Opcode;

use super::{PAGE, PASSES, finish, pages, syndromes, wait};
use crate::indirect_keys::{KLM, indirect};
use crate::support::paging::{pair, part, region};
use crate::support::{Connection, Pair, Region, Wqe, pattern};

const READ: FaultKind = FaultKind::RDMA;
const WRITE: FaultKind = FaultKind::RDMA.union(FaultKind::WRITE);

/// The fault of an operation on `region` from `offset` on: kind, bytes done, bytes of the packet,
/// and of the operation.
fn at(
    pair: &Pair,
    region: &Region,
    offset: usize,
    (kind, committed, packet, length): (FaultKind, u32, u16, u32),
) -> PageFault {
    let address = region.address() + offset as u64;
    let (rkey, token) = (region.key, pair.qb.number);
    PageFault::Rdma { kind, committed, rkey, packet, length, address, token }
}

#[test]
#[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
fn a_write_waits() {
    let (mut pair, mut kernels) = pair(&Connection::default());
    let (local, remote) = (pair.a.region(2 * PAGE), region(&pair.b, 2 * PAGE));
    let data = pattern(PAGE, 1);
    local.memory.write(0, &data);
    pair.qb.post_receive(&[]);
    let address = remote.address() + 512;
    let wqe = Wqe::new(Opcode::RdmaWriteImmediate).immediate(9).remote(address, remote.key);
    pair.qa.post(&wqe.data(local.address(), data.len(), local.key));
    wait(&mut pair);
    assert!(pair.b.device.counters().rnr_naks_sent > 1);
    let length = data.len() as u32;
    let fault = kernels[1].fault();
    assert_eq!(fault, at(&pair, &remote, 512, (WRITE, 0, 256, length)));
    let umem = remote.memory.umem();
    assert_eq!(pair.b.device.absent_pages(&fault), [pages(umem, 0, 2 * PAGE, true)]);
    pair.b.device.page_in(pages(umem, 0, PAGE, true)).unwrap();
    kernels[1].resume(&fault, false).unwrap();
    wait(&mut pair);
    let fault = kernels[1].fault();
    assert_eq!(fault, at(&pair, &remote, 512, (WRITE, 3584, 256, length)));
    kernels[1].serve(&fault);
    assert_eq!(finish(&mut pair, &mut kernels), []);
    assert_eq!(syndromes(&mut pair.qa.send_cq), [None]);
    let done = pair.qb.receive_cq.poll().expect("a completion");
    assert_eq!((done.immediate, done.length, done.syndrome), (9, length, None));
    assert_eq!(remote.memory.read(512, data.len()), data);
}

#[test]
fn the_last_packet_of_a_write_keeps_its_receive_while_it_waits() {
    let (mut pair, mut kernels) = pair(&Connection::default());
    let (local, remote) = (pair.a.region(PAGE), region(&pair.b, 2 * PAGE));
    pair.b.device.page_in(part(&remote, 0, PAGE, true)).unwrap();
    let indices = [(); 2].map(|()| pair.qb.post_receive(&[]));
    for _ in indices {
        let wqe = Wqe::new(Opcode::RdmaWriteImmediate);
        let wqe = wqe.remote(remote.address() + PAGE as u64 - 300, remote.key);
        pair.qa.post(&wqe.data(local.address(), 500, local.key));
    }
    wait(&mut pair);
    let fault = kernels[1].fault();
    assert_eq!(fault, at(&pair, &remote, PAGE - 300, (WRITE, 256, 244, 500)));
    kernels[1].serve(&fault);
    finish(&mut pair, &mut kernels);
    let done = pair.qb.receive_cq.drain();
    assert_eq!(done.iter().map(|done| done.index).collect::<Vec<_>>(), indices);
}

#[test]
#[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
fn a_read_waits() {
    let (mut pair, mut kernels) = pair(&Connection::default());
    let (local, remote) = (pair.a.region(2 * PAGE), region(&pair.b, 2 * PAGE));
    let data = pattern(PAGE, 2);
    remote.memory.write(512, &data);
    let wqe = Wqe::new(Opcode::RdmaRead).remote(remote.address() + 512, remote.key);
    pair.qa.post(&wqe.data(local.address(), data.len(), local.key));
    wait(&mut pair);
    assert!(pair.a.device.counters().rnr_naks_received > 1);
    let fault = kernels[1].fault();
    assert_eq!(fault, at(&pair, &remote, 512, (READ, 0, 256, PAGE as u32)));
    let umem = remote.memory.umem();
    assert_eq!(pair.b.device.absent_pages(&fault), [pages(umem, 0, 2 * PAGE, false)]);
    kernels[1].serve(&fault);
    assert_eq!(finish(&mut pair, &mut kernels), []);
    assert_eq!(syndromes(&mut pair.qa.send_cq), [None]);
    assert_eq!(local.memory.read(0, data.len()), data);
}

#[test]
#[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
fn pages_may_be_taken_in_the_middle_of_a_read() {
    for failed in [false, true] {
        let connection = Connection { ack_timeout: 0, ..Connection::default() };
        let (mut pair, mut kernels) = pair(&connection);
        let length = 16 * PAGE;
        let (local, remote) = (pair.a.region(length), region(&pair.b, length));
        let data = pattern(length, 3);
        remote.memory.write(0, &data);
        let umem = remote.memory.umem();
        pair.b.device.page_in(pages(umem, 0, length, false)).unwrap();
        let wqe = Wqe::new(Opcode::RdmaRead).remote(remote.address(), remote.key);
        pair.qa.post(&wqe.data(local.address(), length, local.key));
        // The request that is being answered waits; it is neither refused nor forgotten.
        while pair.b.device.counters().packets_sent == 0 {
            pair.step(1);
        }
        pair.b.device.page_out(pages(umem, 0, length, false)).unwrap();
        wait(&mut pair);
        let fault = kernels[1].fault();
        let PageFault::Rdma { kind, rkey, .. } = fault else { panic!("{fault:?}") };
        assert_eq!((kind, rkey), (READ, remote.key));
        if failed {
            kernels[1].resume(&fault, true).unwrap();
            assert_eq!(finish(&mut pair, &mut kernels), []);
            assert_eq!(syndromes(&mut pair.qa.send_cq), [Some(Syndrome::RemoteAccess)]);
        } else {
            kernels[1].serve(&fault);
            finish(&mut pair, &mut kernels);
            assert_eq!(syndromes(&mut pair.qa.send_cq), [None]);
            assert!(local.memory.read(0, length) == data);
        }
    }
}

#[test]
fn an_atomic_waits_and_executes_once() {
    let (mut pair, mut kernels) = pair(&Connection::default());
    let (local, remote) = (pair.a.region(64), region(&pair.b, PAGE));
    remote.memory.write(8, &40_u64.to_ne_bytes());
    let wqe = Wqe::new(Opcode::AtomicFetchAdd).remote(remote.address() + 8, remote.key);
    pair.qa.post(&wqe.atomic(2, 0).data(local.address(), 8, local.key));
    wait(&mut pair);
    assert_eq!(pair.b.device.counters().atomics, 0);
    let fault = kernels[1].fault();
    assert_eq!(fault, at(&pair, &remote, 8, (WRITE, 0, 0, 8)));
    // For reading is not enough.
    pair.b.device.page_in(part(&remote, 0, PAGE, false)).unwrap();
    kernels[1].resume(&fault, false).unwrap();
    wait(&mut pair);
    let fault = kernels[1].fault();
    kernels[1].serve(&fault);
    finish(&mut pair, &mut kernels);
    assert_eq!(syndromes(&mut pair.qa.send_cq), [None]);
    assert_eq!(local.memory.read(0, 8), 40_u64.to_ne_bytes());
    assert_eq!(remote.memory.read(8, 8), 42_u64.to_ne_bytes());
    assert_eq!(pair.b.device.counters().atomics, 1);
}

#[test]
fn without_pages_the_peers_request_fails() {
    let opcodes = [Opcode::RdmaWrite, Opcode::RdmaRead, Opcode::AtomicFetchAdd];
    for opcode in opcodes {
        let (mut pair, mut kernels) = pair(&Connection::default());
        let (local, remote) = (pair.a.region(64), region(&pair.b, PAGE));
        let wqe = Wqe::new(opcode).remote(remote.address(), remote.key);
        let wqe = if opcode == Opcode::AtomicFetchAdd { wqe.atomic(1, 0) } else { wqe };
        pair.qa.post(&wqe.data(local.address(), 8, local.key));
        wait(&mut pair);
        let fault = kernels[1].fault();
        kernels[1].resume(&fault, true).unwrap();
        assert_eq!(finish(&mut pair, &mut kernels), []);
        let failed = Some(Syndrome::RemoteAccess);
        assert_eq!(syndromes(&mut pair.qa.send_cq), [failed], "{opcode:?}");
        assert_eq!(pair.b.device.counters().access_errors, 1);
    }
}

#[test]
fn pages_that_are_there_cause_no_fault() {
    let (mut pair, mut kernels) = pair(&Connection::default());
    let (local, remote) = (region(&pair.a, PAGE), region(&pair.b, PAGE));
    pair.a.device.page_in(part(&local, 0, PAGE, true)).unwrap();
    pair.b.device.page_in(part(&remote, 0, PAGE, true)).unwrap();
    for opcode in [Opcode::RdmaWrite, Opcode::RdmaRead] {
        let wqe = Wqe::new(opcode).remote(remote.address(), remote.key);
        pair.qa.post(&wqe.data(local.address(), 64, local.key));
    }
    assert_eq!(finish(&mut pair, &mut kernels), []);
    assert_eq!(syndromes(&mut pair.qa.send_cq), [None; 2]);
    pair.b.device.page_out(part(&remote, 100, 1, true)).unwrap();
    let wqe = Wqe::new(Opcode::RdmaWrite).remote(remote.address() + 2000, remote.key);
    pair.qa.post(&wqe.data(local.address(), 64, local.key));
    pair.step(PASSES);
    assert_eq!(kernels[1].faults().len(), 1);
}

#[test]
#[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
fn an_indirect_key_leads_to_all_its_pages() {
    let (mut pair, mut kernels) = pair(&Connection::default());
    let (one, two) = (region(&pair.b, PAGE), region(&pair.b, 2 * PAGE));
    let pinned = pair.b.region(PAGE);
    let list = [
        Klm::new(100, one.key, one.address()),
        Klm::new(100, pinned.key, pinned.address()),
        Klm::new(100, two.key, two.address() + PAGE as u64),
    ];
    let key = indirect(&pair.b, KLM, (0, 300), &list, |_| ()).unwrap();
    let local = pair.a.region(300);
    local.memory.write(0, &pattern(300, 5));
    let wqe = Wqe::new(Opcode::RdmaWrite).remote(0, key);
    pair.qa.post(&wqe.data(local.address(), 300, local.key));
    wait(&mut pair);
    let fault = kernels[1].fault();
    let want =
        [pages(one.memory.umem(), 0, PAGE, true), pages(two.memory.umem(), PAGE, PAGE, true)];
    assert_eq!(pair.b.device.absent_pages(&fault), want);
    kernels[1].serve(&fault);
    assert_eq!(finish(&mut pair, &mut kernels), []);
    assert_eq!(syndromes(&mut pair.qa.send_cq), [None]);
    let written = [one.memory.read(0, 100), pinned.memory.read(0, 100), two.memory.read(PAGE, 100)];
    assert_eq!(written.concat(), pattern(300, 5));
}
