//! Heat on a torus: each rank has some rows of a grid, and writes its border rows into the memory
//! of its neighbours by zero copy, followed by a flag.
//!
//! `barewire run -n 4 -- target/debug/examples/halo`, or under `mpirun -n 4` or `srun -n 4`

use barewire::{Access, Domain, Memory, RemoteRegion};
use barewire_wireup::{Kind, Link, Node, Peers, Rules, State};
use std::{cell::RefCell, collections::HashMap, error::Error, rc::Rc, time::Duration};

const TIMEOUT: Duration = Duration::from_mins(1);
const ROWS: usize = 16;
const COLUMNS: usize = 256;
const ROW: usize = COLUMNS * size_of::<f64>();
const STEPS: u64 = 200;
/// A border's memory has two rows that the neighbour writes, two rows to send, and two flags.
const SENT: usize = 2 * ROW;
const FLAGS: usize = 4 * ROW;
/// The handler of keys to memory. The header tells which neighbour sends: 1 for the one above.
const KEY: u8 = 0;

type Keys = Rc<RefCell<HashMap<u64, Vec<u8>>>>;

struct Border {
    link: Link,
    memory: Memory,
    remote: RemoteRegion,
}

impl Border {
    /// The borders with the rank below (0) and above (1): all keys are sent before one is awaited.
    fn open(node: &mut Node, links: [Link; 2], keys: &Keys) -> Result<Vec<Self>, Box<dyn Error>> {
        let mut offered = Vec::new();
        for (above, link) in (0..).zip(links) {
            node.until(TIMEOUT, || matches!(link.state(), State::Connected | State::Failed(_)));
            let domain =
                link.domain(Kind::Bulk).ok_or_else(|| format!("no lane: {:?}", link.error()))?;
            let (domain, memory) = (domain.clone(), domain.allocate(FLAGS + 16, Access::all())?);
            node.post(|| link.am_short(KEY, 1 - above, &memory.pack_region()))?;
            offered.push((above, link, domain, memory));
        }
        let mut border = |(above, link, domain, memory): (u64, Link, Domain, Memory)| {
            node.until(TIMEOUT, || keys.borrow().contains_key(&above));
            let bytes = keys.borrow_mut().remove(&above).ok_or("the neighbour sends no key")?;
            Ok(Self { link, memory, remote: domain.unpack_region(&bytes)? })
        };
        offered.into_iter().map(&mut border).collect()
    }

    fn send(&self, node: &mut Node, step: u64, row: &[f64]) -> Result<(), Box<dyn Error>> {
        let (link, half) = (&self.link, step as usize % 2);
        let bulk = link.lane(Kind::Bulk).ok_or("the link has no lane")?;
        let bytes: Vec<u8> = row.iter().flat_map(|cell| cell.to_le_bytes()).collect();
        self.memory.write(SENT + half * ROW, &bytes)?;
        let (row, key) = ([self.memory.slice(SENT + half * ROW, ROW)?], self.remote.key());
        let (target, flag) =
            (self.remote.at(half * ROW, ROW)?, self.remote.at(FLAGS + 8 * half, 8)?);
        let _ = node.post(|| bulk.put_zcopy(&row, target, key, None))?;
        node.post(|| link.fence())?;
        node.post(|| link.put_short(&step.to_ne_bytes(), flag, key))?;
        Ok(())
    }

    fn receive(&self, node: &mut Node, step: u64) -> Result<Vec<f64>, Box<dyn Error>> {
        let half = step as usize % 2;
        let flag = || self.memory.load_u64(FLAGS + 8 * half);
        let arrived = node.until(TIMEOUT, || flag().is_ok_and(|flag| flag == step));
        if !arrived {
            return Err(format!("no border {step}: {:?}", self.link.error()).into());
        }
        let mut bytes = vec![0; ROW];
        self.memory.read(half * ROW, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|cell| f64::from_le_bytes(*cell)).collect())
    }
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

fn main() -> Result<(), Box<dyn Error>> {
    let mut job = barewire_bootstrap::detect()?;
    let mut node = Node::open(&Rules::default())?;
    let keys = Keys::default();
    let received = Rc::clone(&keys);
    node.set_handler(KEY, move |message| {
        if let Some((sender, bytes)) = message.split_short() {
            received.borrow_mut().insert(sender, bytes.to_vec());
        }
    })?;
    let peers = Peers::exchange(&mut node, &mut *job, TIMEOUT)?;
    let (rank, size) = (peers.rank(), peers.size());
    let [below, above] = [1, size - 1].map(|away| peers.link(&mut node, (rank + away) % size));
    let borders = Border::open(&mut node, [below?, above?], &keys)?;
    let [below, above] = &borders[..] else { unreachable!("there are two links") };

    let cell = |x, y| ((x * 31 + y * 17) % 101) as f64;
    let row = |y| (0..COLUMNS).map(|x| cell(x, y)).collect::<Vec<_>>();
    let mut whole: Vec<_> = (0..ROWS * size as usize).map(row).collect();
    let rows = rank as usize * ROWS..(rank as usize + 1) * ROWS;
    let mut mine = whole[rows.clone()].to_vec();
    for number in 1..=STEPS {
        above.send(&mut node, number, &mine[0])?;
        below.send(&mut node, number, &mine[ROWS - 1])?;
        let (top, bottom) = (above.receive(&mut node, number)?, below.receive(&mut node, number)?);
        mine = step(&mine, &top, &bottom);
    }
    job.fence(TIMEOUT)?; // Neighbours write into the memory until they are done, too.
    for _ in 0..STEPS {
        whole = step(&whole, &whole[whole.len() - 1], &whole[0]);
    }
    assert!(mine == whole[rows], "the rows differ from those of a serial run");
    println!("rank {rank} of {size}: {STEPS} steps are equal to a serial run");
    Ok(())
}
