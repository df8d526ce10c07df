//! A number in the memory of rank 0 that all other ranks increment, without its taking part.
//!
//! `barewire run -n 4 -- target/debug/examples/shared_counter`, or with another transport as its
//! argument, such as `tcp` or `rc_mlx5`

use barewire::{Access, AtomicOp, FetchResult, Report};
use barewire_wireup::link::Link;
use barewire_wireup::{Kind, Node, Peers, Rules};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_mins(1);
const EACH: u64 = 1000;

fn main() -> Result<(), Report> {
    // One transport for all: operations of one are not atomic to those of another.
    let transport = std::env::args().nth(1).unwrap_or_else(|| "shm".to_owned());
    let mut job = barewire_bootstrap::detect()?;
    let mut node = Node::open(&Rules::default().only([transport]))?;
    let peers = Peers::exchange(&mut node, &mut *job, TIMEOUT)?;
    let none = || Report::new("the transport has no atomics");
    if peers.rank() == 0 {
        // ANCHOR: owner
        let links = (1..peers.size()).map(|rank| peers.connect(&mut node, rank, TIMEOUT));
        let links: Vec<Link> = links.collect::<Result<_, _>>()?;
        let Some(first) = links.first() else {
            return Err(Report::new("start two ranks or more"));
        };
        // The links have lanes of one interface, and therefore one domain.
        let domain = first.domain(Kind::Atomics).ok_or_else(none)?;
        let counter = domain.allocate(8, Access::all())?;
        job.put("counter", &counter.pack_region())?;
        peers.fence(&mut node, &mut *job, TIMEOUT)?; // The others have the key,
        peers.fence(&mut node, &mut *job, TIMEOUT)?; // and have incremented.
        println!("the counter is {}", counter.load_u64(0)?);
        // ANCHOR_END: owner
    } else {
        // ANCHOR: others
        let link = peers.connect(&mut node, 0, TIMEOUT)?;
        peers.fence(&mut node, &mut *job, TIMEOUT)?;
        let domain = link.domain(Kind::Atomics).ok_or_else(none)?;
        let counter = domain.unpack_region(&job.get(0, "counter")?)?;
        let (word, key, old) = (counter.at(0, 8)?, counter.key(), FetchResult::new());
        for _ in 0..EACH {
            node.complete(|done| link.atomic_fetch(AtomicOp::add(1), word, key, &old, Some(done)))?;
        }
        println!(
            "rank {} has drawn {EACH} numbers, the last below {}",
            peers.rank(),
            old.get() + 1
        );
        peers.fence(&mut node, &mut *job, TIMEOUT)?;
        // ANCHOR_END: others
    }
    Ok(())
}
