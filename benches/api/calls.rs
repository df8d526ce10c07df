//! *held*: each operation behind a call, with arguments that arrive in registers.
//!
//! The functions are exported, so that the optimiser keeps them whole and knows nothing of their arguments.

#![allow(clippy::no_mangle_with_rust_abi, reason = "the name is for the checks of the assembly")]
#![allow(clippy::trivially_copy_pass_by_ref, reason = "as the API takes keys")]

use std::hint::black_box;

use barewire::transport::rc_mlx5::{Endpoint, RemoteKey};
use barewire::{Completion, FetchResult, Slice, Unpack};
use iai_callgrind::{library_benchmark, library_benchmark_group};

use crate::budget::{Level, ROUNDS, Shape};
use crate::dynamic::held::{dynamic_am_short, dynamic_progress_empty, dynamic_put_short};
use crate::operation;
use crate::progress::held::{progress_batch, progress_complete, progress_empty, progress_receive};
use crate::sides::{ID, Static, completed, connected, delivered, posted};

fn gate(bench: &str) -> iai_callgrind::LibraryBenchmarkConfig {
    crate::gate::gate(Level::Api, Shape::Held, bench)
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_put_short_8(endpoint: &Endpoint, payload: u64, remote: u64, key: &RemoteKey) -> bool {
    operation::put_short_8(endpoint, payload, remote, key)
}

#[library_benchmark(config = gate("put_short_8"))]
#[bench::run(args = (connected()), teardown = posted)]
fn put_short_8(sides: &'static mut Static) -> &'static mut Static {
    for round in 0..ROUNDS {
        held_put_short_8(&sides.client.endpoint, round, sides.remote, &sides.key);
    }
    sides
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_put_short(endpoint: &Endpoint, payload: &[u8], remote: u64, key: &RemoteKey) -> bool {
    operation::put_short(endpoint, payload, remote, key)
}

#[library_benchmark(config = gate("put_short_8_run_time"))]
#[bench::run(args = (connected()), teardown = posted)]
fn put_short_8_run_time(sides: &'static mut Static) -> &'static mut Static {
    let payload = black_box(&[7; 8][..]);
    for _ in 0..ROUNDS {
        held_put_short(&sides.client.endpoint, payload, sides.remote, &sides.key);
    }
    sides
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_put_short_64(endpoint: &Endpoint, payload: &[u8; 64], remote: u64, key: &RemoteKey) -> bool {
    operation::put_short(endpoint, payload, remote, key)
}

#[library_benchmark(config = gate("put_short_64"))]
#[bench::run(args = (connected()), teardown = posted)]
fn put_short_64(sides: &'static mut Static) -> &'static mut Static {
    let payload = black_box(&[7; 64]);
    for _ in 0..ROUNDS {
        held_put_short_64(&sides.client.endpoint, payload, sides.remote, &sides.key);
    }
    sides
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_put_bcopy_8(endpoint: &Endpoint, payload: u64, remote: u64, key: &RemoteKey) -> bool {
    operation::put_bcopy_8(endpoint, payload, remote, key)
}

#[library_benchmark(config = gate("put_bcopy_8"))]
#[bench::run(args = (connected()), teardown = posted)]
fn put_bcopy_8(sides: &'static mut Static) -> &'static mut Static {
    for round in 0..ROUNDS {
        held_put_bcopy_8(&sides.client.endpoint, round, sides.remote, &sides.key);
    }
    sides
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_put_zcopy(
    endpoint: &Endpoint,
    slice: &Slice<'_>,
    remote: u64,
    key: &RemoteKey,
    completion: Option<&Completion>,
) -> bool {
    operation::put_zcopy(endpoint, slice, remote, key, completion)
}

#[library_benchmark(config = gate("put_zcopy"))]
#[bench::run(args = (connected()), teardown = completed)]
fn put_zcopy(sides: &'static mut Static) -> &'static mut Static {
    let slice = sides.memory.slice(0, 64).expect("inside");
    for _ in 0..ROUNDS {
        let Static { client, remote, key, completion, .. } = &*sides;
        held_put_zcopy(&client.endpoint, &slice, *remote, key, Some(completion));
    }
    sides
}

#[library_benchmark(config = gate("put_zcopy_silent"))]
#[bench::run(args = (connected()), teardown = posted)]
fn put_zcopy_silent(sides: &'static mut Static) -> &'static mut Static {
    let slice = sides.memory.slice(0, 64).expect("inside");
    for _ in 0..ROUNDS {
        held_put_zcopy(&sides.client.endpoint, &slice, sides.remote, &sides.key, None);
    }
    sides
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_get_bcopy(
    endpoint: &Endpoint,
    unpack: &Unpack,
    length: usize,
    remote: u64,
    key: &RemoteKey,
    completion: &Completion,
) -> bool {
    operation::get_bcopy(endpoint, unpack, length, remote, key, completion)
}

#[library_benchmark(config = gate("get_bcopy"))]
#[bench::run(args = (connected()), teardown = completed)]
fn get_bcopy(sides: &'static mut Static) -> &'static mut Static {
    let length = black_box(8);
    for _ in 0..ROUNDS {
        let Static { client, unpack, remote, key, completion, .. } = &*sides;
        held_get_bcopy(&client.endpoint, unpack, length, *remote, key, completion);
    }
    sides
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_get_zcopy(
    endpoint: &Endpoint,
    slice: &Slice<'_>,
    remote: u64,
    key: &RemoteKey,
    completion: &Completion,
) -> bool {
    operation::get_zcopy(endpoint, slice, remote, key, completion)
}

#[library_benchmark(config = gate("get_zcopy"))]
#[bench::run(args = (connected()), teardown = completed)]
fn get_zcopy(sides: &'static mut Static) -> &'static mut Static {
    let slice = sides.memory.slice(0, 64).expect("inside");
    for _ in 0..ROUNDS {
        let Static { client, remote, key, completion, .. } = &*sides;
        held_get_zcopy(&client.endpoint, &slice, *remote, key, completion);
    }
    sides
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_am_short_8(endpoint: &Endpoint, id: u8, header: u64, payload: u64) -> bool {
    operation::am_short_8(endpoint, id, header, payload)
}

#[library_benchmark(config = gate("am_short_8"))]
#[bench::run(args = (connected()), teardown = delivered)]
fn am_short_8(sides: &'static mut Static) -> &'static mut Static {
    let (id, payload) = black_box((ID, 5));
    for round in 0..ROUNDS {
        held_am_short_8(&sides.client.endpoint, id, round, payload);
    }
    sides
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_am_bcopy_8(endpoint: &Endpoint, id: u8, payload: u64) -> bool {
    operation::am_bcopy_8(endpoint, id, payload)
}

#[library_benchmark(config = gate("am_bcopy_8"))]
#[bench::run(args = (connected()), teardown = delivered)]
fn am_bcopy_8(sides: &'static mut Static) -> &'static mut Static {
    let id = black_box(ID);
    for round in 0..ROUNDS {
        held_am_bcopy_8(&sides.client.endpoint, id, round);
    }
    sides
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_am_zcopy(
    endpoint: &Endpoint,
    id: u8,
    header: u64,
    slice: &Slice<'_>,
    completion: &Completion,
) -> bool {
    operation::am_zcopy(endpoint, id, header, slice, completion)
}

#[library_benchmark(config = gate("am_zcopy"))]
#[bench::run(args = (connected()), teardown = completed)]
fn am_zcopy(sides: &'static mut Static) -> &'static mut Static {
    let id = black_box(ID);
    let slice = sides.memory.slice(0, 64).expect("inside");
    for round in 0..ROUNDS {
        held_am_zcopy(&sides.client.endpoint, id, round, &slice, &sides.completion);
    }
    sides
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_atomic_add(endpoint: &Endpoint, operand: u64, remote: u64, key: &RemoteKey) -> bool {
    operation::atomic_add(endpoint, operand, remote, key)
}

#[library_benchmark(config = gate("atomic_add"))]
#[bench::run(args = (connected()), teardown = posted)]
fn atomic_add(sides: &'static mut Static) -> &'static mut Static {
    for round in 0..ROUNDS {
        held_atomic_add(&sides.client.endpoint, round, sides.remote, &sides.key);
    }
    sides
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_atomic_fetch_add(
    endpoint: &Endpoint,
    operand: u64,
    remote: u64,
    key: &RemoteKey,
    result: &FetchResult,
    completion: &Completion,
) -> bool {
    operation::fetch_add(endpoint, operand, remote, key, result, completion)
}

#[library_benchmark(config = gate("fetch_add"))]
#[bench::run(args = (connected()), teardown = completed)]
fn fetch_add(sides: &'static mut Static) -> &'static mut Static {
    for round in 0..ROUNDS {
        let Static { client, remote, key, result, completion, .. } = &*sides;
        held_atomic_fetch_add(&client.endpoint, round, *remote, key, result, completion);
    }
    sides
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_atomic_compare_swap(
    endpoint: &Endpoint,
    compare: u64,
    swap: u64,
    remote: u64,
    key: &RemoteKey,
    result: &FetchResult,
    completion: &Completion,
) -> bool {
    operation::compare_swap(endpoint, (compare, swap), remote, key, result, completion)
}

#[library_benchmark(config = gate("compare_swap"))]
#[bench::run(args = (connected()), teardown = completed)]
fn compare_swap(sides: &'static mut Static) -> &'static mut Static {
    for round in 0..ROUNDS {
        let Static { client, remote, key, result, completion, .. } = &*sides;
        held_atomic_compare_swap(&client.endpoint, round, round + 1, *remote, key, result, completion);
    }
    sides
}

library_benchmark_group!(
    name = held;
    benchmarks = put_short_8, put_short_8_run_time, put_short_64, put_bcopy_8, put_zcopy, put_zcopy_silent, get_bcopy,
        get_zcopy, am_short_8, am_bcopy_8, am_zcopy, atomic_add, fetch_add, compare_swap, progress_empty, progress_receive,
        progress_batch, progress_complete, dynamic_put_short, dynamic_am_short, dynamic_progress_empty
);
