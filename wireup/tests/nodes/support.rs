//! Two nodes of one process, and what arrives at them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use barewire_bootstrap::Directory;
use barewire_tcp::Key;
use barewire_wireup::Peers;
use barewire_wireup::link::{Link, Options, State};
use barewire_wireup::node::{Node, Rules};

/// Longer than a loaded machine needs for anything here.
pub(crate) const DEADLINE: Duration = Duration::from_secs(100);
/// The handler of the tests.
pub(crate) const ID: u8 = 3;

pub(crate) fn rules(names: &[&str]) -> Rules {
    Rules::default().only(names.iter().copied()).key(Key::from_bytes([7; 32])).deadline(DEADLINE)
}

/// Every set of transports over which two nodes of this machine connect.
pub(crate) const SETS: [&[&str]; 5] =
    [&["shm"], &["tcp/lo"], &["shm", "cma", "tcp/lo"], &["soft0:1", "tcp/lo"], &["soft0:1", "shm"]];

/// A node that keeps the headers of the messages that it received.
pub(crate) struct Side {
    pub(crate) node: Node,
    pub(crate) received: Rc<RefCell<Vec<u64>>>,
    pub(crate) incoming: Rc<RefCell<Vec<Link>>>,
}

impl Side {
    pub(crate) fn new(rules: &Rules) -> Self {
        let mut node = Node::open(rules).unwrap();
        let received = Rc::new(RefCell::new(Vec::new()));
        let headers = Rc::clone(&received);
        node.set_handler(ID, move |message| {
            headers.borrow_mut().push(message.split_short().unwrap().0);
        })
        .unwrap();
        let incoming = Rc::new(RefCell::new(Vec::new()));
        let links = Rc::clone(&incoming);
        node.on_peer(move |peer| links.borrow_mut().push(peer.link));
        Self { node, received, incoming }
    }

    pub(crate) fn connect(&mut self, other: &Self) -> Link {
        self.node.connect(&other.node.address(), Options::default()).unwrap()
    }
}

pub(crate) fn pair(names: &[&str]) -> [Side; 2] {
    [Side::new(&rules(names)), Side::new(&rules(names))]
}

/// Two sides, the link that the first has made, and the second's end of it.
pub(crate) fn linked(names: &[&str]) -> ([Side; 2], Link, Link) {
    let mut sides = pair(names);
    let [here, there] = &mut sides;
    let link = here.connect(there);
    until_connected(&mut sides, &[&link]);
    until(&mut sides, "announced", |sides| sides[1].incoming.borrow().len() == 1);
    let back = sides[1].incoming.borrow()[0].clone();
    (sides, link, back)
}

/// Makes progress on all nodes until `done`.
pub(crate) fn until(sides: &mut [Side], what: &str, mut done: impl FnMut(&[Side]) -> bool) {
    let start = Instant::now();
    while !done(sides) {
        for side in &mut *sides {
            side.node.progress();
        }
        assert!(start.elapsed() < DEADLINE, "not within the deadline: {what}");
    }
}

pub(crate) fn until_connected(sides: &mut [Side], links: &[&Link]) {
    until(sides, "connected", |_| {
        for link in links {
            assert!(
                !matches!(link.state(), State::Failed(_) | State::Closed(_)),
                "{:?}",
                link.error()
            );
        }
        links.iter().all(|link| link.state() == State::Connected)
    });
}

/// Sends, with progress while there is no room.
pub(crate) fn send(sides: &mut [Side], link: &Link, header: u64) {
    until(sides, "room to send", |_| match link.am_short(ID, header, &[0; 8]) {
        Ok(()) => true,
        Err(barewire::PostError::NoResource) => false,
        Err(error) => panic!("{error}: {:?}", link.error()),
    });
}

/// Runs a test alone in a process: its memory is measured, or its limits are raised.
pub(crate) fn alone(test: &str, run: impl FnOnce()) {
    const CHILD: &str = "BAREWIRE_TEST_CHILD";
    if std::env::var(CHILD).is_ok_and(|child| child == test) {
        return run();
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", test, "--nocapture", "--include-ignored", "--test-threads=1"])
        .env(CHILD, test);
    let output = child.output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Calls `run` on each of so many ranks, which are threads, and returns the results. The ranks end
/// together.
pub(crate) fn jobs<R: Send>(
    size: u32,
    names: &[&str],
    run: impl Fn(&mut Node, &mut Directory, &Peers) -> R + Sync,
) -> Vec<R> {
    jobs_that_end(size, names, |node, job, peers| {
        let result = run(node, job, peers);
        peers.fence(node, job, DEADLINE).unwrap();
        result
    })
}

/// As [`jobs`], with ranks that end when `run` returns.
pub(crate) fn jobs_that_end<R: Send>(
    size: u32,
    names: &[&str],
    run: impl Fn(&mut Node, &mut Directory, &Peers) -> R + Sync,
) -> Vec<R> {
    jobs_with(size, &rules(names), run)
}

/// As [`jobs_that_end`], with these rules.
pub(crate) fn jobs_with<R: Send>(
    size: u32,
    rules: &Rules,
    run: impl Fn(&mut Node, &mut Directory, &Peers) -> R + Sync,
) -> Vec<R> {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let job = JOBS.fetch_add(1, Ordering::Relaxed);
    let name = format!("barewire-ranks-{}-{job}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let rank = |rank| {
        let mut job = Directory::open(&folder, rank, size).unwrap();
        let mut node = Node::open(rules).unwrap();
        let peers = Peers::exchange(&mut node, &mut job, DEADLINE).unwrap();
        run(&mut node, &mut job, &peers)
    };
    let rank = &rank;
    let results = thread::scope(|scope| {
        let threads: Vec<_> = (0..size).map(|number| scope.spawn(move || rank(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let _ = std::fs::remove_dir_all(&folder);
    results
}
