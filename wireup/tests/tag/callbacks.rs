//! Wakers of tagged requests: they send, they panic, and they are dropped.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, RawWaker, RawWakerVTable, Waker};
use std::time::Instant;

use barewire_wireup::link::{Options, State};
use barewire_wireup::node::{Node, Rules};
use barewire_wireup::tag::{Buffer, FULL_MASK, Mode, Request, TagLink, Tags};

use crate::support::{DEADLINE, End, LANES, bytes, ends, result, until};

type Run = dyn Fn(&'static str);

thread_local! {
    /// What wakers of this thread run, with what is done to them.
    static RUN: RefCell<Option<Rc<Run>>> = const { RefCell::new(None) };
}

fn run(what: &'static str) {
    let run = RUN.with(|run| run.borrow().clone());
    if let Some(run) = run {
        run(what);
    }
}

/// A waker of whose vtable each function is the user's code.
fn waker() -> Waker {
    const TABLE: RawWakerVTable = RawWakerVTable::new(
        |data| {
            run("clone");
            RawWaker::new(data, &TABLE)
        },
        |_| run("wake"),
        |_| run("wake"),
        |_| run("drop"),
    );
    // SAFETY: the functions of the table ignore the data, and every pointer is valid for that.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &TABLE)) }
}

fn on_waker(what: impl Fn(&'static str) + 'static) {
    RUN.with(|run| *run.borrow_mut() = Some(Rc::new(what)));
}

fn no_wakers() {
    let before = RUN.with(|run| run.borrow_mut().take());
    drop(before);
}

fn poll(request: &mut Request) {
    let waker = waker();
    let _ = Pin::new(request).poll(&mut Context::from_waker(&waker));
}

/// A long message arrives over the link in both directions.
fn check(ends: &mut [End; 2]) {
    for at in [0, 1] {
        let source = Buffer::from_bytes(&bytes(3, 1 << 20)).expect("memory");
        let target = Buffer::new(1 << 20).expect("memory");
        let receive = ends[1 - at].tags.receive(99, FULL_MASK, &target);
        let send = ends[at].tags.send(&ends[at].link, 99, &source, Mode::Auto);
        assert!(result(ends, &receive).is_ok() && result(ends, &send).is_ok());
        assert_eq!(target.to_vec(), source.to_vec());
    }
}

#[test]
fn a_waker_that_sends_takes_its_turn() {
    for (messages, bulk) in LANES {
        let mut ends = ends(messages, bulk);
        let sent = Rc::new(RefCell::new(Vec::new()));
        let (tags, link, requests) = (ends[1].tags.clone(), ends[1].link.clone(), Rc::clone(&sent));
        on_waker(move |what| {
            if what == "wake" && requests.borrow().len() < 4 {
                for length in [10, 100_000] {
                    let request = tags.send(&link, 77, &bytes(1, length)[..], Mode::Auto);
                    requests.borrow_mut().push(request);
                }
            }
        });
        let buffer = Buffer::new(64).expect("memory");
        for _ in 0..2 {
            let mut receive = ends[1].tags.receive(1, FULL_MASK, &buffer);
            poll(&mut receive);
            let send = ends[0].tags.send(&ends[0].link, 1, b"hello", Mode::Auto);
            assert!(result(&mut ends, &receive).is_ok() && result(&mut ends, &send).is_ok());
        }
        no_wakers();
        let target = Buffer::new(100_000).expect("memory");
        for length in [10, 100_000, 10, 100_000] {
            let receive = ends[0].tags.receive(77, FULL_MASK, &target);
            assert_eq!(result(&mut ends, &receive).map(|got| got.length), Ok(length));
        }
        let sent = sent.take();
        until(&mut ends, "the sends", |_| sent.iter().all(|send| send.poll().is_some()));
        check(&mut ends);
    }
}

#[test]
fn a_waker_that_panics_stops_no_other_request() {
    for (messages, bulk) in LANES {
        let mut ends = ends(messages, bulk);
        let woken = Rc::new(Cell::new(0));
        let count = Rc::clone(&woken);
        on_waker(move |what| {
            if what == "wake" {
                count.set(count.get() + 1);
                std::panic::resume_unwind(Box::new("of the user"));
            }
        });
        let buffer = Buffer::new(64).expect("memory");
        let mut receives: Vec<_> =
            (0..3).map(|_| ends[1].tags.receive(1, FULL_MASK, &buffer)).collect();
        receives.iter_mut().for_each(poll);
        let mut panics = 0;
        let caught = |panics: &mut i32, run: &mut dyn FnMut()| {
            *panics += i32::from(catch_unwind(AssertUnwindSafe(run)).is_err());
        };
        for _ in 0..3 {
            let link = ends[0].link.clone();
            let tags = ends[0].tags.clone();
            caught(&mut panics, &mut || drop(tags.send(&link, 1, b"hello", Mode::Auto)));
        }
        let begun = Instant::now();
        while woken.get() < 3 || receives.iter().any(|receive| receive.poll().is_none()) {
            assert!(begun.elapsed() < DEADLINE, "{messages}: {} of 3", woken.get());
            for end in &mut ends {
                caught(&mut panics, &mut || {
                    let _ = end.worker.progress();
                });
            }
            // A panic in the middle leaves the others to the next call.
            let tags = ends[1].tags.clone();
            caught(&mut panics, &mut || tags.check());
        }
        assert_eq!(panics, 3, "{messages}");
        no_wakers();
        check(&mut ends);
    }
}

/// Clones and drops of wakers are the user's code as well.
#[test]
fn a_waker_uses_the_tags_when_it_is_cloned_and_dropped() {
    for (messages, bulk) in LANES {
        let mut ends = ends(messages, bulk);
        let calls = Rc::new(RefCell::new(Vec::new()));
        let (tags, link, seen) = (ends[1].tags.clone(), ends[1].link.clone(), Rc::clone(&calls));
        on_waker(move |what| {
            seen.borrow_mut().push(what);
            let _ = tags.peek(1, FULL_MASK);
            drop(tags.send(&link, 55, b"x", Mode::Auto));
        });
        let buffer = Buffer::new(64).expect("memory");
        let mut receive = ends[1].tags.receive(1, FULL_MASK, &buffer);
        poll(&mut receive);
        poll(&mut receive);
        // Dropped with its waker.
        let mut other = ends[1].tags.receive(2, FULL_MASK, &buffer);
        poll(&mut other);
        drop(other);
        let send = ends[0].tags.send(&ends[0].link, 1, b"hello", Mode::Auto);
        assert!(result(&mut ends, &receive).is_ok() && result(&mut ends, &send).is_ok());
        for what in ["clone", "wake", "drop"] {
            assert!(calls.borrow().contains(&what), "{messages}: {what}");
        }
        no_wakers();
        check(&mut ends);
    }
}

/// The messages of a link to itself are delivered inside of the post, also while a message of
/// another transport is being delivered.
#[test]
fn a_waker_sends_over_the_link_of_its_node_to_itself() {
    let rules = Rules::default().only(["self", "shm"]).deadline(DEADLINE);
    let mut nodes = [Node::open(&rules).unwrap(), Node::open(&rules).unwrap()];
    let tags: Vec<Tags> = nodes
        .iter_mut()
        .map(|node| Tags::over(node, barewire_wireup::tag::Limits::default()).unwrap())
        .collect();
    let own = nodes[0].address();
    let [even, odd] = [(); 2].map(|()| nodes[0].connect(&own, Options::default()).unwrap());
    let there = nodes[1].address();
    let here = nodes[0].connect(&there, Options::default()).unwrap();
    let back = nodes[1].connect(&own, Options::default()).unwrap();
    let progress = |nodes: &mut [Node; 2]| {
        for (node, tags) in nodes.iter_mut().zip(&tags) {
            tags.progress(node);
        }
    };
    let begun = Instant::now();
    let links = [&even, &odd, &here, &back];
    while links.iter().any(|link| link.state() != State::Connected) {
        assert!(begun.elapsed() < DEADLINE);
        progress(&mut nodes);
    }
    let even: TagLink = tags[0].link(&even).unwrap();
    let _odd = tags[0].link(&odd).unwrap();
    let _here = tags[0].link(&here).unwrap();
    let back = tags[1].link(&back).unwrap();
    let (node_tags, count) = (tags[0].clone(), Rc::new(Cell::new(0)));
    let calls = Rc::clone(&count);
    on_waker(move |what| {
        if what == "wake" {
            calls.set(calls.get() + 1);
            drop(node_tags.send(&even, 5, b"to itself", Mode::Auto));
        }
    });
    let buffer = Buffer::new(64).unwrap();
    let mut receive = tags[0].receive(1, FULL_MASK, &buffer);
    poll(&mut receive);
    let send = tags[1].send(&back, 1, b"hello", Mode::Auto);
    let own = tags[0].receive(5, FULL_MASK, &buffer);
    let requests = [&receive, &send, &own];
    while requests.iter().any(|request| request.poll().is_none()) {
        assert!(begun.elapsed() < DEADLINE, "{requests:?}");
        progress(&mut nodes);
    }
    no_wakers();
    assert_eq!(count.get(), 1);
    assert!(requests.iter().all(|request| request.poll().unwrap().is_ok()), "{requests:?}");
}
