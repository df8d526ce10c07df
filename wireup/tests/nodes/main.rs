//! Nodes that connect by each other's address.

mod asymmetric;
mod callbacks;
mod close;
mod connect;
mod failure;
mod floods;
mod hostile;
mod listen;
mod memory;
mod namespaces;
mod processes;
mod support;
