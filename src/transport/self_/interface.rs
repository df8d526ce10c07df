//! The interface: segments, handlers and the delivery of messages in order.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::time::Instant;

use super::domain::Domain;
use super::endpoint::{Endpoint, State};
use super::{BUFFER, NAME};
use crate::address::{DeviceAddress, InterfaceAddress, Kind, Packed, TransportId};
use crate::attributes::Attributes;
use crate::completion::Completion;
use crate::config::InterfaceConfig;
use crate::counters::{Counters, Past};
use crate::error::{OpenError, PostError};
use crate::event::EventError;
use crate::fork;
use crate::message::{HOME, Keeper, KeptMessage, Message, Reclaim, write_home};
use crate::panics::Panics;
use crate::status::{Post, Posted};
use crate::transport::common::allocation::Allocation;
use crate::transport::common::handlers::Handlers;
use crate::transport::common::pending::Arbiter;
use crate::transport::common::pool::{Buffer, Lease, Pool};
use crate::transport::common::random;

/// The buffers that messages travel in.
pub(super) struct Segments(pub(super) Pool<Allocation, BUFFER>);

impl Reclaim for Segments {
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
    /// What the endpoints did that are gone.
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

/// The one owner of an interface's progress. Dropping it closes the interface: handlers are dropped and posts
/// answer [`PostError::Closed`].
pub struct Progress(Rc<Shared>);

crate::transport::common::handle::interface_handlers!();

impl Interface {
    /// Opens an interface. Messages can only be sent to itself.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for a setting that cannot be, [`OpenError::Device`] without memory for the
    /// segments.
    pub fn open(domain: &Domain, config: &InterfaceConfig) -> Result<(Self, Progress), OpenError> {
        let count = config.checked_bcopy_buffers(NAME)?;
        let allocation = Allocation::new(count * BUFFER).map_err(|error| OpenError::Device {
            device: super::DEVICE.to_owned(),
            step: "allocate message segments",
            source: error.into(),
        })?;
        let shared = Rc::new(Shared {
            id: random::number(),
            domain: domain.clone(),
            attributes: super::attributes(),
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

    /// What the interface can do.
    pub fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    /// The device: this process and domain.
    pub fn device_address(&self) -> DeviceAddress {
        DeviceAddress(Packed::new(Kind::Device, TransportId::Self_, &self.0.id.to_be_bytes()))
    }

    /// The interface.
    pub fn address(&self) -> InterfaceAddress {
        InterfaceAddress(Packed::new(Kind::Interface, TransportId::Self_, &self.0.id.to_be_bytes()))
    }

    /// What all endpoints of the interface did so far, also those that are gone.
    pub fn counters(&self) -> Counters {
        let endpoints = self.0.endpoints.borrow();
        let live = endpoints.iter().filter_map(Weak::upgrade);
        live.fold(self.0.past.get(), |sum, state| sum + state.counters())
    }

    /// Waits for every operation of every endpoint; here they are finished when posted.
    ///
    /// # Errors
    /// [`PostError::Closed`]
    pub fn flush(&self, _completion: Option<&Completion>) -> Post {
        self.0.check_open()?;
        Ok(Posted::Done)
    }

    /// Orders the operations of every endpoint; here they take effect in order.
    ///
    /// # Errors
    /// [`PostError::Closed`]
    pub fn fence(&self) -> Result<(), PostError> {
        self.0.check_open()?;
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }

    /// `None`: nothing happens here without a call on this thread.
    ///
    /// # Errors
    /// None.
    pub fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, EventError> {
        Ok(None)
    }

    /// Nothing happens here without a call on this thread: there is nothing to wait for, and no descriptor.
    ///
    /// # Errors
    /// [`EventError::Busy`] if progress has something to do.
    pub fn arm(&self) -> Result<Option<Instant>, EventError> {
        if self.0.closed.get() {
            return Err(EventError::Closed { transport: NAME });
        }
        let shared = &*self.0;
        let stuck = shared.arbiter.is_empty() || shared.segments.0.is_empty();
        let quiet = stuck && shared.queue.try_borrow().is_ok_and(|queue| queue.is_empty());
        if quiet { Ok(None) } else { Err(EventError::Busy) }
    }

    pub(super) fn id(&self) -> u64 {
        self.0.id()
    }
}

impl fork::Inherited for Shared {
    fn close_in_child(&self) {
        self.closed.set(true);
        if let Ok(endpoints) = self.endpoints.try_borrow() {
            endpoints.iter().filter_map(Weak::upgrade).for_each(|state| state.gate.close_in_child());
        }
    }
}

impl Shared {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Does nothing: progress tests whether handlers were set and requests wait.
    #[expect(clippy::unused_self, reason = "as in the other transports")]
    pub(super) fn call_attention(&self) {}

    #[inline]
    pub(super) fn check_open(&self) -> Result<(), PostError> {
        if self.closed.get() { Err(PostError::Closed) } else { Ok(()) }
    }

    /// Counts this endpoint's operations as the interface's.
    pub(super) fn adopt(&self, state: &Rc<State>) {
        let mut endpoints = self.endpoints.borrow_mut();
        endpoints.retain(|state| state.strong_count() > 0);
        endpoints.push(Rc::downgrade(state));
    }

    /// Lets `fill` write the segment, and delivers the message, now or after the ones before it.
    #[inline]
    pub(super) fn send(
        &self,
        id: u8,
        mut segment: Buffer<'_, Allocation, BUFFER>,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, PostError>,
    ) -> Result<usize, PostError> {
        let length = fill(super::data(segment.bytes()))?;
        let segment = segment.into_lease();
        // As many places as segments: this never grows.
        self.queue.borrow_mut().push_back(Queued { id, segment, length });
        self.deliver();
        Ok(length)
    }

    fn deliver(&self) {
        // A handler that posts leaves the delivery to the loop that called it.
        let Some(mut running) = self.handlers.run() else { return };
        loop {
            running.renew();
            let next = self.queue.borrow_mut().pop_front();
            let Some(next) = next else { break };
            let start = self.segments.0.start_of(&next.segment);
            let current = Current { segments: &self.segments, segment: Cell::new(Some(next.segment)) };
            // SAFETY: the segment is filled up to `length`, aligned, and not in the pool, so nothing
            // writes it until it is given back: by `current`, which is dropped after the message has
            // ended, or, if the handler kept the message, by the kept message. The home names `current`.
            let message = unsafe {
                write_home(start, &current);
                Message::new(start.add(HOME), next.length)
            };
            running.dispatch(next.id, message);
        }
    }

    fn close(&self) {
        if self.closed.replace(true) {
            // Closed by a fork: the parent delivers and completes.
            return;
        }
        let mut panics = Panics::default();
        panics.catch(|| self.arbiter.clear());
        panics.catch(|| self.handlers.close());
        // If a handler runs, the loop that called it does the rest.
        if let Some(mut running) = self.handlers.run() {
            panics.catch(|| running.renew());
        }
        let queued = self.queue.take();
        for message in queued {
            self.segments.0.give(message.segment);
        }
    }
}

/// The message being handled: gives its segment back unless the handler kept it.
struct Current<'a> {
    segments: &'a Rc<Segments>,
    /// `None` once it is kept.
    segment: Cell<Option<Lease>>,
}

impl Keeper for Current<'_> {
    fn keep(&self, _: NonNull<u8>, data: &[u8]) -> KeptMessage {
        let segment = self.segment.take();
        // SAFETY: `data` lies in the segment, which is now the kept message's alone, and the pool outlives it.
        unsafe { KeptMessage::new(data, segment, Rc::clone(self.segments) as Rc<dyn Reclaim>) }
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
    /// Gives pending requests their turn. Messages are delivered inside sends.
    pub fn progress(&mut self) -> usize {
        if self.0.closed.get() {
            return 0;
        }
        self.0.deliver();
        self.0.arbiter.dispatch()
    }

    /// Nothing is there to be done.
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
        f.debug_struct("Interface").field("transport", &NAME).field("id", &self.0.id).finish_non_exhaustive()
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("transport", &NAME).field("id", &self.0.id).finish_non_exhaustive()
    }
}
