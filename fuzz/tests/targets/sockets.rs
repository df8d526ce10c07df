//! Data over a socket of `tcp`: from peers without the key, and from malicious peers with the key.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use barewire::address::{DeviceAddress, EndpointAddress};
use barewire::capability::{AmShort, Atomics, GetBcopy, GetZcopy, PutZcopy};
use barewire::transport::{Domain as _, Endpoint as _, Interface as _, tcp};
use barewire::{
    Access, AtomicOp, Cause, Completion, FetchResult, InterfaceConfig, PeerAddress, PostError,
    Unpack,
};
use barewire_tcp::Key;
use barewire_tcp::connector::Connector;
use barewire_tcp::frames::{Stream, StreamListener};
use barewire_tcp::handshake::{Claim, Initiator, Purpose};
use barewire_tcp::listener::{Authenticated, Limits, Listener};
use barewire_tcp::message::{Header, Kind};
use barewire_tcp::outbox::{Outbox, Spare};
use barewire_tcp::request::{
    Action, Change, Operation, Outcome, RESPONSE_BYTES, Request, Response,
};
use barewire_tcp::socket::Socket;
use bolero::check;

use crate::allocation;
use crate::script::{Script, bytes_to};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const DEADLINE: Duration = Duration::from_secs(30);
/// Bytes of the longest message of a control connection.
const LIMIT: usize = 64 << 10;
/// Limit for a message: the longest one, and the size of a read.
const MESSAGE_MEMORY: usize = 2 << 20;
const CHANGES: [Change; 6] =
    [Change::Add, Change::And, Change::Or, Change::Xor, Change::Swap, Change::CompareSwap];

fn key() -> Key {
    Key::from_bytes([7; 32])
}

/// The number in the body of an address or a key, at offset `at` of the whole.
fn number(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// Limits without records, so that the contents of messages reach the parser.
fn plain() -> Limits {
    Limits { protected: false, ..Limits::default() }
}

/// Connects, and calls `work` in between.
fn connect(peer: SocketAddr, claim: Claim, limits: Limits, work: impl FnMut()) -> Socket {
    let connector = Connector::start(peer, Some(HERE.into()), &key(), claim, DEADLINE, limits);
    connector.unwrap().wait(work).unwrap()
}

/// Sends bytes on an authenticated connection; the other end may have closed.
fn say(socket: &mut Socket, bytes: &[u8]) {
    let (mut outbox, spare) = (Outbox::default(), Spare::default());
    assert!(outbox.push(&spare, bytes));
    let _ = outbox.flush(socket, &spare);
}

#[test]
fn any_strangers() {
    let mut door = Listener::open(HERE, key(), Limits::default()).unwrap();
    check!().with_generator(bytes_to(300)).for_each(|bytes| {
        let mut script = Script::new(bytes);
        let mut stranger = TcpStream::connect(door.address()).unwrap();
        let claim = Claim {
            purpose: Purpose::Memory,
            service: 1,
            endpoint: 2,
            from_service: 3,
            from_endpoint: 4,
        };
        if script.byte() & 1 == 1 {
            // The furthest step that is possible without the key.
            stranger
                .write_all(Initiator::new(claim, script.array(), script.byte() & 1 == 1).hello())
                .unwrap();
        }
        let mut admitted: Vec<Authenticated> = Vec::new();
        let most = allocation::peak(|| {
            while !script.is_over() {
                let part = usize::from(script.byte()) + 1;
                let _ = stranger.write_all(script.bytes(part));
                door.work(Instant::now(), &mut admitted);
            }
            door.work(Instant::now(), &mut admitted);
        });
        assert!(admitted.is_empty(), "a stranger got in");
        assert!(most < 64 << 10, "{most} bytes for a stranger");
        // Waits until the listener has closed the connection: it limits the time for
        // unauthenticated peers, and unaccepted connections would fill its backlog.
        let _ = stranger.shutdown(Shutdown::Write);
        stranger.set_nonblocking(true).unwrap();
        loop {
            door.work(Instant::now(), &mut admitted);
            match stranger.read(&mut [0; 64]) {
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Ok(0) | Err(_) => break,
            }
        }
    });
}

/// Data on a control connection, before and after authentication.
#[test]
fn anything_on_a_control_connection() {
    let claim = Claim {
        purpose: Purpose::Control,
        service: 0,
        endpoint: 0,
        from_service: 0,
        from_endpoint: 0,
    };
    let mut listener = StreamListener::bind(SocketAddr::new(HERE, 0), key(), claim, LIMIT).unwrap();
    let address = listener.address();
    check!().with_generator(bytes_to(512)).for_each(|bytes| {
        let listener = &mut listener;
        let mut script = Script::new(bytes);
        let mut stranger = TcpStream::connect(address).unwrap();
        if script.byte() & 1 == 1 {
            stranger
                .write_all(Initiator::new(claim, script.array(), script.byte() & 1 == 1).hello())
                .unwrap();
        }
        let length = usize::from(script.byte());
        let _ = stranger.write_all(script.bytes(length));
        // A client with the key that requests more than it may.
        let purpose = if script.byte() & 1 == 1 { Purpose::Messages } else { Purpose::Control };
        let wanted = purpose == Purpose::Control;
        let (mut admitted, start) = (None, Instant::now());
        let limits = plain();
        let mut connector = Connector::start(
            address,
            Some(HERE.into()),
            &key(),
            Claim { purpose, ..claim },
            DEADLINE,
            limits,
        )
        .unwrap();
        let peer = loop {
            assert!(start.elapsed() < DEADLINE, "no connection");
            if let Some(channel) = listener.accept(Duration::ZERO).unwrap() {
                assert!(wanted && admitted.is_none(), "a stranger got in");
                admitted = Some(channel);
            }
            match connector.advance(Instant::now()) {
                Ok(None) => {}
                Ok(Some(socket)) => break Some(socket),
                Err(_) => break None,
            }
        };
        assert_eq!(peer.is_some(), wanted);
        let (Some(mut peer), Some(mut channel)) = (peer, admitted) else { return };
        messages(&mut script, &mut peer, &mut channel);
    });
}

/// Sends messages with correct lengths, with wrong lengths, and any bytes, and receives them.
fn messages(script: &mut Script<'_>, peer: &mut Socket, channel: &mut Stream) {
    while !script.is_over() {
        let length = u32::from(script.number());
        let header = match script.byte() % 3 {
            0 => (length % 64).to_le_bytes(),
            1 => (length << 16).to_le_bytes(),
            _ => script.array(),
        };
        say(peer, &header);
        say(peer, script.bytes(length as usize % 64));
        let most = allocation::peak(|| {
            while let Ok(Some(message)) = channel.try_receive() {
                assert!(message.len() <= LIMIT);
            }
        });
        assert!(most < 4 * LIMIT, "{most} bytes for a message");
    }
}

/// An endpoint whose peer is this test.
struct Victim {
    domain: tcp::Domain,
    interface: tcp::Interface,
    progress: tcp::Progress,
}

/// The run ends at the first panic.
impl std::panic::RefUnwindSafe for Victim {}

impl Victim {
    fn open() -> Self {
        let domain = tcp::Domain::open_with_key("127.0.0.1", key()).unwrap();
        let (interface, progress) =
            tcp::Interface::open(&domain, &InterfaceConfig::default()).unwrap();
        interface
            .set_handler(0, |message| {
                std::hint::black_box(message.data().iter().fold(0u8, |sum, byte| sum ^ byte));
            })
            .unwrap();
        Self { domain, interface, progress }
    }

    /// An endpoint that waits for this test to connect, and the connection.
    fn endpoint(&mut self) -> (tcp::Endpoint, Socket) {
        self.endpoint_with(plain())
    }

    fn endpoint_with(&mut self, limits: Limits) -> (tcp::Endpoint, Socket) {
        let endpoint = tcp::Endpoint::new(&self.interface).unwrap();
        let address = endpoint.address();
        let own = address.endpoint().unwrap().to_bytes();
        // The smallest numbers: the endpoint connects.
        let mut peer = own.clone();
        peer[6..].fill(0);
        let peer = EndpointAddress::from_bytes(&peer).unwrap();
        let (device, interface) = (*address.device(), *address.interface());
        endpoint.connect(&PeerAddress::new(device, interface, Some(peer)).unwrap()).unwrap();
        let claim = Claim {
            purpose: Purpose::Messages,
            service: number(&own, 6),
            endpoint: number(&own, 14),
            from_service: 0,
            from_endpoint: 0,
        };
        let progress = &mut self.progress;
        let socket = connect(socket_address(&device), claim, limits, || {
            progress.progress();
        });
        (endpoint, socket)
    }
}

fn socket_address(device: &DeviceAddress) -> SocketAddr {
    device.to_string().parse().unwrap()
}

#[test]
fn any_messages_of_a_peer() {
    let mut victim = Victim::open();
    check!().with_generator(bytes_to(512)).for_each(|bytes| {
        let victim = &mut victim;
        let mut script = Script::new(bytes);
        let (endpoint, mut socket) = victim.endpoint();
        let most = allocation::peak(|| {
            while !script.is_over() {
                let length = u32::from(script.number());
                let header = match script.byte() % 5 {
                    // Valid and long messages, wrong lengths, empty messages, and any header.
                    0 => Header::message(script.byte(), length % 64).to_bytes(),
                    1 => Header::message(0, length << 5).to_bytes(),
                    2 => Header::message(0, length << 16).to_bytes(),
                    3 => Header { kind: Kind::Nothing, length: 0 }.to_bytes(),
                    _ => script.array(),
                };
                say(&mut socket, &header);
                say(&mut socket, script.bytes(usize::from(length as u8)));
                for _ in 0..3 {
                    victim.progress.progress();
                }
            }
        });
        assert!(most < MESSAGE_MEMORY, "{most} bytes for a message");
        drop(socket);
        let start = Instant::now();
        // A farewell ends the connection in order, and everything else is an error.
        while endpoint.error().is_none()
            && endpoint.am_short(0, 0, &[]) != Err(PostError::EndpointFailed)
        {
            victim.progress.progress();
            assert!(start.elapsed() < DEADLINE);
        }
    });
}

#[test]
fn any_requests_of_a_peer() {
    let domain = tcp::Domain::open_with_key("127.0.0.1", key()).unwrap();
    let memory = domain.allocate(256, Access::all()).unwrap();
    let untold = domain.allocate(64, Access::LOCAL_WRITE).unwrap();
    let packed = memory.pack_key();
    let peer = SocketAddr::new(HERE, u16::from_be_bytes([packed[6], packed[7]]));
    let claim = Claim {
        purpose: Purpose::Memory,
        service: number(&packed, 8),
        endpoint: 0,
        from_service: 1,
        from_endpoint: 1,
    };
    let token = number(&packed, 16);
    let mut honest = connect(peer, claim, plain(), || ());
    let mut finished = 0;
    check!().with_generator(bytes_to(512)).for_each(|bytes| {
        let mut script = Script::new(bytes);
        let mut socket = connect(peer, claim, plain(), || ());
        while !script.is_over() {
            let mut request = any_request(&mut script, token, &memory).to_bytes();
            script.mutate(&mut request);
            say(&mut socket, &request);
            let length = usize::from(script.byte());
            say(&mut socket, script.bytes(length));
        }
        drop(socket);
        // Other peers are served.
        let action = Action::Get { length: 8 };
        say(&mut honest, &Request { token, address: memory.address(), action }.to_bytes());
        let mut answer = [0; RESPONSE_BYTES + 8];
        let (mut count, start) = (0, Instant::now());
        while count < answer.len() {
            assert!(start.elapsed() < DEADLINE, "the target does not respond");
            count += honest.receive(&mut answer[count..]).unwrap().unwrap_or(0);
        }
        finished += 1;
        let answer = Response::parse(answer.first_chunk().unwrap()).unwrap();
        assert_eq!((answer.finished, answer.outcome), (finished, Outcome::Done));
    });
    let mut bytes = [0; 64];
    untold.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 64]);
}

/// A request that is likely to be executed.
fn any_request(script: &mut Script<'_>, token: u64, memory: &tcp::Memory) -> Request {
    let (at, length) = (u64::from(script.byte()), u64::from(script.byte() % 64));
    let action = match script.byte() % 4 {
        0 => Action::Put { length },
        1 => Action::Get { length },
        2 => Action::Get { length: length << (script.byte() % 64) },
        _ => Action::Atomic {
            change: CHANGES[usize::from(script.byte()) % CHANGES.len()],
            width: if length & 1 == 0 { 8 } else { 4 },
            fetch: length & 2 == 0,
            operand: length,
            compare: 0,
        },
    };
    Request { token, address: memory.address() + at, action }
}

#[test]
fn any_answers_of_a_target() {
    let mut victim = Victim::open();
    let mut door = Listener::open(HERE, key(), plain()).unwrap();
    // A key to memory of this test, as it claims.
    let mut packed = b"bw\x01K\x05\x12".to_vec();
    packed.extend_from_slice(&door.address().port().to_be_bytes());
    packed.extend_from_slice(&[9; 16]);
    let remote = victim.domain.unpack_key(&packed).unwrap();
    let local = victim.domain.allocate(4096, Access::LOCAL_WRITE).unwrap();
    check!().with_generator(bytes_to(512)).for_each(|bytes| {
        let victim = &mut victim;
        let mut script = Script::new(bytes);
        let (endpoint, _socket) = victim.endpoint();
        let done = Completion::counter();
        let unpack = Unpack::new(|bytes| {
            std::hint::black_box(bytes.len());
        });
        let result = FetchResult::new();
        let posts = 1 + u64::from(script.byte() % 6);
        for _ in 0..posts {
            let some = Some(&done);
            let posted = match script.byte() % 5 {
                0 => endpoint.put_zcopy(&[local.slice(0, 8).unwrap()], 0, &remote, some),
                1 => endpoint.get_bcopy(&unpack, usize::from(script.byte()), 0, &remote, some),
                2 => endpoint.get_zcopy(&[local.slice(0, 4000).unwrap()], 0, &remote, some),
                3 => endpoint.atomic_fetch(AtomicOp::Add(1_u64), 0, &remote, &result, some),
                _ => endpoint.get_zcopy(&[local.slice(5, 0).unwrap()], 0, &remote, some),
            };
            assert_eq!(posted, Ok(barewire::Posted::InProgress));
        }
        let mut admitted: Vec<Authenticated> = Vec::new();
        let start = Instant::now();
        while admitted.is_empty() {
            door.work(Instant::now(), &mut admitted);
            victim.progress.progress();
            assert!(start.elapsed() < DEADLINE);
        }
        let mut target = admitted.pop().unwrap().welcome().unwrap();
        while !script.is_over() {
            let operation =
                [Operation::Put, Operation::Get, Operation::Atomic][usize::from(script.byte() % 3)];
            let value = u64::from(script.number() % 4096);
            let finished = u64::from(script.byte() % 8);
            let outcome = match script.byte() % 16 {
                0 => Outcome::Refused,
                1 => Outcome::Altered,
                _ => Outcome::Done,
            };
            let mut answer = Response { finished, outcome, operation, value }.to_bytes();
            script.mutate(&mut answer);
            say(&mut target, &answer);
            say(&mut target, script.bytes(usize::from(value as u8)));
            victim.progress.progress();
        }
        drop(target);
        // Each completes once: a counter below zero would not be zero.
        while endpoint.error().is_none() {
            victim.progress.progress();
            assert!(start.elapsed() < DEADLINE);
        }
        assert_eq!(done.pending(), 0);
    });
}

/// Bytes that are not a record end the connection, and none of them are passed on.
#[test]
fn any_records_of_somebody_on_the_way() {
    static HEARD: AtomicBool = AtomicBool::new(false);
    let mut victim = Victim::open();
    for id in 0..32 {
        victim.interface.set_handler(id, |_| HEARD.store(true, Ordering::Relaxed)).unwrap();
    }
    check!().with_generator(bytes_to(300)).for_each(|bytes| {
        let victim = &mut victim;
        let mut script = Script::new(bytes);
        let (endpoint, socket) = victim.endpoint_with(Limits::default());
        assert!(socket.is_protected());
        let mut wire = TcpStream::from(socket.as_fd().try_clone_to_owned().unwrap());
        while !script.is_over() {
            let length = u32::from(script.byte() % 64);
            // Bytes that are likely to be parsed as a record.
            let _ = wire.write_all(&length.to_le_bytes());
            let _ = wire.write_all(script.bytes(length as usize + 16));
            victim.progress.progress();
        }
        drop((socket, wire));
        let start = Instant::now();
        while endpoint.error().is_none() {
            victim.progress.progress();
            assert!(start.elapsed() < DEADLINE);
        }
        let cause = endpoint.error().unwrap().cause;
        assert!(matches!(cause, Cause::Altered | Cause::Disconnected), "{cause:?}");
        assert!(!HEARD.load(Ordering::Relaxed));
    });
}
