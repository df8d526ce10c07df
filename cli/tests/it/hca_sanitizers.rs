//! Programs with sanitizers, and under valgrind, on the software HCA: neither reports anything of
//! the library, and no setting is needed.

use crate::hca::{self, installed};
use crate::support::{self, Ended, PATIENCE, TestFile};
use std::process::Command;

/// Compiles `hca/transfer.c` with these options; `None` if something is missing.
fn transfer(options: &[&str]) -> Option<TestFile> {
    let header = ("infiniband/verbs.h", "libibverbs-dev");
    hca::compiled("transfer", header, &[&["-g", "-Wextra", "-libverbs"], options].concat())
}

/// The same with a sanitizer, whose runtime is a library of the compiler.
fn sanitized(option: &str, runtime: &str) -> Option<TestFile> {
    let name = format!("-print-file-name={runtime}");
    let found = Command::new("cc").arg(name).output().ok()?.stdout;
    // Without the library, the compiler prints its name only.
    if !String::from_utf8_lossy(&found).starts_with('/') {
        hca::skipped(runtime, "libgcc-12-dev, or that of your compiler");
        return None;
    }
    transfer(&[option])
}

/// Packets are datagrams, which the device's thread sends by system calls, which sanitizers see.
const DATAGRAMS: (&str, &str) = ("BAREWIRE_HCA_WIRE", "udp");

/// Runs a program between two devices.
fn between_two(program: &[&str], environment: &[(&str, &str)]) -> Ended {
    let words = [&["hca", "run", "--devices", "2", "--"], program].concat();
    support::start_with(&words, environment).end(PATIENCE)
}

/// The same over datagrams.
fn run(program: &[&str], environment: &[(&str, &str)]) -> Ended {
    between_two(program, &[&[DATAGRAMS], environment].concat())
}

#[test]
fn a_program_with_address_sanitizer_starts_and_nothing_is_reported() {
    let Some(program) = sanitized("-fsanitize=address", "libasan.so") else { return };
    // Options of the user do not prevent it.
    for environment in [&[][..], &[("ASAN_OPTIONS", "detect_stack_use_after_return=1")]] {
        let ended = run(&[program.path()], environment);
        assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:#?}");
    }
}

#[test]
fn thread_sanitizer_reports_nothing_of_the_library() {
    let Some(program) = sanitized("-fsanitize=thread", "libtsan.so") else { return };
    let ended = run(&[program.path()], &[]);
    if ended.stderr.contains("unexpected memory mapping") {
        println!("skipped: ThreadSanitizer does not run on this kernel");
        return;
    }
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:#?}");
}

#[test]
fn valgrind_reports_nothing() {
    if !installed("valgrind", "valgrind") {
        return;
    }
    let Some(program) = transfer(&[]) else { return };
    let valgrind = ["valgrind", "--quiet", "--error-exitcode=9", "--leak-check=full"];
    // By default, packets go through shared memory.
    for environment in [&[][..], &[DATAGRAMS]] {
        let ended = between_two(&[&valgrind[..], &[program.path()]].concat(), environment);
        assert!(ended.status.success(), "{ended:#?}");
    }
    // Options of the user are kept.
    let own = [("VALGRIND_OPTS", "--error-exitcode=7 --errors-for-leak-kinds=reachable")];
    let ended = run(&["valgrind", "--quiet", "--leak-check=full", program.path()], &own);
    assert_eq!(ended.status.code(), Some(7), "{ended:#?}");
}
