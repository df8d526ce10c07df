//! A ring allreduce: every rank ends with the sum of the vectors of all ranks. Each part of the
//! vector travels around the ring twice, once to be summed and once to be distributed.
//!
//! `barewire run -n 4 -- target/debug/examples/allreduce`, or under `mpirun -n 4` or `srun -n 4`

use barewire_wireup::{CloseMode, Link, Node, Peers, Rules, State};
use std::cell::RefCell;
use std::collections::HashMap;
use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_mins(1);
/// Elements of the vector.
const LENGTH: usize = 10_000;
/// Elements of a message, which every transport can carry.
const PIECE: usize = 128;
/// The handler of pieces. Their header has the round and the place of the first element.
const PART: u8 = 0;

type Pieces = Rc<RefCell<HashMap<(u32, u32), Vec<u64>>>>;

/// Sends a part to the next rank.
fn send(
    node: &mut Node,
    next: &Link,
    round: u32,
    from: usize,
    part: &[u64],
) -> Result<(), Box<dyn Error>> {
    for (index, piece) in part.chunks(PIECE).enumerate() {
        let header = u64::from(round) << 32 | (from + index * PIECE) as u64;
        let pack = |target: &mut [u8]| {
            target[..8].copy_from_slice(&header.to_le_bytes());
            for (target, element) in target[8..].chunks_mut(8).zip(piece) {
                target.copy_from_slice(&element.to_le_bytes());
            }
            8 * (1 + piece.len())
        };
        node.post(|| next.am_bcopy(PART, pack))?;
    }
    Ok(())
}

/// Receives a part from the previous rank, and combines it with the elements that are there.
fn receive(
    node: &mut Node,
    pieces: &Pieces,
    (round, from): (u32, usize),
    part: &mut [u64],
    combine: fn(&mut u64, u64),
) -> Result<(), Box<dyn Error>> {
    for (index, piece) in part.chunks_mut(PIECE).enumerate() {
        let id = (round, (from + index * PIECE) as u32);
        node.until(TIMEOUT, || pieces.borrow().contains_key(&id));
        let received = pieces.borrow_mut().remove(&id).ok_or("the previous rank sends nothing")?;
        piece.iter_mut().zip(received).for_each(|(element, other)| combine(element, other));
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut job = barewire_bootstrap::detect()?;
    let mut node = Node::open(&Rules::default())?;
    let pieces = Pieces::default();
    let received = Rc::clone(&pieces);
    node.set_handler(PART, move |message| {
        let words = message.data().as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        if let [header, elements @ ..] = &words.collect::<Vec<_>>()[..] {
            let id = ((header >> 32) as u32, *header as u32);
            received.borrow_mut().insert(id, elements.to_vec());
        }
    })?;
    let peers = Peers::exchange(&mut node, &mut *job, TIMEOUT)?;
    let (rank, size) = (peers.rank(), peers.size());
    let next = peers.link(&mut node, (rank + 1) % size)?;

    let mut vector: Vec<u64> =
        (0..LENGTH as u64).map(|index| index * u64::from(rank + 1)).collect();
    // The part that this rank sends in a round is the one that it received in the round before.
    let part = |number: u32| {
        let number = (number % size) as usize;
        LENGTH * number / size as usize..LENGTH * (number + 1) / size as usize
    };
    for round in 0..2 * (size - 1) {
        let (out, back) = (part(rank + 2 * size - round), part(rank + 2 * size - round - 1));
        send(&mut node, &next, round, out.start, &vector[out.clone()])?;
        let combine: fn(&mut u64, u64) = if round < size - 1 {
            |mine, other| *mine += other
        } else {
            |mine, other| *mine = other
        };
        receive(&mut node, &pieces, (round, back.start), &mut vector[back], combine)?;
    }
    next.close(CloseMode::Flush);
    node.until(TIMEOUT, || matches!(next.state(), State::Closed(_) | State::Failed(_)));
    job.fence(TIMEOUT)?;

    let factor = u64::from(size * (size + 1) / 2);
    assert!((0..).zip(&vector).all(|(index, sum)| *sum == index * factor), "a wrong sum");
    println!("rank {rank} of {size}: the sums of {LENGTH} elements are right");
    Ok(())
}
