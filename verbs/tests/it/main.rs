//! The integration tests of this crate, in one program.

mod devx;
mod direct;
mod events;
mod memory;
mod objects;
mod posting;
#[cfg(feature = "rdma-cm")]
mod rdma_cm;
mod refused;
mod support;
