//! UCT's C interface (`uct/api/uct.h` of UCX 1.12 to its head) over barewire's transports.
//!
//! The library has the soname `libuct.so.0`: loaded before UCX's own, it puts these transports
//! under libucp, Open MPI, `ucx_perftest` and every other program that uses UCT. See the README.
//!
//! Each transport is a component, each of its devices a memory domain with one resource. An
//! interface owns a [`barewire::Worker`], which the progress callback of the UCT worker drives. A
//! post is a call of the dynamic API on the [`barewire::Endpoint`] behind the handle; completions
//! and pending requests stay in the caller's memory.
//!
//! # Contract of the functions
//!
//! Every function is called from C, with the arguments that uct.h describes: handles are those that
//! this library returned and that were not closed since, and pointers are valid for what they point
//! to. Calls on one worker and its objects do not overlap. Null pointers, sizes, numbers and names
//! are checked.
//!
//! A panic does not cross the boundary: in a function of set-up it becomes a status, and elsewhere,
//! where nothing panics, it would abort.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]
#![cfg_attr(
    not(feature = "ucx-head"),
    allow(dead_code, reason = "what later versions need is a part of structures of all versions")
)]

mod abi;
mod bootstrap;
mod callbacks;
mod cm;
mod component;
mod config;
mod descriptor;
mod direct;
mod dispatch;
mod endpoint;
mod fetch;
mod flush;
mod iface;
mod log;
mod md;
mod memory;
mod names;
mod ops;
mod post;
mod query;
mod rkey;
mod status;
mod stub;
#[cfg(test)]
mod tests;
mod text;
mod ucs;
#[cfg(feature = "ucx-head")]
mod unsupported;
#[cfg(feature = "ucx-head")]
mod v2;
mod watched;
mod worker;
