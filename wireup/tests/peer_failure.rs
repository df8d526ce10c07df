//! A peer process is killed at each step of its link: the link fails, with one cause; others go on.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::PostError;
use barewire_tcp::Key;
use barewire_wireup::address::WorkerAddress;
use barewire_wireup::link::{Link, Options, State};
use barewire_wireup::node::{Node, Rules};

/// Longer than a loaded machine needs for anything here.
const DEADLINE: Duration = Duration::from_secs(100);
const ID: u8 = 3;
/// The name of the child's variable: its transports.
const CHILD: &str = "BAREWIRE_TEST_PEER";

fn rules(names: &str) -> Rules {
    let rules = Rules::default().only(names.split(',')).key(Key::from_bytes([7; 32]));
    rules.deadline(DEADLINE).liveness(Duration::from_secs(5))
}

/// The peer: returns every message to its sender, until its standard input ends.
#[test]
fn peer() {
    let Ok(names) = std::env::var(CHILD) else { return };
    // The parent's death closes the pipe.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let mut node = Node::open(&rules(&names)).unwrap();
    let (links, headers) = (Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(Vec::new())));
    let (incoming, received) = (Rc::clone(&links), Rc::clone(&headers));
    node.on_peer(move |peer| incoming.borrow_mut().push(peer.link));
    node.set_handler(ID, move |message| {
        received.borrow_mut().push(message.split_short().unwrap().0);
    })
    .unwrap();
    println!("\naddress {}", node.address());
    std::io::stdout().flush().unwrap();
    loop {
        node.progress();
        let links = links.borrow();
        headers
            .borrow_mut()
            .retain(|header| links.iter().all(|link| link.am_short(ID, *header, &[]).is_err()));
    }
}

/// A child process, killed at the latest when it is dropped.
struct Peer {
    child: Child,
    address: WorkerAddress,
}

impl Peer {
    fn start(names: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "peer", "--nocapture", "--test-threads=1"])
            .env(CHILD, names)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut addresses = lines.filter_map(|line| line.strip_prefix("address ")?.parse().ok());
        let address = addresses.next().unwrap();
        Self { child, address }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn until(node: &mut Node, what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        node.progress();
        assert!(start.elapsed() < DEADLINE, "not within the deadline: {what}");
    }
}

/// Sends a message, and waits for it to come back.
fn round_trip(node: &mut Node, link: &Link, received: &RefCell<Vec<u64>>, header: u64) {
    until(node, "room", || match link.am_short(ID, header, &[]) {
        Ok(()) => true,
        Err(PostError::NoResource) => false,
        Err(error) => panic!("{error}: {:?}", link.error()),
    });
    until(node, "the message came back", || received.borrow().contains(&header));
}

/// What happens before the kill.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// So many calls of `progress` after `connect`.
    After(u32),
    /// The link is connected, and idle.
    Idle,
    /// Messages are under way.
    Busy,
}

fn kill_at(
    moment: Moment,
    names: &str,
    node: &mut Node,
    survivor: (&Link, &RefCell<Vec<u64>>),
    number: u64,
) {
    let mut victim = Peer::start(names);
    // A peer that is killed before it is connected is noticed at this deadline.
    let options = match moment {
        Moment::After(_) => Options::default().deadline(Duration::from_millis(300)),
        Moment::Idle | Moment::Busy => Options::default(),
    };
    let link = node.connect(&victim.address, options).unwrap();
    let connected = || match link.state() {
        State::Failed(_) => panic!("{:?}", link.error()),
        state => state == State::Connected,
    };
    match moment {
        Moment::After(calls) => (0..calls).for_each(|_| {
            node.progress();
        }),
        Moment::Idle => until(node, "connected", connected),
        Moment::Busy => {
            until(node, "connected", connected);
            while link.counters().posted < 100 && link.am_short(ID, u64::MAX, &[0; 8]).is_ok() {}
        }
    }
    victim.kill();
    until(node, "the link fails", || matches!(link.state(), State::Failed(_)));
    let cause = link.error().expect("a failed link has a cause").to_string();
    let refused = link.am_short(ID, 0, &[]).unwrap_err();
    assert_ne!(refused, PostError::NoResource, "{moment:?}");
    for _ in 0..100 {
        node.progress();
        assert_eq!(
            link.am_short(ID, 0, &[]),
            Err(refused),
            "{moment:?}: later posts give the same error"
        );
    }
    assert_eq!(link.error().unwrap().to_string(), cause);
    assert_eq!(survivor.0.state(), State::Connected, "{moment:?}: {:?}", survivor.0.error());
    round_trip(node, survivor.0, survivor.1, number);
    assert_eq!(node.links().len(), 1, "only the survivor's link remains");
}

fn kill_at_each_step(names: &str) {
    let other = Peer::start(names);
    let mut node = Node::open(&rules(names)).unwrap();
    let received = Rc::new(RefCell::new(Vec::new()));
    let headers = Rc::clone(&received);
    node.set_handler(ID, move |message| {
        headers.borrow_mut().push(message.split_short().unwrap().0);
    })
    .unwrap();
    let survivor = node.connect(&other.address, Options::default()).unwrap();
    round_trip(&mut node, &survivor, &received, 1);
    let moments = [0, 1, 2, 3, 5, 10, 30, 100].map(Moment::After);
    for (number, moment) in (2..).zip(moments.into_iter().chain([Moment::Idle, Moment::Busy])) {
        kill_at(moment, names, &mut node, (&survivor, &received), number);
    }
}

#[test]
fn a_peer_dies_at_each_step_over_shm() {
    kill_at_each_step("shm");
}

#[test]
fn a_peer_dies_at_each_step_over_tcp() {
    kill_at_each_step("tcp/lo");
}
