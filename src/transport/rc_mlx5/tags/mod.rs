//! Tag matching in the device.
//!
//! All endpoints of the interface receive from one queue with a list of tags (XRQ), whose
//! completions carry [`USER_INDEX`]: those of messages, of matches and of operations on the list.
//! An active message begins with a zero, which is the opcode of a message without a tag.
//!
//! Each endpoint has two queue pairs ([`end`]). Programs post to one of them. Its peer is the other
//! queue pair of the other end, to which only the device posts: it reads the data of a rendezvous
//! that matched (UCX rc_mlx5: "the send queue of this QP will be used by FW for HW RNDV").
//!
//! Sources: UCX rc_mlx5_common.c (`uct_rc_mlx5_init_rx_tm`, `uct_rc_mlx5_iface_tag_recv_zcopy`).

mod end;
mod message;
mod progress;
mod rendezvous;

use std::cell::{Cell, RefCell, UnsafeCell};

use barewire_mlx5::doorbell::Adaptive;
use barewire_mlx5::layouts::tag::TagHeader;
use barewire_mlx5::queue::tags::TagList;
use barewire_mlx5::tags::{TagConfig, TagQueue};
use barewire_mlx5::{CompletionQueue, DataSegment, Uar};

use super::{Domain, Endpoint, ID, Interface};
use crate::base::config::{InterfaceConfig, check};
use crate::base::error::{HandlerError, OpenError, OperationError, PostError};
use crate::base::memory::Slice;
use crate::base::tag::TagReceive;
use crate::transport::common::message::Message;
use crate::transport::common::registered::Domain as _;
use crate::transport::mlx5::post::data_segment;
use crate::transport::mlx5::shared::{self, SharedReceiver, most_buffers, ring_of};
use crate::transport::rc::{MAX_ZCOPY, SEGMENT};

pub(super) use end::TagEnd;
pub(in crate::transport) use end::TagNumber;
pub(super) use message::limits;
use rendezvous::Announced;

/// Bytes of the header of every tagged message.
const HEADER: usize = size_of::<TagHeader>();
/// Longest payload of an eager message: with its header, it must fit a receive buffer.
const MAX_EAGER: usize = SEGMENT - HEADER;
/// The user index of all completions of the queue and of its list. No endpoint has it.
pub(super) const USER_INDEX: u32 = 0x00ff_fffe;
/// Receive buffers without which a ConnectX matches nothing (UCX: 33).
const LEAST_BUFFERS: u32 = 64;

/// A message in the buffer of a receive, which has ended.
pub(crate) struct Received {
    pub(crate) context: u64,
    pub(crate) queue_pair: u32,
    pub(crate) tag: u64,
    pub(crate) immediate: u32,
    pub(crate) length: usize,
}

/// Gets what happens to receives, and messages without one: see
/// [`TagEvent`](crate::tag::TagEvent).
pub(crate) trait TagReports {
    fn matched(&mut self, context: u64, tag: u64);
    fn received(&mut self, received: Received);
    fn ended(&mut self, context: u64, error: OperationError);
    fn not_read(&mut self, context: u64, endpoint: Endpoint, header: &TagHeader, length: usize);
    fn unexpected(&mut self, queue_pair: u32, header: &TagHeader, message: Message<'_>);

    /// Returns `false` if the data of the announcement is too short.
    fn announced(&mut self, endpoint: Endpoint, header: &TagHeader, data: &[u8]) -> bool;
}

type Handler = Box<dyn TagReports>;

/// What has become of the receive of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// There is none.
    #[default]
    Free,
    /// It is in the list.
    Waiting,
    /// A message has matched it, and its data is on its way.
    Matched { tag: u64, immediate: u32 },
}

/// The receive of an entry.
#[derive(Clone, Copy, Debug, Default)]
struct Receive {
    context: u64,
    number: u32,
    phase: Phase,
    /// The handler gets no more events of it.
    silent: bool,
}

/// The list of an interface, and what waits for it.
pub(super) struct Matching {
    /// The buffers of messages that match nothing.
    pub(super) receiver: shared::Owner,
    /// Accessed by [`Self::with_list`] only.
    list: UnsafeCell<TagList<Adaptive>>,
    /// By entry.
    receives: Box<[Cell<Receive>]>,
    /// Receives so far, modulo 2^32.
    count: Cell<u32>,
    /// Rendezvous of this side whose data the peer has not read.
    announced: RefCell<Announced>,
    handler: Cell<Option<Handler>>,
    /// A report of the messages that were processed is under way. There is room for one.
    synchronizing: Cell<bool>,
    /// Set when the list has failed, or the interface was closed: nothing is posted any more.
    ended: Cell<bool>,
}

/// Sizes of the queue of an interface with these settings.
fn sizes(domain: &Domain, config: &InterfaceConfig) -> TagConfig {
    let most = (1 << domain.context().capabilities().log_max_tags) - 1;
    TagConfig::default()
        // If the device matches none, the driver says so.
        .tags(config.tag_list_size.min(most).max(1))
        .entries(ring_of(most_buffers(config).max(LEAST_BUFFERS)))
        .user_index(USER_INDEX)
}

/// Returns the completions for which an interface with these settings needs room, besides those of
/// sends.
pub(super) fn completions(domain: &Domain, config: &InterfaceConfig) -> Result<u32, OpenError> {
    check(ID, "tag_list_size", config.tag_list_size, 1, (1 << 15) - 1)?;
    let TagConfig { tags, entries, .. } = sizes(domain, config);
    Ok(entries + (4 * (tags + 1).next_power_of_two()).max(16))
}

impl Matching {
    /// Creates the queue and its list, whose completions go to `completions`.
    pub(super) fn create(
        domain: &Domain,
        uar: &Uar,
        completions: &CompletionQueue,
        config: &InterfaceConfig,
    ) -> Result<Box<Self>, OpenError> {
        let wanted = sizes(domain, config).port(Some(*domain.port()));
        let queue = TagQueue::create(domain.protection(), uar, completions, &wanted)
            .map_err(|e| domain.refused("create a queue with tag matching", e))?;
        let TagQueue { receive, list } = queue;
        let (buffers, most) = (config.receive_ring.max(LEAST_BUFFERS), most_buffers(config));
        let receiver = SharedReceiver::over(domain, receive, buffers, most.max(buffers))?;
        Ok(Box::new(Self {
            receiver,
            receives: (0..=list.capacity()).map(|_| Cell::default()).collect(),
            list: UnsafeCell::new(list),
            count: Cell::new(0),
            announced: RefCell::default(),
            handler: Cell::default(),
            synchronizing: Cell::new(false),
            ended: Cell::new(false),
        }))
    }

    /// Receives that the list has room for.
    pub(super) fn capacity(&self) -> u32 {
        self.with_list(|list| list.capacity())
    }

    /// Runs `run` with the list. This is the only access to it.
    #[inline(always)]
    fn with_list<R>(&self, run: impl FnOnce(&mut TagList<Adaptive>) -> R) -> R {
        // SAFETY: the list stays on its thread. Every `run` is a closure of this module that calls
        // only the driver, which calls no code of the transport or of the user. So no second
        // reference to the list exists while this one does.
        run(unsafe { &mut *self.list.get() })
    }

    #[inline]
    fn check_usable(&self) -> Result<(), PostError> {
        if self.ended.get() { Err(PostError::Closed) } else { Ok(()) }
    }

    #[inline]
    fn receive(
        &self,
        tag: u64,
        mask: u64,
        buffer: DataSegment,
        context: u64,
    ) -> Result<TagReceive, PostError> {
        self.check_usable()?;
        let entry = self
            .with_list(|list| list.append(tag, mask, buffer))
            .map_err(|_| PostError::NoResource)?;
        let number = self.count.get().wrapping_add(1);
        self.count.set(number);
        if let Some(place) = self.receives.get(usize::from(entry)) {
            place.set(Receive { context, number, phase: Phase::Waiting, silent: false });
        }
        Ok(TagReceive { entry, number })
    }

    fn cancel(&self, receive: TagReceive, force: bool) -> Result<bool, PostError> {
        self.check_usable()?;
        let Some(place) = self.receives.get(usize::from(receive.entry)) else { return Ok(false) };
        let mut found = place.get();
        if found.number != receive.number || found.phase == Phase::Free || found.silent {
            return Ok(false);
        }
        let under_way =
            self.with_list(|list| list.remove(receive.entry)).map_err(|_| PostError::NoResource)?;
        if force {
            found.silent = true;
            place.set(found);
        }
        Ok(under_way)
    }

    /// Ends the receive of an entry. Returns it, unless it has ended before.
    #[inline]
    fn take(&self, entry: u16) -> Option<Receive> {
        let place = self.receives.get(usize::from(entry))?;
        let found = place.get();
        if found.phase == Phase::Free {
            return None;
        }
        place.set(Receive { phase: Phase::Free, ..found });
        Some(found)
    }

    /// Runs `report` with the handler, if there is one.
    #[inline]
    fn notify<R>(&self, report: impl FnOnce(&mut dyn TagReports) -> R) -> Option<R> {
        let mut lent = Lent { matching: self, handler: Some(self.handler.take()?) };
        lent.handler.as_mut().map(|handler| report(&mut **handler))
    }

    /// Returns whether the device waits for a report of the messages that were processed.
    #[inline]
    fn is_behind(&self) -> bool {
        !self.synchronizing.get() && self.with_list(|list| list.is_behind())
    }

    /// Ends every receive with `error`.
    fn end_all(&self, error: OperationError) {
        self.ended.set(true);
        for place in &self.receives {
            let found = place.take();
            if found.phase != Phase::Free && !found.silent {
                self.notify(|handler| handler.ended(found.context, error));
            }
        }
    }
}

/// The handler while it runs. The drop puts it back, also after a panic, unless it was replaced
/// meanwhile.
struct Lent<'a> {
    matching: &'a Matching,
    handler: Option<Handler>,
}

impl Drop for Lent<'_> {
    #[inline]
    fn drop(&mut self) {
        let newer = self.matching.handler.take();
        self.matching.handler.set(if newer.is_some() { newer } else { self.handler.take() });
    }
}

impl Interface {
    /// See [`TagReceives::set_tag_handler`](crate::capability::TagReceives::set_tag_handler).
    pub(crate) fn set_tag_reports(&self, handler: Handler) -> Result<(), HandlerError> {
        let Some(tags) = &self.0.driver.tags else { return Err(HandlerError::NoTags) };
        if self.0.core.closed.get() {
            return Err(HandlerError::Closed);
        }
        drop(tags.handler.replace(Some(handler)));
        Ok(())
    }

    /// See [`TagReceives::tag_receive`](crate::capability::TagReceives::tag_receive).
    #[inline]
    pub(crate) fn append_receive(
        &self,
        tag: u64,
        mask: u64,
        buffer: &Slice<'_>,
        context: u64,
    ) -> Result<TagReceive, PostError> {
        self.0.core.check_open()?;
        let Some(tags) = &self.0.driver.tags else { return Err(PostError::Unsupported) };
        if buffer.domain != self.0.tag {
            return Err(PostError::ForeignMemory);
        }
        if buffer.length > MAX_ZCOPY {
            return Err(PostError::too_long(buffer.length, MAX_ZCOPY));
        }
        tags.receive(tag, mask, data_segment(buffer), context)
    }

    /// See [`TagReceives::tag_cancel`](crate::capability::TagReceives::tag_cancel).
    pub(crate) fn cancel_receive(
        &self,
        receive: TagReceive,
        force: bool,
    ) -> Result<bool, PostError> {
        self.0.core.check_open()?;
        let Some(tags) = &self.0.driver.tags else { return Err(PostError::Unsupported) };
        tags.cancel(receive, force)
    }
}
