//! The endpoint: connecting, waiting and closing. The operations are in
//! [`message`](super::message), [`rma`](super::rma) and [`atomic`](super::atomic).

use std::fmt;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use super::ID;
use super::address;
use super::domain::RemoteKey;
use super::interface::Interface;
use super::state::State;
use crate::address::{DeviceAddress, Packed, PeerAddress};
use crate::capability::{Check, Flush, RemoteMemory};
use crate::completion::Completion;
use crate::counters::Counters;
use crate::error::{ConnectError, EndpointError, OpenError, PostError};
use crate::status::{FlushMode, Post, Posted};
use crate::transport::common::post_state::PostBlock;
use crate::transport::{self, Interface as _};

/// A connection to a peer's interface. Cloning gives another handle to the same endpoint; dropping
/// the last one closes it. Messages that were sent still arrive.
#[derive(Clone)]
#[must_use = "dropping the last handle closes the endpoint"]
pub struct Endpoint(pub(super) Rc<State>);

impl Endpoint {
    /// Creates an unconnected endpoint.
    ///
    /// # Errors
    /// [`OpenError::Closed`]
    pub fn new(interface: &Interface) -> Result<Self, OpenError> {
        interface.0.open_endpoint().map(Self)
    }

    /// Connects to the interface of the peer's endpoint. Until the peer responds, posts return
    /// [`PostError::NoResource`].
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

impl transport::Endpoint for Endpoint {
    fn error(&self) -> Option<EndpointError> {
        self.0.error()
    }

    fn counters(&self) -> Counters {
        self.0.counters()
    }

    fn address(&self) -> PeerAddress {
        Interface(Rc::clone(&self.0.shared))
            .address()
            .with_endpoint(address::endpoint(self.0.shared.address))
    }
}

impl Flush for Endpoint {
    fn flush(&self, mode: FlushMode, _completion: Option<&Completion>) -> Post {
        let posting = &self.0.posting;
        if mode == FlushMode::Cancel {
            if !posting.is_alive() {
                posting.check()?;
            }
            self.0.stop(PostBlock::Failed);
        } else {
            posting.check()?;
            std::sync::atomic::fence(Ordering::SeqCst);
        }
        Ok(Posted::Done)
    }

    fn fence(&self) -> Result<(), PostError> {
        self.0.posting.check()?;
        std::sync::atomic::fence(Ordering::SeqCst);
        Ok(())
    }
}

impl Check for Endpoint {
    fn check(&self) -> Result<(), PostError> {
        self.0.posting.check()
    }
}

crate::transport::common::handle::endpoint_state!();

impl RemoteMemory for Endpoint {
    type Key = RemoteKey;
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("transport", &ID)
            .field("error", &self.0.error())
            .finish_non_exhaustive()
    }
}
