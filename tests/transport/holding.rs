//! Senders that a handler holds: their messages wait, those of others do not, and none is lost.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use barewire::{Domain, Endpoint, Flags, Interface, InterfaceConfig, PostError, Worker};

use crate::support::DEADLINE;

const COUNT: u64 = 200;
const LONG: usize = 2000;

/// Endpoints of a sender, and of the receiver to it.
struct Sender {
    worker: Worker,
    endpoint: Option<Endpoint>,
    _back: Option<Endpoint>,
}

/// A receiver with two senders.
struct Three {
    receiver: Worker,
    interface: Interface,
    senders: [Sender; 2],
    /// Sender and number of each message.
    received: Rc<RefCell<Vec<(usize, u64)>>>,
    /// Whether the handler holds this sender.
    holds: Rc<Cell<Option<usize>>>,
}

fn open(device: &str) -> (Worker, Interface) {
    let mut worker = Worker::new();
    let domain = Domain::open(&device.parse().unwrap()).unwrap();
    let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default()).unwrap();
    (worker, interface)
}

impl Three {
    fn new(device: &str) -> Self {
        let (receiver, interface) = open(device);
        let senders = [(); 2].map(|()| {
            let (worker, own) = open(device);
            if own.attributes().flags.contains(Flags::CONNECT_TO_INTERFACE) {
                let endpoint = Some(own.connect(&interface.address()).unwrap());
                return Sender { worker, endpoint, _back: None };
            }
            let (endpoint, back) =
                (Endpoint::new(&own).unwrap(), Endpoint::new(&interface).unwrap());
            endpoint.connect(&back.address()).unwrap();
            back.connect(&endpoint.address()).unwrap();
            Sender { worker, endpoint: Some(endpoint), _back: Some(back) }
        });
        let received = Rc::new(RefCell::new(Vec::new()));
        let holds = Rc::new(Cell::new(None));
        for sender in 0..2 {
            let (received, holds) = (Rc::clone(&received), Rc::clone(&holds));
            let handle = interface.clone();
            let handler = move |message: barewire::Message<'_>| {
                let number = u64::from_le_bytes(message.data()[..8].try_into().unwrap());
                received.borrow_mut().push((sender, number));
                if holds.get() == Some(sender) {
                    assert!(handle.hold_sender());
                }
            };
            interface.set_handler(sender as u8, handler).unwrap();
        }
        Self { receiver, interface, senders, received, holds }
    }

    fn count(&self, sender: usize) -> u64 {
        self.received.borrow().iter().filter(|(from, _)| *from == sender).count() as u64
    }

    fn progress(&mut self) {
        self.receiver.progress();
        for sender in &mut self.senders {
            sender.worker.progress();
        }
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            self.progress();
            assert!(start.elapsed() < DEADLINE, "{what}: {:?}", [self.count(0), self.count(1)]);
        }
    }

    /// Posts a message, short or long, of these numbers, as far as there is room. Returns the next
    /// number.
    fn send(&mut self, sender: usize, numbers: std::ops::Range<u64>) -> u64 {
        let Some(endpoint) = &self.senders[sender].endpoint else { return numbers.start };
        for number in numbers.clone() {
            let posted = if number % 3 == 0 {
                let pack = |room: &mut [u8]| {
                    room[..8].copy_from_slice(&number.to_le_bytes());
                    room[8..LONG].fill(7);
                    LONG
                };
                endpoint.am_bcopy(sender as u8, pack).map(drop)
            } else {
                endpoint.am_short(sender as u8, number, &[7; 20])
            };
            match posted {
                Ok(()) => {}
                Err(PostError::NoResource) => return number,
                Err(error) => panic!("{error}"),
            }
        }
        numbers.end
    }

    /// Sends messages from both, until all of the second have arrived.
    fn send_both(&mut self) -> u64 {
        let mut next = [0; 2];
        let start = Instant::now();
        while self.count(1) < COUNT {
            for (sender, next) in next.iter_mut().enumerate() {
                *next = self.send(sender, *next..COUNT);
            }
            self.progress();
            assert!(start.elapsed() < DEADLINE, "{next:?}");
        }
        next[0]
    }

    fn assert_ordered(&self, sender: usize, count: u64) {
        let received = self.received.borrow();
        let numbers =
            received.iter().filter(|(from, _)| *from == sender).map(|(_, number)| *number);
        assert!(numbers.eq(0..count));
    }
}

const DEVICES: [&str; 2] = ["shm/memory", "tcp/lo"];

#[test]
fn messages_of_a_held_sender_wait_and_those_of_others_arrive() {
    for device in DEVICES {
        let mut three = Three::new(device);
        three.holds.set(Some(0));
        let mut next = three.send_both();
        assert!((1..=64).contains(&three.count(0)), "{device}: {}", three.count(0));
        // Each release lets at least one message through.
        let before = three.count(0);
        three.interface.release_senders();
        three.until("a message after the release", |three| three.count(0) > before);
        for _ in 0..1000 {
            three.progress();
        }
        assert!(three.count(0) < COUNT, "{device}");
        three.holds.set(None);
        three.interface.release_senders();
        let start = Instant::now();
        while three.count(0) < COUNT {
            next = three.send(0, next..COUNT);
            three.progress();
            assert!(start.elapsed() < DEADLINE, "{device}: {}", three.count(0));
        }
        three.assert_ordered(0, COUNT);
        three.assert_ordered(1, COUNT);
    }
}

#[test]
fn messages_of_a_sender_that_ends_while_it_is_held_arrive_after_the_release() {
    for device in DEVICES {
        let mut three = Three::new(device);
        three.holds.set(Some(0));
        let sent = three.send_both();
        let (idle, _) = open("self/memory");
        three.senders[0].endpoint = None;
        // What the kernel has not taken yet is sent.
        for _ in 0..1000 {
            three.progress();
        }
        drop(std::mem::replace(&mut three.senders[0].worker, idle));
        assert!(three.count(0) < sent, "{device}: {} of {sent}", three.count(0));
        three.holds.set(None);
        three.interface.release_senders();
        three.until("the rest", |three| three.count(0) == sent);
        three.assert_ordered(0, sent);
    }
}

#[test]
fn a_transport_that_cannot_hold_says_so() {
    let (_worker, interface) = open("self/memory");
    assert!(!interface.hold_sender());
    interface.release_senders();
}
