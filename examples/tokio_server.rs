//! A server in tokio. Its only thread sleeps until a request arrives over shared memory, and runs
//! other tasks in between. Three clients send requests.
//!
//! `cargo run --features tokio --example tokio_server`

mod exchange;

use barewire::AsyncWorker;
use barewire::prelude::*;
use exchange::{Peer, Result, Side, connect};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// `shm` can wake a sleeping thread and needs no device. So can tcp/127.0.0.1 with a key, and
/// `rc_verbs` with a device.
const PLACE: &str = "shm/memory";
const REQUEST: u8 = 0;
const REPLY: u8 = 1;
const CLIENTS: usize = 3;
const REQUESTS: u64 = 1000;

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("client") => client(Peer::parent()?),
        // A worker belongs to one thread, so the runtime has one.
        _ => tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(server()),
    }
}

/// Makes progress when there are events, and sleeps in between. Returns only with an error.
async fn drive(worker: Worker, wakes: &Cell<u64>) -> Result<()> {
    let mut worker = AsyncWorker::new(worker)?;
    loop {
        worker.wait().await?;
        wakes.set(wakes.get() + 1);
        // Let other tasks run even if requests keep arriving.
        tokio::task::yield_now().await;
    }
}

async fn server() -> Result<()> {
    let Side { endpoint: first, interface, domain: _domain, worker } = Side::open_at(PLACE)?;
    let clients: Rc<RefCell<Vec<Endpoint>>> = Rc::default();
    let (known, served) = (Rc::clone(&clients), Rc::new(Cell::new(0u64)));
    let count = Rc::clone(&served);
    interface.set_handler(REQUEST, move |message| {
        let Some((client, text)) = message.split_short() else { return };
        let clients = known.borrow();
        let Some(endpoint) = clients.get(client as usize) else { return };
        count.set(count.get() + 1);
        reply(endpoint, text.to_ascii_uppercase());
    })?;

    // Each client has its own endpoint of the same interface.
    clients.borrow_mut().push(first);
    for _ in 1..CLIENTS {
        clients.borrow_mut().push(Endpoint::new(&interface)?);
    }
    let mut ends = Vec::new();
    for (number, endpoint) in clients.borrow().iter().enumerate() {
        let mut peer = Peer::start("client")?;
        peer.send(&(number as u64).to_le_bytes())?;
        connect(endpoint, &mut peer)?;
        ends.push(tokio::task::spawn_blocking(move || peer.receive()));
    }

    let (wakes, ticks) = (Cell::new(0), Cell::new(0u64));
    let ticker = async {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            ticks.set(ticks.get() + 1);
        }
    };
    let finished = async {
        for end in ends {
            end.await??;
        }
        Ok(())
    };
    tokio::select! {
        driven = drive(worker, &wakes) => driven,
        done = finished => done,
        never = ticker => never,
    }?;
    println!(
        "{} requests of {CLIENTS} clients; the thread had {} turns of work and ticked {} times",
        served.get(),
        wakes.get(),
        ticks.get()
    );
    Ok(())
}

/// Sends the reply, or queues it until there are resources: a handler cannot wait.
fn reply(endpoint: &Endpoint, text: Vec<u8>) {
    if endpoint.am_short(REPLY, 0, &text) != Err(PostError::NoResource) {
        // Sent, or the client has ended.
        return;
    }
    let later = text.clone();
    let queued = endpoint.pending_add(move |endpoint| match endpoint.am_short(REPLY, 0, &later) {
        Err(PostError::NoResource) => PendingResult::Again,
        _ => PendingResult::Done,
    });
    if queued.is_err() {
        // There are resources again.
        reply(endpoint, text);
    }
}

fn client(mut peer: Peer) -> Result<()> {
    let number =
        u64::from_le_bytes(peer.receive()?.try_into().map_err(|_| "a number has 8 bytes")?);
    let mut side = Side::open_at(PLACE)?;
    let answer: Rc<RefCell<Option<Vec<u8>>>> = Rc::default();
    let arrived = Rc::clone(&answer);
    side.interface.set_handler(REPLY, move |message| {
        *arrived.borrow_mut() = message.split_short().map(|(_, text)| text.to_vec());
    })?;
    side.connect(&mut peer)?;
    for request in 0..REQUESTS {
        let text = format!("request {request} of client {number}");
        side.post(|server| server.am_short(REQUEST, number, text.as_bytes()))?;
        side.until(|| Ok(answer.borrow().is_some()))?;
        let answer = answer.take().unwrap_or_default();
        if answer != text.to_ascii_uppercase().as_bytes() {
            return Err(format!("'{}' is no answer to '{text}'", answer.escape_ascii()).into());
        }
    }
    peer.send(b"done")?;
    // The server closes the socket when every client has finished.
    let _ = side.listen(&mut peer);
    Ok(())
}
