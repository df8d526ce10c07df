//! Runs Debian's UCX over these transports: `barewire uct run -- PROGRAM`.
//!
//! Programs that are not installed are skipped: `cargo xtask test` installs all of them, or lists
//! the missing ones.

use crate::hca;
use crate::support;
use crate::uct;

use std::fs;
use std::path::Path;
use std::process::Command;

use hca::{Pair, alone_by, installed};
use support::TestFile;
use uct::{Batch, FETCHES, FETCHES_OF_4, LIBUCP, MESSAGES, UCT, ZERO_COPY, cases};

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

fn perftest(transport: &str, device: &str, count: &str, tests: &[&str]) {
    if !installed("ucx_perftest", "ucx-utils") {
        return;
    }
    let batch = Batch::new(&format!("perftest-{transport}"), tests);
    let program = ["ucx_perftest", "-b", &batch.0, "-x", transport, "-d", device];
    let program = [&program[..], &["-n", count, "-w", "1"]].concat();
    Pair::of(&program).by(UCT).set("BAREWIRE_KEY", uct::KEY).run();
}

#[test]
fn perftest_over_self() {
    if !installed("ucx_perftest", "ucx-utils") {
        return;
    }
    let batch = Batch::new("self", &[&MESSAGES[..], &ZERO_COPY, &FETCHES, &FETCHES_OF_4].concat());
    let words = "-x self -d memory -n 64 -w 1 -l -b";
    let program: Vec<&str> =
        ["ucx_perftest"].into_iter().chain(words.split(' ')).chain([&*batch.0]).collect();
    alone_by(UCT, &[], &program);
}

#[test]
fn perftest_over_shm() {
    let tests = [&MESSAGES[..], &FETCHES, &FETCHES_OF_4, &["put_bw -D short -s 65536"]];
    perftest("shm", "memory", "64", &tests.concat());
}

/// Zero copies only: `cma` has nothing else.
#[test]
fn perftest_over_cma() {
    perftest("cma", "memory", "64", &ZERO_COPY[2..]);
}

#[test]
fn perftest_over_tcp() {
    let tests = [&MESSAGES[..], &ZERO_COPY, &FETCHES, &FETCHES_OF_4].concat();
    perftest("tcp", "lo", "64", &tests);
}

/// Few messages: the processes poll, and leave little of two processors to the devices' threads.
#[test]
fn perftest_over_rc_mlx5() {
    let tests = [&MESSAGES[..], &ZERO_COPY, &FETCHES, &FETCHES_OF_4].concat();
    perftest("rc_mlx5", "soft0:1", "4", &tests);
}

#[test]
fn perftest_over_dc_mlx5() {
    let tests = [&MESSAGES[..], &ZERO_COPY, &FETCHES].concat();
    perftest("dc_mlx5", "soft0:1", "4", &tests);
}

#[test]
fn perftest_over_ud_mlx5() {
    let tests = [&MESSAGES[..6], &ZERO_COPY[..2]].concat();
    perftest("ud_mlx5", "soft0:1", "4", &tests);
}

/// The tests of libucp between two processes: protocols over active messages, puts and gets.
fn libucp(transports: &str) {
    if !installed("ucx_perftest", "ucx-utils") {
        return;
    }
    let batch = Batch::new(&format!("libucp-{transports}"), &LIBUCP);
    let program = ["ucx_perftest", "-b", &batch.0, "-n", "16", "-w", "1"];
    Pair::of(&program).by(UCT).set("UCX_TLS", transports).set("BAREWIRE_KEY", uct::KEY).run();
}

cases! {
    libucp_over_shm = libucp("shm");
    libucp_over_shm_and_cma = libucp("shm,cma,self");
    libucp_over_tcp = libucp("tcp");
    libucp_over_rc_mlx5 = libucp("rc_mlx5");
    libucp_over_dc_mlx5 = libucp("dc_mlx5");
    libucp_over_ud_mlx5 = libucp("ud_mlx5");
    libucp_over_everything = libucp("all");
}

/// Devices of libibverbs are those of `barewire hca run`, in which `barewire uct run` runs.
#[cfg(feature = "verbs")]
const VERBS: (&[&str], &[&str]) =
    (&["hca", "run"], &[env!("CARGO_BIN_EXE_barewire"), "uct", "run", "--"]);

#[cfg(feature = "verbs")]
#[test]
fn libucp_over_rc_verbs() {
    if !installed("ucx_perftest", "ucx-utils") {
        return;
    }
    let batch = Batch::new("libucp-rc_verbs", &LIBUCP);
    let program = [VERBS.1, &["ucx_perftest", "-b", &batch.0, "-n", "4", "-w", "1"]].concat();
    Pair::of(&program).by(VERBS.0).set("UCX_TLS", "rc_verbs").set("BAREWIRE_KEY", uct::KEY).run();
}

#[cfg(feature = "verbs")]
#[test]
fn contents_over_rc_verbs() {
    uct::contents(DEBIAN, "rc_verbs", uct::OVER_DEVICES, VERBS);
}

#[cfg(feature = "verbs")]
#[test]
fn contents_over_ud_verbs() {
    uct::contents(DEBIAN, "ud_verbs", uct::OVER_DEVICES, VERBS);
}

const DEBIAN: uct::Version<'_> =
    uct::Version { name: "debian", headers: "/usr/include", libraries: None };

fn contents(transports: &str, largest: &str) {
    uct::contents(DEBIAN, transports, largest, (UCT, &[]));
}

cases! {
    contents_over_shm = contents("shm", uct::LARGE);
    contents_over_shm_and_cma = contents("shm,cma,self", uct::LARGE);
    contents_over_tcp = contents("tcp", uct::LARGE);
    contents_over_rc_mlx5 = contents("rc_mlx5", uct::OVER_DEVICES);
    contents_over_dc_mlx5 = contents("dc_mlx5", uct::OVER_DEVICES);
    contents_over_ud_mlx5 = contents("ud_mlx5", uct::OVER_DEVICES);
    contents_over_everything = contents("all", uct::OVER_DEVICES);
}

/// Runs `uct/hello.c`, which sends a message in each mode over connections to interfaces.
fn hello(transport: &str, device: &str, expected: &str) {
    let headers = Path::new("/usr/include/uct/api/uct.h");
    if !installed("cc", "gcc") || !headers.exists() {
        println!("skipped: no headers of UCX (Debian: libucx-dev)");
        return;
    }
    let program = TestFile::new(&format!("hello-{transport}"), 0);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/uct/hello.c");
    let arguments = ["-O1", "-Wall", "-o", program.path(), source, "-luct", "-lucs"];
    let compiled = Command::new("cc").args(arguments).output().unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    let printed = alone_by(UCT, &[], &[program.path(), transport, device]);
    assert!(printed.contains(expected), "{printed}");
}

/// A program that is linked to the library needs no LD_PRELOAD.
#[test]
fn programs_are_linked_by_pkg_config() {
    let headers = Path::new("/usr/include/uct/api/uct.h");
    if !installed("cc", "gcc") || !installed("pkg-config", "pkg-config") || !headers.exists() {
        println!("skipped: no headers of UCX (Debian: libucx-dev)");
        return;
    }
    hca::library();
    let folder = std::env::temp_dir().join(format!("barewire-uct-linked-{}", std::process::id()));
    let written = support::run(&["uct", "pkg-config", folder.to_str().unwrap()]);
    assert!(written.status.success(), "{written:?}");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/uct/hello.c");
    let program = folder.join("hello");
    let script = "cc -O1 -o \"$1\" \"$2\" $(pkg-config --cflags --libs barewire-uct)";
    let mut compiler = Command::new("sh");
    compiler.args(["-c", script, "sh"]).arg(&program).arg(source);
    let compiled = compiler.env("PKG_CONFIG_PATH", &folder).output().unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    let ran = Command::new(&program).args(["shm", "memory"]).output().unwrap();
    let printed = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && printed.contains("short: received"), "{ran:?}");
    fs::remove_dir_all(&folder).unwrap();
}

const EVERY_MODE: &str = "short: received\nbcopy: received\nzcopy: received\n";

cases! {
    hello_over_shm =
        hello("shm", "memory", "short: received\nbcopy: received\nzcopy: not supported\n");
    hello_over_tcp = hello("tcp", "lo", EVERY_MODE);
    hello_over_rc_mlx5 = hello("rc_mlx5", "soft0:1", EVERY_MODE);
    hello_over_dc_mlx5 = hello("dc_mlx5", "soft0:1", EVERY_MODE);
    hello_over_ud_mlx5 = hello("ud_mlx5", "soft0:1", EVERY_MODE);
}

/// Runs `uct/exchange.c`, whose messages libucp sends, the largest of `size` MiB.
fn mpi(ranks: &str, size: &str, options: &[&str]) {
    if !installed("mpirun", "openmpi-bin") || !installed("mpicc", "libopenmpi-dev") {
        return;
    }
    let program = TestFile::new(&format!("exchange-{ranks}-{}", options.concat()), 0);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/uct/exchange.c");
    let mut compiler = Command::new("mpicc");
    let compiled = compiler.args(["-O1", "-o", program.path(), source]).output().unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    let arguments = "mpirun --allow-run-as-root --oversubscribe --mca pml ucx --mca osc ucx \
        --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any -n";
    let words = arguments.split_whitespace();
    let command: Vec<&str> =
        words.chain([ranks]).chain(options.iter().copied()).chain([program.path(), size]).collect();
    let printed = alone_by(UCT, &[], &command);
    assert!(printed.contains("contents are right"), "{printed}");
}

cases! {
    two_ranks_of_mpi_over_shm = mpi("2", "64", &["-x", "UCX_TLS=shm,self"]);
    two_ranks_of_mpi_over_rc_mlx5 = mpi("2", "4", &["-x", "UCX_TLS=rc_mlx5"]);
    four_ranks_of_mpi_over_tcp = mpi("4", "64", &["-x", "UCX_TLS=tcp"]);
    two_ranks_of_mpi_over_everything = mpi("2", "64", &["-x", "UCX_TLS=all"]);
    four_ranks_of_mpi_over_the_default_transports = mpi("4", "64", &[]);
}

#[test]
fn the_exit_code_is_the_program_s() {
    hca::library();
    let script = "test -n \"$LD_PRELOAD\" && exit 7";
    let ended = support::run(&["uct", "run", "--", "sh", "-c", script]);
    assert_eq!(ended.status.code(), Some(7), "{ended:#?}");
}

/// A signal to the started process is one to the program.
#[test]
fn the_program_takes_the_place_of_uct_run() {
    hca::library();
    let started = support::start(&["uct", "run", "--", "sh", "-c", "echo $$"]);
    let pid = started.pid().to_string();
    let ended = started.end(support::PATIENCE);
    assert_eq!(ended.stdout.trim(), pid, "{ended:#?}");
}

/// The dynamic loader would print a warning and run the program with UCX's own transports.
#[test]
fn a_library_that_cannot_be_loaded_is_an_error() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = folder.join(format!("uct-unloadable-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join("barewire");
    fs::hard_link(env!("CARGO_BIN_EXE_barewire"), &program).unwrap();
    fs::write(folder.join("libbarewire_uct.so"), "not a library").unwrap();
    let output = Command::new(&program).args(["uct", "run", "--", "true"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("cannot load"), "{output:?}");
    fs::remove_dir_all(&folder).unwrap();
}

/// UCX's own transports have the same names.
#[test]
fn the_log_says_whose_the_transports_are() {
    if !installed("ucx_perftest", "ucx-utils") {
        return;
    }
    let words = "ucx_perftest -t tag_lat -l -n 1 -w 0";
    let program: Vec<&str> = words.split(' ').collect();
    let environment = [("UCX_LOG_LEVEL", "info"), ("UCX_TLS", "tcp,self")];
    let words = [UCT, &program].concat();
    let ended = support::start_with(&words, &environment).end(support::PATIENCE);
    assert!(ended.status.success(), "{ended:#?}");
    let named = ended.stdout.matches("the transports are those of barewire").count();
    assert_eq!(named, 1, "{ended:#?}");
    // That a device of the loopback leads nowhere else is no news.
    assert!(!ended.stdout.contains("is not reachable"), "{ended:#?}");
}
