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

mod base;
pub mod capability;
mod dynamic;
pub mod guide;
pub mod prelude;
pub mod transport;

#[doc(hidden)]
pub use base::report;
pub use base::{address, caller, config, error};
pub use dynamic::{cache, shared, tag};

pub use base::address::{PeerAddress, TransportId};
pub use base::atomic::{AtomicOp, AtomicWord};
pub use base::attributes::{
    AmLimits, AtomicOperations, Attributes, Flags, Place, RmaLimits, TagLimits,
};
pub use base::completion::{Completed, Completion, FetchResult, Hold, Unpack};
pub use base::config::InterfaceConfig;
pub use base::counters::Counters;
pub use base::device::{DeviceId, DeviceIdError};
pub use base::error::{
    Cause, ChangeError, ConnectError, EndpointError, HandlerError, KeyError, MemoryError,
    OpenError, OperationError, PostError, Report, WaitError,
};
pub use base::event::{Armed, EventError};
pub use base::memory::{Access, Slice};
pub use base::registration::MemoryConfig;
pub use base::status::{FlushMode, PendingResult, Post, Posted};
pub use base::tag::TagReceive;
#[cfg(any(feature = "mlx5", feature = "verbs"))]
pub use dynamic::address_space::AddressSpace;
#[cfg(feature = "tokio")]
pub use dynamic::asynchronous::AsyncWorker;
pub use dynamic::component::{Absent, Component, DeviceInfo, TransportInfo, components};
#[cfg(any(feature = "mlx5", feature = "verbs"))]
pub use dynamic::dma_buf::DmaBuf;
pub use dynamic::domain::Domain;
pub use dynamic::endpoint::{Endpoint, PendingRequest};
pub use dynamic::interface::Interface;
pub use dynamic::memory::{Memory, RemoteKey, Transfer};
pub use dynamic::remote_region::RemoteRegion;
pub use dynamic::tag::{TagAnnouncement, TagEvent};
pub use dynamic::view::{Interleaved, View};
pub use dynamic::window::Window;
pub use dynamic::worker::Worker;
pub use transport::common::message::{
    KeptMessage, MAX_HANDLERS, MESSAGE_HEADROOM, Message, SHORT_HEADER,
};
