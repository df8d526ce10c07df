//! The lanes over which tagged messages travel.

use std::rc::Rc;

use barewire::{Attributes, Cause, Domain, Endpoint, Flags, Interface};

use super::message::MAX_LANES;
use super::protocol::LinkLimits;
use crate::plan::Costs;

/// One endpoint, with the domain in which it finds memory.
#[derive(Debug, Clone)]
pub struct Lane {
    /// The endpoint, connected.
    pub endpoint: Endpoint,
    /// The domain of its interface. Lanes of one domain share the handle, so that memory is
    /// registered once.
    pub domain: Rc<Domain>,
    /// Its interface.
    pub interface: Interface,
    /// The interface's attributes. A transfer keeps a clone of its lane.
    pub attributes: Rc<Attributes>,
}

impl Lane {
    /// A lane over an endpoint of `interface`, which is open in `domain`.
    pub fn new(endpoint: Endpoint, interface: &Interface, domain: &Rc<Domain>) -> Self {
        Self {
            endpoint,
            domain: Rc::clone(domain),
            interface: interface.clone(),
            attributes: Rc::new(interface.attributes().clone()),
        }
    }
}

/// The lanes between two processes. Both name the same lanes in the same order.
#[derive(Debug, Clone)]
pub struct Lanes {
    /// Carries all messages, in order. It has short and buffered active messages.
    pub messages: Lane,
    /// May get and put. Not more than 8 are used.
    pub bulk: Vec<Lane>,
    /// Longest eager message in bytes, instead of where the [`costs`](Self::costs) cross.
    pub threshold: Option<usize>,
}

impl Lanes {
    /// Lanes with the threshold of their costs.
    pub fn new(messages: Lane, bulk: Vec<Lane>) -> Self {
        Self { messages, bulk, threshold: None }
    }

    /// The times from which the threshold follows, to be printed.
    pub fn costs(&self) -> Costs {
        Costs::new(&self.messages.attributes, self.usable().map(|(_, lane)| &*lane.attributes))
    }

    /// The lanes that can be named in messages, with their numbers.
    pub(super) fn usable(&self) -> impl Iterator<Item = (usize, &Lane)> {
        self.bulk.iter().enumerate().take(MAX_LANES)
    }

    pub(super) fn limits(&self) -> LinkLimits {
        let threshold = self.threshold.or_else(|| self.costs().crossing()).unwrap_or(usize::MAX);
        let Attributes { flags, am, tag, .. } = &*self.messages.attributes;
        let tagged = if flags.contains(Flags::TAG_EAGER_BCOPY) { tag.max_bcopy } else { 0 };
        LinkLimits { message: am.max_bcopy, threshold, tagged }
    }

    /// Why one of the endpoints failed.
    pub(super) fn failure(&self) -> Option<Cause> {
        let mut lanes = std::iter::once(&self.messages).chain(&self.bulk);
        lanes.find_map(|lane| lane.endpoint.error()).map(|error| error.cause)
    }
}
