//! Tests of the driver and its transport on `mlx5_0`: the software HCA behind Debian's libibverbs
//! and libmlx5.

use std::path::Path;
use std::time::Duration;

use crate::closure;
use crate::count::Runner;
use crate::libnccl;
use crate::process::{self, Failure, Invocation, Output};

/// Two devices in each program.
const DEVICES: [&str; 4] = ["hca", "run", "--devices", "2"];

/// Leaves out tests of `transport` that open no RDMA device.
const WITH_DEVICES: [&str; 5] = ["--", "--skip", "cma::", "--skip", "sockets::"];

/// Changes [`tests`] for `init_obj`, the second way of setting devices up. It sets up no DC, and the
/// conformance suite within one device does not depend on it.
pub(crate) fn by_init_obj(tests: Invocation) -> Invocation {
    tests.with(&["--skip", "dynamic::", "--skip", "rc_mlx5_mlx5_0::"])
}

/// Returns the command that runs the tests on the available devices.
pub(crate) fn tests(features: &[&str], runner: Runner) -> Invocation {
    run(runner)
        .with(&[
            "--test",
            "device",
            "--test",
            "datagrams",
            "--test",
            "channel",
            "--test",
            "golden",
            "--test",
            "xrc",
            "--test",
            "tags",
            "--test",
            "windows",
            "--test",
            "striding",
            "--test",
            "key_changes",
            "--test",
            "transport",
            "--test",
            "conformance",
        ])
        .with(features)
        .with(&WITH_DEVICES)
}

/// Returns the command that runs the behaviours of channels by NVIDIA's library: the plugin through
/// its loader, and its own network. Libtest runs them in one process, which loads the library once.
pub(crate) fn tests_of_libnccl(features: &[&str], library: &Path) -> Invocation {
    run(Runner::Libtest)
        .with(features)
        .with(&["--test", "suite", "--", "--skip", "table_"])
        .environment(libnccl::VARIABLE, &library.to_string_lossy())
        .environment("NCCL_SOCKET_IFNAME", "lo")
}

/// For the whole workspace: crates selected by name get other features of their dependencies, and
/// would be built again.
fn run(runner: Runner) -> Invocation {
    let run: &[&str] = match runner {
        Runner::Nextest => &["nextest", "run"],
        Runner::Libtest => &["test"],
    };
    Invocation::cargo(run).with(&["--workspace"])
}

/// Returns the command that runs the tests of transports over verbs, which use the devices that the
/// backend `verbs` leaves.
pub(crate) fn tests_over_verbs(runner: Runner) -> Invocation {
    run(runner)
        .with(&["--test", "transport", "--test", "conformance", "--test", "generic"])
        .environment("BAREWIRE_TEST_TRANSPORT", "rc_verbs")
}

/// As above, with a receive queue for each endpoint: every behaviour once more.
pub(crate) fn tests_without_sharing(tests: Invocation) -> Invocation {
    tests.environment("BAREWIRE_SHARED_RECEIVE_QUEUE", "no").with(&["--", "rc_verbs"])
}

/// Faults of the packets on a bad wire.
const FAULTS: &str = "drop=0.02,duplicate=0.02,reorder=0.02,seed=7";

/// Returns the command that runs the tests of one transport over datagrams.
pub(crate) fn tests_over_datagrams(tests: Invocation, transport: &str) -> Invocation {
    // Every behaviour, and the own tests of such transports.
    let tests = tests.environment("BAREWIRE_TEST_TRANSPORT", transport);
    tests.with(&["--", transport, "datagrams"])
}

/// As above, on a bad wire.
pub(crate) fn lossy(tests: Invocation) -> Invocation {
    tests.environment("BAREWIRE_HCA_FAULTS", FAULTS)
}

/// The variable that says what software HCAs require of their driver.
const REQUIREMENTS: &str = "BAREWIRE_HCA_REQUIRE";

/// Returns the command that runs every behaviour of `rc_mlx5` on a software HCA that requires all
/// that ports and hosts may.
pub(crate) fn demanding(features: &[&str], runner: Runner) -> Invocation {
    run(runner)
        .with(features)
        .with(&["--test", "conformance", "--", "rc_mlx5"])
        .environment(REQUIREMENTS, "all,no-wc")
}

/// The same for datagrams of `mlx5_0`. Commands are not delayed: the many of libmlx5
/// would make this step four times as long.
pub(crate) fn demanding_datagrams(features: &[&str], runner: Runner) -> Invocation {
    let tests = run(runner).with(&["--test", "conformance"]).with(features);
    tests_over_datagrams(tests, "ud_mlx5").environment(REQUIREMENTS, "all,command-delay=0")
}

/// As above, with every test program started by `barewire hca run`, its devices set up by `way`.
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

/// Returns the command that builds all programs, libraries and tests. One command for all, since a
/// build without tests gives dependencies other features, and would build most crates again.
pub(crate) fn build() -> Invocation {
    Invocation::cargo(&["build", "--workspace", "--lib", "--bins", "--examples", "--tests"])
}

/// Builds the command line and the library for `hca run` beside it, with all features. Returns the
/// path of the program.
pub(crate) fn command_line(deadline: Duration) -> Result<String, Failure> {
    let messages = "--message-format=json-render-diagnostics";
    let build = build().with(&["--all-features", messages]);
    println!("{build}");
    let mut built = String::new();
    process::run(&build, deadline, Output::Collect(&mut built))?;
    let path = closure::executable_of(&built, "barewire").map(str::to_owned);
    path.filter(|path| Path::new(path).exists())
        .ok_or_else(|| Failure::Found("cargo built no barewire".to_owned()))
}
