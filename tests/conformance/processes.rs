//! Peers in separate processes, and their death.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use barewire::{
    Access, DeviceId, Domain, Endpoint, Flags, FlushMode, Interface, InterfaceConfig, Memory,
    PeerAddress, PostError, Posted, Worker,
};

use crate::place::Place;
use crate::support::{DEADLINE, Watch, until, watch_errors};

/// Set in the process of a peer: `transport device`.
const ROLE: &str = "BAREWIRE_TEST_PEER";

/// Short enough to detect a dead peer soon, long enough for a peer that waits for a CPU: 34 ms,
/// eight times.
pub(crate) fn config() -> InterfaceConfig {
    InterfaceConfig::default().ack_timeout(13).peer_timeout(Duration::from_secs(4))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// One end in a separate process.
pub(crate) struct End {
    pub(crate) worker: Worker,
    pub(crate) domain: Domain,
    pub(crate) interface: Interface,
    pub(crate) endpoint: Endpoint,
    pub(crate) memory: Memory,
}

impl End {
    pub(crate) fn open(transport: &str, device: &str) -> Self {
        Self::open_with(transport, device, &config())
    }

    pub(crate) fn open_with(transport: &str, device: &str, config: &InterfaceConfig) -> Self {
        let mut worker = Worker::new();
        let domain = Domain::open(&DeviceId::new(transport.parse().unwrap(), device)).unwrap();
        let interface = Interface::open(&mut worker, &domain, config).unwrap();
        let endpoint = Endpoint::new(&interface).unwrap();
        let memory = domain.allocate(4096, Access::all()).unwrap();
        Self { worker, domain, interface, endpoint, memory }
    }

    /// The information for the other end, in one line.
    pub(crate) fn introduction(&self) -> String {
        self.introduction_of(&self.endpoint)
    }

    /// As [`Self::introduction`], for another endpoint of the interface.
    pub(crate) fn introduction_of(&self, endpoint: &Endpoint) -> String {
        let peer = hex(&endpoint.address().to_bytes());
        format!("{peer} {} {}", hex(&self.memory.pack_key()), self.memory.address())
    }

    /// Connects to the end of `introduction`. Returns the key and the address of its memory.
    pub(crate) fn connect(&self, introduction: &str) -> (Vec<u8>, u64) {
        connect(&self.endpoint, introduction)
    }
}

/// Connects an endpoint to the end of `introduction`. Returns the key and the address of its memory.
pub(crate) fn connect(endpoint: &Endpoint, introduction: &str) -> (Vec<u8>, u64) {
    let words: Vec<&str> = introduction.split_whitespace().collect();
    let [peer, key, address] = words[..] else { panic!("no introduction: {introduction:?}") };
    endpoint.connect(&PeerAddress::from_bytes(&bytes(peer)).unwrap()).unwrap();
    (bytes(key), address.parse().unwrap())
}

/// Runs as a peer if this process was started as one, until it is killed or the test has ended.
pub(crate) fn be_a_peer() -> bool {
    let Ok(role) = std::env::var(ROLE) else { return false };
    let (transport, device) = role.split_once(' ').unwrap();
    let mut end = End::open(transport, device);
    println!("{}", end.introduction());
    let mut introduction = String::new();
    std::io::stdin().read_line(&mut introduction).unwrap();
    end.connect(&introduction);
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = tell.send(line);
        }
    });
    loop {
        match told.try_recv() {
            Ok(_) => {
                for number in 0..LAST_WORDS {
                    let post = || end.endpoint.am_short(0, number, &[]);
                    until(&mut [&mut end.worker], "a message", || post().is_ok());
                }
                let flushed = || end.endpoint.flush(FlushMode::Local, None) == Ok(Posted::Done);
                until(&mut [&mut end.worker], "the flush", flushed);
                println!("sent");
                // What arrives from now on is not received.
                while told.recv().is_ok() {}
                return true;
            }
            Err(mpsc::TryRecvError::Empty) if end.worker.progress() == 0 => thread::yield_now(),
            Err(mpsc::TryRecvError::Empty) => {}
            Err(mpsc::TryRecvError::Disconnected) => return true,
        }
    }
}

/// Messages that a peer sends when a line follows the introduction of the other end.
const LAST_WORDS: u64 = 100;

/// The process of a peer, killed on drop.
pub(crate) struct Peer {
    process: Child,
    lines: mpsc::Receiver<String>,
    pub(crate) introduction: String,
}

impl Peer {
    pub(crate) fn start((transport, device): (&str, &str)) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, format!("{transport} {device}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (tell, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        let introduction = lines.recv_timeout(DEADLINE).unwrap();
        Self { process, lines, introduction }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A peer is killed with operations in flight: its endpoint fails once, with a reason; each
/// operation completes once; another endpoint of the same interface continues.
pub(crate) fn a_killed_peer_is_told_once(place: &Place) {
    let Some([here, there]) = place.ends() else { return };
    let mut doomed = Peer::start(there);
    let mut living = Peer::start(there);
    let mut end = End::open(here.0, here.1);
    let errors = watch_errors(&end.interface);
    let second = Endpoint::new(&end.interface).unwrap();
    doomed.tell(&end.introduction());
    let (key, remote) = end.connect(&doomed.introduction);
    let key = end.domain.unpack_key(&key).unwrap();
    let other = End {
        endpoint: second,
        worker: Worker::new(),
        domain: end.domain.clone(),
        interface: end.interface.clone(),
        memory: end.domain.allocate(8, Access::all()).unwrap(),
    };
    living.tell(&other.introduction());
    let (other_key, other_remote) = other.connect(&living.introduction);
    let other_key = end.domain.unpack_key(&other_key).unwrap();

    let by_message = !end.interface.attributes().flags.contains(Flags::PUT_ZCOPY);
    let slice = [end.memory.slice(0, 512).unwrap()];
    let post = |endpoint: &Endpoint, remote, key, watch: &Watch| {
        if by_message {
            endpoint.am_zcopy(0, &[], &slice[..1], Some(&watch.completion))
        } else {
            endpoint.put_zcopy(&slice, remote, key, Some(&watch.completion))
        }
    };
    let what = format!("{}: the first operation", place.name);
    for (endpoint, remote, key) in
        [(&end.endpoint, remote, &key), (&other.endpoint, other_remote, &other_key)]
    {
        let watch = Watch::new(1);
        until(&mut [&mut end.worker], &what, || match post(endpoint, remote, key, &watch) {
            Ok(posted) => {
                watch.posted(Ok(posted));
                true
            }
            Err(error) => {
                assert_eq!(error, PostError::NoResource, "{}", place.name);
                false
            }
        });
        until(&mut [&mut end.worker], &what, || watch.is_done());
        assert_eq!(watch.result(), Some(Ok(())), "{}", place.name);
    }

    doomed.kill();
    let mut watches = Vec::new();
    let start = Instant::now();
    while end.endpoint.error().is_none() || errors.borrow().is_empty() {
        let watch = Watch::new(1);
        match post(&end.endpoint, remote, &key, &watch) {
            Ok(Posted::InProgress) => watches.push(watch),
            Ok(Posted::Done) | Err(PostError::NoResource | PostError::EndpointFailed) => {}
            Err(error) => panic!("{}: {error}", place.name),
        }
        end.worker.progress();
        thread::yield_now();
        assert!(start.elapsed() < DEADLINE, "{}: the end of the peer is not reported", place.name);
    }
    let what = format!("{}: what was in flight", place.name);
    until(&mut [&mut end.worker], &what, || watches.iter().all(Watch::is_done));
    assert!(watches.iter().all(|watch| watch.calls() == 1), "{}", place.name);

    // The other peer is running.
    let watch = Watch::new(1);
    watch.posted(post(&other.endpoint, other_remote, &other_key, &watch));
    until(&mut [&mut end.worker], &what, || watch.is_done());
    assert_eq!(watch.result(), Some(Ok(())), "{}", place.name);
    let flushed = || other.endpoint.flush(FlushMode::Remote, None) == Ok(Posted::Done);
    until(&mut [&mut end.worker], &what, flushed);
    assert_eq!(errors.borrow().len(), 1, "{}: {:?}", place.name, errors.borrow());
    assert_eq!(
        end.endpoint.flush(FlushMode::Local, None),
        Err(PostError::EndpointFailed),
        "{}",
        place.name
    );
}

/// What a peer has sent is received, although this side notices by its reply to the first message
/// that the peer has ended.
pub(crate) fn what_a_killed_peer_has_sent_is_received(place: &Place) {
    let Some([here, there]) = place.ends() else { return };
    let mut peer = Peer::start(there);
    let mut end = End::open(here.0, here.1);
    let received = Rc::new(Cell::new(0));
    let (count, endpoint) = (Rc::clone(&received), end.endpoint.clone());
    end.interface
        .set_handler(0, move |_| {
            count.set(count.get() + 1);
            let _ = endpoint.am_short(0, 0, &[]);
        })
        .unwrap();
    peer.tell(&end.introduction());
    end.connect(&peer.introduction);
    let connected = || end.endpoint.am_short(0, 0, &[]).is_ok();
    until(&mut [&mut end.worker], &place.name, connected);
    let flushed = || end.endpoint.flush(FlushMode::Remote, None) == Ok(Posted::Done);
    until(&mut [&mut end.worker], &place.name, flushed);
    peer.tell("send");
    // Nothing of it is received yet, unless the peer waits for this side's progress.
    if peer.lines.recv_timeout(Duration::from_secs(1)).is_err() {
        until(&mut [&mut end.worker], &place.name, || peer.lines.try_recv().is_ok());
    }
    // A kernel resets the connections of a process that ends with bytes that it has not received.
    // On a wire that loses packets, the window may be closed.
    let sent = end.endpoint.am_short(0, 0, &[]);
    assert!(matches!(sent, Ok(()) | Err(PostError::NoResource)), "{sent:?}");
    peer.kill();
    until(&mut [&mut end.worker], &place.name, || received.get() == LAST_WORDS);
}
