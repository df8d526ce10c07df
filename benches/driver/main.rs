//! Instructions per operation of the mlx5 driver, over queues in plain memory.
//!
//! `cargo xtask bench` runs this and writes `benches/RESULTS.md`; the limits are in
//! `benches/budget/`.

#![allow(missing_docs, reason = "the macros of iai-callgrind define public items")]

#[path = "../budget/mod.rs"]
#[allow(dead_code, reason = "the rest is for the table that xtask writes")]
mod budget;
#[path = "../budget/gate.rs"]
mod gate;
mod operations;
mod queues;
#[path = "../budget/rows.rs"]
mod rows;

use operations::{held, inlined};

iai_callgrind::main!(library_benchmark_groups = held, inlined);
