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

use barewire::InterfaceConfig;
use barewire::capability::AmShort;
use barewire::transport::ud_mlx5::{Domain, Endpoint, Interface, Progress};
use barewire::transport::{Endpoint as _, Interface as _};
use barewire_hca as hca;
use budget::{BATCH, Level, ROUNDS, Shape};
use iai_callgrind::{LibraryBenchmarkConfig, library_benchmark, library_benchmark_group};

const ID: u8 = 1;

/// One end.
struct Side {
    device: hca::Device,
    endpoint: Endpoint,
    progress: Progress,
    _interface: Interface,
}

impl Side {
    fn open(wire: hca::WireKind) -> Self {
        let config = hca::Config::default().mode(hca::Mode::Stepped).wire(wire);
        let device = hca::Device::open(config).expect("software HCA");
        let domain = Domain::open_soft(device.clone()).expect("domain");
        let config = InterfaceConfig::default().max_endpoints(1);
        let (interface, progress) = Interface::open(&domain, &config).expect("interface");
        interface.set_handler(ID, |_| ()).expect("handler");
        let endpoint = Endpoint::new(&interface).expect("endpoint");
        Self { device, endpoint, progress, _interface: interface }
    }
}

/// Two connected ends on separate devices. They are leaked, so that a bench moves a reference and
/// drops nothing.
struct Sides {
    client: Side,
    server: Side,
}

fn connected() -> &'static mut Sides {
    let fabric = hca::Fabric::new();
    let open = || Side::open(hca::WireKind::Fabric(fabric.clone()));
    let (client, server) = (open(), open());
    client.endpoint.connect(&server.endpoint.address()).expect("connected");
    server.endpoint.connect(&client.endpoint.address()).expect("connected");
    Box::leak(Box::new(Sides { client, server }))
}

impl Sides {
    /// Steps both devices until neither has anything to do. Returns whether one had.
    fn step(&self) -> bool {
        let mut stepped = false;
        while self.client.device.step() | self.server.device.step() {
            stepped = true;
        }
        stepped
    }

    /// Lets devices and interfaces run until everything is acknowledged.
    fn settle(&mut self) {
        loop {
            self.step();
            let events = self.client.progress.progress() + self.server.progress.progress();
            // Progress without an event may send an acknowledgement.
            if events == 0 && !self.step() {
                return;
            }
        }
    }
}

/// Asserts that nothing failed and that the devices complain about nothing.
fn done(sides: &'static mut Sides) -> &'static mut Sides {
    for side in [&sides.client, &sides.server] {
        assert!(side.endpoint.error().is_none());
        assert!(side.device.take_reports().is_empty(), "the device complains");
    }
    sides
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
