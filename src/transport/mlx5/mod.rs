//! What the transports of mlx5 devices share: devices and their memory, keys that posts change,
//! receive buffers that endpoints share, and the posts of endpoints with a queue of their own.

#![expect(private_bounds, reason = "sealed: the drivers are this crate's own")]

pub(super) mod atomic;
mod attributes;
pub(super) mod change;
pub(super) mod domain;
pub(super) mod failure;
#[cfg(feature = "verbs")]
pub(crate) mod hardware;
mod list;
pub(super) mod message;
pub(super) mod path;
pub(super) mod post;
pub(super) mod requests;
mod revoked;
mod rma;
pub(super) mod shared;
#[cfg(feature = "soft")]
mod soft;

pub use super::common::registered::RemoteKey;
pub(super) use attributes::{attributes, restrict};
pub use change::{View, Window};
pub use domain::{Domain, Memory, SOFT_DEVICE};

use crate::base::address::TransportId;

/// Keys of all these transports have the code of the first one.
pub(crate) const KEYS: TransportId = TransportId::RcMlx5;
