//! Miri: interprets tests that use plain memory only, and reports undefined behaviour.
//!
//! The aliasing rules are Stacked Borrows, which are Miri's default and the stricter ones. Tests
//! that take minutes under Miri are ignored or skipped.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use crate::count::Tally;
use crate::packages::Install;
use crate::process::{self, Failure, Invocation, Output};

/// Miri's flags and the arguments of `cargo miri test`.
type Run = (&'static str, &'static [&'static str]);

/// The runs. Miri uses one processor, so the lists are run at the same time.
const RUNS: [&[Run]; 2] = [
    &[("", QUEUES), ("", DRIVER)],
    &[
        ("", BYTES),
        ("", REQUESTS),
        ("", &["-p", "barewire", "--test=self_transport"]),
        // The tests leave keys to registered memory, which is leaked because the device may still
        // access it.
        ("-Zmiri-ignore-leaks", DEVICE),
    ],
];

/// The deadline of all runs.
const DEADLINE: Duration = Duration::from_mins(20);

const BYTES: &[&str] = &["-p", "barewire-layouts", "-p", "barewire-shared-bytes", "--lib"];

/// Everything on plain memory. Skipped tests open a device, read files or take long.
const QUEUES: &[&str] = &[
    "-p",
    "barewire-mlx5",
    "--test=it",
    "--",
    "completion::",
    "receive::",
    "mistakes::",
    "golden::",
    "overrun::",
    "--skip=device",
    "--skip=file",
    "--skip=libmlx5",
    "--skip=contexts",
    "--skip=mistake_03",
    "--skip=mistake_09",
    "--skip=mistake_10",
    "--skip=mistake_11",
];

const DRIVER: &[&str] = &[
    "-p",
    "barewire-mlx5",
    "--lib",
    "--",
    "--skip=device",
    "--skip=file",
    "--skip=libmlx5",
    "--skip=contexts",
];

/// Tests of all transports. Skipped tests take long, or forget the payloads of later panics as
/// intended, which Miri reports as leaks.
const REQUESTS: &[&str] = &[
    "-p",
    "barewire",
    "--features=soft",
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

/// Returns the command of a run, with a separate target folder.
fn command((flags, arguments): &Run) -> Invocation {
    let command = nightly(&["test"]).with(arguments);
    command.environment("CARGO_TARGET_DIR", "target/miri").environment("MIRIFLAGS", flags)
}

/// `cargo xtask miri`
pub(crate) fn miri() -> ExitCode {
    process::watch_signals();
    match prepare(Install::Missing).map_err(Failure::Found).and_then(|()| check(DEADLINE)) {
        Ok(tests) => {
            println!("Miri: {} tests passed", tests.passed);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("xtask: Miri: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Interprets all tests, and returns how many passed.
///
/// # Errors
/// A test failed, a run had no test, or `deadline` passed.
pub(crate) fn check(deadline: Duration) -> Result<Tally, Failure> {
    let begun = Instant::now();
    let one_after_the_other = |runs: &[Run]| {
        let mut tests = Tally::default();
        for run in runs {
            tests.add(interpret(run, deadline.saturating_sub(begun.elapsed()))?);
        }
        Ok(tests)
    };
    thread::scope(|scope| {
        let lists = RUNS.map(|runs| scope.spawn(move || one_after_the_other(runs)));
        let mut tests = Tally::default();
        for list in lists {
            tests.add(list.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(tests)
    })
}

/// Interprets the tests that take seconds: those of layouts and of copies to shared memory.
///
/// # Errors
/// As [`check`].
pub(crate) fn cheap(deadline: Duration) -> Result<Tally, Failure> {
    interpret(&("", BYTES), deadline)
}

/// Interprets the tests of one run.
fn interpret(run: &Run, deadline: Duration) -> Result<Tally, Failure> {
    let command = command(run);
    println!("{command}");
    let mut tests = Tally::default();
    let mut read = |line: &str| tests.read(line);
    process::run(&command, deadline, Output::Watch(&mut read))?;
    match tests.passed {
        0 => Err(Failure::Found(format!("no test ran: {command}"))),
        _ => Ok(tests),
    }
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
