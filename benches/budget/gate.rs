//! The configuration of a bench from its budget.

use iai_callgrind::{Callgrind, EntryPoint, EventKind, LibraryBenchmarkConfig};

use crate::budget::{self, Budget, Level, Shape};

/// The hard limit of a bench, without a cache model, which would count no instructions.
///
/// # Panics
/// If the bench has no budget.
pub(crate) fn gate(level: Level, shape: Shape, bench: &str) -> LibraryBenchmarkConfig {
    configuration(level, shape, bench, EntryPoint::Default)
}

/// Like [`gate`], for a bench that does other work as well: only the functions of a module
/// `counted` count.
///
/// # Panics
/// If the bench has no budget.
#[allow(dead_code, reason = "the driver needs no device in its loops")]
pub(crate) fn gate_counted(level: Level, shape: Shape, bench: &str) -> LibraryBenchmarkConfig {
    configuration(level, shape, bench, EntryPoint::Custom("*::counted::*".to_owned()))
}

/// As [`gate_counted`], for the functions whose names match `counted`.
#[allow(dead_code, reason = "only tagged messages have several in one loop")]
pub(crate) fn gate_of(
    level: Level,
    shape: Shape,
    bench: &str,
    counted: &str,
) -> LibraryBenchmarkConfig {
    configuration(level, shape, bench, EntryPoint::Custom(counted.to_owned()))
}

fn configuration(
    level: Level,
    shape: Shape,
    bench: &str,
    entry: EntryPoint,
) -> LibraryBenchmarkConfig {
    let is_ours =
        |budget: &&Budget| budget.level == level && budget.shape == shape && budget.bench == bench;
    let budget =
        budget::all().find(is_ours).unwrap_or_else(|| panic!("no budget for {bench}, {shape:?}"));
    let mut tool = Callgrind::with_args(["--cache-sim=no"]);
    tool.hard_limits([(EventKind::Ir, budget.hard_limit())]).entry_point(entry);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(tool);
    config
}
