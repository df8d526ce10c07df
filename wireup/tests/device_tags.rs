//! Receives that a device and software match together, against the order of posts and sends, over
//! two software HCAs whose wire loses, repeats and reorders packets.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::config::Choice;
use barewire::{
    Access, Completion, Domain, Endpoint, HandlerError, Interface, InterfaceConfig, Memory,
    PostError, Worker,
};
use barewire_wireup::tag::device::{DeviceTags, Receipt};
use barewire_wireup::tag::{Buffer, FULL_MASK, TagError};

/// Generous: the machine may be busy.
const DEADLINE: Duration = Duration::from_mins(2);
/// Longest message.
const LONGEST: usize = 40_000;
/// Parts of the sender's memory, which messages use in turn.
const PLACES: usize = 64;

struct Ends {
    worker: Worker,
    server_worker: Worker,
    domain: Rc<Domain>,
    interface: Interface,
    sender: Endpoint,
    sender_domain: Domain,
    /// Stay open with the ends.
    _others: (Interface, Endpoint),
}

fn open(worker: &mut Worker, config: &InterfaceConfig) -> (Domain, Interface, Endpoint) {
    let domain = Domain::open(&"rc_mlx5/soft0:1".parse().unwrap()).unwrap();
    let interface = Interface::open(worker, &domain, config).unwrap();
    let endpoint = Endpoint::new(&interface).unwrap();
    (domain, interface, endpoint)
}

impl Ends {
    fn new(list: u32) -> Self {
        let config = InterfaceConfig::default().tag_matching(Choice::Yes).tag_list_size(list);
        let (mut worker, mut server_worker) = (Worker::new(), Worker::new());
        let (sender_domain, client, sender) = open(&mut worker, &config);
        let (domain, interface, receiver) = open(&mut server_worker, &config);
        sender.connect(&receiver.address()).unwrap();
        receiver.connect(&sender.address()).unwrap();
        let (domain, others) = (Rc::new(domain), (client, receiver));
        Self { worker, server_worker, domain, interface, sender, sender_domain, _others: others }
    }

    fn progress(&mut self) {
        if self.worker.progress() + self.server_worker.progress() == 0 {
            // The threads of the devices need the CPU as well.
            std::thread::yield_now();
        }
    }

    fn until(&mut self, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            self.progress();
            assert!(start.elapsed() < DEADLINE, "not done in time");
        }
    }
}

/// The bytes of message `number`.
fn payload(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + number * 31) as u8).collect()
}

struct Posted {
    tag: u64,
    mask: u64,
    buffer: Buffer,
    receipt: Receipt,
}

/// A run of random operations.
struct Run {
    ends: Ends,
    tags: DeviceTags,
    random: fastrand::Rng,
    source: Memory,
    /// Tag, length and immediate; that of a rendezvous is not the program's.
    messages: Vec<(u64, usize, Option<u32>)>,
    receives: Vec<Posted>,
    /// Sends whose memory is in use until they end.
    announced: Completion,
    counts: HashMap<&'static str, u32>,
}

impl Run {
    fn new(seed: u64, list: u32, threshold: usize) -> Self {
        let ends = Ends::new(list);
        let tags = DeviceTags::new(&ends.interface, &ends.domain, threshold).unwrap();
        let all = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let source = ends.sender_domain.allocate(LONGEST * PLACES, all).unwrap();
        let (random, announced) = (fastrand::Rng::with_seed(seed), Completion::counter());
        let (messages, receives, counts) = (Vec::new(), Vec::new(), HashMap::new());
        Self { ends, tags, random, source, messages, receives, announced, counts }
    }

    fn send(&mut self) {
        let number = self.messages.len();
        if number.is_multiple_of(PLACES) {
            self.settle_sends();
        }
        let tag = self.random.u64(0..5);
        let limits = self.ends.interface.attributes().tag;
        let kind = self.random.usize(0..4);
        let most = [limits.max_short, limits.max_bcopy, limits.max_zcopy, LONGEST][kind];
        let most = if self.random.bool() { most.min(64) } else { most };
        let length = self.random.usize(1..=most);
        let data = payload(number, length);
        let place = number % PLACES * LONGEST;
        self.source.write(place, &data).unwrap();
        let slice = self.source.slice(place, length).unwrap();
        let immediate = number as u32;
        let (sender, announced) = (&self.ends.sender.clone(), &self.announced);
        self.ends.until(|| {
            let posted = match kind {
                0 => sender.tag_short(tag, &data),
                1 => {
                    let pack = |to: &mut [u8]| {
                        to[..length].copy_from_slice(&data);
                        length
                    };
                    sender.tag_bcopy(tag, immediate, pack).map(drop)
                }
                2 => sender.tag_zcopy(tag, immediate, &[slice], Some(announced)).map(drop),
                _ => sender.tag_rendezvous(tag, b"header", &slice, announced),
            };
            match posted {
                Ok(()) => true,
                Err(PostError::NoResource) => false,
                Err(error) => panic!("{error}"),
            }
        });
        let immediate = [Some(0), Some(immediate), Some(immediate), None][kind];
        self.messages.push((tag, length, immediate));
        let name = ["short", "bcopy", "zcopy", "rendezvous"][kind];
        *self.counts.entry(name).or_default() += 1;
    }

    /// Waits until the sender's memory is not in use: every message has a receive.
    fn settle_sends(&mut self) {
        while self.announced.pending() > 0 {
            for _ in 0..20 {
                self.ends.progress();
            }
            if self.announced.pending() > 0 && self.tags.kept() > 0 {
                self.receive(0, 0);
            }
        }
    }

    fn receive(&mut self, tag: u64, mask: u64) {
        // Some are too short for the list.
        let length = if self.random.u8(0..4) == 0 { LONGEST } else { LONGEST + 64 };
        let buffer = Buffer::new(length).unwrap();
        let receipt = self.tags.receive(tag, mask, &buffer);
        self.receives.push(Posted { tag, mask, buffer, receipt });
    }

    fn step(&mut self) {
        match self.random.u8(0..20) {
            0..7 => self.send(),
            7..14 if self.receives.len() < self.messages.len() + 20 => {
                let tag = self.random.u64(0..5);
                let mask = [FULL_MASK, FULL_MASK, FULL_MASK, 1, 0][self.random.usize(0..5)];
                self.receive(tag, mask);
            }
            14 if !self.receives.is_empty() => {
                let at =
                    self.random.usize(self.receives.len().saturating_sub(30)..self.receives.len());
                self.receives[at].receipt.cancel();
            }
            _ => self.ends.progress(),
        }
    }

    /// Lets everything come to rest: nothing is under way between the two ends.
    fn finish(&mut self) {
        for receive in &self.receives {
            receive.receipt.cancel();
        }
        let receives = &self.receives;
        self.ends.until(|| receives.iter().all(|receive| receive.receipt.poll().is_some()));
        // A message behind all others.
        let buffer = Buffer::new(LONGEST).unwrap();
        let last = self.tags.receive(u64::MAX, FULL_MASK, &buffer);
        let sender = self.ends.sender.clone();
        self.ends.until(|| sender.tag_short(u64::MAX, b"last").is_ok());
        self.ends.until(|| last.poll().is_some());
    }

    /// Compares with what follows from the two orders.
    fn check(&mut self) {
        let mut left: Vec<usize> = (0..self.messages.len()).collect();
        let (mut received, mut cancelled) = (0, 0);
        for (number, posted) in self.receives.iter().enumerate() {
            let result = posted.receipt.poll().unwrap();
            if result == Err(TagError::Canceled) {
                cancelled += 1;
                continue;
            }
            let fits =
                |&message: &usize| (self.messages[message].0 ^ posted.tag) & posted.mask == 0;
            let at = left.iter().position(fits).unwrap_or_else(|| panic!("{number}: {result:?}"));
            let message = left.remove(at);
            let (tag, length, immediate) = self.messages[message];
            match result {
                Ok(found) => {
                    assert_eq!((found.tag, found.length), (tag, length), "{number}");
                    assert!(immediate.is_none_or(|wanted| wanted == found.immediate), "{number}");
                    let mut bytes = vec![0; length];
                    posted.buffer.read(0, &mut bytes).unwrap();
                    assert!(
                        bytes == payload(message, length),
                        "receive {number}, message {message}"
                    );
                    received += 1;
                }
                Err(error) => panic!("receive {number}, message {message}: {error}"),
            }
        }
        self.counts.insert("received", received);
        self.counts.insert("cancelled", cancelled);
        assert_eq!(self.tags.waiting(), 0);
    }
}

#[test]
fn every_message_goes_to_the_receive_that_was_posted_first() {
    const FAULTS: &str = "drop=0.005,duplicate=0.01,reorder=0.01,seed=5";
    // SAFETY: the other test reads no such variable, and the library reads it only here.
    unsafe { std::env::set_var("BAREWIRE_HCA_FAULTS", FAULTS) };
    for (seed, list, threshold) in [(1, 3, 0), (2, 63, LONGEST + 1), (3, 255, 0)] {
        let mut run = Run::new(seed, list, threshold);
        for _ in 0..4000 {
            run.step();
        }
        run.finish();
        run.check();
        println!("{seed}: {:?}", run.counts);
        assert!(run.counts.values().all(|count| *count > 20), "{:?}", run.counts);
    }
}

#[test]
fn who_matches_no_tags_says_so() {
    let mut worker = Worker::new();
    let domain = Rc::new(Domain::open(&"self/memory".parse().unwrap()).unwrap());
    let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default()).unwrap();
    let refused = DeviceTags::new(&interface, &domain, 0).map(drop);
    assert_eq!(refused, Err(HandlerError::NoTags));
}
