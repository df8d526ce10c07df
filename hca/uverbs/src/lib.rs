//! The kernel's uverbs ABI over the software HCA, as a library for LD_PRELOAD.
//!
//! With `libbarewire_hca.so` in front of the C library, unmodified libibverbs and libmlx5, and every program above them, find devices
//! `mlx5_0` and on that are [`barewire_hca::Device`]s of the same process. `barewire hca run -- PROGRAM` sets it up.
//!
//! Verbs objects become objects of the device by PRM commands, as in the kernel's mlx5_ib: there is one object model, whoever made the
//! object, verbs or DEVX.

mod abi;
mod adapter;
mod attributes;
mod clock;
mod config;
mod context;
mod errno;
mod event;
mod face;
pub mod hook;
mod method;
mod object;
mod path;
mod service;
mod shared;
mod signals;
mod user;
