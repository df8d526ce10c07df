//! Channels over any transport of barewire: one-way, receiver-driven messages.
//!
//! The state machine is that of `barewire-channel`: the receiver announces buffers, the sender
//! writes messages into them, both test their requests, and groups, tags, sizes and errors are the
//! same. It is written over the operations of the transport API instead of an mlx5 device: a line
//! is an active message, a message is a put followed by a fence and an active message. It works
//! over `self`, `shm`, `tcp`, `rc_mlx5` and `rc_verbs`, over one connection and on one thread.
//!
//! ```
//! use barewire_channel_generic::{Port, Usage};
//!
//! // Both ends are in this process.
//! let port = Port::open(&"self/memory".parse()?)?;
//! let (ours, theirs) = (port.offer()?, port.offer()?);
//! let (our_handle, their_handle) = (ours.handle(), theirs.handle());
//! let (mut sender, mut receiver) = (ours.sender(&their_handle)?, theirs.receiver(&our_handle)?);
//!
//! let source = port.allocate(4096, Usage::Send)?;
//! let target = port.allocate(4096, Usage::Receive)?;
//! source.memory().write(0, b"hello")?;
//! let receiving = receiver.receive(&target, 0, 4096, 7)?.ok_or("no request is free")?;
//! let sending = loop {
//!     // `None` until the announcement arrives.
//!     if let Some(request) = sender.send(&source, 0, 5, 7)? {
//!         break request;
//!     }
//! };
//! let sizes = loop {
//!     if let Some(sizes) = receiver.test(receiving)? {
//!         break sizes;
//!     }
//! };
//! assert_eq!(sizes, [5]);
//! while sender.test(sending)?.is_none() {}
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod error;
/// For tests with any bytes.
#[doc(hidden)]
pub mod message;
mod port;
mod receiver;
mod request;
mod sender;

pub use error::{Error, Failure, SetupError};
pub use port::{Offer, Port, Region, Usage};
pub use receiver::{Receiver, Target};
pub use request::{MAX_GROUP, MAX_GROUPS, Request};
pub use sender::Sender;
