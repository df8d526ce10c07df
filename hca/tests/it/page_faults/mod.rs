//! Page faults of memory that is paged in on demand: events to the kernel, and its answers.

mod commands;
mod remote;
mod requester;
mod responder;

use barewire_hca::AbsentPages;
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::page_fault::{FaultKind, PageFault};

use crate::support::paging::{Kernel, settle};
use crate::support::{Cq, Pair};

const PAGE: usize = 4096;
/// Passes in which a peer that gets RNR NAKs repeats a packet several times.
const PASSES: usize = 100;

fn syndromes(cq: &mut Cq) -> Vec<Option<Syndrome>> {
    cq.drain().iter().map(|one| one.syndrome).collect()
}

/// Steps for a while without the kernel.
fn wait(pair: &mut Pair) {
    pair.step(PASSES);
    assert_eq!((pair.qa.send_cq.poll(), pair.qb.receive_cq.poll()), (None, None));
}

fn finish(pair: &mut Pair, kernels: &mut [Kernel; 2]) -> Vec<PageFault> {
    settle([&pair.a, &pair.b], kernels)
}

/// The fault of a queue pair's half.
fn at_wqe(kind: FaultKind, qpn: u32, index: u16, committed: u32, packet: u16) -> PageFault {
    PageFault::Wqe { kind, committed, index, packet, token: qpn, queue: qpn }
}

/// All pages of `length` bytes at `offset`.
fn pages(umem: u32, offset: usize, length: usize, write: bool) -> AbsentPages {
    AbsentPages { umem, offset: offset as u64, length: length as u64, write }
}
