//! The endpoint: connecting, waiting and closing. The messages are in [`message`](super::message).

use std::cell::Cell;

use super::interface::Shared;
use super::state::{MAX_FLUSHES, State};
use super::{Endpoint, ID, Interface, UdVerbs};
use crate::address::{EndpointAddress, PeerAddress};
use crate::completion::Completion;
use crate::error::{ConnectError, EndpointError, OpenError, PostError};
use crate::status::{FlushMode, Post, Posted};
use crate::transport::common::post_state::PostBlock;
use crate::transport::handle::{EndpointState, endpoint_fields};

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
}

impl State {
    fn cancel(&self, completion: Option<&Completion>) -> Post {
        if self.posting.has(PostBlock::Closed) {
            return Err(PostError::Closed);
        }
        if !self.posting.has(PostBlock::Failed) {
            self.stop(PostBlock::Failed);
            self.shared.catch_up_later();
        }
        if self.is_idle() {
            return Ok(Posted::Done);
        }
        if let Some(completion) = completion {
            self.flush_later(completion, true);
        }
        Ok(Posted::InProgress)
    }
}

impl EndpointState for State {
    endpoint_fields!(UdVerbs);

    fn address(&self) -> EndpointAddress {
        self.shared.own.pack_endpoint(self.name)
    }

    fn error(&self) -> Option<EndpointError> {
        self.error.borrow().clone()
    }

    fn may_wait(&self) -> bool {
        let short =
            !self.has_room() || self.posting.has(PostBlock::Connecting) || !self.can_flush();
        self.posting.is_usable() && (short || !self.pending.is_idle())
    }

    fn handles(&self) -> Option<&Cell<u32>> {
        Some(&self.handles)
    }

    /// Progress finishes the outstanding operations.
    fn close(&self) {
        if !self.shared.core.closed.get() {
            self.stop(PostBlock::Failed);
            self.shared.close_later(self);
        }
    }

    fn is_idle(&self) -> bool {
        self.sender.borrow().is_idle()
    }

    fn can_flush(&self) -> bool {
        self.flushes.borrow().len() < MAX_FLUSHES
    }

    fn flush_all(&self, completion: Option<&Completion>) -> Result<(), PostError> {
        if let Some(completion) = completion {
            self.flush_later(completion, false);
        }
        Ok(())
    }

    fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        if mode == FlushMode::Cancel {
            return self.cancel(completion);
        }
        self.posting.check()?;
        if self.is_idle() {
            return Ok(Posted::Done);
        }
        if let Some(completion) = completion {
            if !self.can_flush() {
                return Err(self.posting.refuse());
            }
            self.flush_later(completion, false);
        }
        Ok(Posted::InProgress)
    }
}
