//! Endpoints to further interfaces of a node that is connected already.

use std::rc::Rc;

use super::address::ReceiverAddress;
use super::driver::{self, Shared, State};
use super::{Endpoint, ID, Interface};
use crate::base::address::PeerAddress;
use crate::base::error::ConnectError;
use crate::transport::common::post_state::PostBlock;
use crate::transport::rc;

impl Interface {
    /// Opens an endpoint to an interface of a node to which an endpoint of this interface is
    /// connected. It uses the same connection: see [the module](super).
    ///
    /// # Errors
    /// [`ConnectError::ForeignTransport`] and [`ConnectError::Address`] for addresses that are not
    /// usable here, [`ConnectError::Unreachable`] if no endpoint is connected to the node, and
    /// [`ConnectError::Open`] if there are too many endpoints or the interface is closed.
    pub fn connect(&self, peer: &PeerAddress) -> Result<Endpoint, ConnectError> {
        let port = rc::port::<super::XrcMlx5>(peer.device())?;
        let receiver = ReceiverAddress::unpack(peer.interface())?;
        let unreachable = |reason: String| ConnectError::Unreachable {
            transport: ID,
            peer: format!("{port} SRQ {:#08x}", receiver.queue),
            reason,
        };
        // A device that failed refuses the commands of other endpoints; this one needs none.
        if let Some(failure) = self.0.domain.failure() {
            return Err(unreachable(failure));
        }
        let first = self.0.endpoint_to(receiver.node).ok_or_else(|| {
            let reason =
                "no endpoint of this interface is connected to its node: connect one first";
            unreachable(reason.to_owned())
        })?;
        let created = first.with_queue(|line| driver::created(line.to(receiver.queue), &first.own));
        let state = self.0.open_beside(&first, created)?;
        state.driver.node.set(Some(receiver.node));
        let qpn = first.peer_number().unwrap_or(0);
        state.connected(port, qpn, (receiver.flush_address, receiver.flush_key));
        Ok(Endpoint::handle(state))
    }
}

impl Shared {
    /// Returns an endpoint that is connected to `node`.
    fn endpoint_to(&self, node: u64) -> Option<Rc<State>> {
        let is_usable = |state: &Rc<State>| {
            let posting = &state.posting;
            state.driver.node.get() == Some(node)
                && posting.is_alive()
                && !posting.has(PostBlock::Unconnected)
        };
        let mut nodes = self.driver.nodes.borrow_mut();
        if let Some(state) = nodes.get(&node).and_then(std::rc::Weak::upgrade).filter(is_usable) {
            return Some(state);
        }
        // The endpoint that was found last has failed or was closed.
        let found = self.core.endpoints.borrow().iter().find(|state| is_usable(state)).cloned();
        match &found {
            Some(state) => nodes.insert(node, state.me.clone()),
            None => nodes.remove(&node),
        };
        found
    }
}
