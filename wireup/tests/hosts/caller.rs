//! A node that serves the nodes of the other hosts, and calls them again and again: when a link has
//! ended, it makes another, over whichever network leads to the peer.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use barewire_wireup::link::{Link, Options, State};
use barewire_wireup::node::{Dial, Node, Rules};

use crate::ROLE;
use crate::bench::{Bench, Running};

const PORT: u16 = 29778;
/// Of a node's address, and what the others are called at: `own|peer,peer|peer,peer`. A peer has
/// several addresses.
const CALLS: &str = "BAREWIRE_TEST_CALLS";
/// The wait for whatever comes next, so that nodes do not need all of a small machine.
const TICK: Duration = Duration::from_millis(5);
const REQUEST: u8 = 0;
const RESPONSE: u8 = 1;

/// What a request or response has to carry besides its number.
fn payload(kind: u8, number: u64) -> [u8; 16] {
    let mixed = (number ^ u64::from(kind)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..].copy_from_slice(&mixed.to_le_bytes());
    bytes
}

/// The numbers of messages that have arrived, which are verified.
type Arrived = Rc<RefCell<VecDeque<u64>>>;

fn collect(node: &mut Node, kind: u8) -> Arrived {
    let arrived = Arrived::default();
    let numbers = Rc::clone(&arrived);
    let handler = move |message: barewire::Message<'_>| {
        let (number, bytes) = message.split_short().expect("a short message");
        assert_eq!(bytes, payload(kind, number), "wrong bytes");
        numbers.borrow_mut().push_back(number);
    };
    node.set_handler(kind, handler).unwrap();
    arrived
}

/// A peer that this node calls.
struct Callee {
    addresses: Vec<SocketAddr>,
    /// Calls so far.
    calls: usize,
    dial: Option<Dial>,
    link: Option<Link>,
    /// The number of the request that has no response yet.
    asked: Option<u64>,
    /// There was a response over this link.
    is_there: bool,
}

fn has_ended(link: &Link) -> bool {
    matches!(link.state(), State::Closed(_) | State::Failed(_))
}

impl Callee {
    fn attend(&mut self, node: &mut Node, index: usize) {
        if let Some(link) = self.link.take_if(|link| has_ended(link)) {
            let error = link.error().map_or_else(String::new, |error| error.to_string());
            println!("\npeer {index}: {:?}: {}", link.state(), error.replace('\n', " "));
            (self.asked, self.is_there) = (None, false);
        }
        if let Some(result) = self.dial.as_ref().and_then(Dial::poll) {
            self.dial = None;
            match result {
                Ok(link) => self.link = Some(link),
                Err(error) => println!("\npeer {index}: {}", error.to_string().replace('\n', " ")),
            }
        }
        match &self.link {
            Some(link) if self.asked.is_none() && link.state() == State::Connected => {
                // No two links have the same numbers.
                let number = (index as u64) << 48 | (self.calls as u64) << 24;
                self.ask(node, number);
            }
            None if self.dial.is_none() => {
                let address = self.addresses[self.calls % self.addresses.len()];
                let own = std::env::var(CALLS).unwrap();
                self.calls += 1;
                self.dial = node.dial(address, own.as_bytes(), Options::default()).ok();
            }
            _ => {}
        }
    }

    fn ask(&mut self, node: &mut Node, number: u64) {
        let Some(link) = &self.link else { return };
        let bytes = payload(REQUEST, number);
        if node.post(|| link.am_short(REQUEST, number, &bytes)).is_ok() {
            self.asked = Some(number);
        }
    }
}

/// Serves and calls until its standard input ends; nothing unless it is started for it.
#[test]
fn a_node_that_calls_the_others() {
    let Some(calls) =
        std::env::var(CALLS).ok().filter(|_| std::env::args().any(|word| word == ROLE))
    else {
        return;
    };
    let (sender, stopped) = channel::<()>();
    thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        drop(sender);
    });
    let mut node = Node::open(&Rules::default().liveness(Duration::from_secs(1))).unwrap();
    let (requests, responses) = (collect(&mut node, REQUEST), collect(&mut node, RESPONSE));
    let listener = node.listen(SocketAddr::new([0; 4].into(), PORT)).unwrap();
    let mut callees: Vec<Callee> = calls
        .split('|')
        .skip(1)
        .map(|peer| Callee {
            addresses: peer.split(',').map(|address| address.parse().unwrap()).collect(),
            calls: 0,
            dial: None,
            link: None,
            asked: None,
            is_there: false,
        })
        .collect();
    // The links of those that call this node.
    let mut callers: BTreeMap<String, Link> = BTreeMap::new();
    let mut there = usize::MAX;
    while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
        node.wait(Some(TICK)).unwrap();
        while let Some(request) = listener.next() {
            let name = String::from_utf8_lossy(request.data()).into_owned();
            if let Ok(link) = request.accept(Options::default()) {
                callers.insert(name, link);
            }
        }
        let numbers: Vec<u64> = requests.borrow_mut().drain(..).collect();
        for number in numbers {
            let bytes = payload(RESPONSE, number);
            // The number does not say whose it is: others ignore a response that they do not expect.
            for link in callers.values().filter(|link| !has_ended(link)) {
                let _ = node.post(|| link.am_short(RESPONSE, number, &bytes));
            }
        }
        for (index, callee) in callees.iter_mut().enumerate() {
            callee.attend(&mut node, index);
        }
        let numbers: Vec<u64> = responses.borrow_mut().drain(..).collect();
        for number in numbers {
            if let Some(callee) = callees.iter_mut().find(|one| one.asked == Some(number)) {
                callee.is_there = true;
                callee.ask(&mut node, number + 1);
            }
        }
        let now = callees.iter().filter(|callee| callee.is_there).count();
        if now != there {
            there = now;
            println!("\nthere: {now}");
        }
    }
}

/// Starts the node of a host. Each host has an address on each of these networks.
pub(crate) fn caller(bench: &Bench, host: usize, hosts: usize, networks: &[&str]) -> Running {
    let mut calls = host.to_string();
    for peer in (0..hosts).filter(|peer| *peer != host) {
        let addresses: Vec<_> =
            networks.iter().map(|network| format!("{network}.{}:{PORT}", peer + 1)).collect();
        calls.push('|');
        calls.push_str(&addresses.join(","));
    }
    let mut command = bench.command(host, Path::new(&std::env::current_exe().unwrap()));
    command.args([ROLE, "caller::a_node_that_calls_the_others", "--nocapture"]);
    command.env(CALLS, calls);
    Running::start(command)
}
