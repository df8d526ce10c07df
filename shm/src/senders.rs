//! Those who attached to a port, by the numbers that the port gave them.

use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

use crate::bulk::{self, BulkReceiver, MAX_BUFFERS};
use crate::control::{Message, Refusal};
use crate::error::{Corrupt, LinkError};
use crate::lane::{self, LaneReceiver};
use crate::line::{LINE, Lines};
use crate::link::{Link, Received};
use crate::peer::{exactly, lost};
use crate::port::MOST_SLOTS;
use crate::segment::Segment;

/// One who attached.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) link: Arc<Link>,
    pub(crate) process: i32,
    pub(crate) greeted: bool,
    /// Its socket was closed, by itself or with its process.
    pub(crate) is_ended: bool,
    pub(crate) lane: Option<LaneReceiver>,
    pub(crate) bulk: Option<Rc<BulkReceiver>>,
}

impl Sender {
    pub(crate) fn new(link: Link, process: i32) -> Self {
        Self { link: Arc::new(link), process, greeted: false, is_ended: false, lane: None, bulk: None }
    }

    /// Says why the connection ends, if the other end still listens.
    pub(crate) fn refuse(&self, refusal: Refusal) {
        let user = rustix::process::geteuid().as_raw().into();
        let _ = self.link.send(&Message::Refused { reason: refusal as u64, user }.encode(), &[]);
    }

    pub(crate) fn ended(&mut self, _: &LinkError) {
        self.is_ended = true;
    }

    /// Takes in what it hands over.
    ///
    /// # Errors
    /// What breaks the rules.
    pub(crate) fn receive(&mut self) -> Result<(), Corrupt> {
        loop {
            let Received { message, descriptors } = match self.link.receive() {
                Ok(Some(received)) => received,
                Ok(None) => return Ok(()),
                Err(error) => {
                    return match lost("recvmsg", error) {
                        LinkError::Corrupt(corrupt) => Err(corrupt),
                        error => {
                            self.ended(&error);
                            Ok(())
                        }
                    };
                }
            };
            match Message::decode(&message) {
                Some(Message::Lane { slots }) if self.lane.is_none() && slots <= MOST_SLOTS as u64 => {
                    const WRONG: Corrupt = Corrupt("the memory of its lane");
                    let [segment] = exactly(descriptors)?;
                    let count = lane::lines(slots as usize);
                    let segment = Arc::new(Segment::attach(segment, count * LINE).map_err(|_| WRONG)?);
                    let lane = Lines::of(&segment, count).and_then(|lines| LaneReceiver::new(&lines));
                    self.lane = Some(lane.ok_or(WRONG)?);
                }
                Some(Message::Bulk { buffers }) if self.bulk.is_none() && buffers <= MAX_BUFFERS as u64 => {
                    const WRONG: Corrupt = Corrupt("the memory of its buffers");
                    let [segment] = exactly(descriptors)?;
                    let count = buffers as usize;
                    let segment = Arc::new(Segment::attach(segment, bulk::size(count)).map_err(|_| WRONG)?);
                    self.bulk = Some(Rc::new(BulkReceiver::new(&segment, count).ok_or(WRONG)?));
                }
                _ => return Err(Corrupt("a message over the socket")),
            }
        }
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

    /// The numbers of those that ended.
    pub(crate) fn ended(&self) -> Vec<u16> {
        let numbered = self.places.iter().zip(1..);
        numbered
            .filter(|(place, _)| place.as_ref().is_some_and(|sender| sender.is_ended))
            .map(|(_, number)| number)
            .collect()
    }
}
