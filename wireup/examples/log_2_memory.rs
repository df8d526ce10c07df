//! Step 2 of the tutorial: rank 0 writes an entry into the memory of every other rank.

use barewire::Report;
use barewire_wireup::{Neighbour, Node, Peers, Rules};
use std::{sync::atomic::Ordering::Acquire, time::Duration};

const TIMEOUT: Duration = Duration::from_mins(1);
/// The first word is the number of bytes behind it.
const DATA: usize = 8;
const LENGTH: usize = 4096;

fn main() -> Result<(), Report> {
    let mut job = barewire_bootstrap::detect()?;
    let mut node = Node::open(&Rules::from_env()?)?;
    let peers = Peers::exchange(&mut node, &mut *job, TIMEOUT)?;

    // ANCHOR: windows
    let names: Vec<String> = (0..peers.size()).map(|rank| format!("replica-{rank}")).collect();
    let neighbours: Vec<Neighbour> = match peers.rank() {
        0 => (1..).zip(&names[1..]).map(|(rank, name)| Neighbour::new(rank, name, "log")).collect(),
        rank => vec![Neighbour::new(0, "log", &names[rank as usize])],
    };
    let windows = peers.windows(&mut node, &mut *job, &neighbours, LENGTH, TIMEOUT)?;
    // ANCHOR_END: windows

    // ANCHOR: put
    if peers.rank() == 0 {
        let entry = b"one entry";
        for window in &windows {
            let (endpoint, key) = (&window.endpoint, window.remote.key());
            let data = window.remote.at(DATA, entry.len())?;
            node.post(|| endpoint.put_short(entry, data, key))?;
            node.post(|| endpoint.fence())?;
            let length = (entry.len() as u64).to_ne_bytes();
            node.post(|| endpoint.put_short(&length, window.remote.address(), key))?;
        }
    }
    // ANCHOR_END: put

    // ANCHOR: poll
    if peers.rank() != 0 {
        let memory = &windows[0].memory;
        let length = memory.word(0)?;
        if !node.until(TIMEOUT, || length.load(Acquire) > 0) {
            return Err(Report::new("no entry arrived"));
        }
        let mut entry = vec![0; length.load(Acquire) as usize];
        memory.read(DATA, &mut entry)?;
        println!("rank {} has {}", peers.rank(), String::from_utf8_lossy(&entry));
    }
    // ANCHOR_END: poll
    peers.fence(&mut node, &mut *job, TIMEOUT)?;
    Ok(())
}
