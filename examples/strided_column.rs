//! The column of a matrix as one key: a peer reads and writes it as if its elements were one after
//! the other, and the device gathers and scatters.
//!
//! `cargo run --example strided_column`

use barewire::prelude::*;
use barewire::{Interleaved, View};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const ROWS: usize = 1000;
const COLUMNS: usize = 16;
const ELEMENT: usize = 8;
const ROW: usize = COLUMNS * ELEMENT;

fn main() -> Result<()> {
    let domain = Domain::open(&"rc_mlx5/soft0:1".parse()?)?;
    let mut worker = Worker::new();
    let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
    // Two ends in one process. The owner of the matrix, and its peer.
    let (owner, peer) = (Endpoint::new(&interface)?, Endpoint::new(&interface)?);
    owner.connect(&peer.address())?;
    peer.connect(&owner.address())?;

    let matrix = domain.allocate(ROWS * ROW, Access::all())?;
    for row in 0..ROWS {
        for column in 0..COLUMNS {
            matrix.store_u64(row * ROW + column * ELEMENT, (row * 100 + column) as u64)?;
        }
    }
    let column = |number| Interleaved {
        memory: &matrix,
        offset: number * ELEMENT,
        bytes: ELEMENT,
        stride: ROW,
    };
    let mut view = View::new(&domain, 2)?;

    // The peer reads column 3 with one get.
    let _ = view.stride(&owner, Access::REMOTE_READ, column(3), ROWS as u32, None)?;
    worker.flush(&owner, FlushMode::Local)?;
    let key = domain.unpack_key(&view.pack_key())?;
    let local = domain.allocate(ROWS * ELEMENT, Access::LOCAL_WRITE)?;
    let all = [local.slice(0, ROWS * ELEMENT)?];
    let _ = peer.get_zcopy(&all, 0, &key, None)?;
    worker.flush(&peer, FlushMode::Local)?;
    println!("column 3, row 999: {}", local.load_u64(999 * ELEMENT)?);

    // It writes it to column 5 with one put, by another layout of the same view.
    let _ = view.stride(&owner, Access::REMOTE_WRITE, column(5), ROWS as u32, None)?;
    worker.flush(&owner, FlushMode::Local)?;
    let key = domain.unpack_key(&view.pack_key())?;
    let _ = peer.put_zcopy(&all, 0, &key, None)?;
    worker.flush(&peer, FlushMode::Remote)?;
    for row in 0..ROWS {
        let at = |column| matrix.load_u64(row * ROW + column * ELEMENT);
        let (three, five, six) = (at(3)?, at(5)?, at(6)?);
        if three != five || six != (row * 100 + 6) as u64 {
            return Err(format!("row {row}: {three}, {five}, {six}").into());
        }
    }
    println!("column 5 is a copy of column 3, and column 6 is unchanged");
    Ok(())
}
