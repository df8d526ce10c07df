//! A node: the interfaces of a process, and its links to other nodes.

mod allowance;
#[cfg(feature = "tokio")]
mod asynchronous;
mod blocked;
mod blocking;
mod drive;
mod event;
/// For tests with any bytes.
#[doc(hidden)]
pub mod frame;
mod handler;
mod lanes;
mod listen;
mod open;
mod rules;
mod stream;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::num::NonZeroU16;
use std::rc::Rc;
use std::time::{Duration, Instant};

use barewire::{Absent, Worker};
use barewire_tcp::Key;
use barewire_tcp::refusals::Refusals;
use barewire_tcp::share::Share;
use barewire_tcp::time::after;
use thiserror::Error;

use crate::address::{Entry, Scope, Uuid, WorkerAddress};
use crate::link::{CloseMode, Inner, Link, Options, Owner, State, responds_by_device};
use crate::plan::{Kinds, Limits, Needs, Plan};
use crate::protocol::{Config, LinkId, Links};
use crate::secret::Secret;
#[cfg(feature = "tokio")]
pub use asynchronous::AsyncNode;
use blocked::Blocked;
pub(crate) use blocking::Idle;
use drive::{Peer, Reply};
use event::Events;
use listen::Dialing;
pub use listen::{Dial, DialError, ListenError, Listener, MAX_DATA, Request};
use open::Opened;
pub use rules::Rules;
use stream::{Name, Streams};

/// The handler of control messages, on every interface.
pub(crate) const CONTROL: u8 = 30;
/// Ids from here on belong to this layer.
const FIRST_RESERVED: u8 = CONTROL;
/// Bytes of the longest control message over a lane.
const SEGMENT: usize = 4096;
/// The shortest interval of [`Rules::keepalive`].
const SHORTEST_KEEPALIVE: Duration = Duration::from_millis(250);
/// Progress calls between two checks of the clock.
const ROUND: u32 = 256;
/// The same while links are being connected or closed.
const SHORT_ROUND: u32 = 16;

/// Why a node could not be opened. `Debug` writes the text, too, as that of [`ConnectError`].
#[derive(Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No interface could be opened.
    #[error("no interface could be opened:\n{}", list(.absent))]
    Nothing {
        /// What there is, and why it was not opened.
        absent: Vec<Absent>,
    },
    /// The job's key cannot be read.
    #[error("the job's key: {0}")]
    Key(String),
    /// A system call failed.
    #[error("could not {step}: {source}")]
    System {
        /// What was tried.
        step: &'static str,
        /// The error.
        source: std::io::Error,
    },
}

fn list(absent: &[Absent]) -> String {
    let lines = absent.iter().map(|absent| format!("  {}: {}", absent.what, absent.reason));
    lines.collect::<Vec<_>>().join("\n")
}

/// Why a link cannot be connected. `Debug` writes the text, too: it is what a program prints that
/// returns the error from `main`.
#[derive(Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// There is no lane for what the link needs.
    #[error("no lane for {}\n{plan}not opened here:\n{}", .lacking, list(.absent))]
    NoLane {
        /// The kinds without a lane.
        lacking: Kinds,
        /// Each pair, with the reason why it is not a lane.
        plan: Box<Plan>,
        /// What this node could not open, or its rules exclude.
        absent: Vec<Absent>,
    },
    /// This node has 2^32 links.
    #[error("the node has too many links")]
    TooManyLinks,
    /// The client that requested the link has disconnected.
    #[error("the client has disconnected")]
    Gone,
}

impl fmt::Debug for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A link that a peer connected, and this side did not ask for.
#[derive(Debug)]
#[non_exhaustive]
pub struct Incoming {
    /// The link, which is connected.
    pub link: Link,
    /// The peer's address.
    pub address: WorkerAddress,
}

type OnPeer = Box<dyn FnMut(Incoming)>;

/// What a node shares with its links and handlers.
pub(crate) struct Shared {
    uuid: Uuid,
    start: Instant,
    rules: Rules,
    interfaces: Vec<Opened>,
    address: WorkerAddress,
    /// The interfaces in the address.
    entries: Vec<Entry>,
    absent: Vec<Absent>,
    machine: RefCell<Links>,
    links: RefCell<HashMap<LinkId, Rc<Inner>>>,
    making: RefCell<HashMap<LinkId, lanes::Making>>,
    peers: RefCell<HashMap<Uuid, Peer>>,
    /// The nodes that are ranks of this node's job.
    ranks: RefCell<HashMap<Uuid, u32>>,
    blocked: RefCell<Blocked>,
    streams: RefCell<Option<Streams>>,
    secret: RefCell<Secret>,
    /// What nodes without a link, and control connections, may cost.
    allowance: RefCell<Share>,
    /// What messages without effect may cost that come over lanes.
    refusals: RefCell<Refusals>,
    /// The ways to nodes without a link that were used last.
    replies: RefCell<VecDeque<Reply>>,
    /// Uses of peers so far.
    uses: Cell<u64>,
    /// Control messages of the node to itself.
    inbox: RefCell<VecDeque<Box<[u8]>>>,
    /// Links that the user closed, until CLOSE is sent, and when that is too late.
    closing: RefCell<VecDeque<(Rc<Inner>, Instant)>>,
    /// Links whose requests wait, although they are connected.
    waiting: RefCell<VecDeque<Rc<Inner>>>,
    /// When an endpoint of some lane failed, and how often progress has received nothing since.
    failed: Cell<Option<(Instant, u32)>>,
    /// Progress has something to do.
    busy: Cell<bool>,
    /// Requests of clients that have arrived since the last progress.
    requests: Cell<usize>,
    /// Links that have ended.
    endings: Cell<u64>,
    /// The interval of [`Rules::keepalive`] and when it ends next, if some interface needs it.
    keepalive: Option<(Duration, Cell<Duration>)>,
    /// The handlers of messages, with what waits for them.
    relays: RefCell<HashMap<u8, Rc<dyn handler::Waiting>>>,
    on_peer: RefCell<Option<OnPeer>>,
    /// Links for `on_peer`.
    announced: RefCell<VecDeque<Incoming>>,
    /// Calls of servers that did not decide yet.
    dials: RefCell<Vec<(Name, Rc<RefCell<Dialing>>)>>,
}

/// The interfaces of a process, and its links to other nodes.
///
/// A node stays on one thread, as a [`Worker`] does, and starts none. Nothing blocks but
/// [`wait`](Self::wait): the node has to make progress.
///
/// ```
/// use barewire_wireup::link::{Options, State};
/// use barewire_wireup::node::{Node, Rules};
/// use std::{cell::Cell, rc::Rc};
///
/// // Two nodes of one process. Between processes, the bytes of the address travel by any means.
/// let rules = Rules::default().only(["shm"]);
/// let (mut here, mut there) = (Node::open(&rules)?, Node::open(&rules)?);
/// let sum = Rc::new(Cell::new(0));
/// let total = Rc::clone(&sum);
/// there.set_handler(3, move |message| total.set(total.get() + message.data().len()))?;
///
/// let link = here.connect(&there.address(), Options::default())?;
/// while link.state() != State::Connected {
///     here.progress();
///     there.progress();
/// }
/// link.am_short(3, 7, b"hello")?;
/// while sum.get() == 0 {
///     there.progress();
/// }
/// assert_eq!(sum.get(), 8 + 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Node {
    worker: Worker,
    shared: Rc<Shared>,
    events: Option<Events>,
    /// Progress calls until the clock is checked.
    rest: u32,
    /// Rests that sleep instead of yielding, because other threads occupy the CPUs.
    crowded: u32,
}

impl Node {
    /// Opens the interfaces that the rules name. What cannot be opened is [absent](Self::absent).
    pub fn open(rules: &Rules) -> Result<Self, OpenError> {
        let system = |step| move |source| OpenError::System { step, source };
        let key = match &rules.key {
            Some(key) => Some(key.clone()),
            None => Key::from_env().map_err(|error| OpenError::Key(error.to_string()))?,
        };
        let mut worker = Worker::new();
        let (mut interfaces, absent) = open::open_all(&mut worker, rules, key.as_ref());
        if interfaces.is_empty() {
            return Err(OpenError::Nothing { absent });
        }
        let streams = key.map(|key| Streams::new(key, rules.deadline)).transpose();
        let mut streams = streams.map_err(system("make an event set"))?;
        if let Some(open) = &mut streams {
            for one in &mut interfaces {
                let Some(host) = one.host else { continue };
                let listening = open.listen(host.at(0), None);
                let address = listening.map_err(system("listen for control connections"))?;
                one.entry.control = NonZeroU16::new(address.port());
            }
        }
        let entries: Vec<_> = interfaces.iter().map(|one| one.entry.clone()).collect();
        let address = WorkerAddress::certified(&entries).map_err(system("get a random uuid"))?;
        let uuid = address.uuid();
        if let Some(open) = &mut streams {
            open.set_node(uuid);
        }
        let mut config = Config::new(uuid.0, address.as_bytes().to_vec());
        config.deadline = rules.deadline;
        config.half_open = rules.half_open;
        config.liveness = rules.liveness;
        let lengths =
            interfaces.iter().map(|one| one.entry.summary.max_message).filter(|length| *length > 0);
        config.segment = lengths.min().unwrap_or(SEGMENT).min(SEGMENT);
        let keepalive = rules.keepalive.map(|interval| interval.max(SHORTEST_KEEPALIVE));
        let keepalive = keepalive
            .filter(|_| interfaces.iter().any(|one| responds_by_device(one.domain.transport())));
        let shared = Rc::new(Shared {
            uuid,
            start: Instant::now(),
            rules: rules.clone(),
            interfaces,
            entries: address.entries().collect(),
            address,
            absent,
            machine: RefCell::new(Links::new(config)),
            links: RefCell::default(),
            making: RefCell::default(),
            peers: RefCell::default(),
            ranks: RefCell::default(),
            blocked: RefCell::new(Blocked::new(rules.deadline)),
            streams: RefCell::new(streams),
            secret: RefCell::new(Secret::random()),
            allowance: RefCell::new(Share::new(allowance::TERMS, Instant::now())),
            refusals: RefCell::new(Refusals::new()),
            replies: RefCell::default(),
            uses: Cell::new(0),
            inbox: RefCell::default(),
            closing: RefCell::default(),
            waiting: RefCell::default(),
            failed: Cell::new(None),
            busy: Cell::new(false),
            requests: Cell::new(0),
            endings: Cell::new(0),
            keepalive: keepalive.map(|interval| (interval, Cell::new(interval))),
            relays: RefCell::default(),
            on_peer: RefCell::default(),
            announced: RefCell::default(),
            dials: RefCell::default(),
        });
        shared.set_handlers();
        Ok(Self { worker, shared, events: None, rest: 0, crowded: 0 })
    }

    /// The bytes by which other nodes connect to this one.
    pub fn address(&self) -> WorkerAddress {
        self.shared.address.clone()
    }

    /// The part of the address that `scope` names.
    pub fn scoped_address(&self, scope: Scope) -> WorkerAddress {
        self.shared.address.scoped(scope)
    }

    /// This node.
    pub fn uuid(&self) -> Uuid {
        self.shared.uuid
    }

    /// What could not be opened, or is not to be, and why.
    pub fn absent(&self) -> &[Absent] {
        &self.shared.absent
    }

    /// The lanes that a link to the address would have. Tries whether peers on this node can be
    /// reached, and has no other effect.
    pub fn plan(&self, peer: &WorkerAddress, needs: Needs) -> Plan {
        let entries: Vec<_> = peer.entries().collect();
        self.shared.plan(peer.uuid(), &entries, needs, &[])
    }

    /// Connects a link to a node. It is connected once [`Link::state`] says so; both nodes have to
    /// make progress.
    ///
    /// The n-th link that one of two nodes makes is the n-th of the other, so both may call this. A
    /// link that only one side makes is announced to the other by [`on_peer`](Self::on_peer). For
    /// links of a node to itself, the first call returns one end and the second the other.
    ///
    /// # Errors
    /// [`ConnectError::NoLane`] with the reason for each pair; [`ConnectError::TooManyLinks`]
    pub fn connect(
        &mut self,
        peer: &WorkerAddress,
        options: Options,
    ) -> Result<Link, ConnectError> {
        self.shared.connect(peer, options)
    }

    /// Sets the function that gets the links that peers make and this side did not ask for. Without
    /// one, such a link waits for a call of [`connect`](Self::connect).
    pub fn on_peer(&mut self, handler: impl FnMut(Incoming) + 'static) {
        // The handler before it is dropped when nothing is borrowed.
        drop(self.shared.on_peer.replace(Some(Box::new(handler))));
    }

    /// Forgets the address of a peer, and closes the control connection to it. Peers without links
    /// are otherwise forgotten when there are many. Returns false, and does nothing, while a link
    /// to the peer exists, or if the peer is not known.
    pub fn forget(&mut self, peer: Uuid) -> bool {
        self.shared.forget(peer)
    }

    /// Tells whether a link of this node has a name by which its peer names it.
    pub(crate) fn has_link(&self) -> Box<dyn Fn(u64) -> bool> {
        let shared = Rc::downgrade(&self.shared);
        Box::new(move |name| {
            let shared = shared.upgrade();
            // No message arrives while the machine is used.
            shared.is_some_and(|shared| {
                shared.machine.try_borrow().is_ok_and(|machine| machine.has_name(name))
            })
        })
    }

    /// Has errors name the ranks of nodes.
    #[cfg(feature = "bootstrap")]
    pub(crate) fn set_ranks(&self, ranks: HashMap<Uuid, u32>) {
        self.shared.set_ranks(ranks);
    }

    /// The number of links that have ended.
    pub(crate) fn endings(&self) -> u64 {
        self.shared.endings.get()
    }

    /// How long the node waits for links to be connected.
    pub(crate) fn deadline(&self) -> Duration {
        self.shared.rules.deadline
    }

    /// The interfaces, with their domains, as lanes number them.
    pub(crate) fn interfaces(
        &self,
    ) -> impl Iterator<Item = (&barewire::Interface, &barewire::Domain)> {
        self.shared.interfaces.iter().map(|one| (&one.interface, &one.domain))
    }

    /// Delivers messages, finishes operations, and connects and closes links. Never blocks. Returns
    /// the number of events, with those of listeners and calls.
    #[inline]
    pub fn progress(&mut self) -> usize {
        let events = self.worker.progress();
        if self.rest == 0 || self.shared.busy.get() {
            return events + self.attend(events);
        }
        self.rest -= 1;
        events
    }

    /// As [`progress`](Self::progress), in which each interface also examines its connections, so
    /// that the end of a peer's process is noticed; otherwise it does that every few hundred calls.
    #[cfg(feature = "bootstrap")]
    pub(crate) fn progress_with_connections(&mut self) -> usize {
        for one in &self.shared.interfaces {
            one.interface.examine();
        }
        self.progress()
    }

    /// What is not done in each progress.
    #[cold]
    fn attend(&mut self, received: usize) -> usize {
        let events = self.shared.attend(received);
        self.rest = if self.shared.is_unsettled() { SHORT_ROUND } else { ROUND };
        events
    }

    /// Returns all links, those that peers connected included.
    pub fn links(&self) -> Vec<Link> {
        self.shared.links.borrow().values().map(|inner| Link(Rc::clone(inner))).collect()
    }
}

impl Shared {
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn limits(&self) -> Limits {
        // A software device is among the interfaces only if the user named it.
        Limits::default().rails(self.rules.rails).software(true)
    }

    fn connect(
        self: &Rc<Self>,
        peer: &WorkerAddress,
        options: Options,
    ) -> Result<Link, ConnectError> {
        self.connect_with(peer, options, 0)
    }

    /// Connects a link, with the ticket that a client has sent to the server of the link.
    fn connect_with(
        self: &Rc<Self>,
        peer: &WorkerAddress,
        options: Options,
        ticket: u64,
    ) -> Result<Link, ConnectError> {
        let uuid = peer.uuid();
        let entries: Vec<_> = peer.entries().collect();
        let plan = self.plan(uuid, &entries, options.needs, &[]);
        let lacking = plan.lacking();
        if !lacking.is_empty() {
            return Err(ConnectError::NoLane {
                lacking,
                plan: Box::new(plan),
                absent: self.absent.clone(),
            });
        }
        self.remember(peer);
        let id = self.machine.borrow_mut().open(uuid.0).ok_or(ConnectError::TooManyLinks)?;
        let link = Link(self.link_or_new(id, uuid, options.needs));
        link.0.ticket.set(ticket);
        if link.0.may_connect() {
            link.0.needs.set(options.needs);
            // The lanes of a link that this side has answered exist already.
            if link.0.state.get() != State::Answered {
                link.0.state.set(State::Offered);
                self.making.borrow_mut().insert(id, lanes::Making::new(entries, Some(plan)));
            }
            // A link that was opened exists.
            let _ = self.machine.borrow_mut().connect(id, options.deadline, self.now());
        }
        self.busy.set(true);
        Ok(link)
    }

    /// Links are being connected or closed.
    fn is_unsettled(&self) -> bool {
        self.machine.borrow().half_open() > 0
            || !self.closing.borrow().is_empty()
            || !self.waiting.borrow().is_empty()
            || !self.dials.borrow().is_empty()
            || (self.machine.borrow().has_strangers()
                && self.allowance.borrow().has_slice(Instant::now()))
            || self
                .links
                .borrow()
                .values()
                .any(|inner| inner.may_connect() || inner.state.get() == State::Closing)
    }
}

impl Owner for Shared {
    fn close_later(&self, link: &Rc<Inner>) {
        let mut closing = self.closing.borrow_mut();
        if !closing.iter().any(|(known, _)| Rc::ptr_eq(known, link)) {
            closing.push_back((Rc::clone(link), after(Instant::now(), self.rules.deadline)));
        }
        self.busy.set(true);
    }
}

/// Cancels what is outstanding. Peers notice by their own means; close links first to inform them.
impl Drop for Node {
    fn drop(&mut self) {
        for link in self.links() {
            link.0.close.set(Some(CloseMode::Cancel));
            link.0.cancel();
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("address", &self.shared.address)
            .field("links", &self.shared.links.borrow().len())
            .finish_non_exhaustive()
    }
}
