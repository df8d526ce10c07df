//! The integration tests of this crate, in one program.

mod devx;
mod direct;
mod events;
mod memory;
mod objects;
mod posting;
mod refused;
mod support;
