//! The ranks of a parallel program as peers.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use barewire_bootstrap::{Bootstrap, all_gather};
use thiserror::Error;

use crate::address::{AddressError, Uuid, WorkerAddress};
use crate::link::{Link, Options};
use crate::node::{ConnectError, Node};
use crate::tag::{TagLink, Tags, TooManyLinks};

/// Why the ranks of a job have not found each other.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The launcher's key-value exchange failed.
    #[error(transparent)]
    Bootstrap(#[from] barewire_bootstrap::Error),
    /// A rank published bytes that are not the address of a node.
    #[error("the address of rank {rank}: {source}")]
    Address {
        /// The rank.
        rank: u32,
        /// What is wrong with it.
        source: AddressError,
    },
}

/// Why there is no link for tagged messages.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TagLinkError {
    /// The rank cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The node has too many links.
    #[error(transparent)]
    TooManyLinks(#[from] TooManyLinks),
}

/// The addresses of all ranks, and the links to those that were used.
///
/// Links are made at first use, by whichever side uses them first. There is one link between two
/// ranks, also if both connect at the same time.
///
/// ```
/// use barewire_wireup::link::State;
/// use barewire_wireup::node::{Node, Rules};
/// use barewire_wireup::peers::Peers;
/// use std::time::Duration;
///
/// let mut job = barewire_bootstrap::detect()?;
/// let mut node = Node::open(&Rules::default())?;
/// let peers = Peers::exchange(&mut node, &mut *job, Duration::from_secs(30))?;
/// let next = peers.link(&mut node, (peers.rank() + 1) % peers.size())?;
/// while next.state() != State::Connected {
///     node.progress();
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Peers {
    rank: u32,
    addresses: Vec<WorkerAddress>,
    links: Rc<RefCell<HashMap<Uuid, Link>>>,
    /// Those that carry tagged messages, by rank.
    tag_links: RefCell<HashMap<u32, TagLink>>,
    /// The last end of a link that is no sign of a dead rank.
    tolerated: Cell<u64>,
}

impl Peers {
    /// Exchanges the addresses of all ranks. Every rank has to call this, once per job, and waits
    /// for the others. [`exchange_as`](Self::exchange_as) is for further nodes of a rank.
    ///
    /// From then on, the node's [`on_peer`](Node::on_peer) handler is that of the returned value,
    /// and errors of its links name the rank.
    pub fn exchange(
        node: &mut Node,
        job: &mut dyn Bootstrap,
        timeout: Duration,
    ) -> Result<Self, ExchangeError> {
        Self::exchange_as(node, job, "barewire-node", timeout)
    }

    /// As [`exchange`](Self::exchange), for one of several nodes of each rank: one per thread, or
    /// one with other [`Rules`](crate::Rules), such as a single transport. The nodes that are
    /// exchanged with one `name`, a key of the job ([`Bootstrap::put`]), are each other's
    /// peers.
    pub fn exchange_as(
        node: &mut Node,
        job: &mut dyn Bootstrap,
        name: &str,
        timeout: Duration,
    ) -> Result<Self, ExchangeError> {
        let all = all_gather(job, name, node.address().as_bytes(), timeout)?;
        let parse = |(rank, bytes): (u32, Vec<u8>)| {
            WorkerAddress::from_bytes(&bytes)
                .map_err(|source| ExchangeError::Address { rank, source })
        };
        let addresses = (0..).zip(all).map(parse).collect::<Result<Vec<_>, _>>()?;
        node.set_ranks(addresses.iter().map(WorkerAddress::uuid).zip(0..).collect());
        let links: Rc<RefCell<HashMap<Uuid, Link>>> = Rc::default();
        let known = Rc::clone(&links);
        node.on_peer(move |incoming| {
            known.borrow_mut().entry(incoming.link.peer()).or_insert(incoming.link);
        });
        let tag_links = RefCell::default();
        let tolerated = Cell::default();
        Ok(Self { rank: job.rank(), addresses, links, tag_links, tolerated })
    }

    /// Returns the rank of this process.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> u32 {
        self.addresses.len() as u32
    }

    /// Returns the address of a rank; `None` if there are not so many.
    pub fn address(&self, rank: u32) -> Option<&WorkerAddress> {
        self.addresses.get(usize::try_from(rank).ok()?)
    }

    /// Returns the rank of a node, such as the [peer](Link::peer) of a link; `None` if the node is
    /// not of this job.
    pub fn rank_of(&self, node: Uuid) -> Option<u32> {
        (0..)
            .zip(&self.addresses)
            .find_map(|(rank, address)| (address.uuid() == node).then_some(rank))
    }

    /// Returns the link to a rank, and connects it at the first call. It is connected once its
    /// state says so, and accepts [pending requests](Link::pending_add) before.
    ///
    /// # Errors
    /// [`ConnectError`]
    ///
    /// # Panics
    /// Panics if there is no such rank.
    pub fn link(&self, node: &mut Node, rank: u32) -> Result<Link, ConnectError> {
        let address = self.address(rank);
        let address =
            address.unwrap_or_else(|| panic!("there is no rank {rank} of {}", self.size()));
        if let Some(link) = self.links.borrow().get(&address.uuid()) {
            return Ok(link.clone());
        }
        let link = node.connect(address, Options::default())?;
        if rank == self.rank {
            // A link to oneself has two ends, both of which have to be asked for.
            let _other = node.connect(address, Options::default())?;
        }
        self.links.borrow_mut().insert(address.uuid(), link.clone());
        Ok(link)
    }

    /// Returns the link to a rank for tagged messages, over the `tags` of the node. It is made at
    /// the first call: there is one between two ranks, which [`Collectives`] use as well, so a
    /// program takes it from here and not from [`Tags::link`].
    ///
    /// [`Collectives`]: crate::collective::Collectives
    ///
    /// # Errors
    /// [`TagLinkError`]
    ///
    /// # Panics
    /// As [`link`](Self::link).
    pub fn tag_link(
        &self,
        node: &mut Node,
        tags: &Tags,
        rank: u32,
    ) -> Result<TagLink, TagLinkError> {
        if let Some(link) = self.tag_links.borrow().get(&rank) {
            return Ok(link.clone());
        }
        let link = tags.link(&self.link(node, rank)?)?;
        self.tag_links.borrow_mut().insert(rank, link.clone());
        Ok(link)
    }

    /// The links for tagged messages, by rank.
    pub(crate) fn tag_links(&self) -> Vec<(u32, TagLink)> {
        let links = self.tag_links.borrow();
        links.iter().map(|(rank, link)| (*rank, link.clone())).collect()
    }

    /// The ranks with a connected link, whichever side opened it.
    pub(crate) fn linked(&self) -> Vec<u32> {
        let links = self.links.borrow();
        let connected = links.values().filter(|link| link.state() == crate::State::Connected);
        connected.filter_map(|link| self.rank_of(link.peer())).collect()
    }

    /// The first `endings` links of the node that ended are no sign of dead ranks.
    pub(crate) fn tolerate(&self, endings: u64) {
        self.tolerated.set(self.tolerated.get().max(endings));
    }

    /// The rank whose link has failed first, after those that are tolerated.
    pub(crate) fn failed(&self) -> Option<u32> {
        let links = self.links.borrow();
        let failed = links.values().filter(|link| {
            matches!(link.state(), crate::State::Failed(_))
                && link.0.ending.get() > self.tolerated.get()
        });
        let first = failed.min_by_key(|link| link.0.ending.get())?;
        self.rank_of(first.peer())
    }
}
