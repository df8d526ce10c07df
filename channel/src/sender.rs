//! The sending end of a channel.

use core::hint::cold_path;
use std::sync::Arc;
use std::time::Instant;

use barewire_mlx5::DataSegment;

use crate::config::MAX_GROUP;
use crate::control::{Peer, Stream};
use crate::counters::RailCounters;
use crate::error::{Error, Failure};
use crate::fail_over::{FailOver, Half};
use crate::handshake::message::Held;
use crate::plan::Plan;
use crate::queues::{Doubt, Event, NO_OWNER, Queues, Share};
use crate::rails::Rails;
use crate::region::Region;
use crate::request::{Outcome, REQUESTS, Request};
use crate::ring::{Immediate, Lines};
use crate::share::share_bytes;

/// The sending end of a channel: writes into the buffers that the receiver announces.
///
/// It may move to another thread. Dropping it closes the channel: test all requests first, because
/// what is not acknowledged yet may not arrive.
#[derive(Debug)]
#[must_use = "dropping it closes the channel"]
pub struct Sender {
    /// The group that the next send belongs to, from 0.
    group: u64,
    /// Its buffers that have a send, as bits.
    taken: u8,
    ring: Lines,
    /// One per rail of the channel. Dropped before the regions of the requests.
    queues: Vec<Queues>,
    /// The rail of the next message that one rail carries.
    turn: usize,
    /// Longest message that one rail carries.
    whole: u64,
    /// Longest message that has a share per rail.
    most: u64,
    /// Longest message.
    limit: u64,
    rails: Rails,
    peer: Peer,
    slots: Box<[Slot; REQUESTS]>,
    failure: Option<Arc<Failure>>,
    /// Why the last test fails.
    error: Option<Error>,
    /// Longest share.
    share: u64,
    fail_over: Box<FailOver>,
    /// Shares of failed rails that have to be written again.
    missing: Vec<Share>,
}

/// A send request.
#[derive(Debug)]
struct Slot {
    request: Request,
    /// Shares that are not acknowledged.
    pending: u8,
    length: usize,
    /// Keeps the memory registered.
    region: Option<Region>,
}

impl Slot {
    const FREE: Self = Self { request: Request::NONE, pending: 0, length: 0, region: None };
}

impl Sender {
    /// `limit` and `share` are the longest message and share.
    pub(crate) fn new(
        plan: Plan,
        queues: Vec<Queues>,
        ring: Lines,
        stream: Stream,
        (limit, share): (u64, u64),
    ) -> Self {
        let mut sender = Self {
            group: 0,
            taken: 0,
            ring,
            queues,
            turn: 0,
            whole: plan.config().whole.min(share),
            most: 0,
            limit,
            rails: plan.rails().clone(),
            peer: Peer::new(stream),
            slots: Box::new([const { Slot::FREE }; REQUESTS]),
            failure: None,
            error: None,
            share,
            fail_over: Box::new(FailOver::new(plan)),
            missing: Vec::new(),
        };
        sender.adapt();
        sender
    }

    /// The queues, for a test that writes what it likes.
    #[cfg(all(test, feature = "soft"))]
    pub(crate) fn queues(&mut self) -> &mut [Queues] {
        &mut self.queues
    }

    /// Makes shares shorter, for a test with messages of less than a gigabyte.
    #[cfg(all(test, feature = "soft"))]
    pub(crate) fn limit_shares(&mut self, share: u64) {
        self.share = share;
        self.adapt();
    }

    /// Tries failed rails without delay, for a test.
    #[cfg(all(test, feature = "soft"))]
    pub(crate) fn recover_at_once(&mut self) {
        self.fail_over.recover_at_once();
    }

    /// Longest message in bytes that the ends have agreed on.
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

    /// Sends `length` bytes at `offset` of `region` to the next buffer with `tag` of the group that
    /// the receiver announced first. Returns `None` if there is no such buffer yet, or 32 groups
    /// are outstanding: call again later with the same arguments. The region stays registered until
    /// the request is complete; writing to it before changes what arrives.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::Foreign`] and [`Error::TooLong`], without effect;
    /// [`Error::Overlong`], which uses up the buffer; [`Error::Failed`].
    #[inline]
    pub fn send(
        &mut self,
        region: &Region,
        offset: usize,
        length: usize,
        tag: u32,
    ) -> Result<Option<Request>, Error> {
        if self.ring.is_announced(self.group, 0) {
            return self.post(region, offset, length, tag);
        }
        self.not_yet()
    }

    /// Sends to the group that is announced.
    #[inline(never)]
    fn post(
        &mut self,
        region: &Region,
        offset: usize,
        length: usize,
        tag: u32,
    ) -> Result<Option<Request>, Error> {
        let group = self.group;
        region.admit(&self.rails, offset, length)?;
        let Some(label) = self.ring.label(group, 0) else {
            return Err(self.violated("a malformed line in the clear-to-send ring"));
        };
        let member = if label.count == 1 && label.tag == tag {
            0
        } else {
            match self.find(label.count, tag)? {
                Some(member) => member,
                None => return self.not_yet(),
            }
        };
        let bytes = length as u64;
        if bytes > self.limit {
            return Err(Error::TooLong { length: bytes, limit: self.limit });
        }
        let request = Request::new(group, member);
        // The slot before it, of an earlier group, was not tested yet.
        if self.slots[usize::from(request.slot())].request != Request::NONE {
            return self.not_yet();
        }
        let room = self.ring.length(group, member);
        if bytes > room {
            return self.overlong(group, member, label.count, bytes, room);
        }
        let owner = u16::from(request.slot());
        let shares = if bytes <= self.whole {
            let at = self.turn;
            let immediate = Immediate { group: group as u16, member, shares: 1 };
            // There is no rail in use after a failure.
            let Some(queues) = self.queues.get_mut(at) else { return self.not_yet() };
            let local = region.segment(offset as u64, bytes, queues.rail());
            let remote = self.ring.remote(group, member, queues.partner());
            if !queues.write_share(local, remote, immediate.to_bits(), owner) {
                return self.not_yet();
            }
            queues.turn();
            let next = at + 1;
            self.turn = if next < self.queues.len() { next } else { 0 };
            1
        } else {
            match self.cut(region, offset as u64, bytes, (group, member), owner) {
                0 => return self.not_yet(),
                shares => shares,
            }
        };
        let slot = &mut self.slots[usize::from(owner as u8)];
        slot.request = request;
        slot.pending = shares;
        slot.length = length;
        slot.region = Some(region.clone());
        self.take(member, label.count);
        Ok(Some(request))
    }

    /// Writes a message as one share per rail. Returns the number of shares, or 0 if a queue has no
    /// room.
    fn cut(
        &mut self,
        region: &Region,
        offset: u64,
        length: u64,
        (group, member): (u64, u8),
        owner: u16,
    ) -> u8 {
        let rails = self.queues.len();
        if length > self.most {
            return self.cut_short(region, offset, length, (group, member), owner);
        }
        let part = share_bytes(length, rails).max(1);
        // The first rails have whole parts, then one has the rest; the others nothing.
        let mut shares = 0;
        let mut end = 0;
        while end < length && shares < rails {
            end += part;
            shares += 1;
        }
        if !self.queues.iter().take(shares).all(|queues| queues.has_room(1)) {
            return 0;
        }
        let immediate = Immediate { group: group as u16, member, shares: shares as u8 }.to_bits();
        let mut start = 0;
        for queues in self.queues.iter_mut().take(shares) {
            let bytes = part.min(length - start);
            let local = region.segment(offset + start, bytes, queues.rail());
            let mut remote = self.ring.remote(group, member, queues.partner());
            remote.address = remote.address.get().wrapping_add(start).into();
            // There is room, as checked above.
            queues.write_share(local, remote, immediate, owner);
            queues.turn();
            start += bytes;
        }
        shares as u8
    }

    /// As above, where rails have failed and the others write several shares, because one is not
    /// long enough.
    #[cold]
    #[inline(never)]
    fn cut_short(
        &mut self,
        region: &Region,
        offset: u64,
        length: u64,
        (group, member): (u64, u8),
        owner: u16,
    ) -> u8 {
        let part = share_bytes(length, self.fail_over.places()).max(1);
        let shares = length.div_ceil(part) as usize;
        if self.queues.is_empty()
            || !self.queues.iter().all(|queues| queues.has_room(shares as u32))
        {
            return 0;
        }
        let immediate = Immediate { group: group as u16, member, shares: shares as u8 }.to_bits();
        for share in 0..shares {
            let (start, at) = (share as u64 * part, share % self.queues.len());
            let Some(queues) = self.queues.get_mut(at) else { continue };
            let local = region.segment(offset + start, part.min(length - start), queues.rail());
            let mut remote = self.ring.remote(group, member, queues.partner());
            remote.address = remote.address.get().wrapping_add(start).into();
            // There is room, as checked above, since the queue pair stays the same.
            queues.write_share(local, remote, immediate, owner);
        }
        shares as u8
    }

    /// Notes that a buffer of the group has its send.
    #[inline(always)]
    fn take(&mut self, member: u8, count: u8) {
        if count > 1 {
            self.taken |= 1 << (member & 7);
            if self.taken.count_ones() < u32::from(count) {
                return;
            }
        }
        self.taken = 0;
        self.group = self.group.wrapping_add(1);
    }

    /// The first buffer of the group with `tag` and without a send. Buffers with equal tags are
    /// used in their order, so the search ends at one that is not announced yet.
    fn find(&mut self, count: u8, tag: u32) -> Result<Option<u8>, Error> {
        let first = self.taken.trailing_ones() as u8;
        for member in first..count.min(MAX_GROUP as u8) {
            if self.taken >> member & 1 != 0 {
                continue;
            }
            if !self.ring.is_announced(self.group, member) {
                return Ok(None);
            }
            match self.ring.label(self.group, member) {
                Some(label) if label.count == count => {
                    if label.tag == tag {
                        return Ok(Some(member));
                    }
                }
                _ => {
                    cold_path();
                    return Err(self.violated("lines of one group that contradict each other"));
                }
            }
        }
        Ok(None)
    }

    /// Returns the length of the message once `request` is complete: all of it was written to the
    /// peer's memory, and the region may be changed. Returns `None` before.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::Failed`].
    #[inline]
    pub fn test(&mut self, request: Request) -> Result<Option<usize>, Error> {
        let slot = &self.slots[usize::from(request.slot())];
        let outcome = if slot.request != request || slot.pending == 0 {
            self.collect(request)
        } else if Queues::are_empty(&self.queues) && !self.peer.idle() {
            return Ok(None);
        } else {
            self.acknowledged(request.slot())
        };
        match outcome {
            Outcome::Complete(slot) => Ok(Some(slot.length)),
            Outcome::Waiting => Ok(None),
            Outcome::Failed(error) => Err(error.take().unwrap_or(Error::UnknownRequest)),
        }
    }

    /// Takes completions, and ends the request of slot `at` if it is complete.
    #[inline(never)]
    fn acknowledged(&mut self, at: u8) -> Outcome<'_, Slot> {
        if self.progress(at.into()) {
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
        if self.slots[usize::from(request.slot())].request == request {
            return self.free(request.slot());
        }
        self.failed(Error::UnknownRequest)
    }

    #[cold]
    #[inline(never)]
    fn failed(&mut self, error: Error) -> Outcome<'_, Slot> {
        self.error = Some(error);
        Outcome::Failed(&mut self.error)
    }

    /// Frees a slot. Its length remains.
    #[inline(always)]
    fn free(&mut self, at: u8) -> Outcome<'_, Slot> {
        let slot = &mut self.slots[usize::from(at)];
        slot.request = Request::NONE;
        slot.region = None;
        Outcome::Complete(slot)
    }

    /// Takes completions until there are none, or the request of slot `at` is complete. Returns
    /// whether it is.
    #[inline(always)]
    fn progress(&mut self, at: usize) -> bool {
        for queues in &mut self.queues {
            while let Some(event) = queues.poll() {
                match event {
                    Event::Sent(owner) => {
                        if let Some(slot) = self.slots.get_mut(usize::from(owner)) {
                            slot.pending = slot.pending.saturating_sub(1);
                            if usize::from(owner) == at && slot.pending == 0 {
                                return true;
                            }
                        }
                    }
                    Event::Arrived { .. } => {
                        self.violated("it wrote with an immediate to the sender");
                        return false;
                    }
                    Event::Failed => {
                        let place = queues.place();
                        self.lose(place);
                        // Completions of the failed rail were taken as well.
                        return self.slots.get(at).is_some_and(|slot| slot.pending == 0);
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
        if self.peer.done() > 0 {
            // The peer had received what it has not acknowledged.
            self.missing.clear();
            for slot in self.slots.iter_mut() {
                if slot.request != Request::NONE && slot.request.number() < self.peer.done() {
                    slot.pending = 0;
                }
            }
        }
        match &self.failure {
            Some(failure) => {
                self.peer.hurry();
                Err(Error::Failed(Arc::clone(failure)))
            }
            None => Ok(()),
        }
    }

    /// The result of a send for which there is no buffer yet.
    #[inline(always)]
    fn not_yet(&mut self) -> Result<Option<Request>, Error> {
        if self.peer.idle() {
            self.check()?;
        }
        Ok(None)
    }

    /// Tells the peer that the send does not fit its buffer, by an immediate without data.
    #[cold]
    #[inline(never)]
    fn overlong(
        &mut self,
        group: u64,
        member: u8,
        count: u8,
        length: u64,
        room: u64,
    ) -> Result<Option<Request>, Error> {
        let immediate = Immediate { group: group as u16, member, shares: 0 };
        let nothing = DataSegment::new(0, 0, 0);
        let posted = self.queues.first_mut().is_some_and(|queues| {
            let remote = self.ring.remote(group, member, queues.partner());
            queues.write_share(nothing, remote, immediate.to_bits(), NO_OWNER)
        });
        if !posted {
            // Completions that make room are otherwise taken by tests only.
            self.progress(usize::MAX);
            self.check()?;
            return Ok(None);
        }
        self.take(member, count);
        Err(Error::Overlong { length, room })
    }

    #[cold]
    fn violated(&mut self, what: &'static str) -> Error {
        let peer = self.peer.address();
        Error::Failed(self.fail(Failure::Protocol { peer, what }))
    }

    /// Records a failure, unless there is one already. Returns the first.
    #[cold]
    fn fail(&mut self, failure: Failure) -> Arc<Failure> {
        // Nothing is posted any more, and the peer writes nothing.
        self.queues.clear();
        self.peer.close(0);
        self.peer.hurry();
        Arc::clone(self.failure.get_or_insert_with(|| Arc::new(failure)))
    }

    /// Counts a share that has arrived.
    fn acknowledge(&mut self, owner: u16) {
        if let Some(slot) = self.slots.get_mut(usize::from(owner)) {
            slot.pending = slot.pending.saturating_sub(1);
        }
    }

    /// Writes a missing share again. Returns whether there was room.
    fn write_again(&mut self, share: Share) -> Result<bool, &'static str> {
        let immediate = Immediate::from_bits(share.immediate).ok_or("a share without a group")?;
        // The group is one of the last 32.
        let behind = (self.group as u16).wrapping_sub(immediate.group);
        let (group, member) = (self.group.wrapping_sub(behind.into()), immediate.member);
        if !self.ring.is_announced(group, member) {
            return Err("it overwrote a line that is in use");
        }
        let Some(queues) = self.queues.iter_mut().find(|queues| queues.has_room(1)) else {
            return Ok(false);
        };
        let slot = self.slots.get(usize::from(share.owner));
        let key = slot.and_then(|slot| slot.region.as_ref()).map(|one| one.key(queues.rail()));
        let local = DataSegment::new(share.address, share.length, key.unwrap_or(0));
        let mut remote = self.ring.remote(group, member, queues.partner());
        remote.address = share.remote.into();
        let written = queues.write_share(local, remote, share.immediate, share.owner);
        queues.turn();
        Ok(written)
    }
}

impl Half for Sender {
    fn parts(&mut self) -> (&mut Vec<Queues>, &mut FailOver, &mut Peer) {
        (&mut self.queues, &mut self.fail_over, &mut self.peer)
    }

    fn drain(&mut self, queues: &mut Queues) -> Result<(), &'static str> {
        while let Some(event) = queues.poll() {
            if let Event::Sent(owner) = event {
                self.acknowledge(owner);
            }
        }
        Ok(())
    }

    fn state(&self, queues: &Queues) -> (Held, Doubt) {
        let (next, announced) = (self.group, self.ring.announced(self.group));
        (Held { taken: Vec::new(), next, announced }, queues.doubtful())
    }

    fn resolve(&mut self, _place: usize, doubt: Doubt, held: &Held) -> Result<(), &'static str> {
        doubt.resolve(&held.taken, |share, arrived| {
            if arrived {
                self.acknowledge(share.owner);
            } else {
                self.missing.push(share);
            }
        })
    }

    fn replay(&mut self) -> Result<bool, &'static str> {
        while let Some(share) = self.missing.last().copied() {
            if !self.write_again(share)? {
                return Ok(true);
            }
            self.missing.pop();
        }
        Ok(false)
    }

    fn adapt(&mut self) {
        let rails = self.queues.len();
        let wanted = if rails > 1 { self.fail_over.whole() } else { u64::MAX };
        self.whole = wanted.min(self.share);
        self.most = self.share.saturating_mul(rails as u64);
        self.turn = 0;
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.peer.close(0);
    }
}
