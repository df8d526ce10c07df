//! What the transports over generic verbs share: a device's port with memory in it, the way to another port, and queue pairs whose requests
//! are counted.

mod completions;
mod detail;
mod domain;
mod events;
mod failure;
mod port;
mod queue;

pub(super) use completions::{Completions, Taken};
pub(super) use detail::{port as port_trouble, unanswered};
pub(crate) use domain::found;
pub(super) use domain::{Buffer, Registered};
pub use domain::{Domain, Memory, RemoteKey};
pub(super) use failure::error;
pub(super) use port::PortAddress;
pub(super) use queue::{Full, Pair, QueuePair, SEND, What, Whose, read, write};

/// The name under which both appear where it is about devices and memory, not about endpoints.
const NAME: &str = "verbs";
