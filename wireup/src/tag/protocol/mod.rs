//! The tag protocol as a state machine without endpoints, clock and devices.
//!
//! Into the [`Machine`] go requests of the user, messages of peers, and the results of data
//! movement; out of it come [messages to send](Machine::next), [data to move](Machine::action) and
//! the results of requests. The binding in [`tags`](super) connects it to endpoints, the tests to
//! another machine.
//!
//! | step | sender | receiver |
//! |---|---|---|
//! | eager | `Eager` or `Synchronous` | copies it; `Finished` for `Synchronous` when matched |
//! | rendezvous | `Announce` | when matched, one of the three below |
//! | by get | | gets, then `Finished` |
//! | by put | puts, then `Put` | `Request` with a key |
//! | by fragments | `Fragment` until all is sent | `Request` without a key |
//!
//! A send is eager if its length is at most the link's threshold and the [`Window`] has room.
//! Otherwise it is announced, and only the announcement waits at the receiver. At most
//! [`MAX_ANNOUNCED`] announcements of a link are unanswered; later sends of the link wait at the
//! sender, in order. So the memory that a peer can occupy is bounded.
//!
//! A rendezvous takes several times as long as an eager message. A message for which the window has
//! no room is therefore not announced before the receiver has reported: it does so when it has
//! taken half of a window, which makes room, and by a `Credit` message if a receive waits and the
//! window is used up by other messages. So a receiver that falls behind gets eager messages at its
//! own pace, and one that wants a later message first gets that announced.
//!
//! With the list of a device ([`Machine::with_list`]), a link asks for tagged messages
//! ([`Opening::tagged`]): the peer sends the payload of `Eager`, and the body of `Announce`, as a
//! message that the device matches. They have no header but an immediate: 31 bits of the link's
//! number, and in [`ANNOUNCED`] whether it is an announcement, which the device then writes to the
//! buffer of the receive. As these bits could be guessed, the queue pair on which the message
//! arrived must be that of the link ([`Machine::set_source`]). `Synchronous` is not sent. All else
//! is as above.

mod arrival;
mod credit;
mod matching;
mod numbers;
mod receive;
mod send;
#[cfg(test)]
mod simulation;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::task::Waker;

use barewire::Cause;
use smallvec::SmallVec;
use thiserror::Error;

pub use arrival::Violation;
pub use credit::Window;
pub use matching::{Expected, NoList};
pub use send::Eager;

use self::matching::Matching;
use self::numbers::Numbers;
use super::message::{Credit, Header, KeyList, Kind, LONGEST_HEADER, Message, Outcome, Place};
use super::offload::{self, List};
use super::slab::{Key, Slab};

/// Announcements of one link that may be unanswered.
pub const MAX_ANNOUNCED: u16 = 256;
/// The part of a window, as a divisor, that is reported with an eager message.
const EAGERLY: u32 = 4;
/// The part of a window, as a divisor, that is reported by a separate message.
const SEPARATELY: u32 = 2;
/// Links at most.
const MAX_LINKS: usize = 1 << 23;

/// The memory of a request. Clones are handles to the same memory.
pub trait Payload: Clone + fmt::Debug {
    /// The right of a peer to write the memory. The right ends when this is dropped.
    type Grant: fmt::Debug;
    /// Bytes.
    fn len(&self) -> usize;
    /// True for no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Copies from `offset`, as far as there are bytes.
    fn read(&self, offset: usize, target: &mut [u8]);
    /// Copies to `offset`, as far as there is room.
    fn write(&self, offset: usize, source: &[u8]);
    /// A peer may read the memory until [`unshare`](Self::unshare).
    fn share(&self);
    /// Ends one [`share`](Self::share). With `revoke`, the peers' keys must be useless once the
    /// last one has ended.
    fn unshare(&self, revoke: bool);
}

/// What a message is matched by, and what is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// The message's tag.
    pub tag: u64,
    /// Bytes of the message.
    pub length: usize,
    /// The link that it came from or goes to.
    pub link: Key,
}

/// How a send travels, and when it is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Eager up to the threshold, rendezvous beyond. Complete when the buffer may be changed.
    #[default]
    Auto,
    /// Eager up to the longest message of the link, without regard to the threshold.
    Eager,
    /// As `Auto`, but complete only when a receive has matched the message.
    Synchronous,
}

/// Why a request did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TagError {
    /// The message is longer than the receive's buffer. The buffer's content is unspecified.
    #[error("the message has {length} bytes, more than the buffer: receive it with a longer one")]
    Truncated {
        /// Bytes of the message.
        length: usize,
    },
    /// The request was cancelled.
    #[error("the request was cancelled")]
    Canceled,
    /// A lane of the link failed.
    #[error("the link has failed ({0}): {hint}", hint = .0.hint())]
    LinkFailed(Cause),
    /// The link was not connected, or closed, in time. The peer may live.
    #[error("the peer has not connected or closed the link in time: raise Rules::deadline")]
    Late,
    /// The peer does not follow the protocol; the link is closed.
    #[error(
        "the peer sent a message that the tag protocol does not allow; use the same release at both ends"
    )]
    Protocol,
    /// The link, or the `Tags`, was closed here.
    #[error("the link was closed")]
    Closed,
    /// There is no memory for a copy of the data.
    #[error("there is no memory for a copy of the data")]
    NoMemory,
    /// The data of a rendezvous could not be moved here. The link is usable.
    #[error("the data could not be moved ({0}): {hint}", hint = .0.hint())]
    Transfer(Cause),
    /// The data of a rendezvous could not be moved by the peer. The link is usable.
    #[error("the peer could not move the data: see the result of the request there")]
    PeerTransfer,
}

/// The result of a request.
pub type TagResult = Result<Envelope, TagError>;

/// What a link's lanes can do, for the choice of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkLimits {
    /// Longest message of the control lane in bytes, with its header.
    pub message: usize,
    /// Longest eager send in [`Mode::Auto`], in bytes.
    pub threshold: usize,
    /// Longest tagged message of the control lane in bytes; 0 if it has none.
    pub tagged: usize,
}

impl LinkLimits {
    /// Longest payload of a message of `kind`.
    fn payload(self, kind: Kind) -> usize {
        let overhead = LONGEST_HEADER + Message::prefix(kind);
        self.message.saturating_sub(overhead)
    }
}

/// What each side sends to the other to open a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// The sender's number of the link: random, and a secret of the two ends.
    pub link: u64,
    /// Eager messages that the sender of this accepts before it grants more.
    pub window: Window,
    /// Eager messages and announcements are to be sent as tagged messages of the transport.
    pub tagged: bool,
}

/// The bit of an immediate that is no part of a link's number.
const FLAG: u32 = 1 << 31;

/// In the immediate of a tagged message: it is an announcement.
pub const ANNOUNCED: u32 = FLAG;

impl Opening {
    /// Bytes of an opening.
    pub const BYTES: usize = 15;

    /// As bytes: link (8), messages (2), bytes (4), `tagged` (1), little endian.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.link.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.window.messages.to_le_bytes());
        bytes[10..14].copy_from_slice(&self.window.bytes.to_le_bytes());
        bytes[14] = self.tagged.into();
        bytes
    }

    /// The opening that [`to_bytes`](Self::to_bytes) made. All bytes are one.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let [link @ .., m0, m1, b0, b1, b2, b3, tagged] = bytes;
        let (messages, bytes) =
            (u16::from_le_bytes([m0, m1]), u32::from_le_bytes([b0, b1, b2, b3]));
        let window = Window { messages, bytes };
        Self { link: u64::from_le_bytes(link), window, tagged: tagged & 1 != 0 }
    }
}

/// A bound on what all links together may leave here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The window of each link.
    pub window: Window,
    /// Messages of all links together. Each takes up to 200 bytes besides its own, which
    /// `total_bytes` does not count.
    pub total_messages: usize,
    /// Bytes of all links together.
    pub total_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { window: Window::default(), total_messages: 1 << 20, total_bytes: 256 << 20 }
    }
}

/// What waits at this end, how messages were received, and what was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TagCounters {
    /// Eager messages that wait for a receive.
    pub unexpected_messages: usize,
    /// Bytes of their payload.
    pub unexpected_bytes: usize,
    /// Announcements that wait for a receive.
    pub announced: usize,
    /// Messages received by a get from the sender.
    pub fetched: u64,
    /// Messages that the sender put.
    pub put: u64,
    /// Messages received in fragments.
    pub fragmented: u64,
    /// Messages that the device has matched.
    pub matched: u64,
    /// Messages for links that do not exist.
    pub stray: u64,
}

/// Data to move.
#[derive(Debug, Clone)]
pub enum Action<B> {
    /// Get `length` bytes from `address` of the peer into the buffer; report to [`Machine::moved`].
    Fetch(Transfer<B>),
    /// Put the first `length` bytes of the buffer to `address` of the peer, visibly; report to
    /// [`Machine::moved`].
    Put(Transfer<B>),
    /// Give the peer the right to write the first `length` bytes of the buffer; report to
    /// [`Machine::exposed`].
    Expose {
        /// The request, for the report.
        request: Key,
        /// The link.
        link: Key,
        /// The memory.
        buffer: B,
        /// Bytes.
        length: usize,
    },
}

/// A movement of data between a buffer and a peer's memory.
#[derive(Debug, Clone)]
pub struct Transfer<B> {
    /// The request, for the report.
    pub request: Key,
    /// The link.
    pub link: Key,
    /// The memory here.
    pub buffer: B,
    /// Bytes.
    pub length: usize,
    /// The memory there.
    pub address: u64,
    /// Keys to it, by lane.
    pub keys: KeyList,
}

/// How a movement of data ended. No operation of it is under way any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// All of it is there.
    Done,
    /// It failed.
    Failed(Cause),
    /// No lane can do it. Nothing was moved.
    Unsupported,
}

/// A message to send: its header, and its body.
#[derive(Debug, Clone)]
pub struct Outgoing<B> {
    /// The header.
    pub header: Header,
    /// The body.
    pub body: Body<B>,
}

impl<B: Payload> Outgoing<B> {
    /// Writes the message to the start of `target`. `place` is where the peer reaches the buffer of
    /// an announcement. Returns the length; `None` if `target` is too short.
    pub fn write(&self, place: Place<'_>, target: &mut [u8]) -> Option<usize> {
        let header = self.header.write(target)?;
        Some(header + self.write_body(place, &mut target[header..])?)
    }

    /// As [`Self::write`], without the header.
    pub fn write_body(&self, place: Place<'_>, rest: &mut [u8]) -> Option<usize> {
        Some(match &self.body {
            Body::Payload { number, buffer, offset, length, .. } => {
                let prefix = number.map(u64::to_le_bytes);
                let prefix = prefix.as_ref().map_or(&[][..], |bytes| &bytes[..]);
                let (front, rest) = rest.split_at_mut_checked(prefix.len())?;
                front.copy_from_slice(prefix);
                buffer.read(*offset, rest.get_mut(..*length)?);
                prefix.len() + length
            }
            Body::Announce { request, buffer } => {
                let (request, length) = (request.to_u64(), buffer.len() as u64);
                Message::Announce { request, length, place }.write(rest)?
            }
            Body::Control(control) => control.message().write(rest)?,
        })
    }

    /// The immediate with which the peer gets this as a tagged message, if the link has those.
    pub fn immediate(&self) -> Option<u32> {
        match self.header.kind {
            Kind::Eager => Some(immediate(self.header.link)),
            Kind::Announce => Some(immediate(self.header.link) | ANNOUNCED),
            _ => None,
        }
    }
}

/// The immediate of an eager message to the link that the peer numbers so.
pub fn immediate(link: u64) -> u32 {
    numbers::short(link)
}

/// The body of an outgoing message.
#[derive(Debug, Clone)]
pub enum Body<B> {
    /// A part of a request's buffer, behind a number for `Synchronous` and `Fragment`.
    Payload {
        /// The request.
        request: Key,
        /// The number in front: a request or an offset.
        number: Option<u64>,
        /// The request's buffer.
        buffer: B,
        /// Offset of the part in the buffer, in bytes.
        offset: usize,
        /// Length of the part, in bytes.
        length: usize,
    },
    /// An announcement. The binding adds the place of the buffer.
    Announce {
        /// The request.
        request: Key,
        /// The buffer of the announced message.
        buffer: B,
    },
    /// A control message.
    Control(Control),
}

/// A message without payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// `Request`: where to put a payload, or nowhere.
    Request {
        /// The sender's request.
        to: u64,
        /// The receiver's request.
        request: u64,
        /// Length of the requested payload, in bytes.
        length: u64,
        /// Address of the buffer.
        address: u64,
        /// Keys, by lane.
        keys: KeyList,
    },
    /// `Put`
    Put {
        /// The receiver's request.
        to: u64,
        /// How the puts ended.
        outcome: Outcome,
    },
    /// `Finished`
    Finished {
        /// The sender's request.
        to: u64,
        /// How it ended.
        outcome: Outcome,
    },
    /// `Withdraw`
    Withdraw {
        /// The sender's request.
        request: u64,
    },
    /// `Credit`
    Credit,
}

impl Control {
    fn message(&self) -> Message<'_> {
        match self {
            Self::Request { request, length, address, keys, .. } => Message::Request {
                request: *request,
                length: *length,
                place: Place::new(*address, keys),
            },
            Self::Put { outcome, .. } => Message::Put { outcome: *outcome },
            Self::Finished { outcome, .. } => Message::Finished { outcome: *outcome },
            Self::Withdraw { .. } => Message::Withdraw,
            Self::Credit => Message::Credit,
        }
    }

    fn kind_and_word(&self) -> (Kind, u64) {
        match *self {
            Self::Request { to, .. } => (Kind::Request, to),
            Self::Put { to, .. } => (Kind::Put, to),
            Self::Finished { to, .. } => (Kind::Finished, to),
            Self::Withdraw { request } => (Kind::Withdraw, request),
            Self::Credit => (Kind::Credit, 0),
        }
    }
}

/// One link.
#[derive(Debug)]
struct Link {
    limits: LinkLimits,
    /// This side's number of the link.
    own: u64,
    /// The peer's number of the link, once it is known.
    peer: Option<u64>,
    /// The peer wants tagged messages.
    tagged: bool,
    /// The queue pair on which tagged messages of the peer arrive.
    source: Option<u32>,
    /// Eager messages that the peer accepts, and that were sent.
    granted: Credit,
    sent: Credit,
    /// Messages sent, modulo 2^8.
    number: u8,
    /// Sends that have not left, in order.
    waiting: VecDeque<Key>,
    /// Announcements that the peer has not answered.
    announced: u16,
    /// The peer's window is used up, or a message for which it had no room was announced, and the
    /// peer has not reported since. The next such message waits for that report.
    held: bool,
    /// Bytes of the longest message that the peer's window can ever have room for; 0 if it accepts
    /// no eager message.
    longest: usize,
    /// In the machine's list of links whose window the peer has used up.
    is_listed: bool,
    control: VecDeque<Control>,
    /// Sends that leave in fragments.
    fragments: VecDeque<Key>,
    /// A fragment was sent last: a waiting send is next.
    fragment_was_last: bool,
    /// The window of the peer, what it may have sent in total, what it knows of that, and what it
    /// sent.
    window: Window,
    allowed: Credit,
    reported: Credit,
    received: Credit,
    /// The word behind the tag of the next eager message without credit: it has the link and the
    /// number of messages received, modulo 2^8.
    next: u64,
    /// Announcements of the peer that wait for a receive, by the peer's request: where they are
    /// kept, unless they wait for the removal of a receive from the list.
    kept_announcements: HashMap<u64, Option<Key>>,
    failure: Option<TagError>,
    /// In the machine's list of links that may have something to send.
    is_ready: bool,
}

impl Link {
    /// A header for the next message. Most eager messages have none of the credit that they could
    /// report.
    #[inline(always)]
    fn header(&self, peer: u64, kind: Kind, word: u64) -> Header {
        let has_credit = match kind {
            Kind::Eager => self.allowed.is_ahead::<EAGERLY>(self.reported, self.window),
            Kind::Credit => true,
            _ => self.allowed != self.reported,
        };
        let credit = has_credit.then_some(self.allowed);
        Header { word, kind, credit, link: peer, number: self.number }
    }

    #[inline]
    fn note_sent(&mut self, header: &Header) {
        if self.tagged && matches!(header.kind, Kind::Eager | Kind::Announce) {
            // It left without its header.
            return;
        }
        self.number = self.number.wrapping_add(1);
        self.reported = header.credit.unwrap_or(self.reported);
    }

    /// An eager message of the peer left this end's memory. Returns whether a message has to report
    /// it.
    #[inline(always)]
    fn release(&mut self, length: usize) -> bool {
        self.allowed.add(length);
        self.allowed.is_ahead::<SEPARATELY>(self.reported, self.window) && self.report()
    }

    /// Returns whether the peer holds messages back: as far as it knows, the window has no room.
    #[inline]
    fn is_used_up(&self) -> bool {
        !self.received.has_room(self.reported, 0)
    }

    /// An eager message was sent.
    #[inline(always)]
    fn add_sent(&mut self, length: usize) {
        self.sent.add(length);
        self.held |= !self.sent.has_room(self.granted, 0);
    }

    /// Reports the credit by a `Credit` message. Returns false if one is already due.
    fn report(&mut self) -> bool {
        let due = self.failure.is_none() && !self.control.contains(&Control::Credit);
        if due {
            self.control.push_back(Control::Credit);
        }
        due
    }

    fn has_something_to_send(&self) -> bool {
        !(self.control.is_empty() && self.waiting.is_empty() && self.fragments.is_empty())
    }
}

/// The payload of a message that waits for a receive. A short one takes no allocation.
type Stored = SmallVec<[u8; 64]>;

/// A message that waits for a receive.
#[derive(Debug)]
enum Kept {
    Eager { link: Key, payload: Stored, acknowledge: Option<u64> },
    Announced(Announced),
}

/// An announcement of a peer.
#[derive(Debug)]
struct Announced {
    link: Key,
    request: u64,
    length: usize,
    address: u64,
    keys: KeyList,
}

impl Kept {
    fn link(&self) -> Key {
        match self {
            Self::Eager { link, .. } | Self::Announced(Announced { link, .. }) => *link,
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Eager { payload, .. } => payload.len(),
            Self::Announced(announced) => announced.length,
        }
    }
}

/// A request of the user.
#[derive(Debug)]
struct Request<B: Payload> {
    state: State,
    /// Its memory, until it is complete.
    buffer: Option<B>,
    waker: Option<Waker>,
    /// The user dropped the handle.
    detached: bool,
}

impl<B: Payload> Request<B> {
    /// Sets the result. Returns true if nobody needs it, and the request is to be dropped.
    #[inline(always)]
    fn complete(&mut self, result: TagResult, wakers: &mut VecDeque<Waker>) -> bool {
        debug_assert!(!matches!(self.state, State::Complete(_)), "a request completes once");
        if let Some(waker) = self.waker.take() {
            wakers.push_back(waker);
        }
        self.state = State::Complete(result);
        self.buffer = None;
        self.detached
    }
}

#[derive(Debug, Clone, Copy)]
enum State {
    Send(send::Send),
    Receive(receive::Stage),
    Complete(TagResult),
}

/// Matching and the protocol of all links of a node. `L` is the list of a device.
#[derive(Debug)]
pub struct Machine<B: Payload, L = NoList> {
    limits: Limits,
    /// Sum of the windows given to links.
    promised: (usize, usize),
    links: Slab<Link>,
    numbers: Numbers,
    /// The requests, too.
    matching: Matching<B, L>,
    /// A message of a closed link may wait for the removal of a receive.
    has_orphans: bool,
    /// Messages that the user has claimed and not received.
    claimed: Slab<(u64, Kept)>,
    actions: VecDeque<Action<B>>,
    /// Links that may have something to send.
    ready: VecDeque<Key>,
    /// Links whose peers may hold messages back, because no receive has waited for them.
    used_up: Vec<Key>,
    wakers: VecDeque<Waker>,
    /// The rights of peers to write the memory of receives.
    grants: HashMap<Key, B::Grant>,
    counters: TagCounters,
}

impl<B: Payload> Machine<B> {
    /// A machine without links, which matches in software.
    pub fn new(limits: Limits) -> Self {
        Self::with_list(limits, None)
    }
}

impl<B: Payload, L: List<Expected<B>>> Machine<B, L> {
    /// A machine without links, which matches together with a device that has this list.
    pub fn with_list(limits: Limits, list: Option<L>) -> Self {
        Self {
            limits: Limits { window: limits.window.clamped(), ..limits },
            promised: (0, 0),
            links: Slab::default(),
            numbers: Numbers::default(),
            matching: Matching::new(list),
            has_orphans: false,
            claimed: Slab::default(),
            actions: VecDeque::new(),
            ready: VecDeque::new(),
            used_up: Vec::new(),
            wakers: VecDeque::new(),
            grants: HashMap::new(),
            counters: TagCounters::default(),
        }
    }

    /// Adds a link. The peer gets the returned [`Opening`]; `None` if there are 2^23 links already.
    /// The link's number is one of those that `random` returns: no other process may know them.
    ///
    /// If the windows of the links together would exceed [`Limits`], the window is
    /// [`Window::CLOSED`].
    pub fn open(&mut self, random: impl FnMut() -> u64) -> Option<(Key, Opening)> {
        if self.links.len() >= MAX_LINKS {
            return None;
        }
        let mut window = self.limits.window;
        let messages = self.promised.0 + usize::from(window.messages);
        let bytes = self.promised.1 + window.bytes as usize;
        if messages > self.limits.total_messages || bytes > self.limits.total_bytes {
            window = Window::CLOSED;
        } else {
            self.promised = (messages, bytes);
        }
        let slot = self.links.next_key().slot();
        let own = self.numbers.add(&self.links, slot, random);
        let link = self.links.insert(Link {
            limits: LinkLimits { message: 0, threshold: 0, tagged: 0 },
            own,
            peer: None,
            tagged: false,
            source: None,
            granted: Credit::default(),
            sent: Credit::default(),
            number: 0,
            waiting: VecDeque::new(),
            announced: 0,
            held: false,
            longest: 0,
            is_listed: false,
            control: VecDeque::new(),
            fragments: VecDeque::new(),
            fragment_was_last: false,
            window,
            allowed: window.into(),
            reported: window.into(),
            received: Credit::default(),
            next: Header::of_eager(own),
            kept_announcements: HashMap::new(),
            failure: None,
            is_ready: false,
        });
        Some((link, Opening { link: own, window, tagged: false }))
    }

    /// Sets the queue pair on which tagged messages of the peer arrive. Others that name the link
    /// are strangers'.
    pub fn set_source(&mut self, link: Key, queue_pair: Option<u32>) {
        if let Some(entry) = self.links.get_mut(link) {
            entry.source = queue_pair;
        }
    }

    /// Sets what the lanes of a link can do, before it is [connected](Self::connect).
    pub fn set_limits(&mut self, link: Key, limits: LinkLimits) {
        if let Some(entry) = self.links.get_mut(link) {
            entry.limits = limits;
        }
    }

    /// Connects a link to the peer that sent `peer`. Requests may have been made before.
    pub fn connect(&mut self, link: Key, peer: Opening) {
        if let Some(entry) = self.links.get_mut(link) {
            entry.peer = Some(peer.link);
            entry.tagged = peer.tagged;
            entry.granted = peer.window.clamped().into();
            let window = peer.window.clamped();
            entry.longest = if window.messages == 0 { 0 } else { window.bytes as usize };
        }
        self.make_ready(link);
    }

    /// Ends a link: its requests complete with `error`, those whose data is under way when it
    /// stops. Messages that arrived completely can still be received.
    pub fn fail(&mut self, link: Key, error: TagError) {
        let Some(entry) = self.links.get_mut(link) else { return };
        if entry.failure.is_some() {
            return;
        }
        entry.failure = Some(error);
        entry.waiting.clear();
        entry.control.clear();
        entry.fragments.clear();
        for key in std::mem::take(&mut entry.kept_announcements).into_values().flatten() {
            self.matching.take(key);
            self.counters.announced -= 1;
        }
        let requests: Vec<Key> = self.matching.requests.iter().map(|(key, _)| key).collect();
        for key in requests {
            match self.matching.requests.get_mut(key).map(|request| &mut request.state) {
                Some(State::Send(send)) if send.link() == link => self.fail_send(key, error),
                Some(State::Receive(stage)) if stage.link() == Some(link) => {
                    self.fail_receive(key, error);
                }
                _ => {}
            }
        }
    }

    /// Fails a link, and drops it with the messages that were not received.
    pub fn close(&mut self, link: Key) {
        self.fail(link, TagError::Closed);
        if let Some(entry) = self.links.remove(link) {
            self.numbers.remove(entry.own);
            self.promised.0 -= usize::from(entry.window.messages);
            self.promised.1 -= entry.window.bytes as usize;
            if entry.is_listed {
                self.used_up.retain(|listed| *listed != link);
            }
        }
        self.discard_orphans();
    }

    /// Drops the messages of links that were closed. Those that wait for the removal of a receive
    /// are dropped after it.
    fn discard_orphans(&mut self) {
        let links = &self.links;
        for key in self.matching.select(|kept| links.get(kept.link()).is_none()) {
            if let Some((_, kept)) = self.matching.take(key) {
                self.discard_kept(kept);
            }
        }
        self.has_orphans = !self.matching.is_settled();
    }

    /// Why the link failed, if it did.
    pub fn failure(&self, link: Key) -> Option<TagError> {
        self.links.get(link).map_or(Some(TagError::Closed), |entry| entry.failure)
    }

    /// Returns whether there is nothing to start, to send or to wake.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.actions.is_empty() && self.ready.is_empty() && self.wakers.is_empty()
    }

    /// The next movement of data to start.
    pub fn action(&mut self) -> Option<Action<B>> {
        self.actions.pop_front()
    }

    /// A link that may have a message to [send](Self::next). It is returned again only after an
    /// event that may have given it another one: the caller tries again itself after a post without
    /// resources.
    pub fn ready(&mut self) -> Option<Key> {
        let link = self.ready.pop_front()?;
        if let Some(entry) = self.links.get_mut(link) {
            entry.is_ready = false;
        }
        Some(link)
    }

    fn make_ready(&mut self, link: Key) {
        if let Some(entry) = self.links.get_mut(link)
            && !entry.is_ready
            && entry.has_something_to_send()
        {
            entry.is_ready = true;
            self.ready.push_back(link);
        }
    }

    /// A receive waits that no kept message matches: its message may be one that a peer holds back.
    #[inline]
    fn ask_for_more(&mut self) {
        if !self.used_up.is_empty() {
            self.ask_all();
        }
    }

    #[inline(never)]
    fn ask_all(&mut self) {
        for link in std::mem::take(&mut self.used_up) {
            if let Some(entry) = self.links.get_mut(link) {
                entry.is_listed = false;
                // Also if the window has room: for the message that the peer holds, it may not.
                if entry.report() {
                    self.make_ready(link);
                }
            }
        }
    }

    /// The peer has used up the window of a link, or one of its announcements is kept: asks for
    /// what it holds back if a receive waits, or when the next one does.
    fn note_used_up(&mut self, link: Key) {
        if let Some(entry) = self.links.get_mut(link)
            && !entry.is_listed
        {
            entry.is_listed = true;
            self.used_up.push(link);
        }
        if self.matching.has_receives() {
            self.ask_all();
        }
    }

    /// The next task to wake. The caller wakes it when it no longer borrows the machine.
    pub fn waker(&mut self) -> Option<Waker> {
        self.wakers.pop_front()
    }

    /// What waits here.
    pub fn counters(&self) -> TagCounters {
        self.counters
    }

    /// The result of a request that is complete. Repeated calls return it again.
    #[inline]
    pub fn result(&self, request: Key) -> Option<TagResult> {
        match self.matching.requests.get(request)?.state {
            State::Complete(result) => Some(result),
            _ => None,
        }
    }

    /// Returns whether the task of `waker` is woken when the request is complete.
    pub fn wakes(&self, request: Key, waker: &Waker) -> bool {
        let present =
            self.matching.requests.get(request).and_then(|request| request.waker.as_ref());
        present.is_some_and(|present| present.will_wake(waker))
    }

    /// Wakes `waker` when the request is complete. Returns the one that was to be woken before: the
    /// caller drops it when it no longer borrows the machine.
    pub fn wake(&mut self, request: Key, waker: Waker) -> Option<Waker> {
        match self.matching.requests.get_mut(request) {
            Some(request) => request.waker.replace(waker),
            None => Some(waker),
        }
    }

    /// The user needs the result of a request no more. The request itself goes on. Returns the
    /// waker, as [`wake`](Self::wake) does.
    #[inline]
    pub fn detach(&mut self, request: Key) -> Option<Waker> {
        let entry = self.matching.requests.get_mut(request)?;
        if matches!(entry.state, State::Complete(_)) {
            self.matching.requests.discard(request);
            return None;
        }
        entry.detached = true;
        entry.waker.take()
    }

    /// Asks for the cancellation of a request. Returns whether the request may end as cancelled;
    /// its result tells.
    ///
    /// A receive that is matched, and a send that has left or has been matched, go on. An announced
    /// send ends when the peer confirms.
    pub fn cancel(&mut self, request: Key) -> bool {
        match self.matching.requests.get(request).map(|entry| &entry.state) {
            Some(State::Send(_)) => self.cancel_send(request),
            Some(State::Receive(_)) => self.cancel_receive(request),
            _ => false,
        }
    }

    /// Requests that the user has or that are under way.
    pub fn requests(&self) -> usize {
        self.matching.requests.len()
    }

    #[inline(always)]
    fn insert(&mut self, state: State, buffer: B) -> Key {
        let (waker, detached) = (None, false);
        let make = || Request { state, buffer: Some(buffer), waker, detached };
        self.matching.requests.insert(make)
    }

    /// The memory of a request that is not complete.
    fn buffer(&self, request: Key) -> Option<&B> {
        self.matching.requests.get(request)?.buffer.as_ref()
    }

    fn complete(&mut self, request: Key, result: TagResult) {
        if let Some(entry) = self.matching.requests.get_mut(request)
            && entry.complete(result, &mut self.wakers)
        {
            self.matching.requests.discard(request);
        }
    }

    /// Queues a control message, unless the link failed.
    fn control(&mut self, link: Key, message: Control) {
        if let Some(entry) = self.links.get_mut(link)
            && entry.failure.is_none()
        {
            entry.control.push_back(message);
        }
        self.make_ready(link);
    }

    /// A movement of data ended.
    pub fn moved(&mut self, request: Key, moved: Moved) {
        match self.matching.requests.get(request).map(|entry| &entry.state) {
            Some(State::Send(_)) => self.put_ended(request, moved),
            Some(State::Receive(_)) => self.fetch_ended(request, moved),
            _ => {}
        }
    }
}
