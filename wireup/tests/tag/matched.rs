//! Receives that a device and software match together, for links over the device and over shared
//! memory.

use std::collections::HashMap;
use std::rc::Rc;

use barewire::config::Choice;
use barewire::{Domain, Endpoint, HandlerError, Interface, InterfaceConfig, Worker};
use barewire_wireup::tag::{
    Buffer, FULL_MASK, Lane, Lanes, Limits, Mode, Request, TagError, TagLink, Tags,
};

use crate::support::{DEADLINE, SHM, TAGGED, bytes, ends, result, settle};

/// The data of an eager message is in the buffer without a copy by software, and so is a part of
/// the announcement of a long one until the data itself is there.
#[test]
fn the_device_matches_receives_that_were_posted_before() {
    let mut ends = ends(TAGGED, &[TAGGED]);
    let lengths = [0, 1, 8000, 8240, 8241, 100_000];
    let receives = lengths.map(|length| {
        let buffer = Buffer::new(100_000).expect("memory");
        (ends[1].tags.receive(length as u64, FULL_MASK, &buffer), buffer)
    });
    settle(&mut ends);
    for mode in [Mode::Eager, Mode::Synchronous] {
        let sends = lengths.map(|length| {
            let data = bytes(length, length);
            ends[0].tags.send(&ends[0].link, length as u64, &data[..], mode)
        });
        if mode == Mode::Synchronous {
            settle(&mut ends);
            assert!(sends.iter().all(|send| send.poll().is_none()), "no receive is left");
            assert_eq!(ends[1].tags.counters().announced, lengths.len());
        } else {
            for (length, (receive, buffer)) in lengths.iter().zip(&receives) {
                let envelope = result(&mut ends, receive).expect("received");
                assert_eq!(envelope.length, *length);
                assert!(buffer.to_vec()[..*length] == bytes(*length, *length), "{length}");
            }
            assert!(sends.iter().all(|send| result(&mut ends, send).is_ok()));
        }
    }
    let counters = ends[1].tags.counters();
    assert_eq!(counters.matched, lengths.len() as u64, "{counters:?}");
    assert_eq!((counters.unexpected_messages, counters.stray), (0, 0), "{counters:?}");
}

/// A receive in the list is cancelled, unless the device has matched it.
#[test]
fn receives_in_the_list_are_cancelled() {
    let mut ends = ends(TAGGED, &[TAGGED]);
    let buffer = Buffer::new(10_000).expect("memory");
    let receive = ends[1].tags.receive(1, FULL_MASK, &buffer);
    settle(&mut ends);
    assert!(receive.cancel());
    assert_eq!(result(&mut ends, &receive), Err(TagError::Canceled));
    assert!(!receive.cancel());
    // Its message goes to the next receive.
    let send = ends[0].tags.send(&ends[0].link, 1, b"hello", Mode::Auto);
    let next = ends[1].tags.receive(1, FULL_MASK, &buffer);
    assert_eq!(result(&mut ends, &next).expect("received").length, 5);
    assert!(!next.cancel());
    assert!(result(&mut ends, &send).is_ok());
}

/// The message of a link that was closed here ends its receive with an error; it cannot be posted
/// again in its old place.
#[test]
fn a_message_of_a_closed_link_fails_the_receive_that_it_matches() {
    let mut ends = ends(TAGGED, &[TAGGED]);
    let buffer = Buffer::new(10_000).expect("memory");
    let receive = ends[1].tags.receive(1, FULL_MASK, &buffer);
    settle(&mut ends);
    let link = ends[1].link.clone();
    ends[1].tags.close(&link);
    drop(ends[0].tags.send(&ends[0].link, 1, b"late", Mode::Auto));
    assert_eq!(result(&mut ends, &receive), Err(TagError::Closed));
    assert_eq!(ends[1].tags.counters().stray, 1);
}

#[test]
fn an_interface_whose_device_matches_nothing_is_refused() {
    let mut worker = Worker::new();
    let domain = Rc::new(Domain::open(&SHM.parse().expect("a device")).expect("a domain"));
    let interface =
        Interface::open(&mut worker, &domain, &InterfaceConfig::default()).expect("an interface");
    let refused = Tags::matched_by(&interface, &domain, 0, Limits::default()).map(drop);
    assert_eq!(refused, Err(HandlerError::NoTags));
}

/// One end, with a link over the device and one over shared memory.
struct Side {
    worker: Worker,
    tags: Tags,
    links: [TagLink; 2],
    _interfaces: [Interface; 2],
}

fn open(worker: &mut Worker, name: &str, list: u32) -> (Rc<Domain>, Interface) {
    let domain = Rc::new(Domain::open(&name.parse().expect("a device")).expect("a domain"));
    let tags = if name == SHM { Choice::No } else { Choice::Yes };
    let config = InterfaceConfig::default().tag_matching(tags).tag_list_size(list);
    let interface = Interface::open(worker, &domain, &config).expect("an interface");
    (domain, interface)
}

fn sides(list: u32) -> [Side; 2] {
    let opened = [(); 2].map(|()| {
        let mut worker = Worker::new();
        let device = open(&mut worker, "rc_mlx5/soft0:1", list);
        let shared = open(&mut worker, SHM, list);
        (worker, [device, shared])
    });
    let [one, other] = [0, 1].map(|side: usize| {
        let endpoint = Endpoint::new(&opened[side].1[0].1).expect("an endpoint");
        let peer = opened[1 - side].1[1].1.address();
        (endpoint, opened[side].1[1].1.connect(&peer).expect("connected"))
    });
    one.0.connect(&other.0.address()).expect("connected");
    other.0.connect(&one.0.address()).expect("connected");
    let mut endpoints = [one, other].into_iter();
    let sides = opened.map(|(worker, [device, shared])| {
        let (over_device, over_memory) = endpoints.next().expect("two sides");
        let limits = Limits::default();
        let tags = Tags::matched_by(&device.1, &device.0, LONGEST + 1, limits).expect("tags");
        tags.serve(&shared.1).expect("a handler");
        let lane = |endpoint, (domain, interface): &(Rc<Domain>, Interface)| {
            let lane = Lane::new(endpoint, interface, domain);
            tags.attach(Lanes::new(lane.clone(), vec![lane])).expect("a link")
        };
        let links = [lane(over_device, &device), lane(over_memory, &shared)];
        Side { worker, tags, links, _interfaces: [device.1, shared.1] }
    });
    for link in 0..2 {
        for side in 0..2 {
            let peer = sides[1 - side].links[link].opening();
            sides[side].tags.connect(&sides[side].links[link], peer);
        }
    }
    assert!(sides[0].links[0].opening().tagged && !sides[0].links[1].opening().tagged);
    sides
}

/// A receive with its tag and mask.
type Posted = (u64, u64, Buffer, Request);

/// A run of random operations from the first side to the second.
struct Run {
    sides: [Side; 2],
    random: fastrand::Rng,
    /// Tag, length, and link.
    messages: Vec<(u64, usize, usize)>,
    sends: Vec<Request>,
    receives: Vec<Posted>,
}

/// Longest message. Buffers of this length are not for the list.
const LONGEST: usize = 30_000;

impl Run {
    fn step(&mut self) {
        match self.random.u8(0..20) {
            0..6 => {
                let (number, link) = (self.messages.len(), self.random.usize(0..2));
                let (tag, mode) = (self.random.u64(0..5), self.mode());
                let most = [64, 8000, LONGEST][self.random.usize(0..3)];
                let length = self.random.usize(8..=most);
                let data = payload(number, length);
                let [from, _] = &self.sides;
                self.sends.push(from.tags.send(&from.links[link], tag, &data[..], mode));
                self.messages.push((tag, length, link));
            }
            6..14 if self.receives.len() < self.messages.len() + 40 => {
                let mask = [FULL_MASK, FULL_MASK, FULL_MASK, 1, 0][self.random.usize(0..5)];
                let tag = self.random.u64(0..5);
                let length = LONGEST + usize::from(self.random.u8(0..100) != 0);
                self.receive(tag, mask, length);
            }
            14 if !self.receives.is_empty() => {
                let last = self.receives.len();
                self.receives[self.random.usize(last.saturating_sub(30)..last)].3.cancel();
            }
            // The device needs some time to take receives into its list.
            _ => (0..self.random.usize(1..30)).for_each(|_| self.progress()),
        }
    }

    fn mode(&mut self) -> Mode {
        [Mode::Auto, Mode::Auto, Mode::Eager, Mode::Synchronous][self.random.usize(0..4)]
    }

    fn receive(&mut self, tag: u64, mask: u64, length: usize) {
        let buffer = Buffer::new(length).expect("memory");
        let receive = self.sides[1].tags.receive(tag, mask, &buffer);
        self.receives.push((tag, mask, buffer, receive));
    }

    fn progress(&mut self) {
        let events: usize = self.sides.iter_mut().map(|side| side.worker.progress()).sum();
        if events == 0 {
            // The threads of the devices need the CPU as well.
            std::thread::yield_now();
        }
    }

    /// Receives every message that is left, then cancels the receives that are left.
    fn finish(&mut self) {
        let begun = std::time::Instant::now();
        while self.sends.iter().any(|send| send.poll().is_none())
            || self.sides[1].tags.peek(0, 0).is_some()
        {
            if self.sides[1].tags.peek(0, 0).is_some() {
                self.receive(0, 0, LONGEST);
            }
            self.progress();
            assert!(begun.elapsed() < DEADLINE, "{:?}", self.sides.each_ref().map(|s| &s.tags));
        }
        for _ in 0..1000 {
            self.progress();
        }
        for receive in &self.receives {
            receive.3.cancel();
        }
        while self.receives.iter().any(|receive| receive.3.poll().is_none()) {
            self.progress();
            assert!(begun.elapsed() < DEADLINE, "a receive does not end");
        }
    }

    fn fits(&self, receive: usize, message: usize) -> bool {
        let (tag, mask, ..) = self.receives[receive];
        (self.messages[message].0 ^ tag) & mask == 0
    }

    /// Asserts that each receive has a whole message, the order of the messages of each link, and
    /// that of the receives. Returns how many were received and cancelled.
    fn check(&self) -> [usize; 2] {
        let (mut got, mut of) = (HashMap::new(), HashMap::new());
        let mut cancelled = Vec::new();
        let links = self.sides[1].links.each_ref().map(TagLink::key);
        for (number, (.., buffer, receive)) in self.receives.iter().enumerate() {
            let envelope = match receive.poll().expect("ended") {
                Err(TagError::Canceled) => {
                    cancelled.push(number);
                    continue;
                }
                other => other.unwrap_or_else(|error| panic!("receive {number}: {error}")),
            };
            let data = &buffer.to_vec()[..envelope.length];
            let message = usize::from_le_bytes(*data.first_chunk().expect("a number"));
            let (tag, length, link) = self.messages[message];
            assert_eq!(
                (envelope.tag, envelope.length, envelope.link),
                (tag, length, links[link]),
                "receive {number}, message {message}"
            );
            assert!(data == payload(message, length), "receive {number}, message {message}");
            assert!(self.fits(number, message), "receive {number}, message {message}");
            assert_eq!(of.insert(message, number), None, "message {message}, received twice");
            got.insert(number, message);
        }
        for (&receive, &message) in &got {
            for other in (0..message).filter(|&other| self.fits(receive, other)) {
                if self.messages[other].2 == self.messages[message].2 {
                    let got = of.get(&other);
                    assert!(got.is_some_and(|&got| got < receive), "{message} overtook {other}");
                }
            }
            for other in (0..receive).filter(|&other| self.fits(other, message)) {
                assert!(
                    got.contains_key(&other) || cancelled.contains(&other),
                    "receive {other} was passed over"
                );
            }
        }
        [got.len(), cancelled.len()]
    }
}

/// The number of the message, and other bytes.
fn payload(number: usize, length: usize) -> Vec<u8> {
    let mut data = bytes(number, length);
    data[..8].copy_from_slice(&number.to_le_bytes());
    data
}

/// The list is short, so that receives move between software and the list all the time.
#[test]
fn links_over_a_device_and_over_memory_share_their_receives() {
    for (seed, list) in [(1, 3), (2, 20), (3, 255)] {
        let random = fastrand::Rng::with_seed(seed);
        let (messages, sends, receives) = (Vec::new(), Vec::new(), Vec::new());
        let mut run = Run { sides: sides(list), random, messages, sends, receives };
        for _ in 0..10_000 {
            run.step();
        }
        run.finish();
        let [received, cancelled] = run.check();
        let counters = run.sides[1].tags.counters();
        println!("{seed}: {received} received, {cancelled} cancelled, {counters:?}");
        assert_eq!(received, run.messages.len());
        assert!(cancelled > 0 && counters.matched > 0, "{cancelled}, {counters:?}");
        assert_eq!((counters.unexpected_messages, counters.announced, counters.stray), (0, 0, 0));
        for side in &run.sides {
            for link in &side.links {
                assert_eq!(side.tags.failure(link), None);
            }
        }
    }
}
