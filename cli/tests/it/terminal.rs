//! The output on a terminal of 80 columns.

use crate::support;

use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::ptr::{null, null_mut};
use std::thread;

const COLUMNS: u16 = 80;

/// A new terminal: the end of the user, and that of a program.
fn terminal() -> (File, OwnedFd) {
    let (mut user, mut program) = (-1, -1);
    let size = libc::winsize { ws_row: 24, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the two numbers and the size are valid for the call; no name is written, and without
    // settings the terminal gets the defaults.
    let opened = unsafe {
        libc::openpty(&raw mut user, &raw mut program, null_mut(), null(), &raw const size)
    };
    assert_eq!(opened, 0, "a terminal: {}", std::io::Error::last_os_error());
    // SAFETY: the call has returned two new descriptors, which nothing else owns.
    unsafe { (File::from_raw_fd(user), OwnedFd::from_raw_fd(program)) }
}

/// What a command prints on such a terminal.
fn printed(arguments: &[&str]) -> String {
    let (mut user, program) = terminal();
    let reader = thread::spawn(move || {
        let (mut text, mut part) = (Vec::new(), [0; 4096]);
        // When the last program has closed its end, reading fails.
        while let Ok(count @ 1..) = user.read(&mut part) {
            text.extend_from_slice(&part[..count]);
        }
        String::from_utf8_lossy(&text).replace('\r', "")
    });
    let mut command = Command::new("timeout");
    command
        .args([&support::PATIENCE.as_secs().to_string(), env!("CARGO_BIN_EXE_barewire")])
        .args(arguments)
        .env_remove("COLUMNS")
        .env("BAREWIRE_KEY", "07".repeat(32))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .stdout(program);
    let status = command.status().expect("it runs");
    // Closes the end that the command holds.
    drop(command);
    let text = reader.join().expect("the terminal is read");
    assert!(status.success(), "{arguments:?}: {status}: {text}");
    text
}

#[test]
fn a_variable_limits_lines_that_are_read_by_a_program() {
    let output = Command::new(env!("CARGO_BIN_EXE_barewire"))
        .args(["info", "--config"])
        .env("COLUMNS", "60")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // The first line is fixed.
    let widest = text.lines().skip(1).filter(|line| line.starts_with("# ")).map(str::len).max();
    assert!((50..=60).contains(&widest.unwrap()), "{widest:?}: {text}");
}

#[test]
fn lines_are_not_longer_than_a_terminal_is_wide() {
    let commands: &[&[&str]] = &[
        &["info"],
        &["info", "-v"],
        &["info", "--explain"],
        &["info", "--config"],
        &["plan"],
        &["doctor", "-d", "memory"],
        &["demo", "-d", "soft0", "Cargo.toml"],
        &["perf", "-x", "self", "-n", "100", "-I"],
        &["perf", "-x", "self", "-t", "put_bw", "--sweep", "8:64", "-n", "100"],
        &["help", "demo"],
        &["help", "doctor"],
        &["help", "info"],
        &["help", "plan"],
    ];
    for arguments in commands {
        let text = printed(arguments);
        // The first line of a plan is an address: one word, to be copied.
        for line in text.lines().skip(usize::from(*arguments == ["plan"])) {
            let width = line.chars().count();
            assert!(width <= COLUMNS.into(), "{arguments:?}: {width} columns: {line}\n{text}");
        }
    }
}
