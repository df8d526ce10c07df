//! The sending end of a connection: from this process to a [`Port`](crate::Port) of another.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

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
use crate::wake::{self, Bell};
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
/// The most bytes of all regions of a peer that are mapped at a time.
const MOST_BYTES: u64 = 1 << 46;
/// The most regions of a peer that are mapped at a time; one that is used again is asked for again.
const MOST_REGIONS: usize = 8192;
/// Regions that are asked for at a time.
const MOST_ASKED: usize = 16;
/// The most regions that are remembered as gone.
const MOST_GONE: usize = 1024;
/// How long a connection may wait for a place in the queue of the port's socket.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two tries to get one.
const PAUSE: Duration = Duration::from_millis(1);
/// Messages of the socket that are taken at a time.
const AT_ONCE: usize = 64;

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
    /// The queue of the port's socket was full: it is tried again at the first time, until the second.
    Knocking { next: Instant, until: Instant },
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

/// What is known of a region of the peer.
#[derive(Debug)]
enum Region {
    /// It was asked for, and has at least so many bytes.
    Asked(u64),
    Here(Mapped),
    Gone,
}

/// The sending end of a connection. Dropping it ends the connection; messages that were sent still arrive.
#[derive(Debug)]
pub struct Peer {
    /// Without room while there is none, so that one test tells.
    lane: LaneSender,
    bell: Bell,
    way: Way,
    fifo: Option<FifoSender>,
    by_fifo: u32,
    bulk: Option<BulkSender>,
    bulk_announced: bool,
    regions: HashMap<u64, Region>,
    asked: usize,
    gone: usize,
    /// Of all regions that are mapped.
    bytes: u64,
    shelf: u64,
    address: PortAddress,
    process: i32,
    config: PortConfig,
    error: Option<LinkError>,
    link: Link,
}

impl Peer {
    /// Connects to a port; it answers when its process next calls [`Port::turn`](crate::Port::turn), and [`tend`](Self::tend)
    /// finds the answer. Does not wait. If the queue of the port's socket is full, [`tend`](Self::tend) tries
    /// again: see [`is_connected`](Self::is_connected).
    ///
    /// # Errors
    /// [`LinkError::Nobody`], [`LinkError::User`], [`LinkError::Descriptors`], or what a system call said.
    pub fn connect(address: PortAddress, config: &PortConfig) -> Result<Self, LinkError> {
        // Where the kernel has none, receivers cannot sleep, and say so when they try.
        let _ = wake::register();
        let (link, connected) = knock(address, config)?;
        let now = Instant::now();
        let nowhere = Lines::private(lane::lines(4));
        let lane = LaneSender::new(&nowhere).ok_or(Corrupt("its own ring"))?;
        let bell = Bell::new(Lines::private(1)).ok_or(Corrupt("its own ring"))?;
        let mut peer = Self {
            lane,
            bell,
            way: Way::Knocking { next: now + PAUSE, until: now + PATIENCE },
            fifo: None,
            by_fifo: 0,
            bulk: None,
            bulk_announced: false,
            regions: HashMap::new(),
            asked: 0,
            gone: 0,
            bytes: 0,
            shelf: 0,
            address,
            process: 0,
            config: config.clone(),
            error: None,
            link,
        };
        if connected {
            peer.greet()?;
        }
        Ok(peer)
    }

    /// The socket is connected, and can be watched from now on.
    pub fn is_connected(&self) -> bool {
        !matches!(self.way, Way::Knocking { .. })
    }

    /// Tries again to connect, if it is time.
    fn knock(&mut self) -> Result<(), LinkError> {
        let Way::Knocking { next, until } = self.way else { return Ok(()) };
        let now = Instant::now();
        if now < next {
            return Ok(());
        }
        let (link, connected) = knock(self.address, &self.config)?;
        if connected {
            self.link = link;
            return self.greet();
        }
        if now > until {
            return Err(LinkError::Busy { seconds: PATIENCE.as_secs() });
        }
        self.way = Way::Knocking { next: now + PAUSE, until };
        Ok(())
    }

    /// Says who this is over a socket that was just connected, if its other end is of a user that may attach.
    fn greet(&mut self) -> Result<(), LinkError> {
        let system = |source| LinkError::System { call: "getsockopt(SO_PEERCRED)", source };
        let other = self.link.credentials().map_err(system)?;
        if !self.config.users.allow(other.user) {
            return Err(LinkError::User { peer: other.user, own: rustix::process::geteuid().as_raw() });
        }
        let secret = self.address.secret;
        let hello = Message::Hello { secret_low: secret as u64, secret_high: (secret >> 64) as u64 };
        match self.link.send(&hello.encode(), &[]).map_err(|error| lost("sendmsg", error)) {
            // It was refused already: why is there to be read.
            Ok(_) | Err(LinkError::Ended) => {}
            Err(error) => return Err(error),
        }
        self.process = other.process;
        self.way = Way::Connecting;
        Ok(())
    }

    /// The peer's process; 0 while there is no connection.
    pub fn process(&self) -> i32 {
        self.process
    }

    /// The port has answered: messages can be sent.
    pub fn is_ready(&self) -> bool {
        !matches!(self.way, Way::Connecting | Way::Knocking { .. })
    }

    /// Bytes of this connection's own memory: slots and buffers.
    pub fn footprint(&self) -> usize {
        let lane = if self.way == Way::Lane { lane::lines(self.config.lane_slots) * LINE } else { 0 };
        lane + self.bulk.as_ref().map_or(0, |_| bulk::size(self.config.buffers))
    }

    /// Takes in what the port's process said over the socket, a limited number of messages at a time. To be
    /// called when the socket is readable, and from time to time while it is not connected.
    ///
    /// # Errors
    /// [`SendError::Lost`]
    pub fn tend(&mut self) -> Result<(), SendError> {
        if self.way == Way::Lost {
            return Err(SendError::Lost);
        }
        self.knock().map_err(|error| self.lose(error))?;
        if !self.is_connected() {
            return Ok(());
        }
        for _ in 0..AT_ONCE {
            let took = match self.link.receive() {
                Ok(Some(received)) => self.take_in(received),
                Ok(None) => return Ok(()),
                Err(error) => Err(lost("recvmsg", error)),
            };
            took.map_err(|error| self.lose(error))?;
        }
        Ok(())
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
        match Message::decode(&message)? {
            Message::Welcome { number, slots, shelf } if self.way == Way::Connecting => {
                let [inbox] = exactly(descriptors)?;
                let number = u16::try_from(number).map_err(|_| Corrupt("its sender's number"))?;
                let slots = usize::try_from(slots).ok().filter(|slots| *slots <= port::MOST_SLOTS);
                let slots = slots.ok_or(Corrupt("the size of its FIFO"))?;
                let inbox = Arc::new(Segment::attach(inbox, port::inbox_size(slots))?);
                let (bell, fifo) = port::inbox(&inbox, slots).ok_or(Corrupt("the size of its FIFO"))?;
                self.bell = bell;
                self.fifo = FifoSender::new(&fifo, number);
                self.shelf = shelf;
                self.way = Way::Fifo;
            }
            Message::Refused { reason, user } => {
                return Err(match reason {
                    r if r == Refusal::User as u64 => {
                        LinkError::User { peer: user as u32, own: rustix::process::geteuid().as_raw() }
                    }
                    r if r == Refusal::Secret as u64 => LinkError::Secret,
                    r if r == Refusal::Full as u64 => LinkError::Full,
                    r if r == Refusal::Descriptors as u64 => LinkError::PeerDescriptors,
                    r if r == Refusal::Failed as u64 => LinkError::PeerMemory,
                    _ => LinkError::GivenUp,
                });
            }
            Message::Region { region, size } => {
                let [segment] = exactly(descriptors)?;
                self.map(region, size, segment)?;
            }
            Message::Gone { region } => {
                let [] = exactly(descriptors)?;
                self.forget(region);
            }
            _ => return Err(Corrupt("a message over the socket").into()),
        }
        Ok(())
    }

    /// Maps a region that was asked for.
    fn map(&mut self, region: u64, size: u64, segment: OwnedFd) -> Result<(), LinkError> {
        let Some(Region::Asked(least)) = self.regions.get(&region) else {
            return Err(Corrupt("a region that was not asked for").into());
        };
        if size < *least || size > MOST_BYTES {
            return Err(Corrupt("the size of a region").into());
        }
        if self.bytes.saturating_add(size) > MOST_BYTES || self.here() >= MOST_REGIONS {
            self.make_room();
        }
        let attach = if self.config.huge_pages { Segment::attach_huge } else { Segment::attach };
        let mapped =
            Mapped::attach(attach(segment, size as usize)?).ok_or(Corrupt("the size of a region"))?;
        self.regions.insert(region, Region::Here(mapped));
        self.asked -= 1;
        self.bytes += size;
        Ok(())
    }

    /// Regions that are mapped.
    fn here(&self) -> usize {
        self.regions.len() - self.asked - self.gone
    }

    /// Forgets every mapped region: those that are used are asked for again.
    fn make_room(&mut self) {
        self.regions.retain(|_, region| !matches!(region, Region::Here(_)));
        self.bytes = 0;
    }

    /// A region is gone, or there was none.
    fn forget(&mut self, region: u64) {
        if self.gone >= MOST_GONE {
            self.regions.retain(|_, region| !matches!(region, Region::Gone));
            self.gone = 0;
        }
        match self.regions.get_mut(&region) {
            Some(Region::Gone) | None => return,
            Some(Region::Asked(_)) => self.asked -= 1,
            Some(Region::Here(mapped)) => self.bytes -= mapped.announced(),
        }
        self.gone += 1;
        self.regions.insert(region, Region::Gone);
    }

    /// The number of the shelf whose regions the peer shares.
    pub fn shelf(&self) -> u64 {
        self.shelf
    }

    /// A region of the peer, of at least `length` bytes, mapped here. `Ok(None)` if it was freed. Asks the
    /// peer for it the first time.
    ///
    /// # Errors
    /// [`SendError::Full`] until the peer answers.
    pub fn region(&mut self, number: u64, length: u64) -> Result<Option<Mapped>, SendError> {
        if !matches!(self.regions.get(&number), Some(Region::Here(_))) {
            self.tend()?;
        }
        match self.regions.get(&number) {
            Some(Region::Here(mapped)) => return Ok(Some(mapped.clone())),
            Some(Region::Gone) => return Ok(None),
            None if self.asked < MOST_ASKED => {
                match self.link.send(&Message::Ask { region: number }.encode(), &[]) {
                    Ok(true) => {
                        self.regions.insert(number, Region::Asked(length));
                        self.asked += 1;
                    }
                    Ok(false) => {}
                    Err(error) => return Err(self.lose(lost("sendmsg", error))),
                }
            }
            // It was asked for, or others were.
            Some(Region::Asked(_)) | None => {}
        }
        Err(SendError::Full)
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
        // A socket that takes no more is readable at the other end already, and a lost one is noticed when
        // it is read.
        let _ = self.link.send(&Message::Wake {}.encode(), &[]);
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
            let message = Message::Lane { slots: slots as u64 };
            let segment = self.hand_over("barewire-lane", lane::lines(slots) * LINE, message)?;
            let Some(lane) =
                Lines::of(&segment, lane::lines(slots)).and_then(|lines| LaneSender::new(&lines))
            else {
                return Err(self.lose(Corrupt("the size of its own lane")));
            };
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

    /// Makes a segment and hands it over; its descriptor is not needed after that.
    fn hand_over(&mut self, name: &str, size: usize, message: Message) -> Result<Arc<Segment>, SendError> {
        let mut segment = Segment::create(name, size).map_err(|error| self.lose(error))?;
        match self.link.send(&message.encode(), segment.descriptor().as_slice()) {
            Ok(true) => {
                segment.keep_to_self();
                Ok(Arc::new(segment))
            }
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
            let message = Message::Bulk { buffers: count as u64 };
            let segment = self.hand_over("barewire-bulk", bulk::size(count), message)?;
            let Some(bulk) = BulkSender::new(&segment, count) else {
                return Err(self.lose(Corrupt("the number of its own buffers")));
            };
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

    /// True if a message could be sent now, also one in a buffer, and no region is asked for, as far as can
    /// be told without sending it.
    ///
    /// # Errors
    /// [`SendError::Lost`]
    pub fn has_room(&mut self) -> Result<bool, SendError> {
        match self.way {
            Way::Lane => {}
            Way::Lost => return Err(SendError::Lost),
            way => return Ok(way == Way::Fifo && self.asked == 0),
        }
        if self.asked > 0 {
            return Ok(false);
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

/// Connects a socket to the port. False with one that is not connected: the queue of the port is full.
fn knock(address: PortAddress, config: &PortConfig) -> Result<(Link, bool), LinkError> {
    Link::connect(address.number, &config.place).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => LinkError::Nobody,
        _ => lost("connect", error),
    })
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
        _ if source.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
            let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
            let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            // Without a descriptor the directory could not be read: none is free.
            LinkError::Descriptors { open: if open > 0 { open } else { limit as usize }, limit }
        }
        _ => LinkError::System { call, source },
    }
}

const _: () = assert!(fifo::lines(0) == 1 && BULK_READY < u8::MAX);
