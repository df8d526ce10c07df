//! The static door: one module per transport, each with `Domain`, `Interface`, `Progress`, `Endpoint`,
//! `Memory` and `RemoteKey`. Everything inlines; what a transport cannot do is not there to be called
//! (see [`capability`](crate::capability)).

pub mod cma;
pub(crate) mod common;
pub mod rc_mlx5;
#[cfg(feature = "verbs")]
pub mod rc_verbs;
#[cfg(feature = "verbs")]
pub(crate) mod rdma;
#[cfg(feature = "verbs")]
mod reliable;
pub mod self_;
pub mod shm;
pub mod tcp;
#[cfg(feature = "verbs")]
pub mod ud_verbs;
