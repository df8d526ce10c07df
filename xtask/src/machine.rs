//! Tests of the driver and of its transport on `mlx5_0`: the software HCA behind Debian's libibverbs and libmlx5.

use std::path::Path;
use std::time::Duration;

use crate::closure;
use crate::count::Runner;
use crate::process::{self, Failure, Invocation, Output};

/// Two devices of a program's own.
const DEVICES: [&str; 4] = ["hca", "run", "--devices", "2"];

/// The command that runs the tests, on whatever devices there are.
pub(crate) fn tests(runner: Runner) -> Invocation {
    run(runner).with(&[
        "--test",
        "device",
        "--test",
        "golden",
        "--test",
        "transport",
        "--test",
        "conformance",
    ])
}

/// Of the whole workspace, since crates that are chosen by name get other features of their dependencies, and are built anew.
fn run(runner: Runner) -> Invocation {
    let run: &[&str] = match runner {
        Runner::Nextest => &["nextest", "run"],
        Runner::Libtest => &["test"],
    };
    Invocation::cargo(run).with(&["--workspace"])
}

/// The command that runs the tests of transports over generic verbs, to which the way `verbs` leaves the devices.
pub(crate) fn tests_over_verbs(runner: Runner) -> Invocation {
    run(runner)
        .with(&["--test", "transport", "--test", "conformance"])
        .environment("BAREWIRE_TEST_TRANSPORT", "rc_verbs")
}

/// The same where each endpoint has a receive queue of its own: every behaviour once more.
pub(crate) fn tests_without_sharing(tests: Invocation) -> Invocation {
    tests.environment("BAREWIRE_SHARED_RECEIVE_QUEUE", "no").with(&["--", "rc_verbs"])
}

/// What happens to packets of datagrams on a bad wire.
const FAULTS: &str = "drop=0.02,duplicate=0.02,reorder=0.02,seed=7";

/// The command that runs the tests of transports over datagrams, on a good wire or on a bad one.
pub(crate) fn tests_over_datagrams(tests: Invocation, lossy: bool) -> Invocation {
    // Every behaviour over it, and its own tests.
    let tests = tests.environment("BAREWIRE_TEST_TRANSPORT", "ud_verbs").with(&["--", "ud_verbs"]);
    if lossy { tests.environment("BAREWIRE_HCA_FAULTS", FAULTS) } else { tests }
}

/// The same with every test program started by `barewire hca run`, its devices set up by `way`.
pub(crate) fn under(tests: &Invocation, barewire: &str, way: &str) -> Invocation {
    let program = [&[barewire], &DEVICES[..], &["--"]].concat().join(" ");
    tests
        .clone()
        .environment(RUNNER, &program)
        .environment("BAREWIRE_MLX5_SETUP", way)
        .environment("BAREWIRE_TEST_DEVICE", "mlx5_0")
        .environment("BAREWIRE_TEST_DEVICES", "mlx5_0:1,mlx5_1:1")
}

#[cfg(target_arch = "aarch64")]
const RUNNER: &str = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER";
#[cfg(not(target_arch = "aarch64"))]
const RUNNER: &str = "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER";

/// Builds the command line and the library for `hca run` beside it. Answers its path.
pub(crate) fn command_line(deadline: Duration) -> Result<String, Failure> {
    let messages = "--message-format=json-render-diagnostics";
    let build = Invocation::cargo(&["build", "-p", "barewire-hca-uverbs", "-p", "barewire-cli", messages]);
    println!("{build}");
    let mut built = String::new();
    process::run(&build, deadline, Output::Collect(&mut built))?;
    let path = closure::executable_in(&built).map(str::to_owned);
    path.filter(|path| Path::new(path).exists())
        .ok_or_else(|| Failure::Found("cargo built no barewire".to_owned()))
}
