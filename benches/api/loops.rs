//! *inlined*: each operation in the loop, with arguments of which the optimiser knows nothing at its beginning.

use std::hint::black_box;

use iai_callgrind::{library_benchmark, library_benchmark_group};

use crate::budget::{Level, ROUNDS, Shape};
use crate::dynamic::inlined::{dynamic_am_short, dynamic_progress_empty, dynamic_put_short};
use crate::operation;
use crate::progress::inlined::{progress_batch, progress_complete, progress_empty, progress_receive};
use crate::sides::{ID, Static, completed, connected, delivered, posted};

fn gate(bench: &str) -> iai_callgrind::LibraryBenchmarkConfig {
    crate::gate::gate(Level::Api, Shape::Inlined, bench)
}

#[library_benchmark(config = gate("put_short_8"))]
#[bench::run(args = (connected()), teardown = posted)]
fn put_short_8(sides: &'static mut Static) -> &'static mut Static {
    for round in 0..ROUNDS {
        operation::put_short_8(&sides.client.endpoint, round, sides.remote, &sides.key);
    }
    sides
}

#[library_benchmark(config = gate("put_short_8_run_time"))]
#[bench::run(args = (connected()), teardown = posted)]
fn put_short_8_run_time(sides: &'static mut Static) -> &'static mut Static {
    let payload = black_box(&[7; 8][..]);
    for _ in 0..ROUNDS {
        operation::put_short(&sides.client.endpoint, payload, sides.remote, &sides.key);
    }
    sides
}

#[library_benchmark(config = gate("put_short_64"))]
#[bench::run(args = (connected()), teardown = posted)]
fn put_short_64(sides: &'static mut Static) -> &'static mut Static {
    let payload = black_box(&[7; 64]);
    for _ in 0..ROUNDS {
        operation::put_short(&sides.client.endpoint, payload, sides.remote, &sides.key);
    }
    sides
}

#[library_benchmark(config = gate("put_bcopy_8"))]
#[bench::run(args = (connected()), teardown = posted)]
fn put_bcopy_8(sides: &'static mut Static) -> &'static mut Static {
    for round in 0..ROUNDS {
        operation::put_bcopy_8(&sides.client.endpoint, round, sides.remote, &sides.key);
    }
    sides
}

#[library_benchmark(config = gate("put_zcopy"))]
#[bench::run(args = (connected()), teardown = completed)]
fn put_zcopy(sides: &'static mut Static) -> &'static mut Static {
    let slice = sides.memory.slice(0, 64).expect("inside");
    for _ in 0..ROUNDS {
        let Static { client, remote, key, completion, .. } = &*sides;
        operation::put_zcopy(&client.endpoint, &slice, *remote, key, Some(completion));
    }
    sides
}

#[library_benchmark(config = gate("put_zcopy_silent"))]
#[bench::run(args = (connected()), teardown = posted)]
fn put_zcopy_silent(sides: &'static mut Static) -> &'static mut Static {
    let slice = sides.memory.slice(0, 64).expect("inside");
    for _ in 0..ROUNDS {
        operation::put_zcopy(&sides.client.endpoint, &slice, sides.remote, &sides.key, None);
    }
    sides
}

#[library_benchmark(config = gate("get_bcopy"))]
#[bench::run(args = (connected()), teardown = completed)]
fn get_bcopy(sides: &'static mut Static) -> &'static mut Static {
    let length = black_box(8);
    for _ in 0..ROUNDS {
        let Static { client, unpack, remote, key, completion, .. } = &*sides;
        operation::get_bcopy(&client.endpoint, unpack, length, *remote, key, completion);
    }
    sides
}

#[library_benchmark(config = gate("get_zcopy"))]
#[bench::run(args = (connected()), teardown = completed)]
fn get_zcopy(sides: &'static mut Static) -> &'static mut Static {
    let slice = sides.memory.slice(0, 64).expect("inside");
    for _ in 0..ROUNDS {
        let Static { client, remote, key, completion, .. } = &*sides;
        operation::get_zcopy(&client.endpoint, &slice, *remote, key, completion);
    }
    sides
}

#[library_benchmark(config = gate("am_short_8"))]
#[bench::run(args = (connected()), teardown = delivered)]
fn am_short_8(sides: &'static mut Static) -> &'static mut Static {
    let (id, payload) = black_box((ID, 5));
    for round in 0..ROUNDS {
        operation::am_short_8(&sides.client.endpoint, id, round, payload);
    }
    sides
}

#[library_benchmark(config = gate("am_bcopy_8"))]
#[bench::run(args = (connected()), teardown = delivered)]
fn am_bcopy_8(sides: &'static mut Static) -> &'static mut Static {
    let id = black_box(ID);
    for round in 0..ROUNDS {
        operation::am_bcopy_8(&sides.client.endpoint, id, round);
    }
    sides
}

#[library_benchmark(config = gate("am_zcopy"))]
#[bench::run(args = (connected()), teardown = completed)]
fn am_zcopy(sides: &'static mut Static) -> &'static mut Static {
    let id = black_box(ID);
    let slice = sides.memory.slice(0, 64).expect("inside");
    for round in 0..ROUNDS {
        operation::am_zcopy(&sides.client.endpoint, id, round, &slice, &sides.completion);
    }
    sides
}

#[library_benchmark(config = gate("atomic_add"))]
#[bench::run(args = (connected()), teardown = posted)]
fn atomic_add(sides: &'static mut Static) -> &'static mut Static {
    for round in 0..ROUNDS {
        operation::atomic_add(&sides.client.endpoint, round, sides.remote, &sides.key);
    }
    sides
}

#[library_benchmark(config = gate("fetch_add"))]
#[bench::run(args = (connected()), teardown = completed)]
fn fetch_add(sides: &'static mut Static) -> &'static mut Static {
    for round in 0..ROUNDS {
        let Static { client, remote, key, result, completion, .. } = &*sides;
        operation::fetch_add(&client.endpoint, round, *remote, key, result, completion);
    }
    sides
}

#[library_benchmark(config = gate("compare_swap"))]
#[bench::run(args = (connected()), teardown = completed)]
fn compare_swap(sides: &'static mut Static) -> &'static mut Static {
    for round in 0..ROUNDS {
        let Static { client, remote, key, result, completion, .. } = &*sides;
        operation::compare_swap(&client.endpoint, (round, round + 1), *remote, key, result, completion);
    }
    sides
}

library_benchmark_group!(
    name = inlined;
    benchmarks = put_short_8, put_short_8_run_time, put_short_64, put_bcopy_8, put_zcopy, put_zcopy_silent, get_bcopy,
        get_zcopy, am_short_8, am_bcopy_8, am_zcopy, atomic_add, fetch_add, compare_swap, progress_empty, progress_receive,
        progress_batch, progress_complete, dynamic_put_short, dynamic_am_short, dynamic_progress_empty
);
