//! Calls of the library inside callbacks: whatever a callback does, the library neither panics,
//! crashes nor hangs.
//!
//! Each combination of an action and a context runs in a child process.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::{
    Access, Completion, Endpoint, Flags, FlushMode, Interface, Memory, PendingResult, PostError,
    Posted, RemoteKey, Unpack, Worker,
};

use crate::fork::{NOT_REACHED, fork_with};
use crate::place::Place;
use crate::support::{DEADLINE, Pair, Side, connect, small};

const EXPECTED: &str = "the user's own panic";
const LENGTH: usize = 1 << 16;

struct World {
    worker: RefCell<Option<Worker>>,
    interface: Interface,
    endpoints: RefCell<Vec<Endpoint>>,
    memory: RefCell<Option<Memory>>,
    key: RemoteKey,
    remote: u64,
    runs: Cell<u32>,
}

fn fill(buffer: &mut [u8]) -> usize {
    buffer[..64].fill(2);
    64
}

/// Ignores the result: errors are acceptable.
fn ignore<T>(_result: T) {}

type Action = (&'static str, fn(&World));

/// The actions of a callback. The last one is `panic`.
const ACTIONS: [Action; 29] = [
    ("nothing", |_| ()),
    ("am_short", |w| w.with(|e| ignore(e.am_short(2, 0, b"12345678")))),
    ("am_bcopy", |w| w.with(|e| ignore(e.am_bcopy(2, fill)))),
    ("put_bcopy", |w| w.with(|e| ignore(e.put_bcopy(fill, w.remote, &w.key)))),
    ("get_bcopy", |w| {
        w.with(|e| ignore(e.get_bcopy(&Unpack::new(|_| ()), 64, w.remote, &w.key, None)));
    }),
    ("flush local", |w| w.with(|e| ignore(e.flush(FlushMode::Local, None)))),
    ("flush remote", |w| w.with(|e| ignore(e.flush(FlushMode::Remote, None)))),
    ("flush cancel", |w| w.with(|e| ignore(e.flush(FlushMode::Cancel, None)))),
    ("fence", |w| w.with(|e| ignore(e.fence()))),
    ("counters", |w| w.with(|e| ignore(e.counters().posted))),
    ("error", |w| w.with(|e| ignore(e.error()))),
    ("address", |w| w.with(|e| ignore(e.address()))),
    ("drop the endpoints", |w| ignore(w.endpoints.take())),
    ("new endpoint", |w| ignore(Endpoint::new(&w.interface))),
    ("interface flush", |w| ignore(w.interface.flush(Some(&Completion::counter())))),
    ("interface fence", |w| ignore(w.interface.fence())),
    ("interface counters", |w| ignore(w.interface.counters().posted)),
    ("interface arm", |w| ignore(w.interface.arm())),
    ("interface examine", |w| w.interface.examine()),
    ("set handlers", |w| (0..4).for_each(|id| ignore(w.interface.set_handler(id, |_| ())))),
    ("hold the sender", |w| ignore(w.interface.hold_sender())),
    ("set error handler", |w| w.interface.set_error_handler(|_| ())),
    ("pending add", |w| w.with(|e| ignore(e.pending_add(|_| PendingResult::Done)))),
    ("pending purge", |w| w.with(|e| e.pending_purge(|| ()))),
    ("drop the memory", |w| ignore(w.memory.take())),
    ("progress", |w| w.with_worker(|worker| ignore(worker.as_mut().map(Worker::progress)))),
    ("worker arm", |w| w.with_worker(|worker| ignore(worker.as_mut().map(Worker::arm)))),
    ("drop the worker", |w| {
        let mut taken = None;
        w.with_worker(|worker| taken = worker.take());
        ignore(taken);
    }),
    ("panic", |_| resume_unwind(Box::new(EXPECTED))),
];

/// Returns whether the endpoint works after the action.
fn is_harmless(action: &str) -> bool {
    !(action.starts_with("drop") || ["flush cancel", "set handlers"].contains(&action))
}

impl World {
    fn with(&self, run: impl FnOnce(&Endpoint)) {
        let endpoint = self.endpoints.borrow().first().cloned();
        if let Some(endpoint) = endpoint {
            run(&endpoint);
        }
    }

    /// Not during progress of the worker: the borrow checker prevents that in programs without a
    /// cell.
    fn with_worker(&self, run: impl FnOnce(&mut Option<Worker>)) {
        if let Ok(mut worker) = self.worker.try_borrow_mut() {
            run(&mut worker);
        }
    }

    /// At most three times, for actions that cause the callback again.
    fn act(&self, action: Action) {
        self.runs.set(self.runs.get() + 1);
        if self.runs.get() <= 3 {
            action.1(self);
        }
    }

    fn progress(&self, others: &mut Pair) {
        own(|| {
            if let Some(worker) = self.worker.borrow_mut().as_mut() {
                worker.progress();
            }
        });
        others.server_worker.progress();
        std::thread::yield_now();
    }
}

/// Runs code whose panics are part of the test.
fn own(run: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run))
        && panic.downcast_ref() != Some(&EXPECTED)
    {
        resume_unwind(panic);
    }
}

/// An endpoint connected to its own interface, whose worker progresses both ends.
fn open(place: &Place) -> (Rc<World>, Pair) {
    let mut pair = place.pair_with(&small());
    pair.connected();
    let endpoints = if pair.is_self() {
        vec![pair.client.endpoint.clone()]
    } else {
        let sides: [Side; 2] = [pair.client.another(), pair.client.another()];
        connect(&sides[0], &sides[1]);
        pair.taken_by(&[&sides[0].endpoint, &sides[1].endpoint]);
        sides.map(|side| side.endpoint).into()
    };
    let memory = pair.client.domain.allocate(LENGTH, Access::all()).unwrap();
    let key = pair.client.domain.unpack_key(&memory.pack_key()).unwrap();
    let first = &endpoints[0];
    pair.until("the region", || first.rkey_ptr(&key).map(drop) != Err(PostError::NoResource));
    let world = World {
        worker: RefCell::new(Some(std::mem::take(&mut pair.worker))),
        interface: pair.client.interface.clone(),
        endpoints: RefCell::new(endpoints),
        remote: memory.address(),
        memory: RefCell::new(Some(memory)),
        key,
        runs: Cell::new(0),
    };
    (Rc::new(world), pair)
}

/// Runs an action inside a context. Returns `true` if the action ran.
fn cell(place: &Place, context: Context, action: Action, limit: Duration) -> bool {
    let (world, mut others) = open(place);
    let endpoint = world.endpoints.borrow()[0].clone();
    own(|| context(&world, &endpoint, action));
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(20)
        || (world.runs.get() == 0 && start.elapsed() < limit)
    {
        world.progress(&mut others);
    }
    let flags = world.interface.attributes().flags;
    if is_harmless(action.0) && endpoint.error().is_none() && flags.contains(Flags::AM_BCOPY) {
        let usable = || endpoint.am_bcopy(3, fill).is_ok();
        while !usable() {
            world.progress(&mut others);
            assert!(start.elapsed() < DEADLINE / 4, "no post is taken any more");
        }
    }
    ignore(endpoint);
    own(|| ignore(world.endpoints.take()));
    world.progress(&mut others);
    let worker = world.worker.borrow_mut().take();
    own(|| ignore(worker));
    world.runs.get() > 0
}

type Context = fn(&Rc<World>, &Endpoint, Action);

/// Runs all actions inside one context; `always` if every transport reaches the context.
fn every_action(place: &Place, name: &str, always: bool, context: Context) {
    // Contexts that some transports never reach are not waited for.
    let limit = if always { DEADLINE / 4 } else { Duration::from_millis(500) };
    for (i, action) in ACTIONS.into_iter().enumerate() {
        let what = format!("{}: {} in {name}", place.name, action.0);
        let limit = if i == 0 { 4 * limit } else { limit };
        let child =
            || fork_with(|| if cell(place, context, action, limit) { 0 } else { NOT_REACHED });
        // A child of a process with threads may inherit a lock that one of them held; the second
        // attempt shows whether that was the cause.
        let code = child().code_in_time(&what).unwrap_or_else(|| child().code(&what));
        assert!(
            code == 0 || (code == NOT_REACHED && !always),
            "{}: {name}: {}: {code}",
            place.name,
            action.0
        );
        // The first action does nothing, so the transport never runs this callback.
        if i == 0 && code == NOT_REACHED {
            return;
        }
    }
}

pub(crate) fn pack_of_a_message(place: &Place) {
    every_action(place, "am_bcopy's pack", true, |w, e, action| {
        ignore(e.am_bcopy(2, |buffer| {
            w.act(action);
            fill(buffer)
        }));
    });
}

pub(crate) fn pack_of_a_put(place: &Place) {
    every_action(place, "put_bcopy's pack", true, |w, e, action| {
        let pack = |buffer: &mut [u8]| {
            w.act(action);
            fill(buffer)
        };
        ignore(e.put_bcopy(pack, w.remote, &w.key));
    });
}

pub(crate) fn unpack_of_a_get(place: &Place) {
    every_action(place, "get_bcopy's unpack", true, |w, e, action| {
        let world = Rc::clone(w);
        let unpack = Unpack::new(move |data| {
            world.act(action);
            assert_eq!(data.len(), 100);
            assert!(data.iter().all(|&byte| byte == 0 || byte == 2));
        });
        ignore(e.get_bcopy(&unpack, 100, w.remote, &w.key, None));
    });
}

pub(crate) fn message_handlers(place: &Place) {
    every_action(place, "a handler", true, |w, e, action| {
        let world = Rc::clone(w);
        let handler = move |message: barewire::Message<'_>| {
            world.act(action);
            assert!(message.data().iter().all(|&byte| byte == 2 || message.data().len() == 16));
        };
        w.interface.set_handler(2, handler).unwrap();
        for _ in 0..3 {
            own(|| ignore(e.am_bcopy(2, fill)));
        }
    });
}

pub(crate) fn completion_callbacks(place: &Place) {
    every_action(place, "a completion", true, |w, e, action| {
        let world = Rc::clone(w);
        let done = Completion::new(move |_| world.act(action));
        let memory = w.memory.borrow();
        let slice = memory.as_ref().unwrap().slice(0, LENGTH / 2).unwrap();
        let put = e.put_zcopy(&[slice], w.remote + LENGTH as u64 / 2, &w.key, Some(&done));
        ignore(memory);
        if put == Ok(Posted::Done) {
            drop(done.hold());
        }
    });
}

/// Reached if the peer's device, and not the post, refuses an access.
pub(crate) fn error_handlers(place: &Place) {
    every_action(place, "an error handler", false, |w, e, action| {
        let world = Rc::clone(w);
        w.interface.set_error_handler(move |_| world.act(action));
        ignore(e.put_short(b"12345678", w.remote.wrapping_add(1 << 40), &w.key));
    });
}

pub(crate) fn pending_requests(place: &Place) {
    every_action(place, "a pending request", false, |w, e, action| {
        let full = (0..10_000).any(|_| e.am_bcopy(2, fill).is_err());
        let world = Rc::clone(w);
        let request = move |_: &Endpoint| {
            world.act(action);
            PendingResult::Done
        };
        if full && e.pending_add(request).is_ok() {
            let _ = e.pending_add(|_| PendingResult::Done);
        }
    });
}

pub(crate) fn purged_requests(place: &Place) {
    every_action(place, "pending_purge", false, |w, e, action| {
        let _ = (0..10_000).any(|_| e.am_bcopy(2, fill).is_err());
        for _ in 0..3 {
            let _ = e.pending_add(|_| PendingResult::Again);
        }
        e.pending_purge(|| w.act(action));
    });
}

pub(crate) fn drops_of_handlers(place: &Place) {
    struct Acting(Rc<World>, Action);

    impl Drop for Acting {
        fn drop(&mut self) {
            self.0.act(self.1);
        }
    }

    every_action(place, "the drop of a handler", true, |w, e, action| {
        let acting = Acting(Rc::clone(w), action);
        let handler = move |_: barewire::Message<'_>| {
            let _ = &acting;
        };
        w.interface.set_handler(2, handler).unwrap();
        w.with_worker(|worker| ignore(worker.as_mut().map(Worker::progress)));
        w.interface.set_handler(2, |_| ()).unwrap();
        // Some transports replace the handler at the next message.
        ignore(e.am_bcopy(3, fill));
    });
}
