//! The receiving end of a channel.

use core::hint::cold_path;
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
use crate::ring::{Announcement, GROUP_BITS, Immediate, Lines, RemoteRing};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    sizes: [usize; MAX_GROUP],
    count: u8,
}

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
    ring: RemoteRing,
    /// The lines of groups, which the device reads. A line is kept until its buffer is used.
    copies: Lines,
    /// One per rail of the channel. Dropped before the regions of the requests.
    queues: Vec<Queues>,
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
    /// What the immediates of the group's shares have in common.
    group: u32,
    /// The immediate of the only share of a single buffer, until a share arrives.
    whole: u32,
    count: u8,
    /// Buffers whose message is not complete.
    open: u8,
    /// Buffers whose send was too long, as bits.
    refused: u8,
    /// The rail of the channel that carries the lines.
    place: u8,
    /// Tag and address of a single buffer.
    tag: u32,
    address: u64,
    members: [Member; MAX_GROUP],
}

#[derive(Debug)]
struct Member {
    room: usize,
    size: usize,
    /// Shares of the message; 0 until the first arrived.
    shares: u8,
    /// Shares that have not arrived.
    left: u8,
    /// Keeps the memory registered.
    region: Option<Region>,
}

impl Member {
    const FREE: Self = Self { room: 0, size: 0, shares: 0, left: 0, region: None };
}

impl Slot {
    /// The group of a free slot: it has bits that no immediate's group has.
    const NO_GROUP: u32 = u32::MAX;

    const FREE: Self = Self {
        request: Request::NONE,
        group: Self::NO_GROUP,
        whole: Self::NO_GROUP,
        count: 0,
        open: 0,
        refused: 0,
        place: 0,
        tag: 0,
        address: 0,
        members: [const { Member::FREE }; MAX_GROUP],
    };

    /// The lengths of a group that is complete.
    #[inline(always)]
    fn received(&self) -> Received {
        let mut received = Received { sizes: [0; MAX_GROUP], count: self.count };
        for (size, member) in received.sizes.iter_mut().zip(&self.members) {
            *size = member.size;
        }
        received
    }

    /// Counts the share with this immediate. Returns whether the group is complete.
    ///
    /// # Errors
    /// What the peer did wrong.
    #[inline(always)]
    fn arrive(&mut self, immediate: u32, bytes: u32) -> Result<bool, &'static str> {
        let [first, ..] = &mut self.members;
        if immediate == self.whole && bytes as usize <= first.room {
            // The whole message of a single buffer, which is the first that arrives of it.
            self.whole = Self::NO_GROUP;
            first.size = bytes as usize;
            first.shares = 1;
            self.open = 0;
            return Ok(true);
        }
        self.arrive_in_part(immediate, bytes)
    }

    /// As above, for a buffer of a group or one of several shares.
    #[inline(always)]
    fn arrive_in_part(&mut self, immediate: u32, bytes: u32) -> Result<bool, &'static str> {
        self.whole = Self::NO_GROUP;
        let (shares, number) = (immediate as u8 & 0xf, (immediate >> 4) as u8 & 7);
        if immediate & GROUP_BITS != self.group || number >= self.count {
            return Err("a share of a buffer that was not announced");
        }
        let member = &mut self.members[usize::from(number) % MAX_GROUP];
        let size = member.size + bytes as usize;
        if size > member.room {
            return Err("a message that is longer than its buffer");
        }
        if member.shares != shares {
            if member.shares != 0 || usize::from(shares) > MAX_RAILS {
                return Err("shares of one message that contradict each other");
            }
            (member.shares, member.left) = (shares, shares);
        }
        if member.left == 0 {
            cold_path();
            return self.refuse(shares, number);
        }
        member.size = size;
        member.left -= 1;
        if member.left > 0 {
            return Ok(false);
        }
        self.open = self.open.wrapping_sub(1);
        Ok(self.open == 0)
    }

    /// Counts an immediate without a share, for a send that was too long.
    #[cold]
    fn refuse(&mut self, shares: u8, number: u8) -> Result<bool, &'static str> {
        if shares != 0 || self.refused >> number & 1 != 0 {
            return Err("more shares of a message than it has");
        }
        // No share may follow.
        self.members[usize::from(number) % MAX_GROUP].shares = u8::MAX;
        self.refused |= 1 << number;
        self.open = self.open.wrapping_sub(1);
        Ok(self.open == 0)
    }
}

impl Receiver {
    pub(crate) fn new(
        plan: Plan,
        queues: Vec<Queues>,
        (ring, copies): (RemoteRing, Lines),
        stream: Stream,
        limit: u64,
    ) -> Self {
        Self {
            group: 0,
            ring,
            copies,
            queues,
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

    /// Rails in use: those of the channel, less those that have failed.
    pub fn rails(&self) -> usize {
        self.queues.len()
    }

    /// What went over each rail of the channel, in their order.
    pub fn counters(&self) -> Vec<RailCounters> {
        self.fail_over.counters(&self.queues)
    }

    /// Announces `length` bytes at `offset` of `region` for the next send with `tag`. Returns `None`
    /// if 32 requests are outstanding, or no rail works at the moment: test requests, then call
    /// again. The region stays registered until the request is complete.
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
        self.announce(&[Target { region, offset, length, tag }])
    }

    /// Announces a group of 1 to 8 buffers as one request. Each gets one message: the first without
    /// one whose tag is that of the send. The next group is used when every buffer of this one has
    /// its send.
    ///
    /// # Errors
    /// Those of [`Self::receive`], and [`Error::Group`].
    #[inline]
    pub fn receive_group(&mut self, buffers: &[Target<'_>]) -> Result<Option<Request>, Error> {
        if buffers.is_empty() || buffers.len() > MAX_GROUP {
            return Err(Error::Group(buffers.len()));
        }
        self.announce(buffers)
    }

    /// The first group that is not complete.
    fn done(&self) -> u64 {
        let is_open = |slot: &&Slot| slot.request != Request::NONE && slot.open > 0;
        let open = self.slots.iter().filter(is_open).map(|slot| slot.request.number());
        open.min().unwrap_or(self.group)
    }

    /// Announces 1 to 8 buffers.
    #[inline(always)]
    fn announce(&mut self, buffers: &[Target<'_>]) -> Result<Option<Request>, Error> {
        for buffer in buffers {
            buffer.region.admit(&self.rails, buffer.offset, buffer.length)?;
            if !buffer.region.receives() {
                return Err(Error::SendOnly);
            }
        }
        let (group, count, at) = (self.group, buffers.len() as u8, self.turn);
        let request = Request::new(group, 0);
        let Self { slots, queues, ring, copies, .. } = self;
        let slot = &mut slots[request.group()];
        // Several lines are written at once, from their copies. There is no rail in use after a
        // failure.
        let Some(queues) = queues
            .get_mut(at)
            .filter(|lines| slot.request == Request::NONE && lines.has_room(LINE_BLOCKS))
        else {
            return self.full();
        };
        let place = queues.place();
        for (buffer, number) in buffers.iter().zip(0..) {
            let line = Announcement {
                address: buffer.region.address(buffer.offset),
                length: buffer.length as u64,
                // A rail that does not work at the moment may be used for the message.
                keys: buffer.region.keys(),
                tag: buffer.tag,
                count,
                member: number,
            };
            if count > 1 {
                copies.store(group, &line);
            } else {
                // There is room, as checked above.
                queues.write_line(&line.to_line(group), ring.line(group, 0, place));
                (slot.address, slot.tag) = (line.address, line.tag);
            }
            let member = &mut slot.members[usize::from(number) % MAX_GROUP];
            member.room = buffer.length;
            member.size = 0;
            (member.shares, member.left) = (0, 0);
            member.region = Some(buffer.region.clone());
        }
        if count > 1 {
            let local = copies.lines(group, count, queues.rail());
            queues.write_lines(local, ring.line(group, 0, place));
        }
        queues.turn();
        slot.request = request;
        slot.group = Immediate::group_bits(group);
        slot.whole = if count == 1 { slot.group | 1 } else { Slot::NO_GROUP };
        slot.count = count;
        slot.open = count;
        slot.refused = 0;
        slot.place = place as u8;
        let next = at + 1;
        self.turn = if next < self.queues.len() { next } else { 0 };
        self.group = group.wrapping_add(1);
        Ok(Some(request))
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
        let outcome = if slot.request != request || slot.open == 0 {
            self.collect(request)
        } else if Queues::are_empty(&self.queues) && !self.peer.idle() {
            return Ok(None);
        } else {
            self.take(at)
        };
        match outcome {
            Outcome::Complete(slot) => Ok(Some(slot.received())),
            Outcome::Waiting => Ok(None),
            Outcome::Failed(error) => Err(error.take().unwrap_or(Error::UnknownRequest)),
        }
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
        let slot = &mut self.slots[at % MAX_GROUPS];
        // Further shares of the group are errors, since all of its messages are complete.
        slot.request = Request::NONE;
        for member in slot.members.iter_mut().take(slot.count.into()) {
            member.region = None;
        }
        if slot.refused != 0 {
            cold_path();
            let member = slot.refused.trailing_zeros() as u8;
            let room = slot.members[usize::from(member) % MAX_GROUP].room as u64;
            self.error = Some(Error::Refused { member, room });
            return Outcome::Failed(&mut self.error);
        }
        Outcome::Complete(slot)
    }

    /// Takes completions until there are none, or the group of slot `at` is complete. Returns
    /// whether it is.
    #[inline(always)]
    fn progress(&mut self, at: usize) -> bool {
        for queues in &mut self.queues {
            while let Some(event) = queues.poll() {
                match event {
                    // Lines whose WQEs are free again.
                    Event::Sent(_) => {}
                    Event::Arrived { immediate, bytes } => {
                        match arrive(&mut self.slots, immediate, bytes) {
                            Ok(Some(complete)) if complete == at => return true,
                            Ok(_) => {}
                            Err(what) => {
                                self.violated(what);
                                return false;
                            }
                        }
                    }
                    Event::Failed => {
                        let place = queues.place();
                        self.lose(place);
                        // Completions of the failed rail were taken as well.
                        return self.slots.get(at).is_some_and(|slot| slot.open == 0);
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
    fn violated(&mut self, what: &'static str) {
        let peer = self.peer.address();
        self.fail(Failure::Protocol { peer, what });
    }

    /// Records a failure, unless there is one already.
    #[cold]
    fn fail(&mut self, failure: Failure) {
        // Nothing is posted any more, and the peer writes nothing.
        self.queues.clear();
        self.peer.close(self.done());
        self.peer.hurry();
        self.failure.get_or_insert_with(|| Arc::new(failure));
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
    /// calls do so when they find nothing. An end without requests has to be checked now and then,
    /// because after the failure of a rail the peer may need what this end knows.
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
        while let Some(event) = queues.poll() {
            if let Event::Arrived { immediate, bytes } = event {
                arrive(&mut self.slots, immediate, bytes)?;
            }
        }
        Ok(())
    }

    fn state(&self, queues: &Queues) -> (Held, Doubt) {
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
        let Self { slots, queues, ring, copies, unannounced, .. } = self;
        for (at, slot) in slots.iter_mut().enumerate() {
            if *unannounced >> at & 1 == 0 || slot.request == Request::NONE {
                continue;
            }
            let Some(queues) = queues.iter_mut().find(|queues| queues.has_room(LINE_BLOCKS)) else {
                return Ok(true);
            };
            *unannounced &= !(1 << at);
            let (group, place) = (slot.request.number(), queues.place());
            let remote = ring.line(group, 0, place);
            if slot.count > 1 {
                queues.write_lines(copies.lines(group, slot.count, queues.rail()), remote);
            } else if let Member { room, region: Some(region), .. } = &slot.members[0] {
                let (address, tag, length) = (slot.address, slot.tag, *room as u64);
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
        self.turn = 0;
    }
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
) -> Result<Option<usize>, &'static str> {
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
        let count = rooms.len() as u8;
        let (request, group) = (Request::new(5, 0), Immediate::group_bits(5));
        let mut slot = Slot { request, group, count, open: count, ..Slot::FREE };
        for (member, room) in slot.members.iter_mut().zip(rooms) {
            member.room = *room;
        }
        slot
    }

    fn share(member: u8, shares: u8) -> u32 {
        Immediate { group: 5, member, shares }.to_bits()
    }

    #[test]
    fn shares_complete_a_buffer_in_any_order() {
        let mut slot = slot(&[300, 0]);
        assert_eq!(slot.arrive(share(0, 3), 44), Ok(false));
        assert_eq!(slot.arrive(share(1, 1), 0), Ok(false));
        assert_eq!(slot.open, 1);
        assert_eq!(slot.arrive(share(0, 3), 128), Ok(false));
        assert_eq!(slot.arrive(share(0, 3), 128), Ok(true));
        assert_eq!((slot.open, slot.members[0].size), (0, 300));
    }

    #[test]
    fn contradictions_are_named() {
        let mut one = slot(&[100]);
        one.arrive(share(1, 1), 1).unwrap_err();
        one.arrive(share(0, 1), 101).unwrap_err();
        let mut two = slot(&[100]);
        two.arrive(share(0, 2), 50).unwrap();
        two.arrive(share(0, 3), 50).unwrap_err();
        two.arrive(share(0, 0), 0).unwrap_err();
        two.arrive(share(0, 2), 50).unwrap();
        two.arrive(share(0, 2), 0).unwrap_err();
        assert_eq!(two.open, 0);
        let mut refused = slot(&[100]);
        refused.arrive(share(0, 0), 0).unwrap();
        assert_eq!((refused.open, refused.refused), (0, 1));
        refused.arrive(share(0, 0), 0).unwrap_err();
        refused.arrive(share(0, 1), 1).unwrap_err();
        let mut free = Slot::FREE;
        free.arrive(share(0, 1), 1).unwrap_err();
        for bits in [8, 14, 0x80, 0x0100_0000, u32::MAX] {
            slot(&[100]).arrive(share(0, 1) ^ bits, 1).unwrap_err();
        }
    }
}
