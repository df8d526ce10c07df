//! RDMA devices of this machine: what the kernel shows of them, and safe bindings to libibverbs.
//!
//! [`probe`] needs no library: it reads sysfs and reports for each device whether this build can
//! use it, and the reason if not. With the feature `rdma-sys` the crate links libibverbs. `devices`
//! and `Context` list and open devices, from which objects are created: `ProtectionDomain`,
//! `MemoryRegion`, `CompletionQueue`, `QueuePair`, `SharedReceiveQueue`, `AddressHandle`. Requests
//! are posted and completions polled by verbs. The module `dv` is for programs with their own
//! driver of mlx5 devices: it sends commands to the device and gives access to the rings of verbs
//! objects. It loads libmlx5 on first use.
//!
//! Every object keeps the objects alive from which it was created, may be sent to any thread, and
//! may be dropped in any order.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

/// Runs the example of the README as a test.
#[cfg(all(doctest, feature = "rdma-sys"))]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(feature = "rdma-sys")]
mod address;
#[cfg(feature = "rdma-sys")]
mod channel;
#[cfg(feature = "rdma-sys")]
mod completion;
#[cfg(feature = "rdma-sys")]
mod device;
#[cfg(feature = "rdma-sys")]
mod device_memory;
#[cfg(feature = "rdma-sys")]
pub mod dv;
#[cfg(feature = "rdma-sys")]
mod error;
#[cfg(feature = "rdma-sys")]
mod event;
#[cfg(feature = "rdma-sys")]
mod fork;
#[cfg(feature = "rdma-sys")]
mod gid;
#[cfg(feature = "rdma-sys")]
mod hint;
#[cfg(feature = "rdma-sys")]
mod limits;
#[cfg(feature = "rdma-sys")]
mod memory;
#[cfg(feature = "rdma-sys")]
pub mod numa;
#[cfg(feature = "rdma-sys")]
mod post;
mod probe;
#[cfg(feature = "rdma-sys")]
mod queue_pair;
#[cfg(feature = "rdma-cm")]
pub mod rdma_cm;
#[cfg(feature = "rdma-sys")]
mod shared_receive;
#[cfg(feature = "rdma-sys")]
mod sys;
#[cfg(feature = "rdma-sys")]
mod work_completion;

#[cfg(feature = "rdma-sys")]
pub use address::{AddressHandle, GlobalRoute, Route};
#[cfg(feature = "rdma-sys")]
pub use channel::{CompletionChannel, CompletionEvent};
#[cfg(feature = "rdma-sys")]
pub use completion::{CompletionQueue, CompletionQueueId, CompletionQueueRef, Poller};
#[cfg(feature = "rdma-sys")]
pub use device::{Context, Device, LinkLayer, OpenError, Port, PortState, QueryError, devices};
#[cfg(feature = "rdma-sys")]
pub use device_memory::DeviceMemory;
#[cfg(feature = "rdma-sys")]
pub use error::Error;
#[cfg(feature = "rdma-sys")]
pub use event::{Event, EventKind};
#[cfg(feature = "rdma-sys")]
pub use fork::{ForkSafety, fork_safety, prepare_to_fork};
#[cfg(feature = "rdma-sys")]
pub use gid::{Gid, GidChoice, GidEntry, GidKind, PortChoice, PortOptions};
#[cfg(feature = "rdma-sys")]
pub use limits::{AtomicScope, Limits};
#[cfg(feature = "rdma-sys")]
pub use memory::{Access, MemoryRegion, MemoryWindow, ProtectionDomain};
#[cfg(feature = "rdma-sys")]
pub use post::{
    Data, Element, Operation, PostError, Receive, ReceiveQueue, Remote, Request, SendFlags,
};
pub use probe::{Finding, MACHINE, Roots, probe};
#[cfg(feature = "rdma-sys")]
pub use queue_pair::{
    Capacity, Enhancements, Initialize, LocalPoster, OneThread, PostBy, Poster, Posts, QueuePair,
    QueuePairKind, QueuePairOptions, QueuePairState, ReadyToReceive, ReadyToSend,
};
#[cfg(feature = "rdma-sys")]
pub use shared_receive::{
    ReceivePoster, SharedReceiveQueue, SharedReceiveQueueId, SharedReceiveQueueRef,
};
#[cfg(feature = "rdma-sys")]
pub use work_completion::{CompletionKind, Failure, FailureStatus, WorkCompletion};
