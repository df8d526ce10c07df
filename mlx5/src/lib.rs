//! An mlx5 driver that writes work queue entries, doorbell records and BlueFlame registers itself and reads completions itself.
//!
//! Set-up goes through PRM commands over a [`channel`]: [`Context`], [`ProtectionDomain`], [`Uar`], [`CompletionQueue`],
//! [`RcQueuePair`], [`Buffer`]. The hot path is in [`queue`]: there is no `dyn`, allocation, lock, system call or panic between a
//! post and the register.
//!
//! The crate stands alone: it knows devices, queues and keys, and nothing of the transports above. With the feature `soft` (default) it
//! drives the software HCA of `barewire-hca`; `examples/embed_mlx5.rs` is a whole program.

pub mod barrier;
pub mod channel;
mod context;
mod cq;
pub mod doorbell;
mod error;
pub mod memory;
mod notifier;
pub mod queue;
pub mod rc;
pub mod setup;
mod wqe;

#[cfg(feature = "soft")]
pub use barewire_hca as hca;
pub use barewire_layouts as layouts;
pub use barewire_layouts::command::qp::{Mtu, QpState};
pub use barewire_layouts::wqe::{ControlFlags, DataSegment, RemoteAddressSegment};

pub use context::{Capabilities, Context, Port, PortAddress, ProtectionDomain, Uar};
pub use error::Error;
pub use memory::{Access, Buffer, MemoryRegion};
pub use notifier::Notifier;
pub use queue::completion::{Completion, CompletionKind, CompletionQueue, Failure, Polled};
pub use queue::receive::ReceiveQueue;
pub use queue::send::{PostError, SendQueue, WqeIndex};
pub use rc::{RcConfig, RcPath, RcQueuePair};
