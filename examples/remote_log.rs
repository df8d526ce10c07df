//! A log that one process writes into the memory of three others, as a storage engine replicates
//! it: zero-copy puts write a record, then a fetch-add to the tail makes it valid. The replicas'
//! programs are not involved. One of them crashes, and the log continues.
//!
//! `cargo run --example remote_log`

mod exchange;

use barewire::prelude::*;
use exchange::{Peer, Result, Side};

const REPLICAS: usize = 3;
/// With fewer replicas, the log has no majority and stops.
const MAJORITY: usize = REPLICAS / 2 + 1;
const APPENDS: u64 = 200;
/// One of the replicas crashes after this many appends.
const CRASH: u64 = 50;

/// A replica's memory: the tail, a word that counts valid bytes, followed by these bytes.
const TAIL: u64 = 8;
const CAPACITY: usize = 1 << 20;

fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some("replica") {
        replica(Peer::parent()?)
    } else {
        writer()
    }
}

/// Provides memory, and at the end reports its contents.
fn replica(mut peer: Peer) -> Result<()> {
    let mut side = Side::open()?;
    side.connect(&mut peer)?;
    let memory = side.expose(TAIL as usize + CAPACITY, &mut peer)?;
    // There is nothing to do until the writer asks. A program that reads the log meanwhile polls
    // the tail.
    if side.listen(&mut peer).is_ok() {
        let (records, digest) = read_log(&memory)?;
        peer.send(&records.to_le_bytes())?;
        peer.send(&digest.to_le_bytes())?;
        // The memory must stay until the writer has finished.
        side.listen(&mut peer)?;
    }
    Ok(())
}

/// Checks every valid record. Returns the number of records and a digest of all of them.
fn read_log(memory: &Memory) -> Result<(u64, u64)> {
    // The tail is loaded with acquire ordering, so everything before it is visible.
    let tail = memory.load_u64(0)? as usize;
    let mut log = vec![0; tail];
    memory.read(TAIL as usize, &mut log)?;
    let (mut rest, mut records) = (&log[..], 0);
    while let Some((length, after)) = rest.split_first_chunk::<8>() {
        let length = u64::from_le_bytes(*length) as usize;
        let record = after.get(..length).ok_or("a record ends behind the tail")?;
        if record != text(records).as_bytes() {
            return Err(format!("record {records} is not what was written").into());
        }
        (rest, records) = (&after[length..], records + 1);
    }
    Ok((records, digest(&log)))
}

fn text(number: u64) -> String {
    format!("record {number} {}", "x".repeat(number as usize % 100))
}

/// FNV-1a suffices to compare copies.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// A replica as seen by the writer.
struct Replica {
    number: usize,
    peer: Peer,
    side: Side,
    remote: RemoteRegion,
    /// Registered memory with one record, since puts send only registered memory.
    buffer: Memory,
}

impl Replica {
    fn start(number: usize) -> Result<Self> {
        let mut peer = Peer::start("replica")?;
        let side = Side::open()?;
        side.connect(&mut peer)?;
        let remote = side.reach(&mut peer)?;
        let buffer = side.domain.allocate(4096, Access::empty())?;
        Ok(Self { number, peer, side, remote, buffer })
    }

    /// Starts to append a record at `tail`. `completion` tracks its operations.
    fn append(
        &mut self,
        tail: u64,
        record: &[u8],
        completion: &Completion,
        found: &FetchResult,
    ) -> Result<()> {
        let key = self.remote.key().clone();
        let counter = self.remote.at(0, TAIL as usize)?;
        let end = self.remote.at((TAIL + tail) as usize, record.len())?;
        self.buffer.write(0, record)?;
        let slice = self.buffer.slice(0, record.len())?;
        let _ = self.side.post(|to| to.put_zcopy(&[slice], end, &key, Some(completion)))?;
        // The tail must not become visible before the record.
        self.side.endpoint.fence()?;
        let length = AtomicOp::Add(record.len() as u64);
        let _ =
            self.side.post(|to| to.atomic_fetch(length, counter, &key, found, Some(completion)))?;
        Ok(())
    }

    /// Waits until an append has finished. Fails if the tail was not at `tail`, which means that
    /// there is another writer.
    fn appended(&mut self, tail: u64, completion: &Completion, found: &FetchResult) -> Result<()> {
        self.side.until(|| {
            completion.status()?;
            Ok(completion.pending() == 0)
        })?;
        if found.get() == tail {
            Ok(())
        } else {
            Err(format!("its tail is {}, not {tail}", found.get()).into())
        }
    }
}

fn writer() -> Result<()> {
    let mut replicas = (0..REPLICAS).map(Replica::start).collect::<Result<Vec<_>>>()?;
    let mut tail = 0;
    for number in 0..APPENDS {
        let text = text(number);
        let record = [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
        if tail as usize + record.len() > CAPACITY {
            return Err("the log is full".into());
        }
        if number == CRASH {
            replicas[REPLICAS - 1].peer.kill()?;
        }
        // Append to all replicas, then wait for all: this takes as long as the slowest one, not as
        // the sum.
        let ends: Vec<_> =
            replicas.iter().map(|_| (Completion::counter(), FetchResult::new())).collect();
        let mut outcomes = Vec::new();
        for (replica, (completion, found)) in replicas.iter_mut().zip(&ends) {
            outcomes.push(replica.append(tail, &record, completion, found));
        }
        for ((replica, (completion, found)), outcome) in
            replicas.iter_mut().zip(&ends).zip(&mut outcomes)
        {
            if outcome.is_ok() {
                *outcome = replica.appended(tail, completion, found);
            }
        }
        // A failed replica is left out from now on, as its log has a gap.
        let mut outcomes = outcomes.into_iter();
        replicas.retain(|replica| match outcomes.next() {
            Some(Err(error)) => {
                println!("replica {} is lost at record {number}: {error}", replica.number);
                false
            }
            _ => true,
        });
        if replicas.len() < MAJORITY {
            return Err(format!("{} of {REPLICAS} replicas are no majority", replicas.len()).into());
        }
        tail += record.len() as u64;
    }
    // Over shared memory, puts to a dead process succeed until its death is detected; a request
    // detects it.
    let mut copies = 0;
    for Replica { number, peer, .. } in &mut replicas {
        match ask(peer) {
            Ok((records, digest)) => {
                println!(
                    "replica {number} has {records} records, {tail} bytes, digest {digest:016x}"
                );
                copies += usize::from(records == APPENDS);
            }
            Err(error) => println!("replica {number} is lost at the end: {error}"),
        }
    }
    if copies >= MAJORITY {
        Ok(())
    } else {
        Err(format!("only {copies} replicas have the log").into())
    }
}

/// Requests the number of a replica's records and their digest.
fn ask(peer: &mut Peer) -> Result<(u64, u64)> {
    peer.send(b"what do you have?")?;
    let word = |bytes: Vec<u8>| bytes.try_into().map(u64::from_le_bytes).map_err(|_| "not a word");
    let (records, digest) = (word(peer.receive()?)?, word(peer.receive()?)?);
    peer.send(b"thank you")?;
    Ok((records, digest))
}
