//! A job whose ranks connect to rank 0 over TCP.
//!
//! Connections are authenticated by the job's key, and encrypted off the loopback interface
//! ([`barewire_tcp`]). Each rank sends what it has put at a fence; rank 0 waits for all of them and
//! sends the whole table to each. Values are read from this rank's copy of the table. Rank 0 serves
//! the others in its own calls of [`fence`](crate::Bootstrap::fence) and has no thread. It holds
//! one connection per rank, and the table passes through it once per rank, which suits jobs of up
//! to about a thousand ranks.
//!
//! A rank that breaks the protocol costs rank 0 a bounded amount of memory and time: the length of a
//! message is limited by what the rank may send next, a limited number of bytes is read at a time,
//! of the connections that have not joined the oldest is closed for a new one, and what they and ranks
//! that send little at a time take is a part of the elapsed time ([`Share`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use barewire_tcp::Key;
use barewire_tcp::connector::{ConnectFailure, Connector};
use barewire_tcp::descriptors;
use barewire_tcp::frames::{FrameError, Stream};
use barewire_tcp::handshake::{Claim, Purpose, Verdict};
use barewire_tcp::listener::{Authenticated, Limits, Listener};
use barewire_tcp::share::{Share, Slice, Terms};
use barewire_tcp::socket::RECEIVE;
use barewire_tcp::time::{after, cpu_time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::directory::ranks;
use crate::parts::{Parts, push, push_number};
use crate::{Bootstrap, Error, MAX_KEY, MAX_VALUE, Runtime, check, check_key, check_rank};

/// Tells connections of a bootstrap from the other users of [`Purpose::Control`].
const SERVICE: u64 = u64::from_le_bytes(*b"bootstrp");
/// What a rank claims in the handshake with rank 0.
pub const CLAIM: Claim = Claim {
    purpose: Purpose::Control,
    service: SERVICE,
    endpoint: 0,
    from_service: 0,
    from_endpoint: 0,
};
/// Bytes of the longest message: a table of the largest jobs.
const LONGEST: usize = 1 << 30;
/// Bytes of the identity of a host.
const HOST: usize = 64;
/// Bytes of a number in a message, with its length.
const NUMBER: usize = 8;
/// Bytes of the longest request to join: kind, rank, size, host.
const LONGEST_JOIN: usize = 3 * NUMBER + 4 + HOST;
/// What a rank may publish between two fences, as [`cost`] counts it: four of the longest values.
const MAX_PUT: usize = 4 * MAX_VALUE + 4 * (MAX_KEY + ENTRY);
/// What an entry costs beside its key and its value: its place in tables, and numbers in messages.
const ENTRY: usize = 128;
/// Bytes of the longest message of a rank at a fence: kind, number, entries.
const LONGEST_FENCE: usize = 2 * NUMBER + MAX_PUT;
/// Connections at rank 0 that have not joined yet, if the job has fewer ranks.
const MOST_WAITING: usize = 256;
/// Descriptors that a rank needs beside those of its connections to other ranks.
const OTHER_DESCRIPTORS: u64 = 128;
/// Reads of one connection before others are read.
const READS: usize = 16;
/// Fewer bytes of a rank in one round are little.
const LITTLE: usize = 4 << 10;
/// How long a rank waits for the reason of rank 0, and rank 0 sends it.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The longest sleep between two checks of connections that are being made.
const TICK: Duration = Duration::from_millis(20);

/// How a rank joins a job over TCP.
#[derive(Debug, Clone)]
pub struct TcpConfig {
    /// The number of this process, below `size`.
    pub rank: u32,
    /// How many processes the job has.
    pub size: u32,
    /// Where rank 0 listens.
    pub master: SocketAddr,
    /// The secret that all ranks share.
    pub key: Key,
    /// How long the ranks may take to join.
    pub timeout: Duration,
}

/// Messages between rank 0 and another rank: a list whose first number is one of these.
mod kind {
    /// To rank 0: rank, size, host.
    pub(super) const JOIN: u32 = 1;
    /// From rank 0: the hosts of all ranks.
    pub(super) const WELCOME: u32 = 2;
    /// To rank 0: fence, then keys and values.
    pub(super) const FENCE: u32 = 3;
    /// From rank 0: fence, then rank, key and value of each entry that is new.
    pub(super) const TABLE: u32 = 4;
    /// The job cannot go on, and why. To rank 0, the sender's own reason; from rank 0, a sentence
    /// that names the rank with which it began.
    pub(super) const ABORT: u32 = 5;
}

/// What an entry counts of [`MAX_PUT`].
fn cost(key: &str, value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY
}

type Table = BTreeMap<(u32, String), Vec<u8>>;

/// A rank of a job whose ranks connect to rank 0.
#[derive(Debug)]
pub struct Tcp {
    rank: u32,
    size: u32,
    node_peers: Vec<u32>,
    table: Table,
    /// Put since the last fence.
    unpublished: BTreeMap<String, Vec<u8>>,
    fences: u32,
    /// At rank 0, the connections to ranks 1, 2, ...; elsewhere the one to rank 0.
    peers: Vec<Stream>,
    failed: Option<String>,
}

/// The timeout of ppoll(2) for a deadline; `None` if the deadline is further away than it can be.
fn timeout(deadline: Instant) -> Option<Timespec> {
    Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok()
}

/// The time until a deadline.
fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Reads what is there without waiting, until a message is whole or others have to be served.
/// `scratch` has [`RECEIVE`] bytes.
fn read(stream: &mut Stream, scratch: &mut [u8]) -> Result<(), FrameError> {
    for _ in 0..READS {
        if stream.received().has_one()? || !stream.read(scratch)? {
            break;
        }
    }
    Ok(())
}

fn message(kind: u32) -> Vec<u8> {
    let mut message = Vec::new();
    push_number(&mut message, kind);
    message
}

/// Identifies this host to the other ranks.
fn host() -> Vec<u8> {
    let mut host = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    host.truncate(HOST);
    host
}

/// What rank 0 does first.
const LISTENING: &str = "listening for other ranks";

/// Adds the address of rank 0, and what to do, to the error of a socket that does not listen there.
fn advise(master: SocketAddr, error: &io::Error) -> io::Error {
    let advice = match error.kind() {
        ErrorKind::AddrInUse => {
            "; another process listens there: set MASTER_PORT, or BAREWIRE_BOOTSTRAP_PORT, to another \
             port, the same for all ranks"
        }
        ErrorKind::AddrNotAvailable if !master.ip().is_loopback() => {
            "; this host does not have the address of MASTER_ADDR: start rank 0 on the host that has it"
        }
        _ => "",
    };
    io::Error::new(error.kind(), format!("{master}: {error}{advice}"))
}

fn failed(operation: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Io { runtime: Runtime::Tcp, operation, source }
}

fn refused(operation: &'static str, reason: impl Into<String>) -> Error {
    Error::Refused { runtime: Runtime::Tcp, operation, reason: reason.into() }
}

fn ended_by(rank: u32, reason: &str) -> String {
    format!("rank {rank} ended the job: {reason}")
}

fn malformed(rank: u32) -> String {
    format!(
        "rank {rank} sent a message that does not belong to this exchange: use one version of barewire"
    )
}

impl Tcp {
    /// Joins the job, and waits until all ranks have.
    ///
    /// # Errors
    /// [`Error::TimedOut`] names the ranks that are missing; [`Error::Refused`] if a rank is taken,
    /// the sizes differ, or the key is wrong; [`Error::Io`] if the address is not usable.
    pub fn open(config: &TcpConfig) -> Result<Self, Error> {
        check_rank(config.rank, config.size)?;
        if config.rank != 0 {
            return Ok(Self::joined(config, join(config)?));
        }
        let (key, limits) = (config.key.clone(), Limits::toward(config.master.ip()));
        let door = Listener::open_at(config.master, key, limits)
            .map_err(|error| failed(LISTENING)(advise(config.master, &error)))?;
        Ok(Self::joined(config, serve(config, door)?))
    }

    /// As [`Self::open`] for rank 0, over a socket that listens at the address of rank 0 already.
    /// Afterwards it does not listen any more, nor do its duplicates.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn over(listener: OwnedFd, config: &TcpConfig) -> Result<Self, Error> {
        check_rank(config.rank, config.size)?;
        if config.rank != 0 {
            return Err(refused(LISTENING, format!("this process is rank {}", config.rank)));
        }
        let socket = listener.try_clone().map_err(failed(LISTENING))?;
        let door = Listener::over(listener, config.key.clone(), Limits::toward(config.master.ip()))
            .map_err(failed(LISTENING))?;
        let served = serve(config, door);
        // The process that passed the socket, or a child of this one, may hold a duplicate.
        let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        Ok(Self::joined(config, served?))
    }

    /// A rank that has joined, with the hosts of all ranks.
    fn joined(config: &TcpConfig, (hosts, peers): Joined) -> Self {
        let own = hosts.get(config.rank as usize).cloned();
        let is_here = |host: &Vec<u8>| !host.is_empty() && Some(host) == own.as_ref();
        let node_peers = (0..config.size).zip(&hosts).filter(|(_, host)| is_here(host));
        Self {
            rank: config.rank,
            size: config.size,
            node_peers: node_peers.map(|(rank, _)| rank).collect(),
            table: Table::new(),
            unpublished: BTreeMap::new(),
            fences: 0,
            peers,
            failed: None,
        }
    }

    fn check_usable(&self) -> Result<(), Error> {
        match &self.failed {
            None => Ok(()),
            Some(reason) => Err(Error::Unusable { runtime: Runtime::Tcp, reason: reason.clone() }),
        }
    }

    /// The rank at the other end of a connection.
    fn rank_of(&self, peer: usize) -> u32 {
        if self.rank == 0 { peer as u32 + 1 } else { 0 }
    }

    /// What a failure of the connection to a peer means.
    fn error(&self, peer: usize, stop: FrameError, timeout: Duration) -> Error {
        let rank = self.rank_of(peer);
        match stop {
            FrameError::TimedOut { .. } => Error::TimedOut {
                runtime: Runtime::Tcp,
                operation: "a fence",
                waited: timeout,
                missing: if self.rank == 0 {
                    String::new()
                } else {
                    ": rank 0 did not complete it".to_owned()
                },
            },
            stop if stop.is_peer_gone() => {
                refused("a fence", format!("rank {rank} closed its connection or ended"))
            }
            stop => failed("a fence")(stop.into()),
        }
    }

    /// Remembers an error, tells the other ranks, and returns it.
    fn fail(&mut self, error: Error) -> Error {
        if self.failed.is_none() {
            let text = error.to_string();
            // The others put it behind the runtime and the operation of their own.
            match &error {
                Error::Refused { reason, .. } => self.send_abort(reason),
                _ => self.send_abort(text.strip_prefix("tcp: ").unwrap_or(&text)),
            }
            self.failed = Some(text);
        }
        error
    }

    /// Sends the reason for the end of the job to whom this rank is connected, without waiting for
    /// long.
    fn send_abort(&mut self, reason: &str) {
        let mut abort = message(kind::ABORT);
        push(&mut abort, reason.as_bytes());
        let deadline = after(Instant::now(), Duration::from_millis(200));
        for peer in &mut self.peers {
            // A peer that ended needs no reason.
            let _ = peer.send(&abort, left(deadline));
        }
    }

    /// Takes what is behind an ABORT as this rank's failure.
    fn aborted(&mut self, rank: u32, parts: &mut Parts<'_>) -> Error {
        let reason = parts.text().unwrap_or_else(|| "no reason given".to_owned());
        if self.rank == 0 {
            self.fail(refused("a fence", ended_by(rank, &reason)))
        } else {
            self.ended(refused("a fence", reason))
        }
    }

    fn ended(&mut self, error: Error) -> Error {
        self.failed.get_or_insert_with(|| error.to_string());
        error
    }

    /// Rank 0's part of a fence.
    fn gather(&mut self, timeout: Duration) -> Result<(), Error> {
        let deadline = after(Instant::now(), timeout);
        let mut new: Vec<(u32, String, Vec<u8>)> = Vec::new();
        for (key, value) in std::mem::take(&mut self.unpublished) {
            new.push((0, key, value));
        }
        let mut missing: BTreeSet<usize> = (0..self.peers.len()).collect();
        // Something of a fence may have arrived with a request to join.
        let mut ready: Vec<usize> = missing.iter().copied().collect();
        let mut scratch = vec![0; RECEIVE];
        let mut share = Share::new(Terms::CONNECTIONS, Instant::now());
        loop {
            let (begun, mut enough) = (cpu_time(), ready.is_empty());
            for peer in ready {
                let before = self.peers[peer].received().waiting();
                let ended = read(&mut self.peers[peer], &mut scratch);
                enough |= self.peers[peer].received().waiting().saturating_sub(before) >= LITTLE;
                let message = match (self.peers[peer].received().take(), ended) {
                    (Ok(Some(message)), _) => message,
                    (Ok(None), Ok(())) => continue,
                    (Err(stop), _) | (Ok(None), Err(stop)) => {
                        return Err(self.lost(peer, stop, timeout));
                    }
                };
                self.take_fence(peer, &message, &mut new)?;
                missing.remove(&peer);
                enough = true;
            }
            if missing.is_empty() {
                break;
            }
            let now = Instant::now();
            if !enough {
                share.spend(cpu_time().saturating_sub(begun), now);
                let rest = share.next_slice().min(deadline).saturating_duration_since(now);
                std::thread::sleep(rest);
            }
            if now >= deadline {
                let late: Vec<u32> = missing.iter().map(|&peer| self.rank_of(peer)).collect();
                let error = Error::TimedOut {
                    runtime: Runtime::Tcp,
                    operation: "a fence",
                    waited: timeout,
                    missing: format!(": {} is missing", ranks(&late)),
                };
                return Err(self.fail(error));
            }
            ready = self.wait_for(&missing, deadline).map_err(|source| Error::Io {
                runtime: Runtime::Tcp,
                operation: "a fence",
                source,
            })?;
        }
        let mut table = message(kind::TABLE);
        push_number(&mut table, self.fences);
        for (rank, key, value) in &new {
            push_number(&mut table, *rank);
            push(&mut table, key.as_bytes());
            push(&mut table, value);
        }
        if table.len() > LONGEST {
            let reason = format!("the ranks published over {LONGEST} bytes at a time");
            return Err(self.fail(refused("a fence", reason)));
        }
        for peer in 0..self.peers.len() {
            if let Err(stop) = self.peers[peer].send(&table, left(deadline)) {
                return Err(self.lost(peer, stop, timeout));
            }
        }
        self.table.extend(new.into_iter().map(|(rank, key, value)| ((rank, key), value)));
        Ok(())
    }

    fn lost(&mut self, peer: usize, stop: FrameError, timeout: Duration) -> Error {
        let error = self.error(peer, stop, timeout);
        self.fail(error)
    }

    /// Sleeps until some of the peers have sent something. Returns which.
    fn wait_for(&self, missing: &BTreeSet<usize>, deadline: Instant) -> io::Result<Vec<usize>> {
        let mut fds: Vec<PollFd<'_>> =
            missing.iter().map(|&peer| PollFd::new(&self.peers[peer], PollFlags::IN)).collect();
        match poll(&mut fds, timeout(deadline).as_ref()) {
            Ok(_) => {
                let polled = missing.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
                Ok(polled.map(|(peer, _)| *peer).collect())
            }
            Err(rustix::io::Errno::INTR) => Ok(Vec::new()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads what a rank sent at a fence.
    fn take_fence(
        &mut self,
        peer: usize,
        message: &[u8],
        new: &mut Vec<(u32, String, Vec<u8>)>,
    ) -> Result<(), Error> {
        let rank = self.rank_of(peer);
        let mut parts = Parts(message);
        match parts.number() {
            Some(kind::FENCE) if parts.number() == Some(self.fences) => {}
            Some(kind::ABORT) => return Err(self.aborted(rank, &mut parts)),
            _ => return Err(self.fail(refused("a fence", malformed(rank)))),
        }
        let mut left = MAX_PUT;
        while !parts.is_empty() {
            let entry = parts.text().filter(|key| check_key(key).is_ok()).zip(parts.part());
            let entry = entry.filter(|(_, value)| value.len() <= MAX_VALUE);
            match entry.and_then(|entry| Some((left.checked_sub(cost(&entry.0, entry.1))?, entry)))
            {
                Some((rest, (key, value))) => {
                    left = rest;
                    new.push((rank, key, value.to_vec()));
                }
                None => return Err(self.fail(refused("a fence", malformed(rank)))),
            }
        }
        Ok(())
    }

    /// Another rank's part of a fence.
    fn exchange(&mut self, timeout: Duration) -> Result<(), Error> {
        let deadline = after(Instant::now(), timeout);
        let mut fence = message(kind::FENCE);
        push_number(&mut fence, self.fences);
        for (key, value) in std::mem::take(&mut self.unpublished) {
            push(&mut fence, key.as_bytes());
            push(&mut fence, &value);
        }
        let sent = self.peers[0].send(&fence, left(deadline));
        // Rank 0 may have said why the job ends before it closed the connection.
        let received = self.peers[0].receive(left(deadline));
        let table = match received {
            Ok(table) => table,
            Err(stop) => {
                let stop = sent.err().unwrap_or(stop);
                return Err(self.lost(0, stop, timeout));
            }
        };
        let mut parts = Parts(&table);
        match parts.number() {
            Some(kind::TABLE) if parts.number() == Some(self.fences) => {}
            Some(kind::ABORT) => return Err(self.aborted(0, &mut parts)),
            _ => return Err(self.fail(refused("a fence", malformed(0)))),
        }
        while !parts.is_empty() {
            let rank = parts.number().filter(|&rank| rank < self.size);
            match rank.zip(parts.text()).zip(parts.part()) {
                Some(((rank, key), value)) => {
                    self.table.insert((rank, key), value.to_vec());
                }
                None => return Err(self.fail(refused("a fence", malformed(0)))),
            }
        }
        Ok(())
    }
}

impl Bootstrap for Tcp {
    fn runtime(&self) -> Runtime {
        Runtime::Tcp
    }

    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn node_peers(&self) -> Option<&[u32]> {
        if self.node_peers.is_empty() { None } else { Some(&self.node_peers) }
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
        check(key, value)?;
        self.check_usable()?;
        let is_taken = self.table.contains_key(&(self.rank, key.to_owned()));
        if is_taken || self.unpublished.contains_key(key) {
            return Err(Error::KeyTaken { key: key.to_owned() });
        }
        let waiting: usize = self.unpublished.iter().map(|(key, value)| cost(key, value)).sum();
        if waiting + cost(key, value) > MAX_PUT {
            let reason = format!("a rank publishes at most {MAX_PUT} bytes between two fences");
            return Err(refused("putting a value", reason));
        }
        self.unpublished.insert(key.to_owned(), value.to_vec());
        Ok(())
    }

    fn fence(&mut self, timeout: Duration) -> Result<(), Error> {
        self.check_usable()?;
        let done = if self.rank == 0 { self.gather(timeout) } else { self.exchange(timeout) };
        self.fences += 1;
        done
    }

    fn get(&mut self, rank: u32, key: &str) -> Result<Vec<u8>, Error> {
        check_key(key)?;
        check_rank(rank, self.size)?;
        let value = self.table.get(&(rank, key.to_owned())).cloned();
        value.ok_or_else(|| Error::NotFound { rank, key: key.to_owned() })
    }

    fn abort(&mut self, code: i32, reason: &str) {
        let reason = format!("{reason} (exit code {code})");
        if self.rank == 0 {
            self.send_abort(&ended_by(0, &reason));
        } else {
            self.send_abort(&reason);
        }
        self.failed.get_or_insert(reason);
    }
}

/// The hosts of all ranks, and the connections of this one.
type Joined = (Vec<Vec<u8>>, Vec<Stream>);

/// Raises the soft limit of descriptors, if `count` connections need more of them.
fn ensure_descriptors(count: u64) -> Result<(), Error> {
    let needed = count + OTHER_DESCRIPTORS;
    descriptors::ensure(needed).map_err(|limit| {
        let reason = format!(
            "rank 0 needs {needed} descriptors for a job of {} ranks, and may open {limit}: \
             raise the limit ('ulimit -Hn {needed}', or LimitNOFILE of its service)",
            count + 1
        );
        refused(LISTENING, reason)
    })
}

/// A connection that has not joined yet.
#[derive(Debug)]
struct Waiting {
    stream: Stream,
    /// See [`Authenticated::is_free`].
    is_free: bool,
    /// It may have something to read.
    is_ready: bool,
}

impl Waiting {
    /// Reads the request to join, if it is whole.
    fn read_join(&mut self, scratch: &mut [u8]) -> Result<Option<Vec<u8>>, FrameError> {
        // What came before the end of the stream counts.
        let ended = read(&mut self.stream, scratch);
        if self.stream.received().waiting() > size_of::<u32>() + LONGEST_JOIN {
            return Err(FrameError::Io(ErrorKind::InvalidData.into()));
        }
        let message = self.stream.received().take()?;
        if message.is_none() {
            ended?;
        }
        Ok(message)
    }
}

/// Sleeps until there is something to do at rank 0 while ranks join. Connections that are not free
/// count only if there is time for them.
fn sleep(
    door: &Listener,
    waiting: &mut [Waiting],
    has_time: bool,
    until: Instant,
) -> io::Result<()> {
    let none = PollFlags::empty();
    let mut fds = Vec::with_capacity(waiting.len() + 1);
    if !door.is_paused() {
        fds.push(PollFd::new(door, PollFlags::IN));
    }
    let watched = waiting.iter_mut().filter(|one| one.is_free || has_time);
    let (mut flags, first): (Vec<&mut bool>, usize) = (Vec::new(), fds.len());
    for one in watched {
        fds.push(PollFd::new(&one.stream, PollFlags::IN));
        flags.push(&mut one.is_ready);
    }
    match poll(&mut fds, timeout(until).as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    for (flag, fd) in flags.into_iter().zip(&fds[first..]) {
        *flag |= fd.revents() != none;
    }
    Ok(())
}

/// Rank 0 lets the other ranks join.
fn serve(config: &TcpConfig, mut door: Listener) -> Result<Joined, Error> {
    let others = config.size as usize - 1;
    if others == 0 {
        return Ok((vec![host()], Vec::new()));
    }
    ensure_descriptors(others as u64)?;
    let deadline = after(Instant::now(), config.timeout);
    let mut hosts = vec![Vec::new(); config.size as usize];
    hosts[0] = host();
    let mut joined: Vec<Option<Stream>> = (0..others).map(|_| None).collect();
    // Connected, and not yet joined, the oldest first.
    let mut waiting: Vec<Waiting> = Vec::new();
    let mut share = Share::new(Terms::CONNECTIONS, Instant::now());
    let mut admitted: Vec<Authenticated> = Vec::new();
    let mut scratch = vec![0; RECEIVE];
    while joined.iter().any(Option::is_none) {
        let now = Instant::now();
        if now >= deadline {
            let late: Vec<u32> = (1..config.size)
                .zip(&joined)
                .filter(|(_, peer)| peer.is_none())
                .map(|(rank, _)| rank)
                .collect();
            let missing = format!(": {} did not connect to {}", ranks(&late), config.master);
            let (runtime, operation) = (Runtime::Tcp, "the start of the job");
            let error = Error::TimedOut { runtime, operation, waited: config.timeout, missing };
            // Those that have joined say the same.
            let text = error.to_string();
            let mut abort = message(kind::ABORT);
            push(&mut abort, text.strip_prefix("tcp: ").unwrap_or(&text).as_bytes());
            let soon = after(now, LAST_WORDS);
            for peer in joined.iter_mut().flatten() {
                // A rank that has ended needs no reason.
                let _ = peer.send(&abort, left(soon));
            }
            return Err(error);
        }
        door.work(now, &mut admitted);
        for newcomer in admitted.drain(..) {
            if newcomer.claim.purpose != Purpose::Control || newcomer.claim.service != SERVICE {
                newcomer.refuse(Verdict::Unknown);
                continue;
            }
            let is_free = newcomer.is_free;
            if let Ok(socket) = newcomer.welcome() {
                if waiting.len() >= others.max(MOST_WAITING) {
                    waiting.remove(0);
                }
                let stream = Stream::new(socket, LONGEST_JOIN);
                waiting.push(Waiting { stream, is_free, is_ready: true });
            }
        }
        let mut slice = share.begin(now);
        let mut index = 0;
        while let Some(one) = waiting.get_mut(index) {
            let may_read = match &slice {
                _ if one.is_free => true,
                Some(slice) => !slice.is_over(Duration::ZERO),
                None => false,
            };
            if !(may_read && std::mem::take(&mut one.is_ready)) {
                index += 1;
                continue;
            }
            let is_free = one.is_free;
            match Slice::during(slice.as_mut(), is_free, || one.read_join(&mut scratch)) {
                Ok(Some(message)) => {
                    let mut stream = waiting.remove(index).stream;
                    match admit(config, &message, &joined) {
                        Ok((rank, host)) => {
                            hosts[rank as usize] = host;
                            stream.limit(LONGEST_FENCE);
                            joined[rank as usize - 1] = Some(stream);
                        }
                        Err(reason) => {
                            let mut abort = self::message(kind::ABORT);
                            push(&mut abort, reason.as_bytes());
                            // The rank that is refused may have ended.
                            let _ = stream.send(&abort, left(after(now, TICK)));
                        }
                    }
                }
                Ok(None) => {
                    // A rank sends its request at once.
                    let one = &mut waiting[index];
                    one.is_free &= one.stream.received().waiting() == 0;
                    index += 1;
                }
                Err(_) => drop(waiting.remove(index)),
            }
        }
        if let Some(slice) = slice {
            share.end(slice);
        }
        let until = [deadline, after(now, TICK)].into_iter().chain(door.deadline()).min();
        sleep(&door, &mut waiting, share.has_slice(now), until.unwrap_or(deadline))
            .map_err(failed(LISTENING))?;
    }
    let mut peers: Vec<Stream> = joined.into_iter().flatten().collect();
    let mut welcome = message(kind::WELCOME);
    for host in &hosts {
        push(&mut welcome, host);
    }
    for (peer, rank) in peers.iter_mut().zip(1..) {
        peer.send(&welcome, left(deadline)).map_err(|_| {
            refused("the start of the job", format!("rank {rank} closed its connection or ended"))
        })?;
    }
    Ok((hosts, peers))
}

/// Checks what a rank says about itself when it joins. Returns its rank and host.
fn admit(
    config: &TcpConfig,
    message: &[u8],
    joined: &[Option<Stream>],
) -> Result<(u32, Vec<u8>), String> {
    let mut parts = Parts(message);
    let kind = parts.number();
    let (Some(kind::JOIN), Some(rank), Some(size), Some(host)) =
        (kind, parts.number(), parts.number(), parts.part().filter(|host| host.len() <= HOST))
    else {
        return Err(
            "rank 0 cannot read the request to join: use one version of barewire".to_owned()
        );
    };
    if size != config.size {
        return Err(format!(
            "the job has {} ranks according to rank 0, and {size} according to rank {rank}",
            config.size
        ));
    }
    match (rank as usize).checked_sub(1).and_then(|index| joined.get(index)) {
        Some(None) => Ok((rank, host.to_vec())),
        Some(Some(_)) => Err(format!("there are two processes with RANK={rank}")),
        None => {
            Err(format!("{rank} is not a rank that connects to rank 0 of a job of {size} ranks"))
        }
    }
}

/// Whether no route leads to rank 0 at present.
fn is_unreachable(master: SocketAddr, error: &io::Error) -> bool {
    let is_late =
        matches!(error.kind(), ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable);
    is_late && !master.ip().is_loopback()
}

/// Another rank joins.
fn join(config: &TcpConfig) -> Result<Joined, Error> {
    const OPERATION: &str = "connecting to rank 0";
    let deadline = after(Instant::now(), config.timeout);
    let limits = Limits::toward(config.master.ip());
    let socket = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let connecting = Connector::start(config.master, None, &config.key, CLAIM, left, limits)
            .map_err(ConnectFailure::Io)
            .and_then(|connector| connector.wait(|| std::thread::sleep(Duration::from_millis(1))));
        match connecting {
            Ok(socket) => break socket,
            // Rank 0 may not have started yet.
            Err(ConnectFailure::Refused) if Instant::now() < deadline => std::thread::sleep(TICK),
            // The network of this host may come up late, too.
            Err(ConnectFailure::Io(error))
                if Instant::now() < deadline && is_unreachable(config.master, &error) =>
            {
                std::thread::sleep(TICK);
            }
            Err(ConnectFailure::Refused | ConnectFailure::TimedOut { .. }) => {
                return Err(Error::TimedOut {
                    runtime: Runtime::Tcp,
                    operation: OPERATION,
                    waited: config.timeout,
                    missing: format!(": rank 0 does not answer at {}", config.master),
                });
            }
            Err(ConnectFailure::Io(source)) => {
                return Err(Error::Io { runtime: Runtime::Tcp, operation: OPERATION, source });
            }
            Err(error) => return Err(refused(OPERATION, format!("{}: {error}", config.master))),
        }
    };
    // An entry of a table is not longer than its cost, with the number of its rank.
    let table = (config.size as usize).saturating_mul(LONGEST_FENCE);
    let mut stream = Stream::new(socket, table.min(LONGEST));
    let mut request = message(kind::JOIN);
    push_number(&mut request, config.rank);
    push_number(&mut request, config.size);
    push(&mut request, &host());
    let failed = |stop: FrameError| match stop {
        FrameError::TimedOut { .. } => Error::TimedOut {
            runtime: Runtime::Tcp,
            operation: "the start of the job",
            waited: config.timeout,
            missing: ": other ranks did not connect to rank 0".to_owned(),
        },
        stop if stop.is_peer_gone() => {
            refused("the start of the job", "rank 0 closed the connection or ended")
        }
        stop => failed(OPERATION)(stop.into()),
    };
    stream.send(&request, left(deadline)).map_err(failed)?;
    // Rank 0 says which ranks are missing.
    let welcome = stream.receive(left(after(deadline, LAST_WORDS))).map_err(failed)?;
    let mut parts = Parts(&welcome);
    match parts.number() {
        Some(kind::WELCOME) => {}
        Some(kind::ABORT) => {
            let reason = parts.text().unwrap_or_else(|| "rank 0 gives no reason".to_owned());
            return Err(refused("joining the job", reason));
        }
        _ => return Err(refused("joining the job", malformed(0))),
    }
    let hosts: Option<Vec<Vec<u8>>> =
        (0..config.size).map(|_| parts.part().map(<[u8]>::to_vec)).collect();
    hosts.map(|hosts| (hosts, vec![stream])).ok_or_else(|| refused("joining the job", malformed(0)))
}
