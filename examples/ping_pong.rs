//! Two processes send an active message back and forth, and print the one-way latency.
//!
//! `cargo run --release --example ping_pong`

mod exchange;

use exchange::{Peer, Result, Side};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

const BALL: u8 = 0;
const ROUNDS: u64 = 2000;

fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some("second") {
        play(Peer::parent()?, false)
    } else {
        play(Peer::start("second")?, true)
    }
}

fn play(mut peer: Peer, serve: bool) -> Result<()> {
    let mut side = Side::open()?;
    let arrived = Rc::new(Cell::new(0));
    let round = Rc::clone(&arrived);
    // Set the handler before a message can arrive.
    side.interface.set_handler(BALL, move |message| {
        round.set(message.split_short().map_or(0, |(header, _)| header));
    })?;
    side.connect(&mut peer)?;

    let start = Instant::now();
    for round in 1..=ROUNDS {
        if serve {
            side.post(|endpoint| endpoint.am_short(BALL, round, &[]))?;
        }
        side.until(|| Ok(arrived.get() == round))?;
        if !serve {
            side.post(|endpoint| endpoint.am_short(BALL, round, &[]))?;
        }
    }
    let one_way = start.elapsed() / (2 * ROUNDS as u32);

    // The last message must have arrived before this end is closed.
    side.flush()?;
    peer.barrier()?;
    if serve {
        println!("{ROUNDS} round trips over {}, {one_way:?} one way", side.interface.transport());
    }
    Ok(())
}
