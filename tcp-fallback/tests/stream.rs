//! Streams and listeners over real loopback sockets.

use barewire_tcp::frame::Header;
use barewire_tcp::{FrameError, Listener, ListenerError, Stream, StreamCause};
use proptest::prelude::*;
use socket2::{Domain, Socket, Type};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const LIMIT: u32 = 1 << 20;
const SOON: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(50);

fn pair() -> (Stream, Stream) {
    let listener = Listener::bind(None, 0, LIMIT).unwrap();
    let client = Stream::connect(listener.address(), LIMIT, SOON).unwrap();
    (client, listener.accept(SOON).unwrap())
}

/// A server stream and the raw socket of its peer.
fn raw_pair() -> (Stream, TcpStream) {
    let listener = Listener::bind(None, 0, LIMIT).unwrap();
    let raw = TcpStream::connect(listener.address()).unwrap();
    (listener.accept(SOON).unwrap(), raw)
}

#[test]
fn listens_on_loopback_by_default() {
    let listener = Listener::bind(None, 0, LIMIT).unwrap();
    assert_eq!(listener.address().ip(), Ipv4Addr::LOCALHOST);
    assert_ne!(listener.address().port(), 0);
}

#[test]
fn messages_keep_their_order_and_bounds() {
    let (mut client, mut server) = pair();
    for length in [0usize, 1, 11, 12, 13, 5000, 100_000] {
        client.send(length as u16, &vec![length as u8; length], SOON).unwrap();
    }
    for length in [0usize, 1, 11, 12, 13, 5000, 100_000] {
        let message = server.receive(SOON).unwrap();
        assert_eq!(message.kind, length as u16);
        assert_eq!(message.payload, vec![length as u8; length]);
    }
    assert_eq!(server.try_receive().unwrap(), None);
}

#[test]
fn a_frame_in_single_bytes_arrives_whole() {
    let (mut server, mut raw) = raw_pair();
    let bytes = [&Header { kind: 3, length: 4 }.to_bytes()[..], b"four"].concat();
    for byte in &bytes[..bytes.len() - 1] {
        raw.write_all(&[*byte]).unwrap();
        assert_eq!(server.try_receive().unwrap(), None);
    }
    raw.write_all(&bytes[bytes.len() - 1..]).unwrap();
    assert_eq!(server.receive(SOON).unwrap().payload, b"four");
}

#[test]
fn waiting_ends_at_the_deadline_and_harms_nothing() {
    let (mut client, mut server) = pair();
    let before = Instant::now();
    let error = server.receive(SHORT).unwrap_err();
    assert!(matches!(error.cause(), StreamCause::TimedOut { what: "message", .. }), "{error}");
    assert!(before.elapsed() >= SHORT);
    client.send(1, b"late", SOON).unwrap();
    assert_eq!(server.receive(SOON).unwrap().payload, b"late");
}

#[test]
fn a_send_that_finds_no_room_ends_at_the_deadline() {
    let (mut client, _server) = pair();
    let payload = vec![0; LIMIT as usize];
    let error = (0..100).find_map(|_| client.send(1, &payload, SHORT).err()).expect("the buffers are finite");
    assert!(matches!(error.cause(), StreamCause::TimedOut { what: "room to send", .. }), "{error}");
    let error = client.send(1, b"", SHORT).unwrap_err();
    assert!(matches!(error.cause(), StreamCause::Desynchronised | StreamCause::TimedOut { .. }), "{error}");
}

#[test]
fn the_end_of_the_peer_is_told_after_its_last_message() {
    let (mut client, mut server) = pair();
    client.send(1, b"last", SOON).unwrap();
    drop(client);
    assert_eq!(server.receive(SOON).unwrap().payload, b"last");
    let error = server.receive(SOON).unwrap_err();
    assert!(matches!(error.cause(), StreamCause::PeerClosed), "{error}");
    assert!(error.to_string().contains("peer closed"), "{error}");
    assert!(error.to_string().starts_with("127.0.0.1:"), "{error}");
    assert!(matches!(server.try_receive().unwrap_err().cause(), StreamCause::PeerClosed));
}

#[test]
fn the_last_message_survives_unread_bytes_when_closed_in_order() {
    let (mut client, mut server) = pair();
    server.send(9, b"never read", SOON).unwrap();
    let closer = std::thread::spawn(move || {
        client.send(1, b"goodbye", SOON).unwrap();
        client.close(SOON);
    });
    assert_eq!(server.receive(SOON).unwrap().payload, b"goodbye");
    assert!(matches!(server.receive(SOON).unwrap_err().cause(), StreamCause::PeerClosed));
    drop(server);
    closer.join().unwrap();
}

#[test]
fn a_trickle_does_not_put_off_the_deadline() {
    let (mut server, mut raw) = raw_pair();
    let trickle = std::thread::spawn(move || {
        raw.write_all(&Header { kind: 3, length: LIMIT }.to_bytes()).unwrap();
        while raw.write_all(b".").is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let before = Instant::now();
    let error = server.receive(SHORT).unwrap_err();
    assert!(matches!(error.cause(), StreamCause::TimedOut { .. }), "{error}");
    assert!(before.elapsed() < SOON);
    drop(server);
    trickle.join().unwrap();
}

#[test]
fn a_cut_off_message_is_told() {
    let (mut server, mut raw) = raw_pair();
    raw.write_all(&Header { kind: 3, length: 4 }.to_bytes()).unwrap();
    raw.write_all(b"fo").unwrap();
    drop(raw);
    let error = server.receive(SOON).unwrap_err();
    assert!(matches!(error.cause(), StreamCause::PeerClosedEarly { received: 14, expected: 16 }), "{error}");
    assert!(error.cause().is_peer_gone());
}

#[test]
fn a_stranger_is_refused() {
    let (mut server, mut raw) = raw_pair();
    raw.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let error = server.receive(SOON).unwrap_err();
    assert!(matches!(error.cause(), StreamCause::Frame(FrameError::Foreign { .. })), "{error}");
}

#[test]
fn a_length_over_the_limit_is_refused_before_its_payload_comes() {
    let (mut server, mut raw) = raw_pair();
    raw.write_all(&Header { kind: 3, length: LIMIT + 1 }.to_bytes()).unwrap();
    let error = server.receive(SOON).unwrap_err();
    assert!(matches!(error.cause(), StreamCause::Frame(FrameError::TooLong { .. })), "{error}");
}

#[test]
fn a_payload_over_the_limit_is_not_sent_and_harms_nothing() {
    let (mut client, mut server) = pair();
    let error = client.send(1, &vec![0; LIMIT as usize + 1], SOON).unwrap_err();
    assert!(matches!(error.cause(), StreamCause::Frame(FrameError::TooLong { .. })), "{error}");
    client.send(1, b"next", SOON).unwrap();
    assert_eq!(server.receive(SOON).unwrap().payload, b"next");
}

#[test]
fn nobody_listens() {
    // Bound, so that nobody else gets the port, but not listening.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let error = Stream::connect(address, LIMIT, SOON).unwrap_err();
    assert!(matches!(error.cause(), StreamCause::Refused), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[test]
fn accept_ends_at_the_deadline() {
    let listener = Listener::bind(None, 0, LIMIT).unwrap();
    let before = Instant::now();
    assert!(matches!(listener.accept(SHORT).unwrap_err(), ListenerError::TimedOut { .. }));
    assert!(before.elapsed() >= SHORT && before.elapsed() < SOON);
}

#[test]
fn an_address_that_is_taken_or_foreign_is_refused() {
    let listener = Listener::bind(None, 0, LIMIT).unwrap();
    let error = Listener::bind(None, listener.address().port(), LIMIT).unwrap_err();
    assert!(error.to_string().contains(&listener.address().to_string()), "{error}");
    // TEST-NET-1 (RFC 5737) is on no host.
    let foreign: SocketAddr = "192.0.2.1:0".parse().unwrap();
    assert!(Listener::bind(Some(foreign.ip()), 0, LIMIT).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_a_stranger_sends_ends_in_messages_or_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 0..300), true_magic: bool,
    ) {
        let (mut server, mut raw) = raw_pair();
        if true_magic {
            raw.write_all(b"BWIR\x01\x00").unwrap();
        }
        raw.write_all(&bytes).unwrap();
        drop(raw);
        for _ in 0..=bytes.len() / Header::BYTES + 1 {
            if let Err(error) = server.receive(SOON) {
                let waited = matches!(error.cause(), StreamCause::TimedOut { .. });
                prop_assert!(!waited, "{}", error);
                return Ok(());
            }
        }
        prop_assert!(false, "more messages than bytes");
    }
}

#[test]
fn with_a_key_nobody_else_gets_in() {
    let key = |seed| barewire_tcp::Key::from_bytes([seed; 32]);
    let here = std::net::Ipv4Addr::LOCALHOST.into();
    let mut listener = barewire_tcp::KeyedListener::bind(here, 0, key(1), 100).unwrap();
    let address = listener.address();
    let client = std::thread::spawn(move || {
        let stranger = Stream::connect_with_key(address, &key(2), 100, SOON);
        assert!(stranger.unwrap_err().to_string().contains("does not know this job's key"));
        // As if there were no key: a frame is no greeting.
        let mut plain = Stream::connect(address, 100, SOON).unwrap();
        let _ = plain.send(1, &[7; 90], SOON);
        assert!(plain.receive(SOON).unwrap_err().cause().is_peer_gone());
        let mut stream = Stream::connect_with_key(address, &key(1), 100, SOON).unwrap();
        stream.send(2, b"hello", SOON).unwrap();
        assert_eq!(stream.receive(SOON).unwrap().payload, b"welcome");
    });
    let mut stream = listener.accept(SOON).unwrap();
    assert_eq!(stream.receive(SOON).unwrap().payload, b"hello");
    stream.send(3, b"welcome", SOON).unwrap();
    client.join().unwrap();
    let waited = listener.accept(std::time::Duration::from_millis(20)).unwrap_err();
    assert!(waited.to_string().contains("nobody connected"), "{waited}");
}
