//! The handles of interfaces and endpoints, which are the same for every transport.
//!
//! Behind a handle is a state: [`InterfaceState`] and [`EndpointState`] are what a transport
//! implements for its own, and [`Interface`] and [`Endpoint`] are what users hold.

#![expect(private_bounds, reason = "sealed: the transports are this crate's own")]

mod endpoint;
mod interface;
mod list;

pub use endpoint::Endpoint;
pub(crate) use endpoint::{EndpointState, endpoint_fields};
pub use interface::Interface;
pub(crate) use interface::{InterfaceCore, InterfaceState};
pub(crate) use list::{EndpointList, Slots, WeakEndpoints};

use crate::address::TransportId;

/// The states of a transport's interfaces and endpoints.
pub(crate) trait States: Sized + 'static {
    const ID: TransportId;
    type Shared: InterfaceState<Transport = Self>;
    type State: EndpointState<Transport = Self>;
    /// How an interface keeps its endpoints.
    type Endpoints: EndpointList<Self::State>;
}
