//! `barewire` on several hosts, which are namespaces of this machine.

use std::path::Path;

use crate::bench::{Setup, bench, end};

const TWO: Setup = Setup {
    hosts: 2,
    containers: false,
    ipv6: false,
    no_loopback: false,
    duplicate: false,
    lost: false,
    down: false,
    mtu: None,
    netem: None,
};

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_barewire"))
}

#[test]
fn ranks_on_two_hosts_or_in_two_containers_measure_and_greet() {
    for setup in [
        Setup { duplicate: true, ..TWO },
        Setup { containers: true, duplicate: true, ..TWO },
        Setup { ipv6: true, no_loopback: true, ..TWO },
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
