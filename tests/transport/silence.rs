//! Peers of `tcp` that fall silent: stopped for a while or for too long, and gone without a word.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::{
    Access, Cause, DeviceAddress, Domain, EndpointAddress, FetchResult, FlushMode, InterfaceConfig, Memory,
    PostError, Posted, RemoteKey, Worker,
};
use barewire_tcp::Key;
use barewire_tcp::connector::Connector;
use barewire_tcp::door::Limits;
use barewire_tcp::handshake::{Claim, Purpose};
use barewire_tcp::message::{Header, Kind};
use barewire_tcp::outbox::{Outbox, Spare};
use barewire_tcp::socket::Socket;

use crate::sockets::{goes_on, side};
use crate::support::{DEADLINE, Pair, Side, Watch, collect, connect, until, watch_errors};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Every byte of the key of those who are not in one process.
const KEY: u8 = 5;
/// The port of the test whose peer this process is.
const CHILD: &str = "BAREWIRE_TEST_STOPPED";

/// Fills the connection to a peer that takes nothing. Answers the flush that waits for it, and what is being sent.
fn fill_up(worker: &mut Worker, client: &Side) -> (Watch, Memory) {
    let source = client.domain.allocate(1 << 20, Access::empty()).unwrap();
    let slice = [source.slice(0, 1 << 20).unwrap()];
    let mut waiting = 0;
    // More than the systems of both ends take.
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

/// A peer that is stopped, and whose buffers are full, counts as gone after a while. Others go on meanwhile.
#[test]
fn a_peer_that_stopped_for_too_long() {
    let config = InterfaceConfig::default().peer_timeout(Duration::from_secs(2));
    let mut pair = Pair::over_tcp(&config);
    let errors = watch_errors(&pair.client.interface);
    let (mut stopped, client) = (Worker::new(), pair.client.another());
    let peer = Side::open(&mut stopped, &Domain::open("tcp", "lo").unwrap(), &config);
    connect(&client, &peer);
    let there = collect(&peer.interface, 2);
    let _ = client.endpoint.am_short(2, 0, &[]).unwrap();
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

/// One that was stopped for less goes on where it was.
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
    let _ = pair.post("last", |endpoint| endpoint.am_short(1, 0, b"last")).unwrap();
    pair.until("last", || inbox.borrow().last().is_some_and(|message| message.ends_with(b"last")));
    assert!(inbox.borrow().len() > 32 && errors.borrow().is_empty());
}

/// A process of this test; ended when it is dropped.
struct Process(Child);

impl Process {
    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.0.id().to_string()]).status().unwrap().success());
    }

    /// Stops it, every thread.
    fn stop(&self) {
        self.signal("-STOP");
        let start = Instant::now();
        let tasks = format!("/proc/{}/task", self.0.id());
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
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

/// Sends the addresses of this end, and connects to the other end. Returns the key and the address of
/// its memory.
fn introduce(link: &mut TcpStream, side: &Side, memory: &Memory) -> (RemoteKey, u64) {
    let own = [
        side.interface.device_address().to_bytes(),
        side.endpoint.address().to_bytes(),
        memory.pack_key(),
        memory.address().to_le_bytes().to_vec(),
    ];
    for word in own {
        say(link, &word);
    }
    let mut word = || hear(link);
    let (device, endpoint) = (DeviceAddress::from_bytes(&word()), EndpointAddress::from_bytes(&word()));
    side.endpoint.connect(&device.unwrap(), &endpoint.unwrap()).unwrap();
    (side.domain.unpack_key(&word()).unwrap(), u64::from_le_bytes(word().try_into().unwrap()))
}

/// What the process does that is stopped: takes messages, every one and in order, until it is told how many there were.
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
}

/// A process that is stopped, with messages and an atomic on their way to it and the buffers full: others of the same interface go on, and when
/// it goes on nothing is lost.
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
        Ok(_) => {
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
        watch.posted(endpoint.atomic_fetch_add64(1, address, &key, &result, Some(&watch.completion)));
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
        let _ = neighbour.endpoint.am_short(1, others, &[]).unwrap();
        until(&mut [&mut worker, &mut there], "the neighbour", || inbox.borrow().len() as u64 == others);
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
    assert!(process.0.wait().unwrap().success());
}

/// The number in the body of an address, from byte `at` of the whole on.
fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(*bytes[at..].first_chunk().unwrap())
}

/// Connects the endpoint to this test, which is no endpoint.
fn connect_to_test(worker: &mut Worker, client: &Side) -> Socket {
    let own = client.endpoint.address().to_bytes();
    // The smallest numbers: that end connects.
    let mut peer = own.clone();
    peer[6..].fill(0);
    let device = client.interface.device_address();
    client.endpoint.connect(&device, &EndpointAddress::from_bytes(&peer).unwrap()).unwrap();
    let claim = Claim {
        purpose: Purpose::Messages,
        service: number(&own, 6),
        endpoint: number(&own, 14),
        from_service: 0,
        from_endpoint: 0,
    };
    let (address, key) = (device.to_string().parse().unwrap(), Key::from_bytes([KEY; 32]));
    let connector = Connector::start(address, Some(HERE), &key, claim, DEADLINE, Limits::default());
    let work = || {
        worker.progress();
    };
    connector.unwrap().wait(work).unwrap()
}

/// From now on the system drops what comes for this socket, as if the cable were cut: it acknowledges nothing.
fn cut(socket: &Socket) {
    // BPF_RET | BPF_K: zero bytes of each packet are let through.
    let mut instruction = libc::sock_filter { code: 6, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut instruction };
    let length = size_of_val(&program) as libc::socklen_t;
    // SAFETY: the descriptor is open, and the system reads the program and its one instruction before the call returns.
    let set = unsafe {
        let (socket, option) = (socket.as_fd().as_raw_fd(), libc::SO_ATTACH_FILTER);
        libc::setsockopt(socket, libc::SOL_SOCKET, option, (&raw const program).cast(), length)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// A peer that is gone without a word, so that the connection is half open: who sends, and who only listens, is told when `peer_timeout` is
/// over, and others go on.
#[test]
fn a_connection_that_is_half_open() {
    let config = InterfaceConfig::default().peer_timeout(Duration::from_secs(2));
    for sends in [true, false] {
        let mut pair = Pair::over_tcp(&config);
        let client = side(&mut pair.worker, KEY, &config);
        let errors = watch_errors(&client.interface);
        let mut socket = connect_to_test(&mut pair.worker, &client);
        // It was heard of often enough to be asked directly.
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
            assert_eq!(client.endpoint.am_short(1, 0, &[]), Ok(Posted::Done));
        }
        while errors.borrow().is_empty() {
            goes_on(&mut pair);
            assert!(start.elapsed() < DEADLINE, "nobody is told");
        }
        let (took, error) = (start.elapsed(), errors.borrow()[0].clone());
        assert!(took > config.peer_timeout / 2 && took < 10 * config.peer_timeout, "{took:?}");
        assert_eq!((errors.borrow().len(), error.cause), (1, Cause::Disconnected), "{error}");
        assert_eq!(client.endpoint.am_short(1, 0, &[]), Err(PostError::EndpointFailed));
        goes_on(&mut pair);
    }
}
