//! A link: the lanes to one peer, with the operations of an endpoint.

mod memory;
mod operations;
mod queue;
mod wait;

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Duration;

use barewire::{Counters, Domain, Endpoint, EndpointError, FlushMode, TransportId};
use thiserror::Error;

use crate::address::Uuid;
use crate::plan::{Kind, Kinds, Lane, Needs, shares};
use crate::protocol::{Cause, LinkId};
pub use crate::protocol::{Side, State};
pub use memory::{LinkMemory, LinkRegion};
use queue::Queue;
pub use wait::LinkWaitError;

/// What a caller asks of a link.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Options {
    /// What the link is for.
    pub needs: Needs,
    /// How long connecting may take; that of the [rules](crate::node::Rules) without one.
    pub deadline: Option<Duration>,
}

impl Options {
    /// With other needs.
    #[must_use]
    pub fn needs(self, needs: Needs) -> Self {
        Self { needs, ..self }
    }

    /// With a deadline for connecting.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }
}

/// How a link is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseMode {
    /// What was posted before arrives first.
    Flush,
    /// What is outstanding completes as cancelled.
    Cancel,
}

/// The node at the other end of a link, as errors name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerName {
    /// The node.
    pub uuid: Uuid,
    /// Its rank, after `Peers::exchange`.
    pub rank: Option<u32>,
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            Some(rank) => write!(f, "rank {rank} (node {})", self.uuid),
            None => write!(f, "{}", self.uuid),
        }
    }
}

/// The name of a lane in an error; empty for the lane of messages.
fn name_of(lane: usize) -> String {
    if lane > 0 { format!(" (lane {lane})") } else { String::new() }
}

/// Why a link failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The protocol of the two nodes ended it.
    #[error("link to {peer}: {cause}")]
    Protocol {
        /// The peer's node.
        peer: PeerName,
        /// Why.
        cause: Cause,
    },
    /// A lane failed. Another one than that of messages is named.
    #[error("link to {peer}: {error}{}", name_of(*.lane))]
    Lane {
        /// The peer's node.
        peer: PeerName,
        /// Its place in [`Link::lanes`].
        lane: usize,
        /// What it was for.
        kinds: Kinds,
        /// What happened to the endpoint.
        error: Box<EndpointError>,
    },
    /// No lane for messages could be connected.
    #[error("link to {peer}: {reason}")]
    Connect {
        /// The peer's node.
        peer: PeerName,
        /// How the protocol of the two nodes ended it.
        cause: Cause,
        /// Why, for each pair that was tried.
        reason: String,
    },
}

impl LinkError {
    /// Whether the peer may only have been slow: the link was not connected, or closed, in time.
    pub fn is_late(&self) -> bool {
        match self {
            Self::Protocol { cause, .. } | Self::Connect { cause, .. } => cause.is_late(),
            Self::Lane { .. } => false,
        }
    }
}

/// A connected lane.
#[derive(Debug)]
pub struct LaneInfo {
    pub(crate) lane: Lane,
    pub(crate) endpoint: Endpoint,
    pub(crate) domain: Domain,
}

impl LaneInfo {
    /// What the plan says of it.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// The endpoint, for operations at its own cost.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Where memory for operations on this lane is allocated, and the peer's keys are unpacked.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }
}

/// The lanes of a link, which are set once, when it is connected, and never replaced.
///
/// The endpoint of each kind is in a cell of its own: a post then tests one discriminant, and the
/// link has no further test of whether it is connected.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    messages: OnceCell<Endpoint>,
    memory: OnceCell<Endpoint>,
    atomics: OnceCell<Endpoint>,
    bulk: OnceCell<Endpoint>,
    all: OnceCell<Vec<LaneInfo>>,
}

impl Lanes {
    /// Sets the lanes. False without one for messages, or if they are set.
    pub(crate) fn set(&self, all: Vec<LaneInfo>) -> bool {
        let kinds = [Kind::Messages, Kind::Memory, Kind::Atomics, Kind::Bulk];
        for kind in kinds {
            let lanes = all.iter().filter(|info| info.lane.kinds.contains(kind));
            let fastest = lanes.max_by(|a, b| a.lane.bandwidth.total_cmp(&b.lane.bandwidth));
            if let (Some(info), Some(cell)) = (fastest, self.cell(kind)) {
                let _ = cell.set(info.endpoint.clone());
            }
        }
        self.messages.get().is_some() && self.all.set(all).is_ok()
    }

    /// Whether the link is, or was, connected.
    pub(crate) fn are_set(&self) -> bool {
        self.all.get().is_some()
    }

    pub(crate) fn all(&self) -> &[LaneInfo] {
        self.all.get().map_or(&[], Vec::as_slice)
    }

    #[inline(always)]
    fn cell(&self, kind: Kind) -> Option<&OnceCell<Endpoint>> {
        match kind {
            Kind::Messages => Some(&self.messages),
            Kind::Memory => Some(&self.memory),
            Kind::Atomics => Some(&self.atomics),
            Kind::Bulk => Some(&self.bulk),
            Kind::Control => None,
        }
    }

    #[inline(always)]
    pub(crate) fn endpoint(&self, kind: Kind) -> Option<&Endpoint> {
        self.cell(kind)?.get()
    }
}

/// Returns whether a node checks its links over a transport: the peer's device responds, whatever
/// the peer does, and each link has a connection that it does not share. Over `shm`, `cma` and
/// `tcp`, the kernel reports the end of a process. Over the datagram transports, the peer's
/// progress would have to respond. Links over `dc_mlx5` share initiators, and a check occupies one
/// until it is done.
pub(crate) fn responds_by_device(transport: TransportId) -> bool {
    use TransportId::{RcMlx5, RcVerbs, XrcMlx5};
    matches!(transport, RcMlx5 | RcVerbs | XrcMlx5)
}

/// The node of a link.
pub(crate) trait Owner {
    /// Progress flushes and closes the link.
    fn close_later(&self, link: &Rc<Inner>);
}

/// What a link and its node share.
pub(crate) struct Inner {
    pub(crate) lanes: Lanes,
    pub(crate) peer: Uuid,
    pub(crate) id: LinkId,
    pub(crate) needs: Cell<Needs>,
    pub(crate) state: Cell<State>,
    pub(crate) error: RefCell<Option<LinkError>>,
    pub(crate) queue: Queue,
    pub(crate) close: Cell<Option<CloseMode>>,
    /// CLOSE was posted on the messages lane.
    pub(crate) close_sent: Cell<bool>,
    /// By what the peer names the link, and by what this side does, once it is connected.
    pub(crate) names: Cell<(u64, u64)>,
    /// What a client has sent to the server of the link, otherwise 0.
    pub(crate) ticket: Cell<u64>,
    /// The peer's rank.
    pub(crate) rank: Cell<Option<u32>>,
    /// The how many-th link of the node to end; 0 before.
    pub(crate) ending: Cell<u64>,
    node: Weak<dyn Owner>,
}

impl Inner {
    pub(crate) fn new(node: Weak<dyn Owner>, id: LinkId, peer: Uuid, needs: Needs) -> Self {
        Self {
            lanes: Lanes::default(),
            peer,
            id,
            needs: Cell::new(needs),
            state: Cell::new(State::Idle),
            error: RefCell::default(),
            queue: Queue::default(),
            close: Cell::new(None),
            close_sent: Cell::new(false),
            names: Cell::default(),
            ticket: Cell::default(),
            rank: Cell::default(),
            ending: Cell::default(),
            node,
        }
    }

    /// The peer, as errors name it.
    pub(crate) fn name(&self) -> PeerName {
        PeerName { uuid: self.peer, rank: self.rank.get() }
    }

    /// The link is on its way to be connected.
    pub(crate) fn may_connect(&self) -> bool {
        let coming = matches!(self.state.get(), State::Idle | State::Offered | State::Answered);
        coming && !self.lanes.are_set()
    }

    /// The first lane that failed.
    pub(crate) fn failed_lane(&self) -> Option<LinkError> {
        self.lanes.all().iter().enumerate().find_map(|(lane, info)| {
            let error = Box::new(info.endpoint.error()?);
            Some(LinkError::Lane { peer: self.name(), lane, kinds: info.lane.kinds, error })
        })
    }

    /// Has each lane check whether the peer is alive. One that is not fails in a later progress.
    pub(crate) fn check(&self) {
        for info in self.lanes.all() {
            // A transport that cannot check reports the end of a peer by itself, or at the next
            // post.
            let _ = info.endpoint.check();
        }
    }

    /// As [`check`](Self::check), for lanes whose check needs no progress of the peer.
    pub(crate) fn check_devices(&self) {
        let lanes = self.lanes.all().iter().filter(|info| responds_by_device(info.lane.transport));
        for info in lanes {
            // A lane that has failed is known to have.
            let _ = info.endpoint.check();
        }
    }

    /// Ends the lanes: what is outstanding completes as cancelled, and later posts are refused.
    pub(crate) fn cancel(&self) {
        self.queue.clear();
        for info in self.lanes.all() {
            // An endpoint that failed before needs no cancelling.
            let _ = info.endpoint.flush(FlushMode::Cancel, None);
        }
    }
}

/// The lanes to one peer. A clone is another handle to the same link.
///
/// Until the link is connected, every post returns [`NoResource`](barewire::PostError::NoResource),
/// and [pending requests](Self::pending_add) wait in order. The lanes are then the same for the
/// life of the link. Dropping the handles does not close it: call [`close`](Self::close).
#[derive(Clone)]
pub struct Link(pub(crate) Rc<Inner>);

impl Link {
    /// The state.
    pub fn state(&self) -> State {
        self.0.state.get()
    }

    /// Why the link failed, if it did.
    pub fn error(&self) -> Option<LinkError> {
        self.0.error.borrow().clone()
    }

    /// The peer's node.
    pub fn peer(&self) -> Uuid {
        self.0.peer
    }

    /// The number of this link in its node, for messages that have to name it.
    pub fn id(&self) -> LinkId {
        self.0.id
    }

    /// The lanes; none before the link is connected.
    pub fn lanes(&self) -> &[LaneInfo] {
        self.0.lanes.all()
    }

    /// The endpoint of a kind of traffic; of bulk the fastest. A loop that posts to it pays for no
    /// link.
    pub fn lane(&self, kind: Kind) -> Option<&Endpoint> {
        self.0.lanes.endpoint(kind)
    }

    /// Where memory for the operations of a kind is allocated, and the peer's keys are unpacked.
    pub fn domain(&self, kind: Kind) -> Option<&Domain> {
        let lanes = self.lanes().iter().filter(|info| info.lane.kinds.contains(kind));
        lanes.max_by(|a, b| a.lane.bandwidth.total_cmp(&b.lane.bandwidth)).map(LaneInfo::domain)
    }

    /// Returns the rails of a bulk transfer of `length` bytes, each with the part that it should
    /// carry. The parts are proportional to the bandwidths. Each rail has another domain, in which
    /// its part has to be registered and the peer's key to it unpacked.
    pub fn rails(&self, length: usize) -> Vec<(&LaneInfo, Range<usize>)> {
        let rails = self.lanes().iter().filter(|info| info.lane.kinds.contains(Kind::Bulk));
        let rails: Vec<_> = rails.collect();
        let bandwidths: Vec<_> = rails.iter().map(|info| info.lane.bandwidth).collect();
        let parts = rails.into_iter().zip(shares(&bandwidths, length));
        parts.filter(|(_, part)| !part.is_empty()).collect()
    }

    /// What all lanes did.
    pub fn counters(&self) -> Counters {
        self.lanes()
            .iter()
            .map(|info| info.endpoint.counters())
            .reduce(|a, b| a + b)
            .unwrap_or_default()
    }

    /// Closes the link, and informs the peer, whose user finds [`State::Closed`]. It is closed once
    /// [`state`](Self::state) says so; the node has to make progress.
    ///
    /// With [`CloseMode::Flush`], what was posted and what waits is sent first, also if the link is
    /// not connected yet. A later call can still cancel. The link is closed once all of it, and the
    /// note for the peer, is in the peer's memory or its kernel's, or is acknowledged. A peer that
    /// makes no progress for a while, as in a barrier, does not delay this.
    pub fn close(&self, mode: CloseMode) {
        if matches!(self.0.state.get(), State::Closed(_) | State::Failed(_)) {
            return;
        }
        self.0.close.set(Some(mode));
        if let Some(node) = self.0.node.upgrade() {
            node.close_later(&self.0);
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lanes: Vec<_> = self.lanes().iter().map(|info| info.lane.transport).collect();
        f.debug_struct("Link")
            .field("peer", &self.0.peer)
            .field("state", &self.0.state.get())
            .field("lanes", &lanes)
            .finish_non_exhaustive()
    }
}
