//! Tags over the links of a node.
//!
//! When a link is connected, each side greets the other: it sends its [`Opening`], with the
//! identifier of its node. The n-th greeting of a node belongs to the n-th link that leads to it.
//!
//! | offset | size | field |
//! |---:|---:|---|
//! | 0 | 8 | 0 |
//! | 8 | 1 | 0, which is no kind of the tag protocol |
//! | 9 | 1 | version |
//! | 10 | 16 | the node that sends it |
//! | 26 | 10 | the opening |

use std::cell::{OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use barewire::{
    Cause, Domain, Flags, HandlerError, Interface, MemoryError, PendingResult, PostError,
    TransportId,
};

use super::buffer::Buffer;
use super::lanes::{Lane, Lanes};
use super::message::VERSION;
use super::protocol::{Limits, Opening, TagError};
use super::slab::Key;
use super::tags::{Attached, HANDLER, Inner, TagLink, Tags, TooManyLinks};
use crate::address::Uuid;
use crate::link::{Link, State};
use crate::node::Node;
use crate::plan::{Costs, Kind};

const GREETING: usize = 36;
/// The length from which a buffer is worth a mapping of its own.
const MAPPED: usize = 4096;
/// Greetings that may wait for a link, of all peers together.
const MAX_WAITING: usize = 1 << 16;

/// A node's opening of one of its links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Greeting {
    node: Uuid,
    opening: Opening,
}

impl Greeting {
    fn to_bytes(self) -> [u8; GREETING] {
        let mut bytes = [0; GREETING];
        bytes[9] = VERSION;
        bytes[10..26].copy_from_slice(&self.node.0);
        bytes[26..].copy_from_slice(&self.opening.to_bytes());
        bytes
    }

    /// `None` for any other message.
    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        if *bytes.get(8)? != 0 {
            return None;
        }
        let (rest, opening) = bytes.split_last_chunk()?;
        let (front, node) = rest.split_last_chunk()?;
        let right = *front == [0, 0, 0, 0, 0, 0, 0, 0, 0, VERSION];
        right.then(|| Self { node: Uuid(*node), opening: Opening::from_bytes(*opening) })
    }
}

/// The node, and the greetings that are due.
#[derive(Default)]
pub(super) struct Greetings {
    node: OnceCell<Uuid>,
    interfaces: OnceCell<Vec<(Interface, Rc<Domain>)>>,
    waiting: RefCell<Waiting>,
}

/// What waits for the other side, by node. Never both for one node.
#[derive(Default)]
struct Waiting {
    /// Links that have greeted.
    links: HashMap<Uuid, VecDeque<Key>>,
    greetings: HashMap<Uuid, VecDeque<Opening>>,
    /// Greetings in all.
    count: usize,
}

impl Tags {
    /// Tags over the links of a node. A node has only one. If the device of one of its interfaces
    /// matches tags ([`tag_matching`](barewire::InterfaceConfig::tag_matching)), it does so for the
    /// links whose messages go over that interface, as with [`matched_by`](Self::matched_by).
    ///
    /// Drive the node by [`progress`](Self::progress), so that requests of links that end are
    /// completed.
    ///
    /// # Errors
    /// [`HandlerError`]
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
        let _ = tags.0.greetings.node.set(node.uuid());
        let _ = tags.0.greetings.interfaces.set(interfaces);
        let inner = Rc::downgrade(&tags.0);
        node.set_any_handler(HANDLER, move |message| {
            if let Some(tags) = inner.upgrade() {
                tags.arrived(message.data());
            }
        })?;
        Ok(tags)
    }

    /// The tagged messages of a link, which need not be connected yet. Both ends call this, once
    /// for each link between two nodes.
    ///
    /// # Errors
    /// [`TooManyLinks`]
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
    ///
    /// # Errors
    /// [`MemoryError::NoMemory`]
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
            self.check();
        } else if events == 0 {
            self.0.run();
        }
        events
    }
}

impl Inner {
    /// The link is connected: notes its lanes, and sends the greeting.
    fn greet(&self, key: Key, link: &Link) -> PendingResult {
        let (Some(attached), Some(&node)) = (self.attached(key), self.greetings.node.get()) else {
            return PendingResult::Done;
        };
        if attached.lanes().is_err() {
            let Some(lanes) = self.lanes_of(link) else { return PendingResult::Done };
            self.set_lanes(&attached, lanes);
        }
        match send_greeting(&attached, node) {
            Err(PostError::NoResource) => PendingResult::Again,
            Err(_) => PendingResult::Done,
            Ok(()) => {
                self.greeted_by(key, link.peer());
                PendingResult::Done
            }
        }
    }

    /// A link has greeted: connects it if the peer has done so.
    fn greeted_by(&self, key: Key, peer: Uuid) {
        let mut waiting = self.greetings.waiting.borrow_mut();
        let opening = waiting.greetings.get_mut(&peer).and_then(VecDeque::pop_front);
        let Some(opening) = opening else {
            return waiting.links.entry(peer).or_default().push_back(key);
        };
        waiting.count -= 1;
        drop(waiting);
        self.connect(key, opening);
    }

    /// A peer has greeted: connects the link if it has done so.
    pub(super) fn greeted(&self, greeting: Greeting) {
        let Greeting { node, opening } = greeting;
        let mut waiting = self.greetings.waiting.borrow_mut();
        let link = waiting.links.get_mut(&node).and_then(VecDeque::pop_front);
        let Some(link) = link else {
            if waiting.count < MAX_WAITING {
                waiting.count += 1;
                waiting.greetings.entry(node).or_default().push_back(opening);
            }
            return;
        };
        drop(waiting);
        self.connect(link, opening);
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

fn send_greeting(attached: &Attached, node: Uuid) -> Result<(), PostError> {
    let bytes = Greeting { node, opening: attached.opening() }.to_bytes();
    let pack = |target: &mut [u8]| {
        target[..GREETING].copy_from_slice(&bytes);
        GREETING
    };
    attached.lanes()?.messages.endpoint.am_bcopy(HANDLER, pack).map(|_| ())
}

/// Why a node's link has ended.
pub(super) fn failure(link: &Link) -> Option<TagError> {
    match link.state() {
        State::Closed(_) => Some(TagError::Closed),
        State::Failed(_) => Some(TagError::LinkFailed(Cause::Disconnected)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tag::Window;

    #[test]
    fn a_greeting_has_the_documented_bytes() {
        let window = Window { messages: 0x0605, bytes: 0x0a09_0807 };
        let opening = Opening { link: 0x0403_0201, window, tagged: false };
        let greeting = Greeting { node: Uuid([9; 16]), opening };
        let mut golden = vec![0; 9];
        golden.push(1);
        golden.extend([9; 16]);
        golden.extend(1..=10);
        assert_eq!(greeting.to_bytes().as_slice(), golden);
        assert_eq!(Greeting::parse(&golden), Some(greeting));
        let tagged = Greeting { opening: Opening { tagged: true, ..opening }, ..greeting };
        assert_eq!(tagged.to_bytes()[29], 0x84);
        assert_eq!(Greeting::parse(&tagged.to_bytes()), Some(tagged));
        for length in 0..golden.len() {
            assert_eq!(Greeting::parse(&golden[..length]), None);
        }
        for at in 0..10 {
            golden[at] ^= 2;
            assert_eq!(Greeting::parse(&golden), None);
            golden[at] ^= 2;
        }
    }
}
