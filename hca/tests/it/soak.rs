//! Random operations over RC, XRC, DC, UC and UD under random faults, compared with a copy of the
//! memory to which they are applied in order.
//!
//! Stepped devices and seeds: whatever fails, fails again. `BAREWIRE_HCA_SOAK_SEEDS` sets how many
//! seeds run, and `BAREWIRE_HCA_SOAK_FIRST` the first, to run one again.

use std::collections::{BTreeMap, VecDeque};

use crate::support::dynamic::{Target, initiator};
use crate::support::xrc::{Domain, XrcSrq};
use crate::support::{Completion, Connection, Node, Pair, Qp, Region, Wqe, pattern};
use barewire_hca::{Config, Fabric, Faults, Mode, ObjectCounts, Strict, WireKind};
use barewire_layouts::command::qp::ServiceType;
use barewire_layouts::wqe::{AddressVector, MaskedFetchAdd64, Opcode};
use fastrand::Rng;
use zerocopy::IntoBytes;

/// Seeds of an ordinary run.
const SEEDS: u64 = 1000;
/// Operations on each queue pair.
const OPERATIONS: usize = 60;
/// Bytes of each memory.
const SIZE: usize = 8192;
/// Longest transfer: several packets of 256 bytes.
const LONGEST: usize = 1500;
/// Longest datagram.
const DATAGRAM: usize = 256;
const GRH: usize = 40;
const QKEY: u32 = 0x1111_1111;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Faults of up to a tenth each.
fn faults(random: &mut Rng, seed: u64) -> Faults {
    let mut chance = || [0.0, 0.0, 0.02, 0.05][random.usize(..4)];
    Faults::default()
        .drop(chance())
        .duplicate(chance())
        .reorder(chance())
        .corrupt(chance())
        .delay(chance())
        .delay_us(40)
        .flap(chance() / 20.0)
        .flap_us(200)
        .seed(seed)
}

/// Where messages go, and how a WQE says so.
enum Way {
    /// To the queue pair that the sender is connected to.
    Connected,
    /// To a shared receive queue of an XRC domain. The domains live as long.
    Extended { queue: Box<XrcSrq>, _domains: [Domain; 2] },
    /// To either of two targets.
    Dynamic(Box<[Target; 2]>),
}

/// A reliable service, its memories, and what they must hold.
struct Reliable {
    pair: Pair,
    way: Way,
    /// WQEs that are not completed.
    posted: VecDeque<u16>,
    /// Messages that came, for each receiver.
    received: [u16; 2],
    local: Region,
    remote: Region,
    own: Vec<u8>,
    theirs: Vec<u8>,
    /// Receive WQEs posted, and where they put what arrives.
    inboxes: Vec<usize>,
}

impl Reliable {
    fn new(a: Node, b: Node, service: ServiceType, seed: u64) -> Self {
        let (local, remote) = (a.region(SIZE), b.region(SIZE));
        let (own, theirs) = (pattern(SIZE, seed), pattern(SIZE, !seed));
        local.memory.write(0, &own);
        remote.memory.write(0, &theirs);
        let connection = Connection { psn: seed as u32 & 0xff_ffff, ..Connection::default() };
        let (pair, way) = match service {
            ServiceType::Xrc => {
                let domains = [Domain::new(&a), Domain::new(&b)];
                let qps = (domains[0].queue_pair(true), domains[1].queue_pair(false));
                let queue = Box::new(XrcSrq::new(&domains[1], 5, 1, seed.is_multiple_of(2)));
                (Pair::of(a, b, qps, &connection), Way::Extended { queue, _domains: domains })
            }
            ServiceType::Dci => {
                let targets = Box::new([(); 2].map(|()| Target::new(&b, &connection)));
                let (qa, qb) = (initiator(&a, &connection), Qp::new(&b));
                (Pair { a, b, qa, qb }, Way::Dynamic(targets))
            }
            _ => (Pair::over(a, b, &connection), Way::Connected),
        };
        let (posted, received, inboxes) = (VecDeque::new(), [0; 2], Vec::new());
        Self { pair, way, posted, received, local, remote, own, theirs, inboxes }
    }

    /// Posts a random operation and applies it to the copies. Fenced, so that results of earlier
    /// reads and atomics have arrived.
    fn post(&mut self, random: &mut Rng) {
        let length = 1 + random.usize(..LONGEST);
        // The lower half is for transfers, the upper one for received messages, its last words for
        // atomics.
        let (from, to) = (random.usize(..SIZE / 2 - LONGEST), random.usize(..SIZE / 2 - LONGEST));
        let inbox = SIZE / 2 + random.usize(..SIZE / 2 - LONGEST - 64);
        let word = SIZE - 8 * (1 + random.usize(..4));
        let (remote, rkey) = (self.remote.address(), self.remote.key);
        let (local, lkey) = (self.local.address(), self.local.key);
        let receiver = random.usize(..2);
        let towards = |opcode| match &self.way {
            Way::Connected => Wqe::new(opcode),
            Way::Extended { queue, .. } => Wqe::new(opcode).shared_queue(queue.number),
            Way::Dynamic(targets) => Wqe::new(opcode).addressed(&targets[receiver].address()),
        };
        let there = |opcode, at: usize| towards(opcode).remote(remote + at as u64, rkey);
        let here = |wqe: Wqe, at: usize, length| wqe.data(local + at as u64, length, lkey);
        let wqe = match random.usize(..5) {
            0 => {
                self.theirs[to..to + length].copy_from_slice(&self.own[from..from + length]);
                here(there(Opcode::RdmaWrite, to), from, length)
            }
            1 => {
                let fetched = self.theirs[to..to + length].to_vec();
                self.own[from..from + length].copy_from_slice(&fetched);
                here(there(Opcode::RdmaRead, to), from, length)
            }
            2 => {
                let wqe = here(towards(Opcode::Send), from, length);
                self.receive(receiver, inbox);
                self.theirs[inbox..inbox + length].copy_from_slice(&self.own[from..from + length]);
                wqe
            }
            3 => {
                let old = add(&mut self.theirs, word, 3);
                self.own[word..word + 8].copy_from_slice(&old.to_ne_bytes());
                here(there(Opcode::AtomicFetchAdd, word).atomic(3, 0), word, 8)
            }
            _ => {
                // A boundary above what is counted here changes nothing but the packet.
                let old = add(&mut self.theirs, word, 5);
                self.own[word..word + 8].copy_from_slice(&old.to_ne_bytes());
                let operands =
                    MaskedFetchAdd64 { add: 5.into(), field_boundary: (1 << 63 | 1 << 62).into() };
                here(there(Opcode::MaskedFetchAdd, word).masked(3, operands.as_bytes()), word, 8)
            }
        };
        let index = self.pair.qa.post(&wqe.flags(barewire_layouts::wqe::ControlFlags::FENCE));
        self.posted.push_back(index);
    }

    fn receive(&mut self, receiver: usize, inbox: usize) {
        let segments = [(self.remote.address() + inbox as u64, LONGEST, self.remote.key)];
        match &mut self.way {
            Way::Connected => _ = self.pair.qb.post_receive(&segments),
            Way::Extended { queue, .. } => queue.post(&segments),
            Way::Dynamic(targets) => targets[receiver].srq.post(&segments),
        }
        self.inboxes.push(inbox);
    }

    /// Takes completions: each operation's once, in order.
    fn check(&mut self, context: &str) {
        for done in self.pair.qa.send_cq.drain() {
            assert!(done.is_ok(), "{context}: {done:?} {:?}", self.pair.a.device.counters());
            assert_eq!(Some(done.index), self.posted.pop_front(), "{context}: {done:?}");
        }
        let arrived: [Vec<Completion>; 2] = match &mut self.way {
            Way::Connected => [self.pair.qb.receive_cq.drain(), Vec::new()],
            Way::Extended { queue, .. } => [queue.cq.drain(), Vec::new()],
            Way::Dynamic(targets) => targets.each_mut().map(|target| target.cq.drain()),
        };
        for (done, received) in arrived.into_iter().zip(&mut self.received) {
            for done in done {
                assert!(done.is_ok(), "{context}: {done:?}");
                let slots = if matches!(self.way, Way::Connected) { u16::MAX } else { 31 };
                assert_eq!(done.index & slots, *received & slots, "{context}: {done:?}");
                *received += 1;
            }
        }
    }

    fn arrived(&self) -> usize {
        self.received.iter().copied().map(usize::from).sum()
    }

    fn finish(&mut self, context: &str) {
        self.check(context);
        assert!(self.posted.is_empty(), "{context}: {:?} never completed", self.posted);
        assert_eq!(self.arrived(), self.inboxes.len(), "{context}");
        assert!(self.local.memory.read(0, SIZE) == self.own, "{context}: local memory differs");
        assert!(
            self.remote.memory.read(0, SIZE) == self.theirs,
            "{context}: remote memory differs"
        );
    }
}

/// Adds to the number at `word`, and gives what was there.
fn add(memory: &mut [u8], word: usize, operand: u64) -> u64 {
    let bytes = &mut memory[word..word + 8];
    let old = u64::from_ne_bytes(bytes.try_into().unwrap());
    bytes.copy_from_slice(&old.wrapping_add(operand).to_ne_bytes());
    old
}

/// Messages that may be lost, and doubled, but not changed: each is what one of its number was.
struct Unreliable {
    pair: Pair,
    datagrams: bool,
    local: Region,
    inbox: Region,
    sent: BTreeMap<u32, Vec<u8>>,
    slots: u16,
    arrived: usize,
}

impl Unreliable {
    const SLOT: usize = 2048;
    const SLOTS: usize = 32;

    fn new(a: Node, b: Node, service: ServiceType) -> Self {
        let (local, inbox) = (a.region(LONGEST), b.region(Self::SLOT * Self::SLOTS));
        let pair = Pair::with_service(service, a, b, &Connection::default());
        let datagrams = service == ServiceType::Ud;
        let (sent, slots, arrived) = (BTreeMap::new(), 0, 0);
        let mut this = Self { pair, datagrams, local, inbox, sent, slots, arrived };
        (0..Self::SLOTS).for_each(|_| this.receive());
        this
    }

    fn receive(&mut self) {
        let at = usize::from(self.slots) % Self::SLOTS * Self::SLOT;
        self.pair.qb.post_receive(&[(
            self.inbox.address() + at as u64,
            Self::SLOT,
            self.inbox.key,
        )]);
        self.slots += 1;
    }

    fn post(&mut self, random: &mut Rng) {
        let number = self.sent.len() as u32;
        let length = 1 + random.usize(..if self.datagrams { DATAGRAM } else { LONGEST });
        let data = pattern(length, u64::from(number) << 32 | length as u64);
        self.local.memory.write(0, &data);
        self.sent.insert(number, data);
        let mut wqe = Wqe::new(Opcode::SendImmediate).immediate(number);
        if self.datagrams {
            let gid = self.pair.b.device.gid();
            wqe = wqe.addressed(&AddressVector::roce(
                self.pair.qb.number,
                QKEY,
                [0; 6],
                gid,
                0,
                0,
                64,
            ));
        }
        self.pair.qa.post(&wqe.data(self.local.address(), length, self.local.key));
        // The buffer is used again at once: sent is done, whatever becomes of it.
        for _ in 0..1000 {
            if let Some(done) = self.pair.qa.send_cq.poll() {
                assert!(done.is_ok());
                return;
            }
            self.pair.step(1);
        }
        panic!("a send without acknowledgment does not complete");
    }

    fn check(&mut self, context: &str) {
        for done in self.pair.qb.receive_cq.drain() {
            assert!(done.is_ok(), "{context}: {done:?}");
            let skip = if self.datagrams { GRH } else { 0 };
            let want = &self.sent[&done.immediate];
            assert_eq!(done.length as usize, want.len() + skip, "{context}");
            let at = usize::from(done.index) % Self::SLOTS * Self::SLOT;
            assert!(
                self.inbox.memory.read(at + skip, want.len()) == *want,
                "{context}: message {}",
                done.immediate
            );
            self.arrived += 1;
            self.receive();
        }
    }
}

/// One seed: the numbers of messages without acknowledgment that were sent and arrived.
fn run(seed: u64) -> (usize, usize) {
    let context = format!("BAREWIRE_HCA_SOAK_FIRST={seed} BAREWIRE_HCA_SOAK_SEEDS=1");
    let mut random = Rng::with_seed(seed);
    let fabric = Fabric::new();
    // Sometimes there is room for one dynamic connection only.
    let dynamic_connections = [1, 4096][random.usize(..2)];
    let [a, b] = [seed, !seed].map(|seed| {
        Node::open(
            Config::default()
                .mode(Mode::Stepped)
                .wire(WireKind::Fabric(fabric.clone()))
                .faults(faults(&mut random, seed))
                .strict(Strict::Panic)
                .dynamic_connections(dynamic_connections),
        )
    });
    let services =
        [ServiceType::Rc, ServiceType::Rc, ServiceType::Xrc, ServiceType::Dci, ServiceType::Dci];
    let mut reliable: Vec<_> = (0..)
        .zip(services)
        .map(|(number, service)| Reliable::new(a.clone(), b.clone(), service, seed << 3 | number))
        .collect();
    let mut unreliable = [ServiceType::Uc, ServiceType::Ud]
        .map(|service| Unreliable::new(a.clone(), b.clone(), service));
    for _ in 0..OPERATIONS {
        for one in &mut reliable {
            one.post(&mut random);
        }
        let one = &mut unreliable[random.usize(..2)];
        one.post(&mut random);
        // Sometimes much is on its way, sometimes nothing.
        let passes = [0, 1, 5, 40][random.usize(..4)];
        one.pair.step(passes);
        // A ring holds 64 WQEBBs and 32 receive WQEs.
        if random.usize(..8) == 0 {
            one.pair.settle();
        }
        for one in &mut reliable {
            one.check(&context);
        }
        if reliable
            .iter()
            .any(|one| one.posted.len() > 20 || one.inboxes.len() - one.arrived() > 20)
        {
            reliable[0].pair.settle();
        }
        for one in &mut unreliable {
            one.check(&context);
        }
    }
    reliable[0].pair.settle();
    for one in &mut reliable {
        one.finish(&context);
    }
    for one in &mut unreliable {
        one.check(&context);
    }
    let counts = unreliable
        .iter()
        .fold((0, 0), |(sent, arrived), one| (sent + one.sent.len(), arrived + one.arrived));
    for one in &reliable {
        a.destroy_key(one.local.key);
        b.destroy_key(one.remote.key);
    }
    for one in &unreliable {
        a.destroy_key(one.local.key);
        b.destroy_key(one.inbox.key);
    }
    drop((reliable, unreliable));
    for node in [a, b] {
        let left = ObjectCounts { protection_domains: 1, uar_pages: 1, ..ObjectCounts::default() };
        assert_eq!(node.device.objects(), left, "{context}: objects are left");
    }
    counts
}

#[test]
fn no_byte_differs_and_every_operation_completes_once() {
    let first = variable("BAREWIRE_HCA_SOAK_FIRST").unwrap_or(0);
    let seeds = variable("BAREWIRE_HCA_SOAK_SEEDS").unwrap_or(SEEDS);
    let mut sum = (0, 0);
    for seed in first..first.saturating_add(seeds) {
        let (sent, arrived) = run(seed);
        sum = (sum.0 + sent, sum.1 + arrived);
    }
    println!("{seeds} seeds; messages without acknowledgment: {} sent, {} arrived", sum.0, sum.1);
    assert!(seeds < 20 || sum.1 * 2 > sum.0, "{sum:?}");
}

#[test]
fn a_seed_gives_the_same_run() {
    assert_eq!(run(5), run(5));
}
