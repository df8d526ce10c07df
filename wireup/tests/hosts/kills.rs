//! Processes, hosts and cables of four hosts fail under load, with two ranks on each host. A
//! survivor goes on without the ranks that it has lost, or ends at the first loss, as its program
//! decides. What it receives is verified.
//!
//! `BAREWIRE_HOSTS_KILLS` is how many failures there are, `BAREWIRE_HOSTS_SEED` the first seed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use barewire_wireup::link::{CloseMode, Link, State};
use barewire_wireup::node::{Node, Rules};
use barewire_wireup::peers::Peers;
use barewire_wireup::tag::{Buffer, FULL_MASK, Limits, Mode, Request, TagLink, Tags};

use crate::bench::{Bench, Setup, bench};
use crate::{ROLE, TIMEOUT};

const HOSTS: usize = 4;
const RANKS: usize = 2 * HOSTS;
/// How long a survivor may take to notice.
const PROMISE: Duration = Duration::from_secs(10);
/// A peer that is silent for twice as long has failed.
const LIVENESS: Duration = Duration::from_secs(3);
/// Messages that have to arrive from each peer that is left, after a failure.
const MORE: u64 = 3;
const LENGTHS: [usize; 6] = [8, 1000, 20_000, 8, 200_000, 100];
const LONGEST: usize = 200_000;
/// Whether a rank ends when it has lost a peer.
const ENDS: &str = "BAREWIRE_TEST_ENDS";

/// Message `number` of a rank to another.
fn contents(from: u32, to: u32, number: u64) -> Vec<u8> {
    let length = LENGTHS[(number as usize + from as usize) % LENGTHS.len()];
    let mut random = fastrand::Rng::with_seed(number << 16 | u64::from(from << 8 | to));
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

/// What a rank has to do with another.
struct Other {
    rank: u32,
    link: Link,
    tags: TagLink,
    send: Request,
    sent: u64,
    buffer: Buffer,
    receive: Request,
    received: u64,
    /// Messages that have to have arrived before this rank says so.
    wanted: u64,
    lost: bool,
    /// The last message in this direction, which has no bytes: sent and received.
    last: (bool, bool),
}

impl Other {
    fn is_over(&self) -> bool {
        self.lost || self.last == (true, true) && self.send.poll().is_some()
    }
}

fn say(line: &str) {
    // Libtest has begun a line.
    println!("\n{line}");
}

fn has_ended(link: &Link) -> bool {
    matches!(link.state(), State::Closed(_) | State::Failed(_))
}

/// Exchanges messages with every other rank until it is stopped; nothing unless it is a rank.
#[test]
fn a_rank_that_exchanges_messages() {
    if std::env::var_os("RANK").is_none() || !std::env::args().any(|word| word == ROLE) {
        return;
    }
    let commands = commands();
    let ends = std::env::var_os(ENDS).is_some();
    let mut job = barewire_bootstrap::detect().unwrap();
    let mut node = Node::open(&Rules::default().deadline(TIMEOUT).liveness(LIVENESS)).unwrap();
    let tags = Tags::over(&mut node, Limits::default()).unwrap();
    let peers = Peers::exchange(&mut node, &mut *job, TIMEOUT).unwrap();
    peers.fence(&mut node, &mut *job, TIMEOUT).unwrap();
    // The ranks do without the launcher's store from now on.
    drop(job);
    let own = peers.rank();
    let mut others: Vec<Other> = (0..peers.size())
        .filter(|rank| *rank != own)
        .map(|rank| {
            let link = peers.link(&mut node, rank).unwrap();
            let tag_link = tags.link(&link).unwrap();
            let buffer = Buffer::new(LONGEST).unwrap();
            let receive = tags.receive(rank.into(), FULL_MASK, &buffer);
            let send = tags.send(&tag_link, own.into(), &contents(own, rank, 0)[..], Mode::Auto);
            let (sent, received, wanted, lost, last) = (1, 0, 1, false, (false, false));
            Other {
                rank,
                link,
                tags: tag_link,
                send,
                sent,
                buffer,
                receive,
                received,
                wanted,
                lost,
                last,
            }
        })
        .collect();
    say(&format!("process {}", std::process::id()));
    let (mut said, mut stops) = (false, false);
    loop {
        tags.progress(&mut node);
        for other in &mut others {
            attend(own, other, &tags, stops);
        }
        if !said && others.iter().all(|other| other.lost || other.received >= other.wanted) {
            said = true;
            say("received");
        }
        match commands.try_recv() {
            Ok(word) if word == "more" => {
                for other in &mut others {
                    other.wanted = other.received + MORE;
                }
                said = false;
            }
            Ok(_) | Err(TryRecvError::Disconnected) => stops = true,
            Err(TryRecvError::Empty) => {}
        }
        let is_over = stops && others.iter().all(Other::is_over);
        if is_over || ends && others.iter().any(|other| other.lost) {
            break;
        }
    }
    let left = || others.iter().filter(|other| !other.lost);
    left().for_each(|other| other.link.close(CloseMode::Flush));
    let begun = Instant::now();
    while left().any(|other| !has_ended(&other.link)) {
        tags.progress(&mut node);
        assert!(begun.elapsed() < TIMEOUT, "not closed");
    }
    for other in left() {
        // No loss of messages: the peer closes, too, and may end before it has read this side's CLOSE.
        if let State::Failed(cause) = other.link.state() {
            say(&format!("closing {}: {cause}", other.rank));
        }
    }
    say("ended");
}

/// What the test writes, line by line.
fn commands() -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    receiver
}

fn attend(own: u32, other: &mut Other, tags: &Tags, stops: bool) {
    // A peer that has got and sent its last message may end.
    if other.lost || other.is_over() {
        return;
    }
    let failure = tags.failure(&other.tags).map(|error| error.to_string());
    let failure = failure.or_else(|| has_ended(&other.link).then(|| "ended".to_owned()));
    // What arrived before the link ended can still be received. A receive ends with the link of its
    // sender once a message has matched it.
    while let Some(Ok(envelope)) = other.receive.poll()
        && !other.last.1
    {
        let length = envelope.length;
        if length == 0 {
            other.last.1 = true;
            return;
        }
        let wanted = contents(other.rank, own, other.received);
        assert!(other.buffer.to_vec()[..length] == wanted[..], "wrong bytes of {}", other.rank);
        other.received += 1;
        other.receive = tags.receive(other.rank.into(), FULL_MASK, &other.buffer);
    }
    if let Some(failure) = failure {
        let state = other.link.state();
        other.lost = true;
        let why = other.link.error().map_or(failure, |error| error.to_string());
        return say(&format!("lost {}: {state:?}: {}", other.rank, why.replace('\n', " ")));
    }
    if !other.last.0 && other.send.poll().is_some_and(|result| result.is_ok()) {
        if stops {
            other.send = tags.send(&other.tags, own.into(), &[][..], Mode::Auto);
            other.last.0 = true;
            return;
        }
        let bytes = contents(own, other.rank, other.sent);
        other.send = tags.send(&other.tags, own.into(), &bytes[..], Mode::Auto);
        other.sent += 1;
    }
}

/// What happens to the hosts.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A rank is killed.
    Process(usize),
    /// All of a host ends, and sends nothing any more.
    Host(usize),
    /// The cable of a host is pulled.
    Cable(usize),
    /// The cable of a host is pulled, and plugged in again soon.
    Blink(usize, Duration),
}

impl Event {
    fn of(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        match seed % 4 {
            0 => Self::Process(random.usize(..RANKS)),
            1 => Self::Host(random.usize(..HOSTS)),
            2 => Self::Cable(random.usize(..HOSTS)),
            _ => Self::Blink(random.usize(..HOSTS), Duration::from_millis(random.u64(50..900))),
        }
    }

    /// The ranks that do not survive.
    fn victims(self) -> BTreeSet<usize> {
        match self {
            Self::Process(rank) => [rank].into(),
            Self::Host(host) => [2 * host, 2 * host + 1].into(),
            Self::Cable(_) | Self::Blink(..) => BTreeSet::new(),
        }
    }

    /// Whether two ranks have no way to each other any more.
    fn parts(self, one: usize, other: usize) -> bool {
        match self {
            Self::Cable(host) => (one / 2 == host) != (other / 2 == host),
            Self::Blink(..) => false,
            _ => self.victims().contains(&one) || self.victims().contains(&other),
        }
    }
}

/// A line of a rank, and when it came; `None` at the end of its output.
type Line = (usize, Instant, Option<String>);

struct Ranks {
    children: Vec<Child>,
    inputs: Vec<Option<ChildStdin>>,
    lines: Receiver<Line>,
    /// All lines, for a failed test.
    log: Vec<String>,
    begun: Instant,
    /// When each rank has lost others.
    lost: Vec<BTreeMap<usize, Instant>>,
    ended: Vec<Option<Instant>>,
    processes: Vec<String>,
    /// How often each rank has reported that it has received what it has to.
    received: Vec<u32>,
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It has usually ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn read(
    rank: usize,
    output: impl std::io::Read + Send + 'static,
    lines: Sender<Line>,
    is_last: bool,
) {
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = lines.send((rank, Instant::now(), Some(line)));
        }
        if is_last {
            let _ = lines.send((rank, Instant::now(), None));
        }
    });
}

impl Ranks {
    fn start(bench: &Bench, ends: bool) -> Self {
        let test = std::env::current_exe().unwrap();
        let words = [ROLE, "kills::a_rank_that_exchanges_messages", "--nocapture"];
        let (sender, lines) = channel();
        let (mut children, mut inputs) = (Vec::new(), Vec::new());
        for rank in 0..RANKS {
            let mut command = bench.command(rank / 2, &test);
            command.args(words).env("RANK", rank.to_string());
            command.env("WORLD_SIZE", RANKS.to_string()).stdin(Stdio::piped());
            command.env("MASTER_ADDR", bench.address(0)).env("MASTER_PORT", "29777");
            if ends {
                command.env(ENDS, "1");
            }
            let mut child = command.spawn().unwrap();
            inputs.push(child.stdin.take());
            read(rank, child.stdout.take().unwrap(), sender.clone(), true);
            read(rank, child.stderr.take().unwrap(), sender.clone(), false);
            children.push(child);
        }
        Self {
            children,
            inputs,
            lines,
            log: Vec::new(),
            begun: Instant::now(),
            lost: vec![BTreeMap::new(); RANKS],
            ended: vec![None; RANKS],
            processes: vec![String::new(); RANKS],
            received: vec![0; RANKS],
        }
    }

    /// Reads lines until something is true, or for so long.
    fn until(&mut self, timeout: Duration, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let deadline = Instant::now() + timeout;
        while !done(self) {
            let (rank, at, line) =
                match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                    Ok(line) => line,
                    Err(RecvTimeoutError::Timeout) => {
                        return Err(format!("not within {timeout:?}"));
                    }
                    Err(RecvTimeoutError::Disconnected) => return Err("all ended".to_owned()),
                };
            let Some(line) = line else {
                self.ended[rank].get_or_insert(at);
                continue;
            };
            if let Some(lost) = line.strip_prefix("lost ") {
                let peer = lost.split(':').next().unwrap().parse().unwrap();
                self.lost[rank].insert(peer, at);
            } else if line == "received" {
                self.received[rank] += 1;
            } else if let Some(process) = line.strip_prefix("process ") {
                process.clone_into(&mut self.processes[rank]);
            }
            let time = at.duration_since(self.begun).as_secs_f64();
            self.log.push(format!("{time:8.3} rank {rank}: {line}"));
        }
        Ok(())
    }

    fn tell(&mut self, word: &str, to: &BTreeSet<usize>) {
        for rank in to {
            if let Some(input) = &mut self.inputs[*rank] {
                // A rank that has ended reads nothing.
                let _ = writeln!(input, "{word}");
            }
        }
    }
}

/// Has one failure happen, and returns how long the survivors took.
fn one(bench: &mut Bench, seed: u64, log: &mut Vec<String>) -> Result<Duration, String> {
    let event = Event::of(seed);
    let ends = seed / 4 % 3 == 2;
    let mut ranks = Ranks::start(bench, ends);
    let result = fail(bench, &mut ranks, seed, event, ends);
    log.append(&mut ranks.log);
    drop(ranks);
    match event {
        Event::Cable(host) => bench.plug(host, "eth0", true),
        Event::Host(host) => bench.restart(host),
        _ => {}
    }
    result.and_then(|took| left_over(bench).map(|()| took))
}

fn fail(
    bench: &mut Bench,
    ranks: &mut Ranks,
    seed: u64,
    event: Event,
    ends: bool,
) -> Result<Duration, String> {
    let up = |ranks: &Ranks| ranks.received.iter().all(|count| *count == 1);
    ranks.until(TIMEOUT, up).map_err(|error| format!("start: {error}"))?;
    let mut random = fastrand::Rng::with_seed(!seed);
    thread::sleep(Duration::from_micros(random.u64(..300_000)));
    let begun = Instant::now();
    ranks.log.push(format!("{:8.3} {event:?}", begun.duration_since(ranks.begun).as_secs_f64()));
    match event {
        Event::Process(rank) => {
            let mut kill = bench.command(rank / 2, Path::new("kill"));
            kill.args(["-KILL", &ranks.processes[rank]]);
            assert!(kill.status().unwrap().success());
        }
        Event::Host(host) => bench.lose(host),
        Event::Cable(host) => bench.plug(host, "eth0", false),
        Event::Blink(host, time) => {
            bench.plug(host, "eth0", false);
            thread::sleep(time);
            bench.plug(host, "eth0", true);
        }
    }
    let survivors: BTreeSet<usize> =
        (0..RANKS).filter(|rank| !event.victims().contains(rank)).collect();
    let parted =
        |rank: usize| (0..RANKS).filter(move |peer| *peer != rank && event.parts(rank, *peer));
    // Survivors end only if the event cut them off from a peer.
    let ends = ends && survivors.iter().any(|rank| parted(*rank).next().is_some());
    let mut took = Duration::ZERO;
    if ends {
        ranks
            .until(2 * PROMISE, |ranks| survivors.iter().all(|rank| ranks.ended[*rank].is_some()))
            .map_err(|error| format!("ends: {error}"))?;
        for rank in &survivors {
            took = took.max(ranks.ended[*rank].unwrap().duration_since(begun));
        }
    } else {
        let all = |ranks: &Ranks| {
            survivors
                .iter()
                .all(|rank| parted(*rank).all(|peer| ranks.lost[*rank].contains_key(&peer)))
        };
        ranks.until(2 * PROMISE, all).map_err(|error| format!("losses: {error}"))?;
        ranks.tell("more", &survivors);
        let more = |ranks: &Ranks| survivors.iter().all(|rank| ranks.received[*rank] == 2);
        ranks.until(TIMEOUT, more).map_err(|error| format!("going on: {error}"))?;
        ranks.tell("stop", &survivors);
        let ended = |ranks: &Ranks| survivors.iter().all(|rank| ranks.ended[*rank].is_some());
        ranks.until(TIMEOUT, ended).map_err(|error| format!("stopping: {error}"))?;
        for rank in &survivors {
            let lost: BTreeSet<usize> = ranks.lost[*rank].keys().copied().collect();
            if lost != parted(*rank).collect() {
                return Err(format!("rank {rank} has lost {lost:?}"));
            }
            let times = ranks.lost[*rank].values().map(|at| at.duration_since(begun));
            took = took.max(times.max().unwrap_or_default());
        }
    }
    for rank in survivors {
        ranks.inputs[rank] = None;
        let status = ranks.children[rank].wait().unwrap();
        if !status.success() {
            return Err(format!("rank {rank}: {status}"));
        }
    }
    if took > PROMISE { Err(format!("took {took:?}")) } else { Ok(took) }
}

/// Looks for what the ranks have left on the hosts.
fn left_over(bench: &Bench) -> Result<(), String> {
    const LISTENS: &str = " 0A ";
    const ESTABLISHED: &str = " 01 ";
    for host in 0..HOSTS {
        let processes = bench.processes(host);
        let files = bench.files(host, "/dev/shm");
        let sockets = bench.connections(host);
        let is_open = |line: &&str| line.contains(LISTENS) || line.contains(ESTABLISHED);
        let sockets: Vec<_> = sockets.lines().filter(is_open).collect();
        if !(processes.is_empty() && files.is_empty() && sockets.is_empty()) {
            return Err(format!("host {host} has {processes:?} {files:?} {sockets:?}"));
        }
    }
    Ok(())
}

#[test]
#[ignore = "of the deep tier: it takes seconds for each failure"]
fn survivors_of_killed_processes_lost_hosts_and_cut_cables_go_on_or_end() {
    let number = |name: &str, otherwise: u64| -> u64 {
        std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
    };
    let (count, first) = (number("BAREWIRE_HOSTS_KILLS", 12), number("BAREWIRE_HOSTS_SEED", 0));
    let Some(mut bench) = bench(Setup { hosts: HOSTS, ..Setup::TWO }) else { return };
    let (mut longest, mut failed) = (Duration::ZERO, Vec::new());
    for seed in first..first + count {
        let mut log = Vec::new();
        match one(&mut bench, seed, &mut log) {
            Ok(took) => {
                longest = longest.max(took);
                println!("seed {seed}: {:?}: {:.1} s", Event::of(seed), took.as_secs_f64());
            }
            Err(error) => {
                println!("{}\nseed {seed}: FAILED: {error}", log.join("\n"));
                failed.push(seed);
            }
        }
    }
    println!("{count} failures of hosts, the longest time {:.1} s", longest.as_secs_f64());
    assert!(failed.is_empty(), "seeds {failed:?}");
}
