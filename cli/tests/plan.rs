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
    // The software device is used if both addresses have it.
    let (a, b) = (address(&["soft0:1", "tcp/lo"]), address(&["soft0:1", "tcp/lo"]));
    let printed = text(&plan(&[&a, &b]));
    assert!(printed.contains("rc_mlx5") && printed.contains("endpoint"), "{printed}");
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
