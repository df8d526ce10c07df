//! What a flood by another process takes of a thread's processor time, and of the memory.
//!
//! The flood is stopped and continued, and the turns that the thread does are counted in windows of
//! one duration of its processor time, with the flood and without it in turn.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use barewire_tcp::Key;
use barewire_tcp::connector::Connector;
use barewire_tcp::handshake::Claim;
use barewire_tcp::listener::Limits;
use barewire_tcp::outbox::{Outbox, SendError, Spare};
use barewire_tcp::socket::Socket;
use barewire_tcp::time::cpu_time;
use rustix::process::{Pid, Signal, getppid, kill_process};

/// What a flood may take of the memory, in bytes.
pub(crate) const MOST_MEMORY: usize = 16 << 20;
/// Time of the thread between a stop of the flood and its continuation.
const WINDOW: Duration = Duration::from_millis(20);
/// How long the flood lasts before it is measured: what may accumulate is spent then.
const BEFORE: Duration = Duration::from_secs(1);
const ROLE: &str = "BAREWIRE_TEST_FLOOD";
/// For one connection, and for a flood whose test did not end it.
const LONG: Duration = Duration::from_secs(100);

/// How often a flood is stopped and continued.
pub(crate) fn rounds() -> usize {
    std::env::var("BAREWIRE_FLOOD_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap())
}

/// Returns whether this flood is to be measured: `BAREWIRE_FLOODS` may name some, with commas.
pub(crate) fn is_wanted(role: &str) -> bool {
    std::env::var("BAREWIRE_FLOODS").map_or(true, |all| all.split(',').any(|one| one == role))
}

/// The role of this process and its arguments, if [`Other::start`] has started it.
pub(crate) fn role() -> Option<(String, Vec<String>)> {
    let all = std::env::var(ROLE).ok()?;
    let mut parts = all.split('\n').map(str::to_owned);
    Some((parts.next()?, parts.collect()))
}

/// The process that has started this one has ended.
pub(crate) fn has_no_parent() -> bool {
    getppid().is_none_or(Pid::is_init)
}

/// A connection with this claim, or `None` if it is refused.
pub(crate) fn connection(address: SocketAddr, key: &Key, claim: Claim) -> Option<Socket> {
    let limits = Limits { protected: false, ..Limits::default() };
    let connector = Connector::start(address, None, key, claim, LONG, limits).ok()?;
    connector.wait(std::thread::yield_now).ok()
}

/// The sending half of a connection. The bytes are in records if the other end requests that:
/// others would be refused before they are read.
pub(crate) struct Line {
    pub(crate) socket: Socket,
    outbox: Outbox,
    spare: Spare,
}

impl Line {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket, outbox: Outbox::default(), spare: Spare::default() }
    }

    /// Sends what waits and these bytes, as far as the kernel takes them. Returns whether nothing
    /// waits.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<bool, SendError> {
        assert!(self.outbox.push(&self.spare, bytes), "too much waits");
        self.outbox.flush(&mut self.socket, &self.spare)
    }
}

/// Makes connections and sends bytes on each, without end. Keeps the last `open` of them.
pub(crate) fn flood_by_connections(
    address: SocketAddr,
    key: &Key,
    claim: Claim,
    bytes: &[u8],
    open: usize,
) {
    let begun = Instant::now();
    let mut lines = VecDeque::new();
    while begun.elapsed() < LONG && !has_no_parent() {
        if let Some(socket) = connection(address, key, claim) {
            let mut line = Line::new(socket);
            let _ = line.send(bytes);
            lines.push_back(line);
        }
        while lines.len() > open {
            lines.pop_front();
        }
    }
}

/// A process of this test program; it is killed when this is dropped.
pub(crate) struct Other(Child);

impl Other {
    /// Starts the test of this name, which asks for its [`role`].
    pub(crate) fn start(test: &str, role: &str, arguments: &[&str]) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(ROLE, [&[role], arguments].concat().join("\n"))
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a flood takes.
pub(crate) struct Cost {
    /// Part of the time: of windows in which little else disturbed the thread, and the median of all.
    share: f64,
    median: f64,
    /// By how much windows without the flood differ, as a part of the time.
    noise: f64,
    /// Part of a processor that the thread had. What is bounded is a part of the elapsed time.
    processor: f64,
    /// Bytes.
    memory: usize,
}

impl Cost {
    /// Prints the shares, which mean little on a machine with other load, and checks the memory.
    pub(crate) fn report(&self, flood: &str) {
        let Self { share, median, noise, processor, memory } = self;
        println!(
            "{flood}: {:.1} %, median {:.1} % (noise {:.1} %, with {:.0} % of a processor), {} KiB",
            share * 100.0,
            median * 100.0,
            noise * 100.0,
            processor * 100.0,
            memory >> 10
        );
        assert!(*memory < MOST_MEMORY, "{flood}: {memory} bytes");
    }
}

/// Turns in a second of this thread's time.
fn rate(turn: &mut impl FnMut()) -> f64 {
    let begun = cpu_time();
    let mut turns = 0;
    loop {
        for _ in 0..64 {
            turn();
            turns += 1;
        }
        let spent = cpu_time().saturating_sub(begun);
        if spent >= WINDOW {
            return f64::from(turns) / spent.as_secs_f64();
        }
    }
}

/// The rate of windows in which little else disturbed the thread: four of five are slower.
fn best(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() * 4 / 5]
}

/// Measures what a flood takes of the turns of this thread. `before` is what [`resident`] returned
/// before the flood began.
pub(crate) fn measure(hostile: &Other, before: usize, mut turn: impl FnMut()) -> Cost {
    let begun = Instant::now();
    while begun.elapsed() < BEFORE {
        rate(&mut turn);
    }
    let (mut quiet, mut flooded) = ([Vec::new(), Vec::new()], Vec::new());
    let mut shares = Vec::new();
    let (begun, before_windows) = (Instant::now(), cpu_time());
    for round in 0..2 * rounds() {
        hostile.signal(Signal::STOP);
        rate(&mut turn);
        let without = rate(&mut turn);
        quiet[round % 2].push(without);
        hostile.signal(Signal::CONT);
        rate(&mut turn);
        let with = rate(&mut turn);
        flooded.push(with);
        shares.push(1.0 - with / without);
    }
    shares.sort_by(f64::total_cmp);
    let median = shares[shares.len() / 2];
    let processor = cpu_time().saturating_sub(before_windows).as_secs_f64();
    let processor = processor / begun.elapsed().as_secs_f64();
    let noise = (1.0 - best(quiet[0].clone()) / best(quiet[1].clone())).abs();
    let share = 1.0 - best(flooded) / best(quiet.concat());
    Cost { share, median, noise, processor, memory: resident().saturating_sub(before) }
}

/// Bytes of this process that are in memory.
pub(crate) fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() << 10
}
