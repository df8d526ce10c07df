//! A number in the memory of rank 0 that all ranks increment.
//!
//! `barewire run -n 4 -- target/debug/examples/shared_counter`, or with another transport or device
//! as its argument, such as `tcp`, or the software HCA `soft0:1`

use barewire::Report;
use barewire_wireup::{Node, Peers, Rules};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_mins(1);
const EACH: u64 = 1000;

fn main() -> Result<(), Report> {
    // One transport for all: operations of one are not atomic to those of another.
    let transport = std::env::args().nth(1).unwrap_or_else(|| "shm".to_owned());
    let mut job = barewire_bootstrap::detect()?;
    let mut node = Node::open(&Rules::from_env()?.only([transport]))?;
    let peers = Peers::exchange(&mut node, &mut *job, TIMEOUT)?;
    // ANCHOR: counter
    let length = if peers.rank() == 0 { 8 } else { 0 };
    let shared = peers.share(&mut node, &mut *job, "counter", length, TIMEOUT)?;
    let mut last = 0;
    for _ in 0..EACH {
        last = shared.fetch_add(&mut node, 0, 0, 1)?;
    }
    println!("rank {} has drawn {EACH} numbers, the last {last}", peers.rank());
    peers.fence(&mut node, &mut *job, TIMEOUT)?; // All ranks have drawn.
    if let Some(counter) = shared.own() {
        println!("the counter is {}", counter.load_u64(0)?);
    }
    // ANCHOR_END: counter
    Ok(())
}
