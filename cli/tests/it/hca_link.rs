//! `barewire hca link`: takes the link of a running program's device down and up, from outside.

use crate::hca::{self, installed, is_listening};
use crate::port::free_port;
use crate::support::{self, Barewire, PATIENCE, random_below};
use std::thread;
use std::time::{Duration, Instant};

/// An address that no other test uses.
fn address() -> String {
    let [a, b, c] = [200, 256, 254].map(random_below);
    format!("127.{}.{b}.{}", 50 + a, 1 + c)
}

/// Starts a program on a device with this address.
fn start(address: &str, program: &[&str]) -> Barewire {
    support::start(&[&["hca", "run", "--address", address, "--"], program].concat())
}

fn link(address: &str, state: &str) {
    support::run(&["hca", "link", address, state]).succeeded();
}

/// Waits until `is` returns true.
#[track_caller]
fn until(mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "it does not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_program_gets_an_event_when_its_link_goes_down_and_up() {
    if !installed("ibv_asyncwatch", "ibverbs-utils") {
        return;
    }
    let address = address();
    let mut watch = start(&address, &["stdbuf", "-oL", "ibv_asyncwatch"]);
    assert!(watch.line("async event FD").is_some(), "{:#?}", watch.end(PATIENCE));
    // A link that is up already has no event.
    link(&address, "up");
    for state in ["down", "down", "up"] {
        link(&address, state);
    }
    assert!(watch.line("IBV_EVENT_PORT_ACTIVE").is_some());
    let shown = watch.output();
    let events = shown.lines().filter_map(|line| line.trim().strip_prefix("event_type "));
    let right = ["IBV_EVENT_PORT_ERR (10), port 1", "IBV_EVENT_PORT_ACTIVE (9), port 1"];
    assert!(events.eq(right), "{shown}");
}

#[test]
fn packets_of_a_link_that_is_down_are_lost() {
    if !installed("ibv_rc_pingpong", "ibverbs-utils") {
        return;
    }
    let (address, port) = (address(), free_port());
    let text = port.to_string();
    let program = ["stdbuf", "-oL", "ibv_rc_pingpong", "-g", "0", "-n", "100000000", "-p", &text];
    let mut server = start(&address, &program);
    until(|| is_listening(port));
    let client = [&["hca", "run", "--"], &program[..], &["127.0.0.1"]].concat();
    let mut client = support::start(&client);
    assert!(client.line("remote address").is_some(), "{:#?}", client.end(PATIENCE));
    link(&address, "down");
    // The side whose message gets no response fails, and the other waits for it.
    until(|| client.has_ended() || server.has_ended());
    let (failed, waits) = if client.has_ended() { (client, server) } else { (server, client) };
    let failed = failed.end(PATIENCE);
    assert!(failed.stderr.contains("transport retry counter exceeded"), "{failed:#?}");
    support::signal(waits.pid(), libc::SIGKILL);
    waits.end(PATIENCE);
}

/// The files show the devices of the process that reads them, so a single process reads them all
/// three times.
#[test]
fn the_state_of_the_port_is_in_sysfs() {
    const READS: &str = "
import subprocess, sys
folder = '/sys/class/infiniband/mlx5_0/ports/1/'
for state in (None, 'down', 'up'):
    if state:
        subprocess.run([sys.argv[1], 'hca', 'link', sys.argv[2], state], check=True)
    print(*(open(folder + name).read().strip() for name in ('state', 'phys_state')))
";
    if !installed("python3", "python3") {
        return;
    }
    let address = address();
    let program = ["python3", "-c", READS, env!("CARGO_BIN_EXE_barewire"), &address];
    let ended = start(&address, &program).end(PATIENCE);
    ended.succeeded();
    assert_eq!(ended.stdout, "4: ACTIVE 5: LinkUp\n1: DOWN 3: Disabled\n4: ACTIVE 5: LinkUp\n");
}

#[test]
fn a_command_without_a_device_or_its_key_is_refused() {
    const SLEEPS: &str = "
import time
open('/sys/class/infiniband/mlx5_0/ports/1/state')
print('opened', flush=True)
time.sleep(1000)
";
    let key = "01".repeat(32);
    hca::library();
    let address = address();
    let ended = support::run(&["hca", "link", &address, "down"]);
    assert!(ended.failed().contains("no software HCA in this network"), "{ended:#?}");
    if !installed("python3", "python3") {
        return;
    }
    let mut sleeper = start(&address, &["python3", "-c", SLEEPS]);
    assert!(sleeper.line("opened").is_some(), "{:#?}", sleeper.end(PATIENCE));
    let words = ["hca", "link", &address, "down"];
    let ended = support::start_with(&words, &[("BAREWIRE_HCA_KEY", &key)]).end(PATIENCE);
    assert!(ended.failed().contains("another BAREWIRE_HCA_KEY"), "{ended:#?}");
    assert!(sleeper.errors().contains("without a valid tag"), "{}", sleeper.errors());
    // The right key works afterwards.
    link(&address, "down");
    support::signal(sleeper.pid(), libc::SIGKILL);
    sleeper.end(PATIENCE);
}
