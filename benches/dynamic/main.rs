//! Instructions per operation of the transport `dc_mlx5` over the software HCA, which stands still
//! while operations are posted and messages received.
//!
//! Both ends make progress in between: only the functions of the module `counted` count. The handler is empty. The limits are in
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

use barewire::capability::{AmShort, PutShort};
use barewire::transport::dc_mlx5::{Domain, Endpoint, Interface, Memory, Progress, RemoteKey};
use barewire::transport::{Domain as _, Endpoint as _, Interface as _};
use barewire::{Access, InterfaceConfig};
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
    memory: Memory,
    key: RemoteKey,
    interface: Interface,
}

impl Side {
    fn open(device: hca::Device) -> Self {
        let domain = Domain::open_soft(device.clone()).expect("domain");
        let config = InterfaceConfig::default();
        let (interface, progress) = Interface::open(&domain, &config).expect("interface");
        interface.set_handler(ID, |_| ()).expect("handler");
        let endpoint = Endpoint::new(&interface).expect("endpoint");
        let memory = domain.allocate(64, Access::REMOTE_WRITE).expect("memory");
        let key = domain.unpack_key(&memory.pack_key()).expect("key");
        Self { device, endpoint, progress, memory, key, interface }
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
        one.endpoint.connect(&other.interface.address()).expect("connected");
    })
}

mod counted {
    use super::{AmShort as _, Endpoint, ID, Progress, PutShort as _, RemoteKey};

    #[inline(never)]
    pub(super) fn am_short(endpoint: &Endpoint, round: u64) -> bool {
        endpoint.am_short(ID, round, &[5; 8]).is_ok()
    }

    #[inline(never)]
    pub(super) fn put_short(endpoint: &Endpoint, remote: u64, key: RemoteKey) -> bool {
        endpoint.put_short(&[5; 8], remote, &key).is_ok()
    }

    #[inline(never)]
    pub(super) fn progress(progress: &mut Progress) -> usize {
        progress.progress()
    }
}

fn gate(bench: &str) -> LibraryBenchmarkConfig {
    crate::gate::gate_counted(Level::Dynamic, Shape::Held, bench)
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

#[library_benchmark(config = gate("put_short_8"))]
#[bench::run(args = (connected()), teardown = done)]
fn put_short_8(sides: &'static mut Sides) -> &'static mut Sides {
    for round in 0..ROUNDS {
        let Side { memory, key, .. } = &sides.server;
        assert!(counted::put_short(&sides.client.endpoint, memory.address(), *key));
        if round % BATCH == BATCH - 1 {
            sides.settle();
        }
    }
    sides
}

// The initiator is taken for each message, and returned in progress.
#[library_benchmark(config = gate("am_short_8_taken"))]
#[bench::run(args = (connected()), teardown = done)]
fn am_short_8_taken(sides: &'static mut Sides) -> &'static mut Sides {
    for round in 0..ROUNDS {
        assert!(counted::am_short(&sides.client.endpoint, round));
        sides.settle();
    }
    sides
}

// Progress that completes a put and returns its initiator.
#[library_benchmark(config = gate("progress_complete"))]
#[bench::run(args = (connected()), teardown = done)]
fn progress_complete(sides: &'static mut Sides) -> &'static mut Sides {
    for _ in 0..ROUNDS {
        let Side { memory, key, .. } = &sides.server;
        sides.client.endpoint.put_short(&[5; 8], memory.address(), key).expect("posted");
        sides.step();
        assert_eq!(counted::progress(&mut sides.client.progress), 1);
    }
    sides
}

library_benchmark_group!(
    name = held;
    benchmarks = put_short_8, am_short_8, am_short_8_taken, progress_receive, progress_complete
);
iai_callgrind::main!(library_benchmark_groups = held);
