//! A kernel-bypass userspace transport: UCT's model with its own mlx5 driver.
//!
//! A [`Domain`] is a device opened by a transport; memory is registered there. An [`Interface`] is the transport at
//! work, driven by a [`Worker`]; an [`Endpoint`] is one end of a connection. Operations are UCT's: put and get,
//! active messages, atomics, flush and fence.
//!
//! [`guide`] explains it topic by topic.
//!
//! This is the dynamic door: enums over the transports, for when the transport is picked at run time. The static
//! door, [`transport`], has the same names per transport, with everything inlined.
//!
//! ```
//! use barewire::{Access, Domain, Endpoint, Interface, InterfaceConfig, Posted, Worker};
//!
//! let mut worker = Worker::new();
//! let domain = Domain::open("self", "memory")?;
//! let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
//! let endpoint = Endpoint::connect_to_interface(
//!     &interface, &interface.device_address(), &interface.address())?;
//!
//! let memory = domain.allocate(4096, Access::all())?;
//! let key = domain.unpack_key(&memory.pack_key())?;
//! assert_eq!(endpoint.put_short(b"hello", memory.address(), &key)?, Posted::Done);
//!
//! interface.set_handler(7, |message| {
//!     assert_eq!(message.split_short(), Some((42, &b"world"[..])));
//! })?;
//! let _ = endpoint.am_short(7, 42, b"world")?;
//! worker.progress();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address;
#[cfg(feature = "tokio")]
mod asynchronous;
mod atomic;
mod attributes;
mod cache;
pub mod capability;
mod completion;
mod component;
mod config;
mod counters;
mod domain;
mod endpoint;
mod error;
mod event;
mod fork;
pub mod guide;
mod interface;
mod memory;
mod message;
mod panics;
mod status;
pub mod transport;
mod worker;

pub use address::{
    AddressError, DeviceAddress, EndpointAddress, InterfaceAddress, Kind, TransportId, UnknownTransport,
};
#[cfg(feature = "tokio")]
pub use asynchronous::AsyncWorker;
pub use atomic::{AtomicOp, AtomicWord};
pub use attributes::{AmLimits, AtomicOperations, Attributes, Flags, RmaLimits};
pub use cache::{CacheLimits, CacheStatistics, Cached, RegistrationCache};
pub use completion::{Completed, Completion, FetchResult, Unpack};
pub use component::{Absent, Component, DeviceInfo, TransportInfo, components};
pub use config::{
    Choice, ConfigError, InterfaceConfig, Setting, UnknownVariable, VARIABLES, Variable, unknown_variables,
};
pub use counters::Counters;
pub use domain::Domain;
pub use endpoint::Endpoint;
pub use error::{
    Busy, Cause, ConnectError, EndpointError, HandlerError, KeyError, MemoryError, OpenError, Operation,
    OperationError, PostError, Syndrome,
};
pub use event::EventError;
pub use interface::Interface;
pub use memory::{Access, Memory, RemoteKey, Slice, Transfer};
pub use message::{KeptMessage, MAX_HANDLERS, Message, SHORT_HEADER};
pub use status::{FlushMode, PendingResult, Post, Posted};
pub use worker::Worker;

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
