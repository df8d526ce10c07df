//! Many messages while links fail and come back and packets are lost, compared with what was sent.
//! `BAREWIRE_SOAK_SECONDS` makes it longer.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use barewire_mlx5::hca;

use crate::config::{MAX_GROUP, MAX_GROUPS};
use crate::stepped::Ends;
use crate::{Config, Receiver, Request, Sender, Target, Usage};

/// Bytes of a buffer. It is longer than the messages, whose rest must stay unchanged.
const ROOM: usize = 3000;
const LONGEST: usize = 2800;
const CANARY: u8 = 0x5c;
/// Groups of a channel.
const GROUPS: u64 = 400;

struct Soak {
    random: fastrand::Rng,
    sender: Sender,
    receiver: Receiver,
    source: crate::Region,
    target: crate::Region,
    /// Those of the sender, then those of the receiver.
    devices: Vec<hca::Device>,
    rails: usize,
    /// Rails whose link is down.
    down: Vec<bool>,
    flaps: u32,
    /// Groups that are announced and not received: the request, and the messages.
    announced: VecDeque<(u64, Request, Vec<Message>)>,
    /// Messages of announced groups that are not sent, and those that are.
    unsent: VecDeque<Vec<Message>>,
    sent: Vec<(Request, usize)>,
    next: u64,
}

#[derive(Clone, Debug)]
struct Message {
    offset: usize,
    length: usize,
    tag: u32,
}

impl Message {
    fn bytes(&self, group: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        fastrand::Rng::with_seed(group << 8 | u64::from(self.tag)).fill(&mut bytes);
        bytes
    }
}

impl Soak {
    fn new(seed: u64) -> Self {
        let rails = 1 + (seed as usize + 1) % 8;
        let fabric = hca::Fabric::new();
        let open = |at: usize| {
            let faults =
                format!("drop=0.01,reorder=0.02,duplicate=0.01,seed={}", seed << 8 | at as u64);
            let config = hca::Config::default()
                .mode(hca::Mode::Stepped)
                .wire(hca::WireKind::Fabric(fabric.clone()))
                .faults(faults.parse().unwrap());
            hca::Device::open(config).unwrap()
        };
        let devices = (0..2 * rails).map(open).collect();
        let pairs = 1 + (seed % 3) as u8;
        let Ends { mut sender, receiver, from, to, devices } =
            Ends::over(devices, &Config::default().whole(300).pairs(pairs));
        sender.recover_at_once();
        let size = MAX_GROUPS * MAX_GROUP * ROOM;
        let source = from.allocate(size, Usage::Send).unwrap();
        let target = to.allocate(size, Usage::Receive).unwrap();
        target.write(0, &vec![CANARY; size]).unwrap();
        Self {
            random: fastrand::Rng::with_seed(seed),
            sender,
            receiver,
            source,
            target,
            devices,
            rails,
            down: vec![false; rails],
            flaps: 0,
            announced: VecDeque::new(),
            unsent: VecDeque::new(),
            sent: Vec::new(),
            next: 0,
        }
    }

    fn announce(&mut self) {
        // The memory of the group 32 before this one is free when all of it was sent as well.
        let oldest = self.announced.front().map_or(self.next, |(group, ..)| *group);
        if self.next >= GROUPS || self.next - oldest >= 24 || self.sent.len() > 64 {
            return;
        }
        let count = if self.random.bool() { 1 } else { self.random.usize(1..=MAX_GROUP) };
        let place = self.next as usize % MAX_GROUPS * MAX_GROUP;
        let message = |at: usize| Message {
            offset: (place + at) * ROOM,
            length: self.random.choice([0, 1, 299, 300, 301, LONGEST]).unwrap_or(0),
            tag: at as u32,
        };
        let mut messages: Vec<_> = (0..count).map(message).collect();
        let target = |message: &Message| Target {
            region: &self.target,
            offset: message.offset,
            length: LONGEST,
            tag: message.tag,
        };
        let targets: Vec<_> = messages.iter().map(target).collect();
        let Some(request) = self.receiver.receive_group(&targets).unwrap() else { return };
        self.announced.push_back((self.next, request, messages.clone()));
        for message in &messages {
            self.source.write(message.offset, &message.bytes(self.next)).unwrap();
        }
        self.random.shuffle(&mut messages);
        self.unsent.push_back(messages);
        self.next += 1;
    }

    fn send(&mut self) {
        let Some(messages) = self.unsent.front_mut() else { return };
        let Some(message) = messages.last() else {
            self.unsent.pop_front();
            return;
        };
        let Message { offset, length, tag } = *message;
        if let Some(request) = self.sender.send(&self.source, offset, length, tag).unwrap() {
            self.sent.push((request, length));
            messages.pop();
        }
    }

    fn test(&mut self) {
        let sender = &mut self.sender;
        self.sent.retain(|(request, length)| match sender.test(*request).unwrap() {
            Some(sent) => {
                assert_eq!(sent, *length);
                false
            }
            None => true,
        });
        let (receiver, target) = (&mut self.receiver, &self.target);
        self.announced.retain(|(group, request, messages)| {
            let Some(received) = receiver.test(*request).unwrap() else { return true };
            let lengths: Vec<_> = messages.iter().map(|message| message.length).collect();
            assert_eq!(received.sizes(), lengths);
            for message in messages {
                let mut got = vec![0; ROOM];
                target.read(message.offset, &mut got).unwrap();
                let mut wanted = message.bytes(*group);
                wanted.resize(ROOM, CANARY);
                assert!(got == wanted, "message {message:?} of group {group}");
                target.write(message.offset, &[CANARY; ROOM]).unwrap();
            }
            false
        });
    }

    /// Takes a link down while another rail works at both ends, or up.
    fn flap(&mut self) {
        let rail = self.random.usize(..self.rails);
        let device = rail + self.rails * self.random.usize(..2);
        if self.down[rail] {
            for device in [rail, rail + self.rails] {
                assert!(self.devices[device].inject(hca::Fault::LinkUp));
            }
            self.down[rail] = false;
            return;
        }
        let works =
            |queues: &crate::queues::Queues| queues.place() != rail && !self.down[queues.place()];
        let ours: Vec<_> = self
            .sender
            .queues()
            .iter()
            .filter(|one| works(one))
            .map(crate::queues::Queues::place)
            .collect();
        if self.receiver.queues().iter().any(|one| ours.contains(&one.place())) {
            assert!(self.devices[device].inject(hca::Fault::LinkDown));
            self.down[rail] = true;
            self.flaps += 1;
        }
    }

    fn run(mut self, seed: u64) -> u32 {
        let begun = Instant::now();
        let mut rounds = 0_u64;
        while self.next < GROUPS || !self.announced.is_empty() || !self.sent.is_empty() {
            self.announce();
            self.send();
            for device in &self.devices {
                device.step();
            }
            self.test();
            if rounds.is_multiple_of(16) {
                self.sender.check().unwrap();
                self.receiver.check().unwrap();
            }
            if self.random.u32(..100) == 0 {
                self.flap();
            }
            rounds += 1;
            assert!(begun.elapsed() < Duration::from_mins(2), "seed {seed}, round {rounds}");
        }
        let mut rest = vec![0; self.target.len()];
        self.target.read(0, &mut rest).unwrap();
        assert!(rest.iter().all(|byte| *byte == CANARY), "seed {seed}: written after completion");
        self.flaps
    }
}

#[test]
fn messages_survive_links_that_flap() {
    let seconds = std::env::var("BAREWIRE_SOAK_SECONDS").ok().map(|text| text.parse().unwrap());
    let (begun, limit) = (Instant::now(), Duration::from_secs(seconds.unwrap_or(0)));
    let (mut seed, mut flaps) = (0, 0);
    while seed < 8 || begun.elapsed() < limit {
        flaps += Soak::new(seed).run(seed);
        seed += 1;
    }
    println!("{seed} channels, {flaps} links down, {:?}", begun.elapsed());
    assert!(flaps > 8, "{flaps}");
}
