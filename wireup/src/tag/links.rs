//! Tags over the links of a node.
//!
//! When a link is connected, each side greets the other: it sends its [`Opening`] to the link,
//! which it names by the number that the peer has given it. The number is random, so the greeting
//! of another process finds no link.
//!
//! | offset | size | field |
//! |---:|---:|---|
//! | 0 | 8 | the link, as its receiver numbers it, little endian |
//! | 8 | 1 | 0, which is no kind of the tag protocol |
//! | 9 | 1 | version |
//! | 10 | 15 | the opening |

use std::cell::{OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use barewire::{
    Cause, Domain, EventError, Flags, HandlerError, Interface, MemoryError, PendingResult,
    PostError, TransportId,
};

use super::buffer::Buffer;
use super::lanes::{Lane, Lanes};
use super::message::VERSION;
use super::protocol::{Limits, Opening, TagError};
use super::slab::Key;
use super::tags::{Attached, HANDLER, Inner, TagLink, Tags, TooManyLinks};
use crate::link::{Link, State};
use crate::node::Node;
use crate::plan::{Costs, Kind};

const FRONT: usize = 10;
const GREETING: usize = FRONT + Opening::BYTES;
/// The length from which a buffer is worth a mapping of its own.
const MAPPED: usize = 4096;
/// Greetings that may wait at one link. More are not sent, as a link has one [`TagLink`].
const MAX_WAITING: usize = 8;

/// A node's opening of one of its links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Greeting {
    /// The link, as the receiver numbers it.
    link: u64,
    opening: Opening,
}

impl Greeting {
    fn to_bytes(self) -> [u8; GREETING] {
        let mut bytes = [0; GREETING];
        bytes[..8].copy_from_slice(&self.link.to_le_bytes());
        bytes[9] = VERSION;
        bytes[FRONT..].copy_from_slice(&self.opening.to_bytes());
        bytes
    }

    /// `None` for any other message.
    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        if *bytes.get(8)? != 0 {
            return None;
        }
        let (link, rest) = bytes.split_first_chunk()?;
        let opening = rest.strip_prefix(&[0, VERSION])?.as_array()?;
        Some(Self { link: u64::from_le_bytes(*link), opening: Opening::from_bytes(*opening) })
    }
}

/// Whether a link of the node has this number.
type HasLink = Box<dyn Fn(u64) -> bool>;

/// The greetings that are due.
#[derive(Default)]
pub(super) struct Greetings {
    has_link: OnceCell<HasLink>,
    interfaces: OnceCell<Vec<(Interface, Rc<Domain>)>>,
    /// By the number of the link.
    waiting: RefCell<HashMap<u64, Waiting>>,
}

/// What waits for the other side at one link. Never both.
#[derive(Default)]
struct Waiting {
    /// What has greeted.
    links: VecDeque<Key>,
    greetings: VecDeque<Opening>,
}

impl Tags {
    /// Tags over the links of a node. A node has only one. If the device of one of its interfaces
    /// matches tags ([`tag_matching`](barewire::InterfaceConfig::tag_matching)), it does so for the
    /// links whose messages go over that interface, as with [`matched_by`](Self::matched_by).
    ///
    /// Drive the node by [`progress`](Self::progress) or [`wait`](Self::wait), so that requests of
    /// links that end are completed.
    pub fn over(node: &mut Node, limits: Limits) -> Result<Self, HandlerError> {
        let interfaces: Vec<_> = node
            .interfaces()
            .map(|(interface, domain)| (interface.clone(), Rc::new(domain.clone())))
            .collect();
        let matched = interfaces
            .iter()
            .find(|(interface, _)| interface.attributes().flags.contains(Flags::TAG_EAGER_BCOPY));
        let tags = match matched {
            Some((interface, domain)) => Self::matching(limits, interface, domain, 0)?,
            None => Self::new(limits),
        };
        // Set once, here.
        let _ = tags.0.greetings.has_link.set(node.has_link());
        let _ = tags.0.greetings.interfaces.set(interfaces);
        let inner = Rc::downgrade(&tags.0);
        node.set_any_handler(HANDLER, move |message| {
            inner.upgrade().is_some_and(|tags| tags.arrived(message.data()))
        })?;
        Ok(tags)
    }

    /// The tagged messages of a link, which need not be connected yet. Both ends call this, once
    /// for each link between two nodes.
    pub fn link(&self, link: &Link) -> Result<TagLink, TooManyLinks> {
        let tag_link = self.open(Some(link.clone()))?;
        let (key, tags) = (tag_link.key(), self.0.this.clone());
        let greet = move |link: &Link| {
            tags.upgrade().map_or(PendingResult::Done, |tags| tags.greet(key, link))
        };
        // Without resources, it waits; otherwise it runs at once.
        while link.pending_add(Kind::Messages, greet.clone()).is_err() {
            if greet(link) == PendingResult::Done {
                break;
            }
        }
        self.0.run();
        Ok(tag_link)
    }

    /// Returns zeroed memory of `length` bytes for messages. Processes of this host read long
    /// messages from it without a system call, if the node uses `shm`.
    pub fn buffer(&self, length: usize) -> Result<Buffer, MemoryError> {
        let mut domains = self.0.greetings.interfaces.get().into_iter().flatten();
        let shm = domains.find(|(_, domain)| domain.transport() == TransportId::Shm);
        match shm.filter(|_| length >= MAPPED) {
            // Descriptors may be exhausted, which other memory does not need.
            Some((_, domain)) => Buffer::allocate(length, domain).or_else(|_| Buffer::new(length)),
            None => Buffer::new(length),
        }
    }

    /// Makes progress on the node, and completes the requests of links that have failed or were
    /// closed. Returns the number of events. Links are examined only after one of the node's has
    /// ended.
    #[inline]
    pub fn progress(&self, node: &mut Node) -> usize {
        let events = node.progress();
        if self.0.endings.replace(node.endings()) != node.endings() {
            self.0.greetings.forget_ended();
            self.check();
        } else if events == 0 {
            self.0.run();
        }
        events
    }

    /// Makes progress as [`progress`](Self::progress), and sleeps until there is some to make, as
    /// [`Node::wait`], which names the events. Returns their number; zero if `timeout` passed.
    ///
    /// ```
    /// use barewire_wireup::link::Options;
    /// use barewire_wireup::tag::{Buffer, FULL_MASK, Limits, Mode, Tags};
    /// use barewire_wireup::{Node, Rules};
    /// use std::time::Duration;
    ///
    /// let mut node = Node::open(&Rules::default().only(["self"]))?;
    /// let tags = Tags::over(&mut node, Limits::default())?;
    /// let ends = [(); 2].map(|()| node.connect(&node.address(), Options::default()));
    /// let [Ok(here), Ok(there)] = ends else { panic!("{ends:?}") };
    /// let (here, there) = (tags.link(&here)?, tags.link(&there)?);
    /// let buffer = Buffer::new(5)?;
    /// let receive = tags.receive(7, FULL_MASK, &buffer);
    /// drop(tags.send(&here, 7, b"hello", Mode::Auto));
    /// while receive.poll().is_none() {
    ///     // A receive belongs to no link, so it does not end with one.
    ///     tags.failure(&there).map_or(Ok(()), Err)?;
    ///     tags.wait(&mut node, Some(Duration::from_millis(10)))?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Node::wait`].
    pub fn wait(&self, node: &mut Node, timeout: Option<Duration>) -> Result<usize, EventError> {
        let endings = self.0.endings.get();
        let events = self.progress(node);
        if events > 0 || self.0.endings.get() != endings {
            return Ok(events.max(1));
        }
        let events = node.wait(timeout)?;
        Ok(events + self.progress(node))
    }
}

impl Greetings {
    fn has_link(&self, number: u64) -> bool {
        self.has_link.get().is_some_and(|has_link| has_link(number))
    }

    /// Drops what waits at links that have ended.
    fn forget_ended(&self) {
        self.waiting.borrow_mut().retain(|number, _| self.has_link(*number));
    }
}

impl Inner {
    /// The link is connected: notes its lanes, and sends the greeting.
    fn greet(&self, key: Key, link: &Link) -> PendingResult {
        let Some(attached) = self.attached(key) else { return PendingResult::Done };
        let (own, peer) = link.0.names.get();
        if attached.lanes().is_err() {
            let Some(lanes) = self.lanes_of(link) else { return PendingResult::Done };
            self.set_lanes(&attached, lanes);
        }
        match send_greeting(&attached, peer) {
            Err(PostError::NoResource) => PendingResult::Again,
            Err(_) => PendingResult::Done,
            Ok(()) => {
                self.greeted_by(key, own);
                PendingResult::Done
            }
        }
    }

    /// A link has greeted: connects it if the peer has done so.
    fn greeted_by(&self, key: Key, number: u64) {
        let mut all = self.greetings.waiting.borrow_mut();
        let waiting = all.entry(number).or_default();
        let Some(opening) = waiting.greetings.pop_front() else {
            return waiting.links.push_back(key);
        };
        drop(all);
        self.connect(key, opening);
    }

    /// A peer has greeted: connects the link if it has done so. Returns whether the greeting has an
    /// effect.
    pub(super) fn greeted(&self, greeting: Greeting) -> bool {
        let Greeting { link: number, opening } = greeting;
        if !self.greetings.has_link(number) {
            // A stranger's, or late.
            return false;
        }
        let mut all = self.greetings.waiting.borrow_mut();
        let waiting = all.entry(number).or_default();
        let Some(link) = waiting.links.pop_front() else {
            let has_room = waiting.greetings.len() < MAX_WAITING;
            if has_room {
                waiting.greetings.push_back(opening);
            }
            return has_room;
        };
        drop(all);
        self.connect(link, opening);
        true
    }

    /// The lanes of a connected link, in its order.
    fn lanes_of(&self, link: &Link) -> Option<Lanes> {
        let interfaces = self.greetings.interfaces.get()?;
        let lanes: Vec<_> = link
            .lanes()
            .iter()
            .filter_map(|info| {
                let (interface, domain) = interfaces.get(usize::from(info.lane().pair.here))?;
                Some(Lane::new(info.endpoint().clone(), interface, domain))
            })
            .collect();
        let first =
            link.lanes().iter().position(|info| info.lane().kinds.contains(Kind::Messages))?;
        // The threshold that the plan shows, which is the same on both sides.
        let rails = link.lanes().iter().filter(|info| info.lane().kinds.contains(Kind::Bulk));
        let costs =
            Costs::of(link.lanes().get(first)?.lane().into(), rails.map(|info| info.lane().into()));
        let threshold = costs.rendezvous.map(|_| costs.crossing().unwrap_or(usize::MAX));
        Some(Lanes { threshold, ..Lanes::new(lanes.get(first)?.clone(), lanes) })
    }
}

/// Sends a greeting to the link that the peer numbers so.
fn send_greeting(attached: &Attached, link: u64) -> Result<(), PostError> {
    let bytes = Greeting { link, opening: attached.opening() }.to_bytes();
    let pack = |target: &mut [u8]| {
        target[..GREETING].copy_from_slice(&bytes);
        GREETING
    };
    attached.lanes()?.messages.endpoint.am_bcopy(HANDLER, pack).map(|_| ())
}

/// Why a node's link has ended, of which a lane may have failed.
pub(super) fn failure(link: &Link, lane: Option<Cause>) -> Option<TagError> {
    match link.state() {
        State::Closed(_) => Some(TagError::Closed),
        State::Failed(cause) if lane.is_none() && cause.is_late() => Some(TagError::Late),
        State::Failed(_) => Some(TagError::LinkFailed(lane.unwrap_or(Cause::Disconnected))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tag::Window;

    #[test]
    fn a_greeting_has_the_documented_bytes() {
        let window = Window { messages: 0x0a09, bytes: 0x0e0d_0c0b };
        let opening = Opening { link: 0x0807_0605_0403_0201, window, tagged: false };
        let greeting = Greeting { link: 0x1817_1615_1413_1211, opening };
        let mut golden: Vec<u8> = (0x11..=0x18).collect();
        golden.extend([0, 5]);
        golden.extend(1..=14);
        golden.push(0);
        assert_eq!(greeting.to_bytes().as_slice(), golden);
        assert_eq!(Greeting::parse(&golden), Some(greeting));
        let tagged = Greeting { opening: Opening { tagged: true, ..opening }, ..greeting };
        assert_eq!(tagged.to_bytes()[24], 1);
        assert_eq!(Greeting::parse(&tagged.to_bytes()), Some(tagged));
        for length in 0..golden.len() {
            assert_eq!(Greeting::parse(&golden[..length]), None);
        }
        for at in 8..10 {
            golden[at] ^= 2;
            assert_eq!(Greeting::parse(&golden), None);
            golden[at] ^= 2;
        }
    }
}
