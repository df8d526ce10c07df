//! What the transports over generic verbs share: a device's port with memory in it, the way to another port, and queue pairs whose requests
//! are counted.

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
pub(crate) use queue::{Full, Pair, QueuePair, SEND, What, Whose, read, write};

/// The name under which both appear where it is about devices and memory, not about endpoints.
const NAME: &str = "verbs";
