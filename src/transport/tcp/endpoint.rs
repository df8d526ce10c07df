//! The endpoint: connecting, waiting and closing. Posting is in [`message`](super::message),
//! [`rma`](super::rma) and [`atomic`](super::atomic).

use std::fmt;
use std::rc::Rc;

use super::ID;
use super::address::{self, RemoteKey};
use super::interface::Interface;
use super::life::Peer;
use super::state::State;
use crate::address::PeerAddress;
use crate::capability::{Check, Flush, RemoteMemory};
use crate::completion::Completion;
use crate::counters::Counters;
use crate::error::{ConnectError, EndpointError, OpenError, PostError};
use crate::status::{FlushMode, Post};
use crate::transport;
use crate::transport::common::pending::{HasPending, PendingQueue, Request};
use crate::transport::common::post_state::{PostBlock, PostState};

/// One end of a connection. Cloning gives another handle to the same one.
///
/// Dropping the last handle closes it: what the kernel has taken is delivered, and what is
/// outstanding completes as canceled in the next progress. Flush first what must arrive.
#[must_use = "dropping the last handle closes the endpoint"]
pub struct Endpoint(pub(super) Rc<State>);

impl Endpoint {
    /// Makes an endpoint that can be connected.
    ///
    /// # Errors
    /// [`OpenError::TooManyEndpoints`], [`OpenError::Closed`]
    pub fn new(interface: &Interface) -> Result<Self, OpenError> {
        interface.0.open_endpoint().map(Self::handle)
    }

    fn handle(state: Rc<State>) -> Self {
        state.add_handle();
        Self(state)
    }

    /// Connects to the peer's endpoint. Both ends connect to each other, in any order. Posts are
    /// possible immediately, and are sent when the connection is established.
    ///
    /// # Errors
    /// [`ConnectError::NoEndpoint`], [`ConnectError::ForeignTransport`] and
    /// [`ConnectError::Address`] for addresses that are not usable here,
    /// [`ConnectError::Connected`] the second time, [`ConnectError::Unreachable`] if the domain's
    /// device does not lead there, [`ConnectError::Device`] if the kernel refuses, for example
    /// because the process has no descriptor left.
    pub fn connect(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        let state = &*self.0;
        let peer = Peer {
            address: address::unpack_device(peer.device())?,
            end: address::unpack_endpoint(peer.endpoint_for(ID)?)?,
        };
        if !state.posting.has(PostBlock::Unconnected) || !state.posting.is_alive() {
            return Err(ConnectError::Connected { transport: ID });
        }
        state.connect(peer)
    }
}

impl transport::Endpoint for Endpoint {
    fn address(&self) -> PeerAddress {
        self.0.shared.peer_address().with_endpoint(address::endpoint(self.0.own()))
    }

    fn error(&self) -> Option<EndpointError> {
        self.0.life.borrow().error()
    }

    fn counters(&self) -> Counters {
        self.0.posting.tally.read()
    }
}

impl Check for Endpoint {
    fn check(&self) -> Result<(), PostError> {
        self.0.posting.check()?;
        self.0.send_keepalive()
    }
}

impl Flush for Endpoint {
    fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        self.0.flush(mode, completion)
    }

    fn fence(&self) -> Result<(), PostError> {
        self.0.posting.check()?;
        self.0.fence();
        Ok(())
    }
}

impl HasPending for Endpoint {
    fn pending(&self) -> &PendingQueue<Self> {
        &self.0.pending
    }

    fn post_state(&self) -> &PostState {
        &self.0.posting
    }

    fn may_wait(&self) -> bool {
        self.0.may_wait()
    }

    fn wait(&self, request: Request<Self>) {
        self.0.shared.arbiter.add(self.clone(), request);
    }
}

impl RemoteMemory for Endpoint {
    type Key = RemoteKey;
}

impl Clone for Endpoint {
    fn clone(&self) -> Self {
        Self::handle(Rc::clone(&self.0))
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.0.drop_handle();
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("transport", &ID)
            .field("own", &self.0.own())
            .finish_non_exhaustive()
    }
}
