//! A kernel-bypass userspace transport: UCT's model with its own mlx5 driver.
//!
//! A [`Domain`] is a device opened by a transport, in which memory is registered. An [`Interface`]
//! is the transport in use, driven by a [`Worker`]; an [`Endpoint`] is one end of a connection. The
//! operations are those of UCT: put and get, active messages, atomics, flush and fence.
//!
//! [`guide`] explains the library topic by topic.
//!
//! The items at the crate root are the dynamic API: the transport is selected at run time. The
//! static API, [`transport`], has the same names per transport, with everything inlined. What most
//! programs need is in the [`prelude`]; the parts of [addresses](address), [settings](config) and
//! [errors](error), the [cache] of registrations, and completions in memory of the [caller], are in
//! modules of their own.
//!
//! ```
//! use barewire::{Access, Domain, Interface, InterfaceConfig, Worker};
//!
//! let mut worker = Worker::new();
//! let domain = Domain::open(&"self/memory".parse()?)?;
//! let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
//! let endpoint = interface.connect(&interface.address())?;
//!
//! let memory = domain.allocate(4096, Access::all())?;
//! let key = domain.unpack_key(&memory.pack_key())?;
//! endpoint.put_short(b"hello", memory.address(), &key)?;
//!
//! interface.set_handler(7, |message| {
//!     assert_eq!(message.split_short(), Some((42, &b"world"[..])));
//! })?;
//! endpoint.am_short(7, 42, b"world")?;
//! worker.progress();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]
// A build with some of the transports does not use all of their common code.
#![cfg_attr(
    not(all(feature = "cma", feature = "mlx5", feature = "shm", feature = "tcp")),
    allow(dead_code)
)]

pub mod address;
#[cfg(any(feature = "mlx5", feature = "verbs"))]
mod address_space;
#[cfg(feature = "tokio")]
mod asynchronous;
mod atomic;
mod attributes;
pub mod cache;
pub mod caller;
pub mod capability;
mod completion;
mod component;
pub mod config;
mod counters;
mod device;
#[cfg(any(feature = "mlx5", feature = "verbs"))]
mod dma_buf;
mod domain;
mod endpoint;
pub mod error;
mod event;
mod fork;
pub mod guide;
mod interface;
mod memory;
mod message;
mod panics;
mod pending;
pub mod prelude;
mod registration;
mod remote_region;
#[doc(hidden)]
pub mod report;
pub mod shared;
mod status;
pub mod tag;
pub mod transport;
mod view;
mod window;
mod worker;

pub use address::{PeerAddress, TransportId};
#[cfg(any(feature = "mlx5", feature = "verbs"))]
pub use address_space::AddressSpace;
#[cfg(feature = "tokio")]
pub use asynchronous::AsyncWorker;
pub use atomic::{AtomicOp, AtomicWord};
pub use attributes::{AmLimits, AtomicOperations, Attributes, Flags, Place, RmaLimits, TagLimits};
pub use completion::{Completed, Completion, FetchResult, Hold, Unpack};
pub use component::{Absent, Component, DeviceInfo, TransportInfo, components};
pub use config::InterfaceConfig;
pub use counters::Counters;
pub use device::{DeviceId, DeviceIdError};
#[cfg(any(feature = "mlx5", feature = "verbs"))]
pub use dma_buf::DmaBuf;
pub use domain::Domain;
pub use endpoint::Endpoint;
pub use error::{
    Cause, ChangeError, ConnectError, EndpointError, HandlerError, KeyError, MemoryError,
    OpenError, OperationError, PostError, Report, WaitError,
};
pub use event::{Armed, EventError};
pub use interface::Interface;
pub use memory::{Access, Memory, RemoteKey, Slice, Transfer};
pub use message::{KeptMessage, MAX_HANDLERS, MESSAGE_HEADROOM, Message, SHORT_HEADER};
pub use pending::PendingRequest;
pub use registration::MemoryConfig;
pub use remote_region::RemoteRegion;
pub use status::{FlushMode, PendingResult, Post, Posted};
pub use tag::{TagAnnouncement, TagEvent, TagReceive};
pub use view::{Interleaved, View};
pub use window::Window;
pub use worker::Worker;
