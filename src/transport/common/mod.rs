//! Code that transports share: post state, pending requests, buffers, operations in flight,
//! handlers.

#[cfg(any(feature = "mlx5", feature = "verbs"))]
pub(crate) mod address_space;
pub(crate) mod allocation;
#[cfg(any(feature = "mlx5", feature = "verbs"))]
pub(crate) mod attention;
pub(crate) mod handlers;
#[cfg(any(feature = "cma", feature = "shm"))]
pub(crate) mod host;
pub(crate) mod message;
#[cfg(any(feature = "mlx5", feature = "verbs"))]
pub(crate) mod operation;
pub(crate) mod parts;
pub(crate) mod pending;
pub(crate) mod pieces;
pub(crate) mod pool;
pub(crate) mod populate;
pub(crate) mod post_state;
#[cfg(any(feature = "mlx5", feature = "verbs"))]
pub(crate) mod registered;
pub(crate) mod rma;
pub(crate) mod slots;
#[cfg(any(feature = "mlx5", feature = "verbs"))]
pub(crate) mod user_index;
#[cfg(feature = "mlx5")]
pub(crate) mod watch;
