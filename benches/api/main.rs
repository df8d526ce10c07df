//! Instructions per operation of the transport API over `rc_mlx5` and the software HCA.
//!
//! The device stands still while operations are posted, so its work is never counted.
//! `cargo xtask bench` runs this and writes `benches/RESULTS.md`; the limits are in
//! `benches/budget/`.

#![allow(missing_docs, reason = "the macros of iai-callgrind define public items")]

#[path = "../budget/mod.rs"]
#[allow(dead_code, reason = "the rest is for the table that xtask writes")]
mod budget;
mod dynamic;
#[path = "../budget/gate.rs"]
mod gate;
mod operations;
mod progress;
#[path = "../budget/rows.rs"]
mod rows;
mod shared;
mod sides;

use operations::{held, inlined};

iai_callgrind::main!(library_benchmark_groups = held, inlined);
