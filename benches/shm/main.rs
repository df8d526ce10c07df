//! Instructions per operation of the transport `shm`, between two interfaces of one process.
//!
//! A ring holds fewer messages than there are rounds, so both ends take turns: only the functions
//! of the module `counted` are counted. The limits are in `benches/budget/`.

#![allow(missing_docs, reason = "the macros of iai-callgrind write public items")]

#[path = "../budget/mod.rs"]
#[allow(dead_code, reason = "the rest is for the table that xtask writes")]
mod budget;
#[path = "../budget/gate.rs"]
#[allow(dead_code, reason = "as above")]
mod gate;

use std::cell::Cell;
use std::rc::Rc;

use barewire::capability::{AmShort, Atomics, Flush, PutShort};
use barewire::transport::shm::{Domain, Endpoint, Interface, Progress, RemoteKey};
use barewire::transport::{Domain as _, Endpoint as _, Interface as _};
use barewire::{Access, AtomicOp, FetchResult, FlushMode, InterfaceConfig};
use budget::{Level, ROUNDS, Shape};
use iai_callgrind::{LibraryBenchmarkConfig, library_benchmark, library_benchmark_group};

/// Messages between two turns of the server.
const TURN: u64 = 32;
const ID: u8 = 1;

/// Two ends with a ring from one to the other. They are leaked, so that a bench moves a reference
/// and drops nothing.
struct Sides {
    endpoint: Endpoint,
    client: Progress,
    server: Progress,
    remote: u64,
    key: RemoteKey,
    result: FetchResult,
    received: Rc<Cell<u64>>,
    /// The sum that a bench adds to.
    events: u64,
    server_interface: Interface,
}

fn connected() -> &'static mut Sides {
    let config = InterfaceConfig::default();
    let open = || {
        let domain = Domain::open("memory").expect("domain");
        let (interface, progress) = Interface::open(&domain, &config).expect("interface");
        (domain, interface, progress)
    };
    let ((domain, client_interface, mut client), (far, server_interface, mut server)) =
        (open(), open());
    let endpoint = Endpoint::new(&client_interface).expect("endpoint");
    let there = Endpoint::new(&server_interface).expect("endpoint");
    endpoint.connect(&there.address()).expect("connected");
    while endpoint.flush(FlushMode::Local, None).is_err() {
        client.progress();
        server.progress();
    }
    let memory = Box::leak(Box::new(far.allocate(4096, Access::all()).expect("memory")));
    let key = domain.unpack_key(&memory.pack_key()).expect("key");
    let received: Rc<Cell<u64>> = Rc::default();
    let count = Rc::clone(&received);
    server_interface.set_handler(ID, move |_| count.set(count.get() + 1)).expect("handler");
    let mut sides = Sides {
        endpoint,
        client,
        server,
        remote: memory.address(),
        key,
        result: FetchResult::new(),
        received,
        events: 0,
        server_interface,
    };
    // Until messages use the ring instead of the FIFO, and the region is mapped.
    for round in 0..4 * TURN {
        while sides.endpoint.am_short(ID, round, &[0; 8]).is_err() {
            sides.drain();
        }
    }
    while sides.endpoint.put_short(&[0; 8], sides.remote, &sides.key).is_err() {
        sides.drain();
    }
    sides.drain();
    sides.received.set(0);
    Box::leak(Box::new(sides))
}

impl Sides {
    fn drain(&mut self) {
        // More rounds than polling stays with one ring.
        for _ in 0..1200 {
            self.server.progress();
            self.client.progress();
        }
    }
}

/// Asserts that every message arrived.
fn delivered(sides: &'static mut Sides) -> &'static mut Sides {
    sides.drain();
    assert_eq!(sides.received.get(), ROUNDS);
    sides
}

fn idle(sides: &'static mut Sides) -> &'static mut Sides {
    assert_eq!((sides.received.get(), sides.events), (0, 0));
    sides
}

/// With an empty handler, so that only the delivery counts.
fn with_empty_handler() -> &'static mut Sides {
    let sides = connected();
    sides.server_interface.set_handler(ID, |_| ()).expect("handler");
    sides.drain();
    sides
}

fn taken(sides: &'static mut Sides) -> &'static mut Sides {
    assert_eq!(sides.events, ROUNDS);
    sides
}

fn gate(bench: &str) -> LibraryBenchmarkConfig {
    crate::gate::gate_counted(Level::Shm, Shape::Held, bench)
}

/// The counted functions, with call and return, and without the loop around them.
mod counted {
    use super::{AmShort, AtomicOp, Atomics, Endpoint, FetchResult, Progress, PutShort, RemoteKey};

    #[inline(never)]
    pub(super) fn held_am_short_8(endpoint: &Endpoint, id: u8, header: u64, payload: u64) -> bool {
        endpoint.am_short(id, header, &payload.to_ne_bytes()).is_ok()
    }

    #[inline(never)]
    pub(super) fn held_progress(progress: &mut Progress) -> usize {
        progress.progress()
    }

    #[inline(never)]
    pub(super) fn held_put_short_8(
        endpoint: &Endpoint,
        payload: u64,
        remote: u64,
        key: &RemoteKey,
    ) -> bool {
        endpoint.put_short(&payload.to_ne_bytes(), remote, key).is_ok()
    }

    #[inline(never)]
    pub(super) fn held_fetch_add(
        endpoint: &Endpoint,
        remote: u64,
        key: &RemoteKey,
        result: &FetchResult,
    ) -> bool {
        endpoint.atomic_fetch(AtomicOp::Add(1_u64), remote, key, result, None).is_ok()
    }
}

#[library_benchmark(config = gate("am_short_8"))]
#[bench::run(args = (connected()), teardown = delivered)]
fn am_short_8(sides: &'static mut Sides) -> &'static mut Sides {
    let id = std::hint::black_box(ID);
    for round in 0..ROUNDS {
        if round % TURN == 0 {
            sides.drain();
        }
        assert!(counted::held_am_short_8(&sides.endpoint, id, round, round));
    }
    sides
}

#[library_benchmark(config = gate("progress_empty"))]
#[bench::run(args = (connected()), teardown = idle)]
fn progress_empty(sides: &'static mut Sides) -> &'static mut Sides {
    for _ in 0..ROUNDS {
        counted::held_progress(&mut sides.client);
    }
    sides
}

#[library_benchmark(config = gate("progress_empty_with_lane"))]
#[bench::run(args = (connected()), teardown = idle)]
fn progress_empty_with_lane(sides: &'static mut Sides) -> &'static mut Sides {
    for _ in 0..ROUNDS {
        counted::held_progress(&mut sides.server);
    }
    sides
}

#[library_benchmark(config = gate("progress_receive"))]
#[bench::run(args = (with_empty_handler()), teardown = taken)]
fn progress_receive(sides: &'static mut Sides) -> &'static mut Sides {
    for round in 0..ROUNDS {
        assert!(sides.endpoint.am_short(ID, round, &[0; 8]).is_ok());
        sides.events += counted::held_progress(&mut sides.server) as u64;
    }
    sides
}

#[library_benchmark(config = gate("put_short_8"))]
#[bench::run(args = (connected()))]
fn put_short_8(sides: &'static mut Sides) -> &'static mut Sides {
    for round in 0..ROUNDS {
        assert!(counted::held_put_short_8(&sides.endpoint, round, sides.remote, &sides.key));
    }
    sides
}

#[library_benchmark(config = gate("fetch_add_8"))]
#[bench::run(args = (connected()))]
fn fetch_add_8(sides: &'static mut Sides) -> &'static mut Sides {
    for _ in 0..ROUNDS {
        assert!(counted::held_fetch_add(&sides.endpoint, sides.remote, &sides.key, &sides.result));
    }
    sides
}

library_benchmark_group!(
    name = held;
    benchmarks = am_short_8, progress_empty, progress_empty_with_lane, progress_receive, put_short_8, fetch_add_8
);

iai_callgrind::main!(library_benchmark_groups = held);
