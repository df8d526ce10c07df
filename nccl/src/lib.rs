//! A network plugin for NCCL over barewire's channels: `libnccl-net-barewire.so`.
//!
//! NCCL loads it with `NCCL_NET_PLUGIN=barewire`, and finds the tables `ncclNetPlugin_v6` to
//! `ncclNetPlugin_v12`. It moves messages between the memories of hosts; see the README for what
//! that means for GPUs, and for the settings.
//!
//! # Contract of the functions
//!
//! Every function is called as NCCL's header describes: comms, memory handles and requests are
//! those that this library returned and that were not closed since, and pointers are valid for
//! what they point to. The data path of one comm is called from one thread at a time; memory may be
//! registered on another meanwhile. Null pointers, sizes, numbers and the bytes of handles are
//! checked.
//!
//! A panic does not cross the boundary: it becomes an internal error, or ends the process where it
//! comes from the data path, which does not panic.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod abi;
mod comm;
mod data;
mod devices;
mod log;
mod table;

pub use devices::{VARIABLE, use_devices};
pub use table::{
    ncclNetPlugin_v6, ncclNetPlugin_v7, ncclNetPlugin_v8, ncclNetPlugin_v9, ncclNetPlugin_v10,
    ncclNetPlugin_v11, ncclNetPlugin_v12,
};
