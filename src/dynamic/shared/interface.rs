//! Interfaces of a shared worker.

use std::fmt;
use std::sync::Arc;

use super::SharedWorker;
use super::completion::SharedCompletion;
use super::endpoint::{SharedEndpoint, post};
use super::lock::Handle;
use super::message::SharedMessage;
use super::ticket::Target;
use crate::base::address::{PeerAddress, TransportId};
use crate::base::attributes::Attributes;
use crate::base::config::InterfaceConfig;
use crate::base::counters::Counters;
use crate::base::error::{ConnectError, EndpointError, HandlerError, OpenError, PostError};
use crate::base::fork;
use crate::base::status::Post;
use crate::dynamic::domain::Domain;
use crate::dynamic::interface::Interface;
use crate::transport::common::message::Message;

/// An [`Interface`] of a [`SharedWorker`]. Cloning gives another handle to the same interface.
#[derive(Clone)]
pub struct SharedInterface(Arc<Inner>);

struct Inner {
    interface: Handle<Interface>,
    // These do not change, and need no lock.
    transport: TransportId,
    attributes: Attributes,
    address: PeerAddress,
}

impl SharedInterface {
    /// Opens an interface and adds its progress to `worker`.
    ///
    /// # Errors
    /// As [`Interface::open`]. [`OpenError::InCallback`] in a handler or callback that progress
    /// runs; [`OpenError::Closed`] in a forked child.
    pub fn open(
        worker: &SharedWorker,
        domain: &Domain,
        config: &InterfaceConfig,
    ) -> Result<Self, OpenError> {
        let closed = || OpenError::Closed { transport: domain.transport() };
        let shared = &worker.0.0;
        let guard = shared.enter().ok_or_else(closed)?;
        let interface = {
            let mut worker = guard.worker.try_borrow_mut().map_err(|_| OpenError::InCallback)?;
            let worker = worker.as_mut().ok_or_else(closed)?;
            fork::unwatched(|| Interface::open(worker, domain, config))?
        };
        guard.busy_poll.set(guard.busy_poll.get().max(config.busy_poll));
        Ok(Self(Arc::new(Inner {
            transport: interface.transport(),
            attributes: interface.attributes().clone(),
            address: interface.address(),
            interface: Handle::new(shared, &guard, interface),
        })))
    }

    /// Returns the transport.
    pub fn transport(&self) -> TransportId {
        self.0.transport
    }

    /// Returns what the interface can do.
    pub fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    /// Returns the address of the interface, which peers pass to [`connect`](Self::connect).
    pub fn address(&self) -> PeerAddress {
        self.0.address
    }

    pub(super) fn handle(&self) -> &Handle<Interface> {
        &self.0.interface
    }

    /// Opens an endpoint to the peer's interface, as [`Interface::connect`].
    ///
    /// # Errors
    /// As [`Interface::connect`].
    pub fn connect(&self, peer: &PeerAddress) -> Result<SharedEndpoint, ConnectError> {
        let handle = self.handle();
        let connected = handle.with(|guard, interface| {
            Ok(SharedEndpoint::adopt(&handle.shared, guard, interface.connect(peer)?))
        });
        connected.unwrap_or_else(|| Err(self.forked()))
    }

    /// Checks whether the interface can reach a peer's interface, as [`Interface::reaches`].
    ///
    /// # Errors
    /// As [`Interface::reaches`].
    pub fn reaches(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        let reached = self.handle().with(|_, interface| interface.reaches(peer));
        reached.unwrap_or_else(|| Err(self.forked()))
    }

    fn forked(&self) -> ConnectError {
        super::endpoint::forked(self.transport())
    }

    /// Sets the handler of active messages with `id` (0 to 31), replacing an earlier one. It runs
    /// with the worker's lock held, on any thread.
    pub fn set_handler(
        &self,
        id: u8,
        mut handler: impl FnMut(SharedMessage<'_>) + Send + 'static,
    ) -> Result<(), HandlerError> {
        // Weak, because the worker owns the handler.
        let shared = Arc::downgrade(&self.handle().shared);
        let handler =
            move |message: Message<'_>| handler(SharedMessage { message, shared: &shared });
        let set = self.handle().with(|_, interface| interface.set_handler(id, handler));
        set.unwrap_or(Err(HandlerError::Closed))
    }

    /// Sets the handler that is called once for each endpoint that fails. It runs with the worker's
    /// lock held, on any thread.
    pub fn set_error_handler(&self, handler: impl FnMut(&EndpointError) + Send + 'static) {
        self.handle().with(|_, interface| interface.set_error_handler(handler));
    }

    /// Returns the number of messages that were dropped because their id has no handler.
    pub fn unhandled(&self) -> u64 {
        self.handle().with(|_, interface| interface.unhandled()).unwrap_or_default()
    }

    /// Returns the counters of all endpoints of the interface, including dropped ones.
    pub fn counters(&self) -> Counters {
        self.handle().with(|_, interface| interface.counters()).unwrap_or_default()
    }

    /// Flushes every endpoint as [`Interface::flush`].
    ///
    /// # Errors
    /// As [`Interface::flush`].
    pub fn flush(&self, completion: Option<&SharedCompletion>) -> Post {
        let target = Target { completion: completion.cloned(), ..Target::default() };
        post(self.handle(), target, |interface, ticket| {
            interface.flush(ticket.map(|ticket| &ticket.completion))
        })
    }

    /// On every endpoint, orders later operations after earlier ones.
    pub fn fence(&self) -> Result<(), PostError> {
        let fenced = self.handle().with(|_, interface| interface.fence());
        fenced.unwrap_or(Err(PostError::Forked))
    }
}

impl fmt::Debug for SharedInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedInterface")
            .field("transport", &self.0.transport)
            .field("address", &self.0.address)
            .finish_non_exhaustive()
    }
}
