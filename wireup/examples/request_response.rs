//! A server that responds to the requests of many clients, and sleeps in between, as the clients do.
//! Here each is a thread. They can as well be processes on any hosts: what they share is the key and
//! the server's address.

use barewire::{Report, transport::tcp::Key};
use barewire_wireup::link::{CloseMode, Link, Options, State};
use barewire_wireup::{Node, Rules};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;
use std::{rc::Rc, sync::mpsc, thread};

const TIMEOUT: Duration = Duration::from_mins(1);
/// The longest sleep: a post may have made the progress that the sleep would wait for.
const TICK: Duration = Duration::from_millis(10);
const CLIENTS: usize = 4;
/// The handlers: the number by which the server knows a client, a request, and a response.
const WELCOME: u8 = 0;
const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;
/// Bytes of the longest text: `am_bcopy` takes them over every transport, and `am_short` takes 176.
const LONGEST: usize = 4000;

fn ended(link: &Link) -> bool {
    matches!(link.state(), State::Closed(_) | State::Failed(_))
}

// ANCHOR: send
/// Sends a number and a text, which `Message::split_short` separates.
fn send(node: &mut Node, link: &Link, id: u8, number: u64, text: &[u8]) -> Result<(), Report> {
    if text.len() > LONGEST {
        return Err(Report::new(format!("{} bytes are over the limit of {LONGEST}", text.len())));
    }
    let message = [&number.to_le_bytes()[..], text].concat();
    let fill = |buffer: &mut [u8]| {
        buffer[..message.len()].copy_from_slice(&message);
        message.len()
    };
    node.post(|| link.am_bcopy(id, fill))?;
    Ok(())
}
// ANCHOR_END: send

// ANCHOR: server
fn serve(key: Key, address: &mpsc::Sender<SocketAddr>) -> Result<(), Report> {
    let mut node = Node::open(&Rules::default().key(key))?;
    let requests = Rc::new(RefCell::new(VecDeque::new()));
    let arrived = Rc::clone(&requests);
    // A message does not name its sender, so its header does.
    node.set_handler(REQUEST, move |message| {
        let request = message.split_short().map(|(client, text)| (client, text.to_vec()));
        arrived.borrow_mut().extend(request);
    })?;
    let listener = node.listen(([127, 0, 0, 1], 0).into())?;
    let _ = address.send(listener.address());
    let mut clients: Vec<Link> = Vec::new();
    while clients.len() < CLIENTS || !clients.iter().all(ended) {
        while let Some(client) = listener.next() {
            println!("{} connects", String::from_utf8_lossy(client.data()));
            let link = client.accept(Options::default())?;
            let number = clients.len() as u64;
            clients.push(link.clone());
            reply(&mut node, &link, WELCOME, number, &[]);
        }
        let all: Vec<_> = requests.borrow_mut().drain(..).collect();
        for (client, text) in all {
            let Some(link) = clients.get(client as usize) else { continue };
            reply(&mut node, link, RESPONSE, client, &text.to_ascii_uppercase());
        }
        node.wait(Some(TICK))?;
    }
    Ok(())
}

/// Sends to a client, or ends its link: the client may have died, or have sent too long a request.
fn reply(node: &mut Node, client: &Link, id: u8, number: u64, text: &[u8]) {
    if let Err(error) = send(node, client, id, number, text) {
        eprintln!("a client is left: {error}");
        client.close(CloseMode::Cancel);
    }
}
// ANCHOR_END: server

// ANCHOR: sleep
/// Sleeps until `done` returns true. Ends with the link.
fn sleep_until(node: &mut Node, link: &Link, done: impl Fn() -> bool) -> Result<(), Report> {
    while !done() {
        if let Some(error) = link.error() {
            return Err(error.into());
        }
        if node.wait(Some(TIMEOUT))? == 0 {
            return Err(Report::new("the server is silent"));
        }
    }
    Ok(())
}
// ANCHOR_END: sleep

// ANCHOR: client
fn ask(key: Key, server: SocketAddr, name: &str) -> Result<(), Report> {
    let mut node = Node::open(&Rules::default().key(key))?;
    let (number, response) = (Rc::new(Cell::new(None)), Rc::new(RefCell::new(None)));
    let (named, responded) = (Rc::clone(&number), Rc::clone(&response));
    node.set_handler(WELCOME, move |message| {
        named.set(message.split_short().map(|(number, _)| number));
    })?;
    node.set_handler(RESPONSE, move |message| {
        let text = message.split_short().map(|(_, text)| String::from_utf8_lossy(text).into());
        responded.replace(text);
    })?;
    let dial = node.dial(server, name.as_bytes(), Options::default())?;
    let link = loop {
        match dial.poll() {
            Some(link) => break link?,
            None => node.wait(Some(TICK))?,
        };
    };
    sleep_until(&mut node, &link, || number.get().is_some())?;
    for request in ["hello", "goodbye"] {
        let header = number.get().unwrap_or_default();
        send(&mut node, &link, REQUEST, header, request.as_bytes())?;
        sleep_until(&mut node, &link, || response.borrow().is_some())?;
        let response: Option<String> = response.take();
        println!("{name}: {request} -> {}", response.unwrap_or_default());
    }
    link.close(CloseMode::Flush);
    sleep_until(&mut node, &link, || ended(&link))
}
// ANCHOR_END: client

fn main() -> Result<(), Report> {
    let key = Key::generate()?;
    let (sender, address) = mpsc::channel();
    let served = key.clone();
    let server = thread::spawn(move || serve(served, &sender).map_err(|error| error.to_string()));
    let address = address.recv()?;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let key = key.clone();
            let ask = move || ask(key, address, &format!("client {number}"));
            thread::spawn(move || ask().map_err(|error| error.to_string()))
        })
        .collect();
    for thread in clients.into_iter().chain([server]) {
        thread.join().expect("no thread panics").map_err(Report::new)?;
    }
    Ok(())
}
