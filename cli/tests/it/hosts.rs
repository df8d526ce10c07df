//! `barewire` on several hosts, which are namespaces of this machine.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::bench::{Bench, Printed, Setup, bench, end};
use crate::hca::installed;
use crate::support::PATIENCE;

const TWO: Setup = Setup::TWO;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_barewire"))
}

#[test]
fn ranks_on_two_hosts_or_in_two_containers_measure_and_greet() {
    for setup in [
        Setup { duplicate: true, ..TWO },
        Setup { containers: true, duplicate: true, ..TWO },
        Setup { ipv6: true, no_loopback: true, ..TWO },
        Setup { link_local: true, second: true, ..TWO },
    ] {
        let Some(bench) = bench(setup) else { return };
        bench.ranks(program(), &["perf", "-x", "tcp", "-n", "200"]);
        bench.ranks(program(), &["hello", "-t", "tcp"]);
    }
}

#[test]
fn the_demo_runs_on_a_host() {
    let Some(bench) = bench(TWO) else { return };
    let mut command = bench.command(0, program());
    command.arg("demo");
    let printed = end(command);
    assert!(printed.success, "{printed:#?}");
}

/// Two commands, the second of which is started when the first one listens at the port.
fn pair(bench: &Bench, first: Command, second: Command, port: u16) -> [Printed; 2] {
    let listens = format!(":{port:04X} ");
    let server = thread::spawn(move || end(first));
    while !server.is_finished() && !bench.connections(0).contains(&listens) {
        thread::sleep(Duration::from_millis(10));
    }
    let client = end(second);
    [server.join().unwrap(), client]
}

#[test]
fn the_doctors_of_two_hosts_test_the_paths_between_them() {
    const PORT: u16 = 13337;
    let Some(bench) = bench(Setup { duplicate: true, ..TWO }) else { return };
    let [mut server, mut client] = [0, 1].map(|host| {
        let mut command = bench.command(host, program());
        command.arg("doctor").env("BAREWIRE_HCA_ADDRESS", bench.address(host));
        command.env("BAREWIRE_HCA_KEY", "6b".repeat(32));
        command
    });
    server.args(["--listen", "-a", &bench.address(0)]);
    client.args(["--peer", &bench.address(0)]);
    let [server, client] = pair(&bench, server, client, PORT);
    assert!(client.success && server.success, "{client:#?}\n{server:#?}");
    let tested = |row: &&str| row.starts_with("peer          ok ");
    // Those of RDMA devices, and tcp.
    assert_eq!(client.stdout.lines().filter(tested).count(), 5, "{client:#?}");
}

#[test]
fn a_host_with_a_link_local_address_is_reached_by_it() {
    let Some(bench) = bench(Setup { link_local: true, ..TWO }) else { return };
    let run = |port: u16, words: [&[&str]; 2]| {
        let [server, client] = [0, 1].map(|host| {
            let mut command = bench.command(host, program());
            command.args(words[host]).args(["-p", &port.to_string()]);
            command
        });
        let [server, client] = pair(&bench, server, client, port);
        assert!(client.success && server.success, "{client:#?}\n{server:#?}");
        client.stdout
    };
    // The name of the interface may be left out.
    let (here, there) = ("fe80::9:1%eth0", "fe80::9:1");
    run(13338, [&["hello", "-t", "tcp", "-a", here], &["hello", "-t", "tcp", "-n", there]]);
    let server = ["doctor", "-d", here, "--listen", "-a", here];
    let client = ["doctor", "-d", "fe80::9:2%eth0", "--peer", here];
    let doctor = run(13339, [&server, &client]);
    let is_peer = |row: &str| row.starts_with("peer          ok ");
    assert!(doctor.lines().any(is_peer), "{doctor}");
}

#[test]
fn a_link_local_address_is_refused_by_a_host_without_one() {
    let Some(bench) = bench(TWO) else { return };
    bench.ip(1, "-6 addr flush dev eth0");
    for (address, reason) in [
        ("fe80::9:1", "no network interface of this host has a link-local address"),
        ("fe80::9:1%eth7", "no network interface is named 'eth7'"),
    ] {
        let mut command = bench.command(1, program());
        command.args(["hello", "-t", "tcp", "-n", address]);
        let printed = end(command);
        assert!(!printed.success && printed.stderr.contains(reason), "{printed:#?}");
    }
}

#[test]
fn programs_of_libibverbs_on_two_hosts_connect_over_software_hcas() {
    const PORT: u16 = 18515;
    if !installed("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    for setup in [TWO, Setup { containers: true, ..TWO }] {
        let Some(bench) = bench(setup) else { return };
        let [server, mut client] = [0, 1].map(|host| {
            let mut command = bench.command(host, program());
            command.args(["hca", "run", "--", "ibv_rc_pingpong", "-g", "0", "-n", "50", "-e"]);
            command.env("BAREWIRE_HCA_ADDRESS", bench.address(host));
            command.env("BAREWIRE_HCA_KEY", "6b".repeat(32));
            command
        });
        client.arg(bench.address(0));
        let [server, client] = pair(&bench, server, client, PORT);
        assert!(client.success && server.success, "{client:#?}\n{server:#?}");
        assert!(client.stdout.contains("50 iters in "), "{client:#?}");
    }
}

/// Runs mckey on both hosts. The receiver waits for ten datagrams, and a sender ends once it has
/// sent as many: another one is started if it was too early.
fn a_group_reaches_the_other_host(setup: Setup, group: &str) {
    if !installed("mckey", "rdmacm-utils") {
        return;
    }
    let Some(bench) = bench(setup) else { return };
    let command = |host, more: &[&str]| {
        let mut command = bench.command(host, program());
        command.args(["hca", "run", "--", "mckey", "-m", group]).args(more);
        command.env("BAREWIRE_HCA_ADDRESS", bench.address(host));
        command.env("BAREWIRE_HCA_KEY", "6b".repeat(32));
        command
    };
    let receiver = command(0, &[]);
    let receiver = thread::spawn(move || end(receiver));
    let deadline = Instant::now() + PATIENCE;
    while !receiver.is_finished() {
        let sender = end(command(1, &["-s"]));
        assert!(sender.success, "{sender:#?}");
        assert!(Instant::now() < deadline, "the receiver got too few datagrams");
    }
    let receiver = receiver.join().unwrap();
    assert!(receiver.success, "{receiver:#?}");
}

#[test]
fn datagrams_to_a_group_of_ipv4_reach_another_host() {
    a_group_reaches_the_other_host(TWO, "239.1.2.3");
}

#[test]
fn datagrams_to_a_group_of_ipv6_reach_another_host() {
    a_group_reaches_the_other_host(Setup { ipv6: true, ..TWO }, "ff0e::77");
}
