//! A thousand endpoints of `dc_mlx5` exchange messages over eight initiators, and a thousand of
//! `xrc_mlx5` send over one connection.
//!
//! They are connected to 25 interfaces of this process, on the same software HCA, which has event
//! queues for no more. With `rc_mlx5`, a thousand endpoints are as many queue pairs; here an
//! endpoint is an address, or, over XRC, the number of a receive queue.
//!
//! `cargo run --release --example many_peers [endpoints]`

use barewire::capability::{AmShort, Pending};
use barewire::transport::dc_mlx5::{Domain, Endpoint, Interface, Progress, SOFT_DEVICE};
use barewire::transport::{Endpoint as _, Interface as _, xrc_mlx5};
use barewire::{InterfaceConfig, PendingResult, PostError};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const QUESTION: u8 = 0;
const ANSWER: u8 = 1;
const INITIATORS: u32 = 8;
const INTERFACES: usize = 25;
const DEADLINE: Duration = Duration::from_secs(100);

/// Sends `header`, now or as soon as there is an initiator.
fn send(endpoint: &Endpoint, id: u8, header: u64) {
    let request = move |endpoint: &Endpoint| match endpoint.am_short(id, header, &[]) {
        Err(PostError::NoResource) => PendingResult::Again,
        // A failed endpoint is reported to the error handler.
        _ => PendingResult::Done,
    };
    while request(endpoint) == PendingResult::Again {
        if endpoint.pending_add(request).is_ok() {
            break;
        }
        // There is an initiator again: the endpoint need not wait.
    }
}

/// A peer that answers every question with its double.
fn peer(domain: &Domain, hub: &Interface) -> Result<(Interface, Progress)> {
    let config = InterfaceConfig::default()
        .dci_count(1)
        .send_ring(16)
        .receive_ring(4)
        .spare_receive_buffers(0)
        .bcopy_buffers(1);
    let (interface, progress) = Interface::open(domain, &config)?;
    let back = interface.connect(&hub.address())?;
    interface.set_handler(QUESTION, move |message| {
        if let Some((number, _)) = message.split_short() {
            send(&back, ANSWER, 2 * number);
        }
    })?;
    Ok((interface, progress))
}

/// Sends a message over each of `count` endpoints to the interfaces of one node. They share the
/// connection of the first.
fn over_one_connection(count: u64) -> Result<()> {
    let domain = Domain::open(SOFT_DEVICE)?;
    let config = InterfaceConfig::default().max_endpoints(count.try_into()?);
    let (hub, mut progress) = xrc_mlx5::Interface::open(&domain, &config)?;
    let sum = Rc::new(Cell::new(0));
    let mut peers = Vec::new();
    for _ in 0..INTERFACES {
        let (interface, progress) =
            xrc_mlx5::Interface::open(&domain, &InterfaceConfig::default().send_ring(16))?;
        let total = Rc::clone(&sum);
        interface.set_handler(QUESTION, move |message| {
            total.set(total.get() + message.split_short().map_or(0, |(header, _)| header));
        })?;
        peers.push((interface, progress));
    }
    let (first, back) = (xrc_mlx5::Endpoint::new(&hub)?, xrc_mlx5::Endpoint::new(&peers[0].0)?);
    first.connect(&back.address())?;
    back.connect(&first.address())?;
    let mut endpoints = vec![first];
    for number in 1..count as usize {
        endpoints.push(hub.connect(&peers[number % INTERFACES].0.address())?);
    }
    let (start, mut unsent) = (Instant::now(), (1..).zip(&endpoints).peekable());
    while sum.get() < count * (count + 1) / 2 {
        while let Some(&(number, endpoint)) = unsent.peek() {
            match endpoint.am_short(QUESTION, number, &[]) {
                Err(PostError::NoResource) => break,
                sent => sent?,
            }
            unsent.next();
        }
        progress.progress();
        for (_, progress) in &mut peers {
            progress.progress();
        }
        if start.elapsed() > DEADLINE {
            return Err(format!("not {count} messages over one connection").into());
        }
    }
    println!("{count} messages over one connection in {:?}", start.elapsed());
    Ok(())
}

fn main() -> Result<()> {
    let count = std::env::args().nth(1).map_or(Ok(1000), |count| count.parse::<u64>())?;
    over_one_connection(count)?;
    let domain = Domain::open(SOFT_DEVICE)?;
    let config = InterfaceConfig::default().dci_count(INITIATORS);
    let (hub, mut hub_progress) = Interface::open(&domain, &config)?;
    let (answers, sum) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (seen, total) = (Rc::clone(&answers), Rc::clone(&sum));
    hub.set_handler(ANSWER, move |message| {
        seen.set(seen.get() + 1);
        total.set(total.get() + message.split_short().map_or(0, |(header, _)| header));
    })?;
    hub.set_error_handler(|error| eprintln!("{error}"));

    let mut peers = (0..INTERFACES).map(|_| peer(&domain, &hub)).collect::<Result<Vec<_>>>()?;
    let endpoints: Vec<_> = peers
        .iter()
        .map(|(interface, _)| interface.address())
        .cycle()
        .take(count as usize)
        .map(|address| hub.connect(&address))
        .collect::<std::result::Result<_, _>>()?;
    let start = Instant::now();
    for (number, endpoint) in (1..).zip(&endpoints) {
        send(endpoint, QUESTION, number);
    }
    while answers.get() < count {
        hub_progress.progress();
        for (_, progress) in &mut peers {
            progress.progress();
        }
        if start.elapsed() > DEADLINE {
            return Err(format!("{} of {count} answers", answers.get()).into());
        }
    }
    assert_eq!(sum.get(), count * (count + 1));
    println!("{count} answers over {INITIATORS} initiators in {:?}", start.elapsed());
    Ok(())
}
