//! A log that one process writes into the memory of three others, as a storage engine replicates it: records by zero-copy puts, then a
//! fetch-add to the tail that makes them valid. The replicas' programs have no part in it. One of them crashes, and the log goes on.
//!
//! `cargo run --example remote_log`

mod exchange;

use barewire::{Access, AtomicOp, Completion, FetchResult, Memory, Posted};
use exchange::{Peer, Remote, Result, Side};

const REPLICAS: usize = 3;
/// With fewer the log has no majority and stops.
const MAJORITY: usize = REPLICAS / 2 + 1;
const APPENDS: u64 = 200;
/// After this many one of the replicas crashes.
const CRASH: u64 = 50;

/// A replica's memory: the tail, a word that counts valid bytes, and then those.
const TAIL: u64 = 8;
const CAPACITY: usize = 1 << 20;

fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some("replica") { replica(Peer::parent()?) } else { writer() }
}

/// Has memory, and is asked at the end what is in it.
fn replica(mut peer: Peer) -> Result<()> {
    let mut side = Side::open()?;
    side.connect(&mut peer)?;
    let memory = side.expose(TAIL as usize + CAPACITY, &mut peer)?;
    // Nothing is to be done until the writer asks. A program that reads the log meanwhile looks at the tail.
    if side.listen(&mut peer).is_ok() {
        let (records, digest) = read_log(&memory)?;
        peer.send(&records.to_le_bytes())?;
        peer.send(&digest.to_le_bytes())?;
        // The memory has to stay until the writer is through.
        side.listen(&mut peer)?;
    }
    Ok(())
}

/// Checks every valid record, and answers their number and a digest of them all.
fn read_log(memory: &Memory) -> Result<(u64, u64)> {
    // The tail is loaded with acquire ordering: what is before it is there.
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

/// FNV-1a: enough to compare copies.
fn digest(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// A replica as the writer sees it.
struct Replica {
    number: usize,
    peer: Peer,
    side: Side,
    remote: Remote,
    /// What is sent must be registered memory; it holds one record.
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

    /// Starts to append at `tail`. The operations end together in `completion`.
    fn append(
        &mut self,
        tail: u64,
        record: &[u8],
        completion: &Completion,
        found: &FetchResult,
    ) -> Result<()> {
        let Remote { address, key } = self.remote.clone();
        self.buffer.write(0, record)?;
        let slice = self.buffer.slice(0, record.len())?;
        completion.add(2);
        let put =
            self.side.post(|to| to.put_zcopy(&[slice], address + TAIL + tail, &key, Some(completion)))?;
        // The tail may not be seen before the record.
        self.side.endpoint.fence()?;
        let length = AtomicOp::Add(record.len() as u64);
        let add = self.side.post(|to| to.atomic_fetch(length, address, &key, found, Some(completion)))?;
        for posted in [put, add] {
            if posted == Posted::Done {
                completion.count_down(Ok(()));
            }
        }
        Ok(())
    }

    /// Waits for the end of an append. The tail was where the writer thinks it is, unless there is another writer.
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
        // All at once, then wait for all: an append takes as long as the slowest replica, not as all of them.
        let ends: Vec<_> = replicas.iter().map(|_| (Completion::counter(0), FetchResult::new())).collect();
        let mut outcomes = Vec::new();
        for (replica, (completion, found)) in replicas.iter_mut().zip(&ends) {
            outcomes.push(replica.append(tail, &record, completion, found));
        }
        for ((replica, (completion, found)), outcome) in replicas.iter_mut().zip(&ends).zip(&mut outcomes) {
            if outcome.is_ok() {
                *outcome = replica.appended(tail, completion, found);
            }
        }
        // A replica that failed has lost its place in the log: it is left out from now on.
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
    // Over shared memory puts go on into the memory of a dead process until its death is noticed; asking it finds out.
    let mut copies = 0;
    for Replica { number, peer, .. } in &mut replicas {
        match ask(peer) {
            Ok((records, digest)) => {
                println!("replica {number} has {records} records, {tail} bytes, digest {digest:016x}");
                copies += usize::from(records == APPENDS);
            }
            Err(error) => println!("replica {number} is lost at the end: {error}"),
        }
    }
    if copies >= MAJORITY { Ok(()) } else { Err(format!("only {copies} replicas have the log").into()) }
}

/// The number of records that a replica has, and their digest.
fn ask(peer: &mut Peer) -> Result<(u64, u64)> {
    peer.send(b"what do you have?")?;
    let word = |bytes: Vec<u8>| bytes.try_into().map(u64::from_le_bytes).map_err(|_| "not a word");
    let (records, digest) = (word(peer.receive()?)?, word(peer.receive()?)?);
    peer.send(b"thank you")?;
    Ok((records, digest))
}
