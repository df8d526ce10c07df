//! The sending end of a connection: from this process to a [`Port`](crate::Port) of another.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::address::{PortAddress, PortConfig};
use crate::bulk::{self, BulkSender};
use crate::control::{Message, Refusal};
use crate::error::{Corrupt, LinkError, SendError};
use crate::fifo::FifoSender;
use crate::lane::{self, Label, LaneSender};
use crate::line::{LINE, Lines};
use crate::link::{Link, Received};
use crate::region::Mapped;
use crate::segment::Segment;
use crate::wake::{self, Bell, Event};
use crate::{fifo, port};

/// Ids of messages are below this.
pub const MAX_IDS: u8 = 32;
/// Tags from here on: the message is in a buffer, its number in the header's place.
pub(crate) const IN_BUFFER: u8 = MAX_IDS;
pub(crate) const LAST_IN_BUFFER: u8 = IN_BUFFER + MAX_IDS - 1;
/// The sender's lane came over the link, and what it sends from now on goes there.
pub(crate) const LANE_READY: u8 = 2 * MAX_IDS;
/// The sender's buffers came over the link.
pub(crate) const BULK_READY: u8 = 2 * MAX_IDS + 1;
/// A region that another process announces may have as many bytes.
const MOST: u64 = 1 << 46;

/// What became of [`Peer::send_now`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Now {
    /// It was sent.
    Sent,
    /// It was sent, and the receiver sleeps.
    Wake,
    /// Nothing was done.
    Otherwise,
}

/// How far the way to the port is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The port did not answer yet.
    Connecting,
    /// Messages go by the FIFO.
    Fifo,
    /// The lane was handed over, and the FIFO had no room to say so.
    Announcing,
    /// Messages go by the lane.
    Lane,
    /// Messages do not go any more.
    Lost,
}

/// The sending end of a connection. Dropping it ends the connection; messages that were sent still arrive.
#[derive(Debug)]
pub struct Peer {
    /// Without room while there is none, so that one test tells.
    lane: LaneSender,
    bell: Bell,
    event: Option<Event>,
    way: Way,
    fifo: Option<FifoSender>,
    by_fifo: u32,
    bulk: Option<BulkSender>,
    bulk_announced: bool,
    regions: HashMap<u64, Mapped>,
    /// Regions below this were told of.
    next_region: u64,
    shelf: u64,
    process: i32,
    config: PortConfig,
    error: Option<LinkError>,
    link: Link,
}

impl Peer {
    /// Connects to a port; it answers when its process next calls [`Port::turn`](crate::Port::turn), and [`tend`](Self::tend)
    /// finds the answer. Does not wait.
    ///
    /// # Errors
    /// [`LinkError::Nobody`], [`LinkError::Busy`], [`LinkError::User`], or what a system call said.
    pub fn connect(address: PortAddress, config: &PortConfig) -> Result<Self, LinkError> {
        let system = |call| move |source| LinkError::System { call, source };
        let link = Link::connect(address.number, config.directory.as_deref()).map_err(|error| match error
            .kind()
        {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => LinkError::Nobody,
            io::ErrorKind::WouldBlock => LinkError::Busy,
            _ => system("connect")(error),
        })?;
        let other = link.credentials().map_err(system("getsockopt(SO_PEERCRED)"))?;
        if !config.users.allow(other.user) {
            return Err(LinkError::User { peer: other.user, own: rustix::process::geteuid().as_raw() });
        }
        // Where the kernel has none, receivers cannot sleep, and say so when they try.
        let _ = wake::register();
        let hello =
            Message::Hello { secret_low: address.secret as u64, secret_high: (address.secret >> 64) as u64 };
        match link.send(&hello.encode(), &[]).map_err(|error| lost("sendmsg", error)) {
            // It was refused already: why is there to be read.
            Ok(_) | Err(LinkError::Ended) => {}
            Err(error) => return Err(error),
        }
        let nowhere = Lines::private(lane::lines(4));
        let lane = LaneSender::new(&nowhere).ok_or(Corrupt("its own ring"))?;
        let bell = Bell::new(Lines::private(1)).ok_or(Corrupt("its own ring"))?;
        Ok(Self {
            lane,
            bell,
            event: None,
            way: Way::Connecting,
            fifo: None,
            by_fifo: 0,
            bulk: None,
            bulk_announced: false,
            regions: HashMap::new(),
            next_region: 0,
            shelf: 0,
            process: other.process,
            config: config.clone(),
            error: None,
            link,
        })
    }

    /// The peer's process.
    pub fn process(&self) -> i32 {
        self.process
    }

    /// The port has answered: messages can be sent.
    pub fn is_ready(&self) -> bool {
        self.way != Way::Connecting
    }

    /// Bytes of this connection's own memory: slots and buffers.
    pub fn footprint(&self) -> usize {
        let lane = if self.way == Way::Lane { lane::lines(self.config.lane_slots) * LINE } else { 0 };
        lane + self.bulk.as_ref().map_or(0, |_| bulk::size(self.config.buffers))
    }

    /// Takes in what the port's process said over the socket. To be called when the socket is readable, and when a region is missing.
    ///
    /// # Errors
    /// [`SendError::Lost`]
    pub fn tend(&mut self) -> Result<(), SendError> {
        loop {
            let took = match self.link.receive() {
                Ok(Some(received)) => self.take_in(received),
                Ok(None) => return Ok(()),
                Err(error) => Err(lost("recvmsg", error)),
            };
            took.map_err(|error| self.lose(error))?;
        }
    }

    /// Why the connection is lost, if it is.
    pub fn error(&self) -> Option<&LinkError> {
        self.error.as_ref()
    }

    /// Nothing is sent any more.
    #[cold]
    fn lose(&mut self, error: impl Into<LinkError>) -> SendError {
        self.error.get_or_insert(error.into());
        self.lane.shut();
        self.way = Way::Lost;
        SendError::Lost
    }

    fn take_in(&mut self, received: Received) -> Result<(), LinkError> {
        let Received { message, descriptors } = received;
        match Message::decode(&message) {
            Some(Message::Welcome { number, slots, shelf }) if self.way == Way::Connecting => {
                let [inbox, event] = exactly(descriptors)?;
                let number = u16::try_from(number).map_err(|_| Corrupt("its sender's number"))?;
                let slots = usize::try_from(slots).ok().filter(|slots| *slots <= port::MOST_SLOTS);
                let slots = slots.ok_or(Corrupt("the size of its FIFO"))?;
                let inbox = Arc::new(Segment::attach(inbox, port::inbox_size(slots))?);
                let (bell, fifo) = port::inbox(&inbox, slots).ok_or(Corrupt("the size of its FIFO"))?;
                self.bell = bell;
                self.fifo = FifoSender::new(&fifo, number);
                self.event = Some(Event::from(event));
                self.shelf = shelf;
                self.way = Way::Fifo;
            }
            Some(Message::Refused { reason, user }) => {
                return Err(match reason {
                    r if r == Refusal::User as u64 => {
                        LinkError::User { peer: user as u32, own: rustix::process::geteuid().as_raw() }
                    }
                    r if r == Refusal::Secret as u64 => LinkError::Secret,
                    r if r == Refusal::Full as u64 => LinkError::Full,
                    _ => LinkError::GivenUp,
                });
            }
            Some(Message::Region { region, size }) if size <= MOST => {
                let [segment] = exactly(descriptors)?;
                let segment = Segment::attach(segment, size as usize)?;
                let mapped = Mapped::attach(segment).ok_or(Corrupt("the size of a region"))?;
                self.regions.insert(region, mapped);
                self.next_region = region.saturating_add(1);
            }
            Some(Message::Gone { region }) => {
                self.regions.remove(&region);
            }
            _ => return Err(Corrupt("a message over the socket").into()),
        }
        Ok(())
    }

    /// The number of the shelf whose regions the peer shares.
    pub fn shelf(&self) -> u64 {
        self.shelf
    }

    /// A region of the peer, mapped here. `Ok(None)` if it was freed.
    ///
    /// # Errors
    /// [`SendError::Full`] if the peer has not told of it yet.
    pub fn region(&mut self, number: u64) -> Result<Option<Mapped>, SendError> {
        if !self.regions.contains_key(&number) {
            self.tend()?;
        }
        match self.regions.get(&number) {
            Some(mapped) => Ok(Some(mapped.clone())),
            None if number < self.next_region => Ok(None),
            None => Err(SendError::Full),
        }
    }

    /// Sends a message of at most [`INLINE`](crate::INLINE) bytes of payload to `id`, which is below [`MAX_IDS`].
    ///
    /// # Errors
    /// [`SendError`]
    #[inline(always)]
    pub fn send(&mut self, id: u8, header: u64, payload: &[u8]) -> Result<(), SendError> {
        debug_assert!(id < MAX_IDS && payload.len() <= lane::INLINE);
        self.post(Label { tag: id, length: payload.len() as u16 }, header, payload)
    }

    /// As [`Self::send`] with a payload of eight bytes, if nothing is to be done but that: there is a lane, and room in it. After [`Now::Wake`],
    /// [`Self::wake`] is to be called.
    #[inline(always)]
    pub fn send_now(&mut self, id: u8, header: u64, word: u64) -> Now {
        debug_assert!(id < MAX_IDS);
        if !self.lane.send(Label { tag: id, length: size_of::<u64>() as u16 }, header, &word.to_ne_bytes()) {
            Now::Otherwise
        } else if self.bell.must_ring() {
            Now::Wake
        } else {
            Now::Sent
        }
    }

    /// Wakes the receiver.
    #[cold]
    #[inline(never)]
    pub fn wake(&self) {
        if let Some(event) = &self.event {
            event.ring();
        }
    }

    #[inline(always)]
    fn post(&mut self, label: Label, header: u64, payload: &[u8]) -> Result<(), SendError> {
        if self.lane.send(label, header, payload) {
            self.ring();
            return Ok(());
        }
        self.post_otherwise(label, header, payload)
    }

    #[inline(always)]
    fn ring(&self) {
        if self.bell.must_ring() {
            self.wake();
        }
    }

    #[cold]
    #[inline(never)]
    fn post_otherwise(&mut self, label: Label, header: u64, payload: &[u8]) -> Result<(), SendError> {
        if self.way == Way::Fifo && self.by_fifo < self.config.lane_after {
            self.post_by_fifo(label, header, payload)?;
            self.by_fifo += 1;
            return Ok(());
        }
        self.open_lane()?;
        let room = self.lane.renew().map_err(|error| self.lose(error))?;
        if !room || !self.lane.send(label, header, payload) {
            return Err(SendError::Full);
        }
        self.ring();
        Ok(())
    }

    fn post_by_fifo(&mut self, label: Label, header: u64, payload: &[u8]) -> Result<(), SendError> {
        let fifo = self.fifo.as_mut().ok_or(SendError::Full)?;
        if !fifo.send(label, header, payload) {
            return Err(SendError::Full);
        }
        self.ring();
        Ok(())
    }

    /// Sees to it that there is a lane, of which the receiver knows by the FIFO, so that nothing overtakes.
    fn open_lane(&mut self) -> Result<(), SendError> {
        if self.way == Way::Fifo {
            let slots = self.config.lane_slots;
            let segment = self.segment("barewire-lane", lane::lines(slots) * LINE)?;
            let Some(lane) =
                Lines::of(&segment, lane::lines(slots)).and_then(|lines| LaneSender::new(&lines))
            else {
                return Err(self.lose(Corrupt("the size of its own lane")));
            };
            self.hand_over(Message::Lane { slots: slots as u64 }, segment.as_fd())?;
            self.lane = lane;
            self.way = Way::Announcing;
        }
        if self.way == Way::Announcing {
            self.post_by_fifo(Label { tag: LANE_READY, length: 0 }, 0, &[])?;
            self.way = Way::Lane;
        }
        match self.way {
            Way::Lane => Ok(()),
            Way::Lost => Err(SendError::Lost),
            _ => Err(SendError::Full),
        }
    }

    fn segment(&mut self, name: &str, size: usize) -> Result<Arc<Segment>, SendError> {
        Segment::create(name, size).map(Arc::new).map_err(|error| self.lose(error))
    }

    fn hand_over(&mut self, message: Message, descriptor: BorrowedFd<'_>) -> Result<(), SendError> {
        match self.link.send(&message.encode(), &[descriptor]) {
            Ok(true) => Ok(()),
            Ok(false) => Err(SendError::Full),
            Err(error) => Err(self.lose(lost("sendmsg", error))),
        }
    }

    /// Takes a buffer of [`BUFFER`](crate::BUFFER) bytes, to be filled at [`buffer`](Self::buffer) and sent or put back.
    ///
    /// # Errors
    /// [`SendError`]
    #[inline]
    pub fn take_buffer(&mut self) -> Result<u8, SendError> {
        if !self.bulk_announced {
            self.open_bulk()?;
        }
        let Some(bulk) = &mut self.bulk else { return Err(SendError::Full) };
        match bulk.take() {
            Ok(number) => number.ok_or(SendError::Full),
            Err(error) => Err(self.lose(error)),
        }
    }

    #[cold]
    fn open_bulk(&mut self) -> Result<(), SendError> {
        self.open_lane()?;
        if self.bulk.is_none() {
            let count = self.config.buffers;
            let segment = self.segment("barewire-bulk", bulk::size(count))?;
            let Some(bulk) = BulkSender::new(&segment, count) else {
                return Err(self.lose(Corrupt("the number of its own buffers")));
            };
            self.hand_over(Message::Bulk { buffers: count as u64 }, segment.as_fd())?;
            self.bulk = Some(bulk);
        }
        self.post(Label { tag: BULK_READY, length: 0 }, 0, &[])?;
        self.bulk_announced = true;
        Ok(())
    }

    /// The first byte of a buffer that was taken. The other process writes there after it was sent, not before.
    ///
    /// # Panics
    /// If `number` did not come from [`take_buffer`](Self::take_buffer).
    pub fn buffer(&self, number: u8) -> NonNull<u8> {
        let bulk = self.bulk.as_ref().expect("a buffer was taken");
        bulk.buffer(number)
    }

    /// Sends the first `length` bytes of a buffer to `id`. On an error the buffer is still taken.
    ///
    /// # Errors
    /// [`SendError`]
    #[inline]
    pub fn send_buffer(&mut self, id: u8, number: u8, length: u16) -> Result<(), SendError> {
        self.post(Label { tag: IN_BUFFER + id, length }, number.into(), &[])?;
        if let Some(bulk) = &mut self.bulk {
            bulk.sent(number);
        }
        Ok(())
    }

    /// Puts a buffer back that was taken and not sent.
    pub fn put_back(&mut self, number: u8) {
        if let Some(bulk) = &mut self.bulk {
            bulk.put_back(number);
        }
    }

    /// True if a message could be sent now, also one in a buffer, as far as can be told without sending it.
    ///
    /// # Errors
    /// [`SendError::Lost`]
    pub fn has_room(&mut self) -> Result<bool, SendError> {
        match self.way {
            Way::Lane => {}
            Way::Lost => return Err(SendError::Lost),
            way => return Ok(way == Way::Fifo),
        }
        let buffer = self.bulk.as_mut().map_or(Ok(true), BulkSender::has_buffer);
        let room = buffer.and_then(|buffer| Ok(self.lane.renew()? && buffer));
        room.map_err(|error| self.lose(error))
    }
}

#[cfg(all(test, not(loom)))]
impl Peer {
    /// Writes a word somewhere into the lane; now and then one that looks like a message.
    pub(crate) fn scribble(&mut self, number: u64, step: u64) {
        self.lane.scribble(number, step);
    }

    /// Takes what the next message would ring, and does not ring.
    pub(crate) fn silence(&mut self) {
        let _ = self.bell.must_ring();
    }

    /// Writes a word somewhere into the FIFO.
    pub(crate) fn scribble_fifo(&mut self, number: u64, step: u64) {
        if let Some(fifo) = &mut self.fifo {
            fifo.scribble(number, step);
        }
    }
}

/// The socket, readable when there is something for [`Peer::tend`].
impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// The descriptors that a message must come with, and no others.
pub(crate) fn exactly<const N: usize>(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; N], Corrupt> {
    descriptors.try_into().map_err(|_| Corrupt("the descriptors of a message"))
}

/// What an error of the socket means.
pub(crate) fn lost(call: &'static str, source: io::Error) -> LinkError {
    match source.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            LinkError::Ended
        }
        io::ErrorKind::InvalidData => Corrupt("a message over the socket").into(),
        _ => LinkError::System { call, source },
    }
}

const _: () = assert!(fifo::lines(0) == 1 && BULK_READY < u8::MAX);
