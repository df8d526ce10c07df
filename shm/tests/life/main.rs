//! Processes that are killed or stopped at any moment, on either side: the other side notices, and
//! nothing is left behind.

mod places;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use barewire_shm::{
    BulkReceiver, Deliver, LinkError, MESSAGE_WORDS, Peer, Port, PortAddress, PortConfig,
    RegionSet, SendError,
};

const ROLE: &str = "BAREWIRE_SHM_LIFE_ROLE";
/// The maximum time until the other side notices.
const NOTICE_TIME: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_mins(1);
/// The environment variable with the number of processes to kill on each side; the default is 20.
const ROUNDS: &str = "BAREWIRE_SHM_KILLS";
/// Held by each test, since the tests count file descriptors.
static ALONE: Mutex<()> = Mutex::new(());

/// Counts messages and errors.
#[derive(Default)]
struct Count {
    scratch: [u64; MESSAGE_WORDS],
    short: u64,
    buffered: u64,
    last: Option<u64>,
    broken: Vec<String>,
}

impl Deliver for Count {
    fn scratch(&mut self) -> &mut [u64; MESSAGE_WORDS] {
        &mut self.scratch
    }

    fn wants_more(&self) -> bool {
        true
    }

    fn short(&mut self, id: u8, _length: usize) {
        assert_eq!(id, 3);
        // In order and without duplicates, also across the change from the FIFO to the ring.
        assert_eq!(self.scratch[0], self.last.map_or(0, |last| last + 1));
        self.last = Some(self.scratch[0]);
        self.short += 1;
    }

    fn buffered(
        &mut self,
        _: u8,
        buffers: &Rc<BulkReceiver>,
        number: u8,
        _: NonNull<u8>,
        length: usize,
    ) {
        assert_eq!(length, 8000);
        self.buffered += 1;
        buffers.give(number);
    }

    fn broken(&mut self, _: i32, why: LinkError) {
        self.broken.push(why.to_string());
    }

    fn peer(&mut self, _: u32) {}
}

fn address(number: u64) -> PortAddress {
    // Unique to this test process, so that several can run at the same time.
    PortAddress { number: u64::from(std::process::id()) << 32 | number, secret: 42 }
}

fn open(address: PortAddress) -> Port {
    Port::open(address, &PortConfig::default(), &RegionSet::new(1)).unwrap()
}

/// Sends messages, every tenth in a buffer, until the connection ends.
fn flood(address: PortAddress, mut sent: impl FnMut()) -> Peer {
    let mut peer = connect(address);
    let mut header = 0u64;
    let mut step = 0u64;
    loop {
        let result = if step % 10 == 9 {
            peer.take_buffer().and_then(|number| {
                peer.send_buffer(3, number, 8000).inspect_err(|_| peer.put_back(number))
            })
        } else {
            peer.send(3, header, &step.to_ne_bytes()).inspect(|()| header += 1)
        };
        match result {
            Ok(()) => {
                step += 1;
                sent();
            }
            Err(SendError::Full) => {
                if peer.tend().is_err() {
                    return peer;
                }
                std::thread::yield_now();
            }
            Err(SendError::Lost) => return peer,
        }
    }
}

fn connect(address: PortAddress) -> Peer {
    let started = Instant::now();
    loop {
        match Peer::connect(address, &PortConfig::default()) {
            Ok(peer) => return peer,
            Err(error) => assert!(started.elapsed() < TIMEOUT, "{error}"),
        }
        std::thread::yield_now();
    }
}

/// The code of the other processes. Does nothing in a normal run of the tests.
#[test]
fn other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (role, number) = role.rsplit_once(' ').unwrap();
    let address = PortAddress { number: number.parse().unwrap(), secret: 42 };
    if let Some(result) = places::run(role, address) {
        return println!("{}{result}", places::RESULT);
    }
    if role == "send" {
        flood(address, || ());
        return;
    }
    let (mut port, mut count) = (open(address), Count::default());
    loop {
        port.progress(&mut count);
    }
}

fn start(role: &str, address: PortAddress) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "other_process", "--test-threads=1"])
        .env(ROLE, format!("{role} {}", address.number))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn rounds() -> u64 {
    std::env::var(ROUNDS)
        .map_or(20, |rounds| rounds.parse().expect("the variable must hold a number"))
}

/// A pseudo-random delay, the same in every run.
fn moment(round: u64) -> Duration {
    Duration::from_micros(round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50)
}

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Files with names like those of this test's sockets.
fn left_behind() -> BTreeSet<String> {
    let own = format!("barewire-{:08x}", std::process::id());
    let names =
        ["/dev/shm", "/tmp"].iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&own)).collect()
}

#[test]
fn a_killed_sender_is_noticed_and_leaves_nothing() {
    let _alone = alone();
    let before = (descriptors(), left_behind());
    let mut all = 0;
    {
        let here = address(1);
        let mut port = open(here);
        let open_descriptors = descriptors();
        for round in 0..rounds() {
            let mut count = Count::default();
            let mut child = start("send", here);
            let started = Instant::now();
            while count.short < 100 {
                port.progress(&mut count);
                assert!(started.elapsed() < TIMEOUT, "no messages arrive");
            }
            let wait = Instant::now();
            while wait.elapsed() < moment(round) {
                port.progress(&mut count);
            }
            child.kill().unwrap();
            child.wait().unwrap();
            let killed = Instant::now();
            while descriptors() > open_descriptors {
                port.progress(&mut count);
                assert!(
                    killed.elapsed() < NOTICE_TIME,
                    "the socket of the killed sender is still open"
                );
            }
            assert_eq!(count.broken, [""; 0]);
            all += count.short + count.buffered;
        }
    }
    assert_eq!((descriptors(), left_behind()), before);
    let _ = writeln!(io::stderr(), "{all} messages of {} senders, each killed", rounds());
}

#[test]
fn a_killed_receiver_is_noticed_and_leaves_nothing() {
    let _alone = alone();
    let before = (descriptors(), left_behind());
    for round in 0..rounds() {
        let there = address(100 + round);
        let mut child = start("receive", there);
        let (mut sent, mut killed) = (0u64, None);
        let began = Instant::now();
        let peer = flood(there, || {
            sent += 1;
            if sent > 1000 && killed.is_none() && began.elapsed() > moment(round) {
                child.kill().unwrap();
                child.wait().unwrap();
                killed = Some(Instant::now());
            }
        });
        // In case the connection ended before the kill.
        let _ = (child.kill(), child.wait());
        let error = peer.error();
        let killed = killed.unwrap_or_else(|| panic!("round {round}, {sent} sent: {error:?}"));
        assert!(killed.elapsed() < NOTICE_TIME);
        assert!(peer.error().unwrap().to_string().contains("ended"), "{:?}", peer.error());
    }
    assert_eq!((descriptors(), left_behind()), before);
}

/// A stopped sender does not block messages of other senders.
#[test]
fn a_stopped_sender_does_not_stop_the_others() {
    let _alone = alone();
    let here = address(2);
    let mut port = open(here);
    let mut count = Count::default();
    let mut child = start("send", here);
    let started = Instant::now();
    while count.short < 100 {
        port.progress(&mut count);
        assert!(started.elapsed() < TIMEOUT, "no messages arrive");
    }
    let process = child.id().to_string();
    let signal = |name: &str| Command::new("kill").args([name, process.as_str()]).status().unwrap();
    assert!(signal("-STOP").success());
    // One thread handles the signal; the other threads run until then.
    let threads = || std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let state = |thread: io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(thread.unwrap().path().join("stat"))
            .is_ok_and(|stat| stat.contains(") T "))
    };
    while !threads().all(state) {
        std::thread::sleep(Duration::from_millis(1));
        assert!(started.elapsed() < TIMEOUT, "the child is not stopped");
    }
    // Receive what the child sent before: a ring holds fewer messages than these calls receive.
    for _ in 0..2000 {
        port.progress(&mut count);
    }
    let mut other = connect(here);
    let mut others = Count::default();
    let mut next = 0;
    let started = Instant::now();
    while others.short < 10_000 {
        if next < 10_000 && other.send(3, next, &[]).is_ok() {
            next += 1;
        }
        let _ = other.tend();
        port.progress(&mut others);
        assert!(started.elapsed() < TIMEOUT, "{} received", others.short);
    }
    assert!(signal("-CONT").success());
    let _ = (child.kill(), child.wait());
}

/// A port that is polled only once per millisecond still responds soon: the fewer polls, the more
/// of them check the sockets.
#[test]
fn a_port_that_is_polled_rarely_responds_soon() {
    let _alone = alone();
    let here = address(7);
    let mut port = open(here);
    let mut count = Count::default();
    // Frequent polls, so that the interval between checks grows.
    for _ in 0..100_000 {
        port.progress(&mut count);
    }
    let mut worst = 0;
    for round in 0..5 {
        let mut peer = connect(here);
        let mut calls = 0;
        while !peer.is_ready() {
            std::thread::sleep(Duration::from_millis(1));
            port.progress(&mut count);
            peer.tend().unwrap();
            calls += 1;
            assert!(calls < 1000, "in round {round}");
        }
        // The port adapts its interval during the first round.
        if round > 0 {
            worst = worst.max(calls);
        }
    }
    assert!(worst < 50, "{worst} calls");
}

#[test]
fn a_wrong_secret_is_refused() {
    let _alone = alone();
    let here = address(4);
    let mut port = open(here);
    let mut count = Count::default();
    let mut wrong =
        Peer::connect(PortAddress { secret: 41, ..here }, &PortConfig::default()).unwrap();
    let started = Instant::now();
    while wrong.tend().is_ok() {
        port.progress(&mut count);
        assert!(started.elapsed() < TIMEOUT);
    }
    assert!(wrong.error().unwrap().to_string().contains("secret"), "{:?}", wrong.error());
    assert!(
        Peer::connect(address(5), &PortConfig::default())
            .unwrap_err()
            .to_string()
            .contains("no process listens")
    );
}

/// A receiver that sleeps between messages is woken for each and receives all.
#[test]
fn a_sleeping_receiver_is_woken() {
    const MESSAGES: u64 = 2000;
    let _alone = alone();
    let here = address(6);
    let mut port = open(here);
    let mut count = Count::default();
    let sending = std::thread::spawn(move || {
        let mut peer = connect(here);
        let mut header = 0;
        while header < MESSAGES {
            match peer.send(3, header, &[]) {
                Ok(()) => header += 1,
                Err(SendError::Full) => peer.tend().unwrap(),
                Err(SendError::Lost) => panic!("{:?}", peer.error()),
            }
            // Pauses, so that the receiver sleeps now and then.
            if header % 7 == 0 {
                std::thread::yield_now();
            }
        }
    });
    let (started, mut slept) = (Instant::now(), 0);
    while count.short < MESSAGES {
        port.progress(&mut count);
        if !port.watcher().arm().unwrap() {
            continue;
        }
        let mut fds = [rustix::event::PollFd::new(&port, rustix::event::PollFlags::IN)];
        let timeout = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&timeout)), Ok(1), "a wake-up was lost");
        slept += 1;
        assert!(started.elapsed() < TIMEOUT);
    }
    assert!(slept > 0);
    sending.join().unwrap();
}
