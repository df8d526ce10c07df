//! Channels: one-way, receiver-driven messages over one to eight RDMA devices.
//!
//! A channel has a [`Sender`] and a [`Receiver`]. The receiver announces buffers, the sender writes
//! messages into them, and both test their requests. Announcements are lines that the receiver
//! writes into a ring in the sender's memory; messages are RDMA writes with immediates, cut into
//! one share per rail. These are the operations of NCCL's network plugins.
//!
//! A rail is one device and port ([`Rail`]). The two ends find each other by a [`Handle`] of
//! [`HANDLE_BYTES`] bytes, connect over an authenticated TCP connection ([`Listener`],
//! [`Connector`]) and pair their rails by subnet. That connection stays open and reports the loss
//! of the peer; if its network is cut, the channel goes on over the rails that are left.
//!
//! No call waits. The data path ([`Sender::send`], [`Receiver::receive`], both `test`s) has no
//! allocation, lock, system call, division or panic, except where a call that finds nothing reads
//! the connection to the peer, once in 1024 times.
//!
//! Messages are in memory when `test` returns them: there is nothing to flush for host memory.
//!
//! # Safety of memory
//!
//! Devices access [`Region`]s only. A region is freed after every device has released it, so no
//! argument of a safe function and no byte of a peer can make a device write elsewhere. Lines,
//! immediates and control messages of the peer are checked before they are used.
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! use barewire_channel::{Config, Connector, Key, Listener, Rail, Rails, Usage, mlx5};
//! use mlx5::channel::soft::Soft;
//!
//! // Both ends are in this process, on one software device.
//! let device = mlx5::hca::Device::open(mlx5::hca::Config::default())?;
//! let context = mlx5::Context::open(Soft::new(device))?;
//! let rails = Rails::new(vec![Rail::new("soft0", &context)?])?;
//! let (key, config) = (Key::generate()?, Config::default());
//!
//! let mut listener = Listener::bind(&rails, "127.0.0.1:0".parse()?, &key, &config)?;
//! let mut connector = Connector::start(&rails, &listener.handle(), &key, &config)?;
//! let (mut sender, mut receiver) = (None, None);
//! while sender.is_none() || receiver.is_none() {
//!     if sender.is_none() {
//!         sender = connector.poll()?;
//!     }
//!     if receiver.is_none() {
//!         receiver = listener.accept()?;
//!     }
//! }
//! let (mut sender, mut receiver) = (sender.ok_or("no sender")?, receiver.ok_or("no receiver")?);
//!
//! let source = rails.allocate(4096, Usage::Send)?;
//! let target = rails.allocate(4096, Usage::Receive)?;
//! source.write(0, b"hello")?;
//! let receiving = receiver.receive(&target, 0, 4096, 7)?.ok_or("no request is free")?;
//! let sending = loop {
//!     // `None` until the announcement arrives.
//!     if let Some(request) = sender.send(&source, 0, 5, 7)? {
//!         break request;
//!     }
//! };
//! let received = loop {
//!     if let Some(received) = receiver.test(receiving)? {
//!         break received;
//!     }
//! };
//! assert_eq!(received.sizes(), [5]);
//! let mut bytes = [0; 5];
//! target.read(0, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! while sender.test(sending)?.is_none() {}
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod config;
mod control;
mod counters;
mod error;
#[doc(hidden)]
pub mod fail_over;
pub mod handshake;
#[cfg(all(test, feature = "soft"))]
mod hostile;
mod mail;
mod plan;
mod queues;
mod rails;
mod receiver;
mod region;
mod request;
#[doc(hidden)]
pub mod ring;
mod sender;
mod share;
#[cfg(all(test, feature = "soft"))]
mod soak;
#[cfg(all(test, feature = "soft"))]
mod stepped;

pub use barewire_mlx5 as mlx5;
pub use barewire_mlx5::memory::OutOfBounds;
pub use barewire_tcp::Key;

pub use config::{Config, MAX_GROUP, MAX_GROUPS, MAX_PAIRS, MAX_RAILS};
pub use counters::RailCounters;
pub use error::{End, Error, Failure, RailFailure};
pub use handshake::{Connector, HANDLE_BYTES, Handle, HandleError, HandshakeError, Listener};
pub use queues::MAX_INLINE;
pub use rails::{Rail, RailInfo, Rails, RailsError};
pub use receiver::{Received, Receiver, Target};
pub use region::{Region, Usage};
pub use request::Request;
pub use sender::Sender;
