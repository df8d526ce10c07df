//! Peers of `tcp` that stop responding: stopped for a while or for too long, or disconnected
//! without a notice.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::address::EndpointAddress;
use barewire::{
    Access, AtomicOp, Cause, Domain, FetchResult, FlushMode, InterfaceConfig, Memory, PeerAddress,
    PostError, Posted, RemoteKey, Worker,
};
use barewire_tcp::Key;
use barewire_tcp::connector::Connector;
use barewire_tcp::handshake::{Claim, Purpose};
use barewire_tcp::listener::Limits;
use barewire_tcp::message::{Header, Kind};
use barewire_tcp::outbox::{Outbox, Spare};
use barewire_tcp::socket::Socket;

use crate::sockets::{goes_on, side};
use crate::support::{DEADLINE, Pair, Side, Watch, collect, connect, until, watch_errors};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Every byte of the key of ends in different processes.
const KEY: u8 = 5;
/// The variable with the port of the test, set in its child process.
const CHILD: &str = "BAREWIRE_TEST_STOPPED";

/// Fills the connection to a peer that makes no progress. Returns the flush that waits for it, and
/// the memory being sent.
fn fill_up(worker: &mut Worker, client: &Side) -> (Watch, Memory) {
    let source = client.domain.allocate(1 << 20, Access::empty()).unwrap();
    let slice = [source.slice(0, 1 << 20).unwrap()];
    let mut waiting = 0;
    // More than the kernels of both ends buffer.
    while waiting < 32 {
        match client.endpoint.am_zcopy(1, &[], &slice, None).unwrap() {
            Posted::InProgress => waiting += 1,
            Posted::Done => waiting = 0,
        }
        worker.progress();
    }
    let flushed = Watch::new(1);
    flushed.posted(client.endpoint.flush(FlushMode::Local, Some(&flushed.completion)));
    (flushed, source)
}

/// A stopped peer with full buffers fails after a while. Other endpoints continue.
#[test]
fn a_peer_that_stopped_for_too_long() {
    let config = InterfaceConfig::default().peer_timeout(Duration::from_secs(2));
    let mut pair = Pair::over_tcp(&config);
    let errors = watch_errors(&pair.client.interface);
    let (mut stopped, client) = (Worker::new(), pair.client.another());
    let peer =
        Side::open(&mut stopped, &Domain::open(&"tcp/lo".parse().unwrap()).unwrap(), &config);
    connect(&client, &peer);
    let there = collect(&peer.interface, 2);
    client.endpoint.am_short(2, 0, &[]).unwrap();
    until(&mut [&mut pair.worker, &mut stopped], "first message", || there.borrow().len() == 1);
    let (flushed, _source) = fill_up(&mut pair.worker, &client);
    let mut others = 0;
    while !flushed.is_done() {
        goes_on(&mut pair);
        others += 1;
    }
    assert!(others > 1);
    let error = errors.borrow()[0].clone();
    assert_eq!((errors.borrow().len(), error.cause), (1, Cause::Disconnected), "{error}");
    assert_eq!(flushed.calls(), 1);
    assert_eq!(client.endpoint.check(), Err(PostError::EndpointFailed));
    goes_on(&mut pair);
}

/// A peer that was stopped for less continues.
#[test]
fn a_peer_that_stopped_for_a_while() {
    let mut pair = Pair::over_tcp(&InterfaceConfig::default());
    let errors = watch_errors(&pair.client.interface);
    let inbox = collect(&pair.server.interface, 1);
    pair.connected();
    let (flushed, _source) = fill_up(&mut pair.worker, &pair.client);
    let before = std::time::Instant::now();
    while before.elapsed() < Duration::from_millis(1500) {
        pair.worker.progress();
        assert!(!flushed.is_done());
        std::thread::sleep(Duration::from_millis(1));
    }
    pair.until("everything", || flushed.is_done());
    assert_eq!(flushed.result(), Some(Ok(())));
    pair.post("last", |endpoint| endpoint.am_short(1, 0, b"last")).unwrap();
    pair.until("last", || inbox.borrow().last().is_some_and(|message| message.ends_with(b"last")));
    assert!(inbox.borrow().len() > 32 && errors.borrow().is_empty());
}

/// A process of this test, killed on drop.
struct Process(Child);

impl Process {
    fn signal(&self, name: &str) {
        assert!(
            Command::new("kill").args([name, &self.0.id().to_string()]).status().unwrap().success()
        );
    }

    /// Stops all threads of the process.
    fn stop(&self) {
        self.signal("-STOP");
        let start = Instant::now();
        let tasks = format!("/proc/{}/task", self.0.id());
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat =
                std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
            stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
        };
        while !std::fs::read_dir(&tasks).unwrap().all(is_stopped) {
            assert!(start.elapsed() < DEADLINE, "it does not stop");
            std::thread::yield_now();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends the length of `bytes`, and `bytes`.
fn say(link: &mut TcpStream, bytes: &[u8]) {
    link.write_all(&(bytes.len() as u32).to_le_bytes()).unwrap();
    link.write_all(bytes).unwrap();
}

/// Returns true if there is something to [`hear`].
fn has_message(link: &TcpStream) -> bool {
    link.set_nonblocking(true).unwrap();
    let peeked = link.peek(&mut [0]);
    link.set_nonblocking(false).unwrap();
    !matches!(&peeked, Err(error) if error.kind() == ErrorKind::WouldBlock) && peeked.unwrap() > 0
}

fn hear(link: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 4];
    link.read_exact(&mut length).unwrap();
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    link.read_exact(&mut bytes).unwrap();
    bytes
}

/// Sends the addresses of this end, and connects to the other end. Returns the key and the address
/// of its memory.
fn introduce(link: &mut TcpStream, side: &Side, memory: &Memory) -> (RemoteKey, u64) {
    let own = [
        side.endpoint.address().to_bytes(),
        memory.pack_key(),
        memory.address().to_le_bytes().to_vec(),
    ];
    for word in own {
        say(link, &word);
    }
    let mut word = || hear(link);
    side.endpoint.connect(&PeerAddress::from_bytes(&word()).unwrap()).unwrap();
    (side.domain.unpack_key(&word()).unwrap(), u64::from_le_bytes(word().try_into().unwrap()))
}

/// The stopped process: receives all messages in order, until it receives their number.
fn be_stopped(port: u16) {
    let mut link = TcpStream::connect((HERE, port)).unwrap();
    let mut worker = Worker::new();
    let side = side(&mut worker, KEY, &InterfaceConfig::default());
    let memory = side.domain.allocate(64, Access::all()).unwrap();
    let next = Rc::new(Cell::new(0));
    let count = Rc::clone(&next);
    let handler = move |message: barewire::Message<'_>| {
        assert_eq!(message.split_short().unwrap().0, count.get(), "lost, or out of order");
        count.set(count.get() + 1);
    };
    side.interface.set_handler(1, handler).unwrap();
    introduce(&mut link, &side, &memory);
    until(&mut [&mut worker], "the number of messages", || has_message(&link));
    let total = u64::from_le_bytes(hear(&mut link).try_into().unwrap());
    until(&mut [&mut worker], "all messages", || next.get() == total);
    say(&mut link, b"all");
    // To the peer, the end of this process is an error.
    hear(&mut link);
}

/// A process is stopped with messages and an atomic in flight to it and full buffers: other
/// endpoints of the same interface continue, and after the process continues nothing is lost.
#[test]
fn a_process_that_is_stopped_goes_on_where_it_was() {
    if let Ok(port) = std::env::var(CHILD) {
        return be_stopped(port.parse().unwrap());
    }
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "silence::a_process_that_is_stopped_goes_on_where_it_was"])
        .env(CHILD, listener.local_addr().unwrap().port().to_string())
        .stdout(Stdio::null())
        .spawn();
    let mut process = Process(child.unwrap());
    let mut link = listener.accept().unwrap().0;
    link.set_read_timeout(Some(DEADLINE)).unwrap();
    let config = InterfaceConfig::default();
    let (mut worker, mut there) = (Worker::new(), Worker::new());
    let client = side(&mut worker, KEY, &config);
    let errors = watch_errors(&client.interface);
    let memory = client.domain.allocate(64, Access::empty()).unwrap();
    let (key, address) = introduce(&mut link, &client, &memory);
    let (neighbour, its_peer) = (client.another(), side(&mut there, KEY, &config));
    connect(&neighbour, &its_peer);
    let inbox = collect(&its_peer.interface, 1);

    let mut sent = 0;
    let mut send = || match client.endpoint.am_short(1, sent, &[7; 8000]) {
        Ok(()) => {
            sent += 1;
            true
        }
        Err(error) => {
            assert_eq!(error, PostError::NoResource);
            false
        }
    };
    let result = FetchResult::new();
    let fetch = || {
        let watch = Watch::new(1);
        let endpoint = &client.endpoint;
        watch.posted(endpoint.atomic_fetch(
            AtomicOp::Add(1_u64),
            address,
            &key,
            &result,
            Some(&watch.completion),
        ));
        watch
    };
    assert!(send());
    let before = fetch();
    until(&mut [&mut worker], "the first ones", || before.is_done());
    process.stop();
    let during = fetch();
    let (mut others, mut full, start) = (0, false, Instant::now());
    while !full || start.elapsed() < Duration::from_millis(1500) {
        assert!(start.elapsed() < DEADLINE, "the buffers never get full");
        full = !(0..16).all(|_| send());
        others += 1;
        neighbour.endpoint.am_short(1, others, &[]).unwrap();
        until(&mut [&mut worker, &mut there], "the neighbour", || {
            inbox.borrow().len() as u64 == others
        });
    }
    assert!(!during.is_done() && errors.borrow().is_empty());
    process.signal("-CONT");
    until(&mut [&mut worker], "the atomic", || during.is_done());
    assert_eq!((during.result(), result.get()), (Some(Ok(())), 1));
    let flushed = || client.endpoint.flush(FlushMode::Remote, None) == Ok(Posted::Done);
    until(&mut [&mut worker], "the flush", flushed);
    say(&mut link, &sent.to_le_bytes());
    until(&mut [&mut worker], "the peer's word", || has_message(&link));
    assert!(errors.borrow().is_empty());
    say(&mut link, b"end");
    assert!(process.0.wait().unwrap().success());
}

/// The number in the body of an address, from byte `at` of the whole on.
fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(*bytes[at..].first_chunk().unwrap())
}

/// Connects the endpoint to this test, which acts as its peer.
fn connect_to_test(worker: &mut Worker, client: &Side) -> Socket {
    let own_address = client.endpoint.address();
    let own = own_address.endpoint().unwrap().to_bytes();
    // The smallest numbers: the endpoint connects.
    let mut peer = own.clone();
    peer[6..].fill(0);
    let peer = EndpointAddress::from_bytes(&peer).unwrap();
    let (device, interface) = (*own_address.device(), *own_address.interface());
    client.endpoint.connect(&PeerAddress::new(device, interface, Some(peer)).unwrap()).unwrap();
    let claim = Claim {
        purpose: Purpose::Messages,
        service: number(&own, 6),
        endpoint: number(&own, 14),
        from_service: 0,
        from_endpoint: 0,
    };
    let (address, key) = (device.to_string().parse().unwrap(), Key::from_bytes([KEY; 32]));
    let connector =
        Connector::start(address, Some(HERE.into()), &key, claim, DEADLINE, Limits::default());
    let work = || {
        worker.progress();
    };
    connector.unwrap().wait(work).unwrap()
}

/// From now on the kernel drops all packets for this socket without acknowledgement, as if the
/// cable were cut.
fn cut(socket: &Socket) {
    // BPF_RET | BPF_K: accepts zero bytes of each packet.
    let mut instruction = libc::sock_filter { code: 6, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut instruction };
    let length = size_of_val(&program) as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel reads the program and its one instruction
    // before the call returns.
    let set = unsafe {
        let (socket, option) = (socket.as_fd().as_raw_fd(), libc::SO_ATTACH_FILTER);
        libc::setsockopt(socket, libc::SOL_SOCKET, option, (&raw const program).cast(), length)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// The connection is half open: both a sending and a receiving endpoint fail after `peer_timeout`,
/// and others continue.
#[test]
fn a_connection_that_is_half_open() {
    let config = InterfaceConfig::default().peer_timeout(Duration::from_secs(2));
    for sends in [true, false] {
        let mut pair = Pair::over_tcp(&config);
        let client = side(&mut pair.worker, KEY, &config);
        let errors = watch_errors(&client.interface);
        let mut socket = connect_to_test(&mut pair.worker, &client);
        // Enough messages for the connection to be polled directly.
        let nothing = Header { kind: Kind::Nothing, length: 0 }.to_bytes();
        let (mut outbox, spare) = (Outbox::default(), Spare::default());
        for _ in 0..100 {
            assert!(outbox.push(&spare, &nothing) && outbox.flush(&mut socket, &spare).unwrap());
            pair.worker.progress();
        }
        assert_eq!(client.endpoint.error(), None);
        cut(&socket);
        let start = Instant::now();
        if sends {
            assert_eq!(client.endpoint.am_short(1, 0, &[]), Ok(()));
        }
        while errors.borrow().is_empty() {
            goes_on(&mut pair);
            assert!(start.elapsed() < DEADLINE, "no failure is reported");
        }
        let (took, error) = (start.elapsed(), errors.borrow()[0].clone());
        assert!(took > config.peer_timeout / 2 && took < 10 * config.peer_timeout, "{took:?}");
        assert_eq!((errors.borrow().len(), error.cause), (1, Cause::Disconnected), "{error}");
        assert_eq!(client.endpoint.am_short(1, 0, &[]), Err(PostError::EndpointFailed));
        goes_on(&mut pair);
    }
}
