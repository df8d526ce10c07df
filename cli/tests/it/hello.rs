//! `barewire hello`, and clients of the same user that violate the protocol.

use crate::support;

use barewire_tcp::frames::Stream;
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::time::Duration;
use support::{Barewire, PATIENCE, PROMISE, control, control_name, start};

const SOON: Duration = Duration::from_secs(30);
/// Bytes of the longest message of a server.
const LONGEST: usize = 64 << 10;

fn server(more: &[&str]) -> (Barewire, String) {
    let mut server =
        start(&[&["hello", "-t", "rc_mlx5", "-d", "soft0:1", "-p", "0"], more].concat());
    let port = server.port();
    (server, port)
}

/// Checks that the server still serves a correct client, and then ends.
#[track_caller]
fn serves(server: Barewire, port: &str) {
    start(&["hello", "-n", "127.0.0.1", "-p", port]).end(PATIENCE).succeeded();
    let ended = server.end(PATIENCE);
    assert!(ended.status.success(), "{ended:#?}");
}

#[test]
fn each_way_of_sending() {
    for (way, name, size) in [
        (None, "short", "16"),
        (None, "short", "0"),
        (Some("-b"), "bcopy", "8000"),
        (Some("-z"), "zcopy", "4096"),
    ] {
        let options = [way.as_slice(), &["-s", size]].concat();
        let (server, port) = server(&options);
        let client = start(&[&["hello", "-n", "127.0.0.1", "-p", &port], &options[..]].concat());
        let (client, server) = (client.end(PATIENCE), server.end(PATIENCE));
        client.succeeded();
        server.succeeded();
        let said = format!("{size} bytes by am_{name}");
        assert!(client.stdout.contains(&format!("{said} from the server (pid ")), "{client:#?}");
        assert!(server.stdout.contains(&format!("{said} from the client (pid ")), "{server:#?}");
        if size == "16" {
            assert!(server.stdout.contains("ABCDEFGHIJKLMNOP"), "{server:#?}");
        }
    }
}

#[test]
fn a_host_name_and_another_way_at_each_end() {
    let (server, port) = server(&["-z", "-s", "100"]);
    let client = start(&["hello", "-n", "localhost", "-p", &port, "-b", "-s", "3"]).end(PATIENCE);
    let server = server.end(PATIENCE);
    client.succeeded();
    server.succeeded();
    assert!(client.stdout.contains("100 bytes by am_zcopy"), "{client:#?}");
    assert!(server.stdout.contains("3 bytes by am_bcopy"), "{server:#?}");
}

#[test]
fn nobody_listens() {
    let ended = start(&["hello", "-n", "127.0.0.1", "-p", "1"]).end(PROMISE);
    assert!(ended.failed().contains("refused"), "{ended:#?}");
    assert!(ended.failed().contains("localhost:1:"), "{ended:#?}");
}

#[test]
fn a_port_that_is_taken() {
    let (_server, port) = server(&[]);
    let ended = start(&["hello", "-p", &port]).end(PROMISE);
    assert!(ended.failed().contains(&format!("cannot listen on localhost:{port}")), "{ended:#?}");
}

#[test]
fn a_client_that_sends_garbage() {
    let garbage: [&[u8]; 3] =
        [b"GET / HTTP/1.1\r\n\r\n", b"\x01\x00\x01\x00", b"\xff\xff\xff\xff\x00"];
    let (mut server, port) = server(&[]);
    for (count, bytes) in garbage.into_iter().enumerate() {
        let mut stranger = control(&port);
        stranger.write_all(bytes).unwrap();
        let warned =
            |text: &str| text.lines().filter(|line| line.contains("cannot work with")).count();
        server.warning("cannot work with the client", PROMISE);
        let deadline = std::time::Instant::now() + PROMISE;
        while warned(&server.errors()) <= count {
            assert!(std::time::Instant::now() < deadline, "{}", server.errors());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    serves(server, &port);
}

#[test]
fn a_client_that_says_nothing_or_leaves() {
    let (mut mute, mute_port) = server(&[]);
    let _stays = control(&mute_port);
    let (mut left, left_port) = server(&[]);
    drop(control(&left_port));
    left.warning("closed", PROMISE);
    mute.warning("no message from", PROMISE);
    serves(left, &left_port);
    serves(mute, &mute_port);
}

#[test]
fn a_server_of_another_kind() {
    // Below the numbers that servers select.
    let port = format!("{}", 20_000 + std::process::id() % 10_000);
    let listener = UnixListener::bind_addr(&control_name(&port)).unwrap();
    let client = start(&["hello", "-n", "127.0.0.1", "-p", &port]);
    let mut stream = Stream::unix(listener.accept().unwrap().0, LONGEST).unwrap();
    stream.send(b"220 mail.example ESMTP", SOON).unwrap();
    let ended = client.end(PROMISE);
    assert!(ended.failed().contains("cannot be read"), "{ended:#?}");
}

#[test]
fn a_perf_server_is_no_hello_server() {
    let mut server = start(&["perf", "--listen", "-p", "0"]);
    let port = server.port();
    let client = start(&["hello", "-n", "127.0.0.1", "-p", &port]).end(PROMISE);
    assert!(client.failed().contains("barewire perf"), "{client:#?}");
    server.warning("barewire hello", PROMISE);
}

/// A client that implements the control protocol by hand.
struct Hand(Stream);

impl Hand {
    fn connect(port: &str) -> Self {
        Self(Stream::unix(control(port), LONGEST).unwrap())
    }

    fn greet(port: &str) -> Self {
        let mut hand = Self::connect(port);
        let hello = json!({"hello": {
            "protocol": 4, "version": env!("CARGO_PKG_VERSION"), "work": "hello", "role": "client",
            "pid": std::process::id()
        }});
        hand.say(&hello);
        hand.hear("hello");
        hand
    }

    fn say(&mut self, message: &Value) {
        self.0.send(message.to_string().as_bytes(), SOON).unwrap();
    }

    /// Waits for a message with this name.
    fn hear(&mut self, name: &str) -> Value {
        loop {
            let payload = self.0.receive(SOON).unwrap();
            let message: Value = serde_json::from_slice(&payload).unwrap();
            if message == name {
                return message;
            }
            if let Some(found) = message.get(name) {
                return found.clone();
            }
            assert_eq!(message, "alive");
        }
    }

    /// Opens the transport and receives the server's addresses.
    fn open(&mut self) -> Value {
        self.say(&json!({"open": {"transport": "rc_mlx5", "device": null, "cpu": null}}));
        self.hear("address")
    }
}

#[test]
fn truncated_and_foreign_addresses() {
    type Spoil = fn(&mut String);
    let spoilers: [(Spoil, &str); 5] = [
        (|hex| hex.truncate(hex.len() - 2), "truncated"),
        (|hex| hex.push_str("00"), "too many"),
        (String::clear, "truncated"),
        (|hex| *hex = "de".repeat(hex.len() / 2), "foreign"),
        (|hex| hex.truncate(hex.len() - 1), "hexadecimal"),
    ];
    let (mut server, port) = server(&[]);
    for (spoil, words) in spoilers {
        let mut hand = Hand::greet(&port);
        // Sends the server's own address back, modified.
        let mut answer = hand.open();
        let mut hex = answer["peer"].as_str().unwrap().to_owned();
        spoil(&mut hex);
        answer["peer"] = hex.into();
        hand.say(&json!({ "address": answer }));
        let reason = hand.hear("goodbye")["reason"].as_str().unwrap().to_owned();
        assert!(reason.contains(words) && reason.contains("the client (pid "), "{words}: {reason}");
        server.warning(&reason, PROMISE);
    }
    serves(server, &port);
}

#[test]
fn its_own_address_is_refused() {
    let (mut server, port) = server(&[]);
    let mut hand = Hand::greet(&port);
    let address = hand.open();
    hand.say(&json!({ "address": address }));
    server.warning("own address back", PROMISE);
    serves(server, &port);
}

#[test]
fn a_client_that_skips_a_step_or_another_version() {
    let (mut server, port) = server(&[]);
    // Each client stays until its message is read: a send to a closed end is an error itself.
    let mut skips = Hand::greet(&port);
    skips.say(&json!("ready"));
    server.warning("sent 'ready' instead of 'open'", PROMISE);

    let mut old = Hand::connect(&port);
    old.say(&json!({"hello": {
        "protocol": 99, "version": "9.9.9", "work": "hello", "role": "client", "pid": 1
    }}));
    server.warning("control protocol 99 (barewire 9.9.9)", PROMISE);

    let mut other = Hand::greet(&port);
    other.say(&json!({"open": {"transport": "ud_verbs", "device": null, "cpu": null}}));
    server.warning("'ud_verbs'", PROMISE);
    serves(server, &port);
}

#[test]
fn a_client_that_floods() {
    let (mut server, port) = server(&[]);
    let mut hand = Hand::greet(&port);
    let flood = json!("ready").to_string();
    while hand.0.send(flood.as_bytes(), SOON).is_ok() {}
    drop(hand);
    // It has received the first message alone, or too many of them.
    server.warning("cannot work with the client", PROMISE);
    serves(server, &port);
}
