//! Runs Debian's UCX over these transports: `barewire uct run -- PROGRAM`.
//!
//! Programs that are not installed are skipped: `cargo xtask test` installs all of them, or lists
//! the missing ones.

mod support;

#[path = "hca/mod.rs"]
mod hca;

use std::fs;

use hca::{Pair, alone_by, installed};

const UCT: &[&str] = &["uct", "run"];

#[test]
fn info_shows_the_transports() {
    if !installed("ucx_info", "ucx-utils") {
        return;
    }
    let shown = alone_by(UCT, &[], &["ucx_info", "-d"]);
    for words in [
        "Transport: self",
        "Transport: shm",
        "Transport: cma",
        "Transport: tcp",
        "Device: lo",
        "Transport: rc_mlx5",
        "Device: soft0:1",
        "put_zcopy: unlimited, up to 16 iov",
        "connection: to iface",
        "connection: to ep",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    for words in ["posix", "sysv"] {
        assert!(!shown.contains(words), "{words}: {shown}");
    }
}

/// One pair runs all tests: a line of the batch is a name and options of `ucx_perftest`. A test that
/// is not supported ends the program with an error.
fn perftest(transport: &str, device: &str, count: &str, tests: &[&str]) {
    if !installed("ucx_perftest", "ucx-utils") {
        return;
    }
    let key = "5a".repeat(32);
    let batch =
        std::env::temp_dir().join(format!("barewire-uct-{transport}-{}.txt", std::process::id()));
    let lines: String = tests.iter().flat_map(|test| [*test, " -t ", *test, "\n"]).collect();
    fs::write(&batch, lines).unwrap();
    let batch_path = batch.to_str().unwrap();
    let program = ["ucx_perftest", "-b", batch_path, "-x", transport, "-d", device];
    let program = [&program[..], &["-n", count, "-w", "1"]].concat();
    Pair::of(&program).by(UCT).set("BAREWIRE_KEY", &key).run();
    fs::remove_file(&batch).unwrap();
}

const MESSAGES: [&str; 6] = [
    "am_lat -D short -s 8",
    "am_bw -D short -s 1024",
    "am_lat -D shortiov -s 8,16,32",
    "am_bw -D bcopy -s 8000",
    "put_lat -D short -s 8",
    "put_bw -D bcopy -s 2048",
];

#[test]
fn perftest_over_shm() {
    let atomics = ["add_mr -s 4", "add_mr -s 8", "put_bw -D short -s 65536"];
    perftest("shm", "memory", "64", &[&MESSAGES[..], &atomics].concat());
}

const ZERO_COPY: [&str; 7] = [
    "am_lat -D zcopy -s 2048",
    "am_bw -D zcopy -s 2048,64 -O 4",
    "put_lat -D zcopy -s 65536",
    "put_bw -D zcopy -s 1024,2048,512 -O 4",
    "get -D zcopy -s 65536 -O 4",
    "add_mr -s 4",
    "add_mr -s 8",
];

#[test]
fn perftest_over_tcp() {
    perftest("tcp", "lo", "64", &[&MESSAGES[..], &ZERO_COPY].concat());
}

/// Few messages: the processes poll, and leave little of two processors to the devices' threads.
#[test]
fn perftest_over_rc_mlx5() {
    let tests = [
        "am_bw -D short -s 8",
        "am_bw -D zcopy -s 2048 -O 2",
        "put_lat -D short -s 64",
        "put_bw -D zcopy -s 1024,2048 -O 2",
        "get -D zcopy -s 65536 -O 2",
        "add_mr -s 8",
    ];
    perftest("rc_mlx5", "soft0:1", "4", &tests);
}

#[test]
fn the_exit_code_is_the_program_s() {
    hca::library();
    let script = "test -n \"$LD_PRELOAD\" && exit 7";
    let ended = support::run(&["uct", "run", "--", "sh", "-c", script]);
    assert_eq!(ended.status.code(), Some(7), "{ended:#?}");
}
