//! A server whose requests and responses have any length: tagged messages over the links of its
//! clients. Here each is a thread.

use barewire::{Report, transport::tcp::Key};
use barewire_wireup::link::{CloseMode, Link, Options, State};
use barewire_wireup::tag::{Buffer, FULL_MASK, Limits, Mode, Request, TagLink, Tags};
use barewire_wireup::{Node, Rules};
use std::net::SocketAddr;
use std::time::Duration;
use std::{sync::mpsc, thread};

/// The longest sleep: a send or a receive may have made the progress that it would wait for.
const TICK: Duration = Duration::from_millis(10);
const CLIENTS: usize = 3;
/// Bytes of the longest request that the server takes memory for.
const LONGEST: usize = 16 << 20;
const REQUEST: u64 = 1;
const RESPONSE: u64 = 2;

fn ended(link: &Link) -> bool {
    matches!(link.state(), State::Closed(_) | State::Failed(_))
}

// ANCHOR: server
fn serve(key: Key, address: &mpsc::Sender<SocketAddr>) -> Result<(), Report> {
    let mut node = Node::open(&Rules::default().key(key))?;
    let tags = Tags::over(&mut node, Limits::default())?;
    let listener = node.listen(([127, 0, 0, 1], 0).into())?;
    let _ = address.send(listener.address());
    let mut clients: Vec<(Link, TagLink)> = Vec::new();
    // Requests that arrive, with the clients that they come from.
    let mut arriving: Vec<(TagLink, Buffer, Request)> = Vec::new();
    while clients.len() < CLIENTS || !clients.iter().all(|(link, _)| ended(link)) {
        while let Some(client) = listener.next() {
            let link = client.accept(Options::default())?;
            clients.push((link.clone(), tags.link(&link)?));
        }
        while let Some(found) = tags.probe(REQUEST, FULL_MASK) {
            let envelope = found.envelope();
            let client = clients.iter().find(|(_, client)| client.key() == envelope.link);
            let Some((link, client)) = client else { continue };
            if envelope.length > LONGEST {
                link.close(CloseMode::Cancel);
                continue;
            }
            let buffer = tags.buffer(envelope.length)?;
            let request = found.receive(&buffer);
            arriving.push((client.clone(), buffer, request));
        }
        arriving.retain(|(client, buffer, request)| {
            let Some(received) = request.poll() else { return true };
            if received.is_ok() {
                // Returns at once, and the send goes on without its handle.
                let response = buffer.to_vec().to_ascii_uppercase();
                drop(tags.send(client, RESPONSE, &response[..], Mode::Auto));
            }
            false
        });
        tags.wait(&mut node, Some(TICK))?;
    }
    Ok(())
}
// ANCHOR_END: server

fn ask(key: Key, server: SocketAddr, number: u8) -> Result<(), Report> {
    let mut node = Node::open(&Rules::default().key(key))?;
    let tags = Tags::over(&mut node, Limits::default())?;
    let dial = node.dial(server, &[], Options::default())?;
    let link = loop {
        match dial.poll() {
            Some(link) => break link?,
            None => node.wait(Some(TICK))?,
        };
    };
    let client = tags.link(&link)?;
    for length in [10, 5_000, 1_000_000] {
        let request = vec![b'a' + number; length];
        let buffer = tags.buffer(length)?;
        let response = tags.receive(RESPONSE, FULL_MASK, &buffer);
        drop(tags.send(&client, REQUEST, &request[..], Mode::Auto));
        while response.poll().is_none() {
            tags.failure(&client).map_or(Ok(()), Err)?;
            tags.wait(&mut node, Some(TICK))?;
        }
        response.poll().transpose()?;
        if buffer.to_vec() != request.to_ascii_uppercase() {
            return Err(Report::new("another response"));
        }
        println!("client {number}: {length} bytes");
    }
    link.close(CloseMode::Flush);
    while !ended(&link) {
        tags.wait(&mut node, Some(TICK))?;
    }
    Ok(())
}

fn main() -> Result<(), Report> {
    let key = Key::generate()?;
    let (sender, address) = mpsc::channel();
    let served = key.clone();
    let server = thread::spawn(move || serve(served, &sender).map_err(|error| error.to_string()));
    let address = address.recv()?;
    let clients: Vec<_> = (0..CLIENTS as u8)
        .map(|number| {
            let key = key.clone();
            thread::spawn(move || ask(key, address, number).map_err(|error| error.to_string()))
        })
        .collect();
    for thread in clients.into_iter().chain([server]) {
        thread.join().expect("no thread panics").map_err(Report::new)?;
    }
    Ok(())
}
