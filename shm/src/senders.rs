//! Those who attached to a port, by the numbers that the port gave them.

use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use crate::bulk::{self, BulkReceiver, MAX_BUFFERS};
use crate::control::{Message, Refusal};
use crate::error::{Corrupt, LinkError};
use crate::lane::{self, LaneReceiver};
use crate::line::{LINE, Lines};
use crate::link::{Link, Received};
use crate::peer::{exactly, lost};
use crate::port::MOST_SLOTS;
use crate::region::Shelf;
use crate::segment::Segment;

/// Messages of one sender's socket that are taken at a time.
const AT_ONCE: usize = 32;
/// Regions that a sender may ask for before it takes the first.
const MOST_OWED: usize = 64;

/// One who attached.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) link: Arc<Link>,
    pub(crate) process: i32,
    pub(crate) greeted: bool,
    pub(crate) since: Instant,
    /// Its socket was closed, by itself or with its process.
    pub(crate) is_ended: bool,
    pub(crate) lane: Option<LaneReceiver>,
    pub(crate) bulk: Option<Rc<BulkReceiver>>,
    /// Regions that it asked for, and does not read its socket to get.
    owed: Vec<u64>,
}

impl Sender {
    pub(crate) fn new(link: Link, process: i32, since: Instant) -> Self {
        Self {
            link: Arc::new(link),
            process,
            greeted: false,
            since,
            is_ended: false,
            lane: None,
            bulk: None,
            owed: Vec::new(),
        }
    }

    /// Says why the connection ends, if the other end still listens.
    pub(crate) fn refuse(&self, refusal: Refusal) {
        let user = rustix::process::geteuid().as_raw().into();
        let _ = self.link.send(&Message::Refused { reason: refusal as u64, user }.encode(), &[]);
    }

    pub(crate) fn ended(&mut self) {
        self.is_ended = true;
    }

    /// Takes in what it hands over and asks for, a limited number of messages at a time.
    ///
    /// # Errors
    /// What breaks the rules, and what this process lacks to take it in.
    pub(crate) fn receive(&mut self, shelf: &Shelf) -> Result<(), LinkError> {
        for _ in 0..AT_ONCE {
            let received = match self.link.receive().map_err(|error| lost("recvmsg", error)) {
                Ok(Some(received)) => received,
                Ok(None) => break,
                Err(LinkError::Ended) => {
                    self.ended();
                    break;
                }
                Err(error) => return Err(error),
            };
            self.take_in(received, shelf)?;
        }
        Ok(())
    }

    fn take_in(&mut self, received: Received, shelf: &Shelf) -> Result<(), LinkError> {
        let Received { message, descriptors } = received;
        match Message::decode(&message)? {
            Message::Lane { slots } if self.lane.is_none() && slots <= MOST_SLOTS as u64 => {
                let [segment] = exactly(descriptors)?;
                let count = lane::lines(slots as usize);
                let segment = Arc::new(Segment::attach(segment, count * LINE)?);
                let lane = Lines::of(&segment, count).and_then(|lines| LaneReceiver::new(&lines));
                self.lane = Some(lane.ok_or(Corrupt("the memory of its lane"))?);
            }
            Message::Bulk { buffers } if self.bulk.is_none() && buffers <= MAX_BUFFERS as u64 => {
                let [segment] = exactly(descriptors)?;
                let count = buffers as usize;
                let segment = Arc::new(Segment::attach(segment, bulk::size(count))?);
                let bulk = BulkReceiver::new(&segment, count);
                self.bulk = Some(Rc::new(bulk.ok_or(Corrupt("the memory of its buffers"))?));
            }
            Message::Ask { region } if self.owed.len() < MOST_OWED => {
                let [] = exactly(descriptors)?;
                self.owed.push(region);
                self.pay(shelf)?;
            }
            // It came to wake this process, which it did.
            Message::Wake {} => {
                let [] = exactly(descriptors)?;
            }
            _ => return Err(Corrupt("a message over the socket").into()),
        }
        Ok(())
    }

    /// Hands over the regions that it asked for, as far as its socket takes them.
    pub(crate) fn pay(&mut self, shelf: &Shelf) -> Result<(), LinkError> {
        while let Some(&region) = self.owed.first() {
            match shelf.hand_over(region, &self.link).map_err(|error| lost("sendmsg", error)) {
                Ok(true) => drop(self.owed.remove(0)),
                Ok(false) => break,
                // Its end is read from the socket, after what it sent before.
                Err(LinkError::Ended) => self.owed.clear(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) fn is_owed(&self) -> bool {
        !self.owed.is_empty()
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// All of them. Number 0 is nobody's.
#[derive(Debug, Default)]
pub(crate) struct Senders {
    /// The sender of number n is at n - 1.
    places: Vec<Option<Sender>>,
    /// Where the search for a free place begins, so that a number is not given again soon: slots of the FIFO may still bear it.
    next: usize,
}

impl Senders {
    /// Most senders of one port.
    const MOST: usize = u16::MAX as usize;

    #[inline(always)]
    pub(crate) fn get(&self, number: u16) -> Option<&Sender> {
        self.places.get(usize::from(number).wrapping_sub(1))?.as_ref()
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, number: u16) -> Option<&mut Sender> {
        self.places.get_mut(usize::from(number).wrapping_sub(1))?.as_mut()
    }

    #[inline(always)]
    pub(crate) fn lane_mut(&mut self, number: u16) -> Option<&mut LaneReceiver> {
        self.get_mut(number)?.lane.as_mut()
    }

    /// A sender of this number will not write any more.
    pub(crate) fn is_gone(&self, number: u16) -> bool {
        self.get(number).is_none_or(|sender| sender.is_ended)
    }

    /// Gives a number; `None` if every one is taken.
    pub(crate) fn add(&mut self, sender: Sender) -> Option<(u16, &Sender)> {
        let free = (0..Self::MOST).map(|step| (self.next + step) % Self::MOST);
        let at = free.into_iter().find(|at| self.places.get(*at).is_none_or(Option::is_none))?;
        if self.places.len() <= at {
            self.places.resize_with(at + 1, || None);
        }
        self.next = at + 1;
        Some((at as u16 + 1, self.places[at].insert(sender)))
    }

    pub(crate) fn remove(&mut self, number: u16) -> Option<Sender> {
        self.places.get_mut(usize::from(number).wrapping_sub(1))?.take()
    }

    /// The numbers of those of whom `is` holds.
    pub(crate) fn those(&self, is: impl Fn(&Sender) -> bool) -> Vec<u16> {
        let numbered = self.places.iter().zip(1..);
        numbered.filter(|(place, _)| place.as_ref().is_some_and(&is)).map(|(_, number)| number).collect()
    }
}
