//! The smallest program: two endpoints of one process over the software HCA. One writes to the
//! other's memory and sends it a message.
//!
//! `cargo run --example hello`

use barewire::prelude::*;
use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;

const GREETING: u8 = 7;

fn main() -> Result<(), Box<dyn Error>> {
    // A device, the transport on it, and the two ends of a connection.
    let domain = Domain::open(&"rc_mlx5/soft0:1".parse()?)?;
    let mut worker = Worker::new();
    let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
    let (here, there) = (Endpoint::new(&interface)?, Endpoint::new(&interface)?);
    here.connect(&there.address())?;
    there.connect(&here.address())?;

    // A put: the target's program is not involved.
    let memory = domain.allocate(64, Access::REMOTE_WRITE)?;
    let key = domain.unpack_key(&memory.pack_key())?;
    here.put_short(b"hello", memory.address(), &key)?;
    worker.flush(&here, FlushMode::Remote)?;
    let mut text = [0; 5];
    memory.read(0, &mut text)?;
    println!("in memory: {}", String::from_utf8_lossy(&text));

    // An active message: it runs a handler at the target.
    let arrived = Rc::new(Cell::new(false));
    let seen = Rc::clone(&arrived);
    interface.set_handler(GREETING, move |message| {
        if let Some((header, text)) = message.split_short() {
            println!("message {header}: {}", String::from_utf8_lossy(text));
        }
        seen.set(true);
    })?;
    here.am_short(GREETING, 42, b"world")?;
    while !arrived.get() {
        worker.progress();
        if let Some(error) = here.error() {
            return Err(error.to_string().into());
        }
    }
    Ok(())
}
