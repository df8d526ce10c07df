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
use crate::capability::{Check, Flush, RemoteMemory};
use crate::completion::Completion;
use crate::error::{ConnectError, OpenError, PostError};
use crate::status::{FlushMode, Post, Posted};
use crate::transport::common::gate::Block;

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
}

impl Flush for Endpoint {
    fn flush(&self, mode: FlushMode, _completion: Option<&Completion>) -> Post {
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

    fn fence(&self) -> Result<(), PostError> {
        self.0.gate.check()?;
        std::sync::atomic::fence(Ordering::SeqCst);
        Ok(())
    }
}

impl Check for Endpoint {
    fn check(&self) -> Result<(), PostError> {
        self.0.gate.check()
    }
}

crate::transport::common::handle::endpoint_state!();

impl RemoteMemory for Endpoint {
    type Key = RemoteKey;
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("transport", &NAME)
            .field("error", &self.0.error())
            .finish_non_exhaustive()
    }
}
