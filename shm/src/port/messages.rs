//! Messages, out of the FIFO and the lanes.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::{Deliver, Port, Source};
use crate::control::Refusal;
use crate::error::{Corrupt, LinkError, SegmentError};
use crate::fifo::Head;
use crate::lane::{INLINE, Label, read_message};
use crate::peer::{BULK_READY, IN_BUFFER, LANE_READY, LAST_IN_BUFFER, MAX_IDS};

/// Messages that one turn takes from one sender.
const BATCH: usize = 16;
/// A sender may leave a slot claimed for so long before the others go on without it.
const GRACE: Duration = Duration::from_millis(5);

impl Port {
    /// Looks at every place, and from time to time at the sockets. Answers how many messages there were.
    #[cold]
    #[inline(never)]
    pub fn turn(&mut self, deliver: &mut impl Deliver) -> usize {
        // Before anything that calls for attention.
        self.hot.restart();
        let mut taken = self.take(deliver);
        // The other places.
        let by_lane = self.source != Source::Fifo;
        if by_lane {
            taken += self.take_from_fifo(deliver);
        }
        if self.lanes.len() > usize::from(by_lane) {
            taken += self.take_from_lanes(deliver);
        }
        // A slot that is claimed may be in front of messages.
        self.hot.set_quiet(taken == 0 && self.claimed.is_none() && deliver.goes_on());
        if self.hot.is_look_due() {
            self.look(deliver);
        }
        taken
    }

    /// Looks at all lanes, and at the last one that has messages from now on.
    fn take_from_lanes(&mut self, deliver: &mut impl Deliver) -> usize {
        self.catch_up();
        let (mut taken, mut at, mut source) = (0, 0, self.source);
        while let Some(&number) = self.lanes.get(at) {
            at += 1;
            let of_lane = self.take_from_lane(number, deliver);
            if of_lane > 0 {
                source = Source::Lane(number);
            }
            taken += of_lane;
        }
        self.source = source;
        self.point();
        taken
    }

    /// Tells the lane that is looked at how far the looks are. To be called before anything else is done with lanes, and [`Self::point`] after.
    pub(super) fn catch_up(&mut self) {
        let passed = self.hot.passed();
        if let Source::Lane(number) = self.source
            && let Some(lane) = self.senders.lane_mut(number)
        {
            lane.advance(passed);
        }
    }

    /// Points the looks at where the next message of the present source will be.
    pub(super) fn point(&mut self) {
        self.hot.set_lanes(self.lanes.len());
        let lane = match self.source {
            Source::Fifo => None,
            Source::Lane(number) => self.senders.get(number).and_then(|sender| sender.lane.as_ref()),
        };
        if let Some(lane) = lane {
            self.hot.point(lane.cursor(), lane.lines());
        } else {
            self.source = Source::Fifo;
            self.hot.point(self.fifo.cursor(), self.fifo.lines());
        }
    }

    /// The message in the scratch was the last one of its part of the lane.
    #[cold]
    #[inline(never)]
    pub(super) fn take_last(&mut self, deliver: &mut impl Deliver, id: u8, length: usize) -> usize {
        let lane = match self.source {
            Source::Fifo => None,
            Source::Lane(number) => self.senders.lane_mut(number),
        };
        if let Some(lane) = lane {
            lane.advance(self.hot.passed());
            self.hot.go_on(lane.cursor());
            deliver.short(id, length);
            return 1;
        }
        // In the FIFO messages have the number of a sender, and are not taken this way.
        self.fifo.advance();
        self.point();
        self.give_up(0, Corrupt("a slot of the FIFO").into(), deliver);
        0
    }

    /// What is there is not a short message of a lane.
    #[inline(never)]
    pub(super) fn take_others(&mut self, deliver: &mut impl Deliver) -> usize {
        self.catch_up();
        let taken = match self.source {
            Source::Fifo => self.take_from_fifo(deliver),
            Source::Lane(number) => self.take_from_lane(number, deliver),
        };
        self.point();
        taken
    }

    fn take_from_lane(&mut self, number: u16, deliver: &mut impl Deliver) -> usize {
        let is_source = self.source == Source::Lane(number);
        let mut taken = 0;
        while taken < BATCH && deliver.goes_on() {
            let Some(lane) = self.senders.lane_mut(number) else { return taken };
            let Some((label, line)) = lane.peek() else { return taken };
            if label.tag < MAX_IDS && usize::from(label.length) <= INLINE {
                read_message(line, label.length.into(), deliver.scratch());
                lane.advance(1);
                if is_source {
                    // Before the handler, which may panic.
                    self.hot.go_on(lane.cursor());
                }
                deliver.short(label.tag, label.length.into());
            } else if let Err(error) = self.take_other(number, label, deliver) {
                self.give_up(number, error, deliver);
                return taken;
            }
            taken += 1;
        }
        taken
    }

    /// Takes a message that is in a buffer, or no message but a word of the sender about itself.
    fn take_other(&mut self, number: u16, label: Label, deliver: &mut impl Deliver) -> Result<(), LinkError> {
        let Some(sender) = self.senders.get_mut(number) else { return Ok(()) };
        let Some(lane) = &mut sender.lane else { return Ok(()) };
        let Some((_, line)) = lane.peek() else { return Ok(()) };
        let header = line.load(1);
        lane.advance(1);
        if self.source == Source::Lane(number) {
            self.hot.go_on(lane.cursor());
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
                    Some(sender) if sender.bulk.is_none() => Err(Corrupt("that its buffers came").into()),
                    _ => Ok(()),
                }
            }
            _ => Err(Corrupt("what its message is").into()),
        }
    }

    /// Ends the connection of a sender that broke the rules, or whose memory cannot be taken in. Number 0
    /// is for what any sender may have done: nobody is given up.
    #[cold]
    pub(super) fn give_up(&mut self, number: u16, why: LinkError, deliver: &mut impl Deliver) {
        self.catch_up();
        let process = match self.senders.remove(number) {
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
        self.lanes.retain(|lane| *lane != number);
        self.point();
        deliver.broken(process, why);
    }

    fn take_from_fifo(&mut self, deliver: &mut impl Deliver) -> usize {
        let mut taken = 0;
        while taken < BATCH && deliver.goes_on() {
            let senders = &self.senders;
            match self.fifo.peek(|number| senders.is_gone(number)) {
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
                        self.take_lane(number, label, deliver);
                    }
                }
                Head::Claimed(number) => {
                    if self.wait_for(number) {
                        break;
                    }
                    continue;
                }
                Head::Corrupt => {
                    self.fifo.advance();
                    self.give_up(0, Corrupt("a slot of the FIFO").into(), deliver);
                }
            }
            self.claimed = None;
            taken += 1;
        }
        taken
    }

    /// A slot says that its sender has a lane, which came over the sender's socket before. Every sender can
    /// write any number into a slot, so what is wrong with a slot is held against nobody.
    fn take_lane(&mut self, number: u16, label: Label, deliver: &mut impl Deliver) {
        if label.tag != LANE_READY || self.senders.get(number).is_none() {
            return self.give_up(0, Corrupt("what a message in the FIFO is").into(), deliver);
        }
        if let Err(error) = self.receive(number) {
            return self.give_up(number, error, deliver);
        }
        if self.senders.lane_mut(number).is_none() || self.lanes.contains(&number) {
            return self.give_up(0, Corrupt("that a lane came").into(), deliver);
        }
        self.lanes.push(number);
        self.hot.set_lanes(self.lanes.len());
    }

    /// The slot at the head of the FIFO is claimed by this sender and not filled. True if it is to be waited for.
    #[cold]
    fn wait_for(&mut self, number: u16) -> bool {
        if self.senders.is_gone(number) {
            self.fifo.advance();
            self.claimed = None;
            return false;
        }
        match self.claimed {
            Some((claimant, since)) if claimant == number => {
                if since.elapsed() < GRACE {
                    return true;
                }
                self.claimed = None;
                // If it was filled this moment, it is a message.
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
