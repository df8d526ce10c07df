//! One message each way, and strangers at the control port.

mod support;

use barewire_tcp::{Listener, Message, Stream};
use serde_json::{Value, json};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use support::{Barewire, PATIENCE, PROMISE, start};

const LIMIT: u32 = 64 << 10;
const KIND: u16 = 1;
const SOON: Duration = Duration::from_secs(30);

fn server(more: &[&str]) -> (Barewire, String) {
    let mut server = start(&[&["hello", "-t", "rc_mlx5", "-d", "soft0:1", "-p", "0"], more].concat());
    let port = server.port();
    (server, port)
}

fn address(port: &str) -> SocketAddr {
    format!("127.0.0.1:{port}").parse().unwrap()
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
    // A port that is taken, but not listened on.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let port = socket.local_addr().unwrap().as_socket().unwrap().port().to_string();
    let ended = start(&["hello", "-n", "127.0.0.1", "-p", &port]).end(PROMISE);
    assert!(ended.failed().contains("refused"), "{ended:#?}");
    assert!(ended.failed().contains(&format!("127.0.0.1:{port}")), "{ended:#?}");
}

#[test]
fn a_port_that_is_taken() {
    let (_server, port) = server(&[]);
    let ended = start(&["hello", "-p", &port]).end(PROMISE);
    assert!(ended.failed().contains(&format!("cannot listen on 127.0.0.1:{port}")), "{ended:#?}");
}

#[test]
fn a_stranger_sends_garbage() {
    let garbage: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"BWIR\x09\x00\x01\x00\x00\x00\x00\x00",
        b"BWIR\x01\x00\x01\x00\xff\xff\xff\xff",
        b"\0",
    ];
    for bytes in garbage {
        let (server, port) = server(&[]);
        let mut stranger = TcpStream::connect(address(&port)).unwrap();
        stranger.write_all(bytes).unwrap();
        let ended = server.end(PROMISE);
        let line = ended.failed();
        let stranger = stranger.local_addr().unwrap().to_string();
        assert!(line.contains(&stranger) && line.contains("cannot work with"), "{line}");
    }
}

#[test]
fn a_stranger_says_nothing_or_leaves() {
    let (mute, mute_port) = server(&[]);
    let _stays = TcpStream::connect(address(&mute_port)).unwrap();
    let (left, left_port) = server(&[]);
    drop(TcpStream::connect(address(&left_port)).unwrap());
    let ended = left.end(PROMISE);
    assert!(ended.failed().contains("closed"), "{ended:#?}");
    let ended = mute.end(PROMISE);
    assert!(ended.failed().contains("said nothing"), "{ended:#?}");
}

#[test]
fn a_server_of_another_kind() {
    let listener = Listener::bind(None, 0, LIMIT).unwrap();
    let port = listener.address().port().to_string();
    let client = start(&["hello", "-n", "127.0.0.1", "-p", &port]);
    let mut stream = listener.accept(SOON).unwrap();
    stream.send(KIND, b"220 mail.example ESMTP", SOON).unwrap();
    let ended = client.end(PROMISE);
    assert!(ended.failed().contains("cannot be read"), "{ended:#?}");
}

#[test]
fn a_perf_server_is_no_hello_server() {
    let mut server = start(&["perf", "--listen", "-p", "0"]);
    let port = server.port();
    let client = start(&["hello", "-n", "127.0.0.1", "-p", &port]).end(PROMISE);
    assert!(client.failed().contains("barewire perf"), "{client:#?}");
    let server = server.end(PROMISE);
    assert!(server.failed().contains("barewire hello"), "{server:#?}");
}

/// A client that speaks the control protocol by hand.
struct Hand(Stream);

impl Hand {
    fn greet(port: &str) -> Self {
        let mut hand = Self(Stream::connect(address(port), LIMIT, SOON).unwrap());
        let hello = json!({"hello": {
            "protocol": 2, "version": "0.1.0", "work": "hello", "role": "client", "pid": std::process::id()
        }});
        hand.say(&hello);
        hand.hear("hello");
        hand
    }

    fn say(&mut self, message: &Value) {
        self.0.send(KIND, message.to_string().as_bytes(), SOON).unwrap();
    }

    /// Waits for a message of this name.
    fn hear(&mut self, name: &str) -> Value {
        loop {
            let Message { payload, .. } = self.0.receive(SOON).unwrap();
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

    /// Opens the transport and hears the server's addresses.
    fn open(&mut self) -> Value {
        self.say(&json!({"open": {"transport": "rc_mlx5", "device": null}}));
        self.hear("address")
    }
}

#[test]
fn truncated_and_foreign_addresses() {
    type Spoil = fn(&mut String);
    let spoilers: [(&str, Spoil, &str); 6] = [
        ("device", |hex| hex.truncate(hex.len() - 2), "device address"),
        ("device", |hex| hex.push_str("00"), "device address"),
        ("device", |hex| *hex = "00".repeat(16), "device address"),
        ("endpoint", String::clear, "endpoint address"),
        ("endpoint", |hex| *hex = "de".repeat(hex.len() / 2), "endpoint address"),
        ("endpoint", |hex| hex.truncate(hex.len() - 1), "hexadecimal"),
    ];
    for (field, spoil, words) in spoilers {
        let (server, port) = server(&[]);
        let mut hand = Hand::greet(&port);
        // The server's own address, spoiled, comes back to it.
        let mut answer = hand.open();
        let mut hex = answer[field].as_str().unwrap().to_owned();
        spoil(&mut hex);
        answer[field] = hex.into();
        hand.say(&json!({ "address": answer }));
        let reason = hand.hear("goodbye");
        let ended = server.end(PROMISE);
        let line = ended.failed();
        assert!(line.contains(words) && line.contains("the client (pid "), "{field}: {line}");
        assert_eq!(reason["reason"], line);
    }
}

#[test]
fn a_client_that_skips_a_step_or_another_version() {
    let (server, port) = server(&[]);
    Hand::greet(&port).say(&json!("ready"));
    let ended = server.end(PROMISE);
    assert!(ended.failed().contains("sent 'ready' where 'open' was due"), "{ended:#?}");

    let (server, port) = self::server(&[]);
    let mut hand = Hand(Stream::connect(address(&port), LIMIT, SOON).unwrap());
    hand.say(&json!({"hello": {
        "protocol": 99, "version": "9.9.9", "work": "hello", "role": "client", "pid": 1
    }}));
    let ended = server.end(PROMISE);
    assert!(ended.failed().contains("control protocol 99 (barewire 9.9.9)"), "{ended:#?}");

    let (server, port) = self::server(&[]);
    Hand::greet(&port).say(&json!({"open": {"transport": "ud_verbs", "device": null}}));
    let ended = server.end(PROMISE);
    assert!(ended.failed().contains("'ud_verbs'"), "{ended:#?}");
}

#[test]
fn a_client_that_floods() {
    let (server, port) = server(&[]);
    let mut hand = Hand::greet(&port);
    let flood = json!("ready").to_string();
    while hand.0.send(KIND, flood.as_bytes(), SOON).is_ok() {}
    server.end(PROMISE).failed();
}
