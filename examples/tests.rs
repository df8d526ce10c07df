//! Runs the examples as separate processes.

#[path = "../tests/support/example.rs"]
mod example;

use std::process::Command;

use example::{example, finish};

/// Runs an example and returns its output.
fn run(name: &str, environment: &[(&str, &str)]) -> String {
    let (stdout, stderr) = finish(Command::new(example(name)).envs(environment.iter().copied()));
    assert!(stderr.is_empty(), "{name}: {stdout}\n{stderr}");
    stdout
}

/// Runs an example on the software HCA, and with two processes over the other transports that need
/// no device.
fn everywhere(name: &str, check: impl Fn(&str)) {
    check(&run(name, &[]));
    let key = "5a".repeat(32);
    for place in ["shm/memory", "tcp/127.0.0.1"] {
        check(&run(name, &[("BAREWIRE_EXAMPLE", place), ("BAREWIRE_KEY", &key)]));
    }
}

#[test]
fn hello() {
    assert_eq!(run("hello", &[]), "in memory: hello\nmessage 42: world\n");
}

#[test]
fn ping_pong() {
    everywhere("ping_pong", |printed| {
        assert!(printed.starts_with("2000 round trips over "), "{printed}");
    });
}

#[test]
fn many_peers() {
    let printed = run("many_peers", &[]);
    let mut lines = printed.lines();
    for start in ["1000 messages over one connection in ", "1000 answers over 8 initiators in "] {
        assert!(lines.next().is_some_and(|line| line.starts_with(start)), "{printed}");
    }
}

#[test]
fn windows() {
    let parts = "part 0: 1\npart 1: 2\npart 2: 3\npart 3: 4\n";
    let end = "after the revocation: refused by the owner's device\n";
    assert_eq!(run("windows", &[]), format!("{parts}{end}"));
}

#[test]
fn strided_column() {
    let printed = run("strided_column", &[]);
    let end = "column 5 is a copy of column 3, and column 6 is unchanged\n";
    assert_eq!(printed, format!("column 3, row 999: 99903\n{end}"));
}

#[test]
fn kv_get() {
    everywhere("kv_get", |printed| assert!(printed.starts_with("2000 lookups, "), "{printed}"));
}

#[test]
fn remote_log() {
    everywhere("remote_log", |printed| {
        let line = |start: &str| printed.lines().find_map(|line| line.strip_prefix(start));
        assert!(line("replica 2 is lost at ").is_some(), "{printed}");
        let first = line("replica 0 has ").unwrap_or_else(|| panic!("{printed}"));
        assert!(
            first.starts_with("200 records, ") && line("replica 1 has ") == Some(first),
            "{printed}"
        );
    });
}

#[cfg(feature = "tokio")]
#[test]
fn tokio_server() {
    let printed = run("tokio_server", &[]);
    assert!(printed.starts_with("3000 requests of 3 clients; the thread had "), "{printed}");
}
