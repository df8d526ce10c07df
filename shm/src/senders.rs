//! The senders that are attached to a port, in a table indexed by sender number.

use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use crate::bulk::{self, BulkReceiver, MAX_BUFFERS};
use crate::control::{Message, Refusal};
use crate::error::{Corrupt, LinkError};
use crate::line::{LINE, Lines};
use crate::link::{Link, Received};
use crate::peer::{exactly, socket_error};
use crate::port::MAX_SLOTS;
use crate::region::RegionSet;
use crate::segment::Segment;
use crate::spsc::{self, SpscReceiver};

/// Messages of one sender's socket that one call handles.
const MAX_PER_CALL: u32 = 32;
/// The maximum number of outstanding region requests of a sender.
const MAX_REQUESTS: usize = 64;

/// A sender that is attached to the port.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) link: Arc<Link>,
    pub(crate) process: i32,
    pub(crate) greeted: bool,
    /// The sender is in this process: it does not write to the FIFO, and its SPSC ring is not
    /// announced there.
    pub(crate) is_direct: bool,
    pub(crate) since: Instant,
    /// Nothing is received from its ring.
    pub(crate) is_held: bool,
    /// The sender or its process has closed the socket.
    pub(crate) ended: bool,
    pub(crate) ring: Option<SpscReceiver>,
    pub(crate) bulk: Option<Rc<BulkReceiver>>,
    /// Regions that the sender requested and that its full socket could not take yet.
    requests: Vec<u64>,
}

impl Sender {
    pub(crate) fn new(link: Link, process: i32, since: Instant) -> Self {
        Self {
            link: Arc::new(link),
            process,
            greeted: false,
            is_direct: false,
            since,
            is_held: false,
            ended: false,
            ring: None,
            bulk: None,
            requests: Vec::new(),
        }
    }

    /// A sender in this process, which has connected already.
    pub(crate) fn direct(link: Arc<Link>, since: Instant) -> Self {
        Self {
            link,
            process: std::process::id() as i32,
            greeted: true,
            is_direct: true,
            since,
            is_held: false,
            ended: false,
            ring: None,
            bulk: None,
            requests: Vec::new(),
        }
    }

    /// Sends the reason why the connection ends, if the socket can take it.
    pub(crate) fn refuse(&self, refusal: Refusal) {
        let user = rustix::process::geteuid().as_raw().into();
        let _ = self.link.send(&Message::Refused { reason: refusal as u64, user }.encode(), &[]);
    }

    pub(crate) fn set_ended(&mut self) {
        self.ended = true;
    }

    /// Handles up to `most` messages of the sender over its socket, and a limited number per call.
    /// Returns how many there were.
    ///
    /// # Errors
    /// A protocol violation, or the reason why this process could not map the sender's memory.
    pub(crate) fn receive(&mut self, regions: &RegionSet, most: u32) -> Result<u32, LinkError> {
        let mut count = 0;
        while count < most.min(MAX_PER_CALL) {
            let received = match self.link.receive().map_err(|error| socket_error("recvmsg", error))
            {
                Ok(Some(received)) => received,
                Ok(None) => break,
                Err(LinkError::Ended) => {
                    self.set_ended();
                    break;
                }
                Err(error) => return Err(error),
            };
            count += 1;
            self.handle(received, regions)?;
        }
        Ok(count)
    }

    fn handle(&mut self, received: Received, regions: &RegionSet) -> Result<(), LinkError> {
        let Received { message, descriptors } = received;
        match Message::decode(&message)? {
            Message::Ring { slots } if self.ring.is_none() && slots <= MAX_SLOTS as u64 => {
                let [segment] = exactly(descriptors)?;
                let count = spsc::lines(slots as usize);
                let segment = Arc::new(Segment::attach(segment, count * LINE)?);
                let ring = Lines::of(&segment, count).and_then(|lines| SpscReceiver::new(&lines));
                self.ring = Some(ring.ok_or(Corrupt("the memory of its SPSC ring"))?);
            }
            Message::Bulk { buffers } if self.bulk.is_none() && buffers <= MAX_BUFFERS as u64 => {
                let [segment] = exactly(descriptors)?;
                let count = buffers as usize;
                let segment = Arc::new(Segment::attach(segment, bulk::size(count))?);
                let bulk = BulkReceiver::new(&segment, count);
                self.bulk = Some(Rc::new(bulk.ok_or(Corrupt("the memory of its buffers"))?));
            }
            Message::Request { region } if self.requests.len() < MAX_REQUESTS => {
                let [] = exactly(descriptors)?;
                self.requests.push(region);
                self.send_regions(regions)?;
            }
            // The message's only purpose is to wake this process.
            Message::Wake {} => {
                let [] = exactly(descriptors)?;
            }
            _ => return Err(Corrupt("a message over the socket").into()),
        }
        Ok(())
    }

    /// Sends the requested regions, as far as the socket takes them.
    pub(crate) fn send_regions(&mut self, regions: &RegionSet) -> Result<(), LinkError> {
        while let Some(&region) = self.requests.first() {
            match regions
                .send_to(region, &self.link)
                .map_err(|error| socket_error("sendmsg", error))
            {
                Ok(true) => drop(self.requests.remove(0)),
                Ok(false) => break,
                // The next receive reports the end, after the messages that the sender sent before.
                Err(LinkError::Ended) => self.requests.clear(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// The senders of a port. Numbers begin with 1; number 0 is not used.
#[derive(Debug, Default)]
pub(crate) struct Senders {
    /// Sender number n is at index n - 1.
    slots: Vec<Option<Sender>>,
    /// Where the search for a free slot begins. A number is reused as late as possible, since slots
    /// of the FIFO may still contain it.
    next: usize,
}

impl Senders {
    /// The maximum number of senders of one port.
    const MAX: usize = u16::MAX as usize;

    #[inline(always)]
    pub(crate) fn get(&self, number: u16) -> Option<&Sender> {
        self.slots.get(usize::from(number).wrapping_sub(1))?.as_ref()
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, number: u16) -> Option<&mut Sender> {
        self.slots.get_mut(usize::from(number).wrapping_sub(1))?.as_mut()
    }

    #[inline(always)]
    pub(crate) fn ring_mut(&mut self, number: u16) -> Option<&mut SpscReceiver> {
        self.get_mut(number)?.ring.as_mut()
    }

    /// Returns true if the sender with this number will not write any more.
    pub(crate) fn has_ended(&self, number: u16) -> bool {
        self.get(number).is_none_or(|sender| sender.ended)
    }

    /// Adds a sender and returns its number. If no number is free, the sender is refused.
    pub(crate) fn add(&mut self, sender: Sender) -> Option<(u16, &Sender)> {
        let free = (0..Self::MAX).map(|step| (self.next + step) % Self::MAX);
        let is_free = |at: &usize| self.slots.get(*at).is_none_or(Option::is_none);
        let Some(at) = free.into_iter().find(is_free) else {
            sender.refuse(Refusal::Full);
            return None;
        };
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        self.next = at + 1;
        Some((at as u16 + 1, self.slots[at].insert(sender)))
    }

    pub(crate) fn remove(&mut self, number: u16) -> Option<Sender> {
        self.slots.get_mut(usize::from(number).wrapping_sub(1))?.take()
    }

    pub(crate) fn hold(&mut self, number: u16) {
        if let Some(sender) = self.get_mut(number) {
            sender.is_held = true;
        }
    }

    /// No sender is held any more.
    pub(crate) fn release(&mut self) {
        self.slots.iter_mut().flatten().for_each(|sender| sender.is_held = false);
    }

    /// The numbers of the senders for which `is` returns true.
    pub(crate) fn numbers_where(&self, is: impl Fn(&Sender) -> bool) -> Vec<u16> {
        let numbered = self.slots.iter().zip(1..);
        numbered
            .filter(|(slot, _)| slot.as_ref().is_some_and(&is))
            .map(|(_, number)| number)
            .collect()
    }
}
