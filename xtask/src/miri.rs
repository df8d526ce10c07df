//! Miri: interprets tests that use plain memory only, and reports undefined behaviour.
//!
//! The aliasing rules are Stacked Borrows, which are Miri's default and the stricter ones. Tests
//! that take minutes under Miri are ignored or skipped.

use std::time::Duration;

use crate::packages::Install;
use crate::process::{self, Invocation, Output};

/// The runs: a name, Miri's flags, and the arguments of `cargo miri test`.
pub(crate) const RUNS: [(&str, &str, &[&str]); 5] = [
    ("Miri, layouts and shared bytes", "", BYTES),
    ("Miri, queues of the driver", "", QUEUES),
    ("Miri, buffers and requests", "", REQUESTS),
    ("Miri, self", "", &["-p", "barewire", "--test=self_transport"]),
    // The tests leave keys to registered memory, which is leaked because the device may still
    // access it.
    ("Miri, software HCA", "-Zmiri-ignore-leaks", DEVICE),
];

const BYTES: &[&str] = &["-p", "barewire-layouts", "-p", "barewire-shared-bytes", "--lib"];

/// Everything on plain memory. Skipped tests open a device, read files or take long.
const QUEUES: &[&str] = &[
    "-p",
    "barewire-mlx5",
    "--lib",
    "--test=completion",
    "--test=receive",
    "--test=mistakes",
    "--test=golden",
    "--test=overrun",
    "--",
    "--skip=device",
    "--skip=file",
    "--skip=libmlx5",
    "--skip=contexts",
    "--skip=mistake_03",
    "--skip=mistake_09",
    "--skip=mistake_10",
    "--skip=mistake_11",
];

/// Tests of all transports. Skipped tests take long, or forget the payloads of later panics as
/// intended, which Miri reports as leaks.
const REQUESTS: &[&str] = &[
    "-p",
    "barewire",
    "--lib",
    "--",
    "atomic::",
    "caller::",
    "completion::",
    "post_state::",
    "operation::",
    "panics::",
    "pending::",
    "pieces::",
    "pool::",
    "self_::",
    "shm::progress::",
    "--skip=a_callback_that_panics",
    "--skip=everything_runs",
    "--skip=a_purge_that_panics",
];

/// Stepped devices on a fabric in this process, and the device's copies to and from memory.
const DEVICE: &[&str] = &[
    "-p",
    "barewire-hca",
    "--lib",
    "--test=it",
    "--",
    "words::",
    // Sends and writes.
    "engine_operations::a_queue_pair_talks",
    "engine_operations::unsignalled_work_alone",
    "engine_operations::atomics_act_on",
];

fn nightly(arguments: &[&str]) -> Invocation {
    Invocation::new("rustup", &["run", "nightly", "cargo", "miri"]).with(arguments)
}

/// Returns the command of a run, with its own target folder.
pub(crate) fn run(flags: &str, arguments: &[&str]) -> Invocation {
    let command = nightly(&["test"]).with(arguments);
    command.environment("CARGO_TARGET_DIR", "target/miri").environment("MIRIFLAGS", flags)
}

/// Installs Miri, or returns why it is not available.
pub(crate) fn prepare(install: Install) -> Result<(), String> {
    let succeeds = |invocation: &Invocation, minutes| {
        process::run(invocation, Duration::from_mins(minutes), Output::Discard).is_ok()
    };
    let is_there = || succeeds(&nightly(&["--version"]), 1);
    if is_there() {
        return Ok(());
    }
    let components = ["component", "add", "miri", "rust-src", "--toolchain", "nightly"];
    let adding = Invocation::new("rustup", &components);
    if install == Install::Missing && succeeds(&adding, 10) && is_there() {
        return Ok(());
    }
    Err(format!("Miri, which needs a nightly toolchain and: {adding}"))
}
