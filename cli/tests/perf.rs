//! The measuring tool: every test, both forms of output, both ways to start it.

mod support;

use serde_json::Value;
use support::{PATIENCE, PROMISE, run, start};

const TESTS: [&str; 9] =
    ["am_lat", "put_lat", "add_lat", "get", "fadd", "cswap", "am_bw", "put_bw", "add_mr"];

#[test]
fn every_test_with_both_ends_of_its_own() {
    for test in TESTS {
        let ended = run(&["perf", "-t", test, "-n", "300", "-w", "20"]);
        ended.succeeded();
        let last = ended.stdout.lines().find(|line| line.starts_with("Final:")).expect("a final line");
        assert_eq!(last.split_whitespace().nth(1), Some("300"), "{last}");
        assert!(ended.stdout.contains("emulator"), "{}", ended.stdout);
        for column in ["# iterations", "50.0%ile", "average", "overall", "bandwidth", "message rate"] {
            assert!(ended.stdout.contains(column), "{column}: {}", ended.stdout);
        }
    }
}

#[test]
fn every_test_within_one_process() {
    for test in TESTS {
        run(&["perf", "-x", "self", "-d", "memory", "-t", test, "-n", "300", "-w", "20"]).succeeded();
    }
}

#[test]
fn every_way_of_sending() {
    for (test, sizes) in [
        ("am_lat", &["0", "7", "8", "100", "4096", "8000"][..]),
        ("am_bw", &["1", "64", "8000"]),
        ("put_lat", &["1", "8", "300", "8000", "256K"]),
        ("put_bw", &["1", "2000", "64K"]),
        ("get", &["1", "4096", "256K"]),
    ] {
        for size in sizes {
            run(&["perf", "-t", test, "-s", size, "-n", "30", "-w", "5"]).succeeded();
        }
    }
}

#[test]
fn a_server_and_a_client() {
    let mut server = start(&["perf", "--listen", "-p", "0", "-x", "rc_mlx5", "-d", "soft0:1"]);
    let port = server.port();
    let client = start(&[
        "perf",
        "127.0.0.1",
        "-p",
        &port,
        "-t",
        "put_lat",
        "-x",
        "rc_mlx5",
        "-d",
        "soft0:1",
        "-n",
        "200",
    ]);
    client.end(PATIENCE).succeeded();
    server.end(PATIENCE).succeeded();
}

#[test]
fn a_server_and_a_client_that_disagree() {
    let mut server = start(&["perf", "--listen", "-p", "0", "-t", "get"]);
    let port = server.port();
    let client = start(&["perf", "127.0.0.1", "-p", &port, "-t", "put_lat"]).end(PROMISE);
    assert!(client.failed().contains("put_lat"), "{client:#?}");
    let server = server.end(PROMISE);
    assert!(server.failed().contains("get"), "{server:#?}");
}

#[test]
fn json_has_the_numbers_with_their_units() {
    let ended = run(&["perf", "-t", "am_lat", "-n", "200", "-w", "10", "-s", "64", "--json"]);
    ended.succeeded();
    let value: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(value["test"], "am_lat");
    assert_eq!(value["transport"], "rc_mlx5");
    assert_eq!(value["iterations"], 200);
    assert_eq!(value["size_bytes"], 64);
    assert_eq!(value["emulator"], true);
    for name in [
        "latency_typical_us",
        "latency_average_us",
        "latency_overall_us",
        "bandwidth_average_bytes_per_s",
        "bandwidth_overall_bytes_per_s",
        "message_rate_average_per_s",
        "message_rate_overall_per_s",
    ] {
        assert!(value[name].as_f64().unwrap() > 0.0, "{name}: {value}");
    }
    // Half a round trip each, so as many messages as fit into the time.
    let latency = value["latency_overall_us"].as_f64().unwrap();
    let rate = value["message_rate_overall_per_s"].as_f64().unwrap();
    assert!((latency * rate / 1e6 - 1.0).abs() < 0.01, "{value}");
}

#[test]
fn cpus_are_pinned() {
    // The first CPU that this process may run on.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let first = list.split([',', '-']).next().unwrap();
    let mut perf = start(&["perf", "-c", first, "-n", "100000000"]);
    let second = perf.second().expect("it runs");
    for pid in [perf.pid(), second] {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        assert_eq!(allowed.trim(), first);
    }
}
