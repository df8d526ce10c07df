//! Grants a peer access to one part of a region after the other, by a window, and revokes it. The
//! region itself gives peers no rights.
//!
//! `cargo run --example windows`

use barewire::prelude::*;
use barewire::{Cause, OperationError, WaitError, Window};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const PART: usize = 1024;
const PARTS: usize = 4;

fn main() -> Result<()> {
    let domain = Domain::open(&"rc_mlx5/soft0:1".parse()?)?;
    let mut worker = Worker::new();
    let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
    // Two ends in one process. The owner of the memory, and its peer.
    let (owner, peer) = (Endpoint::new(&interface)?, Endpoint::new(&interface)?);
    owner.connect(&peer.address())?;
    peer.connect(&owner.address())?;

    let memory = domain.allocate(PARTS * PART, Access::LOCAL_WRITE)?;
    let mut window = Window::new(&domain)?;
    let mut last_key = None;
    for part in 0..PARTS {
        let first = part * PART;
        // Binding is a post, not a system call. A message that the owner posts after it may carry
        // the key; here the peer is in the same process.
        let range = first..first + PART;
        let _ = window.bind(&owner, &memory, range, Access::REMOTE_WRITE, None)?;
        worker.flush(&owner, FlushMode::Local)?;
        let key = domain.unpack_key(&window.pack_key().ok_or("the window is free")?)?;
        peer.put_short(&[part as u8 + 1; 8], memory.address() + first as u64, &key)?;
        worker.flush(&peer, FlushMode::Remote)?;
        let _ = window.invalidate(&owner, None)?;
        worker.flush(&owner, FlushMode::Local)?;
        println!("part {part}: {}", memory.load_u8(first)?);
        last_key = Some(key);
    }

    // The device refuses the key of a window that was revoked.
    let key = last_key.ok_or("no part")?;
    let source = [memory.slice(0, 8)?];
    let put = |done: &Completion| peer.put_zcopy(&source, memory.address(), &key, Some(done));
    match worker.complete(put) {
        Err(WaitError::Operation(OperationError { cause: Cause::RemoteAccess, .. })) => {
            println!("after the revocation: refused by the owner's device");
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}
