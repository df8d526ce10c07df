//! A number in the memory of rank 0 that all ranks increment, on any hosts.
//!
//! `barewire run -n 4 -- target/debug/examples/shared_counter`, or with another transport or device
//! than `tcp` as its argument, such as `shm`, or the software HCA `soft0:1`

use barewire::Report;
use barewire_wireup::{Node, Peers, Rules};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_mins(1);
const EACH: u64 = 1000;

fn main() -> Result<(), Report> {
    let transport = std::env::args().nth(1).unwrap_or_else(|| "tcp".to_owned());
    let mut job = barewire_bootstrap::detect()?;
    // The links of the program use any transport, such as shm within a host and tcp between hosts.
    let mut node = Node::open(&Rules::from_env()?)?;
    let peers = Peers::exchange(&mut node, &mut *job, TIMEOUT)?;
    // ANCHOR: counter
    // The counter has a node of one transport: operations of two are not atomic to each other.
    let mut counters = Node::open(&Rules::from_env()?.only([transport]))?;
    let all = Peers::exchange_as(&mut counters, &mut *job, "counters", TIMEOUT)?;
    let length = if peers.rank() == 0 { 8 } else { 0 };
    let shared = all.share(&mut counters, &mut *job, "counter", length, TIMEOUT)?;
    let mut last = 0;
    for _ in 0..EACH {
        last = shared.fetch_add(&mut counters, 0, 0, 1)?;
    }
    println!("rank {} has drawn {EACH} numbers, the last {last}", peers.rank());
    all.fence(&mut counters, &mut *job, TIMEOUT)?; // All ranks have drawn.
    if let Some(counter) = shared.own() {
        println!("the counter is {}", counter.load_u64(0)?);
    }
    // ANCHOR_END: counter
    Ok(())
}
