//! Receives messages from the FIFO and the SPSC rings.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::{Deliver, Port, Source};
use crate::control::Refusal;
use crate::error::{Corrupt, LinkError, SegmentError};
use crate::fifo::Head;
use crate::peer::{BULK_READY, IN_BUFFER, LAST_IN_BUFFER, LONG, LONG_END, MAX_IDS, RING_READY};
use crate::poll::{Cursor, PollState};
use crate::senders::Senders;
use crate::spsc::{INLINE, Label, NOT_SHORT};

/// The maximum number of messages that one scan takes from one source.
const BATCH: usize = 16;
/// How long a claimed slot of the FIFO may block the messages behind it before it is set aside.
const CLAIM_TIMEOUT: Duration = Duration::from_millis(5);

/// Transfers the position of the poll cursor, at the end of a part of a ring, to the ring that it
/// polls, and moves it to the next part. Returns false if it polls the FIFO.
#[cold]
fn resume(poll: &PollState, source: Source, senders: &mut Senders) -> bool {
    let ring = match source {
        Source::Fifo => None,
        Source::Ring(number) => senders.ring_mut(number),
    };
    let Some(ring) = ring else { return false };
    ring.advance(poll.passed());
    poll.resume(ring.cursor());
    true
}

impl Port {
    /// Polls all sources, and from time to time checks the sockets. Returns the number of messages.
    #[cold]
    #[inline(never)]
    pub fn scan(&mut self, deliver: &mut impl Deliver) -> usize {
        // First, because handlers below may request another scan, which sets the countdown.
        self.poll.restart();
        // The handler of the last message, which came from the present source.
        self.hold_if_asked(self.source, deliver);
        let mut taken = self.take(deliver);
        self.hold_if_asked(self.source, deliver);
        // Poll the sources other than the one above.
        let by_ring = self.source != Source::Fifo;
        if by_ring {
            taken += self.take_from_fifo(deliver);
            self.hold_if_asked(Source::Fifo, deliver);
        }
        if self.rings.len() > usize::from(by_ring) {
            taken += self.take_from_rings(deliver);
        }
        // A claimed slot may be followed by messages.
        self.poll.set_found_nothing(taken == 0 && self.claimed.is_none() && deliver.wants_more());
        if self.poll.is_socket_check_due() {
            self.check_sockets(deliver);
        }
        taken
    }

    /// Holds a source if the handler of its last message asks for it.
    fn hold_if_asked(&mut self, source: Source, deliver: &mut impl Deliver) {
        if !deliver.takes_hold() {
            return;
        }
        self.sync_ring();
        match source {
            Source::Fifo => self.holds_fifo = true,
            Source::Ring(number) => self.senders.hold(number),
        }
        self.point();
    }

    /// Polls all rings. The last one with messages becomes the source.
    fn take_from_rings(&mut self, deliver: &mut impl Deliver) -> usize {
        self.sync_ring();
        let (mut taken, mut at, mut source) = (0, 0, self.source);
        while let Some(&number) = self.rings.get(at) {
            at += 1;
            let of_ring = self.take_from_ring(number, deliver);
            if of_ring > 0 {
                source = Source::Ring(number);
            }
            taken += of_ring;
            if deliver.takes_hold() {
                self.senders.hold(number);
            }
        }
        self.source = source;
        self.point();
        taken
    }

    /// Transfers the position of the poll cursor to the ring that it polls. Must be called before
    /// any other access to rings, and [`Self::point`] after it.
    pub(super) fn sync_ring(&mut self) {
        let passed = self.poll.passed();
        if let Source::Ring(number) = self.source
            && let Some(ring) = self.senders.ring_mut(number)
        {
            ring.advance(passed);
        }
    }

    /// Moves the poll cursor to the next message of the present source.
    pub(super) fn point(&mut self) {
        self.poll.set_rings(self.rings.len());
        let sender = match self.source {
            Source::Fifo => None,
            Source::Ring(number) => self.senders.get(number),
        };
        let mut bulk = None;
        if let Some(sender) = sender.filter(|sender| !sender.is_held)
            && let Some(ring) = &sender.ring
        {
            self.poll.point(ring.cursor(), ring.lines());
            bulk = sender.bulk.as_ref();
        } else {
            self.source = Source::Fifo;
            if self.holds_fifo {
                let cursor = Cursor { half: self.nothing.half(0), filled: 1, remaining: 1 };
                self.poll.point(cursor, &self.nothing);
            } else {
                self.poll.point(self.fifo.cursor(), self.fifo.lines());
            }
        }
        if self.bulk.as_ref().map(Rc::as_ptr) != bulk.map(Rc::as_ptr) {
            self.bulk = bulk.cloned();
        }
    }

    /// As [`Self::take_larger`]; or for a short message, which [`PollState::ends_run`] has counted
    /// as the last one of the run. Not inlined, so that the path of other messages saves no
    /// registers.
    #[inline(never)]
    pub(super) fn take_larger_or_last(&mut self, deliver: &mut impl Deliver, label: u32) -> usize {
        let poll = &*self.poll;
        poll.next_slot().request(std::ptr::from_ref(self).cast());
        if label & NOT_SHORT != 0 {
            return self.take_larger(deliver, label);
        }
        let length = poll.read((label >> 8) as usize, deliver.scratch());
        poll.step();
        self.take_last(deliver, label as u8 % MAX_IDS, length)
    }

    /// Receives the next message, whose label is in the upper half of word 0, if it is in a buffer
    /// of the present source or takes a whole slot. Needs neither the list of rings nor that of
    /// senders.
    #[inline(always)]
    fn take_larger(&mut self, deliver: &mut impl Deliver, label: u32) -> usize {
        let Label { tag, length } = Label::unpack(u64::from(label) << 32);
        match (tag, &self.bulk) {
            (IN_BUFFER..=LAST_IN_BUFFER, Some(bulk)) => {
                let number = self.poll.header();
                // If the number is wrong, the path of other kinds reports it.
                if let Ok(data) = bulk.take(number) {
                    if self.poll.advance() {
                        resume(&self.poll, self.source, &mut self.senders);
                    }
                    let length = usize::from(length).min(crate::bulk::BUFFER);
                    deliver.buffered(tag - IN_BUFFER, bulk, number as u8, data, length);
                    return 1;
                }
            }
            (LONG..LONG_END, _) => {
                if let Some(length) = self.poll.read_long(length.into(), deliver.scratch()) {
                    self.poll.advance();
                    if self.poll.advance() {
                        resume(&self.poll, self.source, &mut self.senders);
                    }
                    deliver.short(tag - LONG, length);
                    return 1;
                }
            }
            _ => {}
        }
        self.take_other_kinds(deliver)
    }

    /// Delivers the message in the scratch buffer, which was the last one of a part of the ring.
    #[cold]
    #[inline(never)]
    fn take_last(&mut self, deliver: &mut impl Deliver, id: u8, length: usize) -> usize {
        if resume(&self.poll, self.source, &mut self.senders) {
            deliver.short(id, length);
            return 1;
        }
        // A valid message in the FIFO has a sender number, so its word 0 does not look like a short
        // message. This one is invalid.
        self.fifo.advance();
        self.point();
        self.report(0, Corrupt("a slot of the FIFO").into(), deliver);
        0
    }

    /// Receives from the present source if the next message is not a short message of a ring.
    #[inline(never)]
    pub(super) fn take_other_kinds(&mut self, deliver: &mut impl Deliver) -> usize {
        self.sync_ring();
        let taken = match self.source {
            Source::Fifo => self.take_from_fifo(deliver),
            Source::Ring(number) => self.take_from_ring(number, deliver),
        };
        self.point();
        taken
    }

    fn take_from_ring(&mut self, number: u16, deliver: &mut impl Deliver) -> usize {
        let is_source = self.source == Source::Ring(number);
        if self.senders.get(number).is_none_or(|sender| sender.is_held) {
            return 0;
        }
        let mut taken = 0;
        while taken < BATCH && deliver.wants_more() {
            let Some(ring) = self.senders.ring_mut(number) else { return taken };
            let Some(label) = ring.peek() else { return taken };
            if let Some((id, length)) = ring.take(label, deliver.scratch()) {
                if is_source {
                    // Before the handler is called, since it may panic.
                    self.poll.resume(ring.cursor());
                }
                deliver.short(id, length);
            } else if let Err(error) = self.take_special(number, label, deliver) {
                self.report(number, error, deliver);
                return taken;
            }
            taken += 1;
        }
        taken
    }

    /// Receives a message that is in a buffer, or one with which the sender announces its buffers.
    fn take_special(
        &mut self,
        number: u16,
        label: Label,
        deliver: &mut impl Deliver,
    ) -> Result<(), LinkError> {
        let Some(sender) = self.senders.get_mut(number) else { return Ok(()) };
        let Some(ring) = &mut sender.ring else { return Ok(()) };
        let header = ring.header();
        ring.advance(1);
        if self.source == Source::Ring(number) {
            self.poll.resume(ring.cursor());
        }
        match (label.tag, &sender.bulk) {
            (IN_BUFFER..=LAST_IN_BUFFER, Some(bulk)) => {
                let data = bulk.take(header)?;
                let bulk = Rc::clone(bulk);
                let length = usize::from(label.length).min(crate::bulk::BUFFER);
                deliver.buffered(label.tag - IN_BUFFER, &bulk, header as u8, data, length);
                Ok(())
            }
            (BULK_READY, _) => {
                self.receive(number)?;
                match self.senders.get(number) {
                    Some(sender) if sender.bulk.is_none() => {
                        Err(Corrupt("the announcement of its buffers").into())
                    }
                    _ => Ok(()),
                }
            }
            _ => Err(Corrupt("the kind of a message").into()),
        }
    }

    /// Reports an error, and ends the connection of the sender that caused it. Number 0 means that
    /// any sender may have caused it; no connection is ended then.
    #[cold]
    pub(super) fn report(&mut self, number: u16, why: LinkError, deliver: &mut impl Deliver) {
        self.sync_ring();
        let process = match self.remove(number) {
            Some(sender) => {
                sender.refuse(match &why {
                    LinkError::Descriptors { .. } => Refusal::Descriptors,
                    LinkError::Segment(SegmentError::System { .. }) | LinkError::System { .. } => {
                        Refusal::Failed
                    }
                    _ => Refusal::Corrupt,
                });
                sender.process
            }
            None => 0,
        };
        self.rings.retain(|ring| *ring != number);
        self.point();
        deliver.broken(process, why);
    }

    fn take_from_fifo(&mut self, deliver: &mut impl Deliver) -> usize {
        let mut taken = 0;
        while taken < BATCH && !self.holds_fifo && deliver.wants_more() {
            let senders = &self.senders;
            match self.fifo.peek(|number| senders.has_ended(number)) {
                Head::Empty => break,
                Head::Message(number, label) => {
                    let short = label.tag < MAX_IDS && usize::from(label.length) <= INLINE;
                    if short {
                        self.fifo.read(label.length, deliver.scratch());
                    }
                    self.fifo.advance();
                    if short {
                        deliver.short(label.tag, label.length.into());
                    } else {
                        self.take_announcement(number, label, deliver);
                    }
                }
                Head::Claimed(number) => {
                    if self.must_wait_for(number) {
                        break;
                    }
                    continue;
                }
                Head::Corrupt => {
                    self.fifo.advance();
                    self.report(0, Corrupt("a slot of the FIFO").into(), deliver);
                }
            }
            self.claimed = None;
            taken += 1;
        }
        taken
    }

    /// Handles a message in the FIFO that announces the sender's SPSC ring, which was sent over the
    /// socket before. Any sender can write any sender number into a slot, so an invalid message
    /// ends no connection.
    fn take_announcement(&mut self, number: u16, label: Label, deliver: &mut impl Deliver) {
        if label.tag != RING_READY || self.senders.get(number).is_none() {
            return self.report(0, Corrupt("the kind of a message in the FIFO").into(), deliver);
        }
        if let Err(error) = self.receive(number) {
            return self.report(number, error, deliver);
        }
        if self.senders.ring_mut(number).is_none() || self.rings.contains(&number) {
            return self.report(0, Corrupt("the announcement of an SPSC ring").into(), deliver);
        }
        self.rings.push(number);
        self.poll.set_rings(self.rings.len());
    }

    /// Handles a slot at the head of the FIFO that this sender claimed and has not filled. Returns
    /// true if the receiver must wait for it.
    #[cold]
    fn must_wait_for(&mut self, number: u16) -> bool {
        if self.senders.has_ended(number) {
            self.fifo.advance();
            self.claimed = None;
            return false;
        }
        match self.claimed {
            Some((claimant, since)) if claimant == number => {
                if since.elapsed() < CLAIM_TIMEOUT {
                    return true;
                }
                self.claimed = None;
                // If the sender filled the slot just now, it is received as a message.
                let _ = self.fifo.set_aside(number);
                false
            }
            _ => {
                self.claimed = Some((number, Instant::now()));
                true
            }
        }
    }
}
