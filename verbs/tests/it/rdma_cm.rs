//! Connections by rdma_cm within this process.

use crate::support;

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use barewire_verbs::rdma_cm::{
    ConnectError, Connection, ConnectionEvent, Connector, Listener, Offer, Reason, Request, Step,
};
use barewire_verbs::{
    CompletionQueue, Context, Data, Initialize, Operation, ProtectionDomain, QueuePair,
    QueuePairState, Request as Post, SendFlags, WorkCompletion,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use support::{Buffer, all_access, completion, reliable};

const PATIENCE: Duration = Duration::from_mins(1);

fn offer(private_data: &[u8]) -> Offer<'_> {
    Offer { private_data, ..Offer::default() }
}

/// A listener at a free port of all devices, and the address by which this machine reaches it.
fn listener() -> (Listener, SocketAddr) {
    let listener = Listener::bind("0.0.0.0:0".parse().unwrap()).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], listener.address().port()));
    (listener, address)
}

/// A queue pair in the state INIT with a posted receive, and what it needs.
struct Side {
    pair: QueuePair,
    buffer: Buffer,
    queue: CompletionQueue,
}

impl Side {
    fn new(device: &str, initialize: &Initialize) -> Self {
        let context = Context::open(device).unwrap();
        let domain = ProtectionDomain::new(&context).unwrap();
        let queue = CompletionQueue::new(&context, 64).unwrap();
        let pair = reliable(&domain, &queue);
        pair.initialize(initialize).unwrap();
        let buffer = Buffer::new(&domain);
        pair.post_receive(1, &[buffer.element(0, 64)]).unwrap();
        Self { pair, buffer, queue }
    }

    fn of_client(connector: &Connector) -> Self {
        Self::new(connector.device(), &connector.initialize(all_access()))
    }

    fn of_server(request: &Request) -> Self {
        Self::new(request.device(), &request.initialize(all_access()))
    }

    /// Sends 8 bytes and receives 8 bytes of the peer.
    fn exchange(&self, message: [u8; 8]) -> [u8; 8] {
        let send = Post {
            id: 2,
            operation: Operation::Send { immediate: None },
            data: Data::Inline(&message),
            flags: SendFlags::SIGNALED,
        };
        self.pair.post(&send).unwrap();
        let mut ended = [completion(&self.queue), completion(&self.queue)];
        ended.sort_by_key(WorkCompletion::id);
        for (one, id) in ended.iter().zip([1, 2]) {
            one.outcome().unwrap();
            assert_eq!(one.id(), id);
        }
        self.buffer.pages.read(0)
    }
}

fn next(listener: &mut Listener) -> Request {
    listener.next_request(PATIENCE).unwrap().expect("a request")
}

/// Connects on another thread, and returns what the client got.
fn client(
    address: SocketAddr,
    private_data: &'static [u8],
    timeout: Duration,
) -> thread::JoinHandle<Result<(Side, Connection), ConnectError>> {
    thread::spawn(move || {
        let connector = Connector::resolve(address, PATIENCE)?;
        let mut side = Side::of_client(&connector);
        let connection = connector.connect(&mut side.pair, &offer(private_data), timeout)?;
        Ok((side, connection))
    })
}

#[test]
#[ignore = "needs a device"]
fn private_data_and_messages_go_in_both_directions() {
    let (mut listener, address) = listener();
    assert!(listener.next_request(Duration::ZERO).unwrap().is_none());
    let client = client(address, b"of the client", PATIENCE);
    let wait = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&listener.as_fd(), PollFlags::IN)], Some(&wait)), Ok(1));
    let request = next(&mut listener);
    assert!(request.private_data().starts_with(b"of the client\0"));
    let mut server = Side::of_server(&request);
    let longest = [7; 196];
    let mut accepted = request.accept(&mut server.pair, &offer(&longest), PATIENCE).unwrap();
    assert!(accepted.private_data().starts_with(b"of the client\0"));
    let (client, mut connected) = client.join().unwrap().unwrap();
    assert_eq!(connected.private_data(), longest);
    assert_eq!((connected.peer(), accepted.device()), (address, connected.device()));
    assert_eq!(Some(accepted.peer()), connected.local());

    let client = thread::spawn(move || (client.exchange(*b"of c 007"), client));
    assert_eq!(server.exchange(*b"of s 007"), *b"of c 007");
    let (received, client) = client.join().unwrap();
    assert_eq!(received, *b"of s 007");

    assert_eq!(accepted.next_event(Duration::ZERO).unwrap(), None);
    connected.disconnect().unwrap();
    for connection in [&mut accepted, &mut connected] {
        let event = connection.next_event(PATIENCE).unwrap();
        assert_eq!(event, Some(ConnectionEvent::Disconnected));
    }
    assert_eq!(client.pair.state().unwrap(), QueuePairState::ReadyToSend);
    client.pair.fail().unwrap();
}

#[test]
#[ignore = "needs a device"]
fn dropping_a_connection_disconnects() {
    let (mut listener, address) = listener();
    let client = client(address, b"", PATIENCE);
    let request = next(&mut listener);
    let mut server = Side::of_server(&request);
    let mut accepted = request.accept(&mut server.pair, &offer(b""), PATIENCE).unwrap();
    drop(client.join().unwrap().unwrap());
    assert_eq!(accepted.next_event(PATIENCE).unwrap(), Some(ConnectionEvent::Disconnected));
}

#[test]
#[ignore = "needs a device"]
fn a_rejection_carries_the_reason_of_the_program() {
    let (mut listener, address) = listener();
    let first = client(address, b"", PATIENCE);
    let request = next(&mut listener);
    let text = request.peer().to_string();
    let error = request.reject(&[0; 149]).unwrap_err();
    let words = format!("149 bytes of private data for {text}, but the message holds 148");
    assert_eq!(error.to_string(), words);
    // The request was dropped with the error, which rejects it without data.
    let error = first.join().unwrap().err().unwrap();
    assert!(matches!(error, ConnectError::Rejected { reason: Reason::ByProgram, .. }), "{error}");

    let second = client(address, b"", PATIENCE);
    next(&mut listener).reject(b"full").unwrap();
    let error = second.join().unwrap().err().unwrap();
    let expected =
        format!("{address} rejected the connection: the program that listens refused it");
    assert_eq!(error.to_string(), expected);
    let ConnectError::Rejected { reason: Reason::ByProgram, private_data, .. } = error else {
        panic!("{error}");
    };
    assert!(private_data.starts_with(b"full\0"), "{private_data:?}");
}

#[test]
#[ignore = "needs a device"]
fn a_port_without_a_listener_rejects() {
    // A port of TCP is not one of rdma_cm.
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let error = client(address, b"", PATIENCE).join().unwrap().err().unwrap();
    let expected = format!("{address} rejected the connection: no program listens to the port");
    assert_eq!(error.to_string(), expected);
    assert!(matches!(error, ConnectError::Rejected { reason: Reason::NoListener, .. }));
}

#[test]
#[ignore = "needs a device"]
fn a_server_that_does_not_respond_costs_the_given_time() {
    let (mut listener, address) = listener();
    let start = Instant::now();
    let error = client(address, b"", Duration::from_millis(200)).join().unwrap().err().unwrap();
    assert!(start.elapsed() < PATIENCE);
    let expected = format!(
        "no connection with {address} within 200ms: the peer has neither accepted nor rejected the request"
    );
    assert_eq!(error.to_string(), expected);
    assert!(matches!(error, ConnectError::TimedOut { step: Step::Response, .. }));
    // The listener drops the request of a client that is gone. If it does not know that yet, the
    // server finds out when it accepts.
    if let Some(request) = listener.next_request(Duration::from_secs(1)).unwrap() {
        let mut server = Side::of_server(&request);
        let error = request.accept(&mut server.pair, &offer(b""), PATIENCE).unwrap_err();
        assert!(
            matches!(error, ConnectError::Rejected { .. } | ConnectError::Disconnected { .. }),
            "{error}"
        );
    }
    // It serves the next client.
    let client = client(address, b"", PATIENCE);
    let request = next(&mut listener);
    let mut server = Side::of_server(&request);
    let _connection = request.accept(&mut server.pair, &offer(b""), PATIENCE).unwrap();
    assert!(client.join().unwrap().is_ok());
}

#[test]
#[ignore = "needs a device"]
fn private_data_that_are_too_long_are_not_sent() {
    let (mut listener, address) = listener();
    let error = client(address, &[0; 57], PATIENCE).join().unwrap().err().unwrap();
    assert!(matches!(error, ConnectError::PrivateData { length: 57, most: 56, .. }), "{error}");
    assert!(listener.next_request(Duration::ZERO).unwrap().is_none());
}

#[test]
#[ignore = "needs a device"]
fn addresses_without_a_device_are_named() {
    let nowhere: SocketAddr = "203.0.113.7:4791".parse().unwrap();
    let error = Listener::bind(nowhere).unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot listen on {nowhere}: ")), "{error}");
    let peer: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let error = Connector::resolve_from(nowhere, peer, PATIENCE).unwrap_err();
    assert!(matches!(error, ConnectError::NoDevice { .. }), "{error}");
    assert!(error.to_string().starts_with(&format!("no RDMA device leads to {peer}: ")), "{error}");
}

#[test]
#[ignore = "needs a device"]
fn a_port_has_one_listener() {
    let (first, _) = listener();
    let error = Listener::bind(first.address()).unwrap_err();
    assert!(error.to_string().ends_with("; another listener has the port"), "{error}");
}
