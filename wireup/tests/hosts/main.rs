//! Programs on several hosts, which are namespaces of this machine: see `bench.rs`.

#[allow(dead_code, reason = "the tests of the program barewire use the rest")]
mod bench;
mod caller;
mod deep;
mod kills;
mod relay;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use barewire::TransportId;
use barewire_wireup::link::State;
use barewire_wireup::node::{Node, Rules};
use barewire_wireup::peers::Peers;
use barewire_wireup::tag::{Buffer, FULL_MASK, Limits, Mode, Tags};

use bench::{Bench, Printed, Setup, bench};

/// In the ranks that the tests start.
const ROLE: &str = "--exact";
const TIMEOUT: Duration = Duration::from_mins(1);
const LENGTH: usize = 50_000_000;
const TWO: Setup = Setup::TWO;

fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(|deps| deps.parent()).unwrap();
    folder.join("examples").join(name)
}

fn check(bench: &Bench, name: &str, ending: &str) -> Vec<Printed> {
    let ended = bench.ranks(&example(name), &[]);
    for (rank, printed) in ended.iter().enumerate() {
        let size = ended.len();
        assert_eq!(printed.stdout, format!("rank {rank} of {size}: {ending}\n"), "{ended:#?}");
    }
    ended
}

fn halo_exchange(bench: &Bench) -> Vec<Printed> {
    check(bench, "halo_exchange", "200 steps are equal to a serial run")
}

/// Sends 50 MB in each direction, and prints the lanes; nothing unless it is a rank.
#[test]
fn a_rank_that_sends_50_mb() {
    if std::env::var_os("RANK").is_none() || !std::env::args().any(|word| word == ROLE) {
        return;
    }
    let mut job = barewire_bootstrap::detect().unwrap();
    let mut node = Node::open(&Rules::default()).unwrap();
    let tags = Tags::over(&mut node, Limits::default()).unwrap();
    let peers = Peers::exchange(&mut node, &mut *job, TIMEOUT).unwrap();
    let other = 1 - peers.rank();
    let link = peers.link(&mut node, other).unwrap();
    let of = |rank: u32| -> Vec<u8> {
        (0..LENGTH).map(|at| (at.wrapping_mul(0x9e37) >> 7) as u8 ^ rank as u8).collect()
    };
    assert!(node.until(TIMEOUT, || link.state() == State::Connected), "{:?}", link.error());
    let target = Buffer::new(LENGTH).unwrap();
    let receive = tags.receive(1, FULL_MASK, &target);
    let send = tags.send(&tags.link(&link).unwrap(), 1, &of(peers.rank())[..], Mode::Auto);
    let start = Instant::now();
    while receive.poll().is_none() || send.poll().is_none() {
        tags.progress(&mut node);
        assert!(start.elapsed() < TIMEOUT, "{receive:?} {send:?} {:?}", link.error());
    }
    assert!(receive.poll().unwrap().is_ok() && send.poll().unwrap().is_ok());
    assert!(target.to_vec() == of(other), "wrong bytes");
    assert!(link.lanes().iter().all(|info| info.lane().transport == TransportId::Tcp), "{link:?}");
    peers.fence(&mut node, &mut *job, TIMEOUT).unwrap();
}

fn fifty_megabytes(bench: &Bench) {
    let test = std::env::current_exe().unwrap();
    bench.ranks(&test, &[ROLE, "a_rank_that_sends_50_mb", "--nocapture"]);
}

#[test]
fn two_hosts_and_two_containers_use_the_network_between_them() {
    for containers in [false, true] {
        let Some(bench) = bench(Setup { containers, ..TWO }) else { return };
        halo_exchange(&bench);
        check(&bench, "allreduce", "the sums of 10000 elements are right");
        fifty_megabytes(&bench);
    }
}

/// Two ranks on each host, of which some reach the counter over shared memory as well.
#[test]
fn a_counter_is_shared_by_the_ranks_of_two_hosts() {
    let Some(bench) = bench(TWO) else { return };
    let ranks: Vec<_> = (0..4)
        .map(|rank| {
            let mut command = bench.rank(rank / 2, &example("shared_counter"), &[]);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", "4");
            thread::spawn(move || bench::end(command))
        })
        .collect();
    let ended: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    assert!(ended.iter().all(|printed| printed.success), "{ended:#?}");
    assert!(ended[0].stdout.ends_with("the counter is 4000\n"), "{ended:#?}");
}

#[test]
fn an_address_that_both_hosts_have_is_no_way_from_one_to_the_other() {
    let Some(bench) = bench(Setup { duplicate: true, down: true, ..TWO }) else { return };
    halo_exchange(&bench);
    fifty_megabytes(&bench);
}

#[test]
fn a_network_that_loses_every_packet_is_left_for_another_with_a_warning() {
    leaves_the_lost_network(Setup { lost: true, ..TWO }, ["10.8.0.", "10.9.0."]);
}

#[test]
fn link_local_addresses_of_two_links_are_tried_until_one_connects() {
    leaves_the_lost_network(
        Setup { link_local: true, lost: true, ..TWO },
        ["fe80::8:", "fe80::9:"],
    );
}

fn leaves_the_lost_network(setup: Setup, [lost, used]: [&str; 2]) {
    let Some(bench) = bench(setup) else { return };
    let ended = halo_exchange(&bench);
    let warnings: String = ended.iter().map(|printed| printed.stderr.as_str()).collect();
    assert!(warnings.contains(lost) && warnings.contains(used), "{ended:#?}");
}

#[test]
fn hosts_need_neither_ipv4_nor_a_loopback() {
    for setup in [
        Setup { ipv6: true, ..TWO },
        Setup { no_loopback: true, ..TWO },
        Setup { ipv6: true, no_loopback: true, ..TWO },
        Setup { mtu: Some(600), ..TWO },
    ] {
        let Some(bench) = bench(setup) else { return };
        halo_exchange(&bench);
    }
}

#[test]
fn hosts_with_link_local_addresses_alone_use_the_link_between_them() {
    let Some(one) = bench(Setup { link_local: true, ..TWO }) else { return };
    fifty_megabytes(&one);
    drop(one);
    // The address of the peer on one link is this host's own on the other one.
    let setup = Setup { link_local: true, second: true, no_loopback: true, ..TWO };
    if let Some(bench) = bench(setup) {
        halo_exchange(&bench);
    }
}

/// Connects over `eth1` to the other rank, which cannot be reached there, and prints why; nothing
/// unless it is a rank.
#[test]
fn a_rank_that_is_not_reached_over_eth1() {
    if std::env::var_os("RANK").is_none() || !std::env::args().any(|word| word == ROLE) {
        return;
    }
    let mut job = barewire_bootstrap::detect().unwrap();
    let mut node = Node::open(&Rules::default().only(["eth1"])).unwrap();
    let peers = Peers::exchange(&mut node, &mut *job, TIMEOUT).unwrap();
    let error = peers.connect(&mut node, 1 - peers.rank(), TIMEOUT).unwrap_err();
    println!("{error}");
    job.fence(TIMEOUT).unwrap();
}

#[test]
fn hosts_without_an_interface_in_common_are_told_that_one_address_is_link_local() {
    let Some(bench) = bench(Setup { second: true, ..TWO }) else { return };
    for (host, address) in ["fe80::9:1", "fd00:10::2"].into_iter().enumerate() {
        bench.ip(host, "addr flush dev eth1");
        bench.ip(host, &format!("addr add {address}/64 dev eth1 nodad"));
    }
    let test = std::env::current_exe().unwrap();
    for printed in
        bench.ranks(&test, &[ROLE, "a_rank_that_is_not_reached_over_eth1", "--nocapture"])
    {
        let text = "one of the addresses is link-local, and the other is not";
        assert!(printed.stdout.contains(text), "{printed:#?}");
    }
}

#[test]
fn a_network_that_loses_some_packets_delays_them_only() {
    let setup = Setup { qdisc: Some("netem loss 2% delay 1ms"), ..TWO };
    let Some(bench) = bench(setup) else { return };
    halo_exchange(&bench);
}

#[test]
fn mpirun_starts_ranks_on_two_hosts() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        return eprintln!("not run: mpirun is not installed (Debian: openmpi-bin)");
    }
    let Some(bench) = bench(Setup { duplicate: true, ..TWO }) else { return };
    let program = example("halo_exchange");
    let printed = bench.mpirun(&[], &[], &[program.to_str().unwrap()]);
    let ending = "of 4: 200 steps are equal to a serial run";
    assert!(printed.success, "{printed:#?}");
    assert_eq!(printed.stdout.lines().filter(|line| line.ends_with(ending)).count(), 4);
}

/// Connects to the other rank, and returns when the link to it has ended; nothing unless it is a
/// rank.
#[test]
fn a_rank_that_watches_the_other() {
    if std::env::var_os("RANK").is_none() || !std::env::args().any(|word| word == ROLE) {
        return;
    }
    let mut job = barewire_bootstrap::detect().unwrap();
    let mut node = Node::open(&Rules::default().liveness(Duration::from_secs(1))).unwrap();
    let peers = Peers::exchange(&mut node, &mut *job, TIMEOUT).unwrap();
    let link = peers.connect(&mut node, 1 - peers.rank(), TIMEOUT).unwrap();
    println!("\nconnected");
    let begun = Instant::now();
    while link.state() == State::Connected {
        node.wait(Some(TIMEOUT)).unwrap();
        assert!(begun.elapsed() < TIMEOUT, "{link:?}");
    }
    println!("\nended: {}", link.error().unwrap());
}

#[test]
fn a_link_to_a_host_that_vanishes_ends_within_ten_seconds() {
    let Some(mut bench) = bench(TWO) else { return };
    let test = std::env::current_exe().unwrap();
    let words = [ROLE, "a_rank_that_watches_the_other", "--nocapture"];
    let mut ranks: Vec<_> =
        (0..2).map(|rank| bench.rank(rank, &test, &words).spawn().unwrap()).collect();
    let mut lines: Vec<_> =
        ranks.iter_mut().map(|rank| BufReader::new(rank.stdout.take().unwrap()).lines()).collect();
    for lines in &mut lines {
        assert!(lines.any(|line| line.unwrap() == "connected"), "{bench:?}");
    }
    bench.lose(1);
    let begun = Instant::now();
    let end = lines[0].find_map(|line| line.unwrap().strip_prefix("ended: ").map(str::to_owned));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(end.is_some());
    for mut rank in ranks {
        rank.wait().unwrap();
    }
}

#[test]
fn four_hosts_find_each_other() {
    let Some(bench) = bench(Setup { hosts: 4, duplicate: true, ..TWO }) else { return };
    halo_exchange(&bench);
    check(&bench, "allreduce", "the sums of 10000 elements are right");
}
