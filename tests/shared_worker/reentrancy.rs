//! Calls of a shared worker's handles inside of the user's code that it runs: whatever a callback
//! does, nothing panics or deadlocks, and what it did not end goes on.
//!
//! Each context runs in a separate process, and each combination of a context and an action uses new
//! workers.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use barewire::shared::{
    SharedCompletion, SharedEndpoint, SharedFetchResult, SharedInterface, SharedKeptMessage,
    SharedMessage, SharedUnpack, SharedWorker,
};
use barewire::{
    Access, AtomicOp, Domain, Flags, FlushMode, InterfaceConfig, Memory, PendingResult, PostError,
    Posted, RemoteKey,
};

use crate::DEADLINE;

/// The variable that names the context of a child process: a device and a context.
const CHILD: &str = "BAREWIRE_TEST_CONTEXT";
const EXPECTED: &str = "the user's own panic";
/// Messages for the context, and messages that show that the worker works.
const ID: u8 = 3;
const WITNESS: u8 = 4;

/// Ignores the result: errors are acceptable.
fn ignore<T>(_result: T) {}

/// What a callback has access to. No lock is held while it uses it.
struct World {
    worker: Mutex<Option<SharedWorker>>,
    endpoint: Mutex<Option<SharedEndpoint>>,
    interface: Mutex<Option<SharedInterface>>,
    memory: Mutex<Option<Arc<Targets>>>,
    kept: Mutex<Vec<SharedKeptMessage>>,
    completion: SharedCompletion,
    action: Action,
    runs: AtomicUsize,
}

/// Memory of the callback's side, and that of the peer.
struct Targets {
    local: Memory,
    address: u64,
    key: RemoteKey,
}

type Action = (&'static str, fn(&World));

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// Acts once.
    fn act(&self) {
        if self.runs.fetch_add(1, Ordering::Relaxed) == 0 {
            self.action.1(self);
        }
    }

    fn with(&self, run: impl FnOnce(&SharedEndpoint)) {
        let endpoint = lock(&self.endpoint).clone();
        if let Some(endpoint) = endpoint {
            run(&endpoint);
        }
    }

    fn with_interface(&self, run: impl FnOnce(&SharedInterface)) {
        let interface = lock(&self.interface).clone();
        if let Some(interface) = interface {
            run(&interface);
        }
    }

    fn with_worker(&self, run: impl FnOnce(&SharedWorker)) {
        let worker = lock(&self.worker).clone();
        if let Some(worker) = worker {
            run(&worker);
        }
    }

    fn with_memory(&self, run: impl FnOnce(&SharedEndpoint, &Memory, u64, &RemoteKey)) {
        let endpoint = lock(&self.endpoint).clone();
        let memory = lock(&self.memory).clone();
        if let (Some(endpoint), Some(memory)) = (endpoint, memory) {
            run(&endpoint, &memory.local, memory.address, &memory.key);
        }
    }
}

fn fill(buffer: &mut [u8]) -> usize {
    buffer[..20].fill(7);
    20
}

const ACTIONS: &[Action] = &[
    ("nothing", |_| ()),
    ("am_short", |w| w.with(|endpoint| ignore(endpoint.am_short(ID, 0, b"12345678")))),
    ("am_bcopy", |w| w.with(|endpoint| ignore(endpoint.am_bcopy(ID, fill)))),
    ("am_zcopy", |w| {
        w.with_memory(|endpoint, local, _, _| {
            let slices = [local.slice(0, 64).unwrap()];
            ignore(endpoint.am_zcopy(ID, b"", &slices, Some(&w.completion)));
        });
    }),
    ("put_short", |w| {
        w.with_memory(|endpoint, _, at, key| ignore(endpoint.put_short(b"12345678", at, key)));
    }),
    ("put_bcopy", |w| {
        w.with_memory(|endpoint, _, at, key| ignore(endpoint.put_bcopy(fill, at, key)));
    }),
    ("put_zcopy", |w| {
        w.with_memory(|endpoint, local, at, key| {
            let slices = [local.slice(0, 64).unwrap()];
            ignore(endpoint.put_zcopy(&slices, at, key, Some(&w.completion)));
        });
    }),
    ("get_zcopy", |w| {
        w.with_memory(|endpoint, local, at, key| {
            let slices = [local.slice(0, 64).unwrap()];
            ignore(endpoint.get_zcopy(&slices, at, key, Some(&w.completion)));
        });
    }),
    ("get_bcopy", |w| {
        w.with_memory(|endpoint, _, at, key| {
            let unpack = SharedUnpack::new(|_| ());
            ignore(endpoint.get_bcopy(&unpack, 64, at, key, Some(&w.completion)));
        });
    }),
    ("atomic_fetch", |w| {
        w.with_memory(|endpoint, _, at, key| {
            let (add, result) = (AtomicOp::Add(1_u64), SharedFetchResult::new());
            ignore(endpoint.atomic_fetch(add, at, key, &result, Some(&w.completion)));
        });
    }),
    ("flush", |w| w.with(|endpoint| ignore(endpoint.flush(FlushMode::Local, None)))),
    ("flush with completion", |w| {
        w.with(|endpoint| ignore(endpoint.flush(FlushMode::Local, Some(&w.completion))));
    }),
    ("flush of the interface", |w| {
        w.with_interface(|interface| ignore(interface.flush(Some(&w.completion))));
    }),
    ("fence", |w| w.with_interface(|interface| ignore(interface.fence()))),
    ("pending_add", |w| {
        w.with(|endpoint| ignore(endpoint.pending_add(|_: &SharedEndpoint| PendingResult::Done)));
    }),
    ("pending_purge", |w| w.with(|endpoint| endpoint.pending_purge(|| ()))),
    ("look", |w| {
        w.with(|endpoint| {
            ignore((endpoint.transport(), endpoint.address(), endpoint.counters()));
            ignore(endpoint.error());
        });
        w.with_interface(|interface| {
            ignore((interface.address(), interface.unhandled(), interface.counters()));
            ignore(interface.reaches(&interface.address()));
        });
        ignore((w.completion.pending(), w.completion.status()));
    }),
    ("progress", |w| w.with_worker(|worker| ignore(worker.progress()))),
    ("wait", |w| w.with_worker(|worker| ignore(worker.wait(Some(Duration::from_secs(1)))))),
    ("wait for a completion", |w| ignore(w.completion.wait(Some(Duration::from_secs(1))))),
    ("set_handler", |w| w.with_interface(|one| ignore(one.set_handler(ID, |_| ())))),
    ("set_error_handler", |w| w.with_interface(|one| one.set_error_handler(|_| ()))),
    ("connect", |w| w.with_interface(|one| ignore(one.connect(&one.address())))),
    ("another endpoint", |w| w.with_interface(|one| ignore(SharedEndpoint::new(one)))),
    ("drop the kept messages", |w| drop(std::mem::take(&mut *lock(&w.kept)))),
    ("drop the memory", |w| drop(lock(&w.memory).take())),
    ("drop the endpoint", |w| drop(lock(&w.endpoint).take())),
    ("drop the interface", |w| drop(lock(&w.interface).take())),
    ("drop the worker", |w| drop(lock(&w.worker).take())),
    ("drop everything", |w| {
        drop(lock(&w.endpoint).take());
        drop(lock(&w.interface).take());
        drop(lock(&w.worker).take());
        drop(lock(&w.memory).take());
    }),
    ("drop on another thread", |w| {
        // The thread waits for the lock that this one holds, so it is not joined here.
        let all = (lock(&w.endpoint).take(), lock(&w.interface).take(), lock(&w.worker).take());
        thread::spawn(move || drop(all));
    }),
    ("panic", |_| resume_unwind(Box::new(EXPECTED))),
];

/// The other end of the connection.
struct Peer {
    worker: SharedWorker,
    endpoint: SharedEndpoint,
    _interface: SharedInterface,
    _memory: Memory,
}

/// The two sides of a cell: that of the callback, and its peer.
struct Cell {
    world: Arc<World>,
    peer: Option<Peer>,
    /// Messages for the handler of the callback's side that the context does not set.
    witnesses: Arc<AtomicUsize>,
    panics: usize,
}

impl Cell {
    fn new(device: &str, action: Action) -> Self {
        let open = || {
            let worker = SharedWorker::new();
            let domain = Domain::open(&device.parse().unwrap()).unwrap();
            let config = InterfaceConfig::default();
            let interface = SharedInterface::open(&worker, &domain, &config).unwrap();
            (worker, domain, interface)
        };
        let here = open();
        // An interface of `self` reaches itself only.
        let there = if device.starts_with("self") { here.clone() } else { open() };
        let [local, remote] =
            [&here, &there].map(|side| side.1.allocate(4096, Access::all()).unwrap());
        let key = here.1.unpack_key(&remote.pack_key()).unwrap();
        let targets = Targets { local, address: remote.address(), key };
        let flags = here.2.attributes().flags;
        let (own, theirs) = if flags.contains(Flags::CONNECT_TO_INTERFACE) {
            (
                here.2.connect(&there.2.address()).unwrap(),
                there.2.connect(&here.2.address()).unwrap(),
            )
        } else {
            let own = SharedEndpoint::new(&here.2).unwrap();
            let theirs = SharedEndpoint::new(&there.2).unwrap();
            own.connect(&theirs.address().unwrap()).unwrap();
            theirs.connect(&own.address().unwrap()).unwrap();
            (own, theirs)
        };
        let witnesses: Arc<AtomicUsize> = Arc::default();
        let seen = Arc::clone(&witnesses);
        let witness = move |_: SharedMessage<'_>| {
            seen.fetch_add(1, Ordering::Relaxed);
        };
        here.2.set_handler(WITNESS, witness).unwrap();
        let world = World {
            worker: Mutex::new(Some(here.0)),
            endpoint: Mutex::new(Some(own)),
            interface: Mutex::new(Some(here.2)),
            memory: Mutex::new(Some(Arc::new(targets))),
            kept: Mutex::default(),
            completion: SharedCompletion::counter(),
            action,
            runs: AtomicUsize::new(0),
        };
        let peer = Peer { worker: there.0, endpoint: theirs, _interface: there.2, _memory: remote };
        Self { world: Arc::new(world), peer: Some(peer), witnesses, panics: 0 }
    }

    /// Runs calls inside of which the user's callback may run, and panic.
    fn own(&mut self, run: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            if panic.downcast_ref::<&str>() != Some(&EXPECTED) {
                resume_unwind(panic);
            }
            self.panics += 1;
        }
    }

    /// As [`own`](Self::own), with the world and the peer.
    fn both(&mut self, run: impl FnOnce(&Arc<World>, Option<&Peer>)) {
        let (world, peer) = (Arc::clone(&self.world), self.peer.take());
        self.own(|| run(&world, peer.as_ref()));
        self.peer = peer;
    }

    fn has_run(&self) -> bool {
        self.world.runs.load(Ordering::Relaxed) > 0
    }

    fn progress(&mut self) {
        self.both(|world, _| world.with_worker(|worker| ignore(worker.progress())));
        self.both(|_, peer| ignore(peer.map(|peer| peer.worker.progress())));
    }

    /// Makes progress, and does `cause` again and again, until the context has run.
    fn until_run(&mut self, mut cause: impl FnMut(&mut Self)) {
        let begun = Instant::now();
        while !self.has_run() {
            assert!(begun.elapsed() < DEADLINE, "{}: no run", self.world.action.0);
            cause(self);
            self.progress();
        }
        // What the action began goes on.
        for _ in 0..20 {
            self.progress();
        }
    }

    /// The callback's side receives messages, unless it was dropped.
    fn check(&mut self) {
        let world = &self.world;
        let is_whole = lock(&world.worker).is_some()
            && lock(&world.interface).is_some()
            && lock(&world.endpoint).is_some();
        if !is_whole || self.peer.is_none() {
            return;
        }
        lock(&self.world.kept).clear();
        let (before, begun) = (self.witnesses.load(Ordering::Relaxed), Instant::now());
        while self.witnesses.load(Ordering::Relaxed) == before {
            assert!(begun.elapsed() < DEADLINE, "{}: nothing arrives", self.world.action.0);
            self.peer_sends(WITNESS);
            self.progress();
        }
    }

    /// The peer sends a message.
    fn peer_sends(&mut self, id: u8) {
        self.both(|_, peer| {
            if let Some(peer) = peer {
                ignore(peer.endpoint.am_short(id, 0, b"hello"));
            }
        });
    }
}

type Context = (&'static str, fn(&mut Cell));

const CONTEXTS: &[Context] = &[
    ("handler", |cell| {
        let act = Arc::clone(&cell.world);
        cell.world.with_interface(|one| one.set_handler(ID, move |_| act.act()).unwrap());
        cell.until_run(|cell| cell.peer_sends(ID));
    }),
    ("handler that keeps", |cell| {
        let act = Arc::clone(&cell.world);
        let handler = move |message: SharedMessage<'_>| {
            lock(&act.kept).extend(message.keep());
            act.act();
        };
        cell.world.with_interface(|one| one.set_handler(ID, handler).unwrap());
        cell.until_run(|cell| cell.peer_sends(ID));
    }),
    ("drop of a handler", |cell| {
        let on_drop = OnDrop(Arc::clone(&cell.world));
        let handler = move |_: SharedMessage<'_>| ignore(&on_drop);
        cell.world.with_interface(|one| one.set_handler(ID, handler).unwrap());
        cell.both(|world, _| world.with_interface(|one| one.set_handler(ID, |_| ()).unwrap()));
        // Some transports replace it when the next message arrives.
        cell.until_run(|cell| cell.peer_sends(ID));
    }),
    ("completion", |cell| {
        let act = Arc::clone(&cell.world);
        let completion = SharedCompletion::new(move |_| act.act());
        cell.until_run(|cell| {
            if completion.pending() > 0 {
                return;
            }
            cell.both(|world, _| {
                world.with(|one| {
                    ignore(one.am_short(WITNESS, 0, b""));
                    if one.flush(FlushMode::Local, Some(&completion)) == Ok(Posted::Done) {
                        // Nothing is in progress over some transports.
                        world.act();
                    }
                });
            });
        });
    }),
    ("pack", |cell| {
        cell.until_run(|cell| {
            cell.both(|world, _| {
                let pack = |buffer: &mut [u8]| {
                    world.act();
                    fill(buffer)
                };
                world.with(|one| ignore(one.am_bcopy(WITNESS, pack)));
            });
        });
    }),
    ("unpack", |cell| {
        let act = Arc::clone(&cell.world);
        let unpack = SharedUnpack::new(move |_| act.act());
        cell.until_run(|cell| {
            cell.both(|world, _| {
                world.with_memory(|one, _, at, key| {
                    ignore(one.get_bcopy(&unpack, 16, at, key, None));
                });
            });
        });
    }),
    ("pending request", |cell| {
        cell.pending(|world| {
            world.act();
            PendingResult::Done
        });
    }),
    ("pending request that waits again", |cell| {
        cell.pending(|world| {
            let is_first = world.runs.load(Ordering::Relaxed) == 0;
            world.act();
            if is_first { PendingResult::Again } else { PendingResult::Done }
        });
    }),
    ("wake of a waker", |cell| {
        struct Acts(Arc<World>);
        impl Wake for Acts {
            fn wake(self: Arc<Self>) {
                self.0.act();
            }
        }
        let completion = SharedCompletion::counter();
        let waker = Waker::from(Arc::new(Acts(Arc::clone(&cell.world))));
        let mut future = pin!((&completion).into_future());
        cell.until_run(|cell| {
            let context = &mut TaskContext::from_waker(&waker);
            if completion.pending() > 0 {
                return;
            }
            cell.both(|world, _| {
                world.with(|one| {
                    ignore(one.am_short(WITNESS, 0, b""));
                    ignore(one.flush(FlushMode::Remote, Some(&completion)));
                });
                if future.as_mut().poll(context) != Poll::Pending {
                    // Nothing is in progress over some transports.
                    world.act();
                }
            });
        });
    }),
    ("error handler", |cell| {
        let act = Arc::clone(&cell.world);
        cell.world.with_interface(|one| one.set_error_handler(move |_| act.act()));
        drop(cell.peer.take());
        let begun = Instant::now();
        cell.until_run(|cell| {
            cell.both(|world, _| world.with(|one| ignore(one.am_short(WITNESS, 0, b""))));
            if begun.elapsed() > SILENCE {
                // The transport reports no failure.
                cell.both(|world, _| world.act());
            }
        });
    }),
];

/// After so long without resources running out, or a failure, a transport has none of these.
const SILENCE: Duration = Duration::from_millis(100);

/// Acts when it is dropped.
struct OnDrop(Arc<World>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.act();
    }
}

impl Cell {
    /// Adds a request when the endpoint has no resources.
    fn pending(&mut self, request: fn(&World) -> PendingResult) {
        let begun = Instant::now();
        let is_added = AtomicUsize::new(0);
        while is_added.load(Ordering::Relaxed) == 0 && begun.elapsed() < SILENCE {
            self.both(|world, _| {
                world.with(|one| {
                    if one.am_short(WITNESS, 0, b"fill") == Err(PostError::NoResource) {
                        let act = Arc::clone(world);
                        let added = one.pending_add(move |_: &SharedEndpoint| request(&act));
                        is_added.fetch_add(usize::from(added.is_ok()), Ordering::Relaxed);
                    }
                });
            });
        }
        self.until_run(|cell| {
            if is_added.load(Ordering::Relaxed) == 0 {
                // The resources of this transport do not end.
                cell.both(|world, _| world.act());
            }
        });
    }
}

fn run_context(device: &str, (name, context): Context) {
    for action in ACTIONS {
        // The parent finds the last one in the output.
        println!("{device} {name}: {}", action.0);
        let mut cell = Cell::new(device, *action);
        context(&mut cell);
        cell.check();
        assert_eq!(cell.panics > 0, action.0 == "panic", "{name}: {}", action.0);
    }
}

#[test]
fn the_child() {
    let Ok(wanted) = std::env::var(CHILD) else { return };
    let (device, name) = wanted.split_once(' ').expect("a device and a context");
    let context = CONTEXTS.iter().find(|context| context.0 == name);
    run_context(device, *context.expect("a context"));
}

fn check_all(device: &str) {
    let mut failures = Vec::new();
    for (name, _) in CONTEXTS {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "reentrancy::the_child", "--nocapture", "--test-threads=1"])
            .env(CHILD, format!("{device} {name}"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a child process");
        let begun = Instant::now();
        while child.try_wait().expect("the child's state").is_none() {
            if begun.elapsed() > 2 * DEADLINE {
                // A deadlock: the output names the action.
                child.kill().expect("the child ends");
            }
            thread::sleep(Duration::from_millis(5));
        }
        let output = child.wait_with_output().expect("the child's output");
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            let last = text.lines().rfind(|line| line.starts_with(device)).map(str::to_owned);
            failures.push(format!("{last:?} {}\n{errors}", output.status));
        }
    }
    assert!(failures.is_empty(), "{} contexts:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_action_in_every_context_leaves_self_usable() {
    check_all("self/memory");
}

#[test]
fn every_action_in_every_context_leaves_shm_usable() {
    check_all("shm/memory");
}

#[test]
fn every_action_in_every_context_leaves_tcp_usable() {
    check_all("tcp/lo");
}

#[test]
fn every_action_in_every_context_leaves_rc_mlx5_usable() {
    check_all("rc_mlx5/soft0:1");
}
