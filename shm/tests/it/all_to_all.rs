//! Every process sends to every other: all messages arrive exactly once, in order per pair.
//!
//! Runs 16 processes with 50,000 messages in all. `BAREWIRE_SHM_ALL_TO_ALL` overrides both: `64
//! 1000000`, for example.

use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire_shm::{
    BulkReceiver, Deliver, LinkError, MESSAGE_WORDS, Peer, Port, PortAddress, PortConfig,
    RegionSet, SendError,
};

const ROLE: &str = "BAREWIRE_SHM_ALL_TO_ALL_ROLE";
const SIZE: &str = "BAREWIRE_SHM_ALL_TO_ALL";
const TIMEOUT: Duration = Duration::from_mins(2);

struct Inbox {
    scratch: [u64; MESSAGE_WORDS],
    /// The next expected number of each sender.
    next: Vec<u64>,
    total: u64,
}

impl Deliver for Inbox {
    fn scratch(&mut self) -> &mut [u64; MESSAGE_WORDS] {
        &mut self.scratch
    }

    fn wants_more(&self) -> bool {
        true
    }

    fn short(&mut self, _: u8, length: usize) {
        let [sender, number, ..] = self.scratch;
        let next = &mut self.next[sender as usize];
        assert_eq!((number, length), (*next, 8), "number of a message of process {sender}");
        *next += 1;
        self.total += 1;
    }

    fn buffered(&mut self, _: u8, _: &Rc<BulkReceiver>, _: u8, _: NonNull<u8>, _: usize) {
        panic!("no process sends buffers");
    }

    fn broken(&mut self, process: i32, why: LinkError) {
        panic!("process {process}: {why}");
    }

    fn peer(&mut self, _: u32) {}
}

fn address(family: u64, index: u64) -> PortAddress {
    PortAddress { number: family << 32 | index, secret: 7 }
}

/// The code of one process. Does nothing in a normal run of the tests.
#[test]
fn one_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let role: Vec<u64> = role.split(' ').map(|number| number.parse().unwrap()).collect();
    let [family, index, count, each] = role[..] else { panic!("{role:?}") };
    let (config, started) = (PortConfig::default(), Instant::now());
    let mut port = Port::open(address(family, index), &config, &RegionSet::new(index)).unwrap();
    let mut inbox = Inbox { scratch: [0; MESSAGE_WORDS], next: vec![0; count as usize], total: 0 };
    let mut progress = |inbox: &mut Inbox| {
        let taken = port.progress(inbox);
        assert!(started.elapsed() < TIMEOUT, "process {index}: {} messages received", inbox.total);
        taken
    };
    let mut peers: Vec<(Peer, u64)> = Vec::new();
    for other in (0..count).filter(|other| *other != index) {
        loop {
            match Peer::connect(address(family, other), &config) {
                Ok(peer) => break peers.push((peer, 0)),
                Err(_) => drop(progress(&mut inbox)),
            }
            std::thread::yield_now();
        }
    }
    let due = each * (count - 1);
    while inbox.total < due || peers.iter().any(|(_, sent)| *sent < each) {
        let mut idle = progress(&mut inbox) == 0;
        for (peer, sent) in peers.iter_mut().filter(|(_, sent)| *sent < each) {
            match peer.send(1, index, &sent.to_ne_bytes()) {
                Ok(()) => (*sent, idle) = (*sent + 1, false),
                Err(SendError::Full) => peer.tend().unwrap(),
                Err(SendError::Lost) => panic!("{:?}", peer.error()),
            }
        }
        if idle {
            std::thread::yield_now();
        }
    }
    assert!(
        inbox
            .next
            .iter()
            .enumerate()
            .all(|(from, next)| *next == if from as u64 == index { 0 } else { each })
    );
    let memory: usize =
        port.footprint() + peers.iter().map(|(peer, _)| peer.footprint()).sum::<usize>();
    let _ = writeln!(io::stderr(), "shared {memory}\npeak {}", peak());
}

/// Peak memory of this process in KiB, shared and private.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}

#[test]
fn every_process_sends_to_every_other() {
    let size = std::env::var(SIZE).unwrap_or_else(|_| "16 50000".to_owned());
    let (count, total) = size.split_once(' ').expect("the variable must hold two numbers");
    let (count, total): (u64, u64) = (count.parse().unwrap(), total.parse().unwrap());
    let each = total.div_ceil(count * (count - 1));
    let started = Instant::now();
    let children: Vec<_> = (0..count)
        .map(|index| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "all_to_all::one_process", "--test-threads=1", "--nocapture"])
                .env(ROLE, format!("{} {index} {count} {each}", std::process::id()))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let (mut shared, mut most) = (0, 0);
    for child in children {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let number =
            |name| said.lines().find_map(|line| line.strip_prefix(name)?.parse::<usize>().ok());
        shared += number("shared ").expect("the child printed no memory size");
        most = most.max(number("peak ").expect("the child printed no peak"));
    }
    let _ = writeln!(
        io::stderr(),
        "{} messages among {count} processes in {:.1} s, {} KiB of shared memory in all, at most {most} KiB of memory in a process",
        each * count * (count - 1),
        started.elapsed().as_secs_f64(),
        shared / 1024
    );
}
