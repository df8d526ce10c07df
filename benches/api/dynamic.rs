//! The dynamic door: the same operations through the enumerations over transports.

#![allow(clippy::no_mangle_with_rust_abi, reason = "the name is for the checks of the assembly")]
#![allow(clippy::trivially_copy_pass_by_ref, reason = "as the API takes keys")]

use barewire::{Access, Domain, Endpoint, Interface, RemoteKey, Worker};

use crate::budget::ROUNDS;
use crate::sides::{Devices, ID, config};

/// What a bench of the dynamic door works on.
#[derive(Debug)]
pub(crate) struct Dynamic {
    devices: Devices,
    endpoint: Endpoint,
    remote: u64,
    key: RemoteKey,
    worker: Worker,
    server_worker: Worker,
}

/// Connected sides with memory.
fn connected() -> &'static mut Dynamic {
    let devices = Devices::open();
    let (mut worker, mut server_worker) = (Worker::new(), Worker::new());
    let open = |device: &barewire_hca::Device, worker: &mut Worker| {
        let domain = Domain::open_soft(device.clone()).expect("domain");
        let interface = Interface::open(worker, &domain, &config()).expect("interface");
        let endpoint = Endpoint::new(&interface).expect("endpoint");
        (domain, interface, endpoint)
    };
    let (domain, interface, endpoint) = open(&devices.client, &mut worker);
    let (server_domain, server, peer) = open(&devices.server, &mut server_worker);
    endpoint.connect(&server.device_address(), &peer.address()).expect("connected");
    peer.connect(&interface.device_address(), &endpoint.address()).expect("connected");
    server.set_handler(ID, |_| ()).expect("handler");
    let target = Box::leak(Box::new(server_domain.allocate(4096, Access::all()).expect("memory")));
    let key = domain.unpack_key(&target.pack_key()).expect("key");
    Box::leak(Box::new((server, peer)));
    let remote = target.address();
    Box::leak(Box::new(Dynamic { devices, endpoint, remote, key, worker, server_worker }))
}

/// Every round posted one request, and it was carried out.
fn posted(sides: &'static mut Dynamic) -> &'static mut Dynamic {
    loop {
        sides.devices.settle();
        if sides.worker.progress() + sides.server_worker.progress() == 0 {
            break;
        }
    }
    sides.devices.check(ROUNDS);
    assert!(sides.endpoint.error().is_none());
    sides
}

/// Nothing was there.
fn idle(sides: &'static mut Dynamic) -> &'static mut Dynamic {
    sides.devices.check(0);
    sides
}

#[inline(always)]
fn put_short(endpoint: &Endpoint, payload: u64, remote: u64, key: &RemoteKey) -> bool {
    endpoint.put_short(&payload.to_ne_bytes(), remote, key).is_ok()
}

#[inline(always)]
fn am_short(endpoint: &Endpoint, id: u8, header: u64, payload: u64) -> bool {
    endpoint.am_short(id, header, &payload.to_ne_bytes()).is_ok()
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_dynamic_put_short_8(endpoint: &Endpoint, payload: u64, remote: u64, key: &RemoteKey) -> bool {
    put_short(endpoint, payload, remote, key)
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_dynamic_am_short_8(endpoint: &Endpoint, id: u8, header: u64, payload: u64) -> bool {
    am_short(endpoint, id, header, payload)
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_dynamic_progress(worker: &mut Worker) -> usize {
    worker.progress()
}

pub(crate) mod held {
    use std::hint::black_box;

    use iai_callgrind::{LibraryBenchmarkConfig, library_benchmark};

    use super::{
        Dynamic, ID, connected, held_dynamic_am_short_8, held_dynamic_progress, held_dynamic_put_short_8,
        idle, posted,
    };
    use crate::budget::{Level, ROUNDS, Shape};

    fn gate(bench: &str) -> LibraryBenchmarkConfig {
        crate::gate::gate(Level::Api, Shape::Held, bench)
    }

    #[library_benchmark(config = gate("dynamic_put_short"))]
    #[bench::run(args = (connected()), teardown = posted)]
    fn dynamic_put_short(sides: &'static mut Dynamic) -> &'static mut Dynamic {
        for round in 0..ROUNDS {
            held_dynamic_put_short_8(&sides.endpoint, round, sides.remote, &sides.key);
        }
        sides
    }

    #[library_benchmark(config = gate("dynamic_am_short"))]
    #[bench::run(args = (connected()), teardown = posted)]
    fn dynamic_am_short(sides: &'static mut Dynamic) -> &'static mut Dynamic {
        let (id, payload) = black_box((ID, 5));
        for round in 0..ROUNDS {
            held_dynamic_am_short_8(&sides.endpoint, id, round, payload);
        }
        sides
    }

    #[library_benchmark(config = gate("dynamic_progress_empty"))]
    #[bench::run(args = (connected()), teardown = idle)]
    fn dynamic_progress_empty(sides: &'static mut Dynamic) -> &'static mut Dynamic {
        for _ in 0..ROUNDS {
            held_dynamic_progress(&mut sides.worker);
        }
        sides
    }
}

pub(crate) mod inlined {
    use std::hint::black_box;

    use iai_callgrind::{LibraryBenchmarkConfig, library_benchmark};

    use super::{Dynamic, ID, am_short, connected, idle, posted, put_short};
    use crate::budget::{Level, ROUNDS, Shape};

    fn gate(bench: &str) -> LibraryBenchmarkConfig {
        crate::gate::gate(Level::Api, Shape::Inlined, bench)
    }

    #[library_benchmark(config = gate("dynamic_put_short"))]
    #[bench::run(args = (connected()), teardown = posted)]
    fn dynamic_put_short(sides: &'static mut Dynamic) -> &'static mut Dynamic {
        for round in 0..ROUNDS {
            put_short(&sides.endpoint, round, sides.remote, &sides.key);
        }
        sides
    }

    #[library_benchmark(config = gate("dynamic_am_short"))]
    #[bench::run(args = (connected()), teardown = posted)]
    fn dynamic_am_short(sides: &'static mut Dynamic) -> &'static mut Dynamic {
        let (id, payload) = black_box((ID, 5));
        for round in 0..ROUNDS {
            am_short(&sides.endpoint, id, round, payload);
        }
        sides
    }

    #[library_benchmark(config = gate("dynamic_progress_empty"))]
    #[bench::run(args = (connected()), teardown = idle)]
    fn dynamic_progress_empty(sides: &'static mut Dynamic) -> &'static mut Dynamic {
        for _ in 0..ROUNDS {
            if sides.worker.progress() > 0 {
                break;
            }
        }
        sides
    }
}
