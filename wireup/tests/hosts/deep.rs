//! What takes too long for every change: networks and hosts that come, go and come again.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::bench::{Running, Setup, bench};
use crate::caller::caller;
use crate::relay::{Faults, Relay};
use crate::{TWO, check, example, fifty_megabytes, halo_exchange};

/// How long a node may take to notice that another does not respond any more.
const PROMISE: Duration = Duration::from_secs(10);

fn await_loss(nodes: &[Running], line: &str) {
    let begun = Instant::now();
    await_all(nodes, line);
    let logs = || nodes.iter().map(Running::log).collect::<Vec<_>>().join("\n--\n");
    assert!(begun.elapsed() < PROMISE, "'{line}' took {:?}\n{}", begun.elapsed(), logs());
}

/// Each call has a deadline of 10 s, and the first ones may go to a network that is down.
fn await_all(nodes: &[Running], line: &str) {
    for node in nodes {
        node.await_line(line);
    }
}

#[test]
#[ignore = "of the deep tier"]
fn nodes_go_on_over_the_network_that_is_left_and_over_one_that_comes_again() {
    let Some(bench) = bench(Setup { second: true, ..TWO }) else { return };
    let nodes = [0, 1].map(|host| caller(&bench, host, 2, &["10.9.0", "10.10.0"]));
    await_all(&nodes, "there: 1");
    for (pulled, plugged) in [("eth0", "eth1"), ("eth1", "eth0"), ("eth0", "eth1")] {
        bench.plug(1, plugged, true);
        bench.plug(1, pulled, false);
        await_loss(&nodes, "there: 0");
        await_all(&nodes, "there: 1");
    }
    nodes.into_iter().for_each(Running::stop);
}

#[test]
#[ignore = "of the deep tier"]
fn an_interface_of_a_host_that_is_set_down_and_up_again_is_used_again() {
    let Some(bench) = bench(TWO) else { return };
    let nodes = [0, 1].map(|host| caller(&bench, host, 2, &["10.9.0"]));
    await_all(&nodes, "there: 1");
    for _ in 0..2 {
        bench.ip(1, "link set eth0 down");
        await_loss(&nodes, "there: 0");
        bench.ip(1, "link set eth0 up");
        await_all(&nodes, "there: 1");
    }
    nodes.into_iter().for_each(Running::stop);
}

#[test]
#[ignore = "of the deep tier"]
fn four_hosts_are_restarted_one_by_one() {
    let Some(mut bench) = bench(Setup { hosts: 4, ..TWO }) else { return };
    let mut nodes: Vec<_> = (0..4).map(|host| caller(&bench, host, 4, &["10.9.0"])).collect();
    await_all(&nodes, "there: 3");
    for host in 0..4 {
        let mut others = nodes.split_off(host);
        drop(others.remove(0));
        nodes.append(&mut others);
        bench.restart(host);
        await_loss(&nodes, "there: 2");
        nodes.insert(host, caller(&bench, host, 4, &["10.9.0"]));
        await_all(&nodes, "there: 3");
    }
    nodes.into_iter().for_each(Running::stop);
}

#[test]
#[ignore = "of the deep tier"]
fn a_network_that_loses_and_delays_frames_delays_messages_only() {
    let Some(bench) = bench(TWO) else { return };
    let faults = Faults { loss: 10, delay: Duration::from_millis(2) };
    let _relay = match Relay::new(&bench, 0, faults) {
        Ok(relay) => relay,
        Err(reason) => return eprintln!("not run: {reason}"),
    };
    halo_exchange(&bench);
    check(&bench, "allreduce", "the sums of 10000 elements are right");
}

#[test]
#[ignore = "of the deep tier"]
fn a_slow_network_delays_messages_only() {
    // 50 MB in each direction take 4 s.
    let setup = Setup { qdisc: Some("tbf rate 100mbit burst 64kb latency 50ms"), ..TWO };
    let Some(bench) = bench(setup) else { return };
    halo_exchange(&bench);
    fifty_megabytes(&bench);
}

#[test]
#[ignore = "of the deep tier"]
fn clocks_of_hosts_have_nothing_in_common() {
    let Some(bench) = bench(Setup { clocks: true, ..TWO }) else { return };
    halo_exchange(&bench);
    fifty_megabytes(&bench);
    let nodes = [0, 1].map(|host| caller(&bench, host, 2, &["10.9.0"]));
    await_all(&nodes, "there: 1");
    bench.plug(1, "eth0", false);
    await_loss(&nodes, "there: 0");
    nodes.into_iter().for_each(Running::stop);
}

/// A library to preload, whose wall clock steps after every fourth reading and is up to a day fast or
/// slow. Linux has no namespaces for the wall clock.
const JUMPING_CLOCK: &str = r"
#define _GNU_SOURCE
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>
#include <sys/time.h>
static _Atomic unsigned calls;
int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME)
        time->tv_sec += ((calls++ >> 2) * 40503u % 172801u) - 86400;
    return result;
}
int gettimeofday(struct timeval *time, void *zone) {
    struct timespec now;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return result;
}
time_t time(time_t *stored) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (stored) *stored = now.tv_sec;
    return now.tv_sec;
}
";

/// Builds the library that has the wall clock jump.
fn jumping_clock() -> Option<PathBuf> {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let name = format!("jumping-clock-{}", std::process::id());
    let (source, library) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.so")));
    std::fs::write(&source, JUMPING_CLOCK).unwrap();
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-O1", "-o"]).args([&library, &source]);
    let built = compile.status().is_ok_and(|status| status.success());
    let _ = std::fs::remove_file(source);
    built.then_some(library)
}

/// Nothing unless it is started with the clock that jumps.
#[test]
fn a_process_whose_wall_clock_jumps() {
    if std::env::var_os("LD_PRELOAD").is_none() || !std::env::args().any(|word| word == crate::ROLE)
    {
        return;
    }
    let times: Vec<_> = (0..40).map(|_| std::time::SystemTime::now()).collect();
    assert!(times.windows(2).any(|pair| pair[0] > pair[1] + Duration::from_hours(1)), "{times:?}");
}

#[test]
#[ignore = "of the deep tier"]
fn steps_of_the_wall_clock_are_not_noticed() {
    let Some(bench) = bench(TWO) else { return };
    let Some(library) = jumping_clock() else {
        return eprintln!("not run: cc does not build a library");
    };
    let test = std::env::current_exe().unwrap();
    let words = [crate::ROLE, "deep::a_process_whose_wall_clock_jumps"];
    let with_clock = |mut command: Command| {
        command.env("LD_PRELOAD", &library);
        crate::bench::end(command)
    };
    let mut jumps = bench.command(0, &test);
    jumps.args(words);
    let jumped = with_clock(jumps);
    let ranks = std::thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| bench.rank(rank, &example("halo_exchange"), &[]));
        ranks.map(|rank| scope.spawn(|| with_clock(rank))).map(|rank| rank.join().unwrap())
    });
    let _ = std::fs::remove_file(&library);
    assert!(jumped.success && jumped.stdout.contains("1 passed"), "{jumped:#?}");
    assert!(ranks.iter().all(|rank| rank.success), "{ranks:#?}");
}

#[test]
#[ignore = "of the deep tier"]
fn ranks_wait_for_a_network_that_comes_up_late() {
    // The cable is not plugged in yet, or the interface is not set up.
    for is_down in [false, true] {
        let Some(bench) = bench(TWO) else { return };
        let set = |is_up: bool| {
            if is_down {
                bench.ip(1, if is_up { "link set eth0 up" } else { "link set eth0 down" });
            } else {
                bench.plug(1, "eth0", is_up);
            }
        };
        set(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_secs(2));
                set(true);
            });
            halo_exchange(&bench);
        });
    }
}
