//! The receiving end: the memory that senders write to, and the socket to which they connect.

mod acceptor;
mod connections;
mod messages;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll;

use self::acceptor::Acceptor;
use crate::address::{PortAddress, PortConfig};
use crate::bulk::BulkReceiver;
use crate::entrance::Entrance;
use crate::error::{LinkError, PortError};
use crate::fifo::{self, FifoReceiver};
use crate::line::{LINE, Lines};
use crate::link::Listener;
use crate::peer::{MAX_IDS, Peer};
use crate::poll::PollState;
use crate::region::RegionSet;
use crate::segment::Segment;
use crate::senders::Senders;
use crate::spsc::{MESSAGE_WORDS, NOT_SHORT};
use crate::wake::{self, WakeFlag};

/// The maximum number of slots of the FIFO or of a ring.
pub(crate) const MAX_SLOTS: usize = 1 << 16;
/// The `data` of epoll events: the listener; a sender, with its number; a peer, with its caller's
/// number.
const LISTENER: u64 = 0;
const SENDER: u64 = 1 << 32;
const PEER: u64 = 1 << 33;

/// Bytes of the inbox, the segment that a port shares with all senders: the line of the wake flag,
/// and the FIFO.
pub(crate) const fn inbox_size(slots: usize) -> usize {
    (1 + fifo::lines(slots)) * LINE
}

/// Splits an inbox into its parts.
pub(crate) fn inbox(segment: &Arc<Segment>, slots: usize) -> Option<(WakeFlag, Lines)> {
    let all = Lines::of(segment, 1 + fifo::lines(slots))?;
    Some((WakeFlag::new(all.part(0, 1)?)?, all.part(1, fifo::lines(slots))?))
}

/// The consumer of a port's messages and events.
pub trait Deliver {
    /// The buffer to which header and payload of the next short message are copied.
    fn scratch(&mut self) -> &mut [u64; MESSAGE_WORDS];

    /// Returns true if more messages may be delivered in this call of [`Port::progress`].
    fn wants_more(&self) -> bool;

    /// Returns true, once, if the source of the last message is to be held: nothing is received
    /// from it until [`Port::release`]. [`Self::wants_more`] has returned false since.
    fn takes_hold(&mut self) -> bool {
        false
    }

    /// Delivers a short message to `id` (less than [`MAX_IDS`]), with `length` bytes of payload, at
    /// most [`INLINE`](crate::INLINE). Header and payload are in [`Self::scratch`].
    fn short(&mut self, id: u8, length: usize);

    /// Delivers a message of `length` bytes to `id`. It is at `data`, in buffer `number` of
    /// `buffers`. The sender does not write there until [`BulkReceiver::give`].
    fn buffered(
        &mut self,
        id: u8,
        buffers: &Rc<BulkReceiver>,
        number: u8,
        data: NonNull<u8>,
        length: usize,
    );

    /// Reports that a connection was ended because of a protocol violation, or because this process
    /// could not map the sender's memory. `process` is the sender's process id; 0 if its PID
    /// namespace is not visible from this one, or if the sender is not known. In the last case no
    /// connection was ended.
    fn broken(&mut self, process: i32, why: LinkError);

    /// Reports that the socket of the [`Peer`] watched under number `name` is readable.
    fn peer(&mut self, name: u32);
}

/// The source of the last message. Every call polls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Fifo,
    Ring(u16),
}

/// A handle to wait for a port and its peers, usable while the port itself is borrowed.
#[derive(Debug, Clone)]
pub struct Watcher {
    epoll: Arc<OwnedFd>,
    poll: Rc<PollState>,
    wake_flag: WakeFlag,
}

impl Watcher {
    /// From now on [`Deliver::peer`] is called with `name` when the peer's socket is readable, and
    /// a message that arrives at the port prepares a response over `peer`.
    ///
    /// # Errors
    /// The error of epoll_ctl(2).
    pub fn watch(&self, peer: &mut Peer, name: u32) -> io::Result<()> {
        peer.report_slots_to(Arc::clone(self.poll.next_slot()));
        // The reply of the peer arrives soon.
        self.poll.expect_events();
        let data = epoll::EventData::new_u64(PEER | u64::from(name));
        Ok(epoll::add(&*self.epoll, &*peer, data, epoll::EventFlags::IN)?)
    }

    /// Reverts [`Self::watch`]. A closed connection stays readable, and would keep a sleeper awake.
    pub fn unwatch(&self, peer: &Peer) {
        // The only possible error is that the socket is not watched.
        let _ = epoll::delete(&*self.epoll, peer);
    }

    /// Makes the next call of [`Port::is_due`] return true.
    pub fn call_attention(&self) {
        self.poll.call_attention();
    }

    /// Makes the next progress of the port poll all sources and check the sockets, so that it
    /// notices peers whose process has ended. While senders ask for too much over their sockets,
    /// the check waits, for up to 0.3 s at a time.
    pub fn examine(&self) {
        self.poll.request_socket_check();
    }

    /// Requests that the next message make the descriptor (of this value and of the port) readable.
    /// Returns false if messages may have arrived already: call [`Port::progress`], then `arm`
    /// again. The next message after `arm` costs its sender one system call; otherwise senders pay
    /// nothing. A misbehaving sender can suppress the wake-up, also for the messages of other
    /// senders: sleep with a timeout.
    ///
    /// # Errors
    /// The error of membarrier(2), if the kernel or a seccomp filter refuses it.
    pub fn arm(&self) -> io::Result<bool> {
        // After a wake-up the sockets must be checked first.
        self.poll.request_socket_check();
        let is_armed = self.wake_flag.is_armed();
        if is_armed && self.poll.found_nothing() {
            return Ok(true);
        }
        if !is_armed {
            self.poll.expect_wake();
        }
        self.wake_flag.arm(wake::barrier)?;
        self.poll.set_found_nothing(false);
        Ok(false)
    }
}

impl Watcher {
    /// The time at which a sleeper must wake up even without an event, if the port has work then.
    pub fn wake_by(&self) -> Option<Instant> {
        self.poll.paused_until()
    }
}

/// Readable when there is work for the port, after [`Watcher::arm`].
impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct Port {
    poll: Rc<PollState>,
    source: Source,
    /// The buffers of the sender whose ring is the source.
    bulk: Option<Rc<BulkReceiver>>,
    fifo: FifoReceiver,
    senders: Senders,
    /// Numbers of the senders whose SPSC ring was announced.
    rings: Vec<u16>,
    /// The FIFO is held.
    holds_fifo: bool,
    /// Polled instead of the FIFO while that is held: without messages.
    nothing: Lines,
    /// The sender that claimed the head of the FIFO, and the time when this was noticed.
    claimed: Option<(u16, Instant)>,
    wake_flag: WakeFlag,
    inbox: Arc<Segment>,
    regions: RegionSet,
    /// Region requests are outstanding because the socket of a sender was full.
    has_requests: bool,
    epoll: Arc<OwnedFd>,
    acceptor: Acceptor,
    /// For peers in this process, if [`PortConfig::direct`] is set.
    entrance: Option<Entrance>,
    address: PortAddress,
    config: PortConfig,
}

impl Port {
    /// Opens a port at `address`. Admitted peers can request regions of `regions`.
    ///
    /// # Errors
    /// [`PortError::Setting`] if a field of `config` is out of range, [`PortError::Segment`], or
    /// [`PortError::System`].
    pub fn open(
        address: PortAddress,
        config: &PortConfig,
        regions: &RegionSet,
    ) -> Result<Self, PortError> {
        check(config)?;
        let system = |call| move |source: io::Error| PortError::System { call, source };
        let inbox = Arc::new(Segment::create("barewire-inbox", inbox_size(config.fifo_slots))?);
        let parts = self::inbox(&inbox, config.fifo_slots)
            .and_then(|(wake_flag, lines)| FifoReceiver::new(&lines).map(|fifo| (wake_flag, fifo)));
        let Some((wake_flag, fifo)) = parts else {
            return Err(PortError::Setting {
                setting: "fifo_slots",
                value: config.fifo_slots,
                possible: POWER,
            });
        };
        let listener = Listener::bind(address.number, &config.place).map_err(system("bind"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| system("epoll_create")(errno.into()))?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)
            .map_err(|errno| system("epoll_ctl")(errno.into()))?;
        let epoll = Arc::new(epoll);
        let entrance =
            config.direct.then(|| Entrance::open(address, &wake_flag, regions, &epoll)).flatten();
        let mut port = Self {
            poll: Rc::new(PollState::new()),
            source: Source::Fifo,
            bulk: None,
            fifo,
            senders: Senders::default(),
            rings: Vec::new(),
            holds_fifo: false,
            nothing: Lines::private(1),
            claimed: None,
            wake_flag,
            inbox,
            regions: regions.clone(),
            has_requests: false,
            epoll,
            acceptor: Acceptor::new(listener),
            entrance,
            address,
            config: config.clone(),
        };
        port.point();
        Ok(port)
    }

    /// The address of the port.
    pub fn address(&self) -> PortAddress {
        self.address
    }

    /// A handle to wait for the port and for peers.
    pub fn watcher(&self) -> Watcher {
        Watcher {
            epoll: Arc::clone(&self.epoll),
            poll: Rc::clone(&self.poll),
            wake_flag: self.wake_flag.clone(),
        }
    }

    /// Bytes of the memory that the port shares with all its senders.
    pub fn footprint(&self) -> usize {
        self.inbox.size()
    }

    /// Receives from the sources that are held, again.
    #[cold]
    pub fn release(&mut self) {
        self.sync_ring();
        self.holds_fifo = false;
        self.senders.release();
        self.point();
    }

    /// Receives the next message; every few calls also polls all sources and checks the sockets.
    /// Returns the number of messages.
    #[inline]
    pub fn progress(&mut self, deliver: &mut impl Deliver) -> usize {
        if self.is_due() { self.scan(deliver) } else { self.take(deliver) }
    }

    /// Counts a call. Returns true if the caller must call [`Self::scan`] now, and false if it must
    /// call [`Self::take`].
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        self.poll.is_due()
    }

    /// Receives the next message from the source of the last one. Returns the number of messages:
    /// at most one for messages of a ring, and possibly more for others.
    #[inline(always)]
    pub fn take(&mut self, deliver: &mut impl Deliver) -> usize {
        let poll = &*self.poll;
        let Some(label) = poll.peek() else { return 0 };
        // One call for both cases: with two, the compiler computes the address of `deliver` before
        // the tests.
        if label & NOT_SHORT != 0 || poll.ends_run() {
            return self.take_larger_or_last(deliver, label);
        }
        let length = poll.read((label >> 8) as usize, deliver.scratch());
        poll.step();
        // Not before, because the compiler repeats loads of `poll` that follow this store.
        poll.next_slot().request(std::ptr::from_ref(self).cast());
        deliver.short(label as u8 % MAX_IDS, length);
        1
    }
}

/// The same descriptor as that of [`Watcher`].
impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

const POWER: &str = "a power of two from 4 to 65536";

fn check(config: &PortConfig) -> Result<(), PortError> {
    for (setting, value) in [("fifo_slots", config.fifo_slots), ("ring_slots", config.ring_slots)] {
        if !(4..=MAX_SLOTS).contains(&value) || !value.is_power_of_two() {
            return Err(PortError::Setting { setting, value, possible: POWER });
        }
    }
    if !(1..=crate::bulk::MAX_BUFFERS).contains(&config.buffers) {
        return Err(PortError::Setting {
            setting: "buffers",
            value: config.buffers,
            possible: "from 1 to 64",
        });
    }
    Ok(())
}
