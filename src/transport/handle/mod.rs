//! The handles of interfaces and endpoints, which are the same for every transport.
//!
//! Behind a handle is a state: a transport implements `InterfaceState` and `EndpointState` for its
//! own. Users hold an [`Interface`] and [`Endpoint`]s.

#![expect(private_bounds, reason = "sealed: the transports are this crate's own")]

mod endpoint;
mod interface;
mod keepalive;
mod list;
#[cfg(any(feature = "mlx5", feature = "tcp", feature = "verbs"))]
mod slots;

pub use endpoint::Endpoint;
pub(crate) use endpoint::{EndpointState, endpoint_fields};
pub use interface::Interface;
pub(crate) use interface::{InterfaceCore, InterfaceState};
pub(crate) use keepalive::{Keepalive, Probed};
pub(crate) use list::{EndpointList, WeakEndpoints};
#[cfg(any(feature = "mlx5", feature = "tcp", feature = "verbs"))]
pub(crate) use slots::Slots;

use crate::base::address::TransportId;

/// The endpoint of a transport in the dynamic API, which implements this.
pub(crate) trait InDynamic: Sized {
    type Dynamic: 'static;

    fn to_dynamic(endpoint: &Endpoint<Self>) -> Self::Dynamic
    where
        Self: States;
}

/// The states of a transport's interfaces and endpoints.
pub(crate) trait States: InDynamic + 'static {
    const ID: TransportId;
    type Shared: InterfaceState<Transport = Self>;
    type State: EndpointState<Transport = Self>;
    /// How an interface keeps its endpoints.
    type Endpoints: EndpointList<Self::State>;
}
