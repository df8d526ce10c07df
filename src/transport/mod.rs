//! The static door: one module per transport, each with `Domain`, `Interface`, `Progress`, `Endpoint`,
//! `Memory` and `RemoteKey`. Everything inlines; what a transport cannot do is not there to be called
//! (see [`capability`](crate::capability)).

pub mod rc_mlx5;
pub mod self_;
pub mod shm;
pub mod tcp;
