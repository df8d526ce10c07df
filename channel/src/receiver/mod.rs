//! The receiving end of a channel: requests and their completion. `announce.rs` writes the lines of
//! buffers, `slot.rs` keeps a group, and `replay.rs` writes lines again when a rail has failed.

mod announce;
mod replay;
mod slot;

use core::fmt;
use std::sync::Arc;
use std::time::Instant;

use self::slot::{Slot, Wrong, arrive};
use barewire_tcp::frames::Stream;

use crate::config::{MAX_GROUP, MAX_GROUPS};
use crate::control::Peer;
use crate::counters::RailCounters;
use crate::error::{Error, Failure};
use crate::fail_over::{FailOver, Half};
use crate::plan::Plan;
use crate::queues::{Event, Queues};
use crate::rails::Rails;
use crate::request::{Outcome, Request};
use crate::ring::{Lines, RemoteLines, WITH_RECORD};

pub use announce::Target;

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
    /// The request of each slot: its number, the same with a mark once it is complete, or none.
    requests: [Request; MAX_GROUPS],
    failure: Option<Arc<Failure>>,
    /// Why the last test fails.
    error: Option<Error>,
    fail_over: Box<FailOver>,
    /// Slots of groups whose lines have to be written again, as bits.
    unannounced: u32,
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
            requests: [Request::NONE; MAX_GROUPS],
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

    /// The first group that is not complete.
    fn done(&self) -> u64 {
        let open = self.requests.iter().filter(|request| request.is_open());
        open.map(|request| request.number()).min().unwrap_or(self.group)
    }

    /// Returns the lengths once `request` is complete: all of its messages are in memory. Returns
    /// `None` before.
    ///
    /// # Errors
    /// [`Error::Refused`] if a send was longer than its buffer, which completes the request;
    /// [`Error::UnknownRequest`]; [`Error::Failed`].
    #[inline]
    pub fn test(&mut self, request: Request) -> Result<Option<Received>, Error> {
        let outcome = if self.requests[request.group()] != request {
            self.collect(request)
        } else if Queues::are_empty(&self.queues) && !self.peer.idle() {
            return Ok(None);
        } else {
            self.take(request)
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

    /// Takes completions, and ends an open request if it is complete.
    #[inline(never)]
    fn take(&mut self, request: Request) -> Outcome<'_, Slot> {
        match self.progress(request) {
            Progress::Complete(at) => self.free(at, request),
            Progress::Nothing => self.idle(),
            Progress::Wrong(wrong) => self.refuse(wrong),
            Progress::Lost(place) => self.carry_on(place, request),
        }
    }

    /// The result of a test that has found nothing.
    #[inline(never)]
    fn idle(&mut self) -> Outcome<'_, Slot> {
        if self.peer.is_due()
            && let Err(error) = self.check()
        {
            return self.failed(error);
        }
        Outcome::Waiting
    }

    /// The result of a test that has found a wrong message, which ends the channel.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self, wrong: Wrong) -> Outcome<'_, Slot> {
        self.violated(wrong.text());
        self.idle()
    }

    /// The result of a test that has found a failed rail.
    #[cold]
    #[inline(never)]
    fn carry_on(&mut self, place: usize, request: Request) -> Outcome<'_, Slot> {
        self.lose(place);
        // Completions of the failed rail were taken as well.
        let at = request.group();
        if self.requests[at].is_open() { self.idle() } else { self.free(at, request) }
    }

    /// Ends a request that is complete, if there is one.
    #[inline(never)]
    fn collect(&mut self, request: Request) -> Outcome<'_, Slot> {
        let at = request.group();
        if self.requests[at] == request.ended() {
            return self.free(at, request);
        }
        self.failed(Error::UnknownRequest)
    }

    #[cold]
    #[inline(never)]
    fn failed(&mut self, error: Error) -> Outcome<'_, Slot> {
        self.error = Some(error);
        Outcome::Failed(&mut self.error)
    }

    /// Frees slot `at` of a request that is complete. Its sizes remain.
    #[inline(always)]
    fn free(&mut self, at: usize, request: Request) -> Outcome<'_, Slot> {
        let Self { slots, requests, copies, error, .. } = self;
        let at = at % MAX_GROUPS;
        let slot = &mut slots[at];
        // Further shares of the group are errors, since all of its messages are complete.
        requests[at] = Request::NONE;
        // There is always one.
        slot.regions[0] = None;
        if slot.group & WITH_RECORD != 0 {
            slot.record(copies.record_words(at));
        }
        copies.store_received(at, request.number());
        if !slot.is_plain() && !slot.release(error) {
            return Outcome::Failed(error);
        }
        Outcome::Complete(slot)
    }

    /// Takes completions until there are none, or the group of an open request is complete. The
    /// requests of other groups that are complete are marked.
    #[inline(always)]
    fn progress(&mut self, request: Request) -> Progress {
        let Self { queues, slots, requests, .. } = self;
        if let [only] = &mut **queues {
            return progress(only, slots, requests, request);
        }
        for queues in queues {
            match progress(queues, slots, requests, request) {
                Progress::Nothing => {}
                found => return found,
            }
        }
        Progress::Nothing
    }

    /// Takes all completions.
    #[cold]
    #[inline(never)]
    fn progress_all(&mut self) {
        match self.progress(Request::NONE) {
            Progress::Wrong(wrong) => _ = self.violated(wrong.text()),
            Progress::Lost(place) => self.lose(place),
            Progress::Complete(_) | Progress::Nothing => {}
        }
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

    /// Reads the connection to the peer, and carries on with rails that have failed. The other
    /// calls do so when they find nothing. An idle end that is not checked learns of a closed peer
    /// later, and its failed rails are not tried again.
    #[cold]
    #[inline(never)]
    pub fn check(&mut self) -> Result<(), Error> {
        self.progress_all();
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

/// What taking completions has led to.
enum Progress {
    /// There are no more.
    Nothing,
    /// The group in a slot is complete.
    Complete(usize),
    /// The peer did something wrong.
    Wrong(Wrong),
    /// The rail at a place has failed.
    Lost(usize),
}

/// As [`Receiver::progress`], for one rail.
#[inline(always)]
fn progress(
    queues: &mut Queues,
    slots: &mut [Slot; MAX_GROUPS],
    requests: &mut [Request; MAX_GROUPS],
    request: Request,
) -> Progress {
    while let Some(event) = queues.poll(|_| {}) {
        match event {
            // Lines whose WQEs are free again.
            Event::Sent => {}
            Event::Arrived { immediate, bytes } => match arrive(slots, immediate, bytes) {
                Ok(Some(at)) if requests[at] == request => return Progress::Complete(at),
                Ok(Some(at)) => end(requests, at),
                Ok(None) => {}
                Err(wrong) => return Progress::Wrong(wrong),
            },
            Event::Failed => return Progress::Lost(queues.place()),
        }
    }
    Progress::Nothing
}

/// Marks the request of slot `at`, which is complete.
#[inline(always)]
fn end(requests: &mut [Request; MAX_GROUPS], at: usize) {
    let request = &mut requests[at % MAX_GROUPS];
    *request = request.ended();
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let done = self.done();
        self.leave(done);
    }
}
