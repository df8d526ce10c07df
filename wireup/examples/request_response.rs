//! A server that responds to each word of the requests of many clients, and sleeps in between, as
//! the clients do. Here each is a thread. They can as well be processes on any hosts: what they
//! share is the key and the server's address. One more client is stuck: it sends requests, and
//! makes no progress, as if it were stopped, until the server has ended.

use barewire::{PostError, Report, transport::tcp::Key};
use barewire_wireup::link::{CloseMode, Link, Options, State};
use barewire_wireup::{Node, Rules};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;
use std::{rc::Rc, sync::mpsc, thread};

const TIMEOUT: Duration = Duration::from_mins(1);
/// The longest sleep: a post may have made the progress that the sleep would wait for.
const TICK: Duration = Duration::from_millis(10);
const CLIENTS: u64 = 4;
/// The handlers: the number by which the server knows a client, a request, and a response.
const WELCOME: u8 = 0;
const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;
/// Bytes of the longest text: `am_bcopy` takes them over every transport, and `am_short` takes 176.
const LONGEST: usize = 4000;
/// Responses that wait for a client, beyond those that its link has room for: more than one request
/// has words.
const WAITING: usize = LONGEST;

fn ended(link: &Link) -> bool {
    matches!(link.state(), State::Closed(_) | State::Failed(_))
}

// ANCHOR: send
/// Posts a number and a text, which `Message::split_short` separates.
fn post(link: &Link, id: u8, number: u64, text: &[u8]) -> Result<(), PostError> {
    if text.len() > LONGEST {
        return Err(PostError::TooLong { length: text.len() as u32, limit: LONGEST as u32 });
    }
    let message = [&number.to_le_bytes()[..], text].concat();
    let fill = |buffer: &mut [u8]| {
        buffer[..message.len()].copy_from_slice(&message);
        message.len()
    };
    link.am_bcopy(id, fill).map(drop)
}
// ANCHOR_END: send

// ANCHOR: server
struct Client {
    link: Link,
    /// Responses for which the link has had no room.
    waiting: VecDeque<(u8, Vec<u8>)>,
}

impl Client {
    /// Posts what waits, and returns whether the client stays. Does not wait for room: a client
    /// that is slow or stuck would delay all others.
    fn serve(&mut self, number: u64) -> bool {
        while let Some((id, text)) = self.waiting.front() {
            match post(&self.link, *id, number, text) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(PostError::NoResource) if self.waiting.len() <= WAITING => break,
                Err(error) => {
                    println!(
                        "client {number} is left, {} responses wait: {error}",
                        self.waiting.len()
                    );
                    self.link.close(CloseMode::Cancel);
                    return false;
                }
            }
        }
        !ended(&self.link)
    }
}

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
    let (mut clients, mut accepted) = (HashMap::new(), 0);
    while accepted <= CLIENTS || !clients.is_empty() {
        while let Some(client) = listener.next() {
            let name = String::from_utf8_lossy(client.data()).into_owned();
            println!("{name} connects");
            match client.accept(Options::default()) {
                Ok(link) => {
                    let waiting = [(WELCOME, Vec::new())].into();
                    clients.insert(accepted, Client { link, waiting });
                }
                // There is no transport to it, or it has gone: the others are not concerned.
                Err(error) => println!("{name} is not accepted: {error}"),
            }
            accepted += 1;
        }
        for (client, text) in requests.borrow_mut().drain(..) {
            if let Some(client) = clients.get_mut(&client) {
                let words = text.split(|byte| *byte == b' ');
                client.waiting.extend(words.map(|word| (RESPONSE, word.to_ascii_uppercase())));
            }
        }
        clients.retain(|number, client| client.serve(*number));
        node.wait(Some(TICK))?;
    }
    Ok(())
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
fn call(node: &mut Node, server: SocketAddr, name: &str) -> Result<Link, Report> {
    let dial = node.dial(server, name.as_bytes(), Options::default())?;
    loop {
        match dial.poll() {
            Some(link) => return Ok(link?),
            None => node.wait(Some(TICK))?,
        };
    }
}

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
    let link = call(&mut node, server, name)?;
    sleep_until(&mut node, &link, || number.get().is_some())?;
    for request in ["hello", "goodbye"] {
        let header = number.get().unwrap_or_default();
        node.post(|| post(&link, REQUEST, header, request.as_bytes()))?;
        sleep_until(&mut node, &link, || response.borrow().is_some())?;
        let response: Option<String> = response.take();
        println!("{name}: {request} -> {}", response.unwrap_or_default());
    }
    link.close(CloseMode::Flush);
    sleep_until(&mut node, &link, || ended(&link))
}
// ANCHOR_END: client

/// Sends requests, and receives no response: no call makes progress.
fn be_stuck(key: Key, server: SocketAddr, running: &mpsc::Receiver<()>) -> Result<(), Report> {
    let mut node = Node::open(&Rules::default().key(key))?;
    let number = Rc::new(Cell::new(None));
    let named = Rc::clone(&number);
    node.set_handler(WELCOME, move |message| {
        named.set(message.split_short().map(|(number, _)| number));
    })?;
    let link = call(&mut node, server, "a stuck client")?;
    sleep_until(&mut node, &link, || number.get().is_some())?;
    let header = number.get().unwrap_or_default();
    let words = b"x ".repeat(LONGEST / 2);
    while running.try_recv() == Err(mpsc::TryRecvError::Empty) {
        let _ = post(&link, REQUEST, header, &words);
        thread::yield_now();
    }
    Ok(())
}

fn main() -> Result<(), Report> {
    let key = Key::generate()?;
    let (sender, address) = mpsc::channel();
    let served = key.clone();
    let server = thread::spawn(move || serve(served, &sender).map_err(|error| error.to_string()));
    let address = address.recv()?;
    let (ended, running) = mpsc::channel();
    let stuck = key.clone();
    let stuck = move || be_stuck(stuck, address, &running).map_err(|error| error.to_string());
    let stuck = thread::spawn(stuck);
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
    drop(ended);
    stuck.join().expect("no thread panics").map_err(Report::new)
}
