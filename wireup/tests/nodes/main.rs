//! Nodes that connect by each other's address.

mod asymmetric;
mod callbacks;
mod close;
mod collective;
mod connect;
mod failure;
#[path = "../../../tests/support/flood.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod flood;
mod floods;
mod hostile;
mod listen;
mod memory;
mod namespaces;
mod processes;
mod shared;
mod support;
