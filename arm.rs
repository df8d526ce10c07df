//! Tests built for aarch64 and run by qemu's emulation of a process (`qemu-aarch64-static`).
//!
//! The emulator has the memory model of this machine, so it does not show a missing barrier; the
//! models of `barewire-shm` do.

use std::time::Duration;

use crate::count::Runner;
use crate::packages::Install;
use crate::process::{self, Invocation, Output};

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The runs: a name, the arguments that select the tests, and the names of tests that the emulator
/// cannot run.
pub(crate) const RUNS: [(&str, &[&str], &[&str]); 1] = [(
    "aarch64, driver",
    &["-p", "barewire-layouts", "-p", "barewire-shared-bytes", "-p", "barewire-mlx5"],
    &[],
)];

/// Returns the command of a run.
pub(crate) fn run(runner: Runner, arguments: &[&str], excluded: &[&str]) -> Invocation {
    let command: &[&str] = match runner {
        Runner::Nextest => &["nextest", "run", "--target", TARGET],
        Runner::Libtest => &["test", "--no-fail-fast", "--target", TARGET],
    };
    let skips: Vec<String> = excluded.iter().map(|name| format!("--skip={name}")).collect();
    let skips: Vec<&str> = skips.iter().map(String::as_str).collect();
    Invocation::cargo(command)
        .with(arguments)
        .with(&["--"])
        .with(&skips)
        .environment("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
        .environment(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
            "qemu-aarch64-static -L /usr/aarch64-linux-gnu",
        )
        // For programs that tests start, which the kernel runs by binfmt_misc.
        .environment("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu")
}

/// Adds the standard library of the target if it is missing.
///
/// # Errors
/// Why the tests cannot be built.
pub(crate) fn prepare(install: Install) -> Result<(), String> {
    let mut installed = String::new();
    let ask = Invocation::new("rustup", &["target", "list", "--installed"]);
    let failed = |what: &str, failure: process::Failure| format!("aarch64: {what}: {failure}");
    process::run(&ask, Duration::from_secs(30), Output::Collect(&mut installed))
        .map_err(|failure| failed("rustup does not list its targets", failure))?;
    if installed.lines().any(|line| line.trim() == TARGET) {
        return Ok(());
    }
    if install == Install::Nothing {
        return Err(format!("aarch64: missing the target {TARGET} (rustup target add {TARGET})"));
    }
    let add = Invocation::new("rustup", &["target", "add", TARGET]);
    println!("{add}");
    process::run(&add, Duration::from_mins(5), Output::Inherit)
        .map_err(|failure| failed("rustup did not add the target", failure))
}
