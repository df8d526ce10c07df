//! The transport API over every transport and way to connect it. Every wait has a deadline.

#[path = "../support/allocator.rs"]
mod allocator;
mod callbacks;
mod closing;
mod cma;
mod datagrams;
mod deregistration;
mod dynamic;
mod failing_device;
mod families;
mod full_queues;
mod helper;
mod holding;
mod lists;
mod memory;
mod order;
mod packing;
mod peers;
mod pending;
mod rc_verbs;
mod remote_errors;
mod scale;
mod secrets;
mod setup;
mod shm;
mod silence;
mod soak;
mod sockets;
mod static_api;
mod strangers;
#[allow(dead_code, reason = "what the conformance tests use is there, too")]
mod support;
mod tags;
mod unattended;
mod volume;
mod xrc;
