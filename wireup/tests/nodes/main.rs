//! Nodes that connect by each other's address.

mod asymmetric;
mod close;
mod connect;
mod failure;
mod listen;
mod memory;
mod namespaces;
mod processes;
mod support;
