//! Step 1 of the tutorial: rank 0 sends a message to every other rank.

use barewire::Report;
use barewire_wireup::{Node, Peers, Rules};
use std::{cell::Cell, rc::Rc, time::Duration};

const TIMEOUT: Duration = Duration::from_mins(1);
const GREETING: u8 = 0;

fn main() -> Result<(), Report> {
    // ANCHOR: open
    let mut job = barewire_bootstrap::detect()?;
    let mut node = Node::open(&Rules::from_env()?)?;
    // ANCHOR_END: open

    // ANCHOR: receive
    let received = Rc::new(Cell::new(false));
    let seen = Rc::clone(&received);
    node.set_handler(GREETING, move |message| {
        if let Some((rank, text)) = message.split_short() {
            println!("rank {rank} says {}", String::from_utf8_lossy(text));
            seen.set(true);
        }
    })?;
    // ANCHOR_END: receive

    // ANCHOR: send
    let peers = Peers::exchange(&mut node, &mut *job, TIMEOUT)?;
    if peers.rank() == 0 {
        for rank in 1..peers.size() {
            let link = peers.connect(&mut node, rank, TIMEOUT)?;
            node.post(|| link.am_short(GREETING, 0, b"hello"))?;
        }
    } else if !node.until(TIMEOUT, || received.get()) {
        return Err(Report::new("rank 0 says nothing"));
    }
    peers.fence(&mut node, &mut *job, TIMEOUT)?;
    // ANCHOR_END: send
    Ok(())
}
