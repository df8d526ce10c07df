//! The endpoint: connecting, waiting and closing. Operations are in [`message`](super::message), [`rma`](super::rma) and
//! [`atomic`](super::atomic).

use std::fmt;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use super::NAME;
use super::address;
use super::domain::RemoteKey;
use super::interface::Interface;
use super::state::State;
use crate::address::{DeviceAddress, EndpointAddress, InterfaceAddress, Packed};
use crate::capability::RemoteMemory;
use crate::completion::Completion;
use crate::counters::Counters;
use crate::error::{Busy, ConnectError, EndpointError, OpenError, PostError};
use crate::status::{FlushMode, PendingResult, Post, Posted};
use crate::transport::common::gate::{Block, Gate};
use crate::transport::common::pending::{HasPending, PendingQueue};

/// A connection to a peer's interface. Cloning gives another handle to the same one; dropping the last one ends it. Messages that
/// were sent still arrive.
#[derive(Clone)]
pub struct Endpoint(pub(super) Rc<State>);

impl Endpoint {
    /// Makes an endpoint to be connected.
    ///
    /// # Errors
    /// [`OpenError::Closed`]
    pub fn new(interface: &Interface) -> Result<Self, OpenError> {
        interface.0.open_endpoint().map(Self)
    }

    /// Connects to an interface. Until its process answers, posts answer [`PostError::NoResource`].
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_to_interface(
        interface: &Interface,
        device: &DeviceAddress,
        address: &InterfaceAddress,
    ) -> Result<Self, ConnectError> {
        let endpoint = Self::new(interface)?;
        endpoint.reach(device, &address.0)?;
        Ok(endpoint)
    }

    /// What the peer passes to [`connect`](Self::connect).
    pub fn address(&self) -> EndpointAddress {
        address::endpoint(self.0.shared.address)
    }

    /// Connects to the interface of the peer's endpoint. Until its process answers, posts answer [`PostError::NoResource`].
    ///
    /// # Errors
    /// [`ConnectError::ForeignTransport`] for an address of another transport, [`ConnectError::Unreachable`] with the reason,
    /// [`ConnectError::Connected`] the second time, [`ConnectError::Device`] if the system refuses.
    pub fn connect(&self, device: &DeviceAddress, address: &EndpointAddress) -> Result<(), ConnectError> {
        self.reach(device, &address.0)
    }

    fn reach(&self, device: &DeviceAddress, address: &Packed) -> Result<(), ConnectError> {
        self.0.connect(address::port(device, address)?)
    }

    /// Why the endpoint failed, if it did.
    pub fn error(&self) -> Option<EndpointError> {
        self.0.error()
    }

    /// Everything posted is finished already, and in the peer's memory. `Cancel` ends the endpoint.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn flush(&self, mode: FlushMode, _completion: Option<&Completion>) -> Post {
        let gate = &self.0.gate;
        if mode == FlushMode::Cancel {
            if !gate.is_alive() {
                gate.check()?;
            }
            self.0.stop(Block::Failed);
        } else {
            gate.check()?;
            std::sync::atomic::fence(Ordering::SeqCst);
        }
        Ok(Posted::Done)
    }

    /// Operations posted later take effect after those posted before, also as other processes see it.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn fence(&self) -> Result<(), PostError> {
        self.0.gate.check()?;
        std::sync::atomic::fence(Ordering::SeqCst);
        Ok(())
    }

    /// Returns what is known of the peer: the kernel reports its end unasked.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn check(&self) -> Result<(), PostError> {
        self.0.gate.check()
    }

    /// What this endpoint did so far.
    pub fn counters(&self) -> Counters {
        self.0.gate.tally.read()
    }

    /// Queues a request that progress runs, in order, when resources come back.
    ///
    /// # Errors
    /// [`Busy`] if a post would not answer [`PostError::NoResource`] now.
    pub fn pending_add(&self, request: impl FnMut(&Self) -> PendingResult + 'static) -> Result<(), Busy> {
        let state = &*self.0;
        if !state.gate.is_usable() || (state.pending.is_idle() && state.has_room()) {
            return Err(Busy);
        }
        state.shared.arbiter.add(self.clone(), Box::new(request));
        state.shared.call_attention();
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

impl RemoteMemory for Endpoint {
    type Key = RemoteKey;
}

crate::capability::delegate!(
    Endpoint: PutShort, PutBcopy, PutZcopy, GetBcopy, GetZcopy, AmShort, AmShortIov, AmBcopy, AmZcopy, Atomic64, AtomicFetch64,
    Atomics, Flush, Pending
);

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("transport", &NAME)
            .field("error", &self.0.error())
            .finish_non_exhaustive()
    }
}
