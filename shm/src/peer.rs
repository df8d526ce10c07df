//! The sending end of a connection, from this process to a [`Port`](crate::Port) of another.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::address::{PortAddress, PortConfig};
use crate::bulk::{self, BulkSender};
use crate::control::{Message, Refusal};
use crate::descriptor::RegionPlace;
use crate::entrance::{self, Entered};
use crate::error::{Corrupt, LinkError, SendError};
use crate::fifo::FifoSender;
use crate::line::{LINE, Lines};
use crate::link::{Link, Received};
use crate::region::{Mapped, RegionSet};
use crate::reply::NextSlot;
use crate::segment::Segment;
use crate::spsc::{self, HALF_INLINE, Label, SpscSender};
use crate::wake::{self, WakeFlag};
use crate::{fifo, port};

/// The number of message ids: ids are less than this.
pub const MAX_IDS: u8 = 32;
/// The first tag of messages in a buffer. The header of such a message is the buffer's number.
pub(crate) const IN_BUFFER: u8 = MAX_IDS;
pub(crate) const LAST_IN_BUFFER: u8 = IN_BUFFER + MAX_IDS - 1;
/// The sender's SPSC ring was sent over the link; the messages that follow are in the ring.
pub(crate) const RING_READY: u8 = 2 * MAX_IDS;
/// The sender's buffers were sent over the link.
pub(crate) const BULK_READY: u8 = 2 * MAX_IDS + 1;
/// Precedes a message that needs a whole slot of the ring.
pub(crate) const FILLER: u8 = 2 * MAX_IDS + 2;
/// The first tag of short messages in a whole slot of the ring, and the one behind the last.
pub(crate) const LONG: u8 = 3 * MAX_IDS;
pub(crate) const LONG_END: u8 = LONG + MAX_IDS;
/// The maximum number of bytes in mapped regions of a peer.
const MAX_MAPPED_BYTES: u64 = 1 << 46;
/// The maximum number of mapped regions of a peer. Beyond it all are unmapped, and requested again
/// when they are used.
const MAX_MAPPED_REGIONS: usize = 8192;
/// The maximum number of outstanding region requests.
const MAX_REQUESTS: usize = 16;
/// The maximum number of dropped regions that are remembered.
const MAX_DROPPED: usize = 1024;
/// How long to retry while the queue of the port's socket is full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// Messages of the socket that one call handles.
const MAX_PER_CALL: usize = 64;

/// The result of [`Peer::send_now`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum FastSend {
    /// The message was sent.
    Sent,
    /// The message was sent, and the receiver sleeps: call [`Peer::wake`].
    Wake,
    /// The message was not sent; use [`Peer::send`].
    NotSent,
}

/// The stages of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The queue of the port's socket was full. Connecting is retried at `next`, and fails after
    /// `until`.
    Retrying { next: Instant, until: Instant },
    /// The socket is connected; the port has not responded yet.
    Connecting,
    /// The port is in this process. The first message creates the SPSC ring.
    Direct,
    /// Messages go through the FIFO.
    Fifo,
    /// The SPSC ring was sent over the link; the FIFO had no room for the message that announces
    /// it.
    Announcing,
    /// Messages go through the SPSC ring.
    Ring,
    /// The connection has ended.
    Lost,
}

/// The state of a region of the peer.
#[derive(Debug)]
enum Region {
    /// Requested. The user needs at least this many bytes.
    Requested(u64),
    Mapped(Mapped),
    Dropped,
}

/// The sending end of a connection. Dropping it ends the connection; messages that were sent are
/// still delivered.
#[derive(Debug)]
pub struct Peer {
    /// A ring without room until the connection has its own, so that the fast path needs no extra
    /// test.
    ring: SpscSender,
    next_slot: Arc<NextSlot>,
    wake_flag: WakeFlag,
    stage: Stage,
    fifo: Option<FifoSender>,
    sent_by_fifo: u32,
    bulk: Option<BulkSender>,
    bulk_announced: bool,
    regions: HashMap<u64, Region>,
    requested: usize,
    dropped: usize,
    /// Bytes of the segments of all mapped regions.
    bytes: u64,
    region_set: u64,
    /// If the port is in this process: its regions, and its end of the link.
    own: Option<(RegionSet, Weak<Link>)>,
    address: PortAddress,
    process: i32,
    config: PortConfig,
    error: Option<LinkError>,
    link: Link,
}

impl Peer {
    /// Connects to a port without blocking. The port responds when its process next calls
    /// [`Port::scan`](crate::Port::scan), and [`tend`](Self::tend) receives the response. If the
    /// queue of the port's socket is full, [`tend`](Self::tend) tries again: see
    /// [`is_connected`](Self::is_connected). A port of this process need not respond if
    /// [`PortConfig::direct`] is set.
    ///
    /// # Errors
    /// [`LinkError::NotListening`], [`LinkError::User`], [`LinkError::Descriptors`], or
    /// [`LinkError::System`].
    pub fn connect(address: PortAddress, config: &PortConfig) -> Result<Self, LinkError> {
        // On a kernel without membarrier(2), `Watcher::arm` of the receiver reports the error.
        let _ = wake::register();
        if config.direct
            && let Some(entered) =
                entrance::enter(address).map_err(|error| socket_error("socketpair", error))?
        {
            return Self::enter(address, config, entered);
        }
        let (link, connected) = connect_socket(address, config)?;
        let now = Instant::now();
        #[expect(clippy::arithmetic_side_effects, reason = "a few seconds")]
        let stage = Stage::Retrying { next: now + RETRY_INTERVAL, until: now + CONNECT_TIMEOUT };
        let mut peer = Self::new(address, config, link, stage)?;
        if connected {
            peer.greet()?;
        }
        Ok(peer)
    }

    /// Returns true if the port is in this process and can be connected to without its progress.
    pub fn can_enter(address: PortAddress, config: &PortConfig) -> bool {
        config.direct && entrance::is_own(address)
    }

    /// Creates the peer's end of a connection to a port of this process.
    fn enter(
        address: PortAddress,
        config: &PortConfig,
        entered: Entered,
    ) -> Result<Self, LinkError> {
        let Entered { link, wake_flag, regions, port_end } = entered;
        let peer = Self::new(address, config, link, Stage::Direct)?;
        Ok(Self {
            wake_flag,
            region_set: regions.number(),
            own: Some((regions, port_end)),
            process: std::process::id() as i32,
            ..peer
        })
    }

    fn new(
        address: PortAddress,
        config: &PortConfig,
        link: Link,
        stage: Stage,
    ) -> Result<Self, LinkError> {
        let empty = Lines::private(spsc::lines(4));
        Ok(Self {
            ring: SpscSender::new(&empty).ok_or(Corrupt("a private ring"))?,
            next_slot: Arc::default(),
            wake_flag: WakeFlag::new(Lines::private(1)).ok_or(Corrupt("a private ring"))?,
            stage,
            fifo: None,
            sent_by_fifo: 0,
            bulk: None,
            bulk_announced: false,
            regions: HashMap::new(),
            requested: 0,
            dropped: 0,
            bytes: 0,
            region_set: 0,
            own: None,
            address,
            process: 0,
            config: config.clone(),
            error: None,
            link,
        })
    }

    /// Returns true if the socket is connected. It can be watched from then on.
    pub fn is_connected(&self) -> bool {
        !matches!(self.stage, Stage::Retrying { .. })
    }

    /// Tries again to connect, if the interval has passed.
    fn retry(&mut self) -> Result<(), LinkError> {
        let Stage::Retrying { next, until } = self.stage else { return Ok(()) };
        let now = Instant::now();
        if now < next {
            return Ok(());
        }
        let (link, connected) = connect_socket(self.address, &self.config)?;
        if connected {
            self.link = link;
            return self.greet();
        }
        if now > until {
            return Err(LinkError::Busy { seconds: CONNECT_TIMEOUT.as_secs() });
        }
        #[expect(clippy::arithmetic_side_effects, reason = "a few milliseconds")]
        let next = now + RETRY_INTERVAL;
        self.stage = Stage::Retrying { next, until };
        Ok(())
    }

    /// Checks the user of the other end, and sends it the secret.
    fn greet(&mut self) -> Result<(), LinkError> {
        let system = |source| LinkError::System { call: "getsockopt(SO_PEERCRED)", source };
        let other = self.link.credentials().map_err(system)?;
        if !self.config.users.allow(other.user) {
            return Err(LinkError::User {
                peer: other.user,
                own: rustix::process::geteuid().as_raw(),
            });
        }
        let secret = self.address.secret;
        let hello =
            Message::Hello { secret_low: secret as u64, secret_high: (secret >> 64) as u64 };
        match self.link.send(&hello.encode(), &[]).map_err(|error| socket_error("sendmsg", error)) {
            // The port has refused the connection already; its reason can be received.
            Ok(_) | Err(LinkError::Ended) => {}
            Err(error) => return Err(error),
        }
        self.process = other.process;
        self.stage = Stage::Connecting;
        Ok(())
    }

    /// The process id of the peer; 0 before the socket is connected, and if the peer is in a PID
    /// namespace that is not visible from this one.
    pub fn process(&self) -> i32 {
        self.process
    }

    /// Reports the slot that this end writes next to `next_slot` from now on.
    pub(crate) fn report_slots_to(&mut self, next_slot: Arc<NextSlot>) {
        self.next_slot = next_slot;
    }

    /// Returns true if the port has responded, so that messages can be sent.
    pub fn is_ready(&self) -> bool {
        !matches!(self.stage, Stage::Connecting | Stage::Retrying { .. })
    }

    /// Bytes of shared memory of this connection: its SPSC ring and its buffers.
    pub fn footprint(&self) -> usize {
        let ring =
            if self.stage == Stage::Ring { spsc::lines(self.config.ring_slots) * LINE } else { 0 };
        ring + self.bulk.as_ref().map_or(0, |_| bulk::size(self.config.buffers))
    }

    /// Handles the messages of the port over the socket, at most a fixed number per call. Call it
    /// when the socket is readable, and repeatedly until the socket is connected.
    ///
    /// # Errors
    /// [`SendError::Lost`] if the connection has ended.
    pub fn tend(&mut self) -> Result<(), SendError> {
        if self.stage == Stage::Lost {
            return Err(SendError::Lost);
        }
        self.retry().map_err(|error| self.fail(error))?;
        if !self.is_connected() {
            return Ok(());
        }
        for _ in 0..MAX_PER_CALL {
            let result = match self.link.receive() {
                Ok(Some(received)) => self.handle(received),
                Ok(None) => return Ok(()),
                Err(error) => Err(socket_error("recvmsg", error)),
            };
            result.map_err(|error| self.fail(error))?;
        }
        Ok(())
    }

    /// The reason why the connection has ended, if it has.
    pub fn error(&self) -> Option<&LinkError> {
        self.error.as_ref()
    }

    /// Ends the connection and records the reason.
    #[cold]
    fn fail(&mut self, error: impl Into<LinkError>) -> SendError {
        self.error.get_or_insert(error.into());
        self.ring.clear_room();
        self.stage = Stage::Lost;
        SendError::Lost
    }

    fn handle(&mut self, received: Received) -> Result<(), LinkError> {
        let Received { message, descriptors } = received;
        match Message::decode(&message)? {
            Message::Welcome { number, slots, region_set } if self.stage == Stage::Connecting => {
                let [inbox] = exactly(descriptors)?;
                let number = u16::try_from(number).map_err(|_| Corrupt("the sender number"))?;
                let slots = usize::try_from(slots).ok().filter(|slots| *slots <= port::MAX_SLOTS);
                let slots = slots.ok_or(Corrupt("the size of the FIFO"))?;
                let inbox = Arc::new(Segment::attach(inbox, port::inbox_size(slots))?);
                let (wake_flag, fifo) =
                    port::inbox(&inbox, slots).ok_or(Corrupt("the size of the FIFO"))?;
                self.wake_flag = wake_flag;
                self.fifo = FifoSender::new(&fifo, number);
                self.region_set = region_set;
                self.stage = Stage::Fifo;
            }
            Message::Refused { reason, user } => {
                return Err(match reason {
                    r if r == Refusal::User as u64 => LinkError::User {
                        peer: user as u32,
                        own: rustix::process::geteuid().as_raw(),
                    },
                    r if r == Refusal::Secret as u64 => LinkError::Secret,
                    r if r == Refusal::Full as u64 => LinkError::Full,
                    r if r == Refusal::Descriptors as u64 => LinkError::PeerDescriptors,
                    r if r == Refusal::Failed as u64 => LinkError::PeerMemory,
                    _ => LinkError::Rejected,
                });
            }
            Message::Region { region, size } => {
                let [segment] = exactly(descriptors)?;
                self.map(region, size, segment)?;
            }
            Message::NoRegion { region } => {
                let [] = exactly(descriptors)?;
                self.on_dropped(region);
            }
            _ => return Err(Corrupt("a message over the socket").into()),
        }
        Ok(())
    }

    /// Maps a region that was requested.
    fn map(&mut self, region: u64, size: u64, segment: OwnedFd) -> Result<(), LinkError> {
        let Some(Region::Requested(least)) = self.regions.get(&region) else {
            return Err(Corrupt("a region that was not requested").into());
        };
        if size < *least || size > MAX_MAPPED_BYTES {
            return Err(Corrupt("the size of a region").into());
        }
        let attach = if self.config.huge_pages { Segment::attach_huge } else { Segment::attach };
        let mapped = Mapped::attach(attach(segment, size as usize)?)
            .ok_or(Corrupt("the size of a region"))?;
        self.requested -= 1;
        self.add_mapped(region, mapped);
        Ok(())
    }

    /// Returns a region of this process.
    fn enter_region(&mut self, number: u64) -> Option<Mapped> {
        let (regions, port_end) = self.own.as_ref()?;
        let Some(mapped) = regions.enter(number, port_end) else {
            self.on_dropped(number);
            return None;
        };
        self.add_mapped(number, mapped.clone());
        Some(mapped)
    }

    /// Keeps a mapped region, which is not counted as requested.
    fn add_mapped(&mut self, region: u64, mapped: Mapped) {
        self.regions.remove(&region);
        let size = mapped.announced();
        if self.bytes.saturating_add(size) > MAX_MAPPED_BYTES
            || self.mapped_count() >= MAX_MAPPED_REGIONS
        {
            self.unmap_all();
        }
        self.bytes += size;
        self.regions.insert(region, Region::Mapped(mapped));
    }

    /// The number of mapped regions.
    fn mapped_count(&self) -> usize {
        self.regions.len() - self.requested - self.dropped
    }

    /// Unmaps all regions. Those that are used later are requested again.
    fn unmap_all(&mut self) {
        self.regions.retain(|_, region| !matches!(region, Region::Mapped(_)));
        self.bytes = 0;
    }

    /// Records that a region was dropped or does not exist.
    fn on_dropped(&mut self, region: u64) {
        if self.dropped >= MAX_DROPPED {
            self.regions.retain(|_, region| !matches!(region, Region::Dropped));
            self.dropped = 0;
        }
        match self.regions.get_mut(&region) {
            Some(Region::Dropped) | None => return,
            Some(Region::Requested(_)) => self.requested -= 1,
            Some(Region::Mapped(mapped)) => self.bytes -= mapped.announced(),
        }
        self.dropped += 1;
        self.regions.insert(region, Region::Dropped);
    }

    /// The number of the peer's region set.
    pub fn region_set(&self) -> u64 {
        self.region_set
    }

    /// Returns region `number` of the peer, of at least `length` bytes, mapped in this process;
    /// `Ok(None)` if the peer has dropped it. The first call requests the region from the peer.
    ///
    /// # Errors
    /// [`SendError::Full`] until the peer has responded, and [`SendError::Lost`].
    pub fn region(&mut self, number: u64, length: u64) -> Result<Option<Mapped>, SendError> {
        if !matches!(self.regions.get(&number), Some(Region::Mapped(_))) {
            self.tend()?;
        }
        match self.regions.get(&number) {
            Some(Region::Mapped(mapped)) => return Ok(Some(mapped.clone())),
            Some(Region::Dropped) => return Ok(None),
            None if self.own.is_some() => return Ok(self.enter_region(number)),
            None if self.requested < MAX_REQUESTS => {
                match self.link.send(&Message::Request { region: number }.encode(), &[]) {
                    Ok(true) => {
                        self.regions.insert(number, Region::Requested(length));
                        self.requested += 1;
                    }
                    Ok(false) => {}
                    Err(error) => return Err(self.fail(socket_error("sendmsg", error))),
                }
            }
            // The response is outstanding, or there are too many outstanding requests.
            Some(Region::Requested(_)) | None => {}
        }
        Err(SendError::Full)
    }

    /// As [`Self::region`] for the region at `place`, but maps it by its place if the kernel allows
    /// that, which needs no progress of the peer. Otherwise the region is requested.
    ///
    /// # Errors
    /// As of [`Self::region`].
    pub fn region_at(
        &mut self,
        place: &RegionPlace,
        length: u64,
    ) -> Result<Option<Mapped>, SendError> {
        let number = place.region;
        // The process ids differ if the peer is in another PID namespace.
        if self.own.is_none()
            && !self.regions.contains_key(&number)
            && i32::try_from(place.process) == Ok(self.process)
            && let Ok(mapped) = place.map(self.config.huge_pages)
            && mapped.announced() <= MAX_MAPPED_BYTES
        {
            self.add_mapped(number, mapped);
        }
        self.region(number, length)
    }

    /// Sends a message of at most [`INLINE`](crate::INLINE) bytes of payload to `id`, which must be
    /// less than [`MAX_IDS`].
    ///
    /// # Errors
    /// [`SendError::Full`] or [`SendError::Lost`]; nothing was sent.
    #[inline(always)]
    pub fn send(&mut self, id: u8, header: u64, payload: &[u8]) -> Result<(), SendError> {
        debug_assert!(id < MAX_IDS && payload.len() <= spsc::INLINE);
        self.post(Label { tag: id, length: payload.len() as u16 }, header, payload)
    }

    /// Like [`Self::send`] with a payload of one or two words, but only if the connection has an
    /// SPSC ring with room. After [`FastSend::Wake`] the caller must call [`Self::wake`].
    #[inline(always)]
    pub fn send_now<const N: usize>(&mut self, id: u8, header: u64, words: &[u8; N]) -> FastSend {
        const { assert!(N <= HALF_INLINE) };
        debug_assert!(id < MAX_IDS);
        let label = Label { tag: id, length: N as u16 };
        if !self.ring.send(label, header, words, &self.next_slot) {
            return FastSend::NotSent;
        }
        if self.wake_flag.must_wake() { FastSend::Wake } else { FastSend::Sent }
    }

    /// Wakes the receiver.
    #[cold]
    #[inline(never)]
    pub fn wake(&self) {
        // If the socket is full, the receiver has a reason to wake up already. An error is reported
        // by the next receive.
        let _ = self.link.send(&Message::Wake {}.encode(), &[]);
    }

    #[inline(always)]
    fn post(&mut self, label: Label, header: u64, payload: &[u8]) -> Result<(), SendError> {
        if self.ring.send(label, header, payload, &self.next_slot) {
            self.notify();
            return Ok(());
        }
        self.post_slow(label, header, payload)
    }

    #[inline(always)]
    fn notify(&self) {
        if self.wake_flag.must_wake() {
            self.wake();
        }
    }

    #[cold]
    #[inline(never)]
    fn post_slow(&mut self, label: Label, header: u64, payload: &[u8]) -> Result<(), SendError> {
        if self.stage == Stage::Fifo && self.sent_by_fifo < self.config.ring_after {
            self.post_to_fifo(label, header, payload)?;
            self.sent_by_fifo += 1;
            return Ok(());
        }
        self.open_ring()?;
        let room = self.ring.renew().map_err(|error| self.fail(error))?;
        if !room || !self.ring.send(label, header, payload, &self.next_slot) {
            return Err(SendError::Full);
        }
        self.notify();
        Ok(())
    }

    fn post_to_fifo(&mut self, label: Label, header: u64, payload: &[u8]) -> Result<(), SendError> {
        let fifo = self.fifo.as_mut().ok_or(SendError::Full)?;
        if !fifo.send(label, header, payload) {
            return Err(SendError::Full);
        }
        self.notify();
        Ok(())
    }

    /// Creates the SPSC ring if there is none. Announces it through the FIFO if there may be
    /// messages there, so that no message overtakes another.
    fn open_ring(&mut self) -> Result<(), SendError> {
        if matches!(self.stage, Stage::Fifo | Stage::Direct) {
            let slots = self.config.ring_slots;
            let message = Message::Ring { slots: slots as u64 };
            let segment =
                self.share_segment("barewire-ring", spsc::lines(slots) * LINE, message)?;
            let Some(ring) =
                Lines::of(&segment, spsc::lines(slots)).and_then(|lines| SpscSender::new(&lines))
            else {
                return Err(self.fail(Corrupt("the size of this process's SPSC ring")));
            };
            self.ring = ring;
            self.stage = if self.stage == Stage::Direct { Stage::Ring } else { Stage::Announcing };
        }
        if self.stage == Stage::Announcing {
            self.post_to_fifo(Label { tag: RING_READY, length: 0 }, 0, &[])?;
            self.stage = Stage::Ring;
        }
        match self.stage {
            Stage::Ring => Ok(()),
            Stage::Lost => Err(SendError::Lost),
            _ => Err(SendError::Full),
        }
    }

    /// Creates a segment and sends its descriptor, which is then closed here.
    fn share_segment(
        &mut self,
        name: &str,
        size: usize,
        message: Message,
    ) -> Result<Arc<Segment>, SendError> {
        let mut segment = Segment::create(name, size).map_err(|error| self.fail(error))?;
        match self.link.send(&message.encode(), segment.descriptor().as_slice()) {
            Ok(true) => {
                segment.close_descriptor();
                Ok(Arc::new(segment))
            }
            Ok(false) => Err(SendError::Full),
            Err(error) => Err(self.fail(socket_error("sendmsg", error))),
        }
    }

    /// Takes a buffer of [`BUFFER`](crate::BUFFER) bytes. The caller fills it at
    /// [`buffer`](Self::buffer) and sends it or puts it back.
    ///
    /// # Errors
    /// [`SendError::Full`] if no buffer is free, or [`SendError::Lost`].
    #[inline]
    pub fn take_buffer(&mut self) -> Result<u8, SendError> {
        if !self.bulk_announced {
            self.open_bulk()?;
        }
        let Some(bulk) = &mut self.bulk else { return Err(SendError::Full) };
        match bulk.take() {
            Ok(number) => number.ok_or(SendError::Full),
            Err(error) => Err(self.fail(error)),
        }
    }

    #[cold]
    fn open_bulk(&mut self) -> Result<(), SendError> {
        self.open_ring()?;
        if self.bulk.is_none() {
            let count = self.config.buffers;
            let message = Message::Bulk { buffers: count as u64 };
            let segment = self.share_segment("barewire-bulk", bulk::size(count), message)?;
            let Some(bulk) = BulkSender::new(&segment, count) else {
                return Err(self.fail(Corrupt("the number of this process's buffers")));
            };
            self.bulk = Some(bulk);
        }
        self.post(Label { tag: BULK_READY, length: 0 }, 0, &[])?;
        self.bulk_announced = true;
        Ok(())
    }

    /// The first byte of a buffer that was taken. The other process accesses the buffer only after
    /// it was sent.
    ///
    /// # Panics
    /// If `number` did not come from [`take_buffer`](Self::take_buffer).
    pub fn buffer(&self, number: u8) -> NonNull<u8> {
        let bulk = self.bulk.as_ref().expect("no buffer was taken");
        bulk.buffer(number)
    }

    /// Sends the first `length` bytes of a buffer to `id`. On an error the caller still has the
    /// buffer. If `number` did not come from [`take_buffer`](Self::take_buffer), the port ends the
    /// connection.
    ///
    /// # Errors
    /// [`SendError::Full`] or [`SendError::Lost`]; nothing was sent.
    #[inline]
    pub fn send_buffer(&mut self, id: u8, number: u8, length: u16) -> Result<(), SendError> {
        self.post(Label { tag: IN_BUFFER + id, length }, number.into(), &[])?;
        if let Some(bulk) = &mut self.bulk {
            bulk.sent(number);
        }
        Ok(())
    }

    /// Puts back a buffer that was taken and not sent. Does nothing for another number.
    pub fn put_back(&mut self, number: u8) {
        if let Some(bulk) = &mut self.bulk {
            bulk.put_back(number);
        }
    }

    /// Returns true if a message, also one in a buffer, can probably be sent now and no region
    /// request is outstanding.
    ///
    /// # Errors
    /// [`SendError::Lost`] if the connection has ended.
    pub fn has_room(&mut self) -> Result<bool, SendError> {
        match self.stage {
            Stage::Ring => {}
            Stage::Lost => return Err(SendError::Lost),
            Stage::Direct => return Ok(true),
            stage => return Ok(stage == Stage::Fifo && self.requested == 0),
        }
        if self.requested > 0 {
            return Ok(false);
        }
        let buffer = self.bulk.as_mut().map_or(Ok(true), BulkSender::has_buffer);
        let room = buffer.and_then(|buffer| Ok(self.ring.renew()? && buffer));
        room.map_err(|error| self.fail(error))
    }
}

#[cfg(all(test, not(loom)))]
impl Peer {
    /// The connection to the port.
    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// Writes a word to an arbitrary slot of the ring. Some words look like messages.
    pub(crate) fn scribble(&mut self, number: u64, step: u64) {
        self.ring.scribble(number, step);
    }

    /// Clears the wake flag without waking the receiver.
    pub(crate) fn silence(&mut self) {
        let _ = self.wake_flag.must_wake();
    }

    /// Writes a word to an arbitrary slot of the FIFO, or to its hint.
    pub(crate) fn scribble_fifo(&mut self, number: u64, step: u64) {
        if let Some(fifo) = &mut self.fifo {
            fifo.scribble(number, step);
        }
    }
}

/// The socket. It is readable when there is work for [`Peer::tend`].
impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// Connects a socket to the port. Returns false with an unconnected one if the queue of the port is
/// full.
fn connect_socket(address: PortAddress, config: &PortConfig) -> Result<(Link, bool), LinkError> {
    Link::connect(address.number, &config.place).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => LinkError::NotListening,
        _ => socket_error("connect", error),
    })
}

/// Checks that a message came with exactly `N` descriptors.
pub(crate) fn exactly<const N: usize>(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; N], Corrupt> {
    descriptors.try_into().map_err(|_| Corrupt("the descriptors of a message"))
}

/// Converts an error of the socket.
pub(crate) fn socket_error(call: &'static str, source: io::Error) -> LinkError {
    match source.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset => LinkError::Ended,
        io::ErrorKind::InvalidData => Corrupt("a message over the socket").into(),
        _ if source.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
            let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
            let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            // Reading the directory takes a descriptor. If it fails, all of them are in use.
            LinkError::Descriptors { open: if open > 0 { open } else { limit as usize }, limit }
        }
        _ => LinkError::System { call, source },
    }
}

const _: () = assert!(fifo::lines(0) == 1 && FILLER < LONG);
