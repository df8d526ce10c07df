//! The endpoint: connecting, waiting and closing. The messages are in [`message`](super::message).

use std::rc::Rc;

use super::ID;
use super::interface::Interface;
use super::state::State;
use crate::address::PeerAddress;
use crate::capability::Flush;
use crate::completion::Completion;
use crate::counters::Counters;
use crate::error::{ConnectError, EndpointError, OpenError, PostError};
use crate::status::{FlushMode, Post, Posted};
use crate::transport::common::post_state::PostBlock;
use crate::transport::{self, Interface as _};

/// One end of a connection. Cloning gives another handle to the same endpoint.
///
/// Dropping the last handle closes it: messages that are not acknowledged complete as cancelled in
/// the next progress. Flush before the drop if they must arrive.
#[must_use = "dropping the last handle closes the endpoint"]
pub struct Endpoint(pub(super) Rc<State>);

impl Endpoint {
    /// Creates an unconnected endpoint, to be connected to another endpoint.
    ///
    /// # Errors
    /// [`OpenError::TooManyEndpoints`], [`OpenError::Device`], [`OpenError::Closed`]
    pub fn new(interface: &Interface) -> Result<Self, OpenError> {
        interface.0.open_endpoint().map(Self::handle)
    }

    /// Connects to the peer's endpoint. Both ends connect to each other; messages sent before the
    /// other end has connected arrive after it has.
    ///
    /// # Errors
    /// [`ConnectError::NoEndpoint`], [`ConnectError::ForeignTransport`], [`ConnectError::Address`]
    /// and [`ConnectError::Unreachable`] for addresses that are not usable here,
    /// [`ConnectError::Connected`] the second time, [`ConnectError::Device`] if the device refuses.
    pub fn connect(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        self.0.connect(peer.device(), peer.endpoint_for(ID)?)
    }

    fn cancel(&self, completion: Option<&Completion>) -> Post {
        let state = &*self.0;
        if state.posting.has(PostBlock::Closed) {
            return Err(PostError::Closed);
        }
        if !state.posting.has(PostBlock::Failed) {
            state.stop(PostBlock::Failed);
            state.shared.catch_up_later();
        }
        if state.is_idle() {
            return Ok(Posted::Done);
        }
        if let Some(completion) = completion {
            state.flush_later(completion, true);
        }
        Ok(Posted::InProgress)
    }
}

impl transport::Endpoint for Endpoint {
    fn error(&self) -> Option<EndpointError> {
        self.0.error()
    }

    fn counters(&self) -> Counters {
        self.0.counters()
    }

    fn address(&self) -> PeerAddress {
        let own = self.0.shared.own.pack_endpoint(self.0.name);
        Interface(Rc::clone(&self.0.shared)).address().with_endpoint(own)
    }
}

impl Flush for Endpoint {
    fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        let state = &*self.0;
        if mode == FlushMode::Cancel {
            return self.cancel(completion);
        }
        state.posting.check()?;
        if state.is_idle() {
            return Ok(Posted::Done);
        }
        if let Some(completion) = completion {
            if !state.can_flush() {
                return Err(state.posting.refuse());
            }
            state.flush_later(completion, false);
        }
        Ok(Posted::InProgress)
    }

    fn fence(&self) -> Result<(), PostError> {
        self.0.posting.check()
    }
}

crate::transport::common::handle::endpoint_handle!(ID, name);
