//! The endpoint: connecting, waiting and closing. The operations are in
//! [`message`](super::message), [`rma`](super::rma) and [`atomic`](super::atomic).

use super::address;
use super::{Endpoint, ID, Interface};
use crate::base::address::{DeviceAddress, Packed, PeerAddress};
use crate::base::capability::Check;
use crate::base::error::{ConnectError, OpenError, PostError};

impl Endpoint {
    /// Creates an unconnected endpoint.
    pub fn new(interface: &Interface) -> Result<Self, OpenError> {
        interface.0.open_endpoint().map(Self::handle)
    }

    /// Connects to the interface of the peer's endpoint. Until the peer responds, posts return
    /// [`PostError::NoResource`]. An interface of this process need not respond.
    ///
    /// # Errors
    /// [`ConnectError::NoEndpoint`], [`ConnectError::ForeignTransport`] for an address of another
    /// transport, [`ConnectError::Unreachable`] with the reason, [`ConnectError::Connected`] the
    /// second time, [`ConnectError::Device`] if the kernel refuses.
    pub fn connect(&self, peer: &PeerAddress) -> Result<(), ConnectError> {
        self.reach(peer.device(), &peer.endpoint_for(ID)?.0)
    }

    pub(super) fn reach(
        &self,
        device: &DeviceAddress,
        address: &Packed,
    ) -> Result<(), ConnectError> {
        self.0.connect(address::port(device, address)?)
    }
}

impl Check for Endpoint {
    fn check(&self) -> Result<(), PostError> {
        self.0.posting.check()
    }
}
