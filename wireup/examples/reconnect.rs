//! A client whose server is killed in the middle of its work and started again. The client notices,
//! calls the new one, and repeats the request that had no response.

use barewire::{Report, transport::tcp::Key};
use barewire_wireup::link::{Link, Options, State};
use barewire_wireup::{Node, Rules};
use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{collections::VecDeque, env, net::SocketAddr, rc::Rc};

const TIMEOUT: Duration = Duration::from_mins(1);
/// The longest sleep: a post may have made the progress that the sleep would wait for.
const TICK: Duration = Duration::from_millis(10);
const REQUESTS: u64 = 100;
/// The handlers of requests and responses, whose headers are the number of the request.
const REQUEST: u8 = 0;
const RESPONSE: u8 = 1;

fn ended(link: &Link) -> bool {
    matches!(link.state(), State::Closed(_) | State::Failed(_))
}

/// The server, until it is killed or its client has ended.
fn serve() -> Result<(), Report> {
    let mut node = Node::open(&Rules::default())?;
    let requests = Rc::new(RefCell::new(VecDeque::new()));
    let arrived = Rc::clone(&requests);
    node.set_handler(REQUEST, move |message| {
        arrived.borrow_mut().extend(message.split_short().map(|(number, _)| number));
    })?;
    let listener = node.listen(([127, 0, 0, 1], 0).into())?;
    println!("{}", listener.address());
    let (start, mut client) = (Instant::now(), None::<Link>);
    loop {
        if let Some(request) = listener.next() {
            match request.accept(Options::default()) {
                Ok(link) => client = Some(link),
                // It may have ended meanwhile. The next one is served.
                Err(error) => eprintln!("a client is not accepted: {error}"),
            }
        }
        let number = requests.borrow_mut().pop_front();
        if let (Some(link), Some(number)) = (&client, number) {
            let _ = node.post(|| link.am_short(RESPONSE, number, &[]));
        } else if client.as_ref().map_or(start.elapsed() > TIMEOUT, ended) {
            return Ok(()); // There is no client, or none any more.
        } else {
            node.wait(Some(TICK))?;
        }
    }
}

/// Starts the server, and returns the address that it prints.
fn start(key: &Key) -> Result<(Child, SocketAddr), Report> {
    let mut server = Command::new(env::current_exe()?)
        .arg("server")
        .env("BAREWIRE_KEY", key.to_digits())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let output = server.stdout.take().ok_or_else(|| Report::new("the server has no output"))?;
    BufReader::new(output).read_line(&mut line)?;
    Ok((server, line.trim().parse()?))
}

// ANCHOR: client
/// Calls the server until there is a link.
fn call(node: &mut Node, server: SocketAddr) -> Result<Link, Report> {
    let dial = node.dial(server, &[], Options::default())?;
    loop {
        match dial.poll() {
            Some(link) => return Ok(link?),
            None => node.wait(Some(TICK))?,
        };
    }
}

/// Sends a request, and waits for the response. Fails with the link.
fn ask(node: &mut Node, link: &Link, number: u64, seen: &Cell<u64>) -> Result<(), Report> {
    node.post(|| link.am_short(REQUEST, number, &[]))?;
    Ok(link.until(node, TIMEOUT, || seen.get() == number)?)
}

fn work(key: &Key) -> Result<(), Report> {
    let mut node = Node::open(&Rules::default().key(key.clone()))?;
    let seen = Rc::new(Cell::new(0));
    let response = Rc::clone(&seen);
    node.set_handler(RESPONSE, move |message| {
        response.set(message.split_short().map_or(0, |(number, _)| number));
    })?;
    let (mut server, address) = start(key)?;
    let mut link = call(&mut node, address)?;
    for number in 1..=REQUESTS {
        if number == REQUESTS / 2 {
            server.kill()?;
            server.wait()?;
        }
        // A response may have been lost as well as the request, so that requests have to be such as
        // can be repeated.
        while let Err(error) = ask(&mut node, &link, number, &seen) {
            println!("request {number}: {}", error.to_string().rsplit(": ").next().unwrap_or(""));
            let _ = server.kill(); // Also one that only hangs.
            server.wait()?;
            let address;
            (server, address) = start(key)?;
            link = call(&mut node, address)?;
        }
    }
    println!("{REQUESTS} responses");
    server.kill()?;
    server.wait()?;
    Ok(())
}
// ANCHOR_END: client

fn main() -> Result<(), Report> {
    match env::args().nth(1).as_deref() {
        Some("server") => serve(),
        _ => work(&Key::generate()?),
    }
}
