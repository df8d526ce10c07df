//! Faults at the requester's own memory.

use barewire_layouts::command::klm::Klm;
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::page_fault::FaultKind;
use barewire_layouts::wqe::{ControlFlags, DataSegment, Opcode, UmrFlags, UmrMask};
use zerocopy::IntoBytes;

use super::{PAGE, PASSES, at_wqe, finish, pages, syndromes, wait};
use crate::registration::{RIGHTS, context, free_key, umr};
use crate::support::paging::{pair, part, region};
use crate::support::{Connection, Region, Wqe, pattern};

const READS: FaultKind = FaultKind::REQUESTER.union(FaultKind::WRITE);

#[test]
#[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
fn a_send_waits_for_the_pages_that_it_gathers() {
    let (mut pair, mut kernels) = pair(&Connection::default());
    let (local, remote) = (region(&pair.a, 3 * PAGE), pair.b.region(3 * PAGE));
    let data = pattern(2 * PAGE, 1);
    local.memory.write(100, &data);
    let before = pair.a.device.counters().packets_sent;
    let wqe = Wqe::new(Opcode::RdmaWrite).remote(remote.address(), remote.key);
    let index = pair.qa.post(&wqe.data(local.address() + 100, data.len(), local.key));
    wait(&mut pair);
    assert_eq!(pair.a.device.counters().packets_sent, before);
    let fault = kernels[0].fault();
    assert_eq!(fault, at_wqe(FaultKind::REQUESTER, pair.qa.number, index, 0, 256));
    let device = &pair.a.device;
    assert_eq!(device.absent_pages(&fault), [pages(local.memory.umem(), 0, 3 * PAGE, false)]);
    // The kernel brings in less than it could: the rest of the message faults again.
    device.page_in(part(&local, 0, PAGE, false)).unwrap();
    kernels[0].resume(&fault, false).unwrap();
    wait(&mut pair);
    let fault = kernels[0].fault();
    // The last packet that lies on the first page whole ends at byte 3840 of the message.
    assert_eq!(fault, at_wqe(FaultKind::REQUESTER, pair.qa.number, index, 3840, 256));
    let absent = pair.a.device.absent_pages(&fault);
    assert_eq!(absent, [pages(local.memory.umem(), PAGE, 2 * PAGE, false)]);
    kernels[0].serve(&fault);
    assert_eq!(finish(&mut pair, &mut kernels), []);
    assert_eq!(syndromes(&mut pair.qa.send_cq), [None]);
    assert_eq!(remote.memory.read(0, data.len()), data);
    let counters = pair.a.device.counters();
    assert_eq!((counters.page_faults, counters.retransmitted, counters.timeouts), (2, 0, 0));
}

#[test]
#[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
fn results_wait_for_the_pages_that_they_are_scattered_to() {
    let (mut pair, mut kernels) = pair(&Connection::default());
    let (local, remote) = (region(&pair.a, 4 * PAGE), pair.b.region(PAGE));
    let data = pattern(1000, 2);
    remote.memory.write(0, &data);
    remote.memory.write(2048, &7_u64.to_ne_bytes());
    let read = Wqe::new(Opcode::RdmaRead).remote(remote.address(), remote.key);
    let index = pair.qa.post(&read.data(local.address(), data.len(), local.key));
    wait(&mut pair);
    let fault = kernels[0].fault();
    assert_eq!(fault, at_wqe(READS, pair.qa.number, index, 0, 256));
    kernels[0].serve(&fault);
    assert_eq!(finish(&mut pair, &mut kernels), []);
    assert_eq!(syndromes(&mut pair.qa.send_cq), [None]);
    assert_eq!(local.memory.read(0, data.len()), data);

    // The request is repeated, but the operation is not.
    let add = Wqe::new(Opcode::AtomicFetchAdd).remote(remote.address() + 2048, remote.key);
    let result = local.address() + 2 * PAGE as u64;
    let index = pair.qa.post(&add.atomic(5, 0).data(result, 8, local.key));
    wait(&mut pair);
    let fault = kernels[0].fault();
    assert_eq!(fault, at_wqe(READS, pair.qa.number, index, 0, 8));
    kernels[0].serve(&fault);
    assert_eq!(finish(&mut pair, &mut kernels), []);
    assert_eq!(syndromes(&mut pair.qa.send_cq), [None]);
    assert_eq!(local.memory.read(2 * PAGE, 8), 7_u64.to_ne_bytes());
    assert_eq!(remote.memory.read(2048, 8), 12_u64.to_ne_bytes());
    assert_eq!(pair.b.device.counters().atomics, 1);
}

#[test]
fn without_pages_the_work_request_fails() {
    for opcode in [Opcode::RdmaWrite, Opcode::RdmaRead] {
        let (mut pair, mut kernels) = pair(&Connection::default());
        let (local, remote) = (region(&pair.a, PAGE), pair.b.region(PAGE));
        let fine = pair.a.region(64);
        // What precedes it is not affected; what follows is flushed.
        let wqe = |address, key| {
            let wqe = Wqe::new(opcode).remote(remote.address(), remote.key);
            wqe.data(address, 64, key)
        };
        for (address, key) in [(fine.address(), fine.key), (local.address(), local.key)] {
            pair.qa.post(&wqe(address, key));
        }
        pair.qa.post(&wqe(fine.address(), fine.key));
        pair.step(PASSES);
        let fault = kernels[0].fault();
        kernels[0].resume(&fault, true).unwrap();
        assert_eq!(finish(&mut pair, &mut kernels), []);
        let flushed = Some(Syndrome::WorkRequestFlushed);
        let want = [None, Some(Syndrome::LocalProtection), flushed];
        assert_eq!(syndromes(&mut pair.qa.send_cq), want, "{opcode:?}");
    }
}

/// A WQE that gives `key` the `entries` ranges in `list`.
fn configure(key: u32, list: &Region, entries: usize, length: u64) -> Wqe {
    let mask = UmrMask::FREE | UmrMask::KEY | UmrMask::LENGTH | RIGHTS;
    let pointer = DataSegment::new(list.address(), (entries * 16) as u32, list.key);
    let context = context(key, 0, length);
    umr(key, UmrFlags::empty(), mask, entries as u16, &context, pointer.as_bytes())
}

#[test]
#[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
fn a_list_of_translations_is_paged_in_as_well() {
    let (mut pair, mut kernels) = pair(&Connection::default());
    let (list, there, source) = (region(&pair.b, PAGE), pair.b.region(256), pair.a.region(256));
    let ranges = [Klm::new(100, there.key, there.address() + 100), Klm::new(0, 0, 0)];
    let ranges = [ranges, [Klm::new(0, 0, 0); 2]].concat();
    list.memory.write(0, ranges.as_bytes());
    let key = free_key(&pair.b, 4, |_| ());
    let index = pair.qb.post(&configure(key, &list, ranges.len(), 100));
    pair.step(PASSES);
    assert_eq!(pair.qb.send_cq.poll(), None);
    let fault = kernels[1].fault();
    assert_eq!(fault, at_wqe(FaultKind::REQUESTER, pair.qb.number, index, 0, 0));
    kernels[1].serve(&fault);
    assert_eq!(finish(&mut pair, &mut kernels), []);
    assert_eq!(syndromes(&mut pair.qb.send_cq), [None]);
    source.memory.write(0, &pattern(100, 3));
    let wqe = Wqe::new(Opcode::RdmaWrite).remote(0, key).data(source.address(), 100, source.key);
    pair.qa.post(&wqe.flags(ControlFlags::FENCE));
    finish(&mut pair, &mut kernels);
    assert_eq!(syndromes(&mut pair.qa.send_cq), [None]);
    assert_eq!(there.memory.read(100, 100), pattern(100, 3));

    // Without the pages, the key stays as it is.
    pair.b.device.page_out(part(&list, 0, PAGE, false)).unwrap();
    pair.qb.post(&configure(key, &list, ranges.len(), 50));
    pair.step(PASSES);
    let fault = kernels[1].fault();
    kernels[1].resume(&fault, true).unwrap();
    assert_eq!(finish(&mut pair, &mut kernels), []);
    assert_eq!(syndromes(&mut pair.qb.send_cq), [Some(Syndrome::LocalProtection)]);
}

#[test]
fn waiting_does_not_count_as_a_timeout() {
    let connection = Connection { ack_timeout: 1, retry_count: 1, ..Connection::default() };
    let (mut pair, mut kernels) = pair(&connection);
    let (local, remote) = (region(&pair.a, PAGE), pair.b.region(PAGE));
    let wqe = Wqe::new(Opcode::RdmaRead).remote(remote.address(), remote.key);
    pair.qa.post(&wqe.data(local.address(), 64, local.key));
    pair.step(100 * PASSES);
    let fault = kernels[0].fault();
    assert_eq!(pair.a.device.counters().timeouts, 0);
    kernels[0].serve(&fault);
    finish(&mut pair, &mut kernels);
    assert_eq!(syndromes(&mut pair.qa.send_cq), [None]);
}
