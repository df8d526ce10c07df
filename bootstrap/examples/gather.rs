//! Every rank publishes a value and reads those of all others. Run it under any launcher:
//! `mpirun -n 4 gather`, `mpiexec.hydra -n 4 gather`, `srun -n 4 gather`,
//! `barewire run -n 4 gather`.

use std::time::Duration;

use barewire_bootstrap::{all_gather, detect};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let length: usize = std::env::args().nth(1).map_or(Ok(64), |length| length.parse())?;
    let mut job = detect()?;
    let timeout = Duration::from_mins(1);
    let own = value(job.rank(), length);
    let all = all_gather(&mut *job, "value", &own, timeout)?;
    for (rank, found) in (0..job.size()).zip(&all) {
        if *found != value(rank, length) {
            return Err(format!("rank {} read a wrong value of rank {rank}", job.rank()).into());
        }
    }
    println!(
        "rank {} of {} by {}: {} values of {length} bytes, node peers {:?}",
        job.rank(),
        job.size(),
        job.runtime(),
        all.len(),
        job.node_peers()
    );
    job.fence(timeout)?;
    Ok(())
}

/// What a rank publishes.
fn value(rank: u32, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u32).wrapping_mul(31).wrapping_add(rank) as u8).collect()
}
