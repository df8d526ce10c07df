//! Listening: accept, reject, private data, and clients that vanish or are silent.

use std::cell::RefCell;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use barewire_tcp::Key;
use barewire_tcp::connector::Connector;
use barewire_tcp::handshake::{Claim, Purpose};
use barewire_tcp::listener::Limits;
use barewire_wireup::link::{CloseMode, Link, Options, State};
use barewire_wireup::node::{Dial, DialError, Listener, MAX_DATA, Node, Request};

use crate::flood::resident;
use crate::support::{DEADLINE, Side, alone, pair, rules, send, until};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Bytes of resident memory for each client: the links and lanes of both sides, the connection
/// with its handshake on both, and what the allocator keeps of the most that were open at once.
const MAX_CLIENT: usize = 32 << 10;

/// Makes progress until the client has an answer; the server decides by `decide`.
fn answer(
    sides: &mut [Side],
    listener: &Listener,
    dial: &Dial,
    mut decide: impl FnMut(Request),
) -> Result<Link, DialError> {
    until(sides, "an answer", |_| {
        while let Some(request) = listener.next() {
            decide(request);
        }
        dial.poll().is_some()
    });
    dial.poll().unwrap()
}

#[test]
fn a_client_is_accepted_with_its_private_data_and_both_send() {
    for names in [&["shm"][..], &["tcp/lo"]] {
        let mut sides = pair(names);
        let listener = sides[1].node.listen(ANY).unwrap();
        let dial = sides[0].node.dial(listener.address(), b"who I am", Options::default()).unwrap();
        let accepted = RefCell::new(None);
        let link = answer(&mut sides, &listener, &dial, |request| {
            assert_eq!(request.data(), b"who I am");
            accepted.replace(Some(request.accept(Options::default()).unwrap()));
        });
        let (link, back) = (link.unwrap(), accepted.take().unwrap());
        until(&mut sides, "connected", |_| {
            link.state() == State::Connected && back.state() == State::Connected
        });
        send(&mut sides, &link, 1);
        send(&mut sides, &back, 2);
        until(&mut sides, "received", |sides| {
            sides.iter().all(|side| side.received.borrow().len() == 1)
        });
    }
}

#[test]
fn a_rejected_client_gets_the_reason_once() {
    let mut sides = pair(&["shm"]);
    let listener = sides[1].node.listen(ANY).unwrap();
    let dial = sides[0].node.dial(listener.address(), &[], Options::default()).unwrap();
    let outcome = answer(&mut sides, &listener, &dial, |request| request.reject("not today"));
    assert_eq!(outcome.unwrap_err(), DialError::Rejected("not today".to_owned()));
    // A request that is dropped is rejected, too.
    let dial = sides[0].node.dial(listener.address(), &[], Options::default()).unwrap();
    let outcome = answer(&mut sides, &listener, &dial, drop);
    assert!(matches!(outcome.unwrap_err(), DialError::Rejected(_)));
    assert!(
        sides[0].node.dial(listener.address(), &[0; MAX_DATA + 1], Options::default()).is_err()
    );
}

#[test]
fn nobody_and_strangers_are_errors_and_the_server_goes_on() {
    let mut sides = pair(&["shm"]);
    let listener = sides[1].node.listen(ANY).unwrap();
    let gone = sides[0].node.listen(ANY).unwrap().address();
    let dial = sides[0].node.dial(gone, &[], Options::default()).unwrap();
    let outcome = answer(&mut sides, &listener, &dial, drop);
    assert!(matches!(outcome.unwrap_err(), DialError::Connection(_)));
    // Without the key, and without a word.
    let _silent = TcpStream::connect(listener.address()).unwrap();
    let mut stranger = Node::open(&rules(&["shm"]).key(Key::from_bytes([8; 32]))).unwrap();
    let dial = stranger.dial(listener.address(), &[], Options::default()).unwrap();
    until(&mut sides, "refused", |_| {
        stranger.progress();
        dial.poll().is_some()
    });
    assert!(matches!(dial.poll().unwrap().unwrap_err(), DialError::Connection(_)));
    let dial = sides[0].node.dial(listener.address(), &[], Options::default()).unwrap();
    let accept = |request: Request| drop(request.accept(Options::default()).unwrap());
    assert!(answer(&mut sides, &listener, &dial, accept).is_ok());
}

#[test]
fn a_server_that_does_not_decide_is_left_at_the_deadline() {
    let mut sides = pair(&["shm"]);
    let listener = sides[1].node.listen(ANY).unwrap();
    let soon = Options::default().deadline(Duration::from_millis(300));
    let dial = sides[0].node.dial(listener.address(), &[], soon).unwrap();
    until(&mut sides, "the deadline", |_| dial.poll().is_some());
    assert!(matches!(
        dial.poll().unwrap().unwrap_err(),
        DialError::Deadline | DialError::Connection(_)
    ));
    // The client left, so that its request can be accepted no more, or leads nowhere.
    drop(sides.into_iter().next());
}

/// "For ever" is a deadline like any other: of calls, of clients that say nothing, and of links that
/// are closed.
#[test]
fn deadlines_may_have_any_length() {
    let rules = rules(&["shm"]).deadline(Duration::MAX);
    let mut sides = [Side::new(&rules), Side::new(&rules)];
    let listener = sides[1].node.listen(ANY).unwrap();
    let claim = Claim {
        purpose: Purpose::Control,
        service: 1,
        endpoint: 0,
        from_service: 0,
        from_endpoint: 0,
    };
    let (key, limits) =
        (Key::from_bytes([7; 32]), Limits { protected: false, ..Limits::default() });
    let silent =
        Connector::start(listener.address(), None, &key, claim, Duration::MAX, limits).unwrap();
    let silent = std::cell::RefCell::new((silent, None));
    until(&mut sides, "a silent client", |_| {
        let (connector, socket) = &mut *silent.borrow_mut();
        *socket = connector.advance(std::time::Instant::now()).unwrap();
        socket.is_some()
    });
    let dial = sides[0].node.dial(listener.address(), &[], Options::default()).unwrap();
    let forever = Options::default().deadline(Duration::MAX);
    let other = sides[0].node.dial(listener.address(), &[], forever).unwrap();
    for dial in [dial, other] {
        let accept = |request: Request| drop(request.accept(Options::default()).unwrap());
        let link = answer(&mut sides, &listener, &dial, accept).unwrap();
        until(&mut sides, "connected", |_| link.state() == State::Connected);
        for side in &mut sides {
            let _ = side.node.arm().unwrap();
        }
        link.close(CloseMode::Flush);
        until(&mut sides, "closed", |_| matches!(link.state(), State::Closed(_)));
    }
}

/// More than the half-open links (64), the handshakes of a round (64) and the accept queue (256),
/// so that each of these bounds is met. A waiting request costs its connection and its private
/// data. In all, a link and both ends of its connection take at most [`MAX_CLIENT`] bytes here.
#[test]
fn a_thousand_clients_at_once_are_all_accepted() {
    alone("listen::a_thousand_clients_at_once_are_all_accepted", accept_a_thousand_clients);
}

fn accept_a_thousand_clients() {
    // A client and the server's end of it are both in this process.
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: files.maximum, ..files };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let mut sides = pair(&["shm"]);
    let listener = sides[1].node.listen(ANY).unwrap();
    let before = resident();
    let dials: Vec<_> = (0..1000u32)
        .map(|number| {
            let data = number.to_be_bytes();
            sides[0].node.dial(listener.address(), &data, Options::default()).unwrap()
        })
        .collect();
    let accepted = RefCell::new(Vec::new());
    until(&mut sides, "an answer", |_| {
        while let Some(request) = listener.next() {
            accepted.borrow_mut().push(request.accept(Options::default()).unwrap());
        }
        dials.iter().all(|dial| dial.poll().is_some())
    });
    let links: Vec<_> = dials.iter().map(|dial| dial.poll().unwrap().unwrap()).collect();
    until(&mut sides, "connected", |_| {
        let connected = |link: &Link| link.state() == State::Connected;
        links.iter().all(connected) && accepted.borrow().iter().all(connected)
    });
    assert_eq!(accepted.borrow().len(), 1000);
    let grown = resident().saturating_sub(before);
    println!("{} bytes for each of 1000 clients", grown / 1000);
    assert!(grown <= 1000 * MAX_CLIENT, "{} bytes per client", grown / 1000);
}

#[test]
fn a_silent_client_is_dropped_and_others_are_served() {
    let mut sides = pair(&["shm"]);
    let listener = sides[1].node.listen(ANY).unwrap();
    let mut silent = TcpStream::connect(listener.address()).unwrap();
    silent.set_nonblocking(true).unwrap();
    until(&mut sides, "the silent client is dropped", |_| match silent.read(&mut [0; 64]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    });
    let dial = sides[0].node.dial(listener.address(), &[], Options::default()).unwrap();
    let accept = |request: Request| drop(request.accept(Options::default()).unwrap());
    assert!(answer(&mut sides, &listener, &dial, accept).is_ok());
}

/// Each side sleeps until the other has done something.
#[test]
fn a_wait_ends_when_a_client_calls_and_when_the_call_is_decided() {
    let soon = DEADLINE / 2;
    let mut server = Side::new(&rules(&["shm"]));
    let listener = server.node.listen(ANY).unwrap();
    let address = listener.address();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut client = Side::new(&rules(&["shm"]));
            let dial = client.node.dial(address, b"", Options::default()).unwrap();
            let begun = Instant::now();
            while dial.poll().is_none() {
                client.node.wait(Some(DEADLINE)).unwrap();
                assert!(begun.elapsed() < soon, "the decision has not ended the wait");
            }
            assert!(matches!(dial.poll(), Some(Err(DialError::Rejected(_)))), "{dial:?}");
        });
        let begun = Instant::now();
        let request = loop {
            server.node.wait(Some(DEADLINE)).unwrap();
            assert!(begun.elapsed() < soon, "the call has not ended the wait");
            if let Some(request) = listener.next() {
                break request;
            }
        };
        request.reject("not today");
        // What the socket did not take is sent by progress.
        server.node.until(Duration::from_millis(200), || false);
    });
}
