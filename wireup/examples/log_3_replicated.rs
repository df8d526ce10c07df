//! Step 3 of the tutorial: a log in the memory of every other rank, which survives the loss of one.

use barewire::{FlushMode, Report};
use barewire_wireup::{Neighbour, Node, Peers, Rules, Window};
use std::{sync::atomic::Ordering::Acquire, time::Duration};

const TIMEOUT: Duration = Duration::from_mins(1);
/// The first word is the end of the log, as a number of bytes behind it. An entry is a length in a
/// word and so many bytes, filled up to words.
const DATA: usize = 8;
const LENGTH: usize = 1 << 16;

// ANCHOR: append
struct Log {
    replicas: Vec<Window>,
    end: usize,
}

impl Log {
    /// Appends an entry, and returns how many replicas have it.
    fn append(&mut self, node: &mut Node, entry: &[u8]) -> Result<usize, Report> {
        let mut bytes = (entry.len() as u64).to_ne_bytes().to_vec();
        bytes.extend(entry);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let end = self.end + bytes.len();
        if DATA + end > LENGTH {
            return Err(Report::new("the log is full"));
        }
        // All replicas are written before one is waited for.
        self.replicas.retain(|replica| write(node, replica, self.end, &bytes).is_ok());
        self.replicas.retain(|replica| {
            node.complete(|done| replica.endpoint.flush(FlushMode::Remote, Some(done))).is_ok()
        });
        self.end = end;
        Ok(self.replicas.len())
    }
}

fn write(node: &mut Node, to: &Window, at: usize, bytes: &[u8]) -> Result<(), Report> {
    let (endpoint, key) = (&to.endpoint, to.remote.key());
    let data = to.remote.at(DATA + at, bytes.len())?;
    let copy = |target: &mut [u8]| {
        target[..bytes.len()].copy_from_slice(bytes);
        bytes.len()
    };
    node.post(|| endpoint.put_bcopy(copy, data, key))?;
    node.post(|| endpoint.fence())?;
    let end = (at + bytes.len()) as u64;
    Ok(node.post(|| endpoint.put_short(&end.to_ne_bytes(), to.remote.address(), key))?)
}
// ANCHOR_END: append

// ANCHOR: follow
/// Reads the entry at `at`. Returns it and the place of the next one.
fn next(node: &mut Node, own: &Window, at: usize) -> Result<(Vec<u8>, usize), Report> {
    let end = own.memory.word(0)?;
    if !node.until(TIMEOUT, || end.load(Acquire) as usize > at) {
        return Err(Report::new("no entry arrived"));
    }
    let mut entry = vec![0; own.memory.load_u64(DATA + at)? as usize];
    own.memory.read(DATA + at + 8, &mut entry)?;
    let length = entry.len();
    Ok((entry, at + 8 + length.next_multiple_of(8)))
}
// ANCHOR_END: follow

fn main() -> Result<(), Report> {
    let mut job = barewire_bootstrap::detect()?;
    let mut node = Node::open(&Rules::from_env()?)?;
    let peers = Peers::exchange(&mut node, &mut *job, TIMEOUT)?;
    let (rank, size) = (peers.rank(), peers.size());
    let names: Vec<String> = (0..size).map(|rank| format!("replica-{rank}")).collect();
    let neighbours: Vec<Neighbour> = match rank {
        0 => (1..).zip(&names[1..]).map(|(rank, name)| Neighbour::new(rank, name, "log")).collect(),
        _ => vec![Neighbour::new(0, "log", &names[rank as usize])],
    };
    let mut windows = peers.windows(&mut node, &mut *job, &neighbours, LENGTH, TIMEOUT)?;

    // ANCHOR: failure
    if rank == 0 {
        let majority = windows.len() / 2 + 1;
        let leaving = windows.last().map(|window| window.link.clone());
        let mut log = Log { replicas: windows, end: 0 };
        for number in 0..100 {
            if number == 50 {
                // Without this, all entries would be written before the last rank has left.
                node.until(TIMEOUT, || leaving.as_ref().is_some_and(|link| link.error().is_some()));
            }
            let copies = log.append(&mut node, format!("entry {number}").as_bytes())?;
            if copies < majority {
                return Err(Report::new(format!(
                    "entry {number}: only {copies} replicas are left"
                )));
            }
        }
        let copies = log.append(&mut node, b"")?;
        println!("100 entries, {copies} replicas are left");
        return Ok(());
    }
    let own = windows.remove(0);
    let (mut at, mut entries) = (0, 0);
    loop {
        let (entry, next) = next(&mut node, &own, at)?;
        if entry.is_empty() {
            break;
        }
        (at, entries) = (next, entries + 1);
        if rank == size - 1 && entries == 50 {
            // After a crash, most launchers end the whole job, so this rank leaves in order.
            return Ok(());
        }
    }
    println!("rank {rank} has {entries} entries");
    // ANCHOR_END: failure
    Ok(())
}
