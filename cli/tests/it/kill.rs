//! Kills either process of a pair at any moment: the other ends soon and reports the peer and the
//! cause, and no process is left.

use crate::support;

use std::thread;
use std::time::{Duration, Instant};
use support::{
    Barewire, Ended, PATIENCE, PROMISE, TestFile, gone_within, random_below, signal, start,
};

/// Moments per command and side.
const MOMENTS: u64 = 8;
/// The latest moment, in microseconds after the start.
const LATEST: u64 = 400_000;

fn a_moment() {
    thread::sleep(Duration::from_micros(random_below(LATEST)));
}

/// Checks the end of the survivor: in time, with one line that names the peer and the cause, unless
/// the command had finished before the kill.
#[track_caller]
fn left_alone(survivor: Barewire, peer: &str, peer_pid: u32) {
    let since = Instant::now();
    let ended: Ended = survivor.end(PROMISE);
    if ended.status.success() {
        assert!(ended.stderr.is_empty(), "{ended:#?}");
        return;
    }
    let line = ended.failed();
    // Killed during the greeting, it had not sent its process id yet.
    let named = line.contains(&format!("{peer} (pid {peer_pid}"))
        || (line.contains("the greeting") && line.contains(peer))
        || line.starts_with(&format!("cannot connect to {peer}: localhost:"));
    let cause = ["SIGKILL", "closed the connection", "connection refused"]
        .iter()
        .any(|cause| line.contains(cause));
    assert!(named && cause, "after {:?}: {line}", since.elapsed());
}

fn kill_the_second(args: &[&str]) {
    for _ in 0..MOMENTS {
        let mut first = start(args);
        let Some(second) = first.second() else {
            panic!("it ended at once: {:?}", first.end(PROMISE))
        };
        a_moment();
        signal(second, libc::SIGKILL);
        left_alone(first, "the second process", second);
        assert!(gone_within(second, PROMISE));
    }
}

fn kill_the_first(args: &[&str]) {
    for _ in 0..MOMENTS {
        let mut first = start(args);
        let pid = first.pid();
        let second = if random_below(4) == 0 { None } else { first.second() };
        a_moment();
        signal(pid, libc::SIGKILL);
        if let Some(second) = second {
            assert!(gone_within(second, PROMISE), "the second process {second} outlives the first");
        }
        // Both hold standard error, so its end shows that both processes have ended.
        let ended = first.end(PROMISE);
        if ended.status.success() || ended.stderr.is_empty() {
            continue;
        }
        let line = support::one_line(&ended.stderr);
        assert!(line.contains("the first process"), "{line}");
        assert!(line.contains("closed the connection"), "{line}");
    }
}

#[test]
fn the_second_of_a_demo() {
    let file = TestFile::new("kill-second", 16 << 20);
    kill_the_second(&["demo", file.path()]);
}

#[test]
fn the_first_of_a_demo() {
    let file = TestFile::new("kill-first", 16 << 20);
    kill_the_first(&["demo", file.path()]);
}

#[test]
fn the_second_of_a_perf() {
    for test in ["am_lat", "put_bw"] {
        kill_the_second(&["perf", "-t", test, "-n", "100000000"]);
    }
}

/// More operations than any transport completes in the time. Those that copy to memory succeed
/// without the peer, and their poster makes no progress.
#[test]
fn the_target_of_an_endless_stream() {
    for transport in ["shm", "cma", "tcp", "rc_mlx5"] {
        let tests =
            if transport == "cma" { &["put_bw", "get"][..] } else { &["put_bw", "get", "add_mr"] };
        for test in tests {
            let size = if *test == "add_mr" { "8" } else { "4096" };
            let layout = if *test == "add_mr" { "short" } else { "zcopy" };
            let mut first = start(&[
                "perf", "-x", transport, "-t", test, "-D", layout, "-s", size, "-n", "1000G",
            ]);
            let second = first.second().expect("it runs");
            a_moment();
            signal(second, libc::SIGKILL);
            left_alone(first, "the second process", second);
        }
    }
}

#[test]
fn the_first_of_a_perf() {
    for test in ["put_lat", "am_bw"] {
        kill_the_first(&["perf", "-t", test, "-n", "100000000"]);
    }
}

#[test]
fn either_side_of_a_server_and_its_client() {
    for moment in 0..2 * MOMENTS {
        let perf = moment % 4 < 2;
        let mut server = if perf {
            start(&["perf", "--listen", "-p", "0"])
        } else {
            start(&["hello", "-p", "0"])
        };
        let port = server.port();
        let client = |count| {
            if perf {
                start(&["perf", "127.0.0.1", "-p", &port, "-n", count])
            } else {
                start(&["hello", "-n", "127.0.0.1", "-p", &port])
            }
        };
        let next = || client("10");
        let client = client("100000000");
        if perf {
            a_moment();
        } else {
            thread::sleep(Duration::from_micros(random_below(LATEST / 10)));
        }
        let (server_pid, client_pid) = (server.pid(), client.pid());
        if moment % 2 == 0 {
            signal(client_pid, libc::SIGKILL);
            client.end(PROMISE);
            let next = next().end(PATIENCE);
            let ended = server.end(PROMISE);
            // The server waits for another client, unless the test had finished before the kill.
            assert!(ended.status.success(), "{ended:#?} {next:#?}");
            if !ended.stderr.is_empty() {
                next.succeeded();
                let named = format!("the client (pid {client_pid}");
                let greeting = ended.stderr.contains("the greeting");
                assert!(greeting || ended.stderr.contains(&named), "{ended:#?}");
                assert!(ended.stderr.contains("closed the connection"), "{ended:#?}");
            }
        } else {
            signal(server_pid, libc::SIGKILL);
            server.end(PROMISE);
            left_alone(client, "the server", server_pid);
        }
    }
}

/// A stopped peer is treated like one that has ended.
#[test]
fn a_stopped_second_process() {
    let mut first = start(&["perf", "-n", "100000000"]);
    let second = first.second().expect("it runs");
    a_moment();
    signal(second, libc::SIGSTOP);
    let ended = first.end(PROMISE);
    let line = ended.failed();
    assert!(line.contains(&format!("the second process (pid {second})")), "{line}");
    assert!(gone_within(second, PROMISE));
}

#[test]
fn a_stopped_first_process() {
    let mut first = start(&["perf", "-n", "100000000"]);
    let second = first.second().expect("it runs");
    let pid = first.pid();
    a_moment();
    signal(pid, libc::SIGSTOP);
    let gone = gone_within(second, PROMISE);
    signal(pid, libc::SIGCONT);
    assert!(gone, "the second process waits for ever");
    let ended = first.end(PROMISE);
    assert!(
        !ended.status.success() && ended.stderr.contains("the first process (pid "),
        "{ended:#?}"
    );
}

/// Only the kernel can end a stopped process whose parent was killed.
#[test]
fn a_stopped_second_process_of_a_killed_first() {
    let mut first = start(&["perf", "-n", "100000000"]);
    let second = first.second().expect("it runs");
    thread::sleep(Duration::from_millis(300));
    signal(second, libc::SIGSTOP);
    signal(first.pid(), libc::SIGKILL);
    first.end(PROMISE);
    assert!(gone_within(second, PROMISE));
}
