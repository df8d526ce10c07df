//! Connections without the key, and peers that violate the protocol: their cost is bounded, and
//! they have no other effect.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use barewire_tcp::Key;
use barewire_tcp::connector::{ConnectFailure, Connector};
use barewire_tcp::handshake::{Claim, HandshakeError, Initiator, Purpose, Verdict};
use barewire_tcp::listener::{Authenticated, Limits, Listener};
use barewire_tcp::outbox::{Outbox, Spare};
use barewire_tcp::region::{Region, Regions, Rights};
use barewire_tcp::request::{
    Action, Change, Operation, Outcome, REQUEST_BYTES, RESPONSE_BYTES, Request, Response,
};
use barewire_tcp::socket::{RECEIVE, Socket};
use barewire_tcp::target::Target;

/// Long enough for a machine that is busy with other things.
const DEADLINE: Duration = Duration::from_mins(1);
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const CLAIM: Claim = Claim {
    purpose: Purpose::Messages,
    service: 1,
    endpoint: 2,
    from_service: 3,
    from_endpoint: 4,
};

fn key(seed: u8) -> Key {
    Key::from_bytes([seed; 32])
}

fn connector(peer: SocketAddr, key: &Key, claim: Claim) -> Connector {
    Connector::start(peer, Some(HERE.into()), key, claim, DEADLINE, Limits::default()).unwrap()
}

/// Advances the listener and the connector until the connection is open, or failed.
fn meet(
    listener: &mut Listener,
    mut connector: Connector,
) -> Result<(Socket, Socket), ConnectFailure> {
    let start = Instant::now();
    let mut admitted: Vec<Authenticated> = Vec::new();
    let mut there = None;
    loop {
        let now = Instant::now();
        assert!(now - start < DEADLINE, "no connection");
        listener.work(now, &mut admitted);
        for newcomer in admitted.drain(..) {
            assert_eq!(newcomer.claim, CLAIM);
            there = newcomer.welcome().ok();
        }
        if let Some(here) = connector.advance(now)? {
            return Ok((here, there.expect("the verdict came from somewhere")));
        }
    }
}

/// Lets the listener work until `done`.
fn work(listener: &mut Listener, what: &str, mut done: impl FnMut(&Listener) -> bool) {
    let start = Instant::now();
    let mut admitted = Vec::new();
    while !done(listener) {
        assert!(start.elapsed() < DEADLINE, "{what}");
        listener.work(Instant::now(), &mut admitted);
        assert!(admitted.is_empty(), "{what}: a connection was admitted");
        std::thread::yield_now();
    }
}

#[test]
fn who_knows_the_key_gets_in() {
    let mut listener = Listener::open(HERE, key(1), Limits::default()).unwrap();
    let connector = connector(listener.address(), &key(1), CLAIM);
    let (mut here, mut there) = meet(&mut listener, connector).unwrap();
    let (mut outbox, spare) = (Outbox::default(), Spare::default());
    assert!(outbox.push(&spare, b"hello") && outbox.flush(&mut here, &spare).unwrap());
    let mut bytes = vec![0; RECEIVE];
    let start = Instant::now();
    let count = loop {
        if let Some(count) = there.receive(&mut bytes).unwrap() {
            break count;
        }
        assert!(start.elapsed() < DEADLINE);
    };
    assert_eq!(&bytes[..count], b"hello");
    assert_eq!((listener.refused(), listener.handshakes()), (0, 0));
}

#[test]
fn a_key_of_another_job_is_reported() {
    let mut listener = Listener::open(HERE, key(1), Limits::default()).unwrap();
    let connector = connector(listener.address(), &key(2), CLAIM);
    let failure = meet(&mut listener, connector).unwrap_err();
    assert!(matches!(failure, ConnectFailure::Handshake(HandshakeError::Key)), "{failure}");
    work(&mut listener, "the handshake fails", |listener| {
        listener.refused() == 1 && listener.handshakes() == 0
    });
}

#[test]
fn a_refused_connection_is_reported() {
    let address = Listener::open(HERE, key(1), Limits::default()).unwrap().address();
    let failure = connector(address, &key(1), CLAIM).wait(std::thread::yield_now).unwrap_err();
    assert!(matches!(failure, ConnectFailure::Refused), "{failure}");
}

#[test]
fn a_handshake_may_arrive_byte_by_byte_but_times_out() {
    let limits = Limits { timeout: Duration::from_millis(1500), ..Limits::default() };
    let mut listener = Listener::open(HERE, key(1), limits).unwrap();
    let mut slow = TcpStream::connect(listener.address()).unwrap();
    slow.set_nodelay(true).unwrap();
    let start = Instant::now();
    let hello = *Initiator::new(CLAIM, [7; 32], true).hello();
    let mut rest = hello.iter();
    work(&mut listener, "the slow handshake times out", |listener| {
        if let Some(byte) = rest.next() {
            let _ = slow.write_all(&[*byte]);
        }
        listener.refused() == 1
    });
    assert!(start.elapsed() >= limits.timeout);
    // The slow client received the challenge and nothing else.
    let mut said = Vec::new();
    let _ = slow.read_to_end(&mut said);
    assert_eq!(said.len(), barewire_tcp::handshake::CHALLENGE_BYTES);
}

#[test]
fn a_recorded_conversation_opens_nothing() {
    let mut listener = Listener::open(HERE, key(1), Limits::default()).unwrap();
    // An eavesdropper records the bytes of an honest connection.
    let honest = Initiator::new(CLAIM, [7; 32], true);
    let mut recorded = TcpStream::connect(listener.address()).unwrap();
    recorded.write_all(honest.hello()).unwrap();
    recorded.set_nonblocking(true).unwrap();
    let mut challenge = [0; barewire_tcp::handshake::CHALLENGE_BYTES];
    work(&mut listener, "a challenge", |_| recorded.read_exact(&mut challenge).is_ok());
    let (claim, _) = honest.prove(&key(1), &challenge).unwrap();
    recorded.write_all(&claim).unwrap();
    let start = Instant::now();
    let mut admitted = Vec::new();
    while admitted.is_empty() {
        assert!(start.elapsed() < DEADLINE);
        listener.work(Instant::now(), &mut admitted);
    }
    // They open no other connection.
    for _ in 0..3 {
        let refused = listener.refused();
        let mut again = TcpStream::connect(listener.address()).unwrap();
        again.write_all(honest.hello()).unwrap();
        again.write_all(&claim).unwrap();
        work(&mut listener, "the recording is refused", |listener| listener.refused() > refused);
    }
}

#[test]
fn garbage_is_refused_at_once() {
    let mut listener = Listener::open(HERE, key(1), Limits::default()).unwrap();
    let mut version = *Initiator::new(CLAIM, [7; 32], true).hello();
    version[4] = 9;
    let garbage: [&[u8]; 4] =
        [&[0; 40], &[0xff; 4096], b"GET / HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n", &version];
    for bytes in garbage {
        let refused = listener.refused();
        let mut stranger = TcpStream::connect(listener.address()).unwrap();
        stranger.write_all(bytes).unwrap();
        work(&mut listener, "garbage", |listener| listener.refused() > refused);
        let mut said = Vec::new();
        let _ = stranger.read_to_end(&mut said);
        if bytes == version {
            // Only the version of this end.
            assert_eq!(said[..8], *b"BWTH\x03\0\0\0");
            said.drain(..8);
            assert_eq!(said, [0; barewire_tcp::handshake::CHALLENGE_BYTES - 8]);
        } else {
            assert!(said.is_empty(), "it was answered");
        }
    }
}

/// Silent connections use up the handshakes, and a peer with the key still connects.
#[test]
fn a_flood_of_silent_connections_keeps_no_peer_out() {
    const FLOOD: usize = 1_000;
    const HELD: usize = 200;
    let limits = Limits { handshakes: 64, ..Limits::default() };
    let mut listener = Listener::open(HERE, key(1), limits).unwrap();
    let address = listener.address();
    let over = Arc::new(AtomicBool::new(false));
    let flood = std::thread::spawn({
        let over = Arc::clone(&over);
        move || {
            let (mut held, mut connected) = (std::collections::VecDeque::new(), 0);
            for _ in 0..FLOOD {
                // A full backlog drops the SYN. The flood does not wait for its retransmission.
                let attempt = TcpStream::connect_timeout(&address, Duration::from_millis(20));
                if let Ok(stream) = attempt {
                    held.push_back(stream);
                    connected += 1;
                }
                if held.len() > HELD {
                    held.pop_front();
                }
            }
            over.store(true, Ordering::Release);
            (held, connected)
        }
    });
    let mut got_in = 0;
    while !over.load(Ordering::Acquire) {
        let connector = connector(address, &key(1), CLAIM);
        meet(&mut listener, connector).unwrap();
        got_in += 1;
        assert!(listener.handshakes() <= limits.handshakes);
    }
    let (held, connected) = flood.join().unwrap();
    println!("{connected} strangers, {got_in} peers");
    assert!(got_in > 0 && connected > HELD as u64);
    work(&mut listener, "the flood is taken", |listener| {
        listener.refused() + listener.handshakes() as u64 >= connected
    });
    assert!(listener.handshakes() <= limits.handshakes);
    drop(held);
}

/// Many peers that connect at once, and take their time to respond, all get in at the first attempt:
/// no handshake is dropped for another peer.
#[test]
fn many_peers_at_once_do_not_displace_each_other() {
    const PEERS: usize = 500;
    let mut listener = Listener::open(HERE, key(1), Limits::default()).unwrap();
    let address = listener.address();
    let mut connectors: Vec<Connector> =
        (0..PEERS).map(|_| connector(address, &key(1), CLAIM)).collect();
    let (mut admitted, mut sockets) = (Vec::new(), Vec::new());
    let start = Instant::now();
    while !connectors.is_empty() {
        assert!(start.elapsed() < DEADLINE, "{} of {PEERS} left", connectors.len());
        // The peers are busy for longer than the listener needs to accept as many as it may.
        let pause = Instant::now() + Duration::from_millis(10);
        while Instant::now() < pause {
            listener.work(Instant::now(), &mut admitted);
            sockets.extend(admitted.drain(..).filter_map(|newcomer| newcomer.welcome().ok()));
        }
        connectors.retain_mut(|connector| match connector.advance(Instant::now()) {
            Ok(None) => true,
            Ok(Some(socket)) => {
                sockets.push(socket);
                false
            }
            Err(failure) => panic!("{failure}"),
        });
    }
    println!("{PEERS} peers in {:?}", start.elapsed());
    assert_eq!((sockets.len(), listener.refused()), (2 * PEERS, 0));
}

/// The CPU time of this thread, which does not depend on the load of the machine.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Opens connections continually, and holds some of them.
fn flood(address: SocketAddr, over: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let over = Arc::clone(over);
    std::thread::spawn(move || {
        let mut held = std::collections::VecDeque::new();
        while !over.load(Ordering::Acquire) {
            if let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
                held.push_back(stream);
            }
            if held.len() > 200 {
                held.pop_front();
            }
        }
    })
}

/// A flood of connections costs a small part of the time in which the listener is called, and no
/// call takes long.
#[test]
fn a_flood_takes_a_small_share_of_time() {
    let mut listener = Listener::open(HERE, key(1), Limits::default()).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let floods = [(); 2].map(|()| flood(listener.address(), &over));
    // The accumulated time is spent first.
    work(&mut listener, "the flood", |listener| listener.refused() > 100);
    let (mut spent, mut longest) = (Duration::ZERO, Duration::ZERO);
    let (mut calls, mut busy, mut late) = (0, 0, 0);
    let (start, refused) = (Instant::now(), listener.refused());
    let mut admitted = Vec::new();
    while start.elapsed() < Duration::from_secs(2) {
        let before = cpu_time();
        listener.work(Instant::now(), &mut admitted);
        let took = cpu_time().saturating_sub(before);
        // A call of progress that costs as little as this has no connection to handle.
        if took > Duration::from_micros(10) {
            spent += took;
            busy += 1;
        }
        late += u32::from(took >= Duration::from_millis(1));
        longest = longest.max(took);
        calls += 1;
        std::thread::yield_now();
    }
    let share = spent.as_secs_f64() / start.elapsed().as_secs_f64();
    println!(
        "{calls} calls, {busy} of them busy, {} strangers: {share:.4} of the time, {longest:?} at most, \
         {late} calls over 1 ms",
        listener.refused() - refused
    );
    assert!(share < 0.05, "{share}");
    // The CPU time of a thread includes interrupts, and time that the hypervisor takes from this
    // machine.
    assert!(late <= 2 + busy / 200, "{late} of {busy} calls over 1 ms, {longest:?} at most");
    // A peer with the key connects. While the flood lasts, the kernel may drop its SYN as any
    // other.
    over.store(true, Ordering::Release);
    for flood in floods {
        flood.join().unwrap();
    }
    let start = Instant::now();
    let connector = connector(listener.address(), &key(1), CLAIM);
    meet(&mut listener, connector).unwrap();
    println!("a peer got in after {:?}", start.elapsed());
}

/// Connects with the key, and ends the connection, continually.
fn flood_of_member(address: SocketAddr, over: &Arc<AtomicBool>) -> std::thread::JoinHandle<u32> {
    let over = Arc::clone(over);
    std::thread::spawn(move || {
        let mut made = 0;
        while !over.load(Ordering::Acquire) {
            let mut connector = connector(address, &key(1), CLAIM);
            while !over.load(Ordering::Acquire) {
                match connector.advance(Instant::now()) {
                    Ok(None) => std::thread::yield_now(),
                    Ok(Some(_)) => {
                        made += 1;
                        break;
                    }
                    Err(_) => break,
                }
            }
        }
        made
    })
}

/// So do the connections of a peer that has the key, once more of them have come than honest peers
/// make; and a peer that is one more than ever is let in.
#[test]
fn connections_that_are_made_and_ended_take_a_small_share_of_time() {
    let mut listener = Listener::open(HERE, key(1), Limits::default()).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let floods = [(); 2].map(|()| flood_of_member(listener.address(), &over));
    let mut admitted: Vec<Authenticated> = Vec::new();
    let mut serve = |listener: &mut Listener| {
        let before = cpu_time();
        listener.work(Instant::now(), &mut admitted);
        let count = admitted.drain(..).map(|newcomer| drop(newcomer.welcome())).count();
        (count, cpu_time().saturating_sub(before))
    };
    let start = Instant::now();
    let mut served = 0;
    while served < 300 {
        served += serve(&mut listener).0;
        assert!(start.elapsed() < DEADLINE, "{served} connections");
    }
    let (mut spent, mut count, start) = (Duration::ZERO, 0, Instant::now());
    while start.elapsed() < Duration::from_secs(1) {
        let (served, took) = serve(&mut listener);
        count += served;
        if took > Duration::from_micros(10) {
            spent += took;
        }
        std::thread::yield_now();
    }
    let share = spent.as_secs_f64() / start.elapsed().as_secs_f64();
    println!("{count} connections, {share:.4} of the time");
    assert!(share < 0.05, "{share}");
    over.store(true, Ordering::Release);
    let made: u32 = floods.into_iter().map(|flood| flood.join().unwrap()).sum();
    assert!(made > 0);
    let address = listener.address();
    let ends = [(); 4].map(|()| meet(&mut listener, connector(address, &key(1), CLAIM)));
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
}

/// Runs a test in its own process with this limit of descriptors, as others change the process's
/// counts. Returns false in that process.
fn has_run_in_child(test: &str, descriptors: u32) -> bool {
    const CHILD: &str = "BAREWIRE_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return false;
    }
    let status = std::process::Command::new("sh")
        .args(["-c", &format!("ulimit -n {descriptors} && exec \"$0\" --exact strangers::{test}")])
        .arg(std::env::current_exe().unwrap())
        .env(CHILD, "1")
        .status()
        .unwrap();
    assert!(status.success());
    true
}

/// All listeners of a process together have a bounded number of handshakes.
#[test]
fn listeners_share_the_bound() {
    const LISTENERS: usize = 10;
    if has_run_in_child("listeners_share_the_bound", 4096) {
        return;
    }
    // No handshake times out during the test.
    let limits = Limits { timeout: 10 * DEADLINE, ..Limits::default() };
    let mut listeners: Vec<Listener> =
        (0..LISTENERS).map(|_| Listener::open(HERE, key(1), limits).unwrap()).collect();
    let mut strangers = Vec::new();
    let mut admitted = Vec::new();
    for round in 1..=70 {
        let addresses = listeners.iter().map(Listener::address);
        strangers.extend(addresses.map(|address| TcpStream::connect(address).unwrap()));
        let start = Instant::now();
        while listeners
            .iter()
            .any(|listener| listener.refused() + (listener.handshakes() as u64) < round)
        {
            assert!(start.elapsed() < DEADLINE);
            for listener in &mut listeners {
                listener.work(Instant::now(), &mut admitted);
            }
        }
        let handshakes: usize = listeners.iter().map(Listener::handshakes).sum();
        assert!(handshakes <= 64 + LISTENERS, "{handshakes}");
    }
    // Each has its share.
    assert!(listeners.iter().all(|listener| listener.handshakes() >= 64 / LISTENERS));
}

/// Without descriptors the listener waits until there are some.
#[test]
fn no_descriptors_left_is_survived() {
    if has_run_in_child("no_descriptors_left_is_survived", 64) {
        return;
    }
    let mut listener = Listener::open(HERE, key(1), Limits::default()).unwrap();
    // As many as 64 descriptors allow.
    let waiting: Vec<TcpStream> =
        (0..3).map(|_| TcpStream::connect(listener.address()).unwrap()).collect();
    let mut held = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        held.push(file);
    }
    let mut admitted = Vec::new();
    for _ in 0..100 {
        listener.work(Instant::now(), &mut admitted);
    }
    assert_eq!(listener.handshakes(), 0);
    let shortage = listener.take_shortage().expect("it is reported").to_string();
    assert!(shortage.contains(&listener.address().to_string()), "{shortage}");
    assert!(shortage.contains("ulimit -n"), "{shortage}");
    assert!(listener.take_shortage().is_none(), "once");
    let failure = Connector::start(
        listener.address(),
        Some(HERE.into()),
        &key(1),
        CLAIM,
        DEADLINE,
        Limits::default(),
    );
    assert_eq!(failure.unwrap_err().raw_os_error(), Some(24), "EMFILE");
    drop(held);
    work(&mut listener, "the waiting connections are accepted", |listener| {
        listener.handshakes() == waiting.len()
    });
    let connector = connector(listener.address(), &key(1), CLAIM);
    meet(&mut listener, connector).unwrap();
}

const SERVICE: u64 = 77;

/// A target over 64 bytes, with the region's number.
struct Served {
    target: Target,
    regions: Arc<Regions>,
    region: Arc<Region>,
    token: u64,
    memory: &'static mut [u64; 8],
}

fn served(rights: Rights) -> Served {
    let memory = Box::leak(Box::new([0u64; 8]));
    let start = NonNull::from(&mut *memory).cast::<u8>();
    // SAFETY: it is leaked, and read only while no access is in progress.
    #[allow(unsafe_code, reason = "registration is the caller's promise")]
    let region = Arc::new(unsafe { Region::new(start, 64, rights, None) });
    let regions = Arc::new(Regions::default());
    let token = regions.add(&region).unwrap();
    let target =
        Target::start(HERE, key(1), SERVICE, Arc::clone(&regions), Limits::default()).unwrap();
    Served { target, regions, region, token, memory }
}

impl Served {
    fn address(&self) -> u64 {
        self.memory.as_ptr().addr() as u64
    }

    fn connect(&self, service: u64) -> Result<Client, ConnectFailure> {
        let claim = Claim { purpose: Purpose::Memory, service, ..CLAIM };
        let socket =
            connector(self.target.address(), &key(1), claim).wait(std::thread::yield_now)?;
        Ok(Client { socket, outbox: Outbox::default(), spare: Spare::default(), held: vec![] })
    }

    fn request(&self, at: u64, action: Action) -> Request {
        Request { token: self.token, address: self.address() + at, action }
    }
}

struct Client {
    socket: Socket,
    outbox: Outbox,
    spare: Spare,
    held: Vec<u8>,
}

impl Client {
    fn say(&mut self, bytes: &[u8]) {
        assert!(self.outbox.push(&self.spare, bytes));
        let _ = self.outbox.flush(&mut self.socket, &self.spare);
    }

    /// Reads `count` bytes; `None` if the stream ends before.
    fn read(&mut self, count: usize) -> Option<Vec<u8>> {
        let start = Instant::now();
        while self.held.len() < count {
            assert!(start.elapsed() < DEADLINE);
            let mut bytes = vec![0; RECEIVE];
            match self.socket.receive(&mut bytes) {
                Ok(Some(0)) | Err(_) => return None,
                Ok(Some(read)) => self.held.extend_from_slice(&bytes[..read]),
                Ok(None) => std::thread::yield_now(),
            }
        }
        Some(self.held.drain(..count).collect())
    }

    fn response(&mut self) -> Option<Response> {
        let bytes = self.read(RESPONSE_BYTES)?;
        Some(Response::parse(bytes.first_chunk().unwrap()).unwrap())
    }
}

const ALL: Rights = Rights { write: true, read: true, atomic: true };

fn add(width: u8, operand: u64) -> Action {
    Action::Atomic { change: Change::Add, width, fetch: true, operand, compare: 0 }
}

#[test]
fn what_was_opened_is_served() {
    let served = served(ALL);
    let mut client = served.connect(SERVICE).unwrap();
    client.say(&served.request(8, Action::Put { length: 4 }).to_bytes());
    client.say(b"bytes"[..4].as_ref());
    let done = client.response().unwrap();
    assert_eq!((done.finished, done.outcome, done.operation), (1, Outcome::Done, Operation::Put));
    client.say(&served.request(7, Action::Get { length: 6 }).to_bytes());
    let response = client.response().unwrap();
    assert_eq!((response.finished, response.value), (2, 6));
    assert_eq!(client.read(6).unwrap(), b"\0byte\0");
    for (number, old) in [(3, 0), (4, 5)] {
        client.say(&served.request(16, add(4, 5)).to_bytes());
        let response = client.response().unwrap();
        assert_eq!(
            (response.finished, response.operation, response.value),
            (number, Operation::Atomic, old)
        );
    }
    assert!(matches!(
        served.connect(SERVICE + 1).map(drop),
        Err(ConnectFailure::Handshake(HandshakeError::Verdict(Verdict::Unknown)))
    ));
}

#[test]
fn a_connector_that_is_refused_by_a_busy_peer_tries_again_until_its_timeout() {
    let mut listener = Listener::open(HERE, key(1), Limits::default()).unwrap();
    let mut meet = |timeout, refusals| {
        let address = listener.address();
        let started = Connector::start(address, None, &key(1), CLAIM, timeout, Limits::default());
        let (mut connector, mut refused, mut accepted) = (started.unwrap(), 0, None);
        let (begun, mut admitted) = (Instant::now(), Vec::new());
        loop {
            let now = Instant::now();
            assert!(now - begun < DEADLINE, "no verdict");
            listener.work(now, &mut admitted);
            for newcomer in admitted.drain(..) {
                if refused < refusals {
                    refused += 1;
                    newcomer.refuse(Verdict::Busy);
                } else {
                    accepted = Some(newcomer.welcome().unwrap());
                }
            }
            match connector.advance(now) {
                Ok(None) => {}
                Ok(Some(_)) => return (refused, Ok(accepted.is_some())),
                Err(failure) => return (refused, Err(failure.to_string())),
            }
        }
    };
    assert_eq!(meet(DEADLINE, 8), (8, Ok(true)));
    let (refused, result) = meet(Duration::from_millis(500), usize::MAX);
    let failure = result.unwrap_err();
    assert!(refused > 1 && failure.starts_with("no response within 0.5 s"), "{failure}");
    assert!(failure.ends_with("(it is busy with other connections that are not set up yet)"));
}

/// A connection to a target.
type Ask = fn(&Served) -> Vec<u8>;

#[test]
fn what_was_not_opened_is_refused_and_others_go_on() {
    let wrong: [(&str, Rights, Ask); 12] = [
        ("a guessed number", ALL, |s| {
            let request = s.request(0, Action::Get { length: 8 });
            Request { token: request.token ^ 1, ..request }.to_bytes().to_vec()
        }),
        ("past the end", ALL, |s| s.request(60, Action::Get { length: 8 }).to_bytes().to_vec()),
        ("before the start", ALL, |s| {
            let request = s.request(0, Action::Get { length: 8 });
            Request { address: request.address - 1, ..request }.to_bytes().to_vec()
        }),
        ("around the end of all addresses", ALL, |s| {
            let request = s.request(0, Action::Get { length: u64::MAX });
            Request { address: request.address + 8, ..request }.to_bytes().to_vec()
        }),
        ("more than there is memory", ALL, |s| {
            s.request(0, Action::Put { length: 1 << 60 }).to_bytes().to_vec()
        }),
        ("put without the right", Rights { write: false, ..ALL }, |s| {
            s.request(0, Action::Put { length: 0 }).to_bytes().to_vec()
        }),
        ("get without the right", Rights { read: false, ..ALL }, |s| {
            s.request(0, Action::Get { length: 1 }).to_bytes().to_vec()
        }),
        ("atomic without the right", Rights { atomic: false, ..ALL }, |s| {
            s.request(0, add(8, 1)).to_bytes().to_vec()
        }),
        ("atomic between two words", ALL, |s| s.request(4, add(8, 1)).to_bytes().to_vec()),
        ("atomic past the end", ALL, |s| s.request(64, add(8, 1)).to_bytes().to_vec()),
        ("what is no request", ALL, |_| vec![0xff; REQUEST_BYTES]),
        ("a freed region", ALL, |s| {
            s.region.revoke();
            s.request(0, Action::Get { length: 1 }).to_bytes().to_vec()
        }),
    ];
    for (what, rights, bytes) in wrong {
        let served = served(rights);
        let mut other = served.connect(SERVICE).unwrap();
        let mut client = served.connect(SERVICE).unwrap();
        client.say(&bytes(&served));
        // The request behind it is not executed.
        client.say(&served.request(0, Action::Put { length: 8 }).to_bytes());
        client.say(&[0xee; 8]);
        let response = client.response().unwrap_or_else(|| panic!("{what}: no response"));
        assert_eq!((response.finished, response.outcome), (1, Outcome::Refused), "{what}");
        assert!(client.read(1).is_none(), "{what}: the connection ends");

        let fresh = Box::leak(Box::new([7u64; 1]));
        let start = NonNull::from(&mut *fresh).cast::<u8>();
        // SAFETY: it is leaked and not used otherwise.
        #[allow(unsafe_code, reason = "registration is the caller's promise")]
        let region = Arc::new(unsafe { Region::new(start, 8, ALL, None) });
        let request = Request {
            token: served.regions.add(&region).unwrap(),
            address: start.addr().get() as u64,
            action: Action::Get { length: 8 },
        };
        other.say(&request.to_bytes());
        let response = other.response().unwrap();
        assert_eq!((response.finished, response.outcome), (1, Outcome::Done), "{what}");
        assert_eq!(other.read(8).unwrap(), 7u64.to_ne_bytes(), "{what}");
        let Served { target, memory, .. } = served;
        drop(target);
        assert_eq!(*memory, [0; 8], "{what}");
    }
}

/// The target stops reading from a peer that does not read its responses, whose memory is bounded,
/// and serves others.
#[test]
fn a_peer_that_does_not_read_delays_no_other() {
    let served = served(ALL);
    let mut greedy = served.connect(SERVICE).unwrap();
    let request = served.request(0, Action::Get { length: 64 }).to_bytes();
    let (mut posted, start) = (0u64, Instant::now());
    // Until the kernel takes no more of its requests: the target has stopped reading them.
    let mut full = None;
    while full.is_none_or(|since: Instant| since.elapsed() < Duration::from_millis(300)) {
        assert!(start.elapsed() < DEADLINE);
        if greedy.outbox.push(&greedy.spare, &request) {
            posted += 1;
        }
        let sent = greedy.outbox.sent();
        let _ = greedy.outbox.flush(&mut greedy.socket, &greedy.spare);
        full = if greedy.outbox.sent() > sent { None } else { full.or(Some(Instant::now())) };
    }
    let mut other = served.connect(SERVICE).unwrap();
    other.say(&served.request(0, add(8, 3)).to_bytes());
    assert_eq!(other.response().unwrap().outcome, Outcome::Done);
    // When it reads again, all responses arrive in order.
    for number in 1..=posted {
        let _ = greedy.outbox.flush(&mut greedy.socket, &greedy.spare);
        let response = greedy.response().unwrap();
        assert_eq!((response.finished, response.value), (number, 64));
        assert_eq!(greedy.read(64).unwrap().len(), 64);
    }
}

/// A put whose data arrive slowly delays no other peer, and one whose sender dies leaves the rest
/// unchanged.
#[test]
fn half_a_put() {
    let served = served(ALL);
    let mut slow = served.connect(SERVICE).unwrap();
    slow.say(&served.request(0, Action::Put { length: 16 }).to_bytes());
    slow.say(&[1; 8]);
    let mut other = served.connect(SERVICE).unwrap();
    other.say(&served.request(56, add(8, 3)).to_bytes());
    assert_eq!(other.response().unwrap().outcome, Outcome::Done);
    slow.say(&[2; 8]);
    assert_eq!(slow.response().unwrap().outcome, Outcome::Done);
    slow.say(&served.request(16, Action::Put { length: 16 }).to_bytes());
    slow.say(&[3; 8]);
    drop(slow);
    other.say(&served.request(56, add(8, 3)).to_bytes());
    assert_eq!(other.response().unwrap().value, 3);
    drop(served.target);
    assert_eq!(served.memory[..2], [0x0101_0101_0101_0101, 0x0202_0202_0202_0202]);
    assert_eq!(served.memory[3], 0);
}

/// A timeout does not expire while the process is stopped: what arrived meanwhile counts.
#[test]
fn listeners_and_connectors_that_are_called_rarely() {
    let limits = Limits { timeout: Duration::from_millis(200), ..Limits::default() };
    let mut listener = Listener::open(HERE, key(1), limits).unwrap();
    let timeout = limits.timeout;
    let mut connector =
        Connector::start(listener.address(), Some(HERE.into()), &key(1), CLAIM, timeout, limits)
            .unwrap();
    let mut admitted = Vec::new();
    // Each step of the handshake takes longer than the timeout.
    for _ in 0..10 {
        std::thread::sleep(2 * timeout);
        listener.work(Instant::now(), &mut admitted);
        for newcomer in admitted.drain(..) {
            assert!(newcomer.welcome().is_ok());
        }
        std::thread::sleep(2 * timeout);
        if connector.advance(Instant::now()).unwrap().is_some() {
            assert_eq!(listener.refused(), 0);
            return;
        }
    }
    panic!("no connection");
}

#[test]
fn handshakes_may_take_any_time() {
    let limits = Limits { timeout: Duration::MAX, ..Limits::default() };
    let mut listener = Listener::open(HERE, key(1), limits).unwrap();
    let _silent = TcpStream::connect(listener.address()).unwrap();
    let (start, mut admitted) = (Instant::now(), Vec::new());
    while listener.handshakes() == 0 {
        listener.work(Instant::now(), &mut admitted);
        assert!(start.elapsed() < DEADLINE);
    }
    assert!(listener.deadline().is_some_and(|deadline| deadline > Instant::now()));
    let forever = Connector::start(
        listener.address(),
        Some(HERE.into()),
        &key(1),
        CLAIM,
        Duration::MAX,
        Limits::default(),
    );
    assert!(meet(&mut listener, forever.unwrap()).is_ok());
}
