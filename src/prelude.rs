//! What most programs need, to be imported as a whole.
//!
//! ```
//! use barewire::prelude::*;
//!
//! let mut worker = Worker::new();
//! let domain = Domain::open(&"self/memory".parse()?)?;
//! let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
//! let endpoint = interface.connect(&interface.address())?;
//! worker.flush(&endpoint, FlushMode::Local)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use crate::{
    Access, AtomicOp, Completion, DeviceId, Domain, Endpoint, FetchResult, FlushMode, Interface,
    InterfaceConfig, Memory, PeerAddress, PendingResult, Post, PostError, Posted, RemoteKey,
    RemoteRegion, Slice, Unpack, Worker,
};
