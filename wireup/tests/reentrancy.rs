//! Calls of nodes, links, tags and listeners inside of the user's code that these call: whatever a
//! callback does, nothing panics but the callback itself, and what it did not end goes on.
//!
//! Each context runs in a separate process, and each combination of a context and an action uses new
//! nodes.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::process::Command;
use std::rc::Rc;
use std::task::{Context as TaskContext, RawWaker, RawWakerVTable, Waker};
use std::time::{Duration, Instant};

use barewire::{Access, Completion, FlushMode, PendingResult};
use barewire_tcp::Key;
use barewire_wireup::link::{Link, LinkMemory, LinkRegion, Options, State};
use barewire_wireup::node::{Dial, Listener, Node, Request, Rules};
use barewire_wireup::tag::{self, Buffer, FULL_MASK, Limits, Mode, TagLink, Tags};
use barewire_wireup::{CloseMode, Kind};

/// Longer than a loaded machine needs for a cell.
const DEADLINE: Duration = Duration::from_secs(100);
/// The variable that names the context of a child process.
const CHILD: &str = "BAREWIRE_TEST_CONTEXT";
/// The variable that limits the actions to those with this text, to examine one.
const ACTION: &str = "BAREWIRE_TEST_ACTION";
const EXPECTED: &str = "the user's own panic";
/// Messages for the context, and messages that show that a link works.
const ID: u8 = 3;
const WITNESS: u8 = 4;

/// Ignores the result: errors are acceptable.
fn ignore<T>(_result: T) {}

/// What a callback has access to. Nothing is borrowed while it is called.
struct World {
    node: RefCell<Option<Node>>,
    tags: RefCell<Option<Tags>>,
    /// The link to the other node, and the two ends of the node's link to itself.
    links: RefCell<Vec<Link>>,
    tag_links: RefCell<Vec<TagLink>>,
    requests: RefCell<Vec<tag::Request>>,
    listener: RefCell<Option<Listener>>,
    clients: RefCell<Vec<Request>>,
    dial: RefCell<Option<Dial>>,
    memory: RefCell<Option<(LinkMemory, LinkRegion)>>,
    action: Cell<Option<Action>>,
    runs: Cell<u32>,
}

type Action = (&'static str, fn(&World));

const ACTIONS: &[Action] = &[
    ("nothing", |_| ()),
    ("am_short", |w| w.with(|link| ignore(link.am_short(ID, 0, b"12345678")))),
    ("am_bcopy", |w| w.with(|link| ignore(link.am_bcopy(ID, fill)))),
    ("am_short to itself", |w| w.with_own(|link| ignore(link.am_short(ID, 0, b"12345678")))),
    ("am_bcopy to itself", |w| w.with_own(|link| ignore(link.am_bcopy(ID, fill)))),
    ("flush", |w| w.with(|link| ignore(link.flush(FlushMode::Remote, None)))),
    ("flush with completion", |w| {
        w.with(|link| ignore(link.flush(FlushMode::Local, Some(&Completion::counter()))));
    }),
    ("flush of the own link", |w| w.with_own(|link| ignore(link.flush(FlushMode::Remote, None)))),
    ("fence", |w| w.with(|link| ignore(link.fence()))),
    ("look at the link", |w| {
        w.with(|link| {
            ignore((link.state(), link.error(), link.peer(), link.id(), link.counters()));
            ignore((link.lanes().len(), link.rails(1000).len(), link.domain(Kind::Memory)));
        });
    }),
    ("pending_add", |w| {
        w.with(|link| ignore(link.pending_add(Kind::Messages, |_| PendingResult::Done)));
    }),
    ("pending_add to itself", |w| {
        w.with_own(|link| ignore(link.pending_add(Kind::Messages, |_| PendingResult::Done)));
    }),
    ("close", |w| w.with(|link| link.close(CloseMode::Flush))),
    ("cancel", |w| w.with(|link| link.close(CloseMode::Cancel))),
    ("close the own link", |w| w.with_own(|link| link.close(CloseMode::Flush))),
    ("cancel the own link", |w| w.with_own(|link| link.close(CloseMode::Cancel))),
    ("drop the links", |w| drop(w.links.take())),
    ("allocate", |w| w.with(|link| ignore(link.allocate(8192, Access::all())))),
    ("put", |w| {
        let memory = w.memory.borrow().clone();
        w.with(|link| {
            if let Some((local, remote)) = &memory {
                let done = Completion::counter();
                ignore(link.put_zcopy(local, 0..4096, remote, 0, Some(&done)));
            }
        });
    }),
    ("get", |w| {
        let memory = w.memory.borrow().clone();
        w.with(|link| {
            if let Some((local, remote)) = &memory {
                ignore(link.get_zcopy(local, 0..4096, remote, 0, None));
            }
        });
    }),
    ("drop the memory", |w| drop(w.memory.take())),
    ("send", |w| w.send(0, 8, Mode::Auto)),
    ("send a long one", |w| w.send(0, 100_000, Mode::Auto)),
    ("send synchronously", |w| w.send(0, 8, Mode::Synchronous)),
    ("send to itself", |w| w.send(1, 8, Mode::Auto)),
    ("send a long one to itself", |w| w.send(1, 100_000, Mode::Auto)),
    ("receive", |w| {
        w.with_tags(|tags| {
            let buffer = Buffer::new(100).unwrap();
            w.keep(tags.receive(5, FULL_MASK, &buffer));
            w.keep(tags.receive(0, 0, &buffer));
        });
    }),
    ("cancel a request", |w| {
        let request = w.requests.borrow_mut().pop();
        ignore(request.map(|request| request.cancel()));
    }),
    ("drop the requests", |w| drop(w.requests.take())),
    ("probe and receive", |w| {
        w.with_tags(|tags| {
            if let Some(found) = tags.probe(0, 0) {
                w.keep(found.receive(&Buffer::new(200_000).unwrap()));
            }
        });
    }),
    ("probe and drop", |w| w.with_tags(|tags| drop(tags.probe(0, 0)))),
    ("look at the tags", |w| {
        w.with_tags(|tags| {
            ignore((tags.peek(1, 0), tags.counters()));
            tags.check();
            w.with_tag_link(0, |link| ignore((tags.failure(link), link.opening(), link.key())));
        });
    }),
    ("close the tag link", |w| {
        w.with_tags(|tags| w.with_tag_link(0, |link| tags.close(link)));
    }),
    ("close the own tag link", |w| {
        w.with_tags(|tags| w.with_tag_link(1, |link| tags.close(link)));
    }),
    ("another tag link", |w| {
        w.with_tags(|tags| w.with(|link| w.tag_links.borrow_mut().extend(tags.link(link))));
    }),
    ("drop the tag links", |w| drop(w.tag_links.take())),
    ("drop the tags", |w| drop(w.tags.take())),
    ("accept a client", |w| {
        if let Some(client) = w.client() {
            w.links.borrow_mut().extend(client.accept(Options::default()));
        }
    }),
    ("reject a client", |w| {
        if let Some(client) = w.client() {
            client.reject("no");
        }
    }),
    ("drop a client", |w| drop(w.client())),
    ("drop the listener", |w| drop(w.listener.take())),
    ("drop the call", |w| drop(w.dial.take())),
    // Not in progress of the node: the borrow checker prevents that in programs without a cell.
    ("progress of the node", |w| w.with_node(|node| ignore(node.progress()))),
    ("a link of the node", |w| {
        w.with_node(|node| {
            let address = node.address();
            ignore(node.connect(&address, Options::default()));
        });
    }),
    ("handlers of the node", |w| {
        w.with_node(|node| {
            ignore(node.set_handler(ID, |_| ()));
            node.on_peer(|_| ());
        });
    }),
    ("drop the node", |w| {
        let node = w.node.try_borrow_mut().ok().and_then(|mut node| node.take());
        drop(node);
    }),
    ("panic", |_| resume_unwind(Box::new(EXPECTED))),
];

fn fill(room: &mut [u8]) -> usize {
    room[..100].fill(2);
    100
}

impl World {
    fn with(&self, run: impl FnOnce(&Link)) {
        let link = self.links.borrow().first().cloned();
        if let Some(link) = link {
            run(&link);
        }
    }

    fn with_own(&self, run: impl FnOnce(&Link)) {
        let link = self.links.borrow().get(1).cloned();
        if let Some(link) = link {
            run(&link);
        }
    }

    fn with_tags(&self, run: impl FnOnce(&Tags)) {
        let tags = self.tags.borrow().clone();
        if let Some(tags) = tags {
            run(&tags);
        }
    }

    fn with_tag_link(&self, at: usize, run: impl FnOnce(&TagLink)) {
        let link = self.tag_links.borrow().get(at).cloned();
        if let Some(link) = link {
            run(&link);
        }
    }

    fn with_node(&self, run: impl FnOnce(&mut Node)) {
        if let Ok(mut node) = self.node.try_borrow_mut()
            && let Some(node) = node.as_mut()
        {
            run(node);
        }
    }

    fn send(&self, at: usize, length: usize, mode: Mode) {
        self.with_tags(|tags| {
            self.with_tag_link(at, |link| {
                self.keep(tags.send(link, 6, &vec![7; length][..], mode));
            });
        });
    }

    fn keep(&self, request: tag::Request) {
        self.requests.borrow_mut().push(request);
    }

    fn client(&self) -> Option<Request> {
        let next = self.listener.borrow().as_ref().and_then(Listener::next);
        next.or_else(|| self.clients.borrow_mut().pop())
    }

    /// At most three times, for actions that cause the callback again.
    fn act(&self) {
        self.runs.set(self.runs.get() + 1);
        if self.runs.get() <= 3
            && let Some((_, action)) = self.action.get()
        {
            action(self);
        }
    }
}

thread_local! {
    /// What wakers use, and which of their functions is the context.
    static WOKEN: RefCell<Option<(Rc<World>, &'static str)>> = const { RefCell::new(None) };
}

fn waker_function(name: &'static str) {
    let world = WOKEN.with(|woken| {
        let woken = woken.borrow();
        woken.as_ref().filter(|(_, context)| *context == name).map(|(world, _)| Rc::clone(world))
    });
    if let Some(world) = world {
        world.act();
    }
}

/// A waker of which each function is the user's code.
fn waker() -> Waker {
    const TABLE: RawWakerVTable = RawWakerVTable::new(
        |data| {
            waker_function("clone of a waker");
            RawWaker::new(data, &TABLE)
        },
        |_| waker_function("wake of a waker"),
        |_| waker_function("wake of a waker"),
        |_| waker_function("drop of a waker"),
    );
    // SAFETY: the functions of the table ignore the data, and every pointer is valid for that.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &TABLE)) }
}

/// Acts when it is dropped.
struct OnDrop(Rc<World>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.act();
    }
}

/// The node of the callbacks, and another one.
struct Scene {
    world: Rc<World>,
    other: Node,
    other_tags: Tags,
    /// The other node's ends of the links.
    back: Vec<Link>,
    back_tags: Vec<TagLink>,
    /// A link of the two nodes that no action touches, with its tags.
    witness: (Link, TagLink),
    witnessed: Rc<Cell<u32>>,
    panics: u32,
}

fn rules(names: &[&str]) -> Rules {
    Rules::default().only(names.iter().copied()).key(Key::from_bytes([7; 32])).deadline(DEADLINE)
}

impl Scene {
    fn new(action: Action, transport: &str) -> Self {
        let mut node = Node::open(&rules(&["self", transport])).expect("a node");
        let mut other = Node::open(&rules(&[transport])).expect("a node");
        let tags = Tags::over(&mut node, Limits::default()).expect("tags");
        let other_tags = Tags::over(&mut other, Limits::default()).expect("tags");
        let witnessed = Rc::new(Cell::new(0));
        let count = Rc::clone(&witnessed);
        node.set_handler(WITNESS, move |_| count.set(count.get() + 1)).expect("a handler");
        let incoming: Rc<RefCell<Vec<Link>>> = Rc::default();
        let links = Rc::clone(&incoming);
        other.on_peer(move |peer| links.borrow_mut().push(peer.link));
        let listener = node.listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
        let dial = other.dial(listener.address(), b"", Options::default()).expect("a call");
        let (here, there) = (node.address(), other.address());
        let mut links = Vec::new();
        // One after the other: links may be connected in another order than they were begun.
        for address in [&there, &here, &here, &there] {
            let link = node.connect(address, Options::default()).expect("a link");
            links.push(link.clone());
            let announced = links.iter().filter(|link| link.peer() == there.uuid()).count();
            let begun = Instant::now();
            while link.state() != State::Connected || incoming.borrow().len() < announced {
                assert!(begun.elapsed() < DEADLINE, "not connected");
                tags.progress(&mut node);
                other_tags.progress(&mut other);
            }
        }
        let links: [Link; 4] = links.try_into().expect("four");
        let back = incoming.take();
        let [main, even, odd, witness] = links;
        let memory = main.allocate(8192, Access::all()).expect("memory");
        let remote = back[0].allocate(8192, Access::all()).expect("memory").pack();
        let remote = main.unpack(&remote).ok();
        let attach = |tags: &Tags, link: &Link| tags.link(link).expect("a tag link");
        let tag_links = vec![attach(&tags, &main), attach(&tags, &even), attach(&tags, &odd)];
        let witness_tags = attach(&tags, &witness);
        let back_tags = back.iter().map(|link| attach(&other_tags, link)).collect();
        let world = Rc::new(World {
            node: RefCell::new(Some(node)),
            tags: RefCell::new(Some(tags)),
            links: RefCell::new(vec![main, even, odd]),
            tag_links: RefCell::new(tag_links),
            requests: RefCell::default(),
            listener: RefCell::new(Some(listener)),
            clients: RefCell::default(),
            dial: RefCell::new(Some(dial)),
            memory: RefCell::new(remote.map(|remote| (memory, remote))),
            action: Cell::new(None),
            runs: Cell::new(0),
        });
        let witness = (witness, witness_tags);
        let mut cell =
            Self { world, other, other_tags, back, back_tags, witness, witnessed, panics: 0 };
        // The client waits, and messages wait for "probe".
        let waiting = cell.other_tags.send(&cell.back_tags[0], 8, b"waits", Mode::Auto);
        cell.until("a client and a message", |cell| {
            let client = cell.world.listener.borrow().as_ref().and_then(Listener::next);
            cell.world.clients.borrow_mut().extend(client);
            let tags = cell.world.tags.borrow().clone().expect("tags");
            let waits = tags.peek(8, FULL_MASK).is_some() && waiting.poll().is_some();
            waits && !cell.world.clients.borrow().is_empty()
        });
        cell.world.action.set(Some(action));
        cell
    }

    /// Runs code whose panics are the user's.
    fn own(&mut self, run: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            if panic.downcast_ref::<&str>() != Some(&EXPECTED) {
                resume_unwind(panic);
            }
            self.panics += 1;
        }
    }

    fn progress(&mut self) {
        let world = Rc::clone(&self.world);
        let tags = world.tags.borrow().clone();
        self.own(|| {
            if let Some(node) = world.node.borrow_mut().as_mut() {
                match tags {
                    Some(tags) => tags.progress(node),
                    None => node.progress(),
                };
            }
        });
        self.other_tags.progress(&mut self.other);
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            self.progress();
            assert!(begun.elapsed() < DEADLINE, "not within the deadline: {what}");
        }
    }

    /// What the actions have left alone works.
    fn check(&mut self) {
        for _ in 0..200 {
            self.progress();
        }
        WOKEN.with(|woken| drop(woken.take()));
        // Some would receive any message.
        for request in self.world.requests.take() {
            ignore(request.cancel());
        }
        if self.world.node.borrow().is_none() {
            return;
        }
        let before = self.witnessed.get();
        let back = self.back[1].clone();
        self.until("a message over the other link", |cell| {
            let _ = back.am_short(WITNESS, 0, &[]);
            cell.witnessed.get() > before
        });
        let there = self.witness.0.clone();
        assert_eq!(there.state(), State::Connected);
        let Some(tags) = self.world.tags.borrow().clone() else { return };
        for length in [8, 100_000] {
            let (source, target) = (vec![3; length], Buffer::new(length).expect("memory"));
            let receive = tags.receive(1 << 40, FULL_MASK, &target);
            let send = self.other_tags.send(&self.back_tags[1], 1 << 40, &source[..], Mode::Auto);
            self.until("a tagged message over the other link", |_| {
                receive.poll().is_some() && send.poll().is_some()
            });
            assert!(receive.poll().expect("complete").is_ok());
            assert_eq!(target.to_vec(), source);
        }
    }
}

type Context = (&'static str, fn(&mut Scene));

/// This context needs a transport over which a flush is not done at once.
const FLUSH: &str = "completion of a flush";

/// Each sets its callback up, and causes it.
const CONTEXTS: &[Context] = &[
    ("handler", |cell| {
        let world = Rc::clone(&cell.world);
        cell.set_handler(move |_| world.act());
        let back = cell.back[0].clone();
        cell.until_run(|_| ignore(back.am_short(ID, 0, b"12345678")));
    }),
    ("handler of a message to itself", |cell| {
        let world = Rc::clone(&cell.world);
        cell.set_handler(move |_| world.act());
        let own = cell.world.links.borrow()[1].clone();
        cell.until_run(|cell| cell.own(|| ignore(own.am_short(ID, 0, b"12345678"))));
    }),
    ("handler inside of a handler's post", |cell| {
        let world = Rc::clone(&cell.world);
        let own = cell.world.links.borrow()[1].clone();
        cell.set_handler(move |message| {
            if message.split_short().is_some_and(|(header, _)| header == 1) {
                ignore(own.am_short(ID, 0, b"12345678"));
            } else {
                world.act();
            }
        });
        let back = cell.back[0].clone();
        cell.until_run(|_| ignore(back.am_short(ID, 1, b"12345678")));
    }),
    ("drop of a handler", |cell| {
        let on_drop = OnDrop(Rc::clone(&cell.world));
        cell.set_handler(move |_| ignore(&on_drop));
        let (back, own) = (cell.back[0].clone(), cell.world.links.borrow()[1].clone());
        let world = Rc::clone(&cell.world);
        // Each interface drops it before the next message.
        cell.until_run(|cell| {
            cell.own(|| world.with_node(|node| ignore(node.set_handler(ID, |_| ()))));
            ignore(back.am_short(ID, 0, b"12345678"));
            cell.own(|| ignore(own.am_short(ID, 0, b"12345678")));
        });
    }),
    ("on_peer", |cell| {
        let world = Rc::clone(&cell.world);
        cell.world.with_node(|node| node.on_peer(move |_| world.act()));
        let address = cell.world.node.borrow().as_ref().expect("a node").address();
        let link = cell.other.connect(&address, Options::default()).expect("a link");
        // The first links of the two nodes are those that this side has made.
        let more: Vec<_> = (0..2)
            .map(|_| cell.other.connect(&address, Options::default()).expect("a link"))
            .collect();
        cell.until_run(|_| ignore((link.state(), more.len())));
    }),
    ("pack", |cell| {
        let world = Rc::clone(&cell.world);
        let link = cell.world.links.borrow()[0].clone();
        cell.until_run(|cell| {
            let world = Rc::clone(&world);
            cell.own(|| {
                let pack = |room: &mut [u8]| {
                    world.act();
                    fill(room)
                };
                ignore(link.am_bcopy(ID, pack));
            });
        });
    }),
    ("pack of a message to itself", |cell| {
        let world = Rc::clone(&cell.world);
        let own = cell.world.links.borrow()[1].clone();
        cell.until_run(|cell| {
            let world = Rc::clone(&world);
            cell.own(|| {
                let pack = |room: &mut [u8]| {
                    world.act();
                    fill(room)
                };
                ignore(own.am_bcopy(ID, pack));
            });
        });
    }),
    ("request of a link", |cell| {
        let world = Rc::clone(&cell.world);
        let link = cell.world.links.borrow()[0].clone();
        // A full lane.
        while link.am_bcopy(ID, fill).is_ok() {}
        let run = move |_: &Link| {
            world.act();
            PendingResult::Done
        };
        link.pending_add(Kind::Messages, run).expect("no room");
        cell.until_run(|_| ());
    }),
    ("request of a link that is being connected", |cell| {
        let world = Rc::clone(&cell.world);
        let there = cell.other.address();
        cell.world.with_node(|node| {
            let link = node.connect(&there, Options::default()).expect("a link");
            let run = move |_: &Link| {
                world.act();
                PendingResult::Done
            };
            link.pending_add(Kind::Messages, run).expect("it waits");
        });
        cell.until_run(|_| ());
    }),
    ("drop of a request", |cell| {
        let on_drop = OnDrop(Rc::clone(&cell.world));
        let there = cell.other.address();
        let mut link = None;
        cell.world.with_node(|node| {
            let connecting = node.connect(&there, Options::default()).expect("a link");
            let run = move |_: &Link| {
                ignore(&on_drop);
                PendingResult::Done
            };
            connecting.pending_add(Kind::Messages, run).expect("it waits");
            link = Some(connecting);
        });
        link.expect("a link").close(CloseMode::Cancel);
        cell.until_run(|_| ());
    }),
    (FLUSH, |cell| {
        let world = Rc::clone(&cell.world);
        let link = cell.world.links.borrow()[0].clone();
        let (local, remote) = cell.world.memory.borrow().clone().expect("memory");
        cell.until_run(|cell| {
            let world = Rc::clone(&world);
            cell.own(|| {
                // A put, of which the other side has to report the end.
                ignore(link.put_zcopy(&local, 0..4096, &remote, 0, None));
                let done = Completion::new(move |_| world.act());
                ignore(link.flush(FlushMode::Remote, Some(&done)));
            });
        });
    }),
    ("wake of a waker", |cell| cell.with_waker("wake of a waker")),
    ("clone of a waker", |cell| cell.with_waker("clone of a waker")),
    ("drop of a waker", |cell| cell.with_waker("drop of a waker")),
    ("wake of a waker by a message to itself", |cell| {
        let world = Rc::clone(&cell.world);
        WOKEN.with(|woken| woken.replace(Some((Rc::clone(&world), "wake of a waker"))));
        let tags = world.tags.borrow().clone().expect("tags");
        let buffer = Buffer::new(100).expect("memory");
        let mut receive = tags.receive(1, FULL_MASK, &buffer);
        let waker = waker();
        ignore(Pin::new(&mut receive).poll(&mut TaskContext::from_waker(&waker)));
        let link = world.tag_links.borrow()[1].clone();
        cell.own(|| drop(tags.send(&link, 1, b"hello", Mode::Auto)));
        cell.until_run(|_| ());
    }),
];

impl Scene {
    fn set_handler(&mut self, handler: impl FnMut(barewire::Message<'_>) + 'static) {
        self.world.with_node(|node| node.set_handler(ID, handler).expect("a handler"));
    }

    /// Makes progress until the context has run.
    fn until_run(&mut self, mut cause: impl FnMut(&mut Self)) {
        self.until("the context", |cell| {
            if cell.world.runs.get() == 0 {
                cause(cell);
            }
            cell.world.runs.get() > 0
        });
    }

    /// A request whose waker has `context` as one of its functions.
    fn with_waker(&mut self, context: &'static str) {
        let world = Rc::clone(&self.world);
        WOKEN.with(|woken| woken.replace(Some((Rc::clone(&world), context))));
        let tags = world.tags.borrow().clone().expect("tags");
        let buffer = Buffer::new(100).expect("memory");
        let mut receive = tags.receive(1, FULL_MASK, &buffer);
        self.own(|| {
            let waker = waker();
            ignore(Pin::new(&mut receive).poll(&mut TaskContext::from_waker(&waker)));
        });
        let send = self.other_tags.send(&self.back_tags[0], 1, b"hello", Mode::Auto);
        self.until_run(|_| ());
        self.own(|| drop((receive, send)));
    }
}

fn run_context((name, context): Context) {
    let transport = if name == FLUSH { "tcp/lo" } else { "shm" };
    let only = std::env::var(ACTION).unwrap_or_default();
    for action in ACTIONS.iter().filter(|action| action.0.contains(&only)) {
        // The parent finds the last one in the output.
        println!("{name}: {}", action.0);
        let mut cell = Scene::new(*action, transport);
        context(&mut cell);
        cell.check();
        let expected = action.0 == "panic";
        assert_eq!(cell.panics > 0, expected, "{name}: {}", action.0);
    }
}

#[test]
fn the_child() {
    let Ok(wanted) = std::env::var(CHILD) else { return };
    let context = CONTEXTS.iter().find(|context| context.0 == wanted);
    run_context(*context.expect("a context"));
}

#[test]
fn every_action_in_every_context_leaves_the_rest_usable() {
    let only = std::env::var("BAREWIRE_TEST_ONLY").unwrap_or_default();
    let mut failures = Vec::new();
    for (name, _) in CONTEXTS.iter().filter(|context| context.0.contains(&only)) {
        let output = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "the_child", "--nocapture", "--test-threads=1"])
            .env(CHILD, name)
            .output()
            .expect("a child process");
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            let last: Vec<_> = text.lines().filter(|line| line.starts_with(name)).collect();
            failures.push(format!("{:?} {}\n{errors}", last.last(), output.status));
        }
    }
    assert!(failures.is_empty(), "{} contexts:\n{}", failures.len(), failures.join("\n"));
}
