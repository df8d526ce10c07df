//! RDMA devices of this machine, as the kernel and libibverbs show them.
//!
//! [`probe`] needs no library: it reads sysfs and says for each device whether this build can use it, and
//! if not, why. With the feature `rdma-sys` the crate links libibverbs and `devices` and `Context` list
//! and open devices and query their ports.
//!
//! Nothing here sends data: queues, memory registration and mlx5dv are not here yet.
#![deny(unsafe_code)]

#[cfg(feature = "rdma-sys")]
mod device;
mod probe;
#[cfg(feature = "rdma-sys")]
mod sys;

#[cfg(feature = "rdma-sys")]
pub use device::{Context, Device, LinkLayer, OpenError, Port, PortState, QueryError, devices};
pub use probe::{Finding, MACHINE, Roots, probe};
