//! The dynamic API: each object is an enum over the transports, which is selected at run time.

#[cfg(any(feature = "mlx5", feature = "verbs"))]
pub(crate) mod address_space;
#[cfg(feature = "tokio")]
pub(crate) mod asynchronous;
pub mod cache;
pub(crate) mod component;
#[cfg(any(feature = "mlx5", feature = "verbs"))]
pub(crate) mod dma_buf;
pub(crate) mod domain;
pub(crate) mod endpoint;
mod event_set;
pub(crate) mod interface;
pub(crate) mod memory;
pub(crate) mod remote_region;
pub mod shared;
pub(crate) mod table;
pub mod tag;
pub(crate) mod transport;
pub(crate) mod view;
pub(crate) mod window;
pub(crate) mod worker;
