//! The receiving end: memory that senders write to, and the socket where they come in.

mod connections;
mod door;
mod messages;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll;

use self::door::Door;
use crate::address::{PortAddress, PortConfig};
use crate::bulk::BulkReceiver;
use crate::error::{LinkError, PortError};
use crate::fifo::{self, FifoReceiver};
use crate::hot::Hot;
use crate::lane::{MESSAGE_WORDS, NOT_SHORT};
use crate::line::{LINE, Lines};
use crate::link::Listener;
use crate::peer::{MAX_IDS, Peer};
use crate::region::Shelf;
use crate::segment::Segment;
use crate::senders::Senders;
use crate::wake::{self, Bell};

/// The most slots of a FIFO or a lane.
pub(crate) const MOST_SLOTS: usize = 1 << 16;
/// What an epoll event is about: the listener, a sender by its number, a peer by what its user calls it.
const LISTENER: u64 = 0;
const SENDER: u64 = 1 << 32;
const PEER: u64 = 1 << 33;

/// Bytes of the memory that a port with so many slots shares with all senders: the bell's line and the FIFO.
pub(crate) const fn inbox_size(slots: usize) -> usize {
    (1 + fifo::lines(slots)) * LINE
}

/// Its parts.
pub(crate) fn inbox(segment: &Arc<Segment>, slots: usize) -> Option<(Bell, Lines)> {
    let all = Lines::of(segment, 1 + fifo::lines(slots))?;
    Some((Bell::new(all.part(0, 1)?)?, all.part(1, fifo::lines(slots))?))
}

/// What a port's owner does with what comes.
pub trait Deliver {
    /// Where header and payload of the next short message are copied to.
    fn scratch(&mut self) -> &mut [u64; MESSAGE_WORDS];

    /// More messages can be delivered before the next call of [`Port::progress`].
    fn goes_on(&self) -> bool;

    /// A message to `id`, below [`MAX_IDS`], with `length` bytes of payload, up to [`INLINE`](crate::INLINE), is in the scratch.
    fn short(&mut self, id: u8, length: usize);

    /// A message to `id` of `length` bytes is at `data`, in buffer `number`. Its sender does not write there before the buffer is given back.
    fn buffered(&mut self, id: u8, buffers: &Rc<BulkReceiver>, number: u8, data: NonNull<u8>, length: usize);

    /// A sender broke the rules, or this process could not take in its memory, and it was given up;
    /// `process` is its number, 0 if it is not known who it was.
    fn broken(&mut self, process: i32, why: LinkError);

    /// The socket of the [`Peer`] that was watched under this name has something.
    fn peer(&mut self, name: u32);
}

/// Where the last message came from: what is looked at in every turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Fifo,
    Lane(u16),
}

/// What an owner's other parts need of a port while it is elsewhere.
#[derive(Debug, Clone)]
pub struct Watcher {
    epoll: Rc<OwnedFd>,
    hot: Rc<Hot>,
    bell: Bell,
}

impl Watcher {
    /// Has [`Deliver::peer`] called with `name` when the peer's socket has something.
    ///
    /// # Errors
    /// What epoll_ctl(2) says.
    pub fn watch(&self, peer: &Peer, name: u32) -> io::Result<()> {
        let data = epoll::EventData::new_u64(PEER | u64::from(name));
        Ok(epoll::add(&*self.epoll, peer, data, epoll::EventFlags::IN)?)
    }

    /// Ends what [`Self::watch`] began. A lost connection stays readable, so it has to be removed for
    /// the owner to sleep again.
    pub fn unwatch(&self, peer: &Peer) {
        // Fails only if the socket is not watched.
        let _ = epoll::delete(&*self.epoll, peer);
    }

    /// Has the next [`Port::is_due`] say so.
    pub fn call_attention(&self) {
        self.hot.call_attention();
    }

    /// Has what comes next make the descriptor (of this value, and of the port) readable. False if that cannot be slept on yet: something
    /// may be there already, as [`Port::progress`] is to find out; then arm again. Costs senders nothing until it is called, and one of them a
    /// system call then. A sender that breaks the rules can keep it from ringing, for the others too: sleep for a limited time.
    ///
    /// # Errors
    /// What membarrier(2) says, where the kernel or a filter refuses it.
    pub fn arm(&self) -> io::Result<bool> {
        // Whoever wakes up looks at the sockets first.
        self.hot.call_for_sockets();
        if self.bell.is_armed() && self.hot.is_quiet() {
            return Ok(true);
        }
        self.bell.arm(wake::barrier)?;
        self.hot.set_quiet(false);
        Ok(false)
    }
}

impl Watcher {
    /// Until when a sleeper may sleep at most, if the port has something to do by itself.
    pub fn wake_by(&self) -> Option<Instant> {
        self.hot.door()
    }
}

/// Readable when there is something to be done, after [`Watcher::arm`].
impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct Port {
    hot: Rc<Hot>,
    source: Source,
    fifo: FifoReceiver,
    senders: Senders,
    /// Senders with a lane.
    lanes: Vec<u16>,
    /// The head of the FIFO is claimed since.
    claimed: Option<(u16, Instant)>,
    bell: Bell,
    inbox: Arc<Segment>,
    shelf: Shelf,
    /// Some sender asked for a region and did not get it yet.
    owing: bool,
    epoll: Rc<OwnedFd>,
    door: Door,
    address: PortAddress,
    config: PortConfig,
}

impl Port {
    /// Opens a port; `address` is what peers will find it by. Who attaches can ask for the regions on `shelf`.
    ///
    /// # Errors
    /// [`PortError`]
    pub fn open(address: PortAddress, config: &PortConfig, shelf: &Shelf) -> Result<Self, PortError> {
        check(config)?;
        let system = |call| move |source: io::Error| PortError::System { call, source };
        let inbox = Arc::new(Segment::create("barewire-inbox", inbox_size(config.fifo_slots))?);
        let parts = self::inbox(&inbox, config.fifo_slots)
            .and_then(|(bell, lines)| FifoReceiver::new(&lines).map(|fifo| (bell, fifo)));
        let Some((bell, fifo)) = parts else {
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
        let mut port = Self {
            hot: Rc::new(Hot::new()),
            source: Source::Fifo,
            fifo,
            senders: Senders::default(),
            lanes: Vec::new(),
            claimed: None,
            bell,
            inbox,
            shelf: shelf.clone(),
            owing: false,
            epoll: Rc::new(epoll),
            door: Door::new(listener),
            address,
            config: config.clone(),
        };
        port.point();
        Ok(port)
    }

    /// What peers connect to.
    pub fn address(&self) -> PortAddress {
        self.address
    }

    /// The handle for watching peers.
    pub fn watcher(&self) -> Watcher {
        Watcher { epoll: Rc::clone(&self.epoll), hot: Rc::clone(&self.hot), bell: self.bell.clone() }
    }

    /// Bytes of memory that this port shares with all its senders, whatever their number.
    pub fn footprint(&self) -> usize {
        self.inbox.size()
    }

    /// Takes the next message, and looks after everything else every few calls. Answers how many messages there were.
    #[inline]
    pub fn progress(&mut self, deliver: &mut impl Deliver) -> usize {
        if self.is_due() { self.turn(deliver) } else { self.take(deliver) }
    }

    /// Counts a call. True if it is [`Self::turn`] that is to be called now; [`Self::take`] otherwise.
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        self.hot.is_due()
    }

    /// Takes the next message from where the last one came from. Answers how many there were: more than one of those that are no short messages
    /// of a lane.
    #[inline(always)]
    pub fn take(&mut self, deliver: &mut impl Deliver) -> usize {
        let hot = &*self.hot;
        let Some(label) = hot.peek() else { return 0 };
        if label & NOT_SHORT != 0 {
            return self.take_others(deliver);
        }
        let length = hot.read((label >> 8) as usize, deliver.scratch());
        let id = label as u8 % MAX_IDS;
        if hot.advance() {
            return self.take_last(deliver, id, length);
        }
        deliver.short(id, length);
        1
    }
}

/// The descriptor of [`Watcher::arm`].
impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

const POWER: &str = "a power of two from 4 to 65536";

fn check(config: &PortConfig) -> Result<(), PortError> {
    for (setting, value) in [("fifo_slots", config.fifo_slots), ("lane_slots", config.lane_slots)] {
        if !(4..=MOST_SLOTS).contains(&value) || !value.is_power_of_two() {
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
