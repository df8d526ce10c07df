//! Every rank connects to eight others and exchanges a message with each, as the ranks of a large job
//! do that have few neighbours. Rank 0 prints what starting, connecting and ending takes.
//!
//! `barewire run -n 1000 -- target/debug/examples/neighbours`, or under `mpirun -n 64` or `srun`

use barewire::Report;
use barewire_wireup::{CloseMode, Link, Node, Peers, Rules, State};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::rc::Rc;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_mins(5);
/// Half of the neighbours: the ranks that are so much further.
const DISTANCES: [u32; 4] = [1, 2, 7, 31];
/// The handler of messages.
const GREETING: u8 = 0;

fn main() -> Result<(), Report> {
    let begun = Instant::now();
    let mut job = barewire_bootstrap::detect()?;
    let joined = begun.elapsed();
    let mut node = Node::open(&Rules::from_env()?.deadline(TIMEOUT))?;
    let received = Rc::new(Cell::new(0));
    let count = Rc::clone(&received);
    node.set_handler(GREETING, move |_| count.set(count.get() + 1))?;
    let opened = begun.elapsed();
    let peers = Peers::exchange(&mut node, &mut *job, TIMEOUT)?;
    let exchanged = begun.elapsed();

    let (rank, size) = (peers.rank(), peers.size());
    let around = DISTANCES.iter().flat_map(|far| [rank + far, rank + size - far % size]);
    let neighbours: BTreeSet<u32> = around.map(|other| other % size).collect();
    let others = neighbours.into_iter().filter(|other| *other != rank);
    let links: Vec<Link> =
        others.map(|other| peers.link(&mut node, other)).collect::<Result<_, _>>()?;
    let all = |state| links.iter().all(|link| link.state() == state);
    if !node.until(TIMEOUT, || all(State::Connected)) {
        let late = links.iter().find(|link| link.state() != State::Connected);
        return Err(Report::new(format!("not connected: {late:?}")));
    }
    for link in &links {
        node.post(|| link.am_short(GREETING, u64::from(rank), &[]))?;
    }
    if !node.until(TIMEOUT, || received.get() == links.len()) {
        return Err(Report::new(format!("{} of {} neighbours sent", received.get(), links.len())));
    }
    let connected = begun.elapsed();

    peers.fence(&mut node, &mut *job, TIMEOUT)?;
    for link in links {
        link.close(CloseMode::Flush);
    }
    if rank == 0 {
        let status = fs::read_to_string("/proc/self/status")?;
        let of = |name| status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        let descriptors = fs::read_dir("/proc/self/fd")?.count();
        println!("{size} ranks: joined after {joined:.1?}, node open {opened:.1?}, addresses");
        println!("exchanged {exchanged:.1?}, neighbours connected {connected:.1?}");
        println!("{}, {}, {descriptors} descriptors", of("VmHWM"), of("RssAnon"));
    }
    Ok(())
}
