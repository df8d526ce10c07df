//! Tag matching in the device: messages go to the buffer of the receive that they match.
//!
//! A [`TagQueue`] is a shared receive queue (XRQ) with a list of tags. Queue pairs that were
//! created with [`TagQueue::receive`] ([`RcQueuePair::create_sharing`]) receive from it, and their
//! messages begin with a [`TagHeader`]. The device compares the tag with the entries of the list,
//! in the order in which they were appended. A message that matches goes to the buffer of its
//! entry; any other goes to the next receive WQE, with its header. The data of a rendezvous message
//! that arrives at a [`RendezvousPair`] is read by the device, which then reports the end to the
//! sender ([`TagOpcode::Finished`]); at another queue pair, it is for software.
//!
//! A ConnectX matches nothing before 33 receive WQEs are posted (UCX); the software HCA needs none.
//! For rendezvous, every queue pair must be allowed to read from its peer
//! ([`RcPath::log_max_reads`](crate::RcPath)).
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! use barewire_mlx5::channel::soft::Soft;
//! use barewire_mlx5::doorbell::BlueFlame;
//! use barewire_mlx5::layouts::tag::{TagHeader, TagOpcode};
//! use barewire_mlx5::queue::tags::TagReport;
//! use barewire_mlx5::request::{Inline, SendTagged};
//! use barewire_mlx5::tags::{TagConfig, TagQueue};
//! use barewire_mlx5::{
//!     Access, Buffer, CompletionQueue, Context, ControlFlags, ProtectionDomain, RcConfig, RcPath,
//!     RcQueuePair, Uar, hca,
//! };
//!
//! let context = Context::open(Soft::new(hca::Device::open(hca::Config::default())?))?;
//! let domain = ProtectionDomain::allocate(&context)?;
//! let uar = Uar::allocate(&context)?;
//! let sends = CompletionQueue::create(&context, &uar, 1024)?;
//! let mut events = CompletionQueue::create(&context, &uar, 2048)?;
//! let mut tags: TagQueue = TagQueue::create(&domain, &uar, &events, &TagConfig::default())?;
//! // A queue pair that is connected to itself.
//! let mut pair: RcQueuePair<BlueFlame, _> = RcQueuePair::create_sharing(
//!     &domain, &uar, &sends, &events, Some(&tags.receive), &RcConfig::default(),
//! )?;
//! pair.connect(&RcPath::to(&pair.address()))?;
//!
//! let buffer = Buffer::allocate(&domain, 4096, Access::all())?;
//! let entry = tags.list.append(7, u64::MAX, buffer.region().segment(0, 64).ok_or("range")?)?;
//! let mut report = || loop {
//!     if let Some(report) = events.poll().and_then(|polled| tags.list.completed(polled)) {
//!         break report;
//!     }
//!     std::thread::yield_now();
//! };
//! assert_eq!(report(), TagReport::Appended(entry));
//! let header = TagHeader::new(TagOpcode::Eager, 0, 7);
//! let hello = SendTagged { header: &header, payload: Inline(b"hello") };
//! pair.send.post(hello, ControlFlags::empty())?;
//! let arrived =
//!     TagReport::Arrived { entry, header: Some(header), length: 5, immediate: None };
//! assert_eq!(report(), arrived);
//! let mut bytes = [0; 5];
//! buffer.read(0, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Sources: PRM: CREATE_XRQ, QPC (offload_type); rdma-core verbs.c `mlx5_create_srq_ex`, whose
//! command queue pair is internal, so that only PRM commands provide tag matching to this driver.

use core::fmt;
use std::sync::Arc;

use barewire_layouts::command::qp::ServiceType;
#[cfg(doc)]
use barewire_layouts::tag::{TagHeader, TagOpcode};

use crate::backend::Receive;
use crate::context::{ProtectionDomain, Uar};
use crate::doorbell::{BlueFlame, Doorbell};
use crate::error::Error;
use crate::queue::completion::CompletionQueue;
use crate::queue::receive::ReceiveQueue;
use crate::queue::shared_receive::{List, SharedReceiveQueue};
use crate::queue::tags::TagList;
use crate::rc::{RcConfig, RcPath, RcQueuePair};
use crate::ringless::RinglessPair;
use crate::shared_receive::{TagResources, ring_entries};
use crate::values::{Access, Port, check_user_index};

barewire_layouts::with_setters! {
    /// Sizes of a queue with tag matching.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TagConfig {
        /// Tags in the list; one more is rounded up to a power of two [default: 255].
        pub tags: u32,
        /// Receive WQEs for messages that match nothing; rounded up to a power of two [default:
        /// 64].
        pub entries: u32,
        /// Segments of a receive WQE [default: 1].
        pub segments: usize,
        /// A number (24 bits) that all completions of the queue carry [default: 0].
        pub user_index: u32,
        /// The completion queue may have fewer entries than completions can be outstanding. More
        /// completions than entries are lost or garbled [default: false].
        pub overcommit: bool,
        /// The port of the queue pair that changes the list. The default is that of the context.
        pub port: Option<Port>,
    }
}

impl Default for TagConfig {
    fn default() -> Self {
        Self { tags: 255, entries: 64, segments: 1, user_index: 0, overcommit: false, port: None }
    }
}

/// A shared receive queue with a list of tags.
#[must_use = "dropping it destroys the queue"]
pub struct TagQueue<D: Doorbell = BlueFlame> {
    /// Receive WQEs for messages that match nothing.
    pub receive: SharedReceiveQueue<List>,
    /// The list.
    pub list: TagList<D>,
}

impl<D: Doorbell> fmt::Debug for TagQueue<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { receive, list } = self;
        f.debug_struct("TagQueue").field("receive", receive).field("list", list).finish()
    }
}

/// The queue pair with which the device executes rendezvous: messages that arrive at it are matched,
/// and the device posts the reads and the ends of their rendezvous to its send queue. So the program
/// has no send ring (linux qp.c: `create_user_qp`; UCX rc_mlx5_ep.c: the queue pair for tag
/// matching).
pub type RendezvousPair = RinglessPair;

impl RendezvousPair {
    /// Creates a queue pair in the init state that receives from a [`TagQueue`], with `access`,
    /// `port` and `user_index` of `config`.
    ///
    /// # Errors
    /// If the arguments belong to different devices, the device was not set up by PRM commands, or
    /// the device refused.
    pub fn create_for_rendezvous(
        domain: &ProtectionDomain,
        uar: &Uar,
        completions: &CompletionQueue,
        queue: &SharedReceiveQueue,
        config: &RcConfig,
    ) -> Result<Self, Error> {
        let queue = queue.resources()?;
        domain.context().owns(queue.domain.context())?;
        let receive = (Receive::Shared(&queue), Arc::clone(&queue) as _);
        Self::create(domain, Some(uar), completions, ServiceType::Rc, receive, config)
    }
}

impl<D: Doorbell> TagQueue<D> {
    /// Creates a queue. All its completions, those of messages and of operations on the list, are
    /// written to `completions`. It needs room for a CQE per receive WQE of the ring, and for four
    /// per entry of the list, which has `(tags + 1).next_power_of_two()` entries: two of messages,
    /// and two of operations, for which room for at least 16 is needed in all.
    ///
    /// # Errors
    /// If the device has no tag matching or was not set up by PRM commands, a size exceeds its
    /// limit, the completion queue belongs to another device or is too small, or the device
    /// refused.
    pub fn create(
        domain: &ProtectionDomain,
        uar: &Uar,
        completions: &CompletionQueue,
        config: &TagConfig,
    ) -> Result<Self, Error> {
        let context = domain.context();
        context.backend().commands()?;
        let capabilities = context.capabilities();
        if capabilities.log_max_tags == 0 {
            return Err(Error::Unsupported {
                what: "tag matching",
                reason: "the device reports none; match tags in software",
            });
        }
        let most = (1 << capabilities.log_max_tags) - 1;
        if !(1..=most).contains(&config.tags) {
            return Err(Error::parameter("tags", config.tags, format!("1 to {most}")));
        }
        let list_entries = (config.tags + 1).next_power_of_two();
        let queue = completions.resources()?;
        context.owns(&queue.context)?;
        check_user_index(config.user_index)?;
        let entries = ring_entries(context, config.entries)?;
        // Those of operations are reserved by the queue pair below.
        let due = entries.saturating_add(2 * list_entries);
        let reserved = queue.reserve(due, config.overcommit)?;
        let tags = TagResources {
            completions: queue,
            user_index: config.user_index,
            log_entries: list_entries.ilog2() as u8,
            rendezvous: capabilities.tag_rendezvous,
            _reserved: reserved,
        };
        let receive =
            SharedReceiveQueue::create_with(domain, entries, config.segments, Some(tags), None)?;
        let mut pair: RcQueuePair<D, Option<ReceiveQueue>> = RcQueuePair::create_unmoderated(
            domain,
            uar,
            completions,
            &receive,
            &RcConfig {
                // An append and a removal per tag, and room to synchronize.
                send_blocks: (2 * list_entries).min(capabilities.max_queue_entries),
                access: Access::empty(),
                user_index: config.user_index,
                overcommit: config.overcommit,
                port: config.port,
                ..RcConfig::default()
            },
        )?;
        pair.connect(&RcPath::to(&pair.address()))?;
        // The send queue keeps the device's queue pair alive.
        Ok(Self { receive, list: TagList::new(pair.send, list_entries) })
    }
}
