//! The interface: segments, handlers and the delivery of messages in order.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};

use super::domain::Domain;
use super::endpoint::{Endpoint, State};
use super::{BUFFER, ID};
use crate::address::{DeviceAddress, InterfaceAddress, Kind, Packed, PeerAddress, TransportId};
use crate::attributes::Attributes;
use crate::completion::Completion;
use crate::config::InterfaceConfig;
use crate::counters::{Counters, Past};
use crate::error::{ConnectError, OpenError, PostError};
use crate::event::{Armed, EventError};
use crate::fork;
use crate::message::{BufferOwner, HEADROOM, Keeper, KeptMessage, Message, write_keeper};
use crate::panics::Panics;
use crate::status::{Post, Posted};
use crate::transport::common::allocation::Allocation;
use crate::transport::common::pending::Arbiter;
use crate::transport::common::pool::{Buffer, Lease, Pool};
use crate::transport::common::random;
use crate::transport::sealed::Handled;
use crate::transport::{self, common::handlers::Handlers};

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

pub(super) struct Shared {
    id: u64,
    pub(super) domain: Domain,
    pub(super) attributes: Attributes,
    /// Counts of endpoints that were dropped.
    pub(super) past: Past,
    handlers: Handlers,
    pub(super) segments: Rc<Segments>,
    queue: RefCell<VecDeque<Queued>>,
    pub(super) arbiter: Arbiter<Endpoint>,
    endpoints: RefCell<Vec<Weak<State>>>,
    closed: Cell<bool>,
}

/// A handle to an open interface; cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Interface(pub(super) Rc<Shared>);

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
        let allocation = Allocation::new(count * BUFFER).map_err(|error| OpenError::Device {
            device: super::DEVICE.to_owned(),
            step: "allocate message segments",
            source: error.into(),
        })?;
        let shared = Rc::new(Shared {
            id: random::number(),
            domain: domain.clone(),
            attributes: super::attributes(config),
            past: Past::default(),
            handlers: Handlers::new(),
            segments: Rc::new(Segments(Pool::new(allocation))),
            queue: RefCell::new(VecDeque::with_capacity(count)),
            arbiter: Arbiter::new(),
            endpoints: RefCell::default(),
            closed: Cell::new(false),
        });
        fork::watch(&shared);
        Ok((Self(Rc::clone(&shared)), Progress(shared)))
    }

    /// Opens an endpoint to the interface with this address, which must be this one.
    ///
    /// # Errors
    /// [`ConnectError::ForeignTransport`], [`ConnectError::Unreachable`] for any other interface.
    pub fn connect(&self, peer: &PeerAddress) -> Result<Endpoint, ConnectError> {
        Endpoint::connect(self, peer)
    }

    pub(super) fn id(&self) -> u64 {
        self.0.id()
    }
}

impl Handled for Interface {
    fn handlers(&self) -> &Handlers {
        &self.0.handlers
    }

    fn call_attention(&self) {
        self.0.call_attention();
    }
}

impl transport::Interface for Interface {
    fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    fn address(&self) -> PeerAddress {
        let body = self.0.id.to_be_bytes();
        PeerAddress::of_interface(
            DeviceAddress(Packed::new(Kind::Device, ID, &body)),
            InterfaceAddress(Packed::new(Kind::Interface, ID, &body)),
        )
    }

    fn reaches(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        let own = self.id();
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

    fn counters(&self) -> Counters {
        let endpoints = self.0.endpoints.borrow();
        let live = endpoints.iter().filter_map(Weak::upgrade);
        live.fold(self.0.past.get(), |sum, state| sum + state.counters())
    }

    // Operations are complete when posted, so this never waits.
    fn flush(&self, _completion: Option<&Completion>) -> Post {
        self.0.check_open()?;
        Ok(Posted::Done)
    }

    fn fence(&self) -> Result<(), PostError> {
        self.0.check_open()?;
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }

    fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(None)
    }

    fn arm(&self) -> Result<Armed, EventError> {
        if self.0.closed.get() {
            return Err(EventError::Closed { transport: ID });
        }
        let shared = &*self.0;
        let stuck = shared.arbiter.is_empty() || shared.segments.0.is_empty();
        let quiet = stuck && shared.queue.try_borrow().is_ok_and(|queue| queue.is_empty());
        Ok(if quiet { Armed::Indefinitely } else { Armed::Ready })
    }
}

impl fork::Inherited for Shared {
    fn close_in_child(&self) {
        self.closed.set(true);
        if let Ok(endpoints) = self.endpoints.try_borrow() {
            endpoints
                .iter()
                .filter_map(Weak::upgrade)
                .for_each(|state| state.posting.close_in_child());
        }
    }
}

impl Shared {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Does nothing: progress checks for new handlers and pending requests itself.
    #[expect(clippy::unused_self, reason = "as in the other transports")]
    pub(super) fn call_attention(&self) {}

    #[inline]
    pub(super) fn check_open(&self) -> Result<(), PostError> {
        if self.closed.get() { Err(PostError::Closed) } else { Ok(()) }
    }

    /// Adds this endpoint's operations to the counts of the interface.
    pub(super) fn adopt(&self, state: &Rc<State>) {
        let mut endpoints = self.endpoints.borrow_mut();
        endpoints.retain(|state| state.strong_count() > 0);
        endpoints.push(Rc::downgrade(state));
    }

    /// Sends a message whose segment `fill` writes. It is delivered now, or after earlier queued
    /// messages.
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

    fn deliver(&self) {
        // Inside a handler, the outermost `deliver` further up the stack delivers the message.
        let Some(mut running) = self.handlers.enter() else { return };
        loop {
            running.install_pending();
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
    }

    fn close(&self) {
        if self.closed.replace(true) {
            // Closed in a forked child: the parent delivers and completes.
            return;
        }
        let mut panics = Panics::default();
        panics.catch(|| self.arbiter.clear());
        panics.catch(|| self.handlers.close());
        // Inside a handler, the outermost `deliver` drops the handlers.
        if let Some(mut running) = self.handlers.enter() {
            panics.catch(|| running.install_pending());
        }
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
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if let Some(segment) = self.segment.take() {
            self.segments.0.give(segment);
        }
    }
}

impl Progress {
    /// Runs pending requests. Messages are delivered inside sends.
    pub fn progress(&mut self) -> usize {
        if self.0.closed.get() {
            return 0;
        }
        self.0.deliver();
        self.0.arbiter.dispatch()
    }

    /// Returns whether there is nothing to do.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.0.arbiter.is_empty() && self.0.queue.try_borrow().is_ok_and(|queue| queue.is_empty())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interface")
            .field("transport", &ID)
            .field("id", &self.0.id)
            .finish_non_exhaustive()
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
