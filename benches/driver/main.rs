//! Instructions per operation of the mlx5 driver, over queues in plain memory.
//!
//! `cargo xtask bench` runs this and writes `benches/RESULTS.md`; the limits are in `benches/budget/`.

#![allow(missing_docs, reason = "the macros of iai-callgrind write public items")]

#[path = "../budget/mod.rs"]
#[allow(dead_code, reason = "the rest is for the table that xtask writes")]
mod budget;
mod calls;
#[path = "../budget/gate.rs"]
mod gate;
mod loops;
mod operation;
mod queues;

use calls::held;
use loops::inlined;

iai_callgrind::main!(library_benchmark_groups = held, inlined);
