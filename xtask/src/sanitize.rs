//! The suite built with AddressSanitizer and with ThreadSanitizer.
//!
//! The stable compiler has both behind `RUSTC_BOOTSTRAP`. The standard library stays as it is shipped, without ThreadSanitizer's marks: what it
//! does inside is not seen, and code with and without them may be linked (`unsafe-allow-abi-mismatch`).

use std::process::ExitCode;
use std::time::Duration;

use crate::closure;
use crate::process::{self, Failure, Invocation, Output};

/// Transports that are whole without other programs' libraries.
const PLACES: [&str; 5] = ["self::", "shm::", "cma::", "tcp::", "rc_mlx5_soft0"];
const BUILD: Duration = Duration::from_mins(20);
const RUN: Duration = Duration::from_mins(15);

struct Sanitizer {
    name: &'static str,
    flags: &'static str,
    /// The sanitizer's own variable, and what it is to do.
    options: (&'static str, &'static str),
}

const SANITIZERS: [Sanitizer; 2] = [
    Sanitizer {
        name: "address",
        flags: "-Zsanitizer=address",
        // Memory that lives as long as the process is no leak; a panic that a test expects jumps over frames.
        options: ("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=1:halt_on_error=1"),
    },
    Sanitizer {
        name: "thread",
        flags: "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer",
        options: ("TSAN_OPTIONS", "halt_on_error=1:second_deadlock_stack=1"),
    },
];

/// Runs the suite under each sanitizer, or under the one that is named.
pub(crate) fn sanitize(only: Option<&str>) -> ExitCode {
    process::watch_signals();
    let chosen = SANITIZERS.iter().filter(|sanitizer| only.is_none_or(|name| name == sanitizer.name));
    let mut failed = Vec::new();
    for sanitizer in chosen {
        if let Err(failure) = run(sanitizer) {
            eprintln!("xtask: {} sanitizer: {failure}", sanitizer.name);
            failed.push(sanitizer.name);
        }
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(sanitizer: &Sanitizer) -> Result<(), Failure> {
    let target =
        if cfg!(target_arch = "aarch64") { "aarch64-unknown-linux-gnu" } else { "x86_64-unknown-linux-gnu" };
    // With a target named, build scripts and macros are built without the flags.
    let build = Invocation::cargo(&[
        "test",
        "--no-run",
        "-p",
        "barewire",
        "--test",
        "conformance",
        "--target",
        target,
    ])
    .with(&["--message-format=json-render-diagnostics"])
    .environment("RUSTC_BOOTSTRAP", "1")
    .environment("RUSTFLAGS", sanitizer.flags)
    .environment("CARGO_TARGET_DIR", &format!("target/sanitize-{}", sanitizer.name));
    println!("{build}");
    let mut messages = String::new();
    process::run(&build, BUILD, Output::Collect(&mut messages))?;
    let suite = messages.lines().find_map(closure::executable_in);
    let suite = suite.ok_or_else(|| Failure::Found("cargo built no suite".to_owned()))?;
    for place in PLACES {
        // One after the other: a test of time is not to wait for ten others that are slow.
        let run = Invocation::new(suite, &[place, "--test-threads=1"]);
        let run = run.environment(sanitizer.options.0, sanitizer.options.1);
        println!("{run}");
        process::run(&run, RUN, Output::Inherit)?;
    }
    Ok(())
}
