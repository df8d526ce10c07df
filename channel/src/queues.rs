//! The queues of one end on one rail: its queue pairs and their completion queue.

use core::hint::cold_path;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use barewire_layouts::wqe::Opcode;
use barewire_mlx5::doorbell::Adaptive;
use barewire_mlx5::{
    Access, CompletionKind, CompletionQueue, ControlFlags, DataSegment, Enhancements,
    Error as DeviceError, RcConfig, RcPath, RcQueuePair, ReceiveQueue, RemoteAddressSegment, Uar,
    WqeIndex,
};

use crate::config::Config;
use crate::fail_over::{Cause, Operation};
use crate::handshake::message::QueuePairs;
use crate::plan::{Partner, Plan};
use crate::rails::{Rail, RailInfo};
use crate::request::REQUESTS;

/// WQEBBs of a send ring. All lines of the ring need two each, and room is known to be free a
/// signal period late at most.
const SEND_BLOCKS: usize = 1024;
const _: () = assert!(SEND_BLOCKS >= 4 * REQUESTS);

/// The owner of a WQE that completes no request.
pub(crate) const NO_OWNER: u16 = u16::MAX;
/// The owner of a refusal: an immediate without data, or the record of a group, for a send that is
/// too long. No request waits for it.
pub(crate) const REFUSAL: u16 = u16::MAX - 1;

/// Which end of the channel the queues are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Sender,
    Receiver,
}

/// A queue pair.
#[derive(Debug)]
struct Pair {
    queues: RcQueuePair<Adaptive>,
    number: u32,
    remote: u32,
    /// The first WQE of a sender that is not known to be complete. All of them have one block.
    tail: u16,
    /// WQEs of a sender without an immediate.
    plain: u64,
    /// The request of each WQE of a sender.
    owners: Box<[u16; SEND_BLOCKS]>,
    /// Blocks that had been posted at some times, in their order.
    samples: VecDeque<(u64, Instant)>,
}

/// Most samples of a queue pair: the oldest are replaced.
const SAMPLES: usize = 64;

/// What a completion says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Writes were acknowledged.
    Sent,
    /// A share arrived.
    Arrived { immediate: u32, bytes: u32 },
    /// A queue pair failed: see [`Queues::cause`].
    Failed,
}

/// The queues of one end on one rail.
///
/// No method gives access to a queue, so that all queues of the register stay in this value.
#[derive(Debug)]
pub(crate) struct Queues {
    completions: CompletionQueue,
    pairs: Vec<Pair>,
    /// The pair of the next message.
    turn: usize,
    /// Number of the rail in its set.
    rail: u8,
    /// Number of the rail in the channel, the same at both ends, and the same as a bit.
    place: u8,
    bit: u8,
    /// Number of the peer's rail in its set.
    partner: u8,
    /// What the rail carries in proportion to the others.
    weight: u32,
    is_standby: bool,
    /// Those that the device supports, or has accepted if the queue pairs are connected.
    enhancements: Enhancements,
    /// The queue pair, WQE and kind of a completion with error.
    failed: Option<(u32, u16, CompletionKind)>,
}

// SAFETY: only the send queues are tied to a thread, because queues of one `Uar` write its register
// without a lock. `create` allocates the `Uar`, makes all of its queues, and drops every handle of
// it, so no other queue has the register. Nothing moves or lends a queue out of this value, so
// that all of them are on one thread at a time.
unsafe impl Send for Queues {}

impl Queues {
    /// Creates the queues. Those of a receiver have all of their receive WQEs posted.
    ///
    /// `place` is the number of the rail in the channel.
    pub(crate) fn create(
        (place, partner): (usize, &Partner),
        of: &Rail,
        plan: &Plan,
        role: Role,
    ) -> Result<Self, DeviceError> {
        let pairs = plan.pairs();
        let context = of.domain.context();
        let uar = Uar::allocate(context)?;
        let receives = if role == Role::Receiver { REQUESTS as u32 } else { 4 };
        let entries = pairs as u32 * (SEND_BLOCKS as u32 + receives);
        let completions = CompletionQueue::create(context, &uar, entries)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let config = RcConfig::default()
            .send_blocks(SEND_BLOCKS as u32)
            .receive_entries(receives)
            .access(access);
        let made = (0..pairs).map(|_| {
            let mut pair =
                RcQueuePair::create_with(&of.domain, &uar, &completions, &completions, &config)?;
            if role == Role::Receiver {
                while pair.receive.push_empty() {}
                pair.receive.publish();
            }
            let owners = Box::new([NO_OWNER; SEND_BLOCKS]);
            let (number, remote, tail, plain) = (pair.number(), 0, 0, 0);
            let samples = VecDeque::new();
            Ok(Pair { queues: pair, number, remote, tail, plain, owners, samples })
        });
        let pairs = made.collect::<Result<Vec<Pair>, DeviceError>>()?;
        let enhancements = if plan.config().enhancements {
            common(pairs.iter().map(|pair| pair.queues.enhancements()))
        } else {
            Enhancements::NONE
        };
        let &Partner { ours, theirs, weight, is_standby, .. } = partner;
        let [rail, place, partner] = [ours, place, theirs].map(|number| number as u8);
        let (bit, turn, failed) = (1 << (place & 7), 0, None);
        Ok(Self {
            completions,
            pairs,
            turn,
            rail,
            place,
            bit,
            partner,
            weight,
            is_standby,
            enhancements,
            failed,
        })
    }

    /// The queue pairs, for the peer.
    pub(crate) fn pairs(&self) -> QueuePairs {
        let numbers = self.pairs.iter().map(|pair| pair.number).collect();
        QueuePairs { numbers, enhancements: self.enhancements }
    }

    /// The enhancements that the device supports, or has accepted if the queue pairs are connected.
    pub(crate) fn enhancements(&self) -> Enhancements {
        self.enhancements
    }

    /// Reports an end whose device uses other enhancements than the peer, whose device had accepted
    /// `theirs`. Called at the end that connects last.
    pub(crate) fn check_enhancements(&self, theirs: Enhancements) {
        if self.enhancements != theirs {
            let (rail, ours) = (self.place, self.enhancements);
            tracing::warn!(rail, %ours, %theirs, "the ends of a rail use different enhancements");
        }
    }

    /// Connects the queue pairs to those of the peer, in order.
    pub(crate) fn connect(
        &mut self,
        remote: &RailInfo,
        peer: &QueuePairs,
        config: &Config,
        timeout: u8,
        epoch: u32,
    ) -> Result<(), DeviceError> {
        // A late packet of earlier queue pairs with the same numbers is out of sequence.
        let psn = epoch.wrapping_mul(0x9e_3779) & 0xff_ffff;
        // Without them at one end, neither uses any. Otherwise the device selects those of the peer
        // that it supports.
        let enhancements =
            if self.enhancements.is_none() { Enhancements::NONE } else { peer.enhancements };
        for (pair, number) in self.pairs.iter_mut().zip(&peer.numbers) {
            let path = RcPath::new(remote.address, *number)
                .mtu(remote.mtu)
                .send_psn(psn)
                .receive_psn(psn)
                .ack_timeout(timeout)
                .retry_count(config.retry_count)
                .traffic_class(config.traffic_class)
                .service_level(config.service_level)
                .enhancements(enhancements);
            pair.queues.connect(&path)?;
            pair.remote = *number;
        }
        self.enhancements =
            common(self.pairs.iter().map(|pair| pair.queues.accepted_enhancements()));
        Ok(())
    }

    /// Number of the rail in its set.
    #[inline(always)]
    pub(crate) fn rail(&self) -> usize {
        self.rail.into()
    }

    /// Number of the rail in the channel.
    #[inline(always)]
    pub(crate) fn place(&self) -> usize {
        self.place.into()
    }

    /// The same as a bit.
    #[inline(always)]
    pub(crate) fn bit(&self) -> u8 {
        self.bit
    }

    /// Number of the peer's rail in its set.
    #[inline(always)]
    pub(crate) fn partner(&self) -> usize {
        self.partner.into()
    }

    /// What the rail carries in proportion to the others.
    pub(crate) fn weight(&self) -> u32 {
        self.weight
    }

    /// Whether the rail carries messages only while others do not work.
    pub(crate) fn is_standby(&self) -> bool {
        self.is_standby
    }

    /// Immediates that were posted at a sender, or have arrived at a receiver.
    pub(crate) fn immediates(&self, role: Role) -> u64 {
        match role {
            Role::Sender => self.pairs.iter().map(Pair::immediates).sum(),
            Role::Receiver => self.taken().into_iter().map(u64::from).sum(),
        }
    }

    /// The queue pair for the next message.
    #[inline(always)]
    fn pair(&mut self) -> Option<&mut Pair> {
        match &mut *self.pairs {
            [only] => Some(only),
            pairs => pairs.get_mut(self.turn),
        }
    }

    /// Whether the queue pair for the next message has room for `blocks`.
    #[inline(always)]
    pub(crate) fn has_room(&self, blocks: u32) -> bool {
        let pair = match &*self.pairs {
            [only] => Some(only),
            pairs => pairs.get(self.turn),
        };
        pair.is_some_and(|pair| pair.queues.send.room() >= blocks)
    }

    /// Ends a message: the next one uses the next queue pair.
    #[inline(always)]
    pub(crate) fn turn(&mut self) {
        if self.pairs.len() > 1 {
            cold_path();
            let next = self.turn + 1;
            self.turn = if next < self.pairs.len() { next } else { 0 };
        }
    }

    /// Writes a share with `immediate` for request `owner`. Returns `false` if there is no room.
    #[inline(always)]
    pub(crate) fn write_share(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        immediate: u32,
        owner: u16,
    ) -> bool {
        let Some(Pair { queues, owners, .. }) = self.pair() else { return false };
        let flags = ControlFlags::COMPLETION;
        match queues.send.write_one_immediate(local, remote, immediate, flags) {
            Ok(index) => {
                owners[usize::from(index.0) % SEND_BLOCKS] = owner;
                true
            }
            Err(_) => false,
        }
    }

    /// Writes a message of a group, or a share of it, for request `owner`. It is acknowledged with
    /// a later WQE. Returns `false` if there is no room.
    #[inline(always)]
    pub(crate) fn write_plain(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        owner: u16,
    ) -> bool {
        let Some(Pair { queues, owners, plain, .. }) = self.pair() else { return false };
        match queues.send.write(local, remote, ControlFlags::empty()) {
            Ok(index) => {
                owners[usize::from(index.0) % SEND_BLOCKS] = owner;
                *plain += 1;
                true
            }
            Err(_) => false,
        }
    }

    /// Requests a completion for the messages of the group that is not complete. Returns whether
    /// one was requested.
    #[cold]
    pub(crate) fn request_completion(&mut self) -> bool {
        let Some(Pair { queues, owners, plain, .. }) = self.pair() else { return false };
        if queues.send.last_is_signaled() {
            return false;
        }
        let posted = queues.send.nop(ControlFlags::COMPLETION);
        if let Ok(index) = posted {
            owners[usize::from(index.0) % SEND_BLOCKS] = NO_OWNER;
            *plain += 1;
        }
        posted.is_ok()
    }

    /// Writes a line to the ring of the peer. Returns `false` if there is no room.
    #[inline(always)]
    pub(crate) fn write_line(&mut self, line: &[u8; 64], remote: RemoteAddressSegment) -> bool {
        let Some(Pair { queues, .. }) = self.pair() else { return false };
        queues.send.write_inline_64(line, remote, ControlFlags::empty()).is_ok()
    }

    /// Writes the lines of a group, which are at `local`, to the ring of the peer. Returns `false`
    /// if there is no room.
    #[inline(always)]
    pub(crate) fn write_lines(&mut self, local: DataSegment, remote: RemoteAddressSegment) -> bool {
        let Some(Pair { queues, .. }) = self.pair() else { return false };
        queues.send.write(local, remote, ControlFlags::empty()).is_ok()
    }

    /// Returns whether none of the rails has a completion.
    #[inline(always)]
    pub(crate) fn are_empty(rails: &[Self]) -> bool {
        match rails {
            [only] => only.completions.is_empty(),
            [first, others @ ..] => {
                first.completions.is_empty()
                    && others.iter().all(|rail| rail.completions.is_empty())
            }
            [] => true,
        }
    }

    /// Takes a completion. `sent` is called with the owner of each WQE that is known to be complete
    /// by it.
    #[inline(always)]
    pub(crate) fn poll(&mut self, mut sent: impl FnMut(u16)) -> Option<Event> {
        let polled = self.completions.poll()?;
        let (number, counter) = (polled.qpn(), polled.wqe_counter());
        let pair = match &mut *self.pairs {
            // Nothing else has this completion queue.
            [only] => Some(only),
            pairs => pairs.iter_mut().find(|pair| pair.number == number),
        };
        let Some(Pair { queues, owners, tail, .. }) = pair else {
            self.failed = Some((number, counter, polled.kind()));
            return Some(Event::Failed);
        };
        if polled.is_write_immediate() {
            let (immediate, bytes) = (polled.immediate(), polled.byte_count());
            // All entries contain the same, so it does not matter which one is free again.
            let next = queues.receive.producer();
            let _ = queues.receive.push_again(next);
            queues.receive.publish();
            return Some(Event::Arrived { immediate, bytes });
        }
        if polled.is_send() {
            queues.send.reap(counter);
            let end = counter.wrapping_add(1);
            for at in 0..end.wrapping_sub(*tail) {
                sent(owners[usize::from(tail.wrapping_add(at)) % SEND_BLOCKS]);
            }
            *tail = end;
            return Some(Event::Sent);
        }
        self.failed = Some((number, counter, polled.kind()));
        Some(Event::Failed)
    }

    /// What [`Event::Failed`] is about.
    #[cold]
    pub(crate) fn cause(
        &mut self,
        connected: Duration,
        now: Instant,
    ) -> Result<Cause, &'static str> {
        let (number, counter, kind) = self.failed.take().ok_or("an unknown failure")?;
        let (operation, syndrome) = match kind {
            CompletionKind::SendError(syndrome) => (Operation::Write, syndrome),
            CompletionKind::ReceiveError(syndrome) => (Operation::Receive, syndrome),
            CompletionKind::Receive | CompletionKind::ReceiveImmediate(_) => {
                return Err("it sent a message instead of a write");
            }
            _ => return Err("a completion that belongs to no operation"),
        };
        let pair = self.pairs.iter().find(|pair| pair.number == number);
        let remote = pair.map_or(0, |pair| pair.remote);
        let codes = [syndrome.code, syndrome.vendor_code, syndrome.opcode];
        let age = pair.filter(|_| operation == Operation::Write).map(|pair| pair.age(counter, now));
        let age = age.unwrap_or_default();
        Ok(Cause { operation, codes, pair: number, remote, connected, age })
    }

    /// Notes what is posted at this time, for the age of an operation that fails later.
    #[cold]
    pub(crate) fn sample(&mut self, now: Instant) {
        for Pair { queues, samples, .. } in &mut self.pairs {
            let posted = queues.send.posted();
            if samples.back().is_none_or(|(last, _)| *last != posted) {
                if samples.len() >= SAMPLES {
                    samples.pop_front();
                }
                samples.push_back((posted, now));
            }
        }
    }

    /// What the failure of the device is about.
    pub(crate) fn device_cause(&self, connected: Duration) -> Cause {
        let (pair, remote) = self.pairs.first().map_or((0, 0), |pair| (pair.number, pair.remote));
        let (codes, age) = ([0; 3], Duration::ZERO);
        Cause { operation: Operation::Device, codes, pair, remote, connected, age }
    }

    /// Moves the queue pairs to error: the peer's operations fail from now on.
    #[cold]
    pub(crate) fn fence(&mut self) {
        for pair in &mut self.pairs {
            if let Err(error) = pair.queues.to_error() {
                // They are destroyed afterwards, which has the same effect.
                tracing::warn!("queue pair {:#x} was not moved to error: {error}", pair.number);
            }
        }
    }

    /// Immediates taken so far, by queue pair. For a receiver.
    pub(crate) fn taken(&self) -> Vec<u32> {
        let taken = |queue: &ReceiveQueue| queue.producer().wrapping_sub(queue.entries());
        self.pairs.iter().map(|pair| taken(&pair.queues.receive)).collect()
    }

    /// The writes that were posted and are not acknowledged. For a sender, after all completions
    /// were taken.
    pub(crate) fn doubtful(&self) -> Doubt {
        let of_pair = |pair: &Pair| {
            let send = &pair.queues.send;
            let open = (send.posted() as u16).wrapping_sub(pair.tail);
            let share = |at: u16| {
                let index = pair.tail.wrapping_add(at);
                let bytes = send.ring_bytes(WqeIndex(index), 1);
                Share::from_wqe(&bytes, pair.owners[usize::from(index) % SEND_BLOCKS])
            };
            (pair.immediates(), (0..open).filter_map(share).collect())
        };
        Doubt { pairs: self.pairs.iter().map(of_pair).collect() }
    }

    /// Returns whether a refusal is not acknowledged. For a sender.
    #[cold]
    pub(crate) fn has_refusals(&self) -> bool {
        self.pairs.iter().any(|Pair { queues, owners, tail, .. }| {
            let open = (queues.send.posted() as u16).wrapping_sub(*tail);
            let owner = |at| owners[usize::from(tail.wrapping_add(at)) % SEND_BLOCKS];
            (0..open).any(|at| owner(at) == REFUSAL)
        })
    }

    /// Reads from the memory of the peer, with a completion. For a sender. Returns `false` if there
    /// is no room.
    #[cold]
    pub(crate) fn read(&mut self, local: DataSegment, remote: RemoteAddressSegment) -> bool {
        let Some(Pair { queues, owners, plain, .. }) = self.pair() else { return false };
        let posted = queues.send.read(local, remote, ControlFlags::COMPLETION);
        if let Ok(index) = posted {
            owners[usize::from(index.0) % SEND_BLOCKS] = NO_OWNER;
            *plain += 1;
        }
        posted.is_ok()
    }

    /// Writes nothing to the peer, to learn whether the first queue pair works.
    pub(crate) fn probe(&mut self) -> bool {
        let nothing = DataSegment::new(0, 0, 0);
        let nowhere = RemoteAddressSegment::new(0, 0);
        self.pairs.first_mut().is_some_and(|Pair { queues, plain, .. }| {
            let is_posted = queues.send.write(nothing, nowhere, ControlFlags::COMPLETION).is_ok();
            *plain += u64::from(is_posted);
            is_posted
        })
    }
}

/// What all of these have in common.
fn common(all: impl Iterator<Item = Enhancements>) -> Enhancements {
    all.reduce(Enhancements::common).unwrap_or_default()
}

impl Pair {
    /// How long the WQE of `counter` has been posted at least, in whole milliseconds.
    fn age(&self, counter: u16, now: Instant) -> Duration {
        let posted = self.queues.send.posted();
        let index = posted.wrapping_sub((posted as u16).wrapping_sub(counter).into());
        let since = self.samples.iter().find(|(posted, _)| *posted > index);
        let age = since.map(|(_, since)| now.saturating_duration_since(*since));
        // Both ends report the same, and milliseconds cross the wire.
        Duration::from_millis(age.unwrap_or_default().as_millis() as u64)
    }

    /// Immediates that were posted by a sender.
    fn immediates(&self) -> u64 {
        // Every WQE has one block.
        self.queues.send.posted() - self.plain
    }
}

/// A write that was posted: a share of a message, or the record of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) remote: u64,
    /// `None` for a message of a group.
    pub(crate) immediate: Option<u32>,
    pub(crate) owner: u16,
}

impl Share {
    /// Reads what [`Queues::write_share`] or [`Queues::write_plain`] has written. Returns `None`
    /// for other WQEs.
    fn from_wqe(bytes: &[u8], owner: u16) -> Option<Self> {
        let word = |at: usize| {
            let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk).copied();
            u32::from_be_bytes(bytes.unwrap_or_default())
        };
        let long = |at| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let has_immediate = word(0) as u8 == Opcode::RdmaWriteImmediate as u8;
        if !has_immediate && owner == NO_OWNER {
            return None;
        }
        // A share without bytes has no data segment: two units instead of three.
        let (address, length) = if word(4) & 0x3f < 3 { (0, 0) } else { (long(40), word(32)) };
        let immediate = has_immediate.then(|| word(12));
        Some(Self { address, length, remote: long(16), immediate, owner })
    }
}

/// Writes that must go over one queue pair in this order, because the immediate of the last one
/// says that all have arrived. Without an immediate, the group is not complete.
pub(crate) type Part = Vec<Share>;

/// The writes over a rail of which the sender does not know whether they arrived.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    /// By queue pair: the immediates posted so far, and the writes that are not acknowledged.
    pairs: Vec<(u64, Vec<Share>)>,
}

impl Doubt {
    /// The writes.
    pub(crate) fn shares(&mut self) -> impl Iterator<Item = &mut Share> {
        self.pairs.iter_mut().flat_map(|(_, shares)| shares)
    }

    /// Determines by the immediates that the peer has taken on each queue pair which writes have
    /// `arrived`: those up to the last of these immediates. Returns the others.
    pub(crate) fn resolve(
        self,
        taken: &[u32],
        mut arrived: impl FnMut(Share),
    ) -> Result<Vec<Part>, &'static str> {
        if taken.len() != self.pairs.len() {
            return Err("a FENCE for other queue pairs");
        }
        let mut missing = Vec::new();
        for ((posted, shares), taken) in self.pairs.into_iter().zip(taken) {
            let lost = (posted as u32).wrapping_sub(*taken) as usize;
            let open = shares.iter().filter(|share| share.immediate.is_some()).count();
            // Fewer than were acknowledged, or more than were posted.
            let mut there = open.checked_sub(lost);
            let there = there.as_mut().ok_or("a FENCE whose counts contradict acknowledgements")?;
            let mut part = Part::new();
            for share in shares {
                if *there > 0 {
                    *there -= usize::from(share.immediate.is_some());
                    arrived(share);
                    continue;
                }
                part.push(share);
                if share.immediate.is_some() {
                    missing.push(std::mem::take(&mut part));
                }
            }
            missing.extend(Some(part).filter(|part| !part.is_empty()));
        }
        Ok(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(immediate: Option<u32>) -> Share {
        Share { address: 0, length: 0, remote: 0, immediate, owner: 0 }
    }

    fn doubt(posted: u64, open: u32) -> Doubt {
        Doubt { pairs: vec![(posted, (0..open).map(|at| share(Some(at))).collect())] }
    }

    #[test]
    fn counts_tell_which_shares_arrived() {
        let arrived = |posted, open, taken| {
            let mut arrived = 0;
            let missing = doubt(posted, open).resolve(&[taken], |_| arrived += 1)?;
            assert_eq!(missing.len() as u32 + arrived, open);
            Ok::<_, &str>(arrived)
        };
        assert_eq!(arrived(10, 3, 7), Ok(0));
        assert_eq!(arrived(10, 3, 9), Ok(2));
        assert_eq!(arrived(10, 3, 10), Ok(3));
        arrived(10, 3, 6).unwrap_err();
        arrived(10, 3, 11).unwrap_err();
        // The count wraps.
        assert_eq!(arrived(1 << 32, 2, u32::MAX), Ok(1));
        assert_eq!(arrived((1 << 32) + 1, 2, 0), Ok(1));
        doubt(1, 1).resolve(&[], |_| {}).unwrap_err();
    }

    /// Of a group, everything up to an immediate that was taken has arrived, and nothing is known
    /// of what follows the last one.
    #[test]
    fn groups_stay_together() {
        let writes = [None, None, Some(1), None, Some(2), Some(3), None, None];
        for (taken, there, lengths) in
            [(2, 0, &[3, 2, 1, 2][..]), (3, 3, &[2, 1, 2]), (4, 5, &[1, 2]), (5, 6, &[2])]
        {
            let shares = writes.map(share).to_vec();
            let doubt = Doubt { pairs: vec![(5, shares)] };
            let mut arrived = 0;
            let missing = doubt.resolve(&[taken], |_| arrived += 1).unwrap();
            assert_eq!(arrived, there);
            assert_eq!(missing.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
        }
        let complete = Doubt { pairs: vec![(5, writes.map(share)[..6].to_vec())] };
        assert_eq!(complete.resolve(&[5], |_| {}), Ok(Vec::new()));
    }
}
