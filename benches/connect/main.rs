//! Addresses and links in numbers: the counterpart of `benches/peers/ucp.c`, for `cargo xtask
//! compare`.
//!
//! usage: `connect listen|connect PORT COUNT address|time|memory TRANSPORTS`
//!
//! The client prints JSON: `bytes` of its address, or of resident memory for each of COUNT links;
//! or `latency_typical_us` from `Node::connect` until the first message of 8 bytes was delivered,
//! the median of COUNT. The server reports each delivery by a byte over TCP. TRANSPORTS are names,
//! separated by commas.

use std::cell::Cell;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::PostError;
use barewire_wireup::address::WorkerAddress;
use barewire_wireup::link::{Link, Options};
use barewire_wireup::{CloseMode, Node, Rules, State};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const PATIENCE: Duration = Duration::from_mins(1);
const ID: u8 = 1;

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [side, port, count, what, transports] = words[..] else {
        // `cargo bench` runs every bench; this one is a part of `cargo xtask compare`.
        println!("usage: connect listen|connect PORT COUNT address|time|memory TRANSPORTS");
        return ExitCode::SUCCESS;
    };
    match run(side == "listen", port, count, what, transports) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("connect: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(listens: bool, port: &str, count: &str, what: &str, transports: &str) -> Outcome<()> {
    let place = (Ipv4Addr::LOCALHOST, port.parse()?);
    let mut control =
        if listens { TcpListener::bind(place)?.accept()?.0 } else { TcpStream::connect(place)? };
    control.set_nodelay(true)?;
    let count: usize = count.parse()?;
    let mut rules = Rules::default().only(transports.split(','));
    rules.config = rules.config.max_endpoints(u32::try_from(count)?.saturating_add(16));
    let mut node = Node::open(&rules)?;
    let address = node.address();
    match (what, listens) {
        ("address", true) => Ok(()),
        ("address", false) => {
            println!("{{\"bytes\": {}}}", address.as_bytes().len());
            Ok(())
        }
        (_, true) => {
            control.write_all(&u32::try_from(address.as_bytes().len())?.to_ne_bytes())?;
            control.write_all(address.as_bytes())?;
            serve(&mut node, &mut control)
        }
        (_, false) => {
            let mut length = [0; 4];
            control.read_exact(&mut length)?;
            let mut peer = vec![0; usize::try_from(u32::from_ne_bytes(length))?];
            control.read_exact(&mut peer)?;
            let mut client = Client { peer: WorkerAddress::from_bytes(&peer)?, node, control };
            client.control.set_nonblocking(true)?;
            match what {
                "time" => client.time(count),
                "memory" => client.memory(count),
                other => Err(format!("'{other}' is neither address, time nor memory").into()),
            }
        }
    }
}

/// Reports each message, until the client ends.
fn serve(node: &mut Node, control: &mut TcpStream) -> Outcome<()> {
    let received = Rc::new(Cell::new(0usize));
    let count = Rc::clone(&received);
    node.set_handler(ID, move |_| count.set(count.get() + 1))?;
    control.set_nonblocking(true)?;
    let (start, mut reported) = (Instant::now(), 0);
    loop {
        node.progress();
        if reported < received.get() {
            control.write_all(&[0])?;
            reported += 1;
        }
        match control.read(&mut [0]) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        within(start, "the end")?;
    }
}

fn within(start: Instant, what: &str) -> Outcome<()> {
    if start.elapsed() > PATIENCE { Err(format!("{what}: not in time").into()) } else { Ok(()) }
}

struct Client {
    node: Node,
    peer: WorkerAddress,
    control: TcpStream,
}

impl Client {
    /// Connects a link, sends its first message, and waits until that was delivered.
    fn first_message(&mut self) -> Outcome<Link> {
        let start = Instant::now();
        let link = self.node.connect(&self.peer, Options::default())?;
        loop {
            match link.am_short(ID, 7, &[0; 8]) {
                Ok(()) => break,
                Err(PostError::NoResource) => {}
                Err(error) => return Err(format!("{error}: {:?}", link.error()).into()),
            }
            self.node.progress();
            within(start, "the connection")?;
        }
        loop {
            match self.control.read(&mut [0]) {
                Ok(1) => return Ok(link),
                Ok(_) => return Err("the other side ended".into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            self.node.progress();
            within(start, "a delivery")?;
        }
    }

    fn time(&mut self, count: usize) -> Outcome<()> {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let start = Instant::now();
            let link = self.first_message()?;
            times.push(start.elapsed());
            link.close(CloseMode::Flush);
            while !matches!(link.state(), State::Closed(_) | State::Failed(_)) {
                self.node.progress();
                within(start, "the close")?;
            }
        }
        times.sort_unstable();
        let median = times.get(count / 2).ok_or("COUNT is at least 1")?;
        println!("{{\"latency_typical_us\": {:.3}}}", median.as_secs_f64() * 1e6);
        Ok(())
    }

    fn memory(&mut self, count: usize) -> Outcome<()> {
        // The first one pays for what all share.
        let first = self.first_message()?;
        let before = resident()?;
        let links = (1..count).map(|_| self.first_message()).collect::<Outcome<Vec<_>>>()?;
        let grown = resident()?.saturating_sub(before);
        println!("{{\"bytes\": {}}}", grown / links.len().max(1));
        for link in links.iter().chain([&first]) {
            link.close(CloseMode::Cancel);
        }
        Ok(())
    }
}

/// Bytes of this process that are in memory.
fn resident() -> Outcome<usize> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kilobytes = line.split_whitespace().next().ok_or("no VmRSS")?;
    Ok(kilobytes.parse::<usize>()? << 10)
}
