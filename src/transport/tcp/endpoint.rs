//! The endpoint: connecting, waiting and closing. Posting is in [`message`](super::message),
//! [`rma`](super::rma) and [`atomic`](super::atomic).

use std::cell::Cell;

use barewire_tcp::interfaces::Routes;
use barewire_tcp::request::REQUEST_BYTES;

use super::address;
use super::interface::Shared;
use super::state::State;
use super::{Endpoint, ID, Interface, SEGMENT, Tcp};
use crate::base::address::{EndpointAddress, PeerAddress};
use crate::base::capability::Check;
use crate::base::completion::Completion;
use crate::base::error::{ConnectError, EndpointError, OpenError, PostError};
use crate::base::status::{FlushMode, Post, Posted};
use crate::transport::common::post_state::PostBlock;
use crate::transport::handle::{EndpointState, endpoint_fields};

impl Endpoint {
    /// Makes an endpoint that can be connected.
    pub fn new(interface: &Interface) -> Result<Self, OpenError> {
        interface.0.open_endpoint().map(Self::handle)
    }

    /// Connects to the peer's endpoint. Both ends connect to each other, in any order. Posts are
    /// possible immediately, and are sent when the connection is established.
    ///
    /// # Errors
    /// [`ConnectError::NoEndpoint`], [`ConnectError::ForeignTransport`] and
    /// [`ConnectError::Address`] for addresses that are not usable here,
    /// [`ConnectError::Connected`] the second time, [`ConnectError::Unreachable`] if the domain's
    /// device does not lead there or the peer is of another process and this one has no key, [`ConnectError::Device`] if the kernel refuses, for example
    /// because the process has no descriptor left.
    pub fn connect(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        let state = &*self.0;
        let end = address::unpack_endpoint(peer.endpoint_for(ID)?)?;
        if !state.posting.has(PostBlock::Unconnected) || !state.posting.is_alive() {
            return Err(ConnectError::Connected { transport: ID });
        }
        state.connect(state.shared.way_to(peer.device(), &Routes::default())?, end)
    }
}

impl Check for Endpoint {
    fn check(&self) -> Result<(), PostError> {
        self.0.posting.check()?;
        self.0.send_keepalive()
    }
}

impl EndpointState for State {
    endpoint_fields!(Tcp);

    fn address(&self) -> EndpointAddress {
        address::endpoint(self.own())
    }

    fn error(&self) -> Option<EndpointError> {
        self.life.borrow().error()
    }

    fn is_connecting(&self) -> bool {
        let is_coming = self.messages.try_borrow().is_ok_and(|messages| messages.is_coming());
        is_coming && self.posting.is_alive()
    }

    fn may_wait(&self) -> bool {
        const MOST: usize = SEGMENT + 2 * REQUEST_BYTES;
        let is_short = self.is_short.get()
            || self.posting.has(PostBlock::Connecting)
            || self
                .messages
                .try_borrow()
                .map_or(true, |messages| messages.outbox().is_crowded(MOST))
            || self.memory.try_borrow().map_or(true, |memory| {
                memory.as_ref().is_some_and(|memory| memory.room() == 0 || memory.is_crowded(MOST))
            });
        self.posting.is_usable() && (is_short || !self.pending.is_idle())
    }

    fn handles(&self) -> Option<&Cell<u32>> {
        Some(&self.handles)
    }

    fn close(&self) {
        if !self.shared.core.closed.get() {
            self.shut_down(PostBlock::Failed);
        }
    }

    fn send_waiting(&self) {
        self.send_all();
    }

    fn is_idle(&self) -> bool {
        self.posted().is_some_and(|posted| self.done() == Some(posted))
    }

    fn can_flush(&self) -> bool {
        (self.posting.is_open() || self.posting.has(PostBlock::Failed))
            && self.posted().is_some()
            && self.waiters.borrow().flushes() < self.shared.config.send_ring as usize
    }

    fn flush_all(&self, completion: Option<&Completion>) -> Result<(), PostError> {
        completion.map_or(Ok(()), |completion| self.wait_for_all(completion, false))
    }

    /// A message is finished once the kernel has taken it, and an operation on memory once the
    /// peer's target has carried it out: local and remote completion are the same.
    fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        let cancels = mode == FlushMode::Cancel;
        if !cancels {
            self.posting.check()?;
            self.send_all();
        } else if self.posting.has(PostBlock::Closed) {
            return Err(PostError::Closed);
        } else {
            self.cancel();
        }
        if self.is_idle() {
            return Ok(Posted::Done);
        }
        if let Some(completion) = completion {
            self.wait_for_all(completion, cancels)?;
        }
        Ok(Posted::InProgress)
    }

    /// Lets messages wait for the requests that are outstanding now, requests for messages that the
    /// kernel has not taken, and puts for gets. Requests are carried out in order.
    fn fence(&self) {
        if let Ok(messages) = self.messages.try_borrow()
            && !messages.outbox().is_empty()
        {
            self.message_fence.set(messages.outbox().posted());
        }
        if let Ok(mut memory) = self.memory.try_borrow_mut()
            && let Some(memory) = &mut *memory
            && memory.posted() > memory.finished()
        {
            memory.fence();
            self.fence.set(memory.posted());
        }
    }
}
