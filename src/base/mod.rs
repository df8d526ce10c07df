//! What transports and the dynamic API have in common: nothing here knows a transport.

pub mod address;
pub(crate) mod atomic;
pub(crate) mod attributes;
pub mod caller;
pub(crate) mod capability;
pub(crate) mod completion;
pub mod config;
pub(crate) mod counters;
pub(crate) mod device;
pub mod error;
pub(crate) mod event;
pub(crate) mod fork;
pub(crate) mod interleaved;
pub(crate) mod memory;
#[cfg(any(feature = "mlx5", feature = "verbs", feature = "tcp"))]
pub(crate) mod network;
pub(crate) mod panics;
pub(crate) mod pending;
pub(crate) mod random;
pub(crate) mod registration;
pub mod report;
pub(crate) mod scoped;
pub(crate) mod status;
pub(crate) mod tag;
pub(crate) mod transports;
