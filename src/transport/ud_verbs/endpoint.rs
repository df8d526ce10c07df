//! The endpoint: connecting, waiting and closing. Messages are in [`message`](super::message).

use std::rc::Rc;

use super::NAME;
use super::interface::Interface;
use super::state::State;
use crate::address::{DeviceAddress, EndpointAddress, InterfaceAddress};
use crate::capability::Flush;
use crate::completion::Completion;
use crate::error::{ConnectError, OpenError, PostError};
use crate::status::{FlushMode, Post, Posted};
use crate::transport::common::gate::Block;

/// One end of a connection. Cloning gives another handle to the same one.
///
/// Dropping the last handle ends it: what was not acknowledged completes as cancelled in the next progress. Flush first what must
/// arrive.
pub struct Endpoint(pub(super) Rc<State>);

impl Endpoint {
    /// Makes an endpoint to be connected to another one.
    ///
    /// # Errors
    /// [`OpenError::TooManyEndpoints`], [`OpenError::Device`], [`OpenError::Closed`]
    pub fn new(interface: &Interface) -> Result<Self, OpenError> {
        interface.0.open_endpoint().map(Self::handle)
    }

    /// Connects to an interface, which makes an endpoint for it: the one that its next call to connect here gets. Until it answers,
    /// posts answer [`PostError::NoResource`].
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_to_interface(
        interface: &Interface,
        device: &DeviceAddress,
        address: &InterfaceAddress,
    ) -> Result<Self, ConnectError> {
        interface.0.connect_to_interface(device, address).map(Self::handle)
    }

    /// What the peer passes to [`connect`](Self::connect).
    pub fn address(&self) -> EndpointAddress {
        self.0.shared.own.pack_endpoint(self.0.name)
    }

    /// Connects to the peer's endpoint. Both ends connect to each other; what one sends before the other did arrives after it did.
    ///
    /// # Errors
    /// [`ConnectError::ForeignTransport`], [`ConnectError::Address`] and [`ConnectError::Unreachable`] for addresses that are not usable
    /// here, [`ConnectError::Connected`] the second time, [`ConnectError::Device`] if the device refuses.
    pub fn connect(&self, device: &DeviceAddress, address: &EndpointAddress) -> Result<(), ConnectError> {
        self.0.connect(device, address)
    }

    fn cancel(&self, completion: Option<&Completion>) -> Post {
        let state = &*self.0;
        if state.gate.has(Block::Closed) {
            return Err(PostError::Closed);
        }
        if !state.gate.has(Block::Failed) {
            state.stop(Block::Failed);
            state.shared.catch_up_later();
        }
        if state.is_idle() {
            return Ok(Posted::Done);
        }
        if let Some(completion) = completion.cloned() {
            // What is given up is not an error of the flush.
            state.flush_later(Completion::new(1, move |_| completion.count_down(Ok(()))));
        }
        Ok(Posted::InProgress)
    }
}

impl Flush for Endpoint {
    fn flush(&self, mode: FlushMode, completion: Option<&Completion>) -> Post {
        let state = &*self.0;
        if mode == FlushMode::Cancel {
            return self.cancel(completion);
        }
        state.gate.check()?;
        if state.is_idle() {
            return Ok(Posted::Done);
        }
        if let Some(completion) = completion {
            if !state.can_flush() {
                return Err(state.gate.refuse());
            }
            state.flush_later(completion.clone());
        }
        Ok(Posted::InProgress)
    }

    fn fence(&self) -> Result<(), PostError> {
        self.0.gate.check()
    }
}

crate::transport::common::handle::endpoint_handle!(NAME, name);
