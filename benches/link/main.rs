//! Instructions of a post on a link, and on the endpoint of its lane, over `shm`.
//!
//! Only the functions of the module `counted` are counted. The limits are in `benches/budget/`.

#![allow(missing_docs, reason = "the macros of iai-callgrind write public items")]

#[path = "../budget/mod.rs"]
#[allow(dead_code, reason = "the rest is for the table that xtask writes")]
mod budget;
#[path = "../budget/gate.rs"]
#[allow(dead_code, reason = "as above")]
mod gate;

use std::cell::Cell;
use std::collections::VecDeque;
use std::hint::black_box;
use std::rc::Rc;

use barewire::{Access, RemoteKey};
use barewire_wireup::link::{Link, Options};
use barewire_wireup::tag::{Buffer, FULL_MASK, Limits, Mode, Request, TagLink, Tags};
use barewire_wireup::{Kind, Node, Rules, State};
use budget::{Level, ROUNDS, Shape};
use iai_callgrind::{LibraryBenchmarkConfig, library_benchmark, library_benchmark_group};

/// Messages between two turns of the peer.
const TURN: u64 = 32;
const ID: u8 = 1;

/// Two nodes and their link. They are leaked, so that a bench moves a reference and drops nothing.
struct Sides {
    here: Node,
    there: Node,
    link: Link,
    remote: u64,
    key: RemoteKey,
    received: Rc<Cell<u64>>,
}

fn connected() -> &'static mut Sides {
    let rules = Rules::default().only(["shm"]);
    let open = || Node::open(&rules).expect("node");
    let (mut here, mut there) = (open(), open());
    let received: Rc<Cell<u64>> = Rc::default();
    let count = Rc::clone(&received);
    there.set_handler(ID, move |_| count.set(count.get() + 1)).expect("handler");
    let back = there.connect(&here.address(), Options::default()).expect("planned");
    let link = here.connect(&there.address(), Options::default()).expect("planned");
    while [&link, &back].iter().any(|link| link.state() != State::Connected) {
        here.progress();
        there.progress();
    }
    let [near, far] = [&link, &back].map(|link| link.domain(Kind::Memory).expect("a memory lane"));
    let memory = Box::leak(Box::new(far.allocate(4096, Access::all()).expect("memory")));
    let key = near.unpack_key(&memory.pack_key()).expect("key");
    let mut sides = Sides { here, there, link, remote: memory.address(), key, received };
    // Until messages use a ring of their own, and the region is mapped.
    for round in 0..4 * TURN {
        while sides.link.am_short(ID, round, &[0; 8]).is_err() {
            sides.drain();
        }
    }
    while sides.link.put_short(&[0; 8], sides.remote, &sides.key).is_err() {
        sides.drain();
    }
    sides.drain();
    sides.received.set(0);
    Box::leak(Box::new(sides))
}

impl Sides {
    fn drain(&mut self) {
        // More rounds than polling stays with one ring.
        for _ in 0..1200 {
            self.there.progress();
            self.here.progress();
        }
    }

    /// Posts every message, with turns of the peer.
    fn post(&mut self, post: impl Fn(&Link, u8, u64) -> bool) {
        let id = black_box(ID);
        for round in 0..ROUNDS {
            if round % TURN == 0 {
                self.drain();
            }
            assert!(post(&self.link, id, round));
        }
    }
}

/// Asserts that every message arrived.
fn delivered(sides: &'static mut Sides) -> &'static mut Sides {
    sides.drain();
    assert_eq!(sides.received.get(), ROUNDS);
    sides
}

/// Two nodes with tagged messages.
struct Tagged {
    nodes: [Node; 2],
    tags: [Tags; 2],
    link: TagLink,
    buffer: Buffer,
}

fn tagged() -> &'static mut Tagged {
    let rules = Rules::default().only(["shm"]);
    let mut nodes = [(); 2].map(|()| Node::open(&rules).expect("node"));
    let tags = nodes.each_mut().map(|node| Tags::over(node, Limits::default()).expect("tags"));
    let [here, there] = &mut nodes;
    let back = there.connect(&here.address(), Options::default()).expect("planned");
    let link = here.connect(&there.address(), Options::default()).expect("planned");
    let link = tags[0].link(&link).expect("room");
    let _back = tags[1].link(&back).expect("room");
    let buffer = Buffer::new(8).expect("memory");
    let mut sides = Tagged { nodes, tags, link, buffer };
    // Until messages use a ring of their own.
    for _ in 0..4 * TURN {
        let receive = sides.tags[1].receive(0, FULL_MASK, &sides.buffer);
        let send = sides.tags[0].send(&sides.link, 0, &[0; 8], Mode::Auto);
        while receive.poll().is_none() || send.poll().is_none() {
            sides.progress();
        }
    }
    for _ in 0..1200 {
        sides.progress();
    }
    Box::leak(Box::new(sides))
}

impl Tagged {
    fn progress(&mut self) {
        for (node, tags) in self.nodes.iter_mut().zip(&self.tags) {
            tags.progress(node);
        }
    }
}

/// The counted functions, with call and return, and without the loop around them.
mod counted {
    use barewire::{Endpoint, RemoteKey};
    use barewire_wireup::Node;

    use super::{Buffer, FULL_MASK, Link, Mode, Request, TagLink, Tags};

    #[inline(never)]
    pub(super) fn tag_send(tags: &Tags, link: &TagLink, tag: u64, data: u64) -> Request {
        tags.send(link, tag, &data.to_ne_bytes(), Mode::Auto)
    }

    #[inline(never)]
    pub(super) fn tag_receive(tags: &Tags, tag: u64, buffer: &Buffer) -> Request {
        tags.receive(tag, FULL_MASK, buffer)
    }

    #[inline(never)]
    pub(super) fn tag_progress(tags: &Tags, node: &mut Node) -> usize {
        tags.progress(node)
    }

    #[inline(never)]
    pub(super) fn tag_finish(request: Request) -> bool {
        let received = matches!(request.poll(), Some(Ok(_)));
        drop(request);
        received
    }

    #[inline(never)]
    pub(super) fn endpoint_am_short(endpoint: &Endpoint, id: u8, header: u64) -> bool {
        endpoint.am_short(id, header, &header.to_ne_bytes()).is_ok()
    }

    #[inline(never)]
    pub(super) fn link_am_short(link: &Link, id: u8, header: u64) -> bool {
        link.am_short(id, header, &header.to_ne_bytes()).is_ok()
    }

    #[inline(never)]
    pub(super) fn endpoint_put_short(
        endpoint: &Endpoint,
        payload: u64,
        remote: u64,
        key: &RemoteKey,
    ) -> bool {
        endpoint.put_short(&payload.to_ne_bytes(), remote, key).is_ok()
    }

    #[inline(never)]
    pub(super) fn link_put_short(link: &Link, payload: u64, remote: u64, key: &RemoteKey) -> bool {
        link.put_short(&payload.to_ne_bytes(), remote, key).is_ok()
    }
}

fn gate(bench: &str) -> LibraryBenchmarkConfig {
    gate::gate_counted(Level::Link, Shape::Held, bench)
}

#[library_benchmark(config = gate("endpoint_am_short"))]
#[bench::run(args = (connected()), teardown = delivered)]
fn endpoint_am_short(sides: &'static mut Sides) -> &'static mut Sides {
    let endpoint = sides.link.lane(Kind::Messages).expect("connected").clone();
    sides.post(|_, id, round| counted::endpoint_am_short(&endpoint, id, round));
    sides
}

#[library_benchmark(config = gate("link_am_short"))]
#[bench::run(args = (connected()), teardown = delivered)]
fn link_am_short(sides: &'static mut Sides) -> &'static mut Sides {
    sides.post(counted::link_am_short);
    sides
}

#[library_benchmark(config = gate("endpoint_put_short"))]
#[bench::run(args = (connected()))]
fn endpoint_put_short(sides: &'static mut Sides) -> &'static mut Sides {
    let endpoint = sides.link.lane(Kind::Memory).expect("connected");
    for round in 0..ROUNDS {
        assert!(counted::endpoint_put_short(endpoint, round, sides.remote, &sides.key));
    }
    sides
}

#[library_benchmark(config = gate("link_put_short"))]
#[bench::run(args = (connected()))]
fn link_put_short(sides: &'static mut Sides) -> &'static mut Sides {
    for round in 0..ROUNDS {
        assert!(counted::link_put_short(&sides.link, round, sides.remote, &sides.key));
    }
    sides
}

/// Sends every message after its receive was posted.
fn exchange(tagged: &mut Tagged) {
    let mut requests = VecDeque::new();
    for round in 0..ROUNDS {
        let Tagged { tags: [here, there], link, buffer, .. } = &*tagged;
        requests.push_back(counted::tag_receive(there, round, buffer));
        assert!(counted::tag_send(here, link, round, round).poll().is_some());
        if round % TURN == TURN - 1 {
            let Tagged { tags: [here, there], nodes: [near, far], .. } = &mut *tagged;
            while requests.back().is_some_and(|last: &Request| last.poll().is_none()) {
                counted::tag_progress(there, far);
            }
            here.progress(near);
            assert!(requests.drain(..).all(counted::tag_finish));
        }
    }
}

fn tag_gate(bench: &str) -> LibraryBenchmarkConfig {
    gate::gate_of(Level::Link, Shape::Held, bench, &format!("*::counted::{bench}"))
}

#[library_benchmark(config = tag_gate("tag_send"))]
#[bench::run(args = (tagged()))]
fn tag_send(tagged: &'static mut Tagged) -> &'static mut Tagged {
    exchange(tagged);
    tagged
}

#[library_benchmark(config = tag_gate("tag_receive"))]
#[bench::run(args = (tagged()))]
fn tag_receive(tagged: &'static mut Tagged) -> &'static mut Tagged {
    exchange(tagged);
    tagged
}

#[library_benchmark(config = tag_gate("tag_progress"))]
#[bench::run(args = (tagged()))]
fn tag_progress(tagged: &'static mut Tagged) -> &'static mut Tagged {
    exchange(tagged);
    tagged
}

#[library_benchmark(config = tag_gate("tag_finish"))]
#[bench::run(args = (tagged()))]
fn tag_finish(tagged: &'static mut Tagged) -> &'static mut Tagged {
    exchange(tagged);
    tagged
}

library_benchmark_group!(
    name = held;
    benchmarks =
        endpoint_am_short, link_am_short, endpoint_put_short, link_put_short,
        tag_send, tag_receive, tag_progress, tag_finish
);

iai_callgrind::main!(library_benchmark_groups = held);
