//! The same with memory that is paged in on demand, by kernels that take their time and take pages
//! away while they are in use. Peers use keys of the memory, views and windows.

use barewire_hca::Fabric;
use barewire_layouts::command::klm::Klm;
use barewire_layouts::wqe::{UmrFlags, UmrMask};
use fastrand::Rng;
use zerocopy::IntoBytes;

use super::reliable::{Kind, Reliable};
use super::{OPERATIONS, SIZE, faults, variable};
use crate::registration::{RIGHTS, bind, context as mkey_context, free_key, padded, umr, window};
use crate::support::Completion;
use crate::support::paging::{Kernel, node, part, settle};

const SEEDS: u64 = 150;
const PAGE: usize = 4096;

/// Adds a view of the remote memory, in two ranges, and a window over it.
fn add_keys(one: &mut Reliable) {
    let (region, half) = (&one.remote, SIZE / 2);
    let view = free_key(&one.pair.b, 4, |_| ());
    let ranges =
        [0, half].map(|at| Klm::new(half as u32, region.key, region.address() + at as u64));
    let mask = UmrMask::FREE | UmrMask::KEY | UmrMask::LENGTH | UmrMask::START_ADDRESS | RIGHTS;
    let (list, octowords) = padded(ranges.as_bytes());
    let length = SIZE as u64;
    let values = mkey_context(view, region.address(), length);
    one.pair.qb.post(&umr(view, UmrFlags::INLINE, mask, octowords, &values, &list));
    let old = window(&one.pair.b);
    let range = (region.address(), length);
    one.pair.settle();
    one.pair.qb.post(&bind(old, old + 1, one.pair.qb.number, region, range));
    one.pair.settle();
    let done = one.pair.qb.send_cq.drain();
    assert!(done.len() == 2 && done.iter().all(Completion::is_ok), "{done:?}");
    one.rkeys.extend([view, old + 1]);
}

/// One seed. Returns the faults that the kernels served.
fn run(seed: u64) -> u64 {
    let context = format!("BAREWIRE_HCA_SOAK_FIRST={seed} BAREWIRE_HCA_SOAK_SEEDS=1");
    let mut random = Rng::with_seed(seed);
    let fabric = Fabric::new();
    let [a, b] = [seed, !seed].map(|seed| node(&fabric, faults(&mut random, seed)));
    let mut kernels = [Kernel::new(&a), Kernel::new(&b)];
    let kinds = [Kind::Rc, Kind::RcShared, Kind::Xrc, Kind::Dc];
    let mut all: Vec<_> = (0..)
        .zip(kinds)
        .map(|(number, kind)| Reliable::new(a.clone(), b.clone(), kind, seed << 3 | number))
        .collect();
    all[1].pair.qb.without_receive_ring();
    all[..2].iter_mut().for_each(add_keys);
    let mut waiting = Vec::new();
    for _ in 0..OPERATIONS {
        for one in &mut all {
            one.post(&mut random);
            let (node, region) = if random.bool() { (&a, &one.local) } else { (&b, &one.remote) };
            let page = random.usize(..SIZE / PAGE) * PAGE;
            if random.usize(..4) == 0 {
                node.device.page_out(part(region, page, PAGE, true)).unwrap();
            }
            if random.usize(..8) == 0 {
                node.device.page_in(part(region, page, PAGE, random.bool())).unwrap();
            }
        }
        all[0].pair.step([0, 1, 5, 40][random.usize(..4)]);
        for (at, kernel) in kernels.iter_mut().enumerate() {
            waiting.extend(kernel.faults().into_iter().map(|fault| (at, fault)));
        }
        while !waiting.is_empty() && random.usize(..3) > 0 {
            let (at, fault) = waiting.swap_remove(random.usize(..waiting.len()));
            kernels[at].serve(&fault);
        }
        if all.iter().any(|one| one.posted.len() > 20 || one.inboxes.len() - one.arrived() > 20) {
            waiting.drain(..).for_each(|(at, fault)| kernels[at].serve(&fault));
            settle([&a, &b], &mut kernels);
        }
        for one in &mut all {
            one.check(&context);
        }
    }
    waiting.drain(..).for_each(|(at, fault)| kernels[at].serve(&fault));
    settle([&a, &b], &mut kernels);
    for one in &mut all {
        one.finish(&context);
    }
    [a, b].map(|node| node.device.counters().page_faults).iter().sum()
}

#[test]
#[cfg_attr(barewire_emulated, ignore = "qemu has no process_vm_readv and process_vm_writev")]
fn no_byte_differs_whatever_pages_are_absent() {
    let first = variable("BAREWIRE_HCA_SOAK_FIRST").unwrap_or(0);
    let seeds = variable("BAREWIRE_HCA_SOAK_SEEDS").unwrap_or(SEEDS);
    let served: u64 = (first..first.saturating_add(seeds)).map(run).sum();
    println!("{seeds} seeds: {served} page faults");
    assert!(served >= 20 * seeds, "{served} page faults in {seeds} seeds");
}
