//! Fork: a child does not affect what it inherits, and the parent continues.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use barewire::error::{Busy, OperationError};
use barewire::{
    Access, Completion, Endpoint, EventError, Flags, FlushMode, Memory, PendingResult, PostError,
    RemoteKey,
};

use crate::place::Place;
use crate::support::{DEADLINE, Pair, collect, connect, headers};

/// Exit code of a child that did not reach the tested code.
pub(crate) const NOT_REACHED: i32 = 77;

/// Runs `child` in a child process.
fn fork(child: impl FnOnce()) -> Child {
    fork_with(|| {
        child();
        0
    })
}

/// Runs `child` in a child process, and ends it with the code that it returns.
pub(crate) fn fork_with(child: impl FnOnce() -> i32) -> Child {
    // SAFETY: the child runs only code of this test and ends in this function. glibc keeps the
    // allocator usable in the child.
    let number = unsafe { libc::fork() };
    assert!(number >= 0, "fork: {}", std::io::Error::last_os_error());
    if number == 0 {
        let ended = catch_unwind(AssertUnwindSafe(child));
        // SAFETY: ends the process without the clean-up of the harness.
        unsafe { libc::_exit(ended.unwrap_or(101)) };
    }
    Child(number)
}

pub(crate) struct Child(libc::pid_t);

impl Child {
    /// Waits until the child ends successfully.
    fn join(self, what: &str) {
        assert_eq!(self.code(what), 0, "{what}: exit code");
    }

    /// Waits until the child ends, without a signal. Returns its exit code.
    pub(crate) fn code(self, what: &str) -> i32 {
        self.code_in_time(what).unwrap_or_else(|| panic!("{what}: the child hangs"))
    }

    /// Like [`Self::code`]. Returns `None` if the child did not end in time, and was killed.
    pub(crate) fn code_in_time(self, what: &str) -> Option<i32> {
        let start = Instant::now();
        loop {
            let mut status = 0;
            // SAFETY: the child belongs to this value alone, and `status` is valid for writes.
            let ended = unsafe { libc::waitpid(self.0, &raw mut status, libc::WNOHANG) };
            if ended == self.0 {
                assert!(libc::WIFEXITED(status), "{what}: signal {}", libc::WTERMSIG(status));
                return Some(libc::WEXITSTATUS(status));
            }
            if start.elapsed() > DEADLINE {
                // SAFETY: these arguments contain no pointers. The child has not been waited for,
                // so its process id is not reused.
                unsafe { libc::kill(self.0, libc::SIGKILL) };
                return None;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The objects that a child inherits.
struct Inherited {
    key: RemoteKey,
    target: Memory,
    source: Memory,
    clone: Endpoint,
    pair: Pair,
}

impl Inherited {
    fn new(mut pair: Pair) -> Self {
        pair.connected();
        let (target, key) = pair.target(1 << 16, Access::all());
        let source = pair.client.domain.allocate(1 << 16, Access::all()).unwrap();
        Self { key, target, source, clone: pair.client.endpoint.clone(), pair }
    }

    fn flags(&self) -> Flags {
        self.pair.client.interface.attributes().flags
    }

    /// The operations of a child: they are refused or have no effect.
    fn try_everything(&mut self) {
        let Self { pair, clone: endpoint, source, target, key, .. } = self;
        let slice = [source.slice(0, 512).unwrap()];
        let flags = pair.client.interface.attributes().flags;
        if flags.contains(Flags::AM_SHORT) {
            assert_eq!(endpoint.am_short(1, 999, &[]), Err(PostError::Forked));
            assert_eq!(endpoint.am_bcopy(1, |_| 8), Err(PostError::Forked));
        }
        if flags.contains(Flags::PUT_ZCOPY) {
            let put = endpoint.put_zcopy(&slice, target.address(), key, None);
            assert_eq!(put, Err(PostError::Forked));
        }
        assert_eq!(endpoint.flush(FlushMode::Local, None), Err(PostError::Forked));
        let cancel = endpoint.flush(FlushMode::Cancel, None);
        assert!(matches!(cancel, Err(PostError::Forked | PostError::Closed)), "{cancel:?}");
        assert_eq!(pair.client.interface.flush(None), Err(PostError::Closed));
        assert_eq!(endpoint.pending_add(|_| PendingResult::Done), Err(Busy));
        for _ in 0..1000 {
            assert_eq!(pair.worker.progress() + pair.server_worker.progress(), 0);
        }
        if flags.contains(Flags::CONNECT_TO_EP) {
            assert!(Endpoint::new(&pair.client.interface).is_err());
        }
        let wait = pair.worker.wait(None);
        assert!(
            matches!(wait, Err(EventError::Closed { .. } | EventError::Missing { .. })),
            "{wait:?}"
        );
        let completion = Completion::counter();
        let _hold = completion.hold();
        assert_eq!(pair.worker.wait_for(&completion), Err(OperationError::CANCELED));
        let _ = (endpoint.counters(), endpoint.error(), source.load_u8(0).unwrap());
    }

    /// Drops all objects in one of several orders.
    fn drop_in_order(mut self, order: usize) {
        match order {
            0 => drop(self),
            1 => {
                drop(std::mem::take(&mut self.pair.worker));
                drop(std::mem::take(&mut self.pair.server_worker));
            }
            2 => {
                let Self { key, target, source, clone, pair } = self;
                drop((target, source));
                drop(pair);
                drop((clone, key));
            }
            _ => {
                let Self { key, target, source, clone, mut pair } = self;
                drop(clone);
                drop(std::mem::take(&mut pair.worker));
                drop((pair, key, target, source));
            }
        }
    }
}

const ORDERS: usize = 4;

/// Exchanges data over the connection.
fn exchange(pair: &mut Pair, target: &Memory, source: &Memory, key: &RemoteKey, round: u8) {
    let flags = pair.client.interface.attributes().flags;
    if flags.contains(Flags::AM_SHORT) {
        let inbox = collect(&pair.server.interface, 1);
        for i in 0..10 {
            pair.post("message", |e| e.am_short(1, i, &[])).unwrap();
        }
        pair.until("messages", || headers(&inbox).len() == 10);
        assert_eq!(headers(&inbox), (0..10).collect::<Vec<_>>(), "{}", pair.name);
    }
    if flags.contains(Flags::PUT_ZCOPY) {
        source.write(0, &[round; 4096]).unwrap();
        let slice = [source.slice(0, 4096).unwrap()];
        let _ = pair.post("put", |e| e.put_zcopy(&slice, target.address(), key, None)).unwrap();
        pair.flush(FlushMode::Remote);
        assert_eq!(target.load_u8(4095).unwrap(), round, "{}", pair.name);
    }
}

pub(crate) fn a_child_does_nothing_to_what_it_inherits(place: &Place) {
    let mut ours = Inherited::new(place.pair());
    for round in 0..2 * ORDERS {
        let number = u8::try_from(round).unwrap();
        exchange(&mut ours.pair, &ours.target, &ours.source, &ours.key, number);
        if ours.flags().contains(Flags::AM_SHORT) && !ours.pair.is_self() {
            // In flight while the child runs: the parent receives them.
            for i in 0..3 {
                ours.pair.post("ahead", |e| e.am_short(2, i, &[])).unwrap();
            }
        }
        let unhandled = ours.pair.server.interface.unhandled();
        // SAFETY: the child ends in `fork`, so each process has one owner of the value.
        let inherited = unsafe { std::ptr::read(&raw const ours) };
        let child = std::mem::ManuallyDrop::new(inherited);
        let child = fork(move || {
            let mut inherited = std::mem::ManuallyDrop::into_inner(child);
            if round >= ORDERS {
                inherited.try_everything();
            }
            inherited.drop_in_order(round % ORDERS);
        });
        child.join(&format!("{}, round {round}", ours.pair.name));
        if ours.flags().contains(Flags::AM_SHORT) && !ours.pair.is_self() {
            let server = ours.pair.server.interface.clone();
            ours.pair
                .until("what was on its way", || server.unhandled() - unhandled >= 3 || round > 0);
        }
    }
    exchange(&mut ours.pair, &ours.target, &ours.source, &ours.key, 100);
}

/// A child opens new objects, and keeps what it inherited.
pub(crate) fn a_child_opens_its_own(place: &Place) {
    let mut ours = Inherited::new(place.pair());
    let child = fork(|| {
        let mut own = Inherited::new(place.pair());
        exchange(&mut own.pair, &own.target, &own.source, &own.key, 7);
        drop(own);
    });
    child.join(ours.pair.name);
    exchange(&mut ours.pair, &ours.target, &ours.source, &ours.key, 8);
}

/// Many children while operations are in flight and threads of the library run.
pub(crate) fn children_of_a_process_at_work(place: &Place) {
    const LENGTH: usize = 1 << 20;
    let mut pair = place.pair();
    let (target, key) = pair.target(LENGTH, Access::all());
    let source = pair.client.domain.allocate(LENGTH, Access::all()).unwrap();
    for round in 0..12 {
        let (peer, other) = (pair.client.another(), pair.server.another());
        connect(&peer, &other);
        pair.taken_by(&[&peer.endpoint, &other.endpoint]);
        let slice = [source.slice(0, LENGTH / 2).unwrap()];
        for _ in 0..8 {
            let _ = peer.endpoint.put_zcopy(&slice, target.address(), &key, None);
        }
        // At different times.
        thread::sleep(Duration::from_micros(50 * round));
        // SAFETY: the child ends in `fork`, so each process has one owner of the value.
        let inherited = unsafe { std::ptr::read(&raw const peer) };
        let inherited = std::mem::ManuallyDrop::new((inherited, ()));
        let child = fork(move || drop(std::mem::ManuallyDrop::into_inner(inherited)));
        child.join(&format!("{}, child {round}", pair.name));
        let flushed = || peer.endpoint.flush(FlushMode::Remote, None) == Ok(barewire::Posted::Done);
        pair.until("flush", flushed);
        drop((peer, other));
    }
    let inherited = std::mem::ManuallyDrop::new(pair);
    // SAFETY: the child ends in `fork`, so each process has one owner of the value.
    let childs = unsafe { std::ptr::read(&raw const inherited) };
    let child = fork(move || drop(std::mem::ManuallyDrop::into_inner(childs)));
    let pair = std::mem::ManuallyDrop::into_inner(inherited);
    child.join(pair.name);
}
