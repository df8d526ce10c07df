//! Messages over Unix sockets and over TCP with a key.

use barewire_tcp::Key;
use barewire_tcp::connector::{ConnectFailure, Connector};
use barewire_tcp::frames::{self, FrameError, Received, Stream, StreamListener};
use barewire_tcp::handshake::{Claim, Purpose};
use barewire_tcp::listener::{Limits, Listener};
use proptest::prelude::*;
use socket2::{Domain, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const SOON: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(50);
/// Bytes of the longest message.
const LIMIT: usize = 64 << 10;
const CLAIM: Claim =
    Claim { purpose: Purpose::Control, service: 3, endpoint: 0, from_service: 0, from_endpoint: 0 };

fn key(seed: u8) -> Key {
    Key::from_bytes([seed; 32])
}

fn listen(address: SocketAddr) -> io::Result<StreamListener> {
    StreamListener::bind(address, key(1), CLAIM, LIMIT)
}

fn length(length: usize) -> [u8; 4] {
    (length as u32).to_le_bytes()
}

fn unix_pair() -> (Stream, Stream) {
    let (one, other) = UnixStream::pair().unwrap();
    (Stream::unix(one, LIMIT).unwrap(), Stream::unix(other, LIMIT).unwrap())
}

/// A TCP connection, with encrypted or plain records.
fn tcp_pair(protected: bool) -> (Stream, Stream) {
    let limits = Limits { protected, ..Limits::default() };
    let mut door = Listener::open(HERE, key(1), limits).unwrap();
    let connector = Connector::start(door.address(), None, &key(1), CLAIM, SOON, limits).unwrap();
    let mut server = None;
    let client = connector.wait(|| {
        let mut admitted = Vec::new();
        door.work(Instant::now(), &mut admitted);
        server = server.take().or_else(|| admitted.pop().map(|peer| peer.welcome().unwrap()));
    });
    let (client, server) = (client.unwrap(), server.unwrap());
    assert!(client.is_protected() == protected && server.is_protected() == protected);
    (Stream::new(client, LIMIT), Stream::new(server, LIMIT))
}

fn pairs() -> [(Stream, Stream); 3] {
    [unix_pair(), tcp_pair(false), tcp_pair(true)]
}

/// A channel and the raw socket of its peer.
fn raw_pair() -> (Stream, UnixStream) {
    let (channel, raw) = UnixStream::pair().unwrap();
    (Stream::unix(channel, LIMIT).unwrap(), raw)
}

#[test]
fn messages_keep_their_order_and_bounds() {
    for (mut client, mut server) in pairs() {
        let lengths = [0, 1, 3, 4, 5, 5000, LIMIT];
        let sender = std::thread::spawn(move || {
            for length in lengths {
                client.send(&vec![length as u8; length], SOON).unwrap();
            }
            client
        });
        for length in lengths {
            assert_eq!(server.receive(SOON).unwrap(), vec![length as u8; length]);
        }
        let _client = sender.join().unwrap();
        assert_eq!(server.try_receive().unwrap(), None);
    }
}

#[test]
fn golden_bytes() {
    let (mut channel, mut raw) = raw_pair();
    channel.send(b"four", SOON).unwrap();
    let mut bytes = [0; 8];
    raw.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"\x04\0\0\0four");
}

#[test]
fn a_message_in_single_bytes_arrives_whole() {
    let (mut server, mut raw) = raw_pair();
    let bytes = [&length(4)[..], b"four"].concat();
    for byte in &bytes[..bytes.len() - 1] {
        raw.write_all(&[*byte]).unwrap();
        assert_eq!(server.try_receive().unwrap(), None);
    }
    raw.write_all(&bytes[bytes.len() - 1..]).unwrap();
    assert_eq!(server.receive(SOON).unwrap(), b"four");
}

#[test]
fn waiting_ends_at_the_deadline_and_harms_nothing() {
    for (mut client, mut server) in pairs() {
        let before = Instant::now();
        let error = server.receive(SHORT).unwrap_err();
        assert!(matches!(error, FrameError::TimedOut { what: "message", .. }), "{error}");
        assert!(before.elapsed() >= SHORT);
        client.send(b"late", SOON).unwrap();
        assert_eq!(server.receive(SOON).unwrap(), b"late");
    }
}

#[test]
fn timeouts_may_have_any_length() {
    for (mut one, mut other) in pairs() {
        one.send(b"message", Duration::MAX).unwrap();
        assert_eq!(other.receive(Duration::MAX).unwrap(), b"message");
        one.close(Duration::ZERO);
        other.close(Duration::MAX);
    }
}

/// The rest of a message whose send timed out is sent with the next one: no message is truncated.
#[test]
fn a_send_that_finds_no_room_ends_at_the_deadline() {
    for (mut client, mut server) in pairs() {
        let message = vec![7; LIMIT];
        let mut sent = 1;
        let error = loop {
            match client.send(&message, SHORT) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
            assert!(sent < 10_000, "the buffers of the kernel are finite");
        };
        assert!(matches!(error, FrameError::TimedOut { what: "room to send", .. }), "{error}");
        let error = client.send(b"", SHORT).unwrap_err();
        assert!(matches!(error, FrameError::TimedOut { .. }), "{error}");
        let sender = std::thread::spawn(move || client.send(b"last", SOON).map(|()| client));
        for _ in 0..sent {
            assert_eq!(server.receive(SOON).unwrap().len(), LIMIT);
        }
        assert_eq!(server.receive(SOON).unwrap(), b"last");
        sender.join().unwrap().unwrap();
    }
}

#[test]
fn the_end_of_the_peer_is_reported_after_its_last_message() {
    for (mut client, mut server) in pairs() {
        client.send(b"last", SOON).unwrap();
        drop(client);
        assert_eq!(server.receive(SOON).unwrap(), b"last");
        let error = server.receive(SOON).unwrap_err();
        assert!(matches!(error, FrameError::Closed), "{error}");
        assert!(error.to_string().contains("peer closed"), "{error}");
        assert!(matches!(server.try_receive().unwrap_err(), FrameError::Closed));
    }
}

#[test]
fn the_last_message_survives_unread_bytes_when_closed_in_order() {
    for (mut client, mut server) in pairs() {
        server.send(b"never read", SOON).unwrap();
        let closer = std::thread::spawn(move || {
            client.send(b"goodbye", SOON).unwrap();
            client.close(SOON);
        });
        assert_eq!(server.receive(SOON).unwrap(), b"goodbye");
        assert!(matches!(server.receive(SOON).unwrap_err(), FrameError::Closed));
        drop(server);
        closer.join().unwrap();
    }
}

#[test]
fn a_trickle_does_not_put_off_the_deadline() {
    let (mut server, mut raw) = raw_pair();
    let trickle = std::thread::spawn(move || {
        raw.write_all(&length(LIMIT)).unwrap();
        while raw.write_all(b".").is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let before = Instant::now();
    let error = server.receive(SHORT).unwrap_err();
    assert!(matches!(error, FrameError::TimedOut { .. }), "{error}");
    assert!(before.elapsed() < SOON);
    drop(server);
    trickle.join().unwrap();
}

#[test]
fn a_message_that_is_cut_off_is_reported() {
    let (mut server, mut raw) = raw_pair();
    raw.write_all(&length(4)).unwrap();
    raw.write_all(b"fo").unwrap();
    drop(raw);
    let error = server.receive(SOON).unwrap_err();
    assert!(matches!(error, FrameError::ClosedEarly { received: 6, expected: 8 }), "{error}");
    assert!(error.is_peer_gone());
}

#[test]
fn a_peer_that_does_not_send_messages_is_refused() {
    let (mut server, mut raw) = raw_pair();
    raw.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let error = server.receive(SOON).unwrap_err();
    assert!(matches!(error, FrameError::TooLong { .. }), "{error}");
}

#[test]
fn a_length_over_the_limit_is_refused_before_its_message_arrives() {
    let (mut server, mut raw) = raw_pair();
    raw.write_all(&length(LIMIT + 1)).unwrap();
    let error = server.receive(SOON).unwrap_err();
    assert!(matches!(error, FrameError::TooLong { length, .. } if length == LIMIT + 1), "{error}");
}

/// The kernel takes long messages in pieces.
#[test]
fn a_long_message_arrives_whole() {
    let message: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
    for (mut client, mut server) in pairs() {
        server.limit(message.len());
        let sent = message.clone();
        let sender = std::thread::spawn(move || client.send(&sent, SOON).map(|()| client));
        assert!(server.receive(SOON).unwrap() == message);
        sender.join().unwrap().unwrap();
    }
}

/// What follows the first part of a message that was cut off would be taken for the rest of it.
#[test]
fn nothing_follows_a_long_message_that_was_sent_in_part() {
    let (mut client, raw) = raw_pair();
    let error = client.send(&vec![7; 16 << 20], SHORT).unwrap_err();
    assert!(matches!(error, FrameError::TimedOut { what: "room to send", .. }), "{error}");
    raw.set_nonblocking(true).unwrap();
    while (&raw).read(&mut [0; 4096]).is_ok_and(|count| count > 0) {}
    assert!(matches!(client.send(b"next", SHORT).unwrap_err(), FrameError::TimedOut { .. }));
}

#[test]
fn a_posted_message_is_refused_if_too_much_waits() {
    let (mut client, mut server) = unix_pair();
    let (mut posted, message) = (0, vec![7; LIMIT]);
    while client.post(&message).is_ok() {
        posted += 1;
        assert!(posted < 1000, "the buffers of the kernel are finite");
    }
    let mut received = 0;
    while received < posted {
        client.flush().unwrap();
        received += usize::from(server.try_receive().unwrap().is_some());
    }
    assert!(client.flush().unwrap() && client.is_flushed());
    assert_eq!(server.try_receive().unwrap(), None);
}

#[test]
fn addresses_are_those_of_the_socket() {
    let (client, server) = tcp_pair(false);
    assert_eq!(Some(client.peer()), server.local().unwrap());
    assert_eq!(Some(server.peer()), client.local().unwrap());
    assert!(!client.is_unix());
    let (client, _server) = unix_pair();
    assert!(client.is_unix() && client.peer().ip().is_unspecified());
    assert_eq!(client.local().unwrap(), None);
}

#[test]
fn a_port_without_a_listener_refuses_the_connection() {
    // Bound, so that no other process takes the port, but not listening.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(HERE, 0).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let error = Stream::connect(address, &key(1), CLAIM, LIMIT, SOON).unwrap_err();
    assert!(matches!(error, ConnectFailure::Refused), "{error}");
}

#[test]
fn accept_ends_at_the_deadline() {
    let mut listener = listen(SocketAddr::new(HERE, 0)).unwrap();
    let before = Instant::now();
    assert!(listener.accept(SHORT).unwrap().is_none());
    assert!(before.elapsed() >= SHORT && before.elapsed() < SOON);
}

#[test]
fn an_address_that_is_taken_or_foreign_is_refused() {
    let taken = TcpListener::bind((HERE, 0)).unwrap();
    assert!(listen(taken.local_addr().unwrap()).is_err());
    // TEST-NET-1 (RFC 5737) belongs to no host.
    assert!(listen("192.0.2.1:0".parse().unwrap()).is_err());
}

#[test]
fn only_peers_with_the_key_are_accepted() {
    let mut listener = listen(SocketAddr::new(HERE, 0)).unwrap();
    let address = listener.address();
    let client = std::thread::spawn(move || {
        let stranger = Stream::connect(address, &key(2), CLAIM, LIMIT, SOON);
        assert!(stranger.unwrap_err().to_string().contains("does not know this job's key"));
        // A message without a handshake.
        let mut plain = TcpStream::connect(address).unwrap();
        let _ = plain.write_all(&[&length(90)[..], &[7; 90]].concat());
        assert!(!matches!(plain.read(&mut [0; 64]), Ok(1..)), "a stranger receives bytes");
        let mut channel = Stream::connect(address, &key(1), CLAIM, LIMIT, SOON).unwrap();
        channel.send(b"hello", SOON).unwrap();
        assert_eq!(channel.receive(SOON).unwrap(), b"welcome");
    });
    let mut channel = listener.accept(SOON).unwrap().unwrap();
    assert_eq!(channel.receive(SOON).unwrap(), b"hello");
    channel.send(b"welcome", SOON).unwrap();
    client.join().unwrap();
    assert!(listener.accept(Duration::from_millis(20)).unwrap().is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_of_a_peer_end_in_messages_or_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 0..300), first in 0usize..64, is_true: bool,
    ) {
        let (mut server, mut raw) = raw_pair();
        if is_true {
            raw.write_all(&length(first)).unwrap();
        }
        raw.write_all(&bytes).unwrap();
        drop(raw);
        for _ in 0..=bytes.len() / 4 + 1 {
            if let Err(error) = server.receive(SOON) {
                let waited = matches!(error, FrameError::TimedOut { .. });
                prop_assert!(!waited, "{}", error);
                return Ok(());
            }
        }
        prop_assert!(false, "more messages than bytes");
    }

    #[test]
    fn messages_are_taken_as_they_arrive(
        messages: Vec<Vec<u8>>, pieces in proptest::collection::vec(1usize..40, 1..20),
    ) {
        let bytes: Vec<u8> =
            messages.iter().flat_map(|one| frames::frame(one)).collect();
        let (mut received, mut taken, mut at) = (Received::new(LIMIT), Vec::new(), 0);
        for piece in pieces.iter().cycle() {
            let end = bytes.len().min(at + piece);
            received.add(&bytes[at..end]).unwrap();
            at = end;
            prop_assert!(received.waiting() <= bytes.len());
            while received.has_one().unwrap() {
                taken.push(received.take().unwrap().unwrap());
            }
            prop_assert!(received.take().unwrap().is_none());
            prop_assert!(received.expected().unwrap() > received.waiting());
            if at == bytes.len() {
                break;
            }
        }
        prop_assert_eq!((received.waiting(), taken), (0, messages));
    }
}
