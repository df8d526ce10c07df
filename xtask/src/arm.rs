//! Tests built for aarch64 and run by qemu's emulation of a process (`qemu-aarch64-static`).
//!
//! The emulator has the memory model of this machine, so it does not show a missing barrier; the
//! models of `barewire-shm` and `barewire-mlx5` do.

use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use rustix::mount::MountFlags;

use crate::packages::Install;
use crate::process::{self, Invocation, Output};

pub(crate) const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The file system by which the kernel learns of interpreters for programs (binfmt_misc), the entry
/// of the emulator, and Debian's line for it.
const MOUNTED: &str = "/proc/sys/fs/binfmt_misc";
const REGISTERED: &str = "/proc/sys/fs/binfmt_misc/qemu-aarch64";
const FORMAT: &str = "/usr/lib/binfmt.d/qemu-aarch64.conf";

/// The arguments of each run, which select its tests: those of crates, and those of transports.
pub(crate) const RUNS: [&[&str]; 2] = [
    &[
        "-p",
        "barewire-layouts",
        "-p",
        "barewire-shared-bytes",
        "-p",
        "barewire-mlx5",
        "-p",
        "barewire-hca",
        "-p",
        "barewire-shm",
        "-p",
        "barewire-tcp",
    ],
    &[
        "-p",
        "barewire",
        "--features",
        "soft",
        "--lib",
        "--test",
        "conformance",
        "--",
        // The places that remain run all code that depends on the processor.
        "--skip",
        "self::",
        "--skip",
        "soft0-soft1::",
        "--skip",
        "dc_mlx5_soft0::",
        "--skip",
        "ud_mlx5_soft0::",
        "--skip",
        "xrc_mlx5_soft0::",
        // Silence takes its time on every processor.
        "--skip",
        "::keepalive::",
        // qemu has no process_vm_readv, by which the software HCA reads memory on demand, too.
        "--skip",
        "cma::",
        "--skip",
        "::one_key_names_all_memory",
        // The child of a process with several threads sometimes hangs in qemu.
        "--skip",
        "::fork::",
        // In qemu the first of two connections is drained long before the second, so all its
        // requests run first.
        "--skip",
        "tcp::pending::pending_requests_take_turns",
    ],
];

/// Returns the command of a run. A test that the emulator cannot run is ignored under
/// `cfg(barewire_emulated)`, with the reason.
pub(crate) fn run(arguments: &[&str]) -> Invocation {
    tools(Invocation::cargo(&["test", "--no-fail-fast", "--target", TARGET]).with(arguments))
        // Debug information would double the time of the build.
        .environment("CARGO_PROFILE_DEV_DEBUG", "0")
        .environment("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "--cfg barewire_emulated")
        .environment(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
            "qemu-aarch64-static -L /usr/aarch64-linux-gnu",
        )
        // A thousand take two minutes in qemu.
        .environment("BAREWIRE_HCA_SOAK_SEEDS", "50")
        // For programs that tests start, which the kernel runs by binfmt_misc.
        .environment("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu")
}

/// Adds Debian's linker to a command of cargo.
pub(crate) fn tools(cargo: Invocation) -> Invocation {
    cargo.environment("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
}

/// Adds the standard library of the target, and makes the kernel run programs for aarch64, if either
/// is missing.
///
/// # Errors
/// Why the tests cannot be built or run.
pub(crate) fn prepare(install: Install) -> Result<(), String> {
    register(install)?;
    add_target(install)
}

/// Registers the emulator with the kernel, as systemd does where it runs: tests start programs.
fn register(install: Install) -> Result<(), String> {
    if Path::new(REGISTERED).exists() {
        return Ok(());
    }
    let failed = |error: io::Error| {
        format!("aarch64: the kernel cannot be made to run programs for it ({MOUNTED}): {error}")
    };
    if install == Install::Nothing {
        return Err(format!(
            "aarch64: the kernel does not run programs for it: mount binfmt_misc at {MOUNTED}, and \
             write the line of {FORMAT} to {MOUNTED}/register"
        ));
    }
    let register = Path::new(MOUNTED).join("register");
    if !register.exists() {
        let none = MountFlags::empty();
        rustix::mount::mount("binfmt_misc", MOUNTED, "binfmt_misc", none, None)
            .map_err(|error| failed(error.into()))?;
        // Entries belong to the kernel and outlive a mount.
        if Path::new(REGISTERED).exists() {
            return Ok(());
        }
    }
    let line = fs::read_to_string(FORMAT).map_err(failed)?;
    fs::write(register, line.trim_end()).map_err(failed)
}

fn add_target(install: Install) -> Result<(), String> {
    let ask = Invocation::new("rustup", &["target", "list", "--installed"]);
    let failed = |what: &str, failure: process::Failure| format!("aarch64: {what}: {failure}");
    let installed = process::text(&ask, Duration::from_secs(30))
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
