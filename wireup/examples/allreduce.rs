//! Every rank ends with the sum of the vectors of all ranks.
//!
//! `barewire run -n 4 -- target/debug/examples/allreduce`, or under `mpirun -n 4` or `srun -n 4`

use barewire::Report;
use barewire_wireup::collective::Collectives;
use barewire_wireup::tag::{Limits, Tags};
use barewire_wireup::{Node, Peers, Rules};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_mins(1);
/// Elements of the vector.
const LENGTH: u64 = 10_000;

fn main() -> Result<(), Report> {
    let mut job = barewire_bootstrap::detect()?;
    let mut node = Node::open(&Rules::from_env()?)?;
    let tags = Tags::over(&mut node, Limits::default())?;
    let peers = Peers::exchange(&mut node, &mut *job, TIMEOUT)?;
    let (rank, size) = (peers.rank(), peers.size());
    let mut all = Collectives::new(&peers, &tags, 0).timeout(TIMEOUT);

    let mut vector: Vec<u64> = (0..LENGTH).map(|index| index * u64::from(rank + 1)).collect();
    all.allreduce(&mut node, &mut vector, |a, b| a + b)?;
    // Until here, other ranks may need this one.
    peers.fence(&mut node, &mut *job, TIMEOUT)?;

    let factor = u64::from(size * (size + 1) / 2);
    assert!((0..).zip(&vector).all(|(index, sum)| *sum == index * factor), "a wrong sum");
    println!("rank {rank} of {size}: the sums of {LENGTH} elements are right");
    Ok(())
}
