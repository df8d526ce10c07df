//! The handles of interfaces and endpoints, which are the same for every transport.
//!
//! Behind a handle is a state: a transport implements `InterfaceState` and `EndpointState` for its
//! own. Users hold an [`Interface`] and [`Endpoint`]s.

#![expect(private_bounds, reason = "sealed: the transports are this crate's own")]

mod endpoint;
mod interface;
mod keepalive;
mod list;
pub(crate) mod poster;
#[cfg(any(feature = "mlx5", feature = "tcp", feature = "verbs"))]
mod slots;
pub(crate) mod view;
pub(crate) mod window;

pub use endpoint::Endpoint;
pub(crate) use endpoint::{EndpointState, InDynamic, States, endpoint_fields};
pub use interface::Interface;
pub(crate) use interface::{InterfaceCore, InterfaceState};
pub(crate) use keepalive::Keepalive;
pub(crate) use list::{EndpointList, WeakEndpoints};
#[cfg(any(feature = "mlx5", feature = "tcp", feature = "verbs"))]
pub(crate) use slots::Slots;
