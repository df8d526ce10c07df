//! A server whose requests and responses have any length: tagged messages over the links of its
//! clients. Here each is a thread. One more client requests without end, and receives nothing.

use barewire::{Report, transport::tcp::Key};
use barewire_wireup::link::{CloseMode, Link, Options, State};
use barewire_wireup::node::Request as Caller;
use barewire_wireup::tag::{Buffer, FULL_MASK, Found, Limits, Mode, Request, TagLink, Tags};
use barewire_wireup::{Node, Rules};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;
use std::{sync::mpsc, thread};

/// The longest sleep: a send or a receive may have made the progress that it would wait for.
const TICK: Duration = Duration::from_millis(10);
const CLIENTS: usize = 3;
/// Bytes of the longest request that the server takes memory for.
const LONGEST: usize = 16 << 20;
/// Requests of one client that arrive, or whose responses leave.
const WAITING: usize = 16;
const REQUEST: u64 = 1;
const RESPONSE: u64 = 2;

fn ended(link: &Link) -> bool {
    matches!(link.state(), State::Closed(_) | State::Failed(_))
}

// ANCHOR: server
struct Client {
    link: Link,
    tags: TagLink,
    /// Requests that arrive, and responses that leave, with their memory.
    arriving: Vec<(Buffer, Request)>,
    leaving: Vec<(Buffer, Request)>,
}

impl Client {
    fn accept(tags: &Tags, caller: Caller) -> Result<Self, Report> {
        let link = caller.accept(Options::default())?;
        let tags = tags.link(&link).inspect_err(|_| link.close(CloseMode::Cancel))?;
        Ok(Self { link, tags, arriving: Vec::new(), leaving: Vec::new() })
    }

    /// Receives a request. A client that has too many, or does not receive the responses, is left.
    fn receive(&mut self, tags: &Tags, found: Found) -> Result<(), Report> {
        let (length, count) = (found.envelope().length, self.arriving.len() + self.leaving.len());
        if length > LONGEST || count >= WAITING {
            return Err(Report::new(format!("{length} bytes, and {count} requests before")));
        }
        // Memory may be short.
        let buffer = tags.buffer(length)?;
        let request = found.receive(&buffer);
        self.arriving.push((buffer, request));
        Ok(())
    }

    /// Responds to the requests that have arrived.
    fn respond(&mut self, tags: &Tags) -> Result<(), Report> {
        self.leaving.retain(|(_, response)| response.poll().is_none());
        for (buffer, request) in std::mem::take(&mut self.arriving) {
            let Some(received) = request.poll() else {
                self.arriving.push((buffer, request));
                continue;
            };
            received?;
            buffer.write(0, &buffer.to_vec().to_ascii_uppercase())?;
            // Returns at once. The buffer is sent without a copy, so this ends with the send.
            let response = tags.send(&self.tags, RESPONSE, &buffer, Mode::Auto);
            self.leaving.push((buffer, response));
        }
        Ok(())
    }

    /// Without the second call, the link and its messages would be kept.
    fn end(&self, tags: &Tags) {
        self.link.close(CloseMode::Cancel);
        tags.close(&self.tags);
    }
}

fn serve(key: Key, address: &mpsc::Sender<SocketAddr>) -> Result<(), Report> {
    let mut node = Node::open(&Rules::default().key(key))?;
    let tags = Tags::over(&mut node, Limits::default())?;
    let listener = node.listen(([127, 0, 0, 1], 0).into())?;
    let _ = address.send(listener.address());
    let (mut clients, mut calls) = (HashMap::new(), 0);
    // A server that runs for ever has `loop` here: it keeps nothing of clients that have ended.
    while calls <= CLIENTS || !clients.is_empty() {
        while let Some(caller) = listener.next() {
            calls += 1;
            match Client::accept(&tags, caller) {
                Ok(client) => drop(clients.insert(client.tags.key(), client)),
                Err(error) => println!("a client is not accepted: {error}"),
            }
        }
        while let Some(found) = tags.probe(REQUEST, FULL_MASK) {
            let key = found.envelope().link;
            let Some(client) = clients.get_mut(&key) else { continue };
            if let Err(error) = client.receive(&tags, found) {
                println!("a client is left: {error}");
                client.end(&tags);
                clients.remove(&key);
            }
        }
        clients.retain(|_, client| {
            let responded = client.respond(&tags);
            if let Err(error) = &responded {
                println!("a client is left: {error}");
            }
            let stays = responded.is_ok() && !ended(&client.link);
            if !stays {
                client.end(&tags);
            }
            stays
        });
        tags.wait(&mut node, Some(TICK))?;
    }
    Ok(())
}
// ANCHOR_END: server

fn call(node: &mut Node, tags: &Tags, server: SocketAddr) -> Result<(Link, TagLink), Report> {
    let dial = node.dial(server, &[], Options::default())?;
    let link = loop {
        match dial.poll() {
            Some(link) => break link?,
            None => node.wait(Some(TICK))?,
        };
    };
    let client = tags.link(&link)?;
    Ok((link, client))
}

fn ask(key: Key, server: SocketAddr, number: u8) -> Result<(), Report> {
    let mut node = Node::open(&Rules::default().key(key))?;
    let tags = Tags::over(&mut node, Limits::default())?;
    let (link, client) = call(&mut node, &tags, server)?;
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

/// Requests until the server leaves this client.
fn flood(key: Key, server: SocketAddr) -> Result<(), Report> {
    let mut node = Node::open(&Rules::default().key(key))?;
    let tags = Tags::over(&mut node, Limits::default())?;
    let (link, client) = call(&mut node, &tags, server)?;
    let request = vec![b'a'; 100_000];
    for _ in 0..2 * WAITING {
        drop(tags.send(&client, REQUEST, &request[..], Mode::Auto));
    }
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
    let flood = thread::spawn(move || flood(key, address).map_err(|error| error.to_string()));
    for thread in clients.into_iter().chain([flood, server]) {
        thread.join().expect("no thread panics").map_err(Report::new)?;
    }
    Ok(())
}
