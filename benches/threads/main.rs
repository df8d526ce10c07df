//! What locks cost on real threads: posts per second of two threads, each on an interface of its
//! own over `self`, with a worker each, with a shared worker each (as locks per interface would
//! be), and with one shared worker.
//!
//! usage: `cargo bench -p barewire-benches --bench threads -- measure`

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use barewire::shared::{SharedInterface, SharedWorker};
use barewire::{Access, Domain, Interface, InterfaceConfig, Memory, RemoteKey, Worker};

const THREADS: usize = 2;
/// Posts of one thread in one measurement.
const POSTS: u32 = 1 << 20;
/// Posts between two calls of progress.
const BATCH: u32 = 16;
const REPETITIONS: usize = 9;

fn memory() -> (Domain, Memory, RemoteKey) {
    let domain = Domain::open(&"self/memory".parse().expect("a device")).expect("opened");
    let memory = domain.allocate(4096, Access::all()).expect("memory");
    let key = domain.unpack_key(&memory.pack_key()).expect("key");
    (domain, memory, key)
}

/// Calls `post`, and `progress` after each batch.
fn run(mut post: impl FnMut(u64) -> bool, mut progress: impl FnMut() -> usize) {
    for round in 0..POSTS {
        assert!(post(round.into()), "posted");
        if round % BATCH == 0 {
            black_box(progress());
        }
    }
}

fn single(start: &Barrier) -> Duration {
    let (domain, memory, key) = memory();
    let mut worker = Worker::new();
    let config = InterfaceConfig::default();
    let interface = Interface::open(&mut worker, &domain, &config).expect("opened");
    let endpoint = interface.connect(&interface.address()).expect("connected");
    start.wait();
    let now = Instant::now();
    run(
        |round| endpoint.put_short(&round.to_ne_bytes(), memory.address(), &key).is_ok(),
        || worker.progress(),
    );
    now.elapsed()
}

fn shared(start: &Barrier, worker: &SharedWorker) -> Duration {
    let (domain, memory, key) = memory();
    let config = InterfaceConfig::default();
    let interface = SharedInterface::open(worker, &domain, &config).expect("opened");
    let endpoint = interface.connect(&interface.address()).expect("connected");
    start.wait();
    let now = Instant::now();
    run(
        |round| endpoint.put_short(&round.to_ne_bytes(), memory.address(), &key).is_ok(),
        || worker.progress(),
    );
    now.elapsed()
}

/// Prints the median of the posts per second of all threads together.
fn measure(name: &str, threads: usize, one: impl Fn(&Barrier) -> Duration + Sync) {
    let mut rates: Vec<f64> = (0..REPETITIONS)
        .map(|_| {
            let start = Barrier::new(threads);
            let times = thread::scope(|scope| {
                let threads: Vec<_> = (0..threads).map(|_| scope.spawn(|| one(&start))).collect();
                threads.into_iter().map(|thread| thread.join().expect("measured")).max()
            });
            let time = times.expect("a thread").as_secs_f64();
            threads as f64 * f64::from(POSTS) / time / 1e6
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    println!(
        "{name}: {:.1} million posts/s (from {:.1} to {:.1})",
        rates[REPETITIONS / 2],
        rates[0],
        rates[REPETITIONS - 1]
    );
}

fn main() {
    // `cargo bench` runs every bench; this one measures time, for which the machine must be idle.
    if !std::env::args().any(|word| word == "measure") {
        println!("usage: cargo bench --bench threads -- measure");
        return;
    }
    measure("1 thread, a worker", 1, single);
    measure("1 thread, a shared worker", 1, |start| shared(start, &SharedWorker::new()));
    measure("2 threads, a worker each", THREADS, single);
    measure("2 threads, a shared worker each", THREADS, |start| {
        shared(start, &SharedWorker::new())
    });
    let worker = SharedWorker::new();
    measure("2 threads, one shared worker", THREADS, |start| shared(start, &worker));
}
