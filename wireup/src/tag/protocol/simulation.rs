//! Two machines over a wire, with random requests, orders of completion, faults and cancellations.
//!
//! A reference matcher (two lists for each side) predicts which receive gets which message. Every
//! run is repeated by its seed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::rc::Rc;

use barewire::Cause;
use fastrand::Rng;

use super::*;
use crate::tag::matcher::FULL_MASK;

/// Memory of a request. Its address is its number.
#[derive(Debug, Clone)]
struct Buffer(Rc<Memory>);

#[derive(Debug)]
struct Memory {
    address: u64,
    bytes: RefCell<Vec<u8>>,
    readable: Cell<bool>,
    shared: Cell<u32>,
    writable: Rc<Cell<bool>>,
}

/// The peer may write while this lives.
#[derive(Debug)]
struct Grant(Rc<Cell<bool>>);

impl Drop for Grant {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Payload for Buffer {
    type Grant = Grant;

    fn len(&self) -> usize {
        self.0.bytes.borrow().len()
    }

    fn read(&self, offset: usize, target: &mut [u8]) {
        target.copy_from_slice(&self.0.bytes.borrow()[offset..offset + target.len()]);
    }

    fn write(&self, offset: usize, source: &[u8]) {
        self.0.bytes.borrow_mut()[offset..offset + source.len()].copy_from_slice(source);
    }

    fn share(&self) {
        self.0.shared.set(self.0.shared.get() + 1);
    }

    fn unshare(&self, revoke: bool) {
        self.0.shared.set(self.0.shared.get().checked_sub(1).expect("announced"));
        if revoke {
            self.0.readable.set(false);
        }
    }
}

/// The payload of message `name`.
fn content(name: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (name.wrapping_mul(0x9e37_79b9).wrapping_add(at * 0x85eb) >> 8) as u8)
        .collect()
}

/// A message as the reference has it.
#[derive(Debug, Clone, Copy)]
struct Sent {
    name: usize,
    tag: u64,
    announced: bool,
}

#[derive(Debug)]
struct Receive {
    request: Key,
    tag: u64,
    mask: u64,
}

/// The matching rules, as two lists.
#[derive(Debug, Default)]
struct Reference {
    receives: Vec<Receive>,
    messages: Vec<Sent>,
}

impl Reference {
    fn find(&self, tag: u64, mask: u64) -> Option<usize> {
        self.messages.iter().position(|message| (message.tag ^ tag) & mask == 0)
    }
}

/// A message on the wire; its name and whether it is announced, if it is one of a user.
#[derive(Debug)]
struct Packet {
    bytes: Vec<u8>,
    sent: Option<Sent>,
    withdraws: Option<usize>,
}

#[derive(Debug)]
struct Side {
    machine: Machine<Buffer>,
    link: Key,
    reference: Reference,
    /// To the other side.
    wire: VecDeque<Packet>,
    movers: Vec<Action<Buffer>>,
    /// Sends: the name of the message. Receives: the buffer.
    sends: HashMap<Key, usize>,
    receives: HashMap<Key, Buffer>,
    claims: Vec<(Key, usize)>,
    /// Which message the reference gave to which receive.
    expected: HashMap<Key, usize>,
    canceled: HashSet<Key>,
    results: HashMap<Key, TagResult>,
    /// Requests without a handle.
    detached: HashSet<Key>,
}

impl Side {
    fn open(&self, request: Key) -> bool {
        !self.results.contains_key(&request) && !self.detached.contains(&request)
    }
}

type Tally = BTreeMap<String, u32>;

struct World {
    rng: Rng,
    sides: [Side; 2],
    memory: HashMap<u64, Buffer>,
    /// Tag, length and mode of every message.
    names: Vec<(u64, usize, Mode)>,
    /// Names of messages that a receive got.
    received: HashSet<usize>,
    /// What happened, by name.
    tally: Tally,
    /// In 1000: how often data movement fails, and how often it is not supported.
    faults: u32,
    unsupported: u32,
    window: Window,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let window = match rng.u8(0..8) {
            0 => Window::CLOSED,
            1 => Window::default(),
            _ => Window { messages: rng.u16(1..9), bytes: rng.u32(0..6000) },
        };
        let limits = Limits { window, ..Limits::default() };
        let mut random = {
            let mut rng = rng.fork();
            move || rng.u64(..)
        };
        let mut machines = [Machine::new(limits), Machine::new(limits)];
        // Other numbers on both sides.
        let link_limits =
            LinkLimits { message: rng.usize(64..2048), threshold: rng.usize(0..2048), tagged: 0 };
        machines[0].open(&mut random);
        let opened: Vec<_> =
            machines.iter_mut().map(|m| m.open(&mut random).expect("a link")).collect();
        machines[0].set_limits(opened[0].0, link_limits);
        machines[1].set_limits(opened[1].0, link_limits);
        machines[0].connect(opened[0].0, opened[1].1);
        machines[1].connect(opened[1].0, opened[0].1);
        let mut opened = opened.into_iter();
        let sides = machines.map(|machine| Side {
            machine,
            link: opened.next().expect("two").0,
            reference: Reference::default(),
            wire: VecDeque::new(),
            movers: Vec::new(),
            sends: HashMap::new(),
            receives: HashMap::new(),
            claims: Vec::new(),
            expected: HashMap::new(),
            canceled: HashSet::new(),
            results: HashMap::new(),
            detached: HashSet::new(),
        });
        let faults = if rng.bool() { 0 } else { rng.u32(0..300) };
        let unsupported = if rng.bool() { 0 } else { rng.u32(0..1001) };
        Self {
            rng,
            sides,
            memory: HashMap::new(),
            names: Vec::new(),
            received: HashSet::new(),
            tally: Tally::new(),
            faults,
            unsupported,
            window,
        }
    }

    fn buffer(&mut self, bytes: Vec<u8>) -> Buffer {
        let address = self.memory.len() as u64 + 1;
        let memory = Memory {
            address,
            bytes: RefCell::new(bytes),
            readable: Cell::default(),
            shared: Cell::default(),
            writable: Rc::default(),
        };
        let buffer = Buffer(Rc::new(memory));
        self.memory.insert(address, buffer.clone());
        buffer
    }

    fn tag_and_mask(&mut self) -> (u64, u64) {
        (
            self.rng.u64(0..4),
            *self.rng.choice(&[FULL_MASK, FULL_MASK, FULL_MASK, 1, 0]).expect("five"),
        )
    }

    fn send(&mut self, at: usize) {
        let mode = *self.rng.choice(&[Mode::Auto, Mode::Eager, Mode::Synchronous]).expect("three");
        let length = *self.rng.choice(&[0, 8, self.rng.clone().usize(0..4000)]).expect("three");
        let (tag, name) = (self.rng.u64(0..4), self.names.len());
        self.names.push((tag, length, mode));
        let side = &mut self.sides[at];
        if let Some(eager) = side.machine.eager(side.link, tag, length, mode) {
            if self.rng.bool() {
                let mut bytes = vec![0; LONGEST_HEADER];
                let header = eager.header.write(&mut bytes).unwrap();
                bytes.truncate(header);
                bytes.extend(content(name, length));
                let sent = Some(Sent { name, tag, announced: false });
                side.wire.push_back(Packet { bytes, sent, withdraws: None });
                return;
            }
            // Without resources.
            side.machine.eager_refused(side.link, &eager, length);
        }
        let buffer = self.buffer(content(name, length));
        let side = &mut self.sides[at];
        let request = side.machine.send(side.link, tag, buffer, mode);
        side.sends.insert(request, name);
    }

    fn receive(&mut self, at: usize) {
        let (tag, mask) = self.tag_and_mask();
        let length =
            *self.rng.choice(&[4000, 4000, self.rng.clone().usize(0..4000)]).expect("three");
        let buffer = self.buffer(vec![0; length]);
        let side = &mut self.sides[at];
        let request = side.machine.receive(tag, mask, buffer.clone());
        side.receives.insert(request, buffer);
        match side.reference.find(tag, mask) {
            Some(found) => {
                side.expected.insert(request, side.reference.messages.remove(found).name);
            }
            None => side.reference.receives.push(Receive { request, tag, mask }),
        }
    }

    fn claim(&mut self, at: usize) {
        let (tag, mask) = self.tag_and_mask();
        let side = &mut self.sides[at];
        let expected = side.reference.find(tag, mask).map(|found| side.reference.messages[found]);
        let peeked = side.machine.peek(tag, mask);
        assert_eq!(peeked.map(|found| found.tag), expected.map(|expected| expected.tag));
        let Some((claim, envelope)) = side.machine.claim(tag, mask) else { return };
        assert_eq!(peeked, Some(envelope));
        let expected = expected.expect("as peeked");
        assert_eq!(envelope.length, self.names[expected.name].1);
        side.reference.messages.retain(|message| message.name != expected.name);
        side.claims.push((claim, expected.name));
    }

    fn settle_claim(&mut self, at: usize) {
        if self.sides[at].claims.is_empty() {
            return;
        }
        let (claim, name) = self.sides[at].claims.swap_remove(0);
        if self.rng.u8(0..4) == 0 {
            self.received.insert(name);
            return self.sides[at].machine.discard(claim);
        }
        let buffer = self.buffer(vec![0; 4000]);
        let side = &mut self.sides[at];
        let request = side.machine.receive_claimed(claim, buffer.clone()).expect("claimed");
        assert!(side.machine.receive_claimed(claim, buffer.clone()).is_none(), "once");
        side.receives.insert(request, buffer);
        side.expected.insert(request, name);
    }

    fn pick(&mut self, at: usize) -> Option<Key> {
        let side = &self.sides[at];
        let mut open: Vec<Key> = side
            .sends
            .keys()
            .chain(side.receives.keys())
            .copied()
            .filter(|&key| side.open(key))
            .collect();
        open.sort_unstable();
        self.rng.choice(open)
    }

    fn cancel(&mut self, at: usize) {
        let Some(request) = self.pick(at) else { return };
        let side = &mut self.sides[at];
        let may_end = side.machine.cancel(request);
        if side.receives.contains_key(&request) {
            let waiting =
                side.reference.receives.iter().position(|receive| receive.request == request);
            let complete = side.machine.result(request);
            if let Some(waiting) = waiting {
                assert_eq!((may_end, complete), (true, Some(Err(TagError::Canceled))));
                side.reference.receives.remove(waiting);
            } else {
                assert!(!may_end, "it is matched");
            }
        }
        if may_end {
            side.canceled.insert(request);
        }
    }

    fn detach(&mut self, at: usize) {
        let Some(request) = self.pick(at) else { return };
        let side = &mut self.sides[at];
        // What it receives is not checked, so it must not be taken for lost.
        if side.receives.contains_key(&request) || side.machine.result(request).is_some() {
            return;
        }
        side.machine.detach(request);
        side.detached.insert(request);
    }

    /// Posts what is to be sent, as far as there are resources.
    fn pump(&mut self, at: usize) {
        let side = &mut self.sides[at];
        while let Some(link) = side.machine.ready() {
            assert_eq!(link, side.link);
            while let Some(outgoing) = side.machine.next(link) {
                let mut keys = KeyList::default();
                let mut place = Place::default();
                let mut bytes = vec![0; 4096];
                let mut sent = None;
                let mut withdraws = None;
                let name = |request: &Key| side.sends.get(request).copied();
                match &outgoing.body {
                    Body::Announce { request, buffer } => {
                        if self.rng.u32(0..1000) >= self.unsupported {
                            buffer.0.readable.set(true);
                            keys.add(0, &buffer.0.address.to_le_bytes());
                            place = Place::new(buffer.0.address, &keys);
                        }
                        sent = name(request).map(|name| (name, true));
                    }
                    Body::Payload { request, .. } if outgoing.header.kind != Kind::Fragment => {
                        sent = name(request).map(|name| (name, false));
                    }
                    Body::Control(Control::Withdraw { request }) => {
                        withdraws = name(&Key::from_u64(*request));
                    }
                    _ => {}
                }
                let length = outgoing.write(place, &mut bytes).expect("room");
                bytes.truncate(length);
                let sent = sent.map(|(name, announced)| Sent {
                    name,
                    tag: outgoing.header.word,
                    announced,
                });
                side.wire.push_back(Packet { bytes, sent, withdraws });
                side.machine.sent(link, &outgoing);
            }
        }
        while let Some(action) = side.machine.action() {
            side.movers.push(action);
        }
    }

    /// Delivers the oldest message that `from` sent.
    fn deliver(&mut self, from: usize) {
        let Some(packet) = self.sides[from].wire.pop_front() else { return };
        let side = &mut self.sides[1 - from];
        let failed = side.machine.failure(side.link).is_some();
        let arrived = side.machine.arrived(&packet.bytes);
        if failed {
            return assert_eq!(arrived, Err(Violation::Stray));
        }
        arrived.expect("this protocol");
        if let Some(sent) = packet.sent {
            let receives = &mut side.reference.receives;
            match receives.iter().position(|receive| (receive.tag ^ sent.tag) & receive.mask == 0) {
                Some(found) => {
                    side.expected.insert(receives.remove(found).request, sent.name);
                }
                None => side.reference.messages.push(sent),
            }
        }
        if let Some(name) = packet.withdraws {
            side.reference.messages.retain(|message| message.name != name);
        }
    }

    /// Ends one of the movements of data.
    fn move_data(&mut self, at: usize) {
        if self.sides[at].movers.is_empty() {
            return;
        }
        let failed = self.sides.iter().any(|side| side.machine.failure(side.link).is_some());
        let tally = &mut self.tally;
        let mut note =
            |what: &str, moved| *tally.entry(format!("{what} {moved:?}")).or_default() += 1;
        let count = self.sides[at].movers.len();
        let action = self.sides[at].movers.swap_remove(self.rng.usize(0..count));
        let refuse = self.rng.u32(0..1000) < self.unsupported;
        let fault = self.rng.u32(0..1000) < self.faults;
        let peer = |transfer: &Transfer<Buffer>| {
            let key = transfer.keys.clone();
            assert_eq!(key, {
                let mut keys = KeyList::default();
                keys.add(0, &transfer.address.to_le_bytes());
                keys
            });
            self.memory[&transfer.address].clone()
        };
        let machine = &mut self.sides[at].machine;
        match action {
            Action::Expose { request, buffer, .. } => {
                machine.exposed(
                    request,
                    (!refuse).then(|| {
                        let mut keys = KeyList::default();
                        keys.add(0, &buffer.0.address.to_le_bytes());
                        buffer.0.writable.set(true);
                        (Grant(Rc::clone(&buffer.0.writable)), buffer.0.address, keys)
                    }),
                );
            }
            Action::Fetch(transfer) => {
                let source = peer(&transfer);
                assert!(failed || source.0.readable.get(), "revoked before the peer was done");
                let moved = if refuse {
                    Moved::Unsupported
                } else if fault || !source.0.readable.get() {
                    Moved::Failed(Cause::RemoteAccess)
                } else {
                    let mut bytes = vec![0; transfer.length];
                    source.read(0, &mut bytes);
                    transfer.buffer.write(0, &bytes);
                    Moved::Done
                };
                note("get", moved);
                machine.moved(transfer.request, moved);
            }
            Action::Put(transfer) => {
                let target = peer(&transfer);
                assert!(failed || target.0.writable.get(), "revoked before the peer was done");
                let moved = if fault || !target.0.writable.get() {
                    Moved::Failed(Cause::RemoteAccess)
                } else {
                    let mut bytes = vec![0; transfer.length];
                    transfer.buffer.read(0, &mut bytes);
                    target.write(0, &bytes);
                    Moved::Done
                };
                note("put", moved);
                machine.moved(transfer.request, moved);
            }
        }
    }

    fn fail(&mut self, at: usize) {
        let side = &mut self.sides[at];
        side.machine.fail(side.link, TagError::LinkFailed(Cause::Disconnected));
        side.reference.messages.retain(|message| !message.announced);
    }

    /// Notes new results, and checks them.
    fn check(&mut self) {
        for side in &mut self.sides {
            let counters = side.machine.counters();
            assert!(
                counters.unexpected_messages <= usize::from(self.window.messages),
                "{counters:?}"
            );
            assert!(counters.unexpected_bytes <= self.window.bytes as usize, "{counters:?}");
            assert!(counters.announced <= usize::from(MAX_ANNOUNCED), "{counters:?}");
            for (&request, &name) in &side.sends {
                let Some(result) = side.machine.result(request) else { continue };
                if let Some(earlier) = side.results.insert(request, result) {
                    assert_eq!(earlier, result, "a result does not change");
                    continue;
                }
                *self.tally.entry(format!("send {}", describe(result))).or_default() += 1;
                let (tag, length, _) = self.names[name];
                match result {
                    Ok(envelope) => assert_eq!(envelope, Envelope { tag, length, link: side.link }),
                    Err(TagError::Canceled) => assert!(side.canceled.contains(&request)),
                    Err(
                        TagError::LinkFailed(_) | TagError::Transfer(_) | TagError::PeerTransfer,
                    ) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            for (&request, buffer) in &side.receives {
                let Some(result) = side.machine.result(request) else { continue };
                if let Some(earlier) = side.results.insert(request, result) {
                    assert_eq!(earlier, result, "a result does not change");
                    continue;
                }
                *self.tally.entry(format!("receive {}", describe(result))).or_default() += 1;
                assert_eq!(buffer.0.shared.get(), 0);
                assert!(!buffer.0.writable.get(), "complete, and the peer may still write");
                if result == Err(TagError::Canceled) {
                    assert!(side.canceled.contains(&request));
                    continue;
                }
                let name = side.expected[&request];
                assert!(self.received.insert(name), "message {name} was received twice");
                let (tag, length, _) = self.names[name];
                match result {
                    Ok(envelope) => {
                        assert_eq!(
                            (envelope.tag, envelope.length, envelope.link),
                            (tag, length, side.link)
                        );
                        assert!(
                            buffer.0.bytes.borrow()[..length] == content(name, length),
                            "message {name}"
                        );
                    }
                    Err(TagError::Truncated { length: reported }) => {
                        assert_eq!(reported, length);
                        assert!(length > buffer.len());
                    }
                    Err(
                        TagError::LinkFailed(_) | TagError::Transfer(_) | TagError::PeerTransfer,
                    ) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    fn step(&mut self) {
        let at = self.rng.usize(0..2);
        match self.rng.u8(0..20) {
            0..4 => self.send(at),
            4..7 => self.receive(at),
            7 => self.claim(at),
            8 => self.settle_claim(at),
            9 => self.cancel(at),
            10 if self.rng.u8(0..4) == 0 => self.detach(at),
            10..13 => self.pump(at),
            13..17 => self.deliver(at),
            _ => self.move_data(at),
        }
        self.check();
    }

    /// Runs until nothing is under way.
    fn drain(&mut self) {
        loop {
            for at in 0..2 {
                self.pump(at);
                self.deliver(at);
                self.move_data(at);
            }
            let idle = self.sides.iter().all(|side| side.wire.is_empty() && side.movers.is_empty());
            self.check();
            if idle {
                self.pump(0);
                self.pump(1);
                if self.sides.iter().all(|side| side.wire.is_empty() && side.movers.is_empty()) {
                    return;
                }
            }
        }
    }

    /// Ends every request that waits for the user, and checks that nothing is left.
    fn finish(mut self) -> Tally {
        self.drain();
        if self.sides.iter().any(|side| side.machine.failure(side.link).is_some()) {
            // The transport reports a failure to both ends.
            self.fail(0);
            self.fail(1);
        }
        for at in 0..2 {
            let mut waiting: Vec<Key> = self.sides[at].receives.keys().copied().collect();
            waiting.sort_unstable();
            for request in waiting {
                let side = &mut self.sides[at];
                if side.machine.result(request).is_none() && side.machine.cancel(request) {
                    side.canceled.insert(request);
                    side.reference.receives.retain(|receive| receive.request != request);
                }
            }
            while !self.sides[at].claims.is_empty() {
                self.settle_claim(at);
            }
        }
        for at in 0..2 {
            loop {
                self.drain();
                if self.sides[at].machine.peek(0, 0).is_none() {
                    break;
                }
                let buffer = self.buffer(vec![0; 4000]);
                let side = &mut self.sides[at];
                let request = side.machine.receive(0, 0, buffer.clone());
                side.receives.insert(request, buffer);
                side.expected.insert(request, side.reference.messages.remove(0).name);
            }
        }
        self.drain();
        let failed = self.sides[0].machine.failure(self.sides[0].link).is_some();
        for side in &self.sides {
            assert!(side.reference.messages.is_empty() && side.reference.receives.is_empty());
            let counters = side.machine.counters();
            let waiting =
                (counters.unexpected_messages, counters.unexpected_bytes, counters.announced);
            assert_eq!(waiting, (0, 0, 0));
            *self.tally.entry("fragments".to_owned()).or_default() += counters.fragmented as u32;
            assert_eq!(side.machine.matching.waiting_and_kept(), [0, 0]);
            for (request, &name) in
                side.sends.iter().filter(|(key, _)| !side.detached.contains(key))
            {
                let result = side.results.get(request);
                assert!(result.is_some(), "send {name} never completed");
                if let (Some(Ok(_)), (_, _, Mode::Synchronous)) = (result, self.names[name]) {
                    assert!(
                        self.received.contains(&name),
                        "send {name} completed without a receive"
                    );
                }
                if result == Some(&Err(TagError::Canceled)) {
                    assert!(
                        !self.received.contains(&name),
                        "message {name} was received and cancelled"
                    );
                }
            }
            for request in side.receives.keys() {
                assert!(side.results.contains_key(request), "a receive never completed");
            }
            if failed {
                continue;
            }
            let link = side.machine.links.get(side.link).expect("open");
            assert_eq!((link.announced, link.kept_announcements.len()), (0, 0));
            // The whole window is available again.
            let mut used = link.received;
            for _ in 0..self.window.messages {
                assert!(used.has_room(link.allowed, 0));
                used.messages = used.messages.wrapping_add(1);
            }
            assert!(!used.has_room(link.allowed, 0));
            assert_eq!(link.allowed.bytes.wrapping_sub(link.received.bytes), self.window.bytes);
        }
        for side in &mut self.sides {
            let handles: Vec<Key> = side.results.keys().copied().collect();
            for request in handles {
                side.machine.detach(request);
            }
            assert_eq!(side.machine.requests(), 0, "nothing is left");
        }
        self.tally
    }
}

fn describe(result: TagResult) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(TagError::Truncated { .. }) => "truncated",
        Err(TagError::Canceled) => "canceled",
        Err(TagError::LinkFailed(_)) => "link failed",
        Err(TagError::Transfer(_)) => "transfer",
        Err(TagError::PeerTransfer) => "peer transfer",
        Err(_) => "other",
    }
}

#[test]
fn every_request_completes_once_with_the_right_payload() {
    let mut total = Tally::new();
    for seed in 0..4000 {
        let run = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            let steps = world.rng.usize(1..400);
            let failure = (world.rng.u8(0..4) == 0).then(|| world.rng.usize(0..steps));
            for step in 0..steps {
                world.step();
                if failure == Some(step) {
                    let at = world.rng.usize(0..2);
                    world.fail(at);
                }
            }
            world.finish()
        });
        let Ok(tally) = run else { panic!("seed {seed}") };
        for (what, times) in tally {
            *total.entry(what).or_default() += times;
        }
    }
    println!("{total:#?}");
    let happened: Vec<&str> =
        total.iter().filter(|(_, times)| **times >= 100).map(|(what, _)| &**what).collect();
    let expected = [
        "fragments",
        "get Done",
        "get Failed(RemoteAccess)",
        "get Unsupported",
        "put Done",
        "put Failed(RemoteAccess)",
        "receive canceled",
        "receive link failed",
        "receive ok",
        "receive peer transfer",
        "receive transfer",
        "receive truncated",
        "send canceled",
        "send link failed",
        "send ok",
        "send peer transfer",
        "send transfer",
    ];
    assert_eq!(happened, expected);
}

#[test]
fn a_flood_of_unexpected_messages_stays_within_the_window() {
    const MESSAGES: usize = 1_000_000;
    const WINDOW: usize = 1024;
    let (mut world, mut pair) = (World::new(1), Pair::new());
    let payload = world.buffer(vec![7; 100]);
    for number in 0..MESSAGES {
        let request = pair.sender.send(pair.here, number as u64, payload.clone(), Mode::Auto);
        pair.sender.detach(request);
        if number % 1000 == 0 {
            pair.exchange();
        }
    }
    pair.exchange();
    let waiting = pair.receiver.counters();
    assert_eq!((waiting.unexpected_messages, waiting.announced), (WINDOW, 0));
    // The peer announces what it holds back once something waits for it.
    let last = pair.receiver.receive(MESSAGES as u64, FULL_MASK, payload.clone());
    pair.exchange();
    let waiting = pair.receiver.counters();
    let announced = usize::from(MAX_ANNOUNCED);
    assert_eq!((waiting.unexpected_messages, waiting.announced), (WINDOW, announced));
    assert!(pair.receiver.cancel(last));
    pair.receiver.detach(last);
    for number in 0..MESSAGES {
        let buffer = payload.clone();
        let request = pair.receiver.receive(0, 0, buffer);
        let mut rounds = 0;
        let envelope = loop {
            if let Some(result) = pair.receiver.result(request) {
                break result.expect("received");
            }
            pair.exchange();
            rounds += 1;
            assert!(rounds < 10, "message {number} does not arrive");
        };
        assert_eq!((envelope.tag, envelope.length), (number as u64, 100));
        pair.receiver.detach(request);
    }
    assert_eq!(
        (pair.most.unexpected_messages, pair.most.announced),
        (WINDOW, usize::from(MAX_ANNOUNCED))
    );
    assert!(pair.most.unexpected_bytes <= 256 << 10);
    assert_eq!((pair.sender.requests(), pair.receiver.requests()), (0, 0));
}

#[test]
fn a_receiver_that_falls_behind_gets_eager_messages() {
    const MESSAGES: usize = 10_000;
    let (mut world, mut pair) = (World::new(1), Pair::new());
    let payload = world.buffer(vec![7; 8]);
    for _ in 0..MESSAGES {
        let request = pair.sender.send(pair.here, 1, payload.clone(), Mode::Auto);
        pair.sender.detach(request);
    }
    for _ in 0..MESSAGES {
        let request = pair.receiver.receive(1, FULL_MASK, payload.clone());
        // The sender is always ahead, by as much as it may be.
        pair.exchange();
        assert!(pair.receiver.result(request).is_some_and(|result| result.is_ok()));
        pair.receiver.detach(request);
    }
    // Without a rendezvous, and two reports per window.
    let [messages, reports] = pair.messages;
    assert_eq!((messages, pair.sender.requests()), (MESSAGES, 0));
    assert!(reports <= MESSAGES / 512 + 2, "{reports} reports");
}

#[test]
fn a_message_behind_a_full_window_arrives_if_it_is_wanted_first() {
    // The window ends after 1024 messages, or after 26 of 10 000 bytes.
    for (length, last) in
        [(8, 1024), (8, 1025), (8, 1200), (10_000, 26), (10_000, 27), (10_000, 200)]
    {
        let (mut world, mut pair) = (World::new(1), Pair::new());
        let payload = world.buffer(vec![7; length]);
        for tag in 0..=last {
            let request = pair.sender.send(pair.here, tag, payload.clone(), Mode::Auto);
            pair.sender.detach(request);
        }
        pair.exchange();
        // By a receive, or by a peek.
        let request = if last % 2 == 0 {
            pair.receiver.receive(last, FULL_MASK, payload.clone())
        } else {
            for _ in 0..300 {
                pair.receiver.peek(last, FULL_MASK);
                pair.exchange();
            }
            let (claim, _) = pair.receiver.claim(last, FULL_MASK).expect("announced");
            pair.receiver.receive_claimed(claim, payload.clone()).expect("claimed")
        };
        pair.exchange();
        let result = pair.receiver.result(request);
        assert!(result.is_some_and(|result| result.is_ok()), "{length} {last}: {result:?}");
    }
}

#[test]
fn a_message_behind_a_claimed_announcement_arrives() {
    // The byte window ends after 26 messages, the next one is announced and claimed.
    let (mut world, mut pair) = (World::new(1), Pair::new());
    let payload = world.buffer(vec![7; 10_000]);
    for tag in 0..30 {
        let request = pair.sender.send(pair.here, tag, payload.clone(), Mode::Auto);
        pair.sender.detach(request);
    }
    pair.exchange();
    let (claim, _) = pair.receiver.claim(26, FULL_MASK).expect("announced");
    for tag in [28, 27] {
        let request = pair.receiver.receive(tag, FULL_MASK, payload.clone());
        pair.exchange();
        assert!(pair.receiver.result(request).is_some_and(|result| result.is_ok()), "{tag}");
    }
    let request = pair.receiver.receive_claimed(claim, payload.clone()).expect("claimed");
    pair.exchange();
    assert!(pair.receiver.result(request).is_some_and(|result| result.is_ok()));
}

/// Two machines whose messages arrive at once.
struct Pair {
    sender: Machine<Buffer>,
    receiver: Machine<Buffer>,
    here: Key,
    /// Messages from the sender, and to it.
    messages: [usize; 2],
    /// What waited at most at either machine.
    most: TagCounters,
    bytes: Vec<u8>,
}

impl Pair {
    fn new() -> Self {
        let limits = Limits::default();
        let mut machines = [Machine::<Buffer>::new(limits), Machine::new(limits)];
        let link_limits = LinkLimits { message: 16384, threshold: 12000, tagged: 0 };
        let [(here, mine), (there, theirs)] =
            [0, 1].map(|at| machines[at].open(|| 7).expect("a link"));
        machines[0].set_limits(here, link_limits);
        machines[1].set_limits(there, link_limits);
        machines[0].connect(here, theirs);
        machines[1].connect(there, mine);
        let [sender, receiver] = machines;
        let (messages, most) = ([0; 2], TagCounters::default());
        Self { sender, receiver, here, messages, most, bytes: vec![0; 16384] }
    }

    /// Sends everything that may leave. Returns whether there was anything.
    fn post(&mut self, at: usize) -> bool {
        let (from, to) = if at == 0 {
            (&mut self.sender, &mut self.receiver)
        } else {
            (&mut self.receiver, &mut self.sender)
        };
        let (bytes, before) = (&mut self.bytes, self.messages[at]);
        while let Some(link) = from.ready() {
            while let Some(outgoing) = from.next(link) {
                let length = outgoing.write(Place::default(), bytes).expect("room");
                from.sent(link, &outgoing);
                to.arrived(&bytes[..length]).expect("this protocol");
                self.messages[at] += 1;
            }
        }
        let mut acted = false;
        while let Some(action) = from.action() {
            // No lane: fragments.
            let Action::Expose { request, .. } = action else { panic!("{action:?}") };
            from.exposed(request, None);
            acted = true;
        }
        let (most, now) = (&mut self.most, to.counters());
        most.unexpected_messages = most.unexpected_messages.max(now.unexpected_messages);
        most.unexpected_bytes = most.unexpected_bytes.max(now.unexpected_bytes);
        most.announced = most.announced.max(now.announced);
        acted || self.messages[at] > before
    }

    fn exchange(&mut self) {
        while self.post(0) | self.post(1) {}
    }
}
