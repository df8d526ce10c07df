//! Counting with iai-callgrind, as docs/guide/counting.md explains it. The page has this program.
//!
//! usage: `cargo bench -p barewire-benches --bench own`, with the runner of iai-callgrind

#![allow(missing_docs, reason = "the macros of iai-callgrind define public items")]

// ANCHOR: own
use barewire::{
    Access, Completion, Domain, Endpoint, Interface, InterfaceConfig, Memory, RemoteKey, Worker,
};
use barewire_hca::{Config, Device, Mode};
use iai_callgrind::{
    Callgrind, EntryPoint, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group,
};

const ROUNDS: u64 = 1024;

/// Two connected endpoints, and memory for puts.
struct Sides {
    device: Device,
    worker: Worker,
    here: Endpoint,
    /// The interface and the other endpoint, which must live as long.
    _others: (Interface, Endpoint),
    memory: Memory,
    key: RemoteKey,
    address: u64,
}

fn connected() -> Box<Sides> {
    // It carries out what is posted when `step` is called, and has no thread.
    let device = Device::open(Config::default().mode(Mode::Stepped)).expect("a device");
    let domain = Domain::open_soft(device.clone()).expect("a domain");
    let mut worker = Worker::new();
    // Room for every round: a full ring would refuse posts.
    let config = InterfaceConfig::default().send_ring(2 * ROUNDS as u32).signal_every(64);
    let interface = Interface::open(&mut worker, &domain, &config).expect("an interface");
    let (here, there) = (endpoint(&interface), endpoint(&interface));
    here.connect(&there.address()).expect("connected");
    there.connect(&here.address()).expect("connected");
    let memory = domain.allocate(4096, Access::all()).expect("memory");
    let key = domain.unpack_key(&memory.pack_key()).expect("a key");
    let address = memory.address();
    let others = (interface, there);
    Box::new(Sides { device, worker, here, _others: others, memory, key, address })
}

fn endpoint(interface: &Interface) -> Endpoint {
    Endpoint::new(interface).expect("an endpoint")
}

// An exported function keeps its arguments and its result, also if a caller does not use them.
#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn counted_post(
    endpoint: &Endpoint,
    value: u64,
    address: u64,
    key: &RemoteKey,
) -> bool {
    endpoint.put_short(&value.to_le_bytes(), address, key).is_ok()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn counted_poll(worker: &mut Worker) -> usize {
    worker.progress()
}

fn counting(entry_point: EntryPoint) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::with_args(["--cache-sim=no"]);
    callgrind.entry_point(entry_point);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

fn post_all(sides: Box<Sides>) -> Box<Sides> {
    for round in 0..ROUNDS {
        counted_post(&sides.here, round, sides.address, &sides.key);
    }
    sides
}

// The whole function, with the loop: the method of README's numbers.
#[library_benchmark(config = counting(EntryPoint::Default))]
#[bench::run(args = (connected()), teardown = arrived)]
fn loop_of_posts(sides: Box<Sides>) -> Box<Sides> {
    post_all(sides)
}

// What is between the first instruction of `counted_post` and its return: the method of
// `--toggle-collect`.
#[library_benchmark(config = counting(EntryPoint::Custom("counted_post".to_owned())))]
#[bench::run(args = (connected()), teardown = arrived)]
fn posts_alone(sides: Box<Sides>) -> Box<Sides> {
    post_all(sides)
}

// Polls that find a completion each: the device has finished before the poll, and is not counted.
#[library_benchmark(config = counting(EntryPoint::Custom("counted_poll".to_owned())))]
#[bench::run(connected())]
fn polls_alone(mut sides: Box<Sides>) -> Box<Sides> {
    let done = Completion::counter();
    // While something holds it, it stays and may be used again.
    let hold = done.hold();
    for _ in 0..ROUNDS {
        let slices = [sides.memory.slice(64, 64).expect("inside")];
        let posted = sides.here.put_zcopy(&slices, sides.address, &sides.key, Some(&done));
        assert!(posted.is_ok());
        while sides.device.step() {}
        assert_eq!(counted_poll(&mut sides.worker), 1);
    }
    drop(hold);
    sides
}

/// What was counted must have happened.
fn arrived(mut sides: Box<Sides>) {
    while sides.device.step() || sides.worker.progress() > 0 {}
    assert_eq!(sides.memory.load_u64(0).ok(), Some(ROUNDS - 1));
}

library_benchmark_group!(name = own; benchmarks = loop_of_posts, posts_alone, polls_alone);
iai_callgrind::main!(library_benchmark_groups = own);
// ANCHOR_END: own
