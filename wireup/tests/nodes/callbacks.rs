//! The user's code that runs inside of a node: it sends to its own node, and it panics.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Instant;

use barewire::PendingResult;
use barewire_wireup::link::{Link, Options, State};
use barewire_wireup::node::Node;
use barewire_wireup::plan::Kind;

use crate::support::{DEADLINE, ID, Side, pair, rules, until, until_connected};

/// The ends of a link of a node to itself.
fn link_to_itself(node: &mut Node) -> [Link; 2] {
    let address = node.address();
    [(); 2].map(|()| node.connect(&address, Options::default()).unwrap())
}

/// Messages over `self` are delivered inside of the post.
#[test]
fn a_handler_passes_a_message_on_to_its_own_node() {
    let rules = rules(&["self", "shm"]);
    let mut sides = [Side::new(&rules), Side::new(&rules)];
    let own = link_to_itself(&mut sides[0].node);
    let [here, there] = &mut sides;
    let link = there.connect(here);
    until_connected(&mut sides, &[&own[0], &own[1], &link]);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let (headers, next) = (Rc::clone(&seen), own[0].clone());
    let handler = move |message: barewire::Message<'_>| {
        let (header, payload) = message.split_short().unwrap();
        headers.borrow_mut().push(header);
        // Twice, so that order is seen, and one hop further each time.
        if header < 100 {
            next.am_short(ID, 10 * header + 100, payload).unwrap();
            next.am_short(ID, 10 * header + 101, payload).unwrap();
        }
    };
    sides[0].node.set_handler(ID, handler).unwrap();
    for header in 1..=3 {
        let sent = link.am_short(ID, header, b"passed on");
        assert_eq!(sent, Ok(()));
    }
    until(&mut sides, "all of them", |_| seen.borrow().len() == 9);
    let mut seen = seen.take();
    let passed: Vec<_> = seen.iter().copied().filter(|header| *header >= 100).collect();
    assert_eq!(passed, [110, 111, 120, 121, 130, 131]);
    seen.retain(|header| *header < 100);
    assert_eq!(seen, [1, 2, 3]);
}

/// A handler that answers each message to itself does not keep a post or a progress from returning.
#[test]
fn a_handler_that_sends_to_itself_for_ever_lets_progress_return() {
    let rules = rules(&["self", "shm"]);
    let mut sides = [Side::new(&rules), Side::new(&rules)];
    let own = link_to_itself(&mut sides[0].node);
    let [here, there] = &mut sides;
    let link = there.connect(here);
    until_connected(&mut sides, &[&own[0], &own[1], &link]);
    let count = Rc::new(Cell::new(0_u64));
    let (calls, next) = (Rc::clone(&count), own[0].clone());
    let handler = move |_: barewire::Message<'_>| {
        calls.set(calls.get() + 1);
        next.am_short(ID, 0, b"again").unwrap();
    };
    sides[0].node.set_handler(ID, handler).unwrap();
    link.am_short(ID, 0, b"first").unwrap();
    until(&mut sides, "several turns", |_| count.get() > 50);
    let before = count.get();
    sides[0].node.progress();
    assert!(count.get() - before < 10, "{} in one progress", count.get() - before);
    // The messages that wait are those of the next handler.
    let later = Rc::new(Cell::new(0));
    let calls = Rc::clone(&later);
    sides[0].node.set_handler(ID, move |_| calls.set(calls.get() + 1)).unwrap();
    until(&mut sides, "the last one", |_| later.get() > 0);
}

/// Makes progress on the nodes until `done`, and counts the panics of the user's code in the first.
fn count_panics(sides: &mut [Side], mut done: impl FnMut() -> bool) -> usize {
    let (mut panics, begun) = (0, Instant::now());
    while !done() {
        assert!(begun.elapsed() < DEADLINE);
        let (first, others) = sides.split_first_mut().unwrap();
        panics += usize::from(catch_unwind(AssertUnwindSafe(|| first.node.progress())).is_err());
        for other in others {
            other.node.progress();
        }
    }
    panics
}

fn panic_of_the_user() {
    std::panic::resume_unwind(Box::new("of the user"));
}

#[test]
fn an_on_peer_handler_that_panics_gets_the_next_peers() {
    let mut sides: Vec<_> = (0..4).map(|_| Side::new(&rules(&["shm"]))).collect();
    let peers = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&peers);
    sides[0].node.on_peer(move |incoming| {
        seen.borrow_mut().push(incoming.link.peer());
        if seen.borrow().len() < 3 {
            panic_of_the_user();
        }
    });
    let (server, clients) = sides.split_first_mut().unwrap();
    let links: Vec<_> = clients.iter_mut().map(|client| client.connect(server)).collect();
    let panics = count_panics(&mut sides, || {
        peers.borrow().len() == 3 && links.iter().all(|link| link.state() == State::Connected)
    });
    assert_eq!(panics, 2);
    let mut seen = peers.take();
    let mut expected: Vec<_> = sides[1..].iter().map(|side| side.node.uuid()).collect();
    seen.sort_unstable();
    expected.sort_unstable();
    assert_eq!(seen, expected);
}

#[test]
fn a_handler_that_panics_gets_the_next_messages() {
    let mut sides = pair(&["shm"]);
    let [here, there] = &mut sides;
    let link = there.connect(here);
    until_connected(&mut sides, &[&link]);
    let seen = Rc::new(Cell::new(0));
    let count = Rc::clone(&seen);
    let handler = move |_: barewire::Message<'_>| {
        count.set(count.get() + 1);
        if count.get() % 2 == 1 {
            panic_of_the_user();
        }
    };
    sides[0].node.set_handler(ID, handler).unwrap();
    for _ in 0..6 {
        link.am_short(ID, 0, &[]).unwrap();
    }
    assert_eq!(count_panics(&mut sides, || seen.get() == 6), 3);
}

/// Of one link, and of others that are connected in the same progress.
#[test]
fn requests_behind_one_that_panics_run() {
    let mut sides = pair(&["shm"]);
    let [here, there] = &mut sides;
    let links: Vec<_> = (0..3).map(|_| here.connect(there)).collect();
    let ran = Rc::new(RefCell::new(Vec::new()));
    for (number, link) in links.iter().enumerate() {
        for request in 0..4 {
            let ran = Rc::clone(&ran);
            let run = move |_: &Link| {
                if (number, request) == (0, 1) {
                    panic_of_the_user();
                }
                ran.borrow_mut().push((number, request));
                PendingResult::Done
            };
            link.pending_add(Kind::Messages, run).unwrap();
        }
    }
    let panics = count_panics(&mut sides, || ran.borrow().len() == 11);
    assert_eq!(panics, 1);
    for number in 0..3 {
        let of_link: Vec<_> =
            ran.borrow().iter().filter(|run| run.0 == number).map(|run| run.1).collect();
        let expected: &[_] = if number == 0 { &[0, 2, 3] } else { &[0, 1, 2, 3] };
        assert_eq!(of_link, expected);
    }
}
