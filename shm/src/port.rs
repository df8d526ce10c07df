//! The receiving end: memory that senders write to, and the socket where they come in.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use crate::address::{PortAddress, PortConfig};
use crate::bulk::BulkReceiver;
use crate::control::{Message, Refusal};
use crate::error::{Corrupt, PortError};
use crate::fifo::{self, FifoReceiver, Head};
use crate::hot::Hot;
use crate::lane::{INLINE, Label, MESSAGE_WORDS, read_message};
use crate::line::{LINE, Lines};
use crate::link::{Listener, Received};
use crate::peer::{BULK_READY, IN_BUFFER, LANE_READY, LAST_IN_BUFFER, MAX_IDS, Peer, lost};
use crate::region::Shelf;
use crate::segment::Segment;
use crate::senders::{Sender, Senders};
use crate::wake::{self, Bell, Event};

/// The most slots of a FIFO or a lane.
pub(crate) const MOST_SLOTS: usize = 1 << 16;
/// Messages that one turn takes from one sender.
const BATCH: usize = 16;
/// A sender may leave a slot claimed for so long before the others go on without it.
const GRACE: Duration = Duration::from_millis(5);
/// What an epoll event is about: the listener, a sender by its number, a peer by what its user calls it.
const LISTENER: u64 = 0;
const SENDER: u64 = 1 << 32;
const PEER: u64 = 1 << 33;
/// Events of the sockets that are looked at in one go.
const EVENTS: usize = 64;

/// Bytes of the memory that a port with so many slots shares with all senders: the bell's line and the FIFO.
pub(crate) const fn inbox_size(slots: usize) -> usize {
    (1 + fifo::lines(slots)) * LINE
}

/// Its parts.
pub(crate) fn inbox(segment: &Arc<Segment>, slots: usize) -> Option<(Bell, Lines)> {
    let all = Lines::of(segment, 1 + fifo::lines(slots))?;
    Some((Bell::new(all.part(0, 1)?), all.part(1, fifo::lines(slots))?))
}

/// What a port's owner does with what comes.
pub trait Deliver {
    /// Where header and payload of the next short message are copied to.
    fn scratch(&mut self) -> &mut [u64; MESSAGE_WORDS];

    /// More messages can be delivered in this turn.
    fn goes_on(&self) -> bool;

    /// A message to `id` with `length` bytes of payload is in the scratch.
    fn short(&mut self, id: u8, length: usize);

    /// A message to `id` of `length` bytes is at `data`, in buffer `number`. Its sender does not write there before the buffer is given back.
    fn buffered(&mut self, id: u8, buffers: &Rc<BulkReceiver>, number: u8, data: NonNull<u8>, length: usize);

    /// A sender broke the rules and was given up; `process` is its number, 0 if it is not known who it was.
    fn broken(&mut self, process: i32, why: Corrupt);

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

    /// Makes the next look at the port find something.
    pub fn call_attention(&self) {
        self.hot.call_attention();
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
    event: Event,
    inbox: Arc<Segment>,
    shelf: Shelf,
    epoll: Rc<OwnedFd>,
    listener: Listener,
    address: PortAddress,
    config: PortConfig,
}

impl Port {
    /// Opens a port; `address` is what peers will find it by. Who attaches is told of the regions on `shelf`.
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
        let event = Event::new().map_err(system("eventfd"))?;
        let listener = Listener::bind(address.number, config.directory.as_deref()).map_err(system("bind"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| system("epoll_create")(errno.into()))?;
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, data, epoll::EventFlags::IN)
            .map_err(|errno| system("epoll_ctl")(errno.into()))?;
        let mut port = Self {
            hot: Rc::new(Hot::new()),
            source: Source::Fifo,
            fifo,
            senders: Senders::default(),
            lanes: Vec::new(),
            claimed: None,
            bell,
            event,
            inbox,
            shelf: shelf.clone(),
            epoll: Rc::new(epoll),
            listener,
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
        Watcher { epoll: Rc::clone(&self.epoll), hot: Rc::clone(&self.hot) }
    }

    /// Bytes of memory that this port shares with all its senders, whatever their number.
    pub fn footprint(&self) -> usize {
        self.inbox.size()
    }

    /// Nothing is there to be done, as far as a look at one place tells. Every few looks it says no, for the rest.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.hot.is_idle()
    }

    /// To be called before a [`Self::turn`] that follows on no [`Self::is_idle`].
    pub fn count(&self) {
        self.hot.count();
    }

    /// Takes messages, and looks after connections, after [`Self::is_idle`] said no. Answers how many messages there were.
    pub fn turn(&mut self, deliver: &mut impl Deliver) -> usize {
        let scan = self.hot.is_scan_due();
        let mut taken = match self.source {
            Source::Fifo => self.take_from_fifo(deliver),
            Source::Lane(number) => self.take_from_lane(number, deliver),
        };
        if scan {
            taken += self.scan(deliver);
        }
        taken
    }

    /// Points the look of [`Self::is_idle`] at where the next message of the present source will be.
    fn point(&mut self) {
        self.hot.set_alone(self.lanes.is_empty());
        let lane = match self.source {
            Source::Fifo => None,
            Source::Lane(number) => self.senders.get(number).and_then(|sender| sender.lane.as_ref()),
        };
        if let Some(lane) = lane {
            self.hot.point(lane.next(), lane.lines());
        } else {
            self.source = Source::Fifo;
            self.hot.point(self.fifo.next(), self.fifo.lines());
        }
    }

    #[inline(always)]
    fn take_from_lane(&mut self, number: u16, deliver: &mut impl Deliver) -> usize {
        let mut taken = 0;
        loop {
            let Some(lane) = self.senders.lane_mut(number) else { return taken };
            // The rarer labels end the loop over the messages that lie in their slots.
            let other = loop {
                let Some((label, line)) = lane.peek() else { return taken };
                if label.tag >= MAX_IDS || usize::from(label.length) > INLINE {
                    break label;
                }
                read_message(line, label.length, deliver.scratch());
                lane.advance();
                self.hot.advance(lane.next());
                deliver.short(label.tag, label.length.into());
                taken += 1;
                if taken == BATCH || !deliver.goes_on() {
                    return taken;
                }
            };
            if !self.take_other(number, other, deliver) {
                return taken;
            }
            taken += 1;
            if taken >= BATCH || !deliver.goes_on() {
                return taken;
            }
        }
    }

    /// Takes a message that is in a buffer, or no message but a word of the sender about itself. False if the sender was given up.
    #[inline(never)]
    fn take_other(&mut self, number: u16, label: Label, deliver: &mut impl Deliver) -> bool {
        let Some(sender) = self.senders.get_mut(number) else { return false };
        let Some(lane) = &mut sender.lane else { return false };
        let Some((_, line)) = lane.peek() else { return false };
        let header = line.load(1);
        lane.advance();
        self.hot.advance(lane.next());
        let done = match (label.tag, &sender.bulk) {
            (IN_BUFFER..=LAST_IN_BUFFER, Some(bulk)) => bulk.take(header).map(|data| {
                let bulk = Rc::clone(bulk);
                let length = usize::from(label.length).min(crate::bulk::BUFFER);
                deliver.buffered(label.tag - IN_BUFFER, &bulk, header as u8, data, length);
            }),
            (BULK_READY, _) => sender.receive().and_then(|()| {
                if sender.bulk.is_some() { Ok(()) } else { Err(Corrupt("that its buffers came")) }
            }),
            _ => Err(Corrupt("what its message is")),
        };
        if let Err(corrupt) = done {
            self.give_up(number, corrupt, deliver);
        }
        done.is_ok()
    }

    /// Ends the connection of a sender that broke the rules.
    #[cold]
    fn give_up(&mut self, number: u16, why: Corrupt, deliver: &mut impl Deliver) {
        let process = match self.senders.remove(number) {
            Some(sender) => {
                sender.refuse(Refusal::Corrupt);
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
        while taken < BATCH {
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
                    } else if let Err(corrupt) = self.take_lane(number, label) {
                        self.give_up(number, corrupt, deliver);
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
                    self.give_up(0, Corrupt("a slot of the FIFO"), deliver);
                }
            }
            self.claimed = None;
            taken += 1;
            if !deliver.goes_on() {
                break;
            }
        }
        if self.source == Source::Fifo {
            self.point();
        }
        taken
    }

    /// The sender says that it has a lane, which came over its socket before.
    fn take_lane(&mut self, number: u16, label: Label) -> Result<(), Corrupt> {
        let Some(sender) = self.senders.get_mut(number).filter(|_| label.tag == LANE_READY) else {
            return Err(Corrupt("what its message is"));
        };
        sender.receive()?;
        if sender.lane.is_none() || self.lanes.contains(&number) {
            return Err(Corrupt("that its lane came"));
        }
        self.lanes.push(number);
        Ok(())
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

    /// Looks at every place, and from time to time at the sockets.
    #[cold]
    #[inline(never)]
    fn scan(&mut self, deliver: &mut impl Deliver) -> usize {
        let mut taken = 0;
        if self.source != Source::Fifo {
            taken += self.take_from_fifo(deliver);
        }
        let mut at = 0;
        while let Some(&number) = self.lanes.get(at) {
            at += 1;
            if self.source == Source::Lane(number) {
                continue;
            }
            let lane = self.senders.get(number).and_then(|sender| sender.lane.as_ref());
            if lane.is_some_and(|lane| lane.peek().is_some()) {
                self.source = Source::Lane(number);
                self.point();
                taken += self.take_from_lane(number, deliver);
            }
        }
        if self.hot.is_look_due() {
            self.look(deliver);
        }
        self.point();
        taken
    }

    /// Looks at the sockets: who comes, who goes, and what they hand over.
    #[cold]
    pub fn look(&mut self, deliver: &mut impl Deliver) {
        let mut events = Vec::with_capacity(EVENTS);
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        // Interrupted or refused, there is nothing to be seen; the next look will.
        let _ = epoll::wait(&*self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&now));
        for event in &events {
            match event.data.u64() {
                LISTENER => self.accept(),
                data if data & PEER != 0 => deliver.peer(data as u32),
                data => self.hear(data as u16, deliver),
            }
        }
        self.shelf.catch_up();
        self.bury();
    }

    fn accept(&mut self) {
        // An error of accept is one of who comes, or passes: out of descriptors, for example.
        while let Ok(Some(link)) = self.listener.accept() {
            let Ok(who) = link.credentials() else { continue };
            let sender = Sender::new(link, who.process);
            let refusal = if self.config.users.allow(who.user) { Refusal::Full } else { Refusal::User };
            if refusal == Refusal::User {
                sender.refuse(refusal);
                continue;
            }
            let Some((number, sender)) = self.senders.add(sender) else { continue };
            let data = epoll::EventData::new_u64(SENDER | u64::from(number));
            if epoll::add(&*self.epoll, sender, data, epoll::EventFlags::IN).is_err() {
                self.senders.remove(number);
            }
        }
    }

    /// Something came over a sender's socket, or it ended.
    fn hear(&mut self, number: u16, deliver: &mut impl Deliver) {
        let Some(sender) = self.senders.get_mut(number) else { return };
        let heard = if sender.greeted {
            sender.receive()
        } else {
            match sender.link.receive() {
                Ok(Some(Received { message, .. })) => self.greet(number, &message),
                Ok(None) => Ok(()),
                Err(error) => {
                    sender.ended(&lost("recvmsg", error));
                    Ok(())
                }
            }
        };
        if let Err(corrupt) = heard {
            self.give_up(number, corrupt, deliver);
        }
    }

    fn greet(&mut self, number: u16, message: &[u8; crate::link::MESSAGE]) -> Result<(), Corrupt> {
        let Some(sender) = self.senders.get_mut(number) else { return Ok(()) };
        let Some(Message::Hello { secret_low, secret_high }) = Message::decode(message) else {
            return Err(Corrupt("its greeting"));
        };
        let secret = u128::from(secret_high) << 64 | u128::from(secret_low);
        if secret != self.address.secret {
            sender.refuse(Refusal::Secret);
            self.senders.remove(number);
            return Ok(());
        }
        let slots = self.config.fifo_slots as u64;
        let welcome = Message::Welcome { number: number.into(), slots, shelf: self.shelf.number() };
        match sender.link.send(&welcome.encode(), &[self.inbox.as_fd(), self.event.as_fd()]) {
            Ok(true) => {
                sender.greeted = true;
                self.shelf.join(&sender.link);
            }
            // It does not read, or is gone: it can come again.
            _ => drop(self.senders.remove(number)),
        }
        Ok(())
    }

    /// Forgets senders that ended, once what they sent was taken.
    fn bury(&mut self) {
        for number in self.senders.ended() {
            let done = self
                .senders
                .get(number)
                .and_then(|sender| sender.lane.as_ref())
                .is_none_or(|lane| lane.peek().is_none());
            // The lane may be about to be announced by the FIFO.
            let announced = self.lanes.contains(&number)
                || self.senders.get(number).is_none_or(|sender| sender.lane.is_none());
            if done && (announced || matches!(self.fifo.peek(|_| false), Head::Empty)) {
                self.senders.remove(number);
                self.lanes.retain(|lane| *lane != number);
                self.point();
            }
        }
    }

    /// The descriptor to sleep on, after [`Self::arm`]: readable when there is something to do.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Has the next message make [`Self::event_fd`] readable. False if there is something already: take it first.
    ///
    /// # Errors
    /// What membarrier(2) says, where the kernel or a filter refuses it.
    pub fn arm(&mut self) -> io::Result<bool> {
        self.watch_event()?;
        self.event.clear();
        self.bell.arm(wake::barrier)?;
        let quiet = self.is_quiet();
        if !quiet {
            self.bell.disarm();
        }
        Ok(quiet)
    }

    fn watch_event(&mut self) -> io::Result<()> {
        let data = epoll::EventData::new_u64(SENDER);
        match epoll::add(&*self.epoll, &self.event, data, epoll::EventFlags::IN) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// No message is there, in any place.
    fn is_quiet(&mut self) -> bool {
        let senders = &self.senders;
        self.fifo.peek(|number| senders.is_gone(number)) == Head::Empty
            && self.lanes.iter().all(|number| {
                senders
                    .get(*number)
                    .and_then(|sender| sender.lane.as_ref())
                    .is_none_or(|lane| lane.peek().is_none())
            })
    }
}

/// The descriptor of [`Port::event_fd`].
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
