//! `barewire plan`: offline, from two addresses, and for this machine.

use std::process::{Command, Output};

fn plan(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_barewire"));
    command
        .arg("plan")
        .args(arguments)
        .env("BAREWIRE_KEY", "07".repeat(32))
        .env_remove("BAREWIRE_KEY_FILE");
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn address(devices: &[&str]) -> String {
    let arguments: Vec<&str> = devices.iter().flat_map(|device| ["-d", device]).collect();
    text(&plan(&arguments)).lines().next().unwrap().to_owned()
}

#[test]
fn without_addresses_it_prints_this_machines_and_what_is_absent() {
    let printed = text(&plan(&[]));
    assert!(printed.contains("shm"), "{printed}");
    assert!(printed.contains("absent rc_mlx5 on soft0:1: a software device"), "{printed}");
}

#[test]
fn two_addresses_get_lanes_and_reasons() {
    let (a, b) = (address(&["shm", "tcp/lo"]), address(&["shm", "tcp/lo"]));
    let printed = text(&plan(&[&a, &b]));
    assert!(printed.starts_with("pair  transport"), "{printed}");
    assert!(printed.contains("messages control memory atomics bulk"), "{printed}");
    assert!(printed.contains("costs less"), "{printed}");
    let tagged = printed.lines().find(|line| line.starts_with("tagged messages: eager"));
    assert!(tagged.is_some_and(|line| line.contains("rendezvous is faster from")), "{printed}");
    let json: serde_json::Value = serde_json::from_str(&text(&plan(&["--json", &a, &b]))).unwrap();
    let (tagged, lane) = (&json["tagged"], &json["lanes"][0]);
    let line =
        |name: &str| ["fixed_ns", "per_byte_ns"].map(|part| tagged[name][part].as_f64().unwrap());
    let [eager, rendezvous] = [line("eager"), line("rendezvous")];
    let crossing = (rendezvous[0] - eager[0]) / (eager[1] - rendezvous[1]);
    assert!((tagged["threshold"].as_f64().unwrap() - crossing).abs() <= 1.0, "{json:#}");
    // The fixed part is that of the lane for messages, with the overhead of one side.
    let number = |name: &str| lane[name].as_f64().unwrap();
    assert!((eager[0] - number("latency_ns") - number("overhead_ns") / 2.0).abs() < 1.0);
    // The software device is used if both addresses have it.
    let (a, b) = (address(&["soft0:1", "tcp/lo"]), address(&["soft0:1", "tcp/lo"]));
    let printed = text(&plan(&[&a, &b]));
    assert!(printed.contains("rc_mlx5") && printed.contains("endpoint"), "{printed}");
    // Beside shared memory, it carries nothing: it is slower than the device that it models.
    let (a, b) = (address(&["soft0:1", "shm"]), address(&["soft0:1", "shm"]));
    let printed = text(&plan(&[&a, &b]));
    assert!(printed.contains("messages control memory atomics bulk"), "{printed}");
    assert!(printed.contains("a software device, and shared memory leads to the same node"));
}

#[test]
fn what_is_no_address_and_what_has_no_lane_is_an_error() {
    let wrong = plan(&["00", "62"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("address A"));
    assert_eq!(plan(&["62"]).status.code(), Some(2));
    let none = plan(&[&address(&["shm"]), &address(&["tcp/lo"])]);
    assert_eq!(none.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&none.stderr).contains("no lane for messages"));
}

#[test]
fn one_address_twice_is_said_to_be_one_node() {
    let address = address(&["self", "shm"]);
    let printed = text(&plan(&[&address, &address]));
    assert!(printed.starts_with("A and B are the same address"), "{printed}");
}
