//! The tag protocol over endpoints.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::hint::cold_path;
use std::rc::{Rc, Weak};
use std::task::Waker;

use barewire::{Cause, Endpoint, HandlerError, Interface, PendingResult, PostError};
use thiserror::Error;

use super::buffer::Buffer;
use super::device::DeviceList;
use super::lanes::Lanes;
use super::links::{self, Greeting, Greetings};
use super::message::{Header, KeyList, Kind, LONGEST_HEADER, Place};
use super::protocol::{
    Action, Body, Envelope, Limits, Machine, Mode, Moved, Opening, Outgoing, Payload, TagCounters,
    TagError, TagResult, Transfer, immediate,
};
use super::request::{Found, Request};
use super::slab::{Key, Slab};
use super::transfer::{Mover, Progress};
use crate::guard::{Held, Present, Running};
use crate::link::Link;
use crate::secret::Secret;

/// The handler of active messages that tags use on every interface.
pub const HANDLER: u8 = 31;
/// Longest eager payload that is sent as a short message.
const SHORT: usize = 112;
/// Longest eager payload for which a smaller buffer is cleared. A line of shared memory holds it.
const TINY: usize = 40;
/// A word of a header. `am_short` carries the first one as its own.
const WORD: usize = size_of::<u64>();
const TAIL: usize = LONGEST_HEADER - WORD;
/// A transport may have no room for a message, and still none to wait for. Then another event must
/// help.
const ATTEMPTS: usize = 16;

/// There are 2^23 links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("there are too many links: close some")]
pub struct TooManyLinks;

/// Sends and receives of messages that are matched by tags, over any number of links. Cloning gives
/// another handle.
///
/// Everything happens inside [`Worker::progress`](barewire::Worker::progress) and the calls of this
/// API, on one thread.
#[derive(Clone)]
pub struct Tags(pub(super) Rc<Inner>);

/// The tagged messages to and from one peer. Cloning gives another handle.
#[derive(Clone)]
pub struct TagLink(pub(super) Rc<Attached>);

pub(super) struct Attached {
    pub(super) key: Key,
    /// `tagged` is set with the lanes.
    opening: Cell<Opening>,
    /// Set once the link is connected.
    lanes: OnceCell<Connected>,
    /// The link of a node, if it is one's.
    pub(super) link: Option<Link>,
    /// A pending request of the endpoint sends what waits.
    waits: Cell<bool>,
    /// A message is being posted, inside of which anything may run.
    posting: Cell<bool>,
}

/// The lanes of a link.
struct Connected {
    lanes: Lanes,
    /// Longest payload of a short message.
    short: usize,
    /// A word leaves as a short message.
    takes_words: Cell<bool>,
    /// The peer matches tagged messages of the lane.
    tagged: Cell<bool>,
}

/// What is sent: bytes, which are copied if they cannot leave at once, or a buffer, which is not.
#[derive(Debug, Clone, Copy)]
pub enum Data<'a> {
    /// Bytes.
    Bytes(&'a [u8]),
    /// A buffer.
    Buffer(&'a Buffer),
}

impl<'a> From<&'a [u8]> for Data<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Data<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a Buffer> for Data<'a> {
    fn from(buffer: &'a Buffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl Data<'_> {
    #[inline]
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Buffer(buffer) => buffer.len(),
        }
    }

    /// The data, if it is a word.
    #[inline]
    fn word(&self) -> Option<[u8; WORD]> {
        match self {
            Self::Bytes(bytes) => (*bytes).try_into().ok(),
            Self::Buffer(buffer) => buffer.word(),
        }
    }

    fn copy_to(&self, target: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => target.copy_from_slice(bytes),
            Self::Buffer(buffer) => Payload::read(*buffer, 0, target),
        }
    }
}

impl TagLink {
    /// What the peer passes to [`Tags::connect`].
    pub fn opening(&self) -> Opening {
        self.0.opening()
    }

    /// Identifies the link in an [`Envelope`].
    pub fn key(&self) -> Key {
        self.0.key
    }

    /// The lanes; `None` before the link is connected.
    pub fn lanes(&self) -> Option<&Lanes> {
        self.0.lanes.get().map(|connected| &connected.lanes)
    }
}

impl fmt::Debug for TagLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TagLink").field("opening", &self.0.opening()).finish_non_exhaustive()
    }
}

impl Tags {
    /// Tags without links, with bounds on what peers may leave here unreceived.
    pub fn new(limits: Limits) -> Self {
        Self::with_list(limits, None, None)
    }

    /// Tags without links, for which the device of `interface` matches if it has a `list`.
    pub(super) fn with_list(
        limits: Limits,
        list: Option<DeviceList>,
        matched: Option<Interface>,
    ) -> Self {
        Self(Rc::new_cyclic(|this| Inner {
            this: this.clone(),
            machine: RefCell::new(Machine::with_list(limits, list)),
            secret: RefCell::new(Secret::random()),
            matched,
            greetings: Greetings::default(),
            links: RefCell::default(),
            movers: RefCell::default(),
            changed: RefCell::default(),
            stalled: RefCell::default(),
            due: Cell::new(false),
            running: Cell::new(false),
            again: Cell::new(false),
            endings: Cell::new(0),
        }))
    }

    /// Receives tagged messages on an interface: sets its handler of [`HANDLER`].
    pub fn serve(&self, interface: &Interface) -> Result<(), HandlerError> {
        let tags = Rc::downgrade(&self.0);
        interface.set_handler(HANDLER, move |message| {
            if let Some(tags) = tags.upgrade() {
                let _ = tags.arrived(message.data());
            }
        })
    }

    /// Adds a link over connected endpoints. It carries messages once both ends have called
    /// [`connect`](Self::connect); requests can be made before.
    pub fn attach(&self, lanes: Lanes) -> Result<TagLink, TooManyLinks> {
        let link = self.open(None)?;
        self.0.set_lanes(&link.0, lanes);
        Ok(link)
    }

    /// Adds a link that has no lanes yet.
    pub(super) fn open(&self, link: Option<Link>) -> Result<TagLink, TooManyLinks> {
        let mut secret = self.0.secret.borrow_mut();
        let opened = self.0.machine.borrow_mut().open(|| secret.number());
        drop(secret);
        let (key, opening) = opened.ok_or(TooManyLinks)?;
        let attached = Rc::new(Attached {
            key,
            opening: Cell::new(opening),
            lanes: OnceCell::new(),
            link,
            waits: Cell::new(false),
            posting: Cell::new(false),
        });
        let mut links = self.0.links.borrow_mut();
        let slot = key.slot() as usize;
        if links.len() <= slot {
            links.resize(slot + 1, None);
        }
        links[slot] = Some(Rc::clone(&attached));
        // It may have ended before.
        self.0.endings.set(u64::MAX);
        Ok(TagLink(attached))
    }

    /// Connects a link to the peer's, whose [`TagLink::opening`] is `peer`.
    pub fn connect(&self, link: &TagLink, peer: Opening) {
        self.0.connect(link.0.key, peer);
    }

    /// Sends a message.
    ///
    /// The request is complete when the data may be changed; for [`Mode::Synchronous`] when a
    /// receive has matched it. Messages of a link are matched in the order in which they were sent.
    #[inline]
    pub fn send<'a>(
        &self,
        link: &TagLink,
        tag: u64,
        data: impl Into<Data<'a>>,
        mode: Mode,
    ) -> Request {
        let (data, attached) = (data.into(), &*link.0);
        let length = data.len();
        if attached.posting.get() {
            // A message of the link is being posted further up the stack; this one comes after it.
            return self.0.send_later(attached.key, tag, data, mode);
        }
        let eager = self.0.machine.borrow_mut().eager(attached.key, tag, length, mode);
        if let Some(eager) = eager {
            if attached.post_eager(&eager.header, data).is_ok() {
                return Request::complete(Ok(Envelope { tag, length, link: attached.key }));
            }
            cold_path();
            self.0.machine.borrow_mut().eager_refused(attached.key, &eager, length);
        }
        self.0.send_later(attached.key, tag, data, mode)
    }

    /// Receives a message whose tag equals `tag` in the bits of `mask`, from any link.
    ///
    /// A message goes to the receive that was posted first of those that match it.
    pub fn receive(&self, tag: u64, mask: u64, buffer: &Buffer) -> Request {
        let key = self.0.with(|machine| machine.receive(tag, mask, buffer.clone()));
        Request::open(&self.0, key)
    }

    /// The message that a [`receive`](Self::receive) would get now. It stays for any receive.
    pub fn peek(&self, tag: u64, mask: u64) -> Option<Envelope> {
        self.0.with(|machine| machine.peek(tag, mask))
    }

    /// Takes the message that a [`receive`](Self::receive) would get now.
    pub fn probe(&self, tag: u64, mask: u64) -> Option<Found> {
        let claimed = self.0.with(|machine| machine.claim(tag, mask));
        claimed.map(|(claim, envelope)| Found::new(&self.0, claim, envelope))
    }

    /// Fails the links that have a failed endpoint: their requests complete with
    /// [`TagError::LinkFailed`]. For the [error handlers](Interface::set_error_handler) of
    /// interfaces.
    pub fn check(&self) {
        let links: Vec<_> = self.0.links.borrow().iter().flatten().cloned().collect();
        for link in links {
            if let Some(error) = link.failure() {
                self.0.machine.borrow_mut().fail(link.key, error);
            }
        }
        self.0.run();
    }

    /// Why a link carries no more messages, if it failed or was closed. Its requests are completed
    /// by the next [`progress`](Self::progress), [`wait`](Self::wait) or [`check`](Self::check).
    pub fn failure(&self, link: &TagLink) -> Option<TagError> {
        let known = self.0.machine.borrow().failure(link.0.key);
        known.or_else(|| link.0.failure())
    }

    /// Closes a link. Its requests complete with [`TagError::Closed`], and messages that were not
    /// received are dropped. The peer is not notified.
    ///
    /// Until this is called, a link that has failed or ended keeps its memory: its [`Link`] and the
    /// messages that the program has not received. A server calls this for each client that has
    /// ended.
    pub fn close(&self, link: &TagLink) {
        if let Some(place) = self.0.links.borrow_mut().get_mut(link.0.key.slot() as usize)
            && place.as_ref().is_some_and(|known| known.key == link.0.key)
        {
            *place = None;
        }
        self.0.with(|machine| machine.close(link.0.key));
    }

    /// What waits for receives here.
    pub fn counters(&self) -> TagCounters {
        self.0.machine.borrow().counters()
    }
}

impl fmt::Debug for Tags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tags").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

impl Attached {
    /// Posts an eager message of [`Machine::eager`].
    #[inline(always)]
    fn post_eager(&self, header: &Header, data: Data<'_>) -> Result<(), PostError> {
        if header.credit.is_none()
            && let Some(Connected { lanes, takes_words, .. }) = self.lanes.get()
            && takes_words.get()
            && let Some(word) = data.word()
        {
            let words = [header.tail()[0].to_le_bytes(), word];
            return lanes.messages.endpoint.am_short(HANDLER, header.word, words.as_flattened());
        }
        self.post_other(header, data)
    }

    /// As [`post_eager`](Self::post_eager), for a message that is not a word without credit.
    #[inline(never)]
    fn post_other(&self, header: &Header, data: Data<'_>) -> Result<(), PostError> {
        let Connected { lanes, short, tagged, .. } =
            self.lanes.get().ok_or(PostError::NotConnected)?;
        let endpoint = &lanes.messages.endpoint;
        let length = data.len();
        if tagged.get() {
            cold_path();
            let pack = |target: &mut [u8]| {
                data.copy_to(&mut target[..length]);
                length
            };
            return endpoint.tag_bcopy(header.word, immediate(header.link), pack).map(|_| ());
        }
        let tail = header.tail().map(u64::to_le_bytes);
        let tail = &tail.as_flattened()[..if header.credit.is_none() { WORD } else { TAIL }];
        if length <= (*short).min(TINY) {
            return Self::post_short::<{ TAIL + TINY }>(endpoint, header.word, tail, data);
        }
        if length <= *short {
            return Self::post_short::<{ TAIL + SHORT }>(endpoint, header.word, tail, data);
        }
        let pack = |target: &mut [u8]| {
            target[..WORD].copy_from_slice(&header.word.to_le_bytes());
            let (front, rest) = target[WORD..].split_at_mut(tail.len());
            front.copy_from_slice(tail);
            data.copy_to(&mut rest[..length]);
            WORD + tail.len() + length
        };
        endpoint.am_bcopy(HANDLER, pack).map(|_| ())
    }

    /// Posts a message that has at most `N` bytes with the tail of its header.
    #[inline(never)]
    fn post_short<const N: usize>(
        endpoint: &Endpoint,
        word: u64,
        tail: &[u8],
        data: Data<'_>,
    ) -> Result<(), PostError> {
        let mut message = [0; N];
        let length = tail.len() + data.len();
        message[..tail.len()].copy_from_slice(tail);
        data.copy_to(&mut message[tail.len()..length]);
        endpoint.am_short(HANDLER, word, &message[..length])
    }

    pub(super) fn opening(&self) -> Opening {
        self.opening.get()
    }

    pub(super) fn lanes(&self) -> Result<&Lanes, PostError> {
        self.lanes.get().map(|connected| &connected.lanes).ok_or(PostError::NotConnected)
    }

    /// Whether the peer matches tagged messages of the link.
    fn is_tagged(&self) -> bool {
        self.lanes.get().is_some_and(|connected| connected.tagged.get())
    }

    /// Why the link has ended. A node's link ends after one of its lanes has failed, once everything
    /// that has arrived is received.
    fn failure(&self) -> Option<TagError> {
        let lane = self.lanes().ok().and_then(Lanes::failure);
        match &self.link {
            Some(link) => links::failure(link, lane),
            None => lane.map(TagError::LinkFailed),
        }
    }

    /// Posts a message of [`Machine::next`].
    fn post(&self, outgoing: &Outgoing<Buffer>) -> Result<(), PostError> {
        if let Body::Payload { buffer, .. } = &outgoing.body
            && outgoing.header.kind == Kind::Eager
        {
            return self.post_eager(&outgoing.header, Data::Buffer(buffer));
        }
        let lanes = self.lanes()?;
        let mut keys = KeyList::default();
        let mut address = 0;
        if let Body::Announce { buffer, .. } = &outgoing.body
            && !buffer.is_empty()
        {
            address = buffer.address();
            for (number, lane) in
                lanes.usable().filter(|(_, lane)| lane.attributes.get.max_zcopy > 0)
            {
                // Without a key, the receiver uses another lane, or asks for fragments.
                let _ = buffer.registered(&lane.domain, |_, key| {
                    key.is_some_and(|key| keys.add(number, key))
                });
            }
        }
        let place = Place::new(address, &keys);
        let endpoint = &lanes.messages.endpoint;
        if let Some(immediate) = outgoing.immediate().filter(|_| self.is_tagged()) {
            let pack = |target: &mut [u8]| outgoing.write_body(place, target).unwrap_or(0);
            return endpoint.tag_bcopy(outgoing.header.word, immediate, pack).map(|_| ());
        }
        let pack = |target: &mut [u8]| outgoing.write(place, target).unwrap_or(0);
        endpoint.am_bcopy(HANDLER, pack).map(|_| ())
    }

    /// Gives the peer the right to write `buffer` over the fastest lane that can.
    fn expose(&self, buffer: &Buffer) -> Option<(<Buffer as Payload>::Grant, u64, KeyList)> {
        let mut lanes: Vec<_> = self
            .lanes()
            .ok()?
            .usable()
            .filter(|(_, lane)| lane.attributes.put.max_zcopy > 0)
            .collect();
        lanes.sort_by(|(_, a), (_, b)| b.attributes.bandwidth.total_cmp(&a.attributes.bandwidth));
        lanes.into_iter().find_map(|(number, lane)| {
            let (grant, key) = buffer.grant(&lane.domain)?;
            let mut keys = KeyList::default();
            keys.add(number, &key).then(|| (grant, buffer.address(), keys))
        })
    }

    fn cause(&self, error: PostError) -> Cause {
        let failed = self.lanes().ok().and_then(Lanes::failure);
        failed.unwrap_or(match error {
            PostError::Closed | PostError::Forked => Cause::Canceled,
            _ => Cause::LocalOperation,
        })
    }
}

/// The state behind [`Tags`]. Posts, and calls of wakers, happen while nothing of it is borrowed.
pub(super) struct Inner {
    pub(super) this: Weak<Self>,
    pub(super) machine: RefCell<Machine<Buffer, DeviceList>>,
    /// From which the numbers of links are derived.
    secret: RefCell<Secret>,
    /// The interface whose device matches.
    matched: Option<Interface>,
    /// By slot.
    links: RefCell<Vec<Option<Rc<Attached>>>>,
    pub(super) greetings: Greetings,
    movers: RefCell<Slab<Mover>>,
    /// Movers whose operations have ended.
    changed: RefCell<VecDeque<Key>>,
    /// Links and movers that had no resources and could not wait for them.
    stalled: RefCell<VecDeque<Stalled>>,
    /// Something is changed or stalled.
    due: Cell<bool>,
    /// [`run`](Self::run) is on the stack, and was called again.
    running: Cell<bool>,
    again: Cell<bool>,
    /// [`Node::endings`](crate::node::Node::endings) when the links were last examined; another
    /// value to have them examined.
    pub(super) endings: Cell<u64>,
}

#[derive(Debug, Clone, Copy)]
enum Stalled {
    Link(Key),
    Mover(Key),
}

/// Whether everything that can leave has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Enough,
    Exhausted,
}

impl Inner {
    #[inline]
    pub(super) fn result(&self, request: Key) -> Option<TagResult> {
        self.machine.borrow().result(request)
    }

    pub(super) fn cancel(&self, request: Key) -> bool {
        self.with(|machine| machine.cancel(request))
    }

    pub(super) fn wake(&self, request: Key, waker: &Waker) {
        if self.machine.borrow().wakes(request, waker) {
            return;
        }
        // The clone and the drop are the user's code.
        let waker = waker.clone();
        let before = self.machine.borrow_mut().wake(request, waker);
        drop(before);
    }

    #[inline]
    pub(super) fn detach(&self, request: Key) {
        let waker = self.machine.borrow_mut().detach(request);
        drop(waker);
    }

    pub(super) fn receive_claimed(&self, claim: Key, buffer: &Buffer) -> Option<Key> {
        self.with(|machine| machine.receive_claimed(claim, buffer.clone()))
    }

    pub(super) fn discard(&self, claim: Key) {
        self.with(|machine| machine.discard(claim));
    }

    #[inline(never)]
    fn send_later(&self, link: Key, tag: u64, data: Data<'_>, mode: Mode) -> Request {
        let Some(this) = self.this.upgrade() else {
            return Request::complete(Err(TagError::Closed));
        };
        let buffer = match data {
            Data::Bytes(bytes) => Buffer::from_bytes(bytes),
            Data::Buffer(buffer) => Ok(buffer.clone()),
        };
        let Ok(buffer) = buffer else { return Request::complete(Err(TagError::NoMemory)) };
        let key = self.with(|machine| machine.send(link, tag, buffer, mode));
        Request::open(&this, key)
    }

    /// Takes a message. Returns whether it has an effect.
    pub(super) fn arrived(&self, message: &[u8]) -> bool {
        match self.with(|machine| machine.next_arrived(message)) {
            Some(result) => result.is_ok(),
            None => self.other_arrived(message),
        }
    }

    /// As [`arrived`](Self::arrived), for a message that is not the next eager one of a link.
    #[inline(never)]
    fn other_arrived(&self, message: &[u8]) -> bool {
        if let Some(greeting) = Greeting::parse(message) {
            return self.greeted(greeting);
        }
        // A violation has failed the link, which its requests report.
        self.with(|machine| machine.arrived(message).is_ok())
    }

    /// Calls the machine, and then does what it wants done, until it wants nothing more or
    /// resources are missing.
    #[inline]
    pub(super) fn with<R>(&self, call: impl FnOnce(&mut Machine<Buffer, DeviceList>) -> R) -> R {
        let mut machine = self.machine.borrow_mut();
        let result = call(&mut machine);
        // As after most messages and requests.
        let idle = machine.is_idle() && !self.due.get();
        drop(machine);
        if !idle {
            self.run_all();
        }
        result
    }

    /// As [`with`](Self::with), without a call.
    #[inline]
    pub(super) fn run(&self) {
        self.with(|_| ());
    }

    fn stall(&self, stalled: Stalled) {
        self.stalled.borrow_mut().push_back(stalled);
        self.due.set(true);
    }

    #[inline(never)]
    fn run_all(&self) {
        let Some(_running) = Running::start(&self.running) else { return self.again.set(true) };
        loop {
            self.again.set(false);
            for stalled in Present::of(&self.stalled).filter_map(Held::take) {
                match stalled {
                    Stalled::Link(link) => self.pump(link),
                    Stalled::Mover(mover) => self.advance(mover),
                }
            }
            for mover in Present::of(&self.changed).filter_map(Held::take) {
                self.advance(mover);
            }
            while let Some(action) = self.next_action() {
                self.start(action);
            }
            while let Some(link) = self.next_ready() {
                self.pump(link);
            }
            while let Some(waker) = self.next_waker() {
                waker.wake();
            }
            if !self.again.get() && self.changed.borrow().is_empty() {
                self.due.set(!self.stalled.borrow().is_empty());
                break;
            }
        }
    }

    fn next_action(&self) -> Option<Action<Buffer>> {
        self.machine.borrow_mut().action()
    }

    fn next_ready(&self) -> Option<Key> {
        self.machine.borrow_mut().ready()
    }

    fn next_waker(&self) -> Option<Waker> {
        self.machine.borrow_mut().waker()
    }

    /// The link is connected: its lanes are known.
    pub(super) fn set_lanes(&self, attached: &Attached, lanes: Lanes) {
        // Messages of other interfaces come to software.
        let tagged =
            self.matched.as_ref().is_some_and(|matched| matched.is(&lanes.messages.interface));
        let source = lanes.messages.endpoint.tag_queue_pair().filter(|_| tagged);
        let mut machine = self.machine.borrow_mut();
        machine.set_limits(attached.key, lanes.limits());
        machine.set_source(attached.key, source);
        drop(machine);
        attached.opening.set(Opening { tagged, ..attached.opening() });
        let short = lanes.messages.attributes.am.max_short.saturating_sub(TAIL).min(SHORT);
        // Set once.
        let _ = attached.lanes.set(Connected {
            lanes,
            short,
            takes_words: Cell::new(false),
            tagged: Cell::new(false),
        });
    }

    pub(super) fn connect(&self, link: Key, peer: Opening) {
        self.machine.borrow_mut().connect(link, peer);
        if let Some(attached) = self.attached(link)
            && let Some(connected) = attached.lanes.get()
        {
            connected.tagged.set(peer.tagged);
            connected.takes_words.set(!peer.tagged && connected.short >= WORD);
        }
        self.run();
    }

    pub(super) fn attached(&self, link: Key) -> Option<Rc<Attached>> {
        let links = self.links.borrow();
        let known = links.get(link.slot() as usize)?.as_ref()?;
        (known.key == link).then(|| Rc::clone(known))
    }

    /// Sends what waits on a link. Without resources, a pending request of the endpoint continues.
    fn pump(&self, link: Key) {
        let Some(attached) = self.attached(link) else { return };
        // What posts further up the stack, or waits, sends this as well.
        if attached.waits.get() || attached.posting.get() {
            return;
        }
        for _ in 0..ATTEMPTS {
            let turn = Turn { tags: self, attached: &attached };
            let room = self.send_waiting(&attached);
            std::mem::forget(turn);
            if room == Room::Enough {
                return;
            }
            let tags = self.this.clone();
            attached.waits.set(true);
            let added = attached.lanes().map(|lanes| {
                lanes.messages.endpoint.pending_add(move |_| {
                    tags.upgrade().map_or(PendingResult::Done, |tags| tags.resume_link(link))
                })
            });
            if let Ok(Ok(())) = added {
                return;
            }
            attached.waits.set(false);
        }
        self.stall(Stalled::Link(link));
    }

    /// Posts until nothing waits or resources are missing.
    fn send_waiting(&self, attached: &Attached) -> Room {
        let link = attached.key;
        loop {
            let Some(outgoing) = self.machine.borrow_mut().next(link) else { return Room::Enough };
            let Some(posting) = Running::start(&attached.posting) else { return Room::Enough };
            let posted = Posted { tags: self, link, outgoing: &outgoing };
            let result = attached.post(&outgoing);
            drop(posting);
            match result {
                // Its drop notes that the message was sent.
                Ok(()) => drop(posted),
                Err(PostError::NoResource) => {
                    std::mem::forget(posted);
                    return Room::Exhausted;
                }
                // The message waits for the end of the node's link.
                Err(PostError::EndpointFailed)
                    if attached.link.is_some() && attached.failure().is_none() =>
                {
                    std::mem::forget(posted);
                    return Room::Enough;
                }
                Err(error) => {
                    std::mem::forget(posted);
                    let error = TagError::LinkFailed(attached.cause(error));
                    self.machine.borrow_mut().fail(link, error);
                    self.again.set(true);
                    return Room::Enough;
                }
            }
        }
    }

    /// The turn of a link's pending request.
    fn resume_link(&self, link: Key) -> PendingResult {
        let Some(attached) = self.attached(link) else { return PendingResult::Done };
        let turn = Turn { tags: self, attached: &attached };
        let running = Running::start(&self.running);
        let room = self.send_waiting(&attached);
        drop(running);
        std::mem::forget(turn);
        if room == Room::Exhausted {
            self.run();
            return PendingResult::Again;
        }
        attached.waits.set(false);
        self.run();
        PendingResult::Done
    }

    fn start(&self, action: Action<Buffer>) {
        match action {
            Action::Expose { request, link, buffer, .. } => {
                let granted = self.attached(link).and_then(|attached| attached.expose(&buffer));
                self.machine.borrow_mut().exposed(request, granted);
            }
            Action::Fetch(transfer) => self.start_mover(transfer, false),
            Action::Put(transfer) => self.start_mover(transfer, true),
        }
    }

    fn start_mover(&self, transfer: Transfer<Buffer>, puts: bool) {
        let request = transfer.request;
        // The key of the mover is known only when it is in the table.
        let slot: Rc<Cell<Option<Key>>> = Rc::default();
        let (tags, own) = (self.this.clone(), Rc::clone(&slot));
        let ended = move || {
            if let (Some(tags), Some(mover)) = (tags.upgrade(), own.get()) {
                tags.changed.borrow_mut().push_back(mover);
                tags.due.set(true);
                tags.run();
            }
        };
        let attached = self.attached(transfer.link);
        let mover =
            attached.and_then(|attached| Mover::new(transfer, puts, attached.lanes().ok()?, ended));
        let Some(mover) = mover else {
            return self.machine.borrow_mut().moved(request, Moved::Unsupported);
        };
        let key = self.movers.borrow_mut().insert(mover);
        slot.set(Some(key));
        self.advance(key);
    }

    /// Posts what a mover has to post. Without resources, a pending request of the endpoint
    /// continues.
    fn advance(&self, mover: Key) {
        for _ in 0..ATTEMPTS {
            if self.post_part(mover) == Room::Enough {
                return;
            }
            let Some(endpoint) =
                self.movers.borrow().get(mover).and_then(|mover| mover.endpoint().cloned())
            else {
                return;
            };
            let tags = self.this.clone();
            let added = endpoint.pending_add(move |_| {
                tags.upgrade().map_or(PendingResult::Done, |tags| tags.resume_mover(mover))
            });
            if added.is_ok() {
                return;
            }
        }
        self.stall(Stalled::Mover(mover));
    }

    fn post_part(&self, mover: Key) -> Room {
        let mut movers = self.movers.borrow_mut();
        let Some(entry) = movers.get_mut(mover) else { return Room::Enough };
        match entry.advance() {
            Progress::Blocked => Room::Exhausted,
            Progress::Posted => Room::Enough,
            Progress::Ended(moved) => {
                let ended = movers.remove(mover);
                drop(movers);
                if let Some(ended) = ended {
                    self.machine.borrow_mut().moved(ended.transfer.request, moved);
                    self.again.set(true);
                }
                Room::Enough
            }
        }
    }

    /// Resumes the transfer `mover`, whose pending request has its turn.
    fn resume_mover(&self, mover: Key) -> PendingResult {
        let running = Running::start(&self.running);
        let room = self.post_part(mover);
        drop(running);
        self.run();
        if room == Room::Exhausted { PendingResult::Again } else { PendingResult::Done }
    }
}

/// A message that is posted: its drop notes that it was sent, also after a panic of a receiver that
/// ran inside of the post.
struct Posted<'a> {
    tags: &'a Inner,
    link: Key,
    outgoing: &'a Outgoing<Buffer>,
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        self.tags.machine.borrow_mut().sent(self.link, self.outgoing);
    }
}

/// The turn of a link to send. After a panic, of a handler that a post calls for example, what is
/// left to send continues by itself: the endpoint drops a pending request that panics.
struct Turn<'a> {
    tags: &'a Inner,
    attached: &'a Attached,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.attached.waits.set(false);
        self.tags.stall(Stalled::Link(self.attached.key));
    }
}
