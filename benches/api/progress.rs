//! Progress: with nothing to do, with one event at a time, and with a batch.
//!
//! If the device must work between the rounds, only the functions of the modules `counted` count: a
//! call of progress and the sum of its events each. Handlers are empty.

#![allow(clippy::no_mangle_with_rust_abi, reason = "the name is for the checks of the assembly")]

use barewire::Posted;
use barewire::capability::{AmShort, PutZcopy};
use barewire::transport::{Interface as _, rc_mlx5::Progress};

use crate::budget::ROUNDS;
use crate::sides::{ID, Static, connected};

#[inline(always)]
fn progress(progress: &mut Progress) -> usize {
    progress.progress()
}

#[unsafe(no_mangle)]
#[inline(never)]
fn held_progress(progress: &mut Progress) -> usize {
    progress.progress()
}

fn with_empty_handler() -> &'static mut Static {
    let sides = connected();
    sides.server.interface.set_handler(ID, |_| ()).expect("handler");
    sides
}

type Counted = fn(&mut Progress, &mut u64);

/// Receives all messages, `size` at a time.
fn receive_batches(sides: &mut Static, progress: Counted, size: u64) {
    let mut events = 0;
    for round in 0..ROUNDS / size {
        for _ in 0..size {
            sides.client.endpoint.am_short(ID, round, &[7; 8]).expect("posted");
        }
        sides.devices.settle();
        for _ in 0..size {
            progress(&mut sides.server.progress, &mut events);
        }
        assert_eq!(events, (round + 1) * size, "events");
    }
}

/// Completes the operations with one call of progress each.
fn complete(sides: &mut Static, progress: Counted) {
    let mut events = 0;
    for round in 0..ROUNDS {
        let slice = sides.memory.slice(0, 64).expect("inside");
        let Static { client, remote, key, completion, devices, .. } = &*sides;
        let post = client.endpoint.put_zcopy(&[slice], *remote, key, Some(completion));
        assert_eq!(post, Ok(Posted::InProgress));
        devices.settle();
        progress(&mut sides.client.progress, &mut events);
        assert_eq!(events, round + 1, "events");
    }
}

/// Defines the benches of a shape, with `$progress` as the call.
macro_rules! benches {
    ($group:ident, $shape:expr, $progress:ident) => {
        pub(crate) mod $group {
            use iai_callgrind::{LibraryBenchmarkConfig, library_benchmark};

            use super::{complete, receive_batches, with_empty_handler, $progress as call};
            use crate::budget::{BATCH, Level, ROUNDS, Shape};
            use crate::sides::{Static, completed, connected, idle, posted};

            fn gate(bench: &str) -> LibraryBenchmarkConfig {
                crate::gate::gate(Level::Api, $shape, bench)
            }

            fn gate_counted(bench: &str) -> LibraryBenchmarkConfig {
                crate::gate::gate_counted(Level::Api, $shape, bench)
            }

            mod counted {
                use barewire::transport::rc_mlx5::Progress;

                #[inline(never)]
                pub(super) fn progress(progress: &mut Progress, events: &mut u64) {
                    *events += super::call(progress) as u64;
                }
            }

            #[library_benchmark(config = gate("progress_empty"))]
            #[bench::run(args = (connected()), teardown = idle)]
            fn progress_empty(sides: &'static mut Static) -> &'static mut Static {
                for _ in 0..ROUNDS {
                    call(&mut sides.client.progress);
                }
                sides
            }

            #[library_benchmark(config = gate_counted("progress_receive"))]
            #[bench::run(args = (with_empty_handler()), teardown = posted)]
            fn progress_receive(sides: &'static mut Static) -> &'static mut Static {
                receive_batches(sides, counted::progress, 1);
                sides
            }

            #[library_benchmark(config = gate_counted("progress_batch"))]
            #[bench::run(args = (with_empty_handler()), teardown = posted)]
            fn progress_batch(sides: &'static mut Static) -> &'static mut Static {
                receive_batches(sides, counted::progress, BATCH);
                sides
            }

            #[library_benchmark(config = gate_counted("progress_complete"))]
            #[bench::run(args = (connected()), teardown = completed)]
            fn progress_complete(sides: &'static mut Static) -> &'static mut Static {
                complete(sides, counted::progress);
                sides
            }
        }
    };
}

benches!(held, Shape::Held, held_progress);
benches!(inlined, Shape::Inlined, progress);
