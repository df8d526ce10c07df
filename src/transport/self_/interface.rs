//! The interface: segments, handlers and the delivery of messages in order.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::rc::Rc;

use super::domain::Domain;
use super::{BUFFER, Endpoint, ID, Interface, Self_};
use crate::base::address::{
    DeviceAddress, InterfaceAddress, Kind, Packed, PeerAddress, TransportId,
};
use crate::base::config::InterfaceConfig;
use crate::base::error::{ConnectError, OpenError, PostError};
use crate::base::event::{Armed, EventError};
use crate::base::panics::Panics;
use crate::base::random;
use crate::transport::common::allocation::Allocation;
use crate::transport::common::message::{
    BufferOwner, HEADROOM, Keeper, KeptMessage, Message, write_keeper,
};
use crate::transport::common::pool::{Buffer, Lease, Pool};
use crate::transport::common::post_state::PostBlock;
use crate::transport::handle::{EndpointList as _, InterfaceCore, InterfaceState, WeakEndpoints};

/// The buffers of messages.
pub(super) struct Segments(pub(super) Pool<Allocation, BUFFER>);

impl BufferOwner for Segments {
    fn reclaim(&self, buffer: Lease) {
        self.0.give(buffer);
    }
}

struct Queued {
    id: u8,
    segment: Lease,
    length: usize,
}

pub(crate) struct Shared {
    pub(super) core: InterfaceCore<Self_>,
    id: u64,
    pub(super) domain: Domain,
    pub(super) segments: Rc<Segments>,
    queue: RefCell<VecDeque<Queued>>,
}

/// The only owner of an interface's progress. Dropping it closes the interface: handlers are
/// dropped and posts return [`PostError::Closed`].
#[must_use = "without its progress an interface completes nothing"]
pub struct Progress(Rc<Shared>);

impl Interface {
    /// Opens an interface. It can send messages only to itself.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for a setting with an invalid value, [`OpenError::Device`] if there
    /// is no memory for the segments.
    pub fn open(domain: &Domain, config: &InterfaceConfig) -> Result<(Self, Progress), OpenError> {
        let count = config.checked_bcopy_buffers(ID)?;
        config.checked_keepalive(ID)?;
        let allocation = Allocation::new(count * BUFFER).map_err(|error| OpenError::Device {
            device: super::DEVICE.to_owned(),
            step: "allocate message segments",
            source: error.into(),
        })?;
        let shared = Rc::new(Shared {
            core: InterfaceCore::new(super::attributes(config), WeakEndpoints::default()),
            id: random::number(),
            domain: domain.clone(),
            segments: Rc::new(Segments(Pool::new(allocation))),
            queue: RefCell::new(VecDeque::with_capacity(count)),
        });
        Ok((Self::open_with(&shared), Progress(shared)))
    }

    /// Opens an endpoint to the interface with this address, which must be this one.
    ///
    /// # Errors
    /// [`ConnectError::ForeignTransport`], [`ConnectError::Unreachable`] for any other interface,
    /// [`ConnectError::Open`] if this one is closed.
    pub fn connect(&self, peer: &PeerAddress) -> Result<Endpoint, ConnectError> {
        Endpoint::connect(self, peer)
    }
}

impl InterfaceState for Shared {
    type Transport = Self_;

    fn core(&self) -> &InterfaceCore<Self_> {
        &self.core
    }

    // Progress checks for new handlers and pending requests itself.
    fn call_attention(&self) {}

    fn address(&self) -> PeerAddress {
        let body = self.id.to_be_bytes();
        PeerAddress::of_interface(
            DeviceAddress(Packed::new(Kind::Device, ID, &body)),
            InterfaceAddress(Packed::new(Kind::Interface, ID, &body)),
        )
    }

    fn reaches(self: &Rc<Self>, peer: &PeerAddress) -> Result<(), ConnectError> {
        let own = self.id;
        for (packed, what) in [(&peer.device().0, "device"), (&peer.interface().0, "interface")] {
            let transport = packed.transport();
            let (TransportId::Self_, Some(body)) = (transport, packed.body::<8>()) else {
                return Err(ConnectError::ForeignTransport { transport: ID, found: transport });
            };
            let id = u64::from_be_bytes(*body);
            if id != own {
                return Err(ConnectError::Unreachable {
                    transport: ID,
                    peer: format!("{what} {id:016x}"),
                    reason: format!("an interface of self reaches only itself, {own:016x}"),
                });
            }
        }
        Ok(())
    }

    fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(None)
    }

    fn arm(&self) -> Result<Armed, EventError> {
        let stuck = self.core.arbiter.is_empty() || self.segments.0.is_empty();
        let quiet = stuck && self.queue.try_borrow().is_ok_and(|queue| queue.is_empty());
        Ok(if quiet { Armed::Indefinitely } else { Armed::Ready })
    }
}

impl Shared {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Sends a message whose segment `fill` writes. It is delivered now, behind queued messages; in
    /// a handler, by the next progress or send behind it.
    #[inline]
    pub(super) fn send(
        &self,
        id: u8,
        mut segment: Buffer<'_, Allocation, BUFFER>,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, PostError>,
    ) -> Result<usize, PostError> {
        let length = fill(super::data(segment.bytes()))?;
        let segment = segment.into_lease();
        // The queue's capacity is the number of segments, so it never grows.
        self.queue.borrow_mut().push_back(Queued { id, segment, length });
        self.deliver();
        Ok(length)
    }

    /// Delivers the messages that are queued now. Those that handlers send meanwhile wait for the
    /// next call: a handler that sends to itself would keep this from returning.
    fn deliver(&self) -> usize {
        // A handler runs further up the stack.
        let Some(mut running) = self.core.handlers.enter() else { return 0 };
        let queued = self.queue.borrow().len();
        for delivered in 0.. {
            running.install_pending();
            if delivered == queued {
                break;
            }
            let next = self.queue.borrow_mut().pop_front();
            let Some(next) = next else { break };
            let start = self.segments.0.start_of(&next.segment);
            let current =
                Current { segments: &self.segments, segment: Cell::new(Some(next.segment)) };
            // SAFETY: the segment is filled up to `length`, aligned, and not in the pool, so it is
            // not written until it is returned: by `current`, which is dropped after the message
            // has ended, or by the kept message, if the handler kept it. `write_keeper` stores the
            // pointer to `current`.
            let message = unsafe {
                write_keeper(start, &current);
                Message::new(start.add(HEADROOM), next.length)
            };
            running.dispatch(next.id, message);
        }
        queued
    }

    fn close(&self) {
        if self.core.closed.replace(true) {
            // Closed in a forked child: the parent delivers and completes.
            return;
        }
        self.core.endpoints.for_each(|state| state.posting.set(PostBlock::Closed, true));
        let mut panics = Panics::default();
        self.core.clear(&mut panics);
        let queued = self.queue.take();
        for message in queued {
            self.segments.0.give(message.segment);
        }
    }
}

/// The message being handled. The drop returns its segment unless the handler kept it.
struct Current<'a> {
    segments: &'a Rc<Segments>,
    /// `None` once the message is kept.
    segment: Cell<Option<Lease>>,
}

impl Keeper for Current<'_> {
    fn keep(&self, _: NonNull<u8>, data: &[u8]) -> KeptMessage {
        let segment = self.segment.take();
        // SAFETY: `data` lies in the segment, which from now on only the kept message accesses, and
        // the kept message keeps the pool alive.
        unsafe { KeptMessage::new(data, segment, Rc::clone(self.segments) as Rc<dyn BufferOwner>) }
    }

    /// The next message needs a segment.
    fn lends(&self) -> bool {
        !self.segments.0.is_empty()
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if let Some(segment) = self.segment.take() {
            self.segments.0.give(segment);
        }
    }
}

impl Progress {
    /// Delivers the messages that handlers sent, and runs pending requests.
    pub fn progress(&mut self) -> usize {
        if self.0.core.closed.get() {
            return 0;
        }
        self.0.deliver() + self.0.core.arbiter.dispatch()
    }

    /// Returns whether there is nothing to do.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.0.core.arbiter.is_empty()
            && self.0.queue.try_borrow().is_ok_and(|queue| queue.is_empty())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress")
            .field("transport", &ID)
            .field("id", &self.0.id)
            .finish_non_exhaustive()
    }
}
