//! Peers in the port's own process, which connect without its progress.

use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::RwLock;
use std::time::{Duration, Instant};

use barewire_shm::{
    BulkReceiver, Deliver, INLINE, LinkError, MESSAGE_WORDS, Peer, Port, PortAddress, PortConfig,
    RegionSet, SendError,
};
use rustix::event::{PollFd, PollFlags, poll};

const DEADLINE: Duration = Duration::from_mins(1);
/// Locked for writing while a child is forked, which has only one of the threads.
static FORK: RwLock<()> = RwLock::new(());

/// Records messages: the id, the header or the first word, and the length.
#[derive(Default)]
struct Inbox {
    scratch: [u64; MESSAGE_WORDS],
    messages: Vec<(u8, u64, usize)>,
    broken: Vec<String>,
}

impl Deliver for Inbox {
    fn scratch(&mut self) -> &mut [u64; MESSAGE_WORDS] {
        &mut self.scratch
    }

    fn wants_more(&self) -> bool {
        true
    }

    fn short(&mut self, id: u8, length: usize) {
        self.messages.push((id, self.scratch[0], length));
    }

    fn buffered(
        &mut self,
        id: u8,
        buffers: &Rc<BulkReceiver>,
        number: u8,
        data: NonNull<u8>,
        length: usize,
    ) {
        // SAFETY: the buffer has more than 8 bytes, is aligned to a line, and was filled before.
        let word = unsafe { data.cast::<u64>().read() };
        self.messages.push((id, word, length));
        buffers.give(number);
    }

    fn broken(&mut self, _: i32, why: LinkError) {
        self.broken.push(why.to_string());
    }

    fn peer(&mut self, _: u32) {}
}

fn config() -> PortConfig {
    PortConfig { direct: true, ..PortConfig::default() }
}

fn address() -> PortAddress {
    PortAddress::random().unwrap()
}

/// Makes progress until this many messages have arrived.
fn receive(port: &mut Port, count: usize) -> Vec<(u8, u64, usize)> {
    let (mut inbox, start) = (Inbox::default(), Instant::now());
    while inbox.messages.len() < count {
        port.progress(&mut inbox);
        assert!(start.elapsed() < DEADLINE, "{} messages", inbox.messages.len());
        assert!(inbox.broken.is_empty(), "{:?}", inbox.broken);
    }
    inbox.messages
}

/// Sends a message in a buffer that begins with `word`.
fn send_buffer(peer: &mut Peer, word: u64) -> Result<(), SendError> {
    let number = peer.take_buffer()?;
    // SAFETY: the buffer is aligned to a line and belongs to this side until it is sent.
    unsafe { peer.buffer(number).cast::<u64>().write(word) };
    peer.send_buffer(5, number, 4000)
}

#[test]
fn everything_is_posted_before_the_port_makes_progress() {
    let _no_fork = FORK.read();
    let regions = RegionSet::new(7);
    let region = regions.region(64).unwrap();
    let address = address();
    let mut port = Port::open(address, &config(), &regions).unwrap();
    let mut peers: Vec<Peer> = (0..3).map(|_| Peer::connect(address, &config()).unwrap()).collect();
    for (at, peer) in peers.iter_mut().enumerate() {
        assert!(peer.is_ready() && peer.has_room() == Ok(true));
        assert_eq!((peer.region_set(), peer.process()), (7, std::process::id() as i32));
        peer.send(at as u8, 10, &[1; INLINE]).unwrap();
        send_buffer(peer, 11).unwrap();
        peer.send(at as u8, 12, &[]).unwrap();
        let mapped = peer.region(region.number(), 64).unwrap().unwrap();
        assert_eq!((mapped.start(), mapped.size()), (region.mapped().start(), 64));
        assert!(peer.region(!region.number(), 1).unwrap().is_none(), "no such region");
    }
    let messages = receive(&mut port, 9);
    for at in 0..3_u8 {
        let of_peer = [(at, 10, INLINE), (5, 11, 4000), (at, 12, 0)];
        let mut rest = messages.iter();
        assert!(of_peer.iter().all(|message| rest.any(|other| other == message)), "{messages:?}");
    }
    // The port notifies the peers of the end of the region.
    let number = region.number();
    drop(region);
    peers[0].tend().unwrap();
    assert!(peers[0].region(number, 64).unwrap().is_none());
}

#[test]
fn either_end_may_be_closed_first() {
    let _no_fork = FORK.read();
    let address = address();
    let mut port = Port::open(address, &config(), &RegionSet::new(1)).unwrap();
    let mut closed = Peer::connect(address, &config()).unwrap();
    closed.send(3, 1, &[]).unwrap();
    drop(closed);
    drop(Peer::connect(address, &config()).unwrap());
    let mut taken = Peer::connect(address, &config()).unwrap();
    taken.send(3, 2, &[]).unwrap();
    let mut messages = receive(&mut port, 2);
    messages.sort_unstable();
    assert_eq!(messages, [(3, 1, 0), (3, 2, 0)], "sent messages arrive");
    let mut waiting = Peer::connect(address, &config()).unwrap();
    drop(port);
    for peer in [&mut taken, &mut waiting] {
        assert_eq!(peer.tend(), Err(SendError::Lost));
        assert!(matches!(peer.error(), Some(LinkError::Ended)), "{:?}", peer.error());
        assert_eq!(peer.send(3, 3, &[]), Err(SendError::Lost));
    }
    assert!(matches!(Peer::connect(address, &config()), Err(LinkError::NotListening)));
    // The same number can be used again.
    let mut again = Port::open(address, &config(), &RegionSet::new(1)).unwrap();
    Peer::connect(address, &config()).unwrap().send(3, 4, &[]).unwrap();
    assert_eq!(receive(&mut again, 1), [(3, 4, 0)]);
}

/// Connections that a port does not take are limited: the next one waits in its socket's queue.
#[test]
fn a_port_that_makes_no_progress_holds_few_descriptors() {
    let _no_fork = FORK.read();
    let address = address();
    let mut port = Port::open(address, &config(), &RegionSet::new(1)).unwrap();
    let mut waiting = loop {
        let peer = Peer::connect(address, &config()).unwrap();
        if !peer.is_ready() {
            break peer;
        }
    };
    let (mut inbox, start) = (Inbox::default(), Instant::now());
    while !waiting.is_ready() {
        port.check_sockets(&mut inbox);
        waiting.tend().unwrap();
        assert!(start.elapsed() < DEADLINE);
    }
    waiting.send(3, 1, &[]).unwrap();
    assert_eq!(receive(&mut port, 1), [(3, 1, 0)]);
    assert!(Peer::connect(address, &config()).unwrap().is_ready(), "it has taken the others");
}

/// Such a peer waits for the port's response over the socket.
#[test]
fn a_peer_without_the_setting_or_the_secret_is_not_let_in() {
    let _no_fork = FORK.read();
    let address = address();
    let mut port = Port::open(address, &config(), &RegionSet::new(1)).unwrap();
    let wrong = PortAddress { secret: !address.secret, ..address };
    assert!(Peer::can_enter(address, &config()) && !Peer::can_enter(wrong, &config()));
    assert!(!Peer::can_enter(address, &PortConfig::default()));
    let mut refused = Peer::connect(wrong, &config()).unwrap();
    let mut ordinary = Peer::connect(address, &PortConfig::default()).unwrap();
    assert!(!refused.is_ready() && !ordinary.is_ready());
    let (mut inbox, start) = (Inbox::default(), Instant::now());
    while refused.error().is_none() || !ordinary.is_ready() {
        port.check_sockets(&mut inbox);
        let _ = (refused.tend(), ordinary.tend());
        assert!(start.elapsed() < DEADLINE);
    }
    assert!(matches!(refused.error(), Some(LinkError::Secret)), "{:?}", refused.error());
    ordinary.send(3, 1, &[]).unwrap();
    assert_eq!(receive(&mut port, 1), [(3, 1, 0)]);
    // A port without the setting has no entrance.
    let plain = PortAddress::random().unwrap();
    let _port = Port::open(plain, &PortConfig::default(), &RegionSet::new(1)).unwrap();
    assert!(!Peer::connect(plain, &config()).unwrap().is_ready());
}

/// Several threads connect to a port that sleeps, send, and close, again and again.
#[test]
fn a_sleeping_port_is_woken_by_peers_of_other_threads() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 50;
    let _no_fork = FORK.read();
    let address = address();
    let mut port = Port::open(address, &config(), &RegionSet::new(1)).unwrap();
    let threads = (0..THREADS).map(|thread| {
        std::thread::spawn(move || {
            for round in 0..ROUNDS {
                let mut peer = Peer::connect(address, &config()).unwrap();
                peer.send(3, thread << 32 | round, &[]).unwrap();
                send_buffer(&mut peer, thread << 32 | round).unwrap();
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    let (mut inbox, start) = (Inbox::default(), Instant::now());
    let watcher = port.watcher();
    let timeout = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
    while inbox.messages.len() < (2 * THREADS * ROUNDS) as usize {
        while !watcher.arm().unwrap() {
            port.progress(&mut inbox);
        }
        let mut waited = [PollFd::new(&watcher, PollFlags::IN)];
        // The last wake-up may be followed by the last messages.
        if inbox.messages.len() < (2 * THREADS * ROUNDS) as usize {
            assert_ne!(poll(&mut waited, Some(&timeout)).unwrap(), 0, "not woken");
        }
        port.progress(&mut inbox);
        assert!(start.elapsed() < DEADLINE);
    }
    for thread in threads {
        thread.join().unwrap();
    }
    let mut all: Vec<u64> = inbox.messages.iter().map(|(_, word, _)| *word).collect();
    all.sort_unstable();
    let expected = (0..THREADS).flat_map(|thread| (0..ROUNDS).map(move |round| (thread, round)));
    let expected: Vec<u64> =
        expected.flat_map(|(thread, round)| [thread << 32 | round; 2]).collect();
    assert_eq!(all, expected);
}

/// The messages by which a sender wakes the port are read before the next sleep, however many there
/// are: otherwise the port would not sleep.
#[test]
fn a_port_that_is_woken_for_every_message_sleeps_between_them() {
    const ROUNDS: u64 = 40_000;
    let _no_fork = FORK.read();
    let address = address();
    let mut port = Port::open(address, &config(), &RegionSet::new(1)).unwrap();
    let mut peer = Peer::connect(address, &config()).unwrap();
    let (mut inbox, watcher, start) = (Inbox::default(), port.watcher(), Instant::now());
    let readable = |watcher: &_, seconds| {
        let timeout = rustix::time::Timespec { tv_sec: seconds, tv_nsec: 0 };
        poll(&mut [PollFd::new(watcher, PollFlags::IN)], Some(&timeout)).unwrap() != 0
    };
    let mut at_once = 0;
    for round in 0..ROUNDS {
        while !watcher.arm().unwrap() {
            port.progress(&mut inbox);
        }
        at_once += u64::from(readable(&watcher, 0));
        peer.send(3, round, &[]).unwrap();
        assert!(readable(&watcher, 20), "not woken");
        while inbox.messages.is_empty() {
            port.progress(&mut inbox);
        }
        inbox.messages.clear();
        assert!(start.elapsed() < DEADLINE, "round {round}");
    }
    assert!(at_once < ROUNDS / 100, "{at_once} of {ROUNDS} sleeps end at once");
}

/// A forked child must not enter the ports of its parent, whose copies it has.
#[test]
fn a_forked_child_has_ports_of_its_own_only() {
    let _no_threads = FORK.write();
    let (parents, childs) = (address(), address());
    let mut port = Port::open(parents, &config(), &RegionSet::new(1)).unwrap();
    in_child(|| {
        let outside = Peer::connect(parents, &config()).unwrap();
        assert!(!outside.is_ready(), "entered the parent's port");
        let mut own = Port::open(childs, &config(), &RegionSet::new(1)).unwrap();
        let mut peer = Peer::connect(childs, &config()).unwrap();
        assert!(peer.is_ready());
        peer.send(3, 9, &[]).unwrap();
        assert_eq!(receive(&mut own, 1), [(3, 9, 0)]);
        assert!(!Peer::connect(parents, &config()).unwrap().is_ready());
    });
    // The parent's port still lets its own peers in.
    Peer::connect(parents, &config()).unwrap().send(3, 8, &[]).unwrap();
    assert_eq!(receive(&mut port, 1), [(3, 8, 0)]);
}

/// A forked child does not close descriptors by the numbers that they have in its parent. In the
/// child, these may be closed or belong to other files: fork copies the descriptors before the
/// memory, and a daemon closes all that it inherits.
#[test]
fn a_forked_child_closes_no_connection_of_its_parent() {
    let _no_threads = FORK.write();
    let (parents, childs) = (address(), address());
    let mut port = Port::open(parents, &config(), &RegionSet::new(1)).unwrap();
    let mut waiting = Peer::connect(parents, &config()).unwrap();
    in_child(|| {
        // SAFETY: the child uses none of the objects that it inherits, and forgets them.
        assert_eq!(unsafe { libc::close_range(3, libc::c_uint::MAX, 0) }, 0);
        let file = std::fs::File::open("/dev/zero").unwrap();
        let _own = Port::open(childs, &config(), &RegionSet::new(1)).unwrap();
        file.metadata().unwrap();
    });
    waiting.send(3, 7, &[]).unwrap();
    assert_eq!(receive(&mut port, 1), [(3, 7, 0)]);
}

/// Runs `body` in a forked child and waits until it succeeds. The caller has locked [`FORK`].
fn in_child(body: impl FnOnce()) {
    // SAFETY: the child calls code that allocates, which the C library allows after a fork; it
    // takes no lock that another thread of the parent may have, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: ends the child without the destructors of its parent.
        unsafe { libc::_exit(result.is_err().into()) };
    }
    let mut status = 0;
    // SAFETY: the child of this process, and a valid pointer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child failed");
}
