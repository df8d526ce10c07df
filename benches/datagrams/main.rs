//! Instructions per message of the transport `ud_mlx5` over the software HCA, which stands still
//! while messages are posted and received.
//!
//! A window holds fewer messages than there are rounds, so that both ends make progress in between:
//! only the functions of the module `counted` count. The handler is empty. The limits are in
//! `benches/budget/`.

#![allow(missing_docs, reason = "the macros of iai-callgrind write public items")]

#[path = "../budget/mod.rs"]
#[allow(dead_code, reason = "the rest is for the table that xtask writes")]
mod budget;
#[path = "../budget/gate.rs"]
#[allow(dead_code, reason = "as above")]
mod gate;
#[path = "../stepped.rs"]
mod stepped;

use barewire::InterfaceConfig;
use barewire::capability::AmShort;
use barewire::transport::ud_mlx5::{Domain, Endpoint, Interface, Progress};
use barewire::transport::{Endpoint as _, Interface as _};
use barewire_hca as hca;
use budget::{BATCH, Level, ROUNDS, Shape};
use iai_callgrind::{LibraryBenchmarkConfig, library_benchmark, library_benchmark_group};
use stepped::done;

const ID: u8 = 1;

/// One end.
struct Side {
    device: hca::Device,
    endpoint: Endpoint,
    progress: Progress,
    _interface: Interface,
}

impl Side {
    fn open(device: hca::Device) -> Self {
        let domain = Domain::open_soft(device.clone()).expect("domain");
        let config = InterfaceConfig::default().max_endpoints(1);
        let (interface, progress) = Interface::open(&domain, &config).expect("interface");
        interface.set_handler(ID, |_| ()).expect("handler");
        let endpoint = Endpoint::new(&interface).expect("endpoint");
        Self { device, endpoint, progress, _interface: interface }
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

mod counted {
    use super::{AmShort as _, Endpoint, ID, Progress};

    #[inline(never)]
    pub(super) fn am_short(endpoint: &Endpoint, round: u64) -> bool {
        endpoint.am_short(ID, round, &[5; 8]).is_ok()
    }

    #[inline(never)]
    pub(super) fn progress(progress: &mut Progress) -> usize {
        progress.progress()
    }
}

fn gate(bench: &str) -> LibraryBenchmarkConfig {
    crate::gate::gate_counted(Level::Datagrams, Shape::Held, bench)
}

#[library_benchmark(config = gate("am_short_8"))]
#[bench::run(args = (connected()), teardown = done)]
fn am_short_8(sides: &'static mut Sides) -> &'static mut Sides {
    for round in 0..ROUNDS {
        assert!(counted::am_short(&sides.client.endpoint, round));
        if round % BATCH == BATCH - 1 {
            sides.settle();
        }
    }
    sides
}

#[library_benchmark(config = gate("progress_receive"))]
#[bench::run(args = (connected()), teardown = done)]
fn progress_receive(sides: &'static mut Sides) -> &'static mut Sides {
    for round in 0..ROUNDS {
        sides.client.endpoint.am_short(ID, round, &[5; 8]).expect("posted");
        sides.step();
        assert_eq!(counted::progress(&mut sides.server.progress), 1);
        if round % BATCH == BATCH - 1 {
            sides.settle();
        }
    }
    sides
}

library_benchmark_group!(name = held; benchmarks = am_short_8, progress_receive);
iai_callgrind::main!(library_benchmark_groups = held);
