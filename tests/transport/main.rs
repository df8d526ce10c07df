//! The transport API over every transport and way to connect it. Every wait has a deadline.

mod callbacks;
mod closing;
mod cma;
mod datagrams;
mod full_queues;
mod lists;
mod memory;
mod peers;
mod pending;
mod remote_errors;
mod setup;
mod sockets;
mod static_door;
mod support;
mod volume;
