//! RDMA devices of this machine, as the kernel and libibverbs show them.
//!
//! [`probe`] needs no library: it reads sysfs and says for each device whether this build can use it, and
//! if not, why. With the feature `rdma-sys` the crate links libibverbs: `devices` and `Context` list and open devices, and objects are made
//! from there: `ProtectionDomain`, `MemoryRegion`, `CompletionQueue`, `QueuePair`, `AddressHandle`. `dv` is for a driver of mlx5 devices
//! of its own: commands to the device, and the rings of verbs objects; it loads libmlx5 when it is first used.
//!
//! Every object keeps alive what it was made from, may go to any thread, and may be dropped in any order. Nothing here posts work
//! requests or polls for completions yet.
#![deny(unsafe_code)]

#[cfg(feature = "rdma-sys")]
mod address;
#[cfg(feature = "rdma-sys")]
mod completion;
#[cfg(feature = "rdma-sys")]
mod device;
#[cfg(feature = "rdma-sys")]
pub mod dv;
#[cfg(feature = "rdma-sys")]
mod error;
#[cfg(feature = "rdma-sys")]
mod gid;
#[cfg(feature = "rdma-sys")]
mod memory;
mod probe;
#[cfg(feature = "rdma-sys")]
mod queue_pair;
#[cfg(feature = "rdma-sys")]
mod sys;

#[cfg(feature = "rdma-sys")]
pub use address::{AddressHandle, GlobalRoute, Route};
#[cfg(feature = "rdma-sys")]
pub use completion::{ByVerbs, CompletionQueue, CompletionQueueRef};
#[cfg(feature = "rdma-sys")]
pub use device::{
    Context, Device, DeviceAttributes, LinkLayer, OpenError, Port, PortState, QueryError, devices,
};
#[cfg(feature = "rdma-sys")]
pub use error::Error;
#[cfg(feature = "rdma-sys")]
pub use gid::{Gid, GidChoice, GidEntry, GidKind};
#[cfg(feature = "rdma-sys")]
pub use memory::{Access, MemoryRegion, ProtectionDomain};
pub use probe::{Finding, MACHINE, Roots, probe};
#[cfg(feature = "rdma-sys")]
pub use queue_pair::{
    Capacity, Initialize, QueuePair, QueuePairKind, QueuePairOptions, QueuePairState, ReadyToReceive,
    ReadyToSend,
};
