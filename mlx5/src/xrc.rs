//! The extended reliable connected transport (XRC): one connection serves all processes of the peer's
//! node, because each message names the shared receive queue for which it is.
//!
//! An [`Initiator`] sends over a connection to a [`Target`], which belongs to an XRC [`Domain`]. A
//! WQE of the initiator carries the number of a [`Receiver`] of the same domain, as an
//! [`XrcSegment`]: [`SendQueue::towards`](crate::SendQueue::towards) posts to it.
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! use barewire_mlx5::channel::soft::Soft;
//! use barewire_mlx5::request::{Inline, Write};
//! use barewire_mlx5::xrc::{Domain, Initiator, Receiver, Target};
//! use barewire_mlx5::{
//!     Access, Buffer, CompletionQueue, Context, ControlFlags, ProtectionDomain, RcConfig, RcPath,
//!     Uar, hca,
//! };
//!
//! let context = Context::open(Soft::new(hca::Device::open(hca::Config::default())?))?;
//! let domain = ProtectionDomain::allocate(&context)?;
//! let uar = Uar::allocate(&context)?;
//! let mut completions = CompletionQueue::create(&context, &uar, 1024)?;
//! let node = Domain::allocate(&context)?;
//! let receiver = Receiver::create(&domain, &node, &completions, 16, 1, 0)?;
//! let config = RcConfig::default();
//! let mut target = Target::create_target(&domain, &receiver.name, &completions, &config)?;
//! let mut initiator: Initiator =
//!     Initiator::create_initiator(&domain, &uar, &receiver.name, &completions, &config)?;
//! initiator.connect(&RcPath::to(&target.address()))?;
//! target.connect(&RcPath::to(&initiator.address()))?;
//!
//! let memory = Buffer::allocate(&domain, 4096, Access::all())?;
//! let remote = memory.region().remote(0);
//! let to = receiver.destination();
//! let write = Write { local: Inline(b"hello"), remote };
//! initiator.send.towards(&to).post(write, ControlFlags::COMPLETION)?;
//! let completion = loop {
//!     if let Some(polled) = completions.poll() {
//!         break polled.completion();
//!     }
//!     std::thread::yield_now();
//! };
//! initiator.send.reap(completion.wqe_counter);
//! let mut bytes = [0; 5];
//! memory.read(0, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Sources: IBTA annex A14; PRM: ALLOC_XRCD, CREATE_XRC_SRQ, CREATE_QP (QPC: xrcd, no_sq).

use core::fmt;
use std::sync::Arc;

use barewire_layouts::command::qp::ServiceType;
use barewire_layouts::wqe::{DataSegment, XrcSegment};

use crate::backend::commands::{self, SharedObject, SharedOwner};
use crate::backend::{InitiatorSettings, Receive};
use crate::channel::Object;
use crate::context::{Context, ProtectionDomain, Uar};
use crate::cq;
use crate::doorbell::{BlueFlame, Doorbell};
use crate::error::Error;
use crate::pair::{Created, Wanted};
use crate::queue::completion::CompletionQueue;
use crate::queue::shared_receive::{List, SharedReceiveParts, SharedReceiveQueue, link, wqe_bytes};
use crate::rc::{RcConfig, RcQueuePair};
use crate::ringless::RinglessPair;
use crate::shared_receive::ring_entries;
use crate::values::check_user_index;

/// An XRC domain: its receivers are reached over the connections of its targets.
#[derive(Clone, Debug)]
#[must_use = "dropping the last handle frees it"]
pub struct Domain(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    number: u32,
    _object: Box<dyn Object>,
    context: Context,
}

impl Domain {
    /// Allocates a domain (ALLOC_XRCD).
    ///
    /// # Errors
    /// If the device has no XRC or was not set up by PRM commands, or refused.
    pub fn allocate(context: &Context) -> Result<Self, Error> {
        if !context.capabilities().xrc {
            return Err(Error::Unsupported {
                what: "XRC",
                reason: "the device reports none, or was set up without DEVX; use RC",
            });
        }
        let (object, number) = commands::allocate_xrcd(context.backend().commands()?)?;
        Ok(Self(Arc::new(Shared { number, _object: object, context: context.clone() })))
    }
}

/// The queue pair of a connection from which messages are sent. It receives nothing. Its `send` queue
/// is used with [`SendQueue::towards`](crate::SendQueue::towards): the device refuses WQEs that name no receiver.
pub type Initiator<D = BlueFlame> = RcQueuePair<D, ()>;

impl<D: Doorbell> Initiator<D> {
    /// Creates an initiator in the init state, of which `receive_entries` and `access` of `config` do
    /// not matter. `completions` must have room as for [`RcQueuePair::create`]. It receives nothing,
    /// but names `receiver`, as the kernel's initiators name a queue (linux qp.c:
    /// `create_user_qp`).
    ///
    /// # Errors
    /// If a value exceeds its limit, the device was not set up by PRM commands, the completion queue
    /// belongs to another device, or the device refused.
    pub fn create_initiator(
        domain: &ProtectionDomain,
        uar: &Uar,
        receiver: &Name,
        completions: &CompletionQueue,
        config: &RcConfig,
    ) -> Result<Self, Error> {
        domain.context().backend().commands()?;
        domain.context().owns(&receiver.0.xrc.0.context)?;
        let wanted = Wanted {
            service: ServiceType::Xrc,
            send_blocks: config.send_blocks,
            receive: Receive::Xrc(&receiver.0),
            signal_period: config.signal_period,
            unmoderated: false,
            user_index: config.user_index,
            inline_receive: false,
            overcommit: config.overcommit,
            initiator: InitiatorSettings::default(),
        };
        let created = Created::new(domain, uar, completions, completions, &wanted)?;
        Self::initialised(domain, created, (), config)
    }
}

/// The queue pair at which a connection ends. It has no rings.
pub type Target = RinglessPair;

impl Target {
    /// Creates a target of the domain of `receiver` in the init state. Of `config`, `access` and
    /// `port` matter: the peer's rights to memory of `domain`. No completion is written to
    /// `completions`, and no message is received from `receiver` unless it names it; the device
    /// requires both.
    ///
    /// # Errors
    /// If the arguments belong to different devices, or the device refused.
    pub fn create_target(
        domain: &ProtectionDomain,
        receiver: &Name,
        completions: &CompletionQueue,
        config: &RcConfig,
    ) -> Result<Self, Error> {
        let Name(named) = receiver;
        domain.context().owns(&named.xrc.0.context)?;
        let receive = (Receive::Xrc(named), Arc::clone(named) as _);
        Self::create(domain, None, completions, ServiceType::Xrc, receive, config)
    }
}

/// A shared receive queue of an XRC domain, a [`List`], with its own completion queue.
pub struct Receiver {
    /// The queue. Queue pairs of other services cannot receive from it.
    pub queue: SharedReceiveQueue<List>,
    /// Its name for queue pairs of this process.
    pub name: Name,
}

/// The name of a [`Receiver`] for initiators and targets of this process. The receiver exists as long
/// as a name of it.
#[derive(Clone, Debug)]
pub struct Name(Arc<Resources>);

impl Name {
    /// Number by which WQEs of initiators name the receiver (24 bits).
    pub fn number(&self) -> u32 {
        self.0.number
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("number", &self.number()).finish_non_exhaustive()
    }
}

/// The resources of a receiver, dropped in this order.
#[derive(Debug)]
pub(crate) struct Resources {
    number: u32,
    _object: SharedObject,
    _completions: Arc<cq::Resources>,
    xrc: Domain,
    _domain: ProtectionDomain,
}

impl Resources {
    /// Its number, and that of its XRC domain.
    pub(crate) fn numbers(&self) -> (u32, u32) {
        (self.number, self.xrc.0.number)
    }
}

impl Receiver {
    /// Creates a receiver of at least `entries` WQEs with room for `segments` segments of memory of
    /// `domain` each. Messages complete in `completions`, which must have room for `entries` CQEs in
    /// addition to those of its other queues, and carry `user_index` (24 bits).
    ///
    /// # Errors
    /// If a value exceeds its limit, the arguments belong to different devices, the completion queue
    /// is too small, or the device refused.
    pub fn create(
        domain: &ProtectionDomain,
        xrc: &Domain,
        completions: &CompletionQueue,
        entries: u32,
        segments: usize,
        user_index: u32,
    ) -> Result<Self, Error> {
        let context = domain.context();
        let channel = context.backend().commands()?;
        let queue = completions.resources()?;
        context.owns(&xrc.0.context)?;
        context.owns(&queue.context)?;
        let entries = ring_entries(context, entries)?;
        if !(1..1024 / size_of::<DataSegment>()).contains(&segments) {
            return Err(Error::parameter("segments", segments as u32, "1 to 63"));
        }
        check_user_index(user_index)?;
        let stride = wqe_bytes(segments);
        // SAFETY: the ring was allocated with this size, starts at a page, and nothing else has its
        // address yet.
        let prepare = |ring| unsafe { link(ring, entries, stride) };
        let owner = SharedOwner::Xrc { domain: xrc.0.number, cqn: queue.number, user_index };
        let number = domain.object().number();
        let shape = commands::SharedShape { linked: true, strides: None, entries, stride };
        let made = commands::create_shared(
            channel,
            context.queue_memory(),
            number,
            owner,
            shape,
            prepare,
        )?;
        let resources = Arc::new(Resources {
            number: made.number,
            _object: made.object,
            _completions: queue,
            xrc: xrc.clone(),
            _domain: domain.clone(),
        });
        let keep = Arc::clone(&resources) as _;
        let (ring, doorbell_record) = (made.ring, made.doorbell_record);
        let parts = SharedReceiveParts { ring, entries, segments, doorbell_record, keep };
        // SAFETY: ring and record lie in memory that `keep` owns and frees after the device's object.
        // Nothing else writes there. The ring has `entries` WQEs of `stride` bytes and starts at a
        // page.
        let queue = unsafe { SharedReceiveQueue::from_parts(parts) };
        Ok(Self { queue, name: Name(resources) })
    }

    /// Number by which WQEs of initiators name the receiver (24 bits).
    pub fn number(&self) -> u32 {
        self.name.number()
    }

    /// The segment of WQEs to this receiver. The peer makes it of [`Self::number`] by
    /// [`XrcSegment::new`].
    pub fn destination(&self) -> XrcSegment {
        XrcSegment::new(self.number())
    }
}
