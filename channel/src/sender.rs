//! The sending end of a channel: requests and their completion. `post.rs` matches sends with
//! buffers, `writer.rs` writes them, `replay.rs` writes them again when a rail has failed, and
//! `close.rs` closes the sender.

mod close;
mod post;
mod replay;
mod source;
#[cfg(all(test, feature = "soft"))]
mod tests;
mod writer;

use core::mem;
use std::sync::Arc;
use std::time::Instant;

use barewire_tcp::frames::Stream;

use crate::control::Peer;
use crate::counters::RailCounters;
use crate::error::{Error, Failure};
use crate::fail_over::{FailOver, Half};
use crate::plan::Plan;
use crate::queues::{Event, Queues};
use crate::rails::Rails;
use crate::region::Region;
use crate::request::{Outcome, REQUESTS, Request};
use crate::ring::{Lines, RemoteLines};
use crate::sender::writer::Writer;

/// The sending end of a channel: writes into the buffers that the receiver announces.
///
/// It may move to another thread. Dropping it closes the channel: test all requests first, because
/// what is not acknowledged yet may not arrive. If the peer has not acknowledged a send that failed
/// with [`Error::Overlong`], dropping waits for it, for a second at most.
#[derive(Debug)]
#[must_use = "dropping it closes the channel"]
pub struct Sender {
    /// Number of the first buffer without a send: that of its group, from 0, and its number in the
    /// group in the three lowest bits.
    next: u64,
    /// What its line has as label besides the tag, if a group of several buffers has begun and no
    /// later buffer has a send; or 0.
    label: u64,
    /// Buffers without a send of a group of several that has begun.
    left: u8,
    /// The buffers of the group, if `left` is not zero.
    count: u8,
    /// Buffers of the group after `next` that have a send, as bits.
    taken: u8,
    /// The lines of the receiver, and copies of the records that are written to it.
    ring: Lines,
    records: RemoteLines,
    /// Dropped before the regions of the requests.
    writer: Writer,
    /// Longest message.
    limit: u64,
    rails: Rails,
    peer: Peer,
    slots: Box<[Slot; REQUESTS]>,
    failure: Option<Arc<Failure>>,
    /// Why the last send or test fails.
    error: Option<Error>,
    fail_over: Box<FailOver>,
    /// Failed rails for which the peer has not reported yet what arrived.
    doubts: u8,
    /// When to read again what the receiver has received, while `doubts` is not 0.
    next_read: Instant,
}

/// A send request.
#[derive(Debug)]
struct Slot {
    request: Request,
    /// Shares that are not acknowledged, with those of the record if the message is the last of a
    /// group.
    pending: u8,
    length: usize,
    /// Keeps the memory registered.
    region: Option<Region>,
}

impl Slot {
    const FREE: Self = Self { request: Request::NONE, pending: 0, length: 0, region: None };

    #[inline(always)]
    fn fill(&mut self, request: Request, shares: u8, length: usize, region: Option<Region>) {
        self.request = request;
        self.pending = shares;
        self.length = length;
        // There is nothing to drop, since the slot is free.
        mem::forget(mem::replace(&mut self.region, region));
    }
}

impl Sender {
    /// `limit` and `share` are the longest message and share.
    pub(crate) fn new(
        plan: Plan,
        queues: Vec<Queues>,
        (ring, records): (Lines, RemoteLines),
        stream: Stream,
        (limit, share): (u64, u64),
    ) -> Self {
        Self {
            next: 0,
            label: 0,
            left: 0,
            count: 0,
            taken: 0,
            ring,
            records,
            writer: Writer::new(queues, &plan, (limit, share)),
            limit,
            rails: plan.rails().clone(),
            peer: Peer::new(stream),
            slots: Box::new([const { Slot::FREE }; REQUESTS]),
            failure: None,
            error: None,
            fail_over: Box::new(FailOver::new(plan)),
            doubts: 0,
            next_read: Instant::now(),
        }
    }

    /// The queues, for a test that writes what it likes.
    #[cfg(all(test, feature = "soft"))]
    pub(crate) fn queues(&mut self) -> &mut [Queues] {
        &mut self.writer.queues
    }

    /// Stores a record, and returns from and to where it is written, for a test that writes what it
    /// likes.
    #[cfg(all(test, feature = "soft"))]
    pub(crate) fn record(
        &self,
        group: u64,
        sizes: &[u64],
        rail: usize,
    ) -> (barewire_mlx5::DataSegment, barewire_mlx5::RemoteAddressSegment) {
        for (member, size) in (0..).zip(sizes) {
            self.ring.store_size(group << 3 | member, *size);
        }
        (self.ring.record(group, sizes.len() as u8, rail), self.records.record(group, rail))
    }

    /// Makes shares shorter, for a test with messages of less than a gigabyte.
    #[cfg(all(test, feature = "soft"))]
    pub(crate) fn limit_shares(&mut self, share: u64) {
        self.writer.limit_shares(share);
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

    /// Rails in use: those of the channel, without those that have failed, and without standby
    /// rails that replace none.
    pub fn rails(&self) -> usize {
        self.writer.in_use
    }

    /// What went over each rail of the channel, in their order.
    pub fn counters(&self) -> Vec<RailCounters> {
        self.fail_over.counters(&self.writer.queues, self.writer.in_use)
    }

    /// Sends `length` bytes at `offset` of `region` to the next buffer with `tag` of the group that
    /// the receiver announced first. Returns `None` if there is no such buffer yet, or 32 groups
    /// are outstanding: call again later with the same arguments. The region stays registered until
    /// the request is complete; writing to it before changes what arrives.
    ///
    /// A message to a single buffer is written at once. The messages to a group of several buffers
    /// are written together, with one doorbell, when the last one is sent. They are written earlier
    /// if one of their requests is tested a few times, or by [`Self::check`]. Their requests mostly
    /// complete together.
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
        if self.ring.line_of_buffer(self.next).is_announced(self.group()) {
            let request = if self.left == 0 {
                self.post(region, offset, length, tag)
            } else {
                self.post_to_group(region, offset, length, tag)
            };
            return match request {
                Request::NONE => self.unposted(),
                request => Ok(Some(request)),
            };
        }
        self.not_yet()
    }

    /// Like [`Self::send`], for up to [`MAX_INLINE`](crate::MAX_INLINE) bytes of any memory, which
    /// are copied at once: `bytes` may change on return, and needs no region.
    ///
    /// # Errors
    /// [`Error::TooLong`], without effect; [`Error::Overlong`], which uses up the buffer;
    /// [`Error::Failed`].
    #[inline]
    pub fn send_inline(&mut self, bytes: &[u8], tag: u32) -> Result<Option<Request>, Error> {
        if self.ring.line_of_buffer(self.next).is_announced(self.group()) {
            let request = if self.left == 0 {
                self.post_inline(bytes, tag)
            } else {
                self.post_inline_to_group(bytes, tag)
            };
            return match request {
                Request::NONE => self.unposted(),
                request => Ok(Some(request)),
            };
        }
        self.not_yet()
    }

    /// Returns the length of the message once `request` is complete: all of it was written to the
    /// peer's memory, and the region may be changed. Returns `None` before.
    #[inline]
    pub fn test(&mut self, request: Request) -> Result<Option<usize>, Error> {
        let slot = &self.slots[usize::from(request.slot())];
        let outcome = if slot.request != request {
            self.failed(Error::UnknownRequest)
        } else if slot.pending == 0 {
            self.free(request.slot())
        } else if Queues::are_empty(&self.writer.queues) && !self.peer.idle() {
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
            && !self.request_completions()
            && let Err(error) = self.check()
        {
            return self.failed(error);
        }
        Outcome::Waiting
    }

    /// Requests completions for the messages of a group that is not complete, which otherwise come
    /// with its last one. Returns whether some were requested.
    #[cold]
    fn request_completions(&mut self) -> bool {
        let any = self.writer.request_completions();
        if any {
            self.peer.rest();
        }
        any
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
        for queues in &mut self.writer.queues {
            let slots = &mut *self.slots;
            while let Some(event) = queues.poll(|owner| acknowledge(slots, owner)) {
                match event {
                    Event::Sent => {
                        if slots.get(at).is_some_and(|slot| slot.pending == 0) {
                            return true;
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
    /// calls do so when they find nothing. An idle end that is not checked learns of a closed peer
    /// later, and its failed rails are not tried again. After [`Error::Overlong`], call it until the
    /// peer has the refusal, which no request waits for and which may be lost with its rail.
    #[cold]
    #[inline(never)]
    pub fn check(&mut self) -> Result<(), Error> {
        self.progress(usize::MAX);
        self.writer.announce();
        if self.failure.is_none()
            && let Err(failure) = self.control(Instant::now())
        {
            self.fail(failure);
        }
        if self.peer.done() > 0 {
            // The peer had received what it has not acknowledged.
            self.writer.missing.clear();
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

    /// The result of a send that was not posted.
    #[cold]
    #[inline(never)]
    fn unposted(&mut self) -> Result<Option<Request>, Error> {
        self.error.take().map_or(Ok(None), Err)
    }

    /// The result of a send for which there is no buffer yet.
    #[inline(always)]
    fn not_yet(&mut self) -> Result<Option<Request>, Error> {
        if self.peer.idle() {
            self.check()?;
        }
        Ok(None)
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
        self.writer.queues.clear();
        self.writer.in_use = 0;
        self.fail_over.abandon(Instant::now());
        self.peer.close(0);
        self.peer.hurry();
        Arc::clone(self.failure.get_or_insert_with(|| Arc::new(failure)))
    }
}

/// Counts a write that was acknowledged.
#[inline(always)]
fn acknowledge(slots: &mut [Slot; REQUESTS], owner: u16) {
    if let Some(slot) = slots.get_mut(usize::from(owner)) {
        slot.pending = slot.pending.saturating_sub(1);
    }
}
