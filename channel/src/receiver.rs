//! The receiving end of a channel.

use core::fmt;
use core::hint::cold_path;
use core::mem;
use std::sync::Arc;
use std::time::Instant;

use crate::config::{MAX_GROUP, MAX_GROUPS, MAX_RAILS};
use crate::control::{Peer, Stream};
use crate::counters::RailCounters;
use crate::error::{Error, Failure};
use crate::fail_over::{FailOver, Half};
use crate::handshake::message::Held;
use crate::plan::Plan;
use crate::queues::{Doubt, Event, Queues};
use crate::rails::Rails;
use crate::region::Region;
use crate::request::{Outcome, Request};
use crate::ring::{
    Announcement, GROUP_BITS, Immediate, Label, Lines, NEXT_MEMBER, REFUSED, RemoteLines,
};

/// Blocks of a line's WQE: control, address, and 64 bytes inline.
const LINE_BLOCKS: u32 = 2;

/// A buffer of a group.
#[derive(Clone, Copy, Debug)]
pub struct Target<'r> {
    /// The memory, of [`Usage::Receive`](crate::Usage::Receive).
    pub region: &'r Region,
    /// Offset of the first byte.
    pub offset: usize,
    /// Longest message in bytes that is accepted.
    pub length: usize,
    /// The tag that the send must have.
    pub tag: u32,
}

/// What was received: the length of each message of a group.
#[derive(Clone, Copy)]
pub struct Received {
    /// Those after the first `count` have no meaning.
    sizes: [usize; MAX_GROUP],
    count: u8,
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received").field("sizes", &self.sizes()).finish()
    }
}

impl PartialEq for Received {
    fn eq(&self, other: &Self) -> bool {
        self.sizes() == other.sizes()
    }
}

impl Eq for Received {}

impl Received {
    /// The length of each message in bytes, in the order of the buffers.
    #[inline]
    pub fn sizes(&self) -> &[usize] {
        self.sizes.get(..usize::from(self.count)).unwrap_or_default()
    }
}

/// The receiving end of a channel: announces buffers, into which the sender writes.
///
/// It may move to another thread. Dropping it closes the channel.
#[derive(Debug)]
#[must_use = "dropping it closes the channel"]
pub struct Receiver {
    /// The next group, from 0.
    group: u64,
    ring: RemoteLines,
    /// The lines of groups, which the device reads, and the records that the sender writes. A line
    /// is kept until its buffer is used.
    copies: Lines,
    /// One per rail that works; those in use come first. Dropped before the regions of the
    /// requests.
    queues: Vec<Queues>,
    /// Rails in use: standby rails may not be.
    in_use: usize,
    /// The rail that carries the next group's lines.
    turn: usize,
    limit: u64,
    rails: Rails,
    peer: Peer,
    slots: Box<[Slot; MAX_GROUPS]>,
    failure: Option<Arc<Failure>>,
    /// Why the last test fails.
    error: Option<Error>,
    fail_over: Box<FailOver>,
    /// Slots of groups whose lines have to be written again, as bits.
    unannounced: u32,
}

/// A group of buffers.
#[derive(Debug)]
struct Slot {
    request: Request,
    /// What the immediates of the group have in common.
    group: u32,
    /// The immediate of a group that has only one, until one arrives.
    whole: u32,
    count: u8,
    /// Something has not arrived.
    is_open: bool,
    /// Immediates of the group; 0 until the first arrived.
    shares: u8,
    /// Those that have not arrived.
    left: u8,
    /// Buffers whose send was too long, as bits; or [`Self::LONGER`].
    refused: u16,
    /// Regions in use.
    held: u8,
    /// The rail of the channel that carries the lines.
    place: u8,
    /// Tag and address of a single buffer.
    tag: u32,
    address: u64,
    /// Lengths of the buffers. Those that a group does not have are without limit.
    rooms: [usize; MAX_GROUP],
    sizes: [usize; MAX_GROUP],
    /// Keep the memory registered: one for each buffer, or one for all.
    regions: [Option<Region>; MAX_GROUP],
}

/// What a peer did wrong with a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    NotAnnounced,
    Contradictory,
    Longer,
    TooMany,
}

impl Wrong {
    fn text(self) -> &'static str {
        match self {
            Self::NotAnnounced => "a share of a message that was not announced",
            Self::Contradictory => "shares of one message that contradict each other",
            Self::Longer => "a message that is longer than its buffer",
            Self::TooMany => "more shares of a message than it has",
        }
    }
}

impl Slot {
    /// The group of a free slot: it has bits that no immediate's group has.
    const NO_GROUP: u32 = u32::MAX;
    /// A message is longer than its buffer, which no peer of this protocol does.
    const LONGER: u16 = u16::MAX;

    const FREE: Self = Self {
        request: Request::NONE,
        group: Self::NO_GROUP,
        whole: Self::NO_GROUP,
        count: 0,
        is_open: false,
        shares: 0,
        left: 0,
        refused: 0,
        held: 0,
        place: 0,
        tag: 0,
        address: 0,
        rooms: [0; MAX_GROUP],
        sizes: [0; MAX_GROUP],
        regions: [const { None }; MAX_GROUP],
    };

    /// A group whose lines are written over the rail at `place`.
    #[inline(always)]
    fn open(&mut self, group: u64, count: u8, place: usize) {
        self.request = Request::new(group, 0);
        self.group = Immediate::group_bits(group, count > 1);
        self.whole = self.group | 1;
        self.sizes[0] = 0;
        self.count = count;
        (self.shares, self.left, self.refused) = (0, 0, 0);
        self.is_open = true;
        self.place = place as u8;
    }

    /// Stores the lines of a group of several buffers if all of them are in one region, as mostly.
    /// Returns `false` if they are not, or one cannot be announced.
    #[inline(always)]
    fn store_one_region(
        &mut self,
        copies: &Lines,
        rails: &Rails,
        group: u64,
        buffers: &[Target<'_>],
    ) -> bool {
        let Some(Target { region: first, .. }) = buffers.first() else { return false };
        if !first.receives() || first.admit(rails, 0, 0).is_err() {
            return false;
        }
        // A rail that does not work at the moment may be used for the message.
        let (start, size, keys) = (first.address(0), first.len(), *first.key_words());
        let mut label = Label { tag: 0, count: buffers.len() as u8 }.to_word(0);
        let places = copies.group(group).zip(&mut self.rooms);
        for (buffer, (line, room)) in buffers.iter().zip(places) {
            let Target { region, offset, length, tag } = *buffer;
            let is_inside = size.checked_sub(length).is_some_and(|last| offset <= last);
            if !region.is(first) || !is_inside {
                return false;
            }
            *room = length;
            let address = start.wrapping_add(offset as u64);
            line.store(group, (address, length as u64), &keys, label | u64::from(tag));
            label = label.wrapping_add(NEXT_MEMBER);
        }
        // There is nothing to drop, since the slot is free.
        mem::forget(self.regions[0].replace((*first).clone()));
        self.held = 1;
        true
    }

    /// Stores the lines of buffers in several regions.
    #[cold]
    #[inline(never)]
    fn store_several_regions(&mut self, copies: &Lines, group: u64, buffers: &[Target<'_>]) {
        let label = Label { tag: 0, count: buffers.len() as u8 };
        let places = copies.group(group).zip(&mut self.rooms).zip(&mut self.regions).zip(0..);
        for (buffer, (((line, room), held), member)) in buffers.iter().zip(places) {
            let Target { region, offset, length, tag } = *buffer;
            *room = length;
            *held = Some(region.clone());
            let label = label.to_word(member) | u64::from(tag);
            let place = (region.address(offset), length as u64);
            line.store(group, place, region.key_words(), label);
        }
        self.held = buffers.len() as u8;
    }

    /// Drops the regions of buffers after the first.
    #[inline(always)]
    fn release(&mut self) {
        if self.held > 1 {
            cold_path();
            self.regions[1..].fill(None);
        }
    }

    /// The lengths of a group that is complete.
    #[inline(always)]
    fn received(&self) -> Received {
        Received { sizes: self.sizes, count: self.count }
    }

    /// Counts an immediate that came with `bytes` bytes. Returns whether the group is complete.
    ///
    /// # Errors
    /// What the peer did wrong.
    #[inline(always)]
    fn arrive(&mut self, immediate: u32, bytes: u32) -> Result<bool, Wrong> {
        if immediate == self.whole && bytes as usize <= self.rooms[0] {
            // The whole message of a single buffer, or the only record of a group, which is the
            // first that arrives.
            self.whole = Self::NO_GROUP;
            self.sizes[0] = bytes as usize;
            self.shares = 1;
            self.is_open = false;
            return Ok(true);
        }
        self.arrive_in_part(immediate, bytes)
    }

    /// As above, for one of several.
    #[inline(always)]
    fn arrive_in_part(&mut self, immediate: u32, bytes: u32) -> Result<bool, Wrong> {
        let shares = immediate as u8 & 0xf;
        self.whole = Self::NO_GROUP;
        if immediate & GROUP_BITS != self.group {
            return Err(Wrong::NotAnnounced);
        }
        if self.shares != shares {
            if self.shares != 0 || usize::from(shares) > MAX_RAILS {
                return Err(Wrong::Contradictory);
            }
            (self.shares, self.left) = (shares, shares);
        }
        if self.left == 0 {
            cold_path();
            return self.refuse(shares);
        }
        if self.count == 1 {
            let size = self.sizes[0] + bytes as usize;
            if size > self.rooms[0] {
                return Err(Wrong::Longer);
            }
            self.sizes[0] = size;
        }
        self.left -= 1;
        self.is_open = self.left > 0;
        Ok(!self.is_open)
    }

    /// Counts an immediate without a share, for a send that was too long.
    #[cold]
    fn refuse(&mut self, shares: u8) -> Result<bool, Wrong> {
        if shares != 0 || self.count > 1 || self.refused != 0 {
            return Err(Wrong::TooMany);
        }
        // No share may follow.
        self.shares = u8::MAX;
        self.refused = 1;
        self.is_open = false;
        Ok(true)
    }

    /// The error of a group with a refused message; `None` if the peer is wrong.
    #[cold]
    fn refusal(&self) -> Option<Error> {
        let member = self.refused.trailing_zeros() as u8;
        let room = self.rooms[usize::from(member) % MAX_GROUP] as u64;
        (self.refused != Self::LONGER).then_some(Error::Refused { member, room })
    }

    /// Takes the lengths of a group from its record. Sets `refused` if one is no length.
    #[inline(always)]
    fn record(&mut self, record: impl Iterator<Item = u64>) {
        let parts = self.sizes.iter_mut().zip(&self.rooms).zip(record).zip(0..);
        for (((size, room), recorded), member) in parts {
            *size = recorded as usize;
            if recorded > *room as u64 {
                cold_path();
                if recorded != REFUSED {
                    self.refused = Self::LONGER;
                    return;
                }
                *size = 0;
                self.refused |= 1_u16 << (member & 7);
            }
        }
    }
}

impl Receiver {
    pub(crate) fn new(
        plan: Plan,
        mut queues: Vec<Queues>,
        (ring, copies): (RemoteLines, Lines),
        stream: Stream,
        limit: u64,
    ) -> Self {
        let in_use = plan.select(&mut queues);
        Self {
            group: 0,
            ring,
            copies,
            queues,
            in_use,
            turn: 0,
            limit,
            rails: plan.rails().clone(),
            peer: Peer::new(stream),
            slots: Box::new([const { Slot::FREE }; MAX_GROUPS]),
            failure: None,
            error: None,
            fail_over: Box::new(FailOver::new(plan)),
            unannounced: 0,
        }
    }

    /// The place of a line in the peer's ring by rail, for a test that writes what it likes.
    #[cfg(all(test, feature = "soft"))]
    pub(crate) fn ring_line(
        &self,
        group: u64,
        member: u8,
    ) -> impl Fn(usize) -> barewire_mlx5::RemoteAddressSegment + use<> {
        let ring = self.ring;
        move |rail| ring.line(group, member, rail)
    }

    /// The queues, for a test that writes what it likes.
    #[cfg(all(test, feature = "soft"))]
    pub(crate) fn queues(&mut self) -> &mut [Queues] {
        &mut self.queues
    }

    /// Sends any message to the peer, for a test.
    #[cfg(all(test, feature = "soft"))]
    pub(crate) fn tell(&mut self, message: &crate::handshake::message::Message) {
        self.peer.send(message);
    }

    /// Longest message in bytes that the ends have agreed on. Longer buffers may be announced.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Rails in use: those of the channel, without those that have failed, and without standby
    /// rails that replace none.
    pub fn rails(&self) -> usize {
        self.in_use
    }

    /// What went over each rail of the channel, in their order.
    pub fn counters(&self) -> Vec<RailCounters> {
        self.fail_over.counters(&self.queues, self.in_use)
    }

    /// Announces `length` bytes at `offset` of `region` for the next send with `tag`. Returns
    /// `None` if 32 requests are outstanding, or no rail works at the moment: test requests, then
    /// call again. The region stays registered until the request is complete.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::Foreign`] and [`Error::SendOnly`], without effect;
    /// [`Error::Failed`].
    #[inline]
    pub fn receive(
        &mut self,
        region: &Region,
        offset: usize,
        length: usize,
        tag: u32,
    ) -> Result<Option<Request>, Error> {
        self.announce_one(&Target { region, offset, length, tag })
    }

    /// Announces a group of 1 to 8 buffers as one request. Each gets one message: the first without
    /// one whose tag is that of the send. The next group is used when every buffer of this one has
    /// its send.
    ///
    /// # Errors
    /// Those of [`Self::receive`], and [`Error::Group`].
    #[inline]
    pub fn receive_group(&mut self, buffers: &[Target<'_>]) -> Result<Option<Request>, Error> {
        match buffers {
            [buffer] => self.announce_one(buffer),
            [] | [_, _, _, _, _, _, _, _, _, ..] => Err(Error::Group(buffers.len())),
            _ => self.announce_group(buffers),
        }
    }

    /// The first group that is not complete.
    fn done(&self) -> u64 {
        let is_open = |slot: &&Slot| slot.request != Request::NONE && slot.is_open;
        let open = self.slots.iter().filter(is_open).map(|slot| slot.request.number());
        open.min().unwrap_or(self.group)
    }

    /// Announces a buffer.
    #[inline(always)]
    fn announce_one(&mut self, buffer: &Target<'_>) -> Result<Option<Request>, Error> {
        let Target { region, offset, length, tag } = *buffer;
        region.admit(&self.rails, offset, length)?;
        if !region.receives() {
            return Err(Error::SendOnly);
        }
        let group = self.group;
        let Some((slot, queues)) = room(&mut self.slots, &mut self.queues, group, self.turn) else {
            return self.full();
        };
        let (place, address) = (queues.place(), region.address(offset));
        // A rail that does not work at the moment may be used for the message.
        let (length, keys) = (length as u64, region.keys());
        let line = Announcement { address, length, keys, tag, count: 1, member: 0 };
        // There is room, as checked above.
        queues.write_line(&line.to_line(group), self.ring.line(group, 0, place));
        (slot.address, slot.tag, slot.held) = (address, tag, 1);
        slot.rooms[0] = length as usize;
        // There is nothing to drop, since the slot is free.
        mem::forget(slot.regions[0].replace(region.clone()));
        queues.turn();
        slot.open(group, 1, place);
        Ok(Some(self.announced(group)))
    }

    /// Announces 2 to 8 buffers.
    #[inline(always)]
    fn announce_group(&mut self, buffers: &[Target<'_>]) -> Result<Option<Request>, Error> {
        let (group, count) = (self.group, buffers.len() as u8);
        let Some((slot, queues)) = room(&mut self.slots, &mut self.queues, group, self.turn) else {
            admit(&self.rails, buffers)?;
            return self.full();
        };
        if !slot.store_one_region(&self.copies, &self.rails, group, buffers) {
            admit(&self.rails, buffers)?;
            slot.store_several_regions(&self.copies, group, buffers);
        }
        for room in slot.rooms.iter_mut().skip(buffers.len()) {
            *room = usize::MAX;
        }
        let place = queues.place();
        let local = self.copies.lines(group, count, queues.rail());
        // There is room, as checked above.
        queues.write_lines(local, self.ring.line(group, 0, place));
        queues.turn();
        slot.open(group, count, place);
        Ok(Some(self.announced(group)))
    }

    /// Notes that a group is announced.
    #[inline(always)]
    fn announced(&mut self, group: u64) -> Request {
        let next = self.turn + 1;
        self.turn = if next < self.in_use { next } else { 0 };
        self.group = group.wrapping_add(1);
        Request::new(group, 0)
    }

    /// Returns the lengths once `request` is complete: all of its messages are in memory. Returns
    /// `None` before.
    ///
    /// # Errors
    /// [`Error::Refused`] if a send was longer than its buffer, which completes the request;
    /// [`Error::UnknownRequest`]; [`Error::Failed`].
    #[inline]
    pub fn test(&mut self, request: Request) -> Result<Option<Received>, Error> {
        let at = request.group();
        let slot = &self.slots[at];
        let outcome = if slot.request != request || !slot.is_open {
            self.collect(request)
        } else if Queues::are_empty(&self.queues) && !self.peer.idle() {
            return Ok(None);
        } else {
            self.take(at)
        };
        match outcome {
            Outcome::Complete(slot) => Ok(Some(slot.received())),
            Outcome::Waiting => Ok(None),
            Outcome::Failed(_) => Err(self.why()),
        }
    }

    /// Why the test fails.
    #[cold]
    #[inline(never)]
    fn why(&mut self) -> Error {
        self.error.take().unwrap_or_else(|| self.violated(Wrong::Longer.text()))
    }

    /// Takes completions, and ends the request of slot `at` if it is complete.
    #[inline(never)]
    fn take(&mut self, at: usize) -> Outcome<'_, Slot> {
        if self.progress(at) {
            return self.free(at);
        }
        if self.peer.is_due()
            && let Err(error) = self.check()
        {
            return self.failed(error);
        }
        Outcome::Waiting
    }

    /// Ends a request that is complete, if there is one.
    #[inline(never)]
    fn collect(&mut self, request: Request) -> Outcome<'_, Slot> {
        if self.slots[request.group()].request == request {
            return self.free(request.group());
        }
        self.failed(Error::UnknownRequest)
    }

    #[cold]
    #[inline(never)]
    fn failed(&mut self, error: Error) -> Outcome<'_, Slot> {
        self.error = Some(error);
        Outcome::Failed(&mut self.error)
    }

    /// Frees a slot. Its sizes remain.
    #[inline(always)]
    fn free(&mut self, at: usize) -> Outcome<'_, Slot> {
        let Self { slots, copies, error, .. } = self;
        let at = at % MAX_GROUPS;
        let slot = &mut slots[at];
        copies.store_received(at, slot.request.number());
        // Further shares of the group are errors, since all of its messages are complete.
        slot.request = Request::NONE;
        // There is always one.
        slot.regions[0] = None;
        if slot.count > 1 {
            slot.release();
            slot.record(copies.sizes(at));
        }
        if slot.refused != 0 {
            cold_path();
            *error = slot.refusal();
            return Outcome::Failed(error);
        }
        Outcome::Complete(slot)
    }

    /// Takes completions until there are none, or the group of slot `at` is complete. Returns
    /// whether it is.
    #[inline(always)]
    fn progress(&mut self, at: usize) -> bool {
        for queues in &mut self.queues {
            while let Some(event) = queues.poll(|_| {}) {
                match event {
                    // Lines whose WQEs are free again.
                    Event::Sent => {}
                    Event::Arrived { immediate, bytes } => {
                        match arrive(&mut self.slots, immediate, bytes) {
                            Ok(Some(complete)) if complete == at => return true,
                            Ok(_) => {}
                            Err(what) => {
                                self.violated(what.text());
                                return false;
                            }
                        }
                    }
                    Event::Failed => {
                        let place = queues.place();
                        self.lose(place);
                        // Completions of the failed rail were taken as well.
                        return self.slots.get(at).is_some_and(|slot| !slot.is_open);
                    }
                }
            }
        }
        false
    }

    #[cold]
    #[inline(never)]
    fn lose(&mut self, place: usize) {
        if let Err(what) = self.broke(place, Instant::now()) {
            self.violated(what);
        }
    }

    #[cold]
    #[inline(never)]
    fn violated(&mut self, what: &'static str) -> Error {
        let peer = self.peer.address();
        Error::Failed(self.fail(Failure::Protocol { peer, what }))
    }

    /// Records a failure, unless there is one already. Returns the first.
    #[cold]
    fn fail(&mut self, failure: Failure) -> Arc<Failure> {
        // Nothing is posted any more, and the peer writes nothing.
        self.queues.clear();
        self.in_use = 0;
        self.fail_over.abandon(Instant::now());
        self.peer.close(self.done());
        self.peer.hurry();
        Arc::clone(self.failure.get_or_insert_with(|| Arc::new(failure)))
    }

    /// The result of a receive that cannot be posted now.
    #[cold]
    #[inline(never)]
    fn full(&mut self) -> Result<Option<Request>, Error> {
        // Completions of lines make room.
        self.progress(usize::MAX);
        if self.failure.is_some() || self.peer.idle() {
            self.check()?;
        }
        Ok(None)
    }

    /// Reads the connection to the peer, and carries on with rails that have failed. The other
    /// calls do so when they find nothing. An idle end that is not checked learns of a closed peer
    /// later, and its failed rails are not tried again.
    ///
    /// # Errors
    /// [`Error::Failed`].
    #[cold]
    #[inline(never)]
    pub fn check(&mut self) -> Result<(), Error> {
        self.progress(usize::MAX);
        if self.failure.is_none()
            && let Err(failure) = self.control(Instant::now())
        {
            self.fail(failure);
        }
        match &self.failure {
            Some(failure) => {
                self.peer.hurry();
                Err(Error::Failed(Arc::clone(failure)))
            }
            None => Ok(()),
        }
    }
}

impl Half for Receiver {
    fn parts(&mut self) -> (&mut Vec<Queues>, &mut FailOver, &mut Peer) {
        (&mut self.queues, &mut self.fail_over, &mut self.peer)
    }

    fn drain(&mut self, queues: &mut Queues) -> Result<(), &'static str> {
        while let Some(event) = queues.poll(|_| {}) {
            if let Event::Arrived { immediate, bytes } = event {
                arrive(&mut self.slots, immediate, bytes).map_err(Wrong::text)?;
            }
        }
        Ok(())
    }

    fn state(&mut self, queues: &Queues) -> (Held, Doubt) {
        (Held { taken: queues.taken(), ..Held::default() }, Doubt::default())
    }

    fn resolve(&mut self, place: usize, _doubt: Doubt, held: &Held) -> Result<(), &'static str> {
        for (at, slot) in self.slots.iter().enumerate() {
            if slot.request == Request::NONE || usize::from(slot.place) != place {
                continue;
            }
            // The sender is at group `next`, which is one of the last 32, or the one after them.
            let ahead = slot.request.number().wrapping_sub(held.next);
            let is_announced =
                ahead >= 1 << 63 || held.announced.unbounded_shr(ahead as u32) & 1 != 0;
            self.unannounced |= u32::from(!is_announced) << at;
        }
        Ok(())
    }

    fn replay(&mut self) -> Result<bool, &'static str> {
        let Self { slots, queues, in_use, ring, copies, unannounced, .. } = self;
        for (at, slot) in slots.iter_mut().enumerate() {
            if *unannounced >> at & 1 == 0 || slot.request == Request::NONE {
                continue;
            }
            let mut in_use = queues.iter_mut().take(*in_use);
            let Some(queues) = in_use.find(|queues| queues.has_room(LINE_BLOCKS)) else {
                return Ok(true);
            };
            *unannounced &= !(1 << at);
            let (group, place) = (slot.request.number(), queues.place());
            let remote = ring.line(group, 0, place);
            if slot.count > 1 {
                queues.write_lines(copies.lines(group, slot.count, queues.rail()), remote);
            } else if let Some(region) = &slot.regions[0] {
                let (address, tag, length) = (slot.address, slot.tag, slot.rooms[0] as u64);
                let keys = region.keys();
                let line = Announcement { address, length, keys, tag, count: 1, member: 0 };
                queues.write_line(&line.to_line(group), remote);
            }
            queues.turn();
            slot.place = place as u8;
        }
        Ok(false)
    }

    fn adapt(&mut self) {
        self.in_use = self.fail_over.select(&mut self.queues);
        self.turn = 0;
    }
}

/// Fails if one of the buffers cannot be announced.
#[cold]
#[inline(never)]
fn admit(rails: &Rails, buffers: &[Target<'_>]) -> Result<(), Error> {
    for Target { region, offset, length, .. } in buffers {
        region.admit(rails, *offset, *length)?;
        if !region.receives() {
            return Err(Error::SendOnly);
        }
    }
    Ok(())
}

/// The slot of a group, if it is free, and the queues that carry its lines, if they have room.
/// There is no rail in use after a failure.
#[inline(always)]
fn room<'r>(
    slots: &'r mut [Slot; MAX_GROUPS],
    queues: &'r mut [Queues],
    group: u64,
    turn: usize,
) -> Option<(&'r mut Slot, &'r mut Queues)> {
    let slot = &mut slots[group as usize % MAX_GROUPS];
    let queues = queues.get_mut(turn)?;
    (slot.request == Request::NONE && queues.has_room(LINE_BLOCKS)).then_some((slot, queues))
}

/// Counts the share with this immediate. Returns the slot of its group if that is complete.
///
/// # Errors
/// What the peer did wrong.
#[inline(always)]
fn arrive(
    slots: &mut [Slot; MAX_GROUPS],
    immediate: u32,
    bytes: u32,
) -> Result<Option<usize>, Wrong> {
    let at = (immediate >> 8) as usize % MAX_GROUPS;
    Ok(slots[at].arrive(immediate, bytes)?.then_some(at))
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.peer.close(self.done());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(rooms: &[usize]) -> Slot {
        let (count, is_group) = (rooms.len() as u8, rooms.len() > 1);
        let group = Immediate::group_bits(5, is_group);
        let (request, whole) = (Request::new(5, 0), group | 1);
        let mut slot = Slot { request, group, whole, count, is_open: true, ..Slot::FREE };
        slot.rooms = [usize::MAX; MAX_GROUP];
        slot.rooms[..rooms.len()].copy_from_slice(rooms);
        slot
    }

    fn share(shares: u8) -> u32 {
        Immediate { group: 5, is_group: false, shares }.to_bits()
    }

    fn part(shares: u8) -> u32 {
        Immediate { group: 5, is_group: true, shares }.to_bits()
    }

    #[test]
    fn shares_complete_a_message() {
        let mut one = slot(&[300]);
        assert_eq!(one.arrive(share(1), 300), Ok(true));
        assert_eq!(one.received().sizes(), [300]);
        let mut three = slot(&[300]);
        assert_eq!(three.arrive(share(3), 44), Ok(false));
        assert_eq!(three.arrive(share(3), 128), Ok(false));
        assert!(three.is_open);
        assert_eq!(three.arrive(share(3), 128), Ok(true));
        assert_eq!(three.received().sizes(), [300]);
        assert!(!three.is_open);
    }

    #[test]
    fn records_complete_a_group() {
        for parts in 1..=8 {
            let mut group = slot(&[300, 0, 7]);
            for part_of in (0..parts).rev() {
                assert_eq!(group.arrive(part(parts), 24), Ok(part_of == 0), "{parts}");
            }
            assert!(!group.is_open);
            group.arrive(part(parts), 24).unwrap_err();
            group.record([299, 0, 7, u64::MAX, 9, 9, 9, 9].into_iter());
            assert_eq!((group.received().sizes(), group.refused), (&[299, 0, 7][..], 0));
            group.record([1, REFUSED, 6, 0, 0, 0, 0, 0].into_iter());
            assert_eq!((group.received().sizes(), group.refused), (&[1, 0, 6][..], 2));
            for wrong in [[301, 0, 7], [0, 0, REFUSED - 1]] {
                group.refused = 0;
                group.record(wrong.into_iter().chain([0; 5]));
                assert_eq!(group.refused, Slot::LONGER);
            }
        }
    }

    #[test]
    fn contradictions_are_named() {
        let mut one = slot(&[100]);
        one.arrive(part(1), 1).unwrap_err();
        one.arrive(share(1), 101).unwrap_err();
        let mut two = slot(&[100]);
        two.arrive(share(2), 50).unwrap();
        two.arrive(share(3), 50).unwrap_err();
        two.arrive(share(0), 0).unwrap_err();
        two.arrive(share(2), 50).unwrap();
        two.arrive(share(2), 0).unwrap_err();
        assert!(!two.is_open);
        let mut refused = slot(&[100]);
        refused.arrive(share(0), 0).unwrap();
        assert_eq!((refused.is_open, refused.refused), (false, 1));
        refused.arrive(share(0), 0).unwrap_err();
        refused.arrive(share(1), 1).unwrap_err();
        let mut group = slot(&[100, 100]);
        group.arrive(share(1), 1).unwrap_err();
        group.arrive(part(0), 0).unwrap_err();
        group.arrive(part(9), 0).unwrap_err();
        let mut free = Slot::FREE;
        free.arrive(share(1), 1).unwrap_err();
        for bits in [8, 14, 0x10, 0x80, 0x0100_0000, u32::MAX] {
            slot(&[100]).arrive(share(1) ^ bits, 1).unwrap_err();
        }
    }
}
