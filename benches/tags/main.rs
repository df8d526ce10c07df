//! Instructions per operation of tagged messages over `rc_mlx5`, matched by the software HCA, which
//! stands still while operations are posted and messages received.
//!
//! Both ends make progress in between: only the functions of the module `counted` count. The
//! handler is empty. The limits are in `benches/budget/`.

#![allow(missing_docs, reason = "the macros of iai-callgrind write public items")]

#[path = "../budget/mod.rs"]
#[allow(dead_code, reason = "the rest is for the table that xtask writes")]
mod budget;
#[path = "../budget/gate.rs"]
#[allow(dead_code, reason = "as above")]
mod gate;
#[path = "../stepped.rs"]
mod stepped;

use barewire::capability::{TagEager, TagReceives};
use barewire::config::Choice;
use barewire::transport::rc_mlx5::{Domain, Endpoint, Interface, Memory, Progress};
use barewire::transport::{Domain as _, Endpoint as _};
use barewire::{Access, InterfaceConfig, Slice};
use barewire_hca as hca;
use budget::{BATCH, Level, ROUNDS, Shape};
use iai_callgrind::{LibraryBenchmarkConfig, library_benchmark, library_benchmark_group};
use stepped::done;

const ALL: u64 = u64::MAX;

/// One end.
struct Side {
    device: hca::Device,
    endpoint: Endpoint,
    progress: Progress,
    memory: Memory,
    interface: Interface,
}

impl Side {
    fn open(device: hca::Device) -> Self {
        let domain = Domain::open_soft(device.clone()).expect("domain");
        let config = InterfaceConfig::default().tag_matching(Choice::Yes);
        let (interface, progress) = Interface::open(&domain, &config).expect("interface");
        interface.set_tag_handler(|_| ()).expect("handler");
        let endpoint = Endpoint::new(&interface).expect("endpoint");
        let memory = domain.allocate(4096, Access::LOCAL_WRITE).expect("memory");
        Self { device, endpoint, progress, memory, interface }
    }
}

impl stepped::Side for Side {
    fn device(&self) -> &hca::Device {
        &self.device
    }

    fn progress(&mut self) -> usize {
        self.progress.progress()
    }

    fn has_failed(&self) -> bool {
        self.endpoint.error().is_some()
    }
}

type Sides = stepped::Sides<Side>;

fn connected() -> &'static mut Sides {
    Sides::connected(Side::open, |one, other| {
        one.endpoint.connect(&other.endpoint.address()).expect("connected");
    })
}

impl Sides {
    /// Appends a receive to the list of the server.
    fn receive(&mut self, round: u64) {
        let buffer = self.server.memory.slice(0, 64).expect("memory");
        self.server.interface.tag_receive(round, ALL, &buffer, round).expect("posted");
        self.settle();
    }
}

mod counted {
    use super::{ALL, Endpoint, Interface, Progress, Slice, TagEager as _, TagReceives as _};

    #[inline(never)]
    pub(super) fn tag_short(endpoint: &Endpoint, tag: u64) -> bool {
        endpoint.tag_short(tag, &[5; 8]).is_ok()
    }

    #[inline(never)]
    pub(super) fn tag_receive(interface: &Interface, tag: u64, buffer: &Slice<'_>) -> bool {
        interface.tag_receive(tag, ALL, buffer, tag).is_ok()
    }

    #[inline(never)]
    pub(super) fn progress(progress: &mut Progress) -> usize {
        progress.progress()
    }
}

fn gate(bench: &str) -> LibraryBenchmarkConfig {
    crate::gate::gate_counted(Level::Tags, Shape::Held, bench)
}

#[library_benchmark(config = gate("tag_short_8"))]
#[bench::run(args = (connected()), teardown = done)]
fn tag_short_8(sides: &'static mut Sides) -> &'static mut Sides {
    for round in 0..ROUNDS {
        assert!(counted::tag_short(&sides.client.endpoint, round));
        if round % BATCH == BATCH - 1 {
            sides.settle();
        }
    }
    sides
}

// Each receive gets its message before the next is posted, so that the list is never full.
#[library_benchmark(config = gate("tag_receive"))]
#[bench::run(args = (connected()), teardown = done)]
fn tag_receive(sides: &'static mut Sides) -> &'static mut Sides {
    for round in 0..ROUNDS {
        let Side { interface, memory, .. } = &sides.server;
        let buffer = memory.slice(0, 64).expect("memory");
        assert!(counted::tag_receive(interface, round, &buffer));
        sides.settle();
        sides.client.endpoint.tag_short(round, &[5; 8]).expect("posted");
        sides.settle();
    }
    sides
}

#[library_benchmark(config = gate("progress_appended"))]
#[bench::run(args = (connected()), teardown = done)]
fn progress_appended(sides: &'static mut Sides) -> &'static mut Sides {
    for round in 0..ROUNDS {
        let buffer = sides.server.memory.slice(0, 64).expect("memory");
        sides.server.interface.tag_receive(round, ALL, &buffer, round).expect("posted");
        sides.step();
        assert_eq!(counted::progress(&mut sides.server.progress), 1);
        sides.client.endpoint.tag_short(round, &[5; 8]).expect("posted");
        sides.settle();
    }
    sides
}

#[library_benchmark(config = gate("progress_matched"))]
#[bench::run(args = (connected()), teardown = done)]
fn progress_matched(sides: &'static mut Sides) -> &'static mut Sides {
    for round in 0..ROUNDS {
        sides.receive(round);
        sides.client.endpoint.tag_short(round, &[5; 8]).expect("posted");
        sides.step();
        assert_eq!(counted::progress(&mut sides.server.progress), 1);
        sides.settle();
    }
    sides
}

library_benchmark_group!(
    name = held;
    benchmarks = tag_short_8, tag_receive, progress_appended, progress_matched
);
iai_callgrind::main!(library_benchmark_groups = held);
