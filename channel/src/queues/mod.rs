//! The queues of one end on one rail: its queue pairs and their completion queue.

mod connect;
mod doubt;
mod failure;

use core::hint::cold_path;
use core::iter;
use std::collections::VecDeque;
use std::time::Instant;

use barewire_mlx5::doorbell::Adaptive;
use barewire_mlx5::request::{Inline, Line, Nop, Write, WriteImmediate};
use barewire_mlx5::{
    Access, CompletionKind, CompletionQueue, ControlFlags, DataSegment, Enhancements,
    Error as DeviceError, PostError, RcConfig, RcQueuePair, RemoteAddressSegment, Uar, WqeIndex,
};

use self::connect::common;
use crate::plan::{Partner, Plan};
use crate::rails::Rail;
use crate::request::REQUESTS;

pub(crate) use doubt::{Doubt, Part, Share};

/// WQEBBs of a send ring. All lines of the ring need two each, and room is known to be free a
/// signal period late at most.
const SEND_BLOCKS: usize = 1024;
const _: () = assert!(SEND_BLOCKS >= 4 * REQUESTS);

/// Longest message in bytes that [`Sender::send_inline`](crate::Sender::send_inline) sends: its WQE
/// has one block.
pub const MAX_INLINE: usize = 64 - 2 * 16 - 4;

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
    /// Immediates that were posted by a sender.
    immediates: u64,
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
#[repr(align(512))]
pub(crate) struct Queues {
    completions: CompletionQueue,
    /// The pair of the next message: 0 for the first.
    turn: u8,
    /// In this value, so that a call need not load a pointer to it.
    first: Pair,
    others: Vec<Pair>,
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

const _: () = assert!(size_of::<Queues>() == 512, "a shift has the offset of a rail");

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
        let make = |_| {
            let mut pair =
                RcQueuePair::create_with(&of.domain, &uar, &completions, &completions, &config)?;
            if role == Role::Receiver {
                while pair.receive.push_empty() {}
                pair.receive.publish();
            }
            let owners = Box::new([NO_OWNER; SEND_BLOCKS]);
            let (number, remote, tail, immediates) = (pair.number(), 0, 0, 0);
            let samples = VecDeque::new();
            Ok(Pair { queues: pair, number, remote, tail, immediates, owners, samples })
        };
        let first = make(0)?;
        let others = (1..pairs).map(make).collect::<Result<Vec<Pair>, DeviceError>>()?;
        let enhancements = if plan.config().enhancements {
            let all = iter::once(&first).chain(&others);
            common(all.map(|pair| pair.queues.enhancements()))
        } else {
            Enhancements::NONE
        };
        let &Partner { ours, theirs, weight, is_standby, .. } = partner;
        let [rail, place, partner] = [ours, place, theirs].map(|number| number as u8);
        let (bit, turn, failed) = (1 << (place & 7), 0, None);
        Ok(Self {
            completions,
            turn,
            first,
            others,
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
            Role::Sender => self.pairs().map(|pair| pair.immediates).sum(),
            Role::Receiver => self.taken().into_iter().map(u64::from).sum(),
        }
    }

    /// All queue pairs, in order.
    fn pairs(&self) -> impl Iterator<Item = &Pair> {
        iter::once(&self.first).chain(&self.others)
    }

    /// As above, to change them.
    fn pairs_mut(&mut self) -> impl Iterator<Item = &mut Pair> {
        iter::once(&mut self.first).chain(&mut self.others)
    }

    /// The queue pair for the next message.
    #[inline(always)]
    fn pair(&mut self) -> &mut Pair {
        match self.turn {
            0 => &mut self.first,
            turn => self.others.get_mut(usize::from(turn) - 1).unwrap_or(&mut self.first),
        }
    }

    /// Whether the queue pair for the next message has room for `blocks`.
    #[inline(always)]
    pub(crate) fn has_room(&self, blocks: u32) -> bool {
        let pair = match self.turn {
            0 => &self.first,
            turn => self.others.get(usize::from(turn) - 1).unwrap_or(&self.first),
        };
        pair.queues.send.room() >= blocks
    }

    /// Ends a message: the next one uses the next queue pair.
    #[inline(always)]
    pub(crate) fn turn(&mut self) {
        if !self.others.is_empty() {
            cold_path();
            let is_last = usize::from(self.turn) >= self.others.len();
            self.turn = if is_last { 0 } else { self.turn + 1 };
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
        let pair = self.pair();
        let flags = ControlFlags::COMPLETION;
        let posted = pair.queues.send.post(WriteImmediate { local, remote, immediate }, flags);
        pair.note(posted, owner, true)
    }

    /// Writes a message of a group, or a share of it, for request `owner`. It waits for the next
    /// [`Self::announce`] or [`Self::write_record`], and is acknowledged with a later WQE. Returns
    /// `false` if there is no room.
    #[inline(always)]
    pub(crate) fn write_plain(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        owner: u16,
    ) -> bool {
        let pair = self.pair();
        let posted = pair.queues.send.post_deferred(Write { local, remote }, ControlFlags::empty());
        pair.note(posted, owner, false)
    }

    /// Writes a message of at most [`MAX_INLINE`] bytes, which are copied, for request `owner`: as
    /// [`Self::write_share`] if there is an immediate, and otherwise as [`Self::write_plain`].
    /// Returns `false` if there is no room.
    #[inline]
    pub(crate) fn write_inline(
        &mut self,
        bytes: &[u8],
        remote: RemoteAddressSegment,
        immediate: Option<u32>,
        owner: u16,
    ) -> bool {
        if bytes.is_empty() {
            let nothing = DataSegment::new(0, 0, 0);
            return match immediate {
                Some(immediate) => self.write_share(nothing, remote, immediate, owner),
                None => self.write_plain(nothing, remote, owner),
            };
        }
        let pair = self.pair();
        let send = &mut pair.queues.send;
        let posted = match immediate {
            Some(immediate) => send.post(
                WriteImmediate { local: Inline(bytes), remote, immediate },
                ControlFlags::COMPLETION,
            ),
            None => {
                send.post_deferred(Write { local: Inline(bytes), remote }, ControlFlags::empty())
            }
        };
        pair.note(posted, owner, immediate.is_some())
    }

    /// Writes the record of a group, as [`Self::write_share`], and announces the messages before
    /// it.
    #[inline(always)]
    pub(crate) fn write_record(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        immediate: u32,
        owner: u16,
    ) -> bool {
        let pair = self.pair();
        let flags = ControlFlags::COMPLETION;
        let posted = pair.queues.send.post_last(WriteImmediate { local, remote, immediate }, flags);
        pair.note(posted, owner, true)
    }

    /// Rings the doorbell for the messages of a group that wait for it.
    pub(crate) fn announce(&mut self) {
        self.pair().queues.send.announce();
    }

    /// Announces the messages of the group that is not complete, and requests a completion for
    /// them. Returns whether one was requested.
    #[cold]
    pub(crate) fn request_completion(&mut self) -> bool {
        let pair = self.pair();
        let send = &mut pair.queues.send;
        send.announce();
        if send.last_is_signaled() {
            return false;
        }
        let posted = send.post(Nop, ControlFlags::COMPLETION);
        pair.note(posted, NO_OWNER, false)
    }

    /// Writes a line to the ring of the peer. Returns `false` if there is no room.
    #[inline(always)]
    pub(crate) fn write_line(&mut self, line: &[u8; 64], remote: RemoteAddressSegment) -> bool {
        self.pair()
            .queues
            .send
            .post(Write { local: Line(line), remote }, ControlFlags::empty())
            .is_ok()
    }

    /// Writes the lines of a group, which are at `local`, to the ring of the peer. Returns `false`
    /// if there is no room.
    #[inline(always)]
    pub(crate) fn write_lines(&mut self, local: DataSegment, remote: RemoteAddressSegment) -> bool {
        self.pair().queues.send.post(Write { local, remote }, ControlFlags::empty()).is_ok()
    }

    /// Returns whether none of the rails has a completion.
    #[inline(always)]
    pub(crate) fn are_empty(rails: &[Self]) -> bool {
        if let [only] = rails {
            return only.completions.is_empty();
        }
        rails.split_first().is_none_or(|(first, others)| {
            first.completions.is_empty() && others.iter().all(|rail| rail.completions.is_empty())
        })
    }

    /// Takes a completion. `sent` is called with the owner of each WQE that is known to be complete
    /// by it.
    #[inline(always)]
    pub(crate) fn poll(&mut self, mut sent: impl FnMut(u16)) -> Option<Event> {
        let polled = self.completions.poll()?;
        let pair = if self.others.is_empty() {
            // Nothing else has this completion queue.
            Some(&mut self.first)
        } else {
            let number = polled.qpn();
            let mut all = iter::once(&mut self.first).chain(&mut self.others);
            all.find(|pair| pair.number == number)
        };
        let Some(Pair { queues, owners, tail, .. }) = pair else {
            self.failed = Some((polled.qpn(), polled.wqe_counter(), polled.kind()));
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
            let counter = polled.wqe_counter();
            queues.send.reap(counter);
            let end = counter.wrapping_add(1);
            for at in 0..end.wrapping_sub(*tail) {
                sent(owners[usize::from(tail.wrapping_add(at)) % SEND_BLOCKS]);
            }
            *tail = end;
            return Some(Event::Sent);
        }
        self.failed = Some((polled.qpn(), polled.wqe_counter(), polled.kind()));
        Some(Event::Failed)
    }
}

impl Pair {
    /// Notes the request of a WQE of a sender, if it was posted, and whether it has an immediate.
    /// Returns whether it was posted.
    #[inline(always)]
    fn note(
        &mut self,
        posted: Result<WqeIndex, PostError>,
        owner: u16,
        has_immediate: bool,
    ) -> bool {
        let Ok(WqeIndex(index)) = posted else { return false };
        self.owners[usize::from(index) % SEND_BLOCKS] = owner;
        self.immediates += u64::from(has_immediate);
        true
    }
}
