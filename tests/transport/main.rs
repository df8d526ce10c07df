//! The transport API over every transport and way to connect it. Every wait has a deadline.

mod callbacks;
mod closing;
mod cma;
mod full_queues;
mod lists;
mod memory;
mod peers;
mod pending;
mod rc_verbs;
mod remote_errors;
mod setup;
mod silence;
mod sockets;
mod static_door;
#[allow(dead_code, reason = "what the conformance tests use is there, too")]
mod support;
mod ud_verbs;
mod volume;
