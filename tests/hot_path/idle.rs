//! Costs of an idle connection of `tcp`: memory, and time of progress.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::{Domain, InterfaceConfig, Worker};

use crate::allocation::held;
use crate::support::{Side, connect, until};

/// The limit that src/transport/tcp/mod.rs states.
const MOST_BYTES: isize = 1024;
const COUNT: usize = 200;

/// Two workers, each with an interface, and connections between them that have carried a message in
/// each direction.
struct Ends {
    workers: [Worker; 2],
    first: [Side; 2],
    others: Vec<[Side; 2]>,
}

impl Ends {
    fn open() -> Self {
        let mut workers = [Worker::new(), Worker::new()];
        let domain = Domain::open(&"tcp/lo".parse().unwrap()).unwrap();
        let config = InterfaceConfig::default().max_endpoints(1 + 2 * COUNT as u32);
        let first = workers.each_mut().map(|worker| Side::open(worker, &domain, &config));
        connect(&first[0], &first[1]);
        let mut ends = Self { workers, first, others: Vec::with_capacity(2 * COUNT) };
        ends.use_each();
        ends
    }

    fn more(&mut self) {
        for _ in 0..COUNT {
            let sides = self.first.each_ref().map(Side::another);
            connect(&sides[0], &sides[1]);
            self.others.push(sides);
        }
        self.use_each();
    }

    fn use_each(&mut self) {
        let received = Rc::new(Cell::new(0));
        for side in &self.first {
            let received = Rc::clone(&received);
            side.interface.set_handler(1, move |_| received.set(received.get() + 1)).unwrap();
        }
        let mut sent = 0;
        for sides in std::iter::once(&self.first).chain(&self.others) {
            for side in sides {
                side.endpoint.am_short(1, 0, &[7; 4000]).unwrap();
                sent += 1;
            }
        }
        let [one, other] = &mut self.workers;
        until(&mut [one, other], "messages", || received.get() == sent);
        for worker in &mut self.workers {
            (0..100).for_each(|_| _ = worker.progress());
        }
    }

    /// The minimum time of an idle progress call over several attempts.
    fn idle_progress(&mut self) -> Duration {
        const CALLS: u32 = 2000;
        let of_one_try = |_| {
            let start = Instant::now();
            (0..CALLS).for_each(|_| _ = self.workers[0].progress());
            start.elapsed() / CALLS
        };
        (0..20).map(of_one_try).min().unwrap()
    }
}

#[test]
fn an_idle_connection_is_cheap() {
    let mut ends = Ends::open();
    let alone = ends.idle_progress();
    // This allocates the buffers that connections share.
    ends.more();
    let before = held();
    ends.more();
    let bytes = (held() - before) / (2 * COUNT as isize);
    let among_many = ends.idle_progress();
    eprintln!(
        "an idle connection holds {bytes} B; progress with nothing to do takes {alone:?}, with {} connections more {among_many:?}",
        2 * COUNT
    );
    assert!((1..=MOST_BYTES).contains(&bytes), "{bytes} bytes for each end of a connection");
    // There is one system call, whatever the number of connections.
    assert!(among_many < 4 * alone + Duration::from_micros(20), "{alone:?}, then {among_many:?}");
}
