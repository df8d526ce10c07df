//! The suite built with AddressSanitizer and with ThreadSanitizer.
//!
//! The stable compiler has AddressSanitizer behind `RUSTC_BOOTSTRAP`. For ThreadSanitizer the
//! standard library is built as well: otherwise the sanitizer would not see its fences. That takes
//! the nightly toolchain with `rust-src`, as Miri does. No report is suppressed.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::count::Tally;
use crate::process::{self, Failure, Invocation, Output};
use crate::test::programs::Programs;

/// The package and the name of the test binaries, the arguments of their runs, and the names of their
/// tests that need no other libraries. Few tests run at a time: those with deadlines must not compete with ten slow ones.
/// Tests that fork run alone: a child inherits the locks that other threads hold, such as those of
/// the sanitizer, and hangs or aborts.
const SUITES: [(&str, &str, &[&str], &[&str]); 4] = [
    (
        "barewire",
        "conformance",
        &[
            "--test-threads=2",
            "--skip=::fork::",
            "--skip=::limits::",
            "--skip=::reentrancy::",
            // These wait for silence.
            "--skip=::keepalive::",
        ],
        &["self::", "shm::", "cma::", "tcp::", "rc_mlx5_soft0-soft1::"],
    ),
    (
        "barewire",
        "conformance",
        &["--test-threads=1"],
        &[
            "::fork::",
            "::limits::",
            "self::reentrancy::",
            "shm::reentrancy::",
            "tcp::reentrancy::",
            "rc_mlx5_soft0-soft1::reentrancy::",
        ],
    ),
    ("barewire", "shared_worker", &["--test-threads=1"], &["_"]),
    ("barewire-wireup", "reentrancy", &["--test-threads=1"], &["every_action"]),
];
const RUN: Duration = Duration::from_mins(15);

struct Sanitizer {
    name: &'static str,
    /// The command that runs cargo.
    cargo: (&'static str, &'static [&'static str]),
    /// Options of cargo.
    build: &'static [&'static str],
    flags: &'static str,
    /// The sanitizer's variable and options.
    options: (&'static str, &'static str),
}

const SANITIZERS: [Sanitizer; 2] = [
    Sanitizer {
        name: "address",
        cargo: ("cargo", &[]),
        build: &[],
        flags: "-Zsanitizer=address",
        // Memory that lives as long as the process is not a leak; an expected panic skips frames.
        options: ("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=1:halt_on_error=1"),
    },
    Sanitizer {
        name: "thread",
        cargo: ("rustup", &["run", "nightly", "cargo"]),
        build: &["-Zbuild-std"],
        // The driver's stores to registers and the device's copies are then atomics, which the
        // sanitizer sees, instead of volatile stores and assembly.
        flags: "-Zsanitizer=thread --cfg barewire_sanitize",
        options: ("TSAN_OPTIONS", "halt_on_error=1:second_deadlock_stack=1:die_after_fork=0"),
    },
];

/// Runs the suite under each sanitizer, or the named one. Fails at the first report.
pub(crate) fn sanitize(only: Option<&str>) -> ExitCode {
    process::watch_signals();
    let chosen =
        SANITIZERS.iter().filter(|sanitizer| only.is_none_or(|name| name == sanitizer.name));
    let (mut summary, mut passed) = (Vec::new(), true);
    for sanitizer in chosen {
        let started = Instant::now();
        let outcome = run(sanitizer);
        let took = started.elapsed().as_secs();
        passed &= outcome.is_ok();
        let outcome = match outcome {
            Ok(tests) => format!("{} tests passed without a report", tests.passed),
            Err(failure) => format!("FAILED: {failure}"),
        };
        summary.push(format!("{} sanitizer: {outcome}, in {took} s", sanitizer.name));
    }
    println!("\n{}", summary.join("\n"));
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the suite under the named sanitizer.
pub(crate) fn by(name: &str) -> Result<Tally, Failure> {
    let known = SANITIZERS.iter().find(|sanitizer| sanitizer.name == name);
    run(known.ok_or_else(|| Failure::Found(format!("no sanitizer is called {name}")))?)
}

fn run(sanitizer: &Sanitizer) -> Result<Tally, Failure> {
    let mut tests = Tally::default();
    for (package, suite, arguments, names) in SUITES {
        run_suite(sanitizer, (package, suite, arguments), names, &mut tests)?;
    }
    Ok(tests)
}

fn run_suite(
    sanitizer: &Sanitizer,
    (package, suite, arguments): (&str, &str, &[&str]),
    names: &[&str],
    tests: &mut Tally,
) -> Result<(), Failure> {
    let target = if cfg!(target_arch = "aarch64") {
        "aarch64-unknown-linux-gnu"
    } else {
        "x86_64-unknown-linux-gnu"
    };
    // With an explicit target, build scripts and macros are built without the flags.
    let (cargo, words) = sanitizer.cargo;
    let test = ["test", "--no-run", "-p", package, "--test", suite, "--target", target];
    let build = Invocation::new(cargo, words)
        .with(&test)
        .with(&["--features", "soft"])
        .with(sanitizer.build)
        .environment("RUSTC_BOOTSTRAP", "1")
        .environment("RUSTFLAGS", sanitizer.flags)
        .environment("CARGO_TARGET_DIR", &format!("target/sanitize-{}", sanitizer.name));
    let programs = Programs::by(build)?;
    let suite = programs.tests().find(|program| program.target == suite);
    let suite = suite.ok_or_else(|| Failure::Found("cargo built no suite".to_owned()))?;
    for name in names {
        let before = tests.passed;
        let run = Invocation::new(&suite.path.to_string_lossy(), &[name])
            .with(arguments)
            .environment(sanitizer.options.0, sanitizer.options.1)
            .environment("BAREWIRE_TEST_SLOW", "1");
        println!("{run}");
        let mut read = |line: &str| tests.read(line);
        process::run(&run, RUN, Output::Watch(&mut read))?;
        if tests.passed == before {
            return Err(Failure::Found(format!("no test is called {name}")));
        }
    }
    Ok(())
}
