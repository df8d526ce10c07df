//! The kernel's uverbs ABI over the software HCA, as a library for LD_PRELOAD.
//!
//! With `libbarewire_hca.so` preloaded, unmodified libibverbs and libmlx5, and every program that
//! uses them, find devices `mlx5_0`, `mlx5_1`, ...; each is a [`barewire_hca::Device`] of the same
//! process. `barewire hca run -- PROGRAM` sets this up.
//!
//! Verbs objects are created by PRM commands, as in the kernel's mlx5_ib: verbs and DEVX share one
//! object model.

mod abi;
mod adapter;
mod attributes;
mod clock;
mod config;
mod context;
mod elsewhere;
mod errno;
mod event;
mod explain;
pub mod fault;
pub mod interpose;
mod method;
mod object;
mod path;
mod pinned;
mod private;
mod process;
mod qp_type;
mod rdma_cm;
pub mod sanitizers;
mod shared;
mod signals;
mod trace;
mod user_memory;
mod values;
