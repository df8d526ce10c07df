//! The device through its public interface: PRM commands, WQEs, completions, events and packets.

#[path = "../support/mod.rs"]
mod support;

mod adapters;
mod addresses;
mod any_command;
mod capture;
mod commands;
mod completion;
mod datagrams;
mod device_memory;
mod dynamic;
mod dynamic_isolation;
mod dynamic_refusals;
mod dynamic_wire;
mod engine_errors;
mod engine_faults;
mod engine_operations;
mod engine_strict;
mod engine_threads;
mod engine_wire;
mod event_queues;
mod indirect_keys;
mod injected;
mod ipv6;
mod management;
mod masked_atomics;
mod multicast;
mod on_demand;
mod page_faults;
mod ports;
mod queries;
mod reads;
mod refused_commands;
mod refused_services;
mod registration;
mod requirements;
mod shared_receive;
mod soak;
mod streams;
mod strides;
mod tags;
mod unreliable;
mod xrc;
