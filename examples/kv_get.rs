//! A table in the memory of a server that changes it continuously. A client looks up keys by
//! reading that memory, without involving the server's program. Each entry has a version, as in a
//! seqlock, which is odd while the entry is being written. A checksum detects a read that
//! overlapped a write.
//!
//! `cargo run --example kv_get`

mod exchange;

use barewire::prelude::*;
use exchange::{Peer, Result, Side};
use std::time::{Duration, Instant};

const ENTRIES: u64 = 64;
const LOOKUPS: u64 = 2000;
/// Reads of one lookup before it gives up, if each overlaps a write.
const TRIES: u32 = 10_000;

/// An entry: version, key, value, checksum of all three.
const VERSION: usize = 0;
const KEY: usize = 8;
const VALUE: usize = 16;
const VALUE_BYTES: usize = 104;
const CHECKSUM: usize = VALUE + VALUE_BYTES;
const ENTRY: usize = CHECKSUM + 8;

type Entry = [u8; ENTRY];

fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some("server") {
        server(Peer::parent()?)
    } else {
        client(Peer::start("server")?)
    }
}

fn server(mut peer: Peer) -> Result<()> {
    let mut side = Side::open()?;
    side.connect(&mut peer)?;
    let table = side.expose(ENTRY * ENTRIES as usize, &mut peer)?;
    for key in 0..ENTRIES {
        write(&table, key, 0)?;
    }
    peer.barrier()?;
    // Change entries until the client has finished. Reads need no progress here, but some
    // transports need it to connect.
    let done = std::thread::spawn(move || peer.receive());
    let mut count = 0;
    while !done.is_finished() {
        count += 1;
        side.worker.progress();
        write(&table, count % ENTRIES, count)?;
        if count.is_multiple_of(256) {
            std::thread::sleep(Duration::from_micros(10));
        }
    }
    Ok(())
}

/// Gives a key a new value. A concurrent reader sees an odd version or a checksum that does not
/// match.
fn write(table: &Memory, key: u64, count: u64) -> Result<()> {
    let at = key as usize * ENTRY;
    let version = table.load_u64(at + VERSION)? & !1;
    table.store_u64(at + VERSION, version + 1)?;
    let mut entry: Entry = [0; ENTRY];
    entry[VERSION..KEY].copy_from_slice(&(version + 2).to_le_bytes());
    entry[KEY..VALUE].copy_from_slice(&key.to_le_bytes());
    entry[VALUE..CHECKSUM].copy_from_slice(&value(count));
    let checksum = checksum(&entry);
    table.write(at + KEY, &entry[KEY..CHECKSUM])?;
    table.store_u64(at + CHECKSUM, u64::from_le_bytes(checksum))?;
    table.store_u64(at + VERSION, version + 2)?;
    Ok(())
}

/// One letter repeated, so that a mixture of two values is visible.
fn value(count: u64) -> [u8; VALUE_BYTES] {
    [b'a' + (count % 26) as u8; VALUE_BYTES]
}

/// FNV-1a over words. A CRC detects more errors.
fn checksum(entry: &Entry) -> [u8; 8] {
    let (words, _) = entry[..CHECKSUM].as_chunks::<8>();
    let mix = |hash: u64, word: &[u8; 8]| {
        (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x100_0000_01b3)
    };
    words.iter().fold(0xcbf2_9ce4_8422_2325, mix).to_le_bytes()
}

fn client(mut peer: Peer) -> Result<()> {
    let mut side = Side::open()?;
    side.connect(&mut peer)?;
    let table = side.reach(&mut peer)?;
    let buffer = side.domain.allocate(ENTRY, Access::LOCAL_WRITE)?;
    peer.barrier()?;
    let (start, mut again) = (Instant::now(), 0);
    for number in 0..LOOKUPS {
        let key = number * 7 % ENTRIES;
        let (value, retries) = get(&mut side, &table, &buffer, key)?;
        if value.iter().any(|byte| *byte != value[0]) {
            return Err(format!("the value of {key} is mixed: {}", value.escape_ascii()).into());
        }
        again += retries;
    }
    let time = start.elapsed() / LOOKUPS as u32;
    println!("{LOOKUPS} lookups, {time:?} each; {again} reads met a write and were repeated");
    peer.send(b"done")?;
    Ok(())
}

/// Reads the entry of a key until a read overlaps no write. Returns the value and the number of
/// repeated reads.
fn get(
    side: &mut Side,
    table: &RemoteRegion,
    buffer: &Memory,
    key: u64,
) -> Result<([u8; VALUE_BYTES], u32)> {
    let address = table.at(key as usize * ENTRY, ENTRY)?;
    for retries in 0..TRIES {
        let slice = buffer.slice(0, ENTRY)?;
        side.finish(|server, completion| {
            server.get_zcopy(&[slice], address, table.key(), Some(completion))
        })?;
        let mut entry: Entry = [0; ENTRY];
        buffer.read(0, &mut entry)?;
        let is_whole = entry[VERSION] & 1 == 0 && entry[CHECKSUM..] == checksum(&entry);
        if !is_whole {
            continue;
        }
        if entry[KEY..VALUE] != key.to_le_bytes() {
            return Err(format!("there is another key where {key} should be").into());
        }
        let value = entry[VALUE..CHECKSUM].try_into()?;
        return Ok((value, retries));
    }
    Err(format!("key {key} is written all the time").into())
}
