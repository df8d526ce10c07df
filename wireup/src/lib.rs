//! Connects processes that have only each other's address.
//!
//! | module | contents |
//! |---|---|
//! | [`address`] | a process's devices and interfaces as bytes |
//! | `collective` | barrier, broadcast and reduction over all ranks, with the feature `bootstrap` |
//! | [`node`] | the interfaces of a process |
//! | [`link`] | the lanes to one peer, with the operations of an endpoint |
//! | `peers` | the ranks of a parallel program, with the feature `bootstrap` |
//! | [`plan`] | the lanes that two addresses get, and why other pairs are rejected |
//! | [`protocol`] | the state machine that connects and closes the lanes of a link |
//! | `shared` | memory that all ranks read, write and add to, with the feature `bootstrap` |
//! | [`tag`] | tag matching and rendezvous over messages |
//! | `windows` | memory that ranks open to their neighbours, with the feature `bootstrap` |
//!
//! `plan` and `protocol` are pure: no socket, no clock and no endpoint, so that a run can be
//! repeated.
//!
//! [Ranks](https://github.com/barewire/barewire/blob/main/docs/guide/ranks.md) explains programs of
//! several ranks, from their launcher to a job of a thousand.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod address;
#[cfg(feature = "bootstrap")]
pub mod collective;
mod guard;
pub mod link;
pub mod node;
#[cfg(feature = "bootstrap")]
pub mod peers;
pub mod plan;
pub mod protocol;
mod secret;
#[cfg(feature = "bootstrap")]
pub mod shared;
pub mod tag;
#[cfg(feature = "bootstrap")]
pub mod windows;
mod words;

pub use link::{CloseMode, Link, State};
pub use node::{Node, Rules};
#[cfg(feature = "bootstrap")]
pub use peers::Peers;
pub use plan::Kind;
#[cfg(feature = "bootstrap")]
pub use shared::Shared;
#[cfg(feature = "bootstrap")]
pub use windows::{Neighbour, Window};

/// The README's examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The examples of the page on ranks are tests.
#[cfg(feature = "bootstrap")]
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/ranks.md")]
struct Ranks;
