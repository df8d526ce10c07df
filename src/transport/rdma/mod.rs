//! Code that the transports over libibverbs share: a device's port, the route to another port,
//! completions, and queue pairs whose requests are counted.

mod completions;
mod detail;
mod domain;
mod events;
mod failure;
mod port;
mod queue;

pub use super::common::registered::RemoteKey;
pub(crate) use completions::{Completions, Taken};
pub(crate) use detail::{port as port_trouble, unanswered};
pub(crate) use domain::Registered;
pub(crate) use domain::found;
pub use domain::{Domain, Memory};
pub(crate) use failure::error;
pub(crate) use port::PortAddress;
pub(crate) use queue::{Pair, QueuePair, SEND, WrId, WrKind, read, write};

use crate::base::address::TransportId;

/// The transport that errors of devices and memory name, for both transports.
const ID: TransportId = TransportId::RcVerbs;
