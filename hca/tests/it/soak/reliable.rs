//! Operations of a reliable service, compared with copies of the memories.

use std::collections::{BTreeSet, VecDeque};

use barewire_layouts::command::qp::{Qpc, ReceiveQueueType, ServiceType};
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::wqe::{ControlFlags, MaskedFetchAdd64, Opcode};
use fastrand::Rng;
use zerocopy::IntoBytes;

use super::{LONGEST, SHAPES, SIZE};
use crate::support::dynamic::{Target, initiator, reset_stream, with_streams};
use crate::support::paging;
use crate::support::srq::Srq;
use crate::support::xrc::{Domain, XrcSrq};
use crate::support::{Completion, Connection, Cq, LOG_CQ, Node, Pair, Qp, Region, Wqe, pattern};

/// A service, and where its messages arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Rc,
    /// RC with a shared receive queue.
    RcShared,
    Xrc,
    Dc,
    /// DC with streams, some of whose requests fail.
    DcStreams,
}

/// Where messages go, and how a WQE says so.
enum Way {
    /// To the queue pair that the sender is connected to.
    Connected,
    /// To a shared receive queue of that queue pair.
    Shared(Box<Srq>),
    /// To a shared receive queue of an XRC domain. The domains live as long.
    Extended { queue: Box<XrcSrq>, _domains: [Domain; 2] },
    /// To either of two targets.
    Dynamic(Box<[Target; 2]>),
}

/// A reliable service, its memories, and what they must hold.
pub(super) struct Reliable {
    pub(super) pair: Pair,
    way: Way,
    /// WQEs that are not completed, and what is to become of them.
    pub(super) posted: VecDeque<(u16, Option<Syndrome>)>,
    /// Of an initiator with streams: the channels in error.
    failed: Option<BTreeSet<u16>>,
    /// Requests that failed or were flushed, as they were to.
    pub(super) refused: usize,
    /// Messages that came, for each receiver.
    received: [u16; 2],
    pub(super) local: Region,
    pub(super) remote: Region,
    /// Keys to the remote memory.
    pub(super) rkeys: Vec<u32>,
    own: Vec<u8>,
    theirs: Vec<u8>,
    /// Receive WQEs posted, and where they put what arrives.
    pub(super) inboxes: Vec<usize>,
}

/// log2 of the channels of an initiator with streams, and of those in error that would stop it:
/// more than there are.
const LOG_CHANNELS: u8 = 2;
const LOG_FAILED: u8 = 3;

impl Reliable {
    pub(super) fn new(a: Node, b: Node, kind: Kind, seed: u64) -> Self {
        let [local, remote] = [&a, &b].map(|node| {
            let on_demand = node.device.requirements().page_faults;
            if on_demand { paging::region(node, SIZE) } else { node.region(SIZE) }
        });
        let (own, theirs) = (pattern(SIZE, seed), pattern(SIZE, !seed));
        local.memory.write(0, &own);
        remote.memory.write(0, &theirs);
        let connection = Connection { psn: seed as u32 & 0xff_ffff, ..Connection::default() };
        let (pair, way) = match kind {
            Kind::Xrc => {
                let domains = [Domain::new(&a), Domain::new(&b)];
                let qps = (domains[0].queue_pair(true), domains[1].queue_pair(false));
                let queue = Box::new(XrcSrq::new(&domains[1], 5, 1, seed.is_multiple_of(2)));
                (Pair::of(a, b, qps, &connection), Way::Extended { queue, _domains: domains })
            }
            Kind::Dc | Kind::DcStreams => {
                let targets = Box::new([(); 2].map(|()| Target::new(&b, &connection)));
                let qa = if kind == Kind::Dc {
                    initiator(&a, &connection)
                } else {
                    with_streams(&a, &connection, LOG_CHANNELS, LOG_FAILED)
                };
                let qb = Qp::new(&b);
                (Pair { a, b, qa, qb }, Way::Dynamic(targets))
            }
            Kind::RcShared => {
                let srq = Box::new(Srq::new(&b, 5, SHAPES[seed as usize >> 3 & 3]));
                let qps = (Qp::new(&a), receiver(&b, ServiceType::Rc, &srq));
                (Pair::of(a, b, qps, &connection), Way::Shared(srq))
            }
            Kind::Rc => (Pair::over(a, b, &connection), Way::Connected),
        };
        let (posted, received, inboxes) = (VecDeque::new(), [0; 2], Vec::new());
        let failed = (kind == Kind::DcStreams).then(BTreeSet::new);
        let rkeys = vec![remote.key];
        Self {
            rkeys,
            pair,
            way,
            posted,
            failed,
            refused: 0,
            received,
            local,
            remote,
            own,
            theirs,
            inboxes,
        }
    }

    /// Posts a random operation and applies it to the copies. Fenced, so that results of earlier
    /// reads and atomics have arrived.
    pub(super) fn post(&mut self, random: &mut Rng) {
        let stream = random.u16(..);
        let channel = stream & ((1 << LOG_CHANNELS) - 1);
        if self.failed.as_ref().is_some_and(|failed| failed.contains(&channel)) {
            return self.post_refused(stream, Syndrome::WorkRequestFlushed, random);
        }
        if let Some(failed) = self.failed.as_mut().filter(|_| random.usize(..10) == 0) {
            failed.insert(channel);
            let error = [Syndrome::LocalProtection, Syndrome::RemoteAccess][random.usize(..2)];
            return self.post_refused(stream, error, random);
        }
        let stream = if self.failed.is_some() { stream } else { 0 };
        let length = 1 + random.usize(..LONGEST);
        // The lower half is for transfers, the upper one for received messages, its last words for
        // atomics.
        let (from, to) = (random.usize(..SIZE / 2 - LONGEST), random.usize(..SIZE / 2 - LONGEST));
        let inbox = SIZE / 2 + random.usize(..SIZE / 2 - LONGEST - 64);
        let word = SIZE - 8 * (1 + random.usize(..4));
        let (remote, rkey) = (self.remote.address(), self.rkeys[random.usize(..self.rkeys.len())]);
        let (local, lkey) = (self.local.address(), self.local.key);
        let receiver = random.usize(..2);
        let towards = |opcode| match &self.way {
            Way::Connected | Way::Shared(_) => Wqe::new(opcode).stream(stream),
            Way::Extended { queue, .. } => Wqe::new(opcode).shared_queue(queue.number),
            Way::Dynamic(targets) => {
                Wqe::new(opcode).stream(stream).addressed(&targets[receiver].address())
            }
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
        let index = self.pair.qa.post(&wqe.flags(ControlFlags::FENCE));
        self.posted.push_back((index, None));
    }

    /// Posts a request of a stream that completes with `syndrome` and changes nothing.
    fn post_refused(&mut self, stream: u16, syndrome: Syndrome, random: &mut Rng) {
        const WRONG: u32 = 0x100;
        let Way::Dynamic(targets) = &self.way else { return };
        let (mut lkey, mut rkey) = (self.local.key, self.remote.key);
        match syndrome {
            Syndrome::LocalProtection => lkey ^= WRONG,
            Syndrome::RemoteAccess => rkey ^= WRONG,
            _ => {}
        }
        let opcode = [Opcode::RdmaWrite, Opcode::RdmaRead][random.usize(..2)];
        let wqe = Wqe::new(opcode)
            .stream(stream)
            .addressed(&targets[random.usize(..2)].address())
            .remote(self.remote.address(), rkey)
            .data(self.local.address(), 1 + random.usize(..LONGEST), lkey);
        let index = self.pair.qa.post(&wqe.flags(ControlFlags::FENCE));
        self.posted.push_back((index, Some(syndrome)));
        self.refused += 1;
    }

    /// Resets a stream in error, once its requests are completed.
    pub(super) fn reset_a_stream(&mut self, context: &str) {
        let channel = self.failed.as_mut().filter(|_| self.posted.is_empty());
        if let Some(channel) = channel.and_then(BTreeSet::pop_first) {
            let stream = channel + (7 << LOG_CHANNELS);
            let done = reset_stream(&self.pair.qa, stream);
            assert!(done.is_ok(), "{context}: {done:?}");
        }
    }

    fn receive(&mut self, receiver: usize, inbox: usize) {
        let segments = [(self.remote.address() + inbox as u64, LONGEST, self.remote.key)];
        match &mut self.way {
            Way::Connected => _ = self.pair.qb.post_receive(&segments),
            Way::Shared(queue) => queue.post(&segments),
            Way::Extended { queue, .. } => queue.post(&segments),
            Way::Dynamic(targets) => targets[receiver].srq.post(&segments),
        }
        self.inboxes.push(inbox);
    }

    /// Takes completions: each operation's once, in order.
    pub(super) fn check(&mut self, context: &str) {
        for done in self.pair.qa.send_cq.drain() {
            let expected = self.posted.pop_front();
            assert_eq!(Some((done.index, done.syndrome)), expected, "{context}: {done:?}");
        }
        let arrived: [Vec<Completion>; 2] = match &mut self.way {
            Way::Connected | Way::Shared(_) => [self.pair.qb.receive_cq.drain(), Vec::new()],
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

    pub(super) fn arrived(&self) -> usize {
        self.received.iter().copied().map(usize::from).sum()
    }

    pub(super) fn finish(&mut self, context: &str) {
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

/// A queue pair that receives into a shared queue.
pub(crate) fn receiver(node: &Node, service: ServiceType, srq: &Srq) -> Qp {
    Qp::with(node, Cq::new(node, LOG_CQ), Cq::new(node, LOG_CQ), |context| {
        context
            .set(Qpc::ST, service)
            .set(Qpc::RQ_TYPE, ReceiveQueueType::Shared)
            .set(Qpc::SRQN_RMPN_XRQN, srq.number);
    })
}
