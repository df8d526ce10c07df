//! Tags over the links of nodes.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::config::Choice;
use barewire_tcp::Key;
use barewire_wireup::link::{CloseMode, Link, Options, State};
use barewire_wireup::node::{Node, Rules};
use barewire_wireup::tag::{Buffer, FULL_MASK, Limits, Mode, Request, TagError, Tags};

use crate::support::bytes;

/// Generous: the machine may be busy.
const DEADLINE: Duration = Duration::from_mins(1);
/// Devices match tags where they can.
pub(crate) const TAGGED: &str = "tagged";
const SETS: [&[&str]; 5] = [
    &["shm"],
    &["shm", "cma"],
    &["tcp/lo"],
    &["soft0:1", "tcp/lo"],
    &["rc_mlx5/soft0:1", "tcp/lo", TAGGED],
];
const LENGTHS: [usize; 5] = [0, 8, 5000, 100_000, 2_000_000];

pub(crate) struct Side {
    pub(crate) node: Node,
    pub(crate) tags: Tags,
    pub(crate) incoming: Rc<RefCell<Vec<Link>>>,
}

impl Side {
    pub(crate) fn new(names: &[&str]) -> Self {
        let matches = if names.contains(&TAGGED) { Choice::Auto } else { Choice::No };
        let names = names.iter().copied().filter(|name| *name != TAGGED);
        let mut rules =
            Rules::default().only(names).key(Key::from_bytes([7; 32])).deadline(DEADLINE);
        rules.config = rules.config.tag_matching(matches);
        let mut node = Node::open(&rules).expect("a node");
        let tags = Tags::over(&mut node, Limits::default()).expect("tags");
        let incoming: Rc<RefCell<Vec<Link>>> = Rc::default();
        let links = Rc::clone(&incoming);
        node.on_peer(move |peer| links.borrow_mut().push(peer.link));
        Self { node, tags, incoming }
    }

    pub(crate) fn connect(&mut self, other: &Self) -> Link {
        self.node.connect(&other.node.address(), Options::default()).expect("a link")
    }

    /// The link that a peer has made.
    pub(crate) fn next_link(&self) -> Option<Link> {
        self.incoming.borrow_mut().pop()
    }
}

fn until(sides: &mut [Side; 2], what: &str, mut done: impl FnMut(&[Side; 2]) -> bool) {
    let start = Instant::now();
    while !done(sides) {
        for side in &mut *sides {
            side.tags.progress(&mut side.node);
        }
        assert!(start.elapsed() < DEADLINE, "{what}: {:?} {:?}", sides[0].tags, sides[1].tags);
    }
}

fn finish(sides: &mut [Side; 2], requests: &[Request]) {
    until(sides, "the requests", |_| requests.iter().all(|request| request.poll().is_some()));
    for request in requests {
        assert!(request.poll().is_some_and(|result| result.is_ok()), "{request:?}");
    }
}

#[test]
fn requests_made_before_the_link_is_connected_are_done_after_it() {
    for names in SETS {
        let mut sides = [Side::new(names), Side::new(names)];
        let (here, there) = {
            let [here, there] = &mut sides;
            (here.connect(there), there.connect(here))
        };
        let mut requests = Vec::new();
        let mut targets = Vec::new();
        for round in 0..2 {
            for (side, link) in sides.iter().zip([&here, &there]) {
                if round == 0 {
                    let tag_link = side.tags.link(link).expect("a link");
                    for (tag, length) in LENGTHS.into_iter().enumerate() {
                        let data = &bytes(tag, length)[..];
                        requests.push(side.tags.send(&tag_link, tag as u64, data, Mode::Auto));
                    }
                } else {
                    for (tag, length) in LENGTHS.into_iter().enumerate() {
                        let target = Buffer::new(length).expect("memory");
                        requests.push(side.tags.receive(tag as u64, FULL_MASK, &target));
                        targets.push((tag, target));
                    }
                }
            }
        }
        finish(&mut sides, &requests);
        for (tag, target) in targets {
            assert!(target.to_vec() == bytes(tag, target.len()), "{names:?} {tag}");
        }
    }
}

/// A cancelled send takes the peer's right to read its buffer, which can be used again at once.
#[test]
fn buffers_of_a_node_serve_many_messages() {
    for names in SETS {
        let mut sides = [Side::new(names), Side::new(names)];
        let link = {
            let [here, there] = &mut sides;
            here.connect(there)
        };
        let ours = sides[0].tags.link(&link).expect("a link");
        until(&mut sides, "the link", |sides| !sides[1].incoming.borrow().is_empty());
        let incoming = sides[1].incoming.borrow_mut().remove(0);
        let _theirs = sides[1].tags.link(&incoming).expect("a link");
        for length in LENGTHS {
            let [source, target] =
                [0, 1].map(|side: usize| sides[side].tags.buffer(length).expect("memory"));
            for round in 0..3 {
                source.write(0, &bytes(round, length)).expect("inside");
                let cancelled = sides[0].tags.send(&ours, 8, &source, Mode::Synchronous);
                if cancelled.cancel() {
                    until(&mut sides, "the end", |_| cancelled.poll().is_some());
                } else {
                    // It has left.
                    let receive = sides[1].tags.receive(8, FULL_MASK, &target);
                    finish(&mut sides, &[receive, cancelled]);
                }
                let receive = sides[1].tags.receive(9, FULL_MASK, &target);
                let send = sides[0].tags.send(&ours, 9, &source, Mode::Auto);
                finish(&mut sides, &[receive, send]);
                assert!(target.to_vec() == bytes(round, length), "{names:?}: {length} bytes");
            }
        }
        assert_eq!(ours.opening().tagged, names.contains(&TAGGED), "{names:?}");
        let target = sides[1].tags.buffer(10_000).expect("memory");
        let begun = Instant::now();
        while ours.opening().tagged && sides[1].tags.counters().matched == 0 {
            assert!(begun.elapsed() < DEADLINE, "the device matches nothing");
            let receive = sides[1].tags.receive(9, FULL_MASK, &target);
            // It takes some time to take the receive into its list.
            let posted = Instant::now();
            until(&mut sides, "a while", |_| posted.elapsed() > Duration::from_millis(5));
            let send = sides[0].tags.send(&ours, 9, b"matched", Mode::Auto);
            finish(&mut sides, &[receive, send]);
        }
    }
}

#[test]
fn a_peer_that_is_informed_of_the_link_replies_over_it() {
    for names in SETS {
        let mut sides = [Side::new(names), Side::new(names)];
        let link = {
            let [here, there] = &mut sides;
            here.connect(there)
        };
        let ours = sides[0].tags.link(&link).expect("a link");
        let first = sides[0].tags.send(&ours, 1, b"who is there", Mode::Synchronous);
        until(&mut sides, "the link", |sides| !sides[1].incoming.borrow().is_empty());
        let incoming = sides[1].incoming.borrow_mut().remove(0);
        let theirs = sides[1].tags.link(&incoming).expect("a link");
        let (question, answer) =
            (Buffer::new(20).expect("memory"), Buffer::new(20).expect("memory"));
        let requests = [
            first,
            sides[1].tags.receive(1, FULL_MASK, &question),
            sides[1].tags.send(&theirs, 2, b"me", Mode::Auto),
            sides[0].tags.receive(2, FULL_MASK, &answer),
        ];
        finish(&mut sides, &requests);
        assert_eq!(
            (&question.to_vec()[..12], &answer.to_vec()[..2]),
            (&b"who is there"[..], &b"me"[..])
        );
    }
}

#[test]
fn closing_a_link_ends_the_requests_of_both_sides() {
    for names in SETS {
        let mut sides = [Side::new(names), Side::new(names)];
        let links = {
            let [here, there] = &mut sides;
            [here.connect(there), there.connect(here)]
        };
        let pending = [0, 1].map(|at: usize| {
            let tag_link = sides[at].tags.link(&links[at]).expect("a link");
            sides[at].tags.send(&tag_link, 1, &bytes(1, 50_000)[..], Mode::Synchronous)
        });
        until(&mut sides, "connected", |sides| {
            links.iter().all(|link| link.state() == State::Connected)
                && sides.iter().all(|side| side.tags.counters().announced == 1)
        });
        links[0].close(CloseMode::Cancel);
        until(&mut sides, "the results", |_| {
            pending.iter().all(|request| request.poll().is_some())
        });
        for request in &pending {
            let result = request.poll();
            assert!(
                matches!(result, Some(Err(TagError::Closed | TagError::LinkFailed(_)))),
                "{names:?} {result:?}"
            );
        }
        assert!(sides.iter().all(|side| side.tags.counters().announced == 0));
    }
}

#[test]
fn a_sleeping_side_learns_of_the_end_of_its_peer() {
    for with_tags in [false, true] {
        let mut sides = [Side::new(&["shm"]), Side::new(&["shm"])];
        let [here, there] = &mut sides;
        let (link, peer) = (here.connect(there), there.connect(here));
        let tag_link = here.tags.link(&link).expect("a link");
        let peer_link = there.tags.link(&peer).expect("a link");
        let (tags, buffer) = (here.tags.clone(), Buffer::new(8).expect("memory"));
        let (received, never) =
            (tags.receive(1, FULL_MASK, &buffer), tags.receive(2, FULL_MASK, &buffer));
        let sent = there.tags.send(&peer_link, 1, b"last", Mode::Auto);
        until(&mut sides, "a message", |_| received.poll().is_some() && sent.poll().is_some());
        let unread = tags.send(&tag_link, 3, b"unread", Mode::Synchronous);
        assert_eq!(tags.failure(&tag_link), None);
        let [mut here, there] = sides;
        drop(there);
        let start = Instant::now();
        while tags.failure(&tag_link).is_none() {
            let timeout = Some(Duration::from_millis(100));
            let events = if with_tags {
                tags.wait(&mut here.node, timeout)
            } else {
                here.node.wait(timeout)
            };
            events.expect("a sleep");
            assert!(start.elapsed() < DEADLINE, "{:?}", link.error());
        }
        assert!(matches!(tags.failure(&tag_link), Some(TagError::LinkFailed(_))));
        // No sleep without an end, although the node has no event any more.
        if unread.poll().is_none() {
            assert!(tags.wait(&mut here.node, Some(DEADLINE)).expect("no sleep") > 0);
        }
        assert!(matches!(unread.poll(), Some(Err(TagError::LinkFailed(_)))), "{unread:?}");
        assert!(never.poll().is_none(), "any link may match it");
    }
}
