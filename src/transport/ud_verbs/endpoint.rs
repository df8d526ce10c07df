//! The endpoint: connecting, waiting and closing. Messages are in [`message`](super::message).

use std::fmt;
use std::rc::Rc;

use super::NAME;
use super::interface::Interface;
use super::state::State;
use crate::address::{DeviceAddress, EndpointAddress, InterfaceAddress};
use crate::completion::Completion;
use crate::error::{Busy, ConnectError, EndpointError, OpenError, PostError};
use crate::gate::{Block, Gate};
use crate::pending::{HasPending, PendingQueue};
use crate::status::{FlushMode, PendingResult, Post, Posted};

/// One end of a connection. Cloning gives another handle to the same one.
///
/// Dropping the last handle ends it: what was not acknowledged completes as cancelled in the next progress. Flush first what must
/// arrive.
pub struct Endpoint(pub(super) Rc<State>);

impl Endpoint {
    /// Makes an endpoint to be connected to another one.
    ///
    /// # Errors
    /// [`OpenError::TooManyEndpoints`], [`OpenError::Device`], [`OpenError::Closed`]
    pub fn new(interface: &Interface) -> Result<Self, OpenError> {
        interface.0.open_endpoint().map(Self::handle)
    }

    /// Connects to an interface, which makes an endpoint for it: the one that its next call to connect here gets. Until it answers,
    /// posts answer [`PostError::NoResource`].
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_to_interface(
        interface: &Interface,
        device: &DeviceAddress,
        address: &InterfaceAddress,
    ) -> Result<Self, ConnectError> {
        interface.0.connect_to_interface(device, address).map(Self::handle)
    }

    fn handle(state: Rc<State>) -> Self {
        state.handles.set(state.handles.get() + 1);
        Self(state)
    }

    /// What the peer passes to [`connect`](Self::connect).
    pub fn address(&self) -> EndpointAddress {
        self.0.shared.own.pack_endpoint(self.0.name)
    }

    /// Connects to the peer's endpoint. Both ends connect to each other; what one sends before the other did arrives after it did.
    ///
    /// # Errors
    /// [`ConnectError::ForeignTransport`], [`ConnectError::Address`] and [`ConnectError::Unreachable`] for addresses that are not usable
    /// here, [`ConnectError::Connected`] the second time, [`ConnectError::Device`] if the device refuses.
    pub fn connect(&self, device: &DeviceAddress, address: &EndpointAddress) -> Result<(), ConnectError> {
        self.0.connect(device, address)
    }

    /// Why the endpoint failed, if it did.
    pub fn error(&self) -> Option<EndpointError> {
        self.0.error()
    }

    /// Waits until what was posted so far is acknowledged: the peer's handlers ran, or are about to. After `Cancel` the endpoint takes
    /// no more posts.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        let state = &*self.0;
        if mode == FlushMode::Cancel {
            return self.cancel(completion);
        }
        state.gate.check()?;
        if state.is_idle() {
            return Ok(Posted::Done);
        }
        if let Some(completion) = completion {
            if !state.can_flush() {
                return Err(PostError::NoResource);
            }
            state.flush_later(completion.clone());
        }
        Ok(Posted::InProgress)
    }

    fn cancel(&self, completion: Option<&Completion>) -> Post {
        let state = &*self.0;
        if state.gate.has(Block::Closed) {
            return Err(PostError::Closed);
        }
        if !state.gate.has(Block::Failed) {
            state.stop(Block::Failed);
            state.shared.catch_up_later();
        }
        if state.is_idle() {
            return Ok(Posted::Done);
        }
        if let Some(completion) = completion.cloned() {
            // What is given up is not an error of the flush.
            state.flush_later(Completion::new(1, move |_| completion.count_down(Ok(()))));
        }
        Ok(Posted::InProgress)
    }

    /// What is posted next is handled after what is outstanding, as it is anyway.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn fence(&self) -> Result<(), PostError> {
        self.0.gate.check()
    }

    /// Queues a request that progress runs, in order, when resources come back.
    ///
    /// # Errors
    /// [`Busy`] if a post would not answer [`PostError::NoResource`] now.
    pub fn pending_add(&self, request: impl FnMut(&Self) -> PendingResult + 'static) -> Result<(), Busy> {
        if !self.0.may_wait() {
            return Err(Busy);
        }
        self.0.shared.arbiter.add(self.clone(), Box::new(request));
        self.0.shared.call_attention();
        Ok(())
    }

    /// Drops every waiting request, calling `purged` once for each, in order.
    pub fn pending_purge(&self, purged: impl FnMut()) {
        self.purge(purged);
    }
}

impl HasPending for Endpoint {
    fn pending(&self) -> &PendingQueue<Self> {
        &self.0.pending
    }

    fn gate(&self) -> &Gate {
        &self.0.gate
    }
}

crate::capability::delegate!(Endpoint: AmShort, AmShortIov, AmBcopy, AmZcopy, Flush, Pending);

impl Clone for Endpoint {
    fn clone(&self) -> Self {
        Self::handle(Rc::clone(&self.0))
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let handles = self.0.handles.get() - 1;
        self.0.handles.set(handles);
        if handles == 0 {
            self.0.shared.close_endpoint(&self.0);
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("transport", &NAME)
            .field("name", &format_args!("{:#x}", self.0.name))
            .finish_non_exhaustive()
    }
}
