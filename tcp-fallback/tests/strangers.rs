//! What strangers, and peers that lie, can do: cost a bounded little, and nothing else.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use barewire_tcp::Key;
use barewire_tcp::connector::{ConnectFailure, Connector};
use barewire_tcp::door::{Admitted, Door, Limits};
use barewire_tcp::handshake::{Claim, HandshakeError, Initiator, Purpose, Verdict};
use barewire_tcp::outbox::{Outbox, Spare};
use barewire_tcp::region::{Region, Regions, Rights};
use barewire_tcp::request::{
    ANSWER_BYTES, Action, Answer, Change, Operation, Outcome, REQUEST_BYTES, Request,
};
use barewire_tcp::socket::{RECEIVE, Socket};
use barewire_tcp::target::Target;

/// Long enough for a machine that is busy with other things.
const DEADLINE: Duration = Duration::from_mins(1);
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const CLAIM: Claim =
    Claim { purpose: Purpose::Messages, service: 1, endpoint: 2, from_service: 3, from_endpoint: 4 };

fn key(seed: u8) -> Key {
    Key::from_bytes([seed; 32])
}

fn connector(peer: SocketAddr, key: &Key, claim: Claim) -> Connector {
    Connector::start(peer, Some(HERE), key, claim, DEADLINE, Limits::default()).unwrap()
}

/// Lets door and connector work until there is a connection, or why there is none.
fn meet(door: &mut Door, mut connector: Connector) -> Result<(Socket, Socket), ConnectFailure> {
    let start = Instant::now();
    let mut admitted: Vec<Admitted> = Vec::new();
    let mut there = None;
    loop {
        let now = Instant::now();
        assert!(now - start < DEADLINE, "no connection");
        door.work(now, &mut admitted);
        for newcomer in admitted.drain(..) {
            assert_eq!(newcomer.claim, CLAIM);
            there = newcomer.welcome().ok();
        }
        if let Some(here) = connector.advance(now)? {
            return Ok((here, there.expect("the verdict came from somewhere")));
        }
    }
}

/// Lets the door work until `done`.
fn work(door: &mut Door, what: &str, mut done: impl FnMut(&Door) -> bool) {
    let start = Instant::now();
    let mut admitted = Vec::new();
    while !done(door) {
        assert!(start.elapsed() < DEADLINE, "{what}");
        door.work(Instant::now(), &mut admitted);
        assert!(admitted.is_empty(), "{what}: somebody got in");
        std::thread::yield_now();
    }
}

#[test]
fn who_knows_the_key_gets_in() {
    let mut door = Door::open(HERE, key(1), Limits::default()).unwrap();
    let connector = connector(door.address(), &key(1), CLAIM);
    let (mut here, mut there) = meet(&mut door, connector).unwrap();
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
    assert_eq!((door.refused(), door.guests()), (0, 0));
}

#[test]
fn a_key_of_another_job_is_told_as_such() {
    let mut door = Door::open(HERE, key(1), Limits::default()).unwrap();
    let connector = connector(door.address(), &key(2), CLAIM);
    let failure = meet(&mut door, connector).unwrap_err();
    assert!(matches!(failure, ConnectFailure::Handshake(HandshakeError::Key)), "{failure}");
    work(&mut door, "the guest leaves", |door| door.refused() == 1 && door.guests() == 0);
}

#[test]
fn nobody_listens() {
    let address = Door::open(HERE, key(1), Limits::default()).unwrap().address();
    let failure = connector(address, &key(1), CLAIM).wait(std::thread::yield_now).unwrap_err();
    assert!(matches!(failure, ConnectFailure::Refused), "{failure}");
}

#[test]
fn what_one_end_says_may_come_byte_by_byte_but_not_forever() {
    let limits = Limits { patience: Duration::from_millis(1500), ..Limits::default() };
    let mut door = Door::open(HERE, key(1), limits).unwrap();
    let mut slow = TcpStream::connect(door.address()).unwrap();
    slow.set_nodelay(true).unwrap();
    let start = Instant::now();
    let hello = *Initiator::new(CLAIM, [7; 32], true).hello();
    let mut rest = hello.iter();
    work(&mut door, "the slow one leaves", |door| {
        if let Some(byte) = rest.next() {
            let _ = slow.write_all(&[*byte]);
        }
        door.refused() == 1
    });
    assert!(start.elapsed() >= limits.patience);
    // It was challenged, and then nothing.
    let mut said = Vec::new();
    let _ = slow.read_to_end(&mut said);
    assert_eq!(said.len(), barewire_tcp::handshake::CHALLENGE_BYTES);
}

#[test]
fn a_recorded_conversation_opens_nothing() {
    let mut door = Door::open(HERE, key(1), Limits::default()).unwrap();
    // What an eavesdropper has of an honest connection.
    let honest = Initiator::new(CLAIM, [7; 32], true);
    let mut recorded = TcpStream::connect(door.address()).unwrap();
    recorded.write_all(honest.hello()).unwrap();
    recorded.set_nonblocking(true).unwrap();
    let mut challenge = [0; barewire_tcp::handshake::CHALLENGE_BYTES];
    work(&mut door, "a challenge", |_| recorded.read_exact(&mut challenge).is_ok());
    let (claim, _) = honest.answer(&key(1), &challenge).unwrap();
    recorded.write_all(&claim).unwrap();
    let start = Instant::now();
    let mut admitted = Vec::new();
    while admitted.is_empty() {
        assert!(start.elapsed() < DEADLINE);
        door.work(Instant::now(), &mut admitted);
    }
    // And what it is worth.
    for _ in 0..3 {
        let refused = door.refused();
        let mut again = TcpStream::connect(door.address()).unwrap();
        again.write_all(honest.hello()).unwrap();
        again.write_all(&claim).unwrap();
        work(&mut door, "the recording is refused", |door| door.refused() > refused);
    }
}

#[test]
fn garbage_is_refused_at_once() {
    let mut door = Door::open(HERE, key(1), Limits::default()).unwrap();
    let mut version = *Initiator::new(CLAIM, [7; 32], true).hello();
    version[4] = 9;
    let garbage: [&[u8]; 4] =
        [&[0; 40], &[0xff; 4096], b"GET / HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n", &version];
    for bytes in garbage {
        let refused = door.refused();
        let mut stranger = TcpStream::connect(door.address()).unwrap();
        stranger.write_all(bytes).unwrap();
        work(&mut door, "garbage", |door| door.refused() > refused);
        let mut said = Vec::new();
        let _ = stranger.read_to_end(&mut said);
        if bytes == version {
            // Nothing but the version of this end.
            assert_eq!(said[..8], *b"BWTH\x02\0\0\0");
            said.drain(..8);
            assert_eq!(said, [0; barewire_tcp::handshake::CHALLENGE_BYTES - 8]);
        } else {
            assert!(said.is_empty(), "it was answered");
        }
    }
}

/// Connections that say nothing fill every place, and a peer with the key still connects.
#[test]
fn a_flood_of_silence_keeps_nobody_out() {
    const FLOOD: usize = 1_000;
    const HELD: usize = 200;
    let limits = Limits { guests: 64, ..Limits::default() };
    let mut door = Door::open(HERE, key(1), limits).unwrap();
    let address = door.address();
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
        meet(&mut door, connector).unwrap();
        got_in += 1;
        assert!(door.guests() <= limits.guests);
    }
    let (held, connected) = flood.join().unwrap();
    println!("{connected} strangers, {got_in} peers");
    assert!(got_in > 0 && connected > HELD as u64);
    work(&mut door, "the flood is taken", |door| door.refused() + door.guests() as u64 >= connected);
    assert!(door.guests() <= limits.guests);
    drop(held);
}

/// The CPU time of this thread: what others do on a busy machine does not count.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Connections without an end, of which some are held.
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

/// Strangers that come without an end cost a small part of the time in which the door is worked, and no call
/// takes long.
#[test]
fn a_flood_takes_a_small_share_of_time() {
    let mut door = Door::open(HERE, key(1), Limits::default()).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let floods = [(); 2].map(|()| flood(door.address(), &over));
    // What was saved up is spent first.
    work(&mut door, "the flood", |door| door.refused() > 100);
    let (mut spent, mut longest) = (Duration::ZERO, Duration::ZERO);
    let (mut calls, mut busy, mut late) = (0, 0, 0);
    let (start, refused) = (Instant::now(), door.refused());
    let mut admitted = Vec::new();
    while start.elapsed() < Duration::from_secs(2) {
        let before = cpu_time();
        door.work(Instant::now(), &mut admitted);
        let took = cpu_time().saturating_sub(before);
        // As a call of progress: what costs as little as this is no stranger's.
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
        door.refused() - refused
    );
    assert!(share < 0.05, "{share}");
    // The CPU time of a thread includes interrupts, and time that the hypervisor takes from this machine.
    assert!(late <= 2 + busy / 200, "{late} of {busy} calls over 1 ms, {longest:?} at most");
    // A peer with the key connects. While the flood lasts, the kernel may drop its SYN as any other.
    over.store(true, Ordering::Release);
    for flood in floods {
        flood.join().unwrap();
    }
    let start = Instant::now();
    let connector = connector(door.address(), &key(1), CLAIM);
    meet(&mut door, connector).unwrap();
    println!("a peer got in after {:?}", start.elapsed());
}

/// Many doors have no more guests together than there are places for.
#[test]
fn doors_share_their_places() {
    const DOORS: usize = 10;
    let mut doors: Vec<Door> =
        (0..DOORS).map(|_| Door::open(HERE, key(1), Limits::default()).unwrap()).collect();
    let mut strangers = Vec::new();
    let mut admitted = Vec::new();
    for round in 1..=70 {
        let addresses = doors.iter().map(Door::address);
        strangers.extend(addresses.map(|address| TcpStream::connect(address).unwrap()));
        let start = Instant::now();
        while doors.iter().any(|door| door.refused() + (door.guests() as u64) < round) {
            assert!(start.elapsed() < DEADLINE);
            for door in &mut doors {
                door.work(Instant::now(), &mut admitted);
            }
        }
        let guests: usize = doors.iter().map(Door::guests).sum();
        assert!(guests <= 64 + DOORS, "{guests}");
    }
    // Each has its share.
    assert!(doors.iter().all(|door| door.guests() >= 64 / DOORS));
}

/// Without descriptors the door waits, and goes on when there are some.
#[test]
fn no_descriptors_left_is_survived() {
    // In a process of its own, which may exhaust its own descriptors.
    const CHILD: &str = "BAREWIRE_TEST_DESCRIPTORS";
    if std::env::var_os(CHILD).is_none() {
        let status = std::process::Command::new("sh")
            .args(["-c", "ulimit -n 64 && exec \"$0\" --exact no_descriptors_left_is_survived"])
            .arg(std::env::current_exe().unwrap())
            .env(CHILD, "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let mut door = Door::open(HERE, key(1), Limits::default()).unwrap();
    // No more than there are places, of 64 descriptors.
    let waiting: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(door.address()).unwrap()).collect();
    let mut held = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        held.push(file);
    }
    let mut admitted = Vec::new();
    for _ in 0..100 {
        door.work(Instant::now(), &mut admitted);
    }
    assert_eq!(door.guests(), 0);
    let failure = Connector::start(door.address(), Some(HERE), &key(1), CLAIM, DEADLINE, Limits::default());
    assert_eq!(failure.unwrap_err().raw_os_error(), Some(24), "EMFILE");
    drop(held);
    work(&mut door, "those who wait are taken", |door| door.guests() == waiting.len());
    let connector = connector(door.address(), &key(1), CLAIM);
    meet(&mut door, connector).unwrap();
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
    // SAFETY: it is leaked, and looked at only when nothing is under way.
    #[allow(unsafe_code, reason = "registration is the caller's promise")]
    let region = Arc::new(unsafe { Region::new(start, 64, rights, None) });
    let regions = Arc::new(Regions::default());
    let token = regions.add(&region).unwrap();
    let target = Target::start(HERE, key(1), SERVICE, Arc::clone(&regions), Limits::default()).unwrap();
    Served { target, regions, region, token, memory }
}

impl Served {
    fn address(&self) -> u64 {
        self.memory.as_ptr().addr() as u64
    }

    fn connect(&self, service: u64) -> Result<Client, ConnectFailure> {
        let claim = Claim { purpose: Purpose::Memory, service, ..CLAIM };
        let socket = connector(self.target.address(), &key(1), claim).wait(std::thread::yield_now)?;
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

    fn answer(&mut self) -> Option<Answer> {
        let bytes = self.read(ANSWER_BYTES)?;
        Some(Answer::parse(bytes.first_chunk().unwrap()).unwrap())
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
    let done = client.answer().unwrap();
    assert_eq!((done.finished, done.outcome, done.operation), (1, Outcome::Done, Operation::Put));
    client.say(&served.request(7, Action::Get { length: 6 }).to_bytes());
    let answer = client.answer().unwrap();
    assert_eq!((answer.finished, answer.value), (2, 6));
    assert_eq!(client.read(6).unwrap(), b"\0byte\0");
    for (number, old) in [(3, 0), (4, 5)] {
        client.say(&served.request(16, add(4, 5)).to_bytes());
        let answer = client.answer().unwrap();
        assert_eq!((answer.finished, answer.operation, answer.value), (number, Operation::Atomic, old));
    }
    assert!(matches!(
        served.connect(SERVICE + 1).map(drop),
        Err(ConnectFailure::Handshake(HandshakeError::Verdict(Verdict::Unknown)))
    ));
}

/// What a peer says.
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
        // What is behind it is not carried out.
        client.say(&served.request(0, Action::Put { length: 8 }).to_bytes());
        client.say(&[0xee; 8]);
        let answer = client.answer().unwrap_or_else(|| panic!("{what}: no answer"));
        assert_eq!((answer.finished, answer.outcome), (1, Outcome::Refused), "{what}");
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
        let answer = other.answer().unwrap();
        assert_eq!((answer.finished, answer.outcome), (1, Outcome::Done), "{what}");
        assert_eq!(other.read(8).unwrap(), 7u64.to_ne_bytes(), "{what}");
        let Served { target, memory, .. } = served;
        drop(target);
        assert_eq!(*memory, [0; 8], "{what}");
    }
}

/// A peer that asks for much and reads nothing is not served on, and costs a bounded amount of memory; others are.
#[test]
fn a_peer_that_does_not_read_holds_nobody_up() {
    let served = served(ALL);
    let mut greedy = served.connect(SERVICE).unwrap();
    let request = served.request(0, Action::Get { length: 64 }).to_bytes();
    let (mut posted, start) = (0u64, Instant::now());
    // Until the system takes no more of its requests: the target has stopped reading them.
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
    assert_eq!(other.answer().unwrap().outcome, Outcome::Done);
    // When it reads again, everything is there, in order.
    for number in 1..=posted {
        let _ = greedy.outbox.flush(&mut greedy.socket, &greedy.spare);
        let answer = greedy.answer().unwrap();
        assert_eq!((answer.finished, answer.value), (number, 64));
        assert_eq!(greedy.read(64).unwrap().len(), 64);
    }
}

/// A put whose data come slowly holds nobody up, and one whose sender dies leaves the rest as it was.
#[test]
fn half_a_put() {
    let served = served(ALL);
    let mut slow = served.connect(SERVICE).unwrap();
    slow.say(&served.request(0, Action::Put { length: 16 }).to_bytes());
    slow.say(&[1; 8]);
    let mut other = served.connect(SERVICE).unwrap();
    other.say(&served.request(56, add(8, 3)).to_bytes());
    assert_eq!(other.answer().unwrap().outcome, Outcome::Done);
    slow.say(&[2; 8]);
    assert_eq!(slow.answer().unwrap().outcome, Outcome::Done);
    slow.say(&served.request(16, Action::Put { length: 16 }).to_bytes());
    slow.say(&[3; 8]);
    drop(slow);
    other.say(&served.request(56, add(8, 3)).to_bytes());
    assert_eq!(other.answer().unwrap().value, 3);
    drop(served.target);
    assert_eq!(served.memory[..2], [0x0101_0101_0101_0101, 0x0202_0202_0202_0202]);
    assert_eq!(served.memory[3], 0);
}

/// Somebody's patience does not run out while it looks at nothing: what was said meanwhile counts.
#[test]
fn a_door_that_nobody_looked_at_for_long() {
    let limits = Limits { patience: Duration::from_millis(200), ..Limits::default() };
    let mut door = Door::open(HERE, key(1), limits).unwrap();
    let patience = limits.patience;
    let mut connector =
        Connector::start(door.address(), Some(HERE), &key(1), CLAIM, patience, limits).unwrap();
    let mut admitted = Vec::new();
    // Each looks once after what the other said, and then both are elsewhere for longer than they have patience.
    for _ in 0..10 {
        std::thread::sleep(2 * patience);
        door.work(Instant::now(), &mut admitted);
        for newcomer in admitted.drain(..) {
            assert!(newcomer.welcome().is_ok());
        }
        std::thread::sleep(2 * patience);
        if connector.advance(Instant::now()).unwrap().is_some() {
            assert_eq!(door.refused(), 0);
            return;
        }
    }
    panic!("no connection");
}
