//! Runs a newer UCX than Debian's over these transports: that of the Python package which
//! `cargo xtask test` and `cargo xtask compare shm` install in the target folder. Without it, the
//! tests are skipped.

use crate::hca;
use crate::uct;

use std::path::Path;

use hca::{Pair, alone_by};
use uct::{Batch, FETCHES, FETCHES_OF_4, KEY, LIBUCP, MESSAGES, UCT, ZERO_COPY, cases};

/// The programs and libraries of the package.
struct Ucx {
    programs: String,
    libraries: String,
    headers: String,
}

/// `None` if it is not there, with the reason on standard output.
fn newer() -> Option<Ucx> {
    let profile = Path::new(env!("CARGO_BIN_EXE_barewire")).parent().unwrap();
    let folder = profile.parent().unwrap().join("ucx-1.22/libucx");
    if !folder.join("bin/ucx_perftest").exists() {
        println!("skipped: no {} (cargo xtask compare shm installs it)", folder.display());
        return None;
    }
    hca::library();
    let path = |part| folder.join(part).to_str().unwrap().to_owned();
    Some(Ucx { programs: path("bin"), libraries: path("lib"), headers: path("include") })
}

#[test]
fn info_shows_the_transports() {
    let Some(ucx) = newer() else { return };
    let (program, libraries) =
        (format!("{}/ucx_info", ucx.programs), format!("LD_LIBRARY_PATH={}", ucx.libraries));
    let shown = alone_by(UCT, &[], &["env", &libraries, &program, "-d"]);
    for words in [
        "Transport: self",
        "Transport: shm",
        "Transport: cma",
        "Transport: tcp",
        "Transport: rc_mlx5",
        "remote key: ",
        "memory types: host (access,reg,cache)",
        "memory types: host (access,alloc)",
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

/// Runs a batch of `ucx_perftest` between two processes.
fn perftest(name: &str, transports: &str, options: &[&str], tests: &[&str]) {
    let Some(ucx) = newer() else { return };
    let (program, batch) = (format!("{}/ucx_perftest", ucx.programs), Batch::new(name, tests));
    let program = [&[&*program, "-b", &batch.0, "-w", "1"], options].concat();
    Pair::of(&program)
        .by(UCT)
        .set("LD_LIBRARY_PATH", &ucx.libraries)
        .set("UCX_TLS", transports)
        .set("BAREWIRE_KEY", KEY)
        .run();
}

fn uct(transport: &str, device: &str, count: &str, tests: &[&str]) {
    let name = format!("newer-{transport}");
    perftest(&name, transport, &["-x", transport, "-d", device, "-n", count], tests);
}

fn libucp(transports: &str) {
    perftest(&format!("newer-libucp-{transports}"), transports, &["-n", "16"], &LIBUCP);
}

cases! {
    uct_over_shm = uct("shm", "memory", "64", &[&MESSAGES[..], &FETCHES, &FETCHES_OF_4].concat());
    uct_over_tcp =
        uct("tcp", "lo", "64", &[&MESSAGES[..], &ZERO_COPY, &FETCHES, &FETCHES_OF_4].concat());
}

/// Few messages, as over Debian's UCX.
#[test]
fn uct_over_rc_mlx5() {
    uct("rc_mlx5", "soft0:1", "4", &[&MESSAGES[..], &ZERO_COPY, &FETCHES, &FETCHES_OF_4].concat());
}

#[test]
fn uct_over_ud_mlx5() {
    uct("ud_mlx5", "soft0:1", "4", &[&MESSAGES[..6], &ZERO_COPY[..2]].concat());
}

#[test]
fn uct_over_self() {
    let Some(ucx) = newer() else { return };
    let tests = [&MESSAGES[..], &ZERO_COPY, &FETCHES, &FETCHES_OF_4].concat();
    let (program, batch) =
        (format!("{}/ucx_perftest", ucx.programs), Batch::new("newer-self", &tests));
    let libraries = format!("LD_LIBRARY_PATH={}", ucx.libraries);
    let words = "-x self -d memory -n 64 -w 1 -l -b";
    let program: Vec<&str> = ["env", &libraries, &program]
        .into_iter()
        .chain(words.split(' '))
        .chain([&*batch.0])
        .collect();
    alone_by(UCT, &[], &program);
}

cases! {
    libucp_over_shm = libucp("shm");
    libucp_over_tcp = libucp("tcp");
    libucp_over_rc_mlx5 = libucp("rc_mlx5");
    libucp_over_dc_mlx5 = libucp("dc_mlx5");
    libucp_over_ud_mlx5 = libucp("ud_mlx5");
    libucp_over_everything = libucp("all");
}

fn contents(transports: &str, largest: &str) {
    let Some(ucx) = newer() else { return };
    let libraries = Some(&*ucx.libraries);
    let version = uct::Version { name: "newer", headers: &ucx.headers, libraries };
    uct::contents(version, transports, largest, (UCT, &[]));
}

cases! {
    contents_over_shm_and_cma = contents("shm,cma,self", uct::LARGE);
    contents_over_tcp = contents("tcp", uct::LARGE);
    contents_over_rc_mlx5 = contents("rc_mlx5", uct::OVER_DEVICES);
}
