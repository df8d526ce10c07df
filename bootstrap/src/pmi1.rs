//! PMI-1: lines of text over a socket that the launcher hands to each rank (`PMI_FD`).
//!
//! Served by Hydra (MPICH's `mpiexec`) and by Slurm's `--mpi=pmi2`, among others. Source: the
//! "PMI-1 wire protocol" of MPICH and Flux RFC 13. A request and its response are one line each, of
//! words `key=value`, in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::inherited::inherited;
use crate::{Bootstrap, Error, MAX_KEY, MAX_VALUE, Runtime, check, check_key, check_rank};

/// How long the launcher may take for a request that waits for no other rank.
const SOON: Duration = Duration::from_secs(30);
/// Bytes of the longest line.
const LONGEST_LINE: usize = 1 << 20;
/// Characters of the longest request. Slurm reads a request of more than 1024 as two, and other
/// servers cut a value of 1024 characters without an error.
const LONGEST_REQUEST: usize = 1000;
/// Characters of the longest key on the wire: `bw-RANK-KEY-PIECE`.
const WIRE_KEY: usize = 3 + 10 + 1 + MAX_KEY + 1 + 10;

/// Digits of the number of pieces in front of a value.
const COUNT: usize = 6;
/// How long the launcher may take to say goodbye.
const LEAVE: Duration = Duration::from_secs(1);

/// A rank under a PMI-1 server.
#[derive(Debug)]
pub struct Pmi1 {
    connection: Connection,
    rank: u32,
    size: u32,
    space: String,
    /// Characters of a value.
    value: usize,
    node_peers: Option<Vec<u32>>,
    put: BTreeSet<String>,
    /// Values of other ranks that were read.
    read: BTreeMap<(u32, String), Vec<u8>>,
    failed: Option<String>,
}

/// The socket to the launcher.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    received: Vec<u8>,
}

/// The words of a line.
#[derive(Debug)]
struct Words(BTreeMap<String, String>);

impl Words {
    fn read(line: &str) -> Self {
        let pairs = line.split_ascii_whitespace().filter_map(|word| word.split_once('='));
        Self(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    fn number(&self, key: &str) -> Option<u32> {
        self.get(key)?.parse().ok()
    }

    /// `rc` is 0 or missing.
    fn is_success(&self) -> bool {
        self.get("rc").is_none_or(|code| code == "0")
    }
}

fn refused(operation: &'static str, reason: impl Into<String>) -> Error {
    Error::Refused { runtime: Runtime::Pmi1, operation, reason: reason.into() }
}

fn io(operation: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::Io { runtime: Runtime::Pmi1, operation, source: errno.into() }
}

impl Connection {
    fn wait(
        &self,
        flags: PollFlags,
        operation: &'static str,
        timeout: Duration,
        since: Instant,
    ) -> Result<(), Error> {
        loop {
            let left = timeout.saturating_sub(since.elapsed());
            let limit = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&self.socket, flags)], limit.as_ref()) {
                Ok(0) => {
                    let missing = String::new();
                    return Err(Error::TimedOut {
                        runtime: Runtime::Pmi1,
                        operation,
                        waited: timeout,
                        missing,
                    });
                }
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(io(operation)(errno)),
            }
        }
    }

    fn send(
        &mut self,
        line: &str,
        operation: &'static str,
        timeout: Duration,
    ) -> Result<(), Error> {
        let (since, mut rest) = (Instant::now(), line.as_bytes());
        while !rest.is_empty() {
            self.wait(PollFlags::OUT, operation, timeout, since)?;
            let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
            match rustix::net::send(&self.socket, rest, flags) {
                Ok(count) => rest = &rest[count..],
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(errno) => return Err(io(operation)(errno)),
            }
        }
        Ok(())
    }

    /// Sends a request, whose words end with a newline, and returns the response, which must be
    /// `expected`.
    fn request(
        &mut self,
        line: &str,
        expected: &str,
        operation: &'static str,
        timeout: Duration,
    ) -> Result<Words, Error> {
        self.send(line, operation, timeout)?;
        let since = Instant::now();
        loop {
            if let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                let words = Words::read(&String::from_utf8_lossy(&line));
                return match words.get("cmd") {
                    Some(command) if command == expected => Ok(words),
                    other => Err(refused(
                        operation,
                        format!(
                            "the launcher responds '{}' instead of '{expected}'",
                            other.unwrap_or("nothing")
                        ),
                    )),
                };
            }
            if self.received.len() > LONGEST_LINE {
                return Err(refused(operation, "the launcher sends a line without an end"));
            }
            self.wait(PollFlags::IN, operation, timeout, since)?;
            let at = self.received.len();
            self.received.resize(at + 4096, 0);
            let outcome = rustix::io::read(&self.socket, &mut self.received[at..]);
            self.received.truncate(at + outcome.unwrap_or(0));
            match outcome {
                Ok(0) => {
                    return Err(refused(
                        operation,
                        "the launcher closed its socket: it or the job has ended",
                    ));
                }
                Ok(_) | Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(errno) => return Err(io(operation)(errno)),
            }
        }
    }
}

impl Pmi1 {
    /// Talks to the launcher over the inherited socket `descriptor`, of which this keeps a
    /// duplicate. The environment says the rank and the size (`PMI_RANK`, `PMI_SIZE`).
    ///
    /// # Errors
    /// [`Error::Io`] if there is no such descriptor, [`Error::Refused`] if what is there does not
    /// speak PMI-1, [`Error::TimedOut`].
    pub fn open(descriptor: i32, rank: u32, size: u32, timeout: Duration) -> Result<Self, Error> {
        let socket = inherited(descriptor).map_err(io("opening PMI_FD"))?;
        Self::over(socket, rank, size, timeout)
    }

    /// Talks to a launcher over a connected stream socket.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn over(socket: OwnedFd, rank: u32, size: u32, timeout: Duration) -> Result<Self, Error> {
        const OPERATION: &str = "greeting the launcher";
        check_rank(rank, size)?;
        let mut connection = Connection { socket, received: Vec::new() };
        let mut ask =
            |line: &str, expected: &str| connection.request(line, expected, OPERATION, timeout);
        let init = ask("cmd=init pmi_version=1 pmi_subversion=1\n", "response_to_init")?;
        if !init.is_success() {
            return Err(refused(OPERATION, "the launcher does not support PMI version 1"));
        }
        let missing = |what: &str| refused(OPERATION, format!("the launcher does not tell {what}"));
        let maxes = ask("cmd=get_maxes\n", "maxes")?;
        let longest_key =
            maxes.number("keylen_max").ok_or_else(|| missing("the longest key"))? as usize;
        let longest_value =
            maxes.number("vallen_max").ok_or_else(|| missing("the longest value"))? as usize;
        if longest_key <= WIRE_KEY || longest_value < 64 {
            let limits = format!(
                "keys of {longest_key} and values of {longest_value} characters are too short"
            );
            return Err(refused(OPERATION, limits));
        }
        let space = ask("cmd=get_my_kvsname\n", "my_kvsname")?;
        let space = space
            .get("kvsname")
            .ok_or_else(|| missing("the name of the key-value space"))?
            .to_owned();
        let frame = put_request(&space, "", "").len() + WIRE_KEY;
        let value = LONGEST_REQUEST.saturating_sub(frame).min(longest_value - 2);
        if value < 2 * COUNT {
            return Err(refused(
                OPERATION,
                format!("the name of the key-value space, '{space}', is too long"),
            ));
        }
        let mut this = Self {
            connection,
            rank,
            size,
            space,
            value,
            node_peers: None,
            put: BTreeSet::new(),
            read: BTreeMap::new(),
            failed: None,
        };
        let mapping = this.read_word("PMI_process_mapping")?;
        this.node_peers = mapping.and_then(|mapping| peers_in(&mapping, rank, size));
        Ok(this)
    }
}

impl Pmi1 {
    fn check_usable(&self) -> Result<(), Error> {
        match &self.failed {
            None => Ok(()),
            Some(reason) => Err(Error::Unusable { runtime: Runtime::Pmi1, reason: reason.clone() }),
        }
    }

    fn request(
        &mut self,
        line: &str,
        expected: &str,
        operation: &'static str,
        timeout: Duration,
    ) -> Result<Words, Error> {
        self.check_usable()?;
        let outcome = self.connection.request(line, expected, operation, timeout);
        // A response that comes late would be taken for that of the next request.
        if let Err(error) = &outcome {
            self.failed = Some(error.to_string());
        }
        outcome
    }

    /// Reads a value of the launcher's key-value space; `None` if it does not exist.
    fn read_word(&mut self, key: &str) -> Result<Option<String>, Error> {
        let line = format!("cmd=get kvsname={} key={key}\n", self.space);
        let words = self.request(&line, "get_result", "reading a value", SOON)?;
        Ok(if words.is_success() { words.get("value").map(str::to_owned) } else { None })
    }

    fn write_word(&mut self, key: &str, value: &str) -> Result<(), Error> {
        let line = put_request(&self.space, key, value);
        let words = self.request(&line, "put_result", "writing a value", SOON)?;
        if words.is_success() {
            return Ok(());
        }
        Err(refused("writing a value", words.get("msg").unwrap_or("the launcher gives no reason")))
    }
}

fn put_request(space: &str, key: &str, value: &str) -> String {
    format!("cmd=put kvsname={space} key={key} value={value}\n")
}

fn wire_key(rank: u32, key: &str, piece: usize) -> String {
    format!("bw-{rank}-{key}-{piece}")
}

impl Bootstrap for Pmi1 {
    fn runtime(&self) -> Runtime {
        Runtime::Pmi1
    }

    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn node_peers(&self) -> Option<&[u32]> {
        self.node_peers.as_deref()
    }

    /// The value is encoded as base64url, cut into pieces that the server keeps whole, and the
    /// first piece begins with their number.
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
        check(key, value)?;
        self.check_usable()?;
        if !self.put.insert(key.to_owned()) {
            return Err(Error::KeyTaken { key: key.to_owned() });
        }
        let text = URL_SAFE_NO_PAD.encode(value);
        let count = (text.len() + COUNT).div_ceil(self.value);
        let text = format!("{count:0COUNT$}{text}");
        for piece in 0..count {
            let end = text.len().min((piece + 1) * self.value);
            self.write_word(&wire_key(self.rank, key, piece), &text[piece * self.value..end])?;
        }
        Ok(())
    }

    fn fence(&mut self, timeout: Duration) -> Result<(), Error> {
        let words = self.request("cmd=barrier_in\n", "barrier_out", "a fence", timeout)?;
        if words.is_success() {
            return Ok(());
        }
        let error = refused("a fence", words.get("msg").unwrap_or("the launcher gives no reason"));
        self.failed = Some(error.to_string());
        Err(error)
    }

    fn get(&mut self, rank: u32, key: &str) -> Result<Vec<u8>, Error> {
        check_key(key)?;
        check_rank(rank, self.size)?;
        let place = (rank, key.to_owned());
        if let Some(value) = self.read.get(&place) {
            return Ok(value.clone());
        }
        let malformed = || {
            refused(
                "reading a value",
                format!("'{key}' of rank {rank} is not a value of this library"),
            )
        };
        let Some(first) = self.read_word(&wire_key(rank, key, 0))? else {
            return Err(Error::NotFound { rank, key: key.to_owned() });
        };
        let (count, first) = first.split_at_checked(COUNT).ok_or_else(malformed)?;
        let count: usize = count.parse().map_err(|_| malformed())?;
        if count > MAX_VALUE / 3 * 4 / COUNT {
            return Err(malformed());
        }
        let mut text = first.to_owned();
        for piece in 1..count {
            text += &self.read_word(&wire_key(rank, key, piece))?.ok_or_else(malformed)?;
        }
        let value = URL_SAFE_NO_PAD.decode(text).map_err(|_| malformed())?;
        self.read.insert(place, value.clone());
        Ok(value)
    }

    fn abort(&mut self, code: i32, reason: &str) {
        self.failed.get_or_insert_with(|| format!("this rank aborted the job: {reason}"));
        // Without a launcher there is nobody to ask.
        let _ = self.connection.send(&format!("cmd=abort exitcode={code}\n"), "an abort", SOON);
    }
}

impl Drop for Pmi1 {
    /// Tells the launcher that this rank ends in order.
    fn drop(&mut self) {
        if self.failed.is_none() {
            // The launcher may have ended.
            let _ = self.connection.request("cmd=finalize\n", "finalize_ack", "leaving", LEAVE);
        }
    }
}

/// The ranks on the host of `rank`, of a mapping like `(vector,(0,2,4))`: blocks of first host,
/// number of hosts and ranks per host, which are repeated until every rank has a host.
fn peers_in(mapping: &str, rank: u32, size: u32) -> Option<Vec<u32>> {
    let numbers: Vec<u32> = mapping
        .strip_prefix("(vector,")?
        .split(|char: char| !char.is_ascii_digit())
        .filter(|word| !word.is_empty())
        .map(|word| word.parse().ok())
        .collect::<Option<_>>()?;
    let blocks: Vec<&[u32]> = numbers.chunks(3).collect();
    let is_usable = |block: &&[u32]| matches!(block, [_, hosts, ranks] if *hosts > 0 && *ranks > 0);
    if blocks.is_empty() || !blocks.iter().all(is_usable) {
        return None;
    }
    let hosts = blocks.iter().cycle().flat_map(|block| {
        let (first, count, ranks) = (block[0], block[1], block[2]);
        (0..count).flat_map(move |host| (0..ranks).map(move |_| first.wrapping_add(host)))
    });
    let hosts: Vec<u32> = hosts.take(size as usize).collect();
    let own = *hosts.get(rank as usize)?;
    Some((0..size).zip(&hosts).filter(|(_, host)| **host == own).map(|(rank, _)| rank).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_hydra_and_slurm() {
        // One host with 4 ranks; two hosts with 2 each; round robin over two hosts.
        assert_eq!(peers_in("(vector,(0,1,4))", 2, 4), Some(vec![0, 1, 2, 3]));
        assert_eq!(peers_in("(vector,(0,2,2))", 3, 4), Some(vec![2, 3]));
        assert_eq!(peers_in("(vector,(0,2,1))", 0, 5), Some(vec![0, 2, 4]));
        assert_eq!(peers_in("(vector,(0,1,2),(1,1,3))", 4, 5), Some(vec![2, 3, 4]));
        for wrong in [
            "",
            "(vector,)",
            "(vector,(0,1))",
            "(vector,(0,0,1))",
            "(matrix,(0,1,1))",
            "(vector,(0,1,99999999999))",
        ] {
            assert_eq!(peers_in(wrong, 0, 4), None, "{wrong}");
        }
    }

    #[test]
    fn words_in_any_order() {
        let words = Words::read("rc=0  cmd=get_result value=a=b msg=success\n");
        assert_eq!((words.get("cmd"), words.get("value")), (Some("get_result"), Some("a=b")));
        assert!(words.is_success());
        assert!(!Words::read("cmd=get_result rc=-1").is_success());
    }
}
