//! Heat on a torus: each rank has some rows of a grid, and writes its border rows into the memory
//! of its neighbours by zero copy, followed by a flag. Without a launcher there is one rank.
//!
//! `barewire run -n 4 -- target/debug/examples/halo_exchange`, or by `mpirun -n 4`, `srun -n 4`

use barewire::Report;
use barewire_wireup::collective::Collectives;
use barewire_wireup::tag::{Limits, Tags};
use barewire_wireup::{Neighbour, Node, Peers, Rules, Window};
use std::{sync::atomic::Ordering::Acquire, time::Duration};

const TIMEOUT: Duration = Duration::from_mins(1);
const ROWS: usize = 16;
const COLUMNS: usize = 256;
const ROW: usize = COLUMNS * size_of::<f64>();
const STEPS: u64 = 200;
/// A window has two rows that the neighbour writes, two rows to send, and two flags: one for even
/// steps and one for odd ones, because a neighbour may be one step ahead.
const SENT: usize = 2 * ROW;
const FLAGS: usize = 4 * ROW;

fn send(node: &mut Node, to: &Window, step: u64, row: &[f64]) -> Result<(), Report> {
    let half = step as usize % 2;
    let bytes: Vec<u8> = row.iter().flat_map(|cell| cell.to_le_bytes()).collect();
    to.memory.write(SENT + half * ROW, &bytes)?;
    let (row, key) = ([to.memory.slice(SENT + half * ROW, ROW)?], to.remote.key());
    let (target, flag) = (to.remote.at(half * ROW, ROW)?, to.remote.at(FLAGS + 8 * half, 8)?);
    let _ = node.post(|| to.endpoint.put_zcopy(&row, target, key, None))?;
    node.post(|| to.endpoint.fence())?;
    Ok(node.post(|| to.endpoint.put_short(&step.to_ne_bytes(), flag, key))?)
}

fn receive(
    node: &mut Node,
    all: &Collectives<'_>,
    (from, rank): (&Window, u32),
    step: u64,
) -> Result<Vec<f64>, Report> {
    let (half, mut bytes) = (step as usize % 2, vec![0; ROW]);
    let flag = from.memory.word(FLAGS + 8 * half)?;
    let received = from.link.until(node, TIMEOUT, || flag.load(Acquire) == step);
    // All ranks end with an error that names the rank that has failed first.
    received.map_err(|error| all.report(node, rank, error))?;
    from.memory.read(half * ROW, &mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|cell| f64::from_le_bytes(*cell)).collect())
}

/// Each cell becomes the mean of itself and its four neighbours.
fn step(rows: &[Vec<f64>], above: &[f64], below: &[f64]) -> Vec<Vec<f64>> {
    let row = |y: usize| {
        let up = if y == 0 { above } else { &rows[y - 1] };
        let down = rows.get(y + 1).map_or(below, Vec::as_slice);
        let beside = |x: usize| rows[y][(x + COLUMNS - 1) % COLUMNS] + rows[y][(x + 1) % COLUMNS];
        (0..COLUMNS).map(|x| (rows[y][x] + up[x] + down[x] + beside(x)) / 5.0).collect()
    };
    (0..rows.len()).map(row).collect()
}

fn main() -> Result<(), Report> {
    let mut job = barewire_bootstrap::detect()?;
    let mut node = Node::open(&Rules::from_env()?)?;
    let tags = Tags::over(&mut node, Limits::default())?; // Before any rank can connect.
    let peers = Peers::exchange(&mut node, &mut *job, TIMEOUT)?;
    let (rank, size) = (peers.rank(), peers.size());
    let neighbours = [
        Neighbour::new((rank + 1) % size, "below", "above"),
        Neighbour::new((rank + size - 1) % size, "above", "below"),
    ];
    let windows = peers.windows(&mut node, &mut *job, &neighbours, FLAGS + 16, TIMEOUT)?;
    let mut all = Collectives::new(&peers, &tags, 0);
    all.barrier(&mut node)?; // From here on, reports of failures reach the neighbours.
    let [below, above] = &windows[..] else { unreachable!("a window for each neighbour") };

    let row = |y| (0..COLUMNS).map(|x| ((x * 31 + y * 17) % 101) as f64).collect::<Vec<_>>();
    let mut whole: Vec<_> = (0..ROWS * size as usize).map(row).collect();
    let rows = rank as usize * ROWS..(rank as usize + 1) * ROWS;
    let mut mine = whole[rows.clone()].to_vec();
    for number in 1..=STEPS {
        send(&mut node, above, number, &mine[0])?;
        send(&mut node, below, number, &mine[ROWS - 1])?;
        let mut rows = Vec::new();
        for from in [(above, (rank + size - 1) % size), (below, (rank + 1) % size)] {
            rows.push(receive(&mut node, &all, from, number)?);
        }
        mine = step(&mine, &rows[0], &rows[1]);
        whole = step(&whole, &whole[whole.len() - 1], &whole[0]); // to compare with
    }
    peers.fence(&mut node, &mut *job, TIMEOUT)?; // Others may write into the windows until then.
    assert!(mine == whole[rows], "the rows differ from those of a serial run");
    println!("rank {rank} of {size}: {STEPS} steps are equal to a serial run");
    Ok(())
}
