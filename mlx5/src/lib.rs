//! An mlx5 driver that writes work queue entries, doorbell records and BlueFlame registers and
//! reads completions without a library on the data path.
//!
//! Set-up uses PRM commands over a [`channel`]: [`Context`], [`ProtectionDomain`], [`Uar`],
//! [`CompletionQueue`], [`RcQueuePair`], [`Buffer`]. The hot path is in [`queue`]: there is no
//! `dyn`, allocation, lock, system call or panic between a post and the register.
//!
//! The crate stands alone: it provides devices, queues and keys, and depends on no transport. With
//! the feature `soft` (default) it drives the software HCA of `barewire-hca`;
//! `examples/embed_mlx5.rs` is a complete program.
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! use barewire_mlx5::channel::soft::Soft;
//! use barewire_mlx5::{
//!     Access, Buffer, CompletionQueue, Context, ControlFlags, ProtectionDomain, RcConfig, RcPath,
//!     RcQueuePair, Uar, hca,
//! };
//!
//! // Set-up, by PRM commands.
//! let context = Context::open(Soft::new(hca::Device::open(hca::Config::default())?))?;
//! let domain = ProtectionDomain::allocate(&context)?;
//! let uar = Uar::allocate(&context)?;
//! let mut completions = CompletionQueue::create(&context, &uar, 1024)?;
//! let mut pair: RcQueuePair =
//!     RcQueuePair::create(&domain, &uar, &completions, &completions, &RcConfig::default())?;
//! // Connect to itself. For a peer, exchange the port address and the queue pair number.
//! pair.connect(&RcPath::new(context.port_address(), pair.number()))?;
//!
//! // The hot path: a WQE, the doorbell record, the BlueFlame register; then the CQE.
//! let target = Buffer::allocate(&domain, 4096, Access::all())?;
//! pair.send.write_inline(b"hello", target.region().remote(0), ControlFlags::COMPLETION)?;
//! let completion = loop {
//!     if let Some(polled) = completions.poll() {
//!         break polled.completion();
//!     }
//!     std::thread::yield_now();
//! };
//! pair.send.reap(completion.wqe_counter);
//! let mut bytes = [0; 5];
//! target.read(0, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
pub mod barrier;
pub mod channel;
mod context;
mod cq;
pub mod dc;
pub mod doorbell;
mod error;
#[cfg(feature = "verbs")]
mod kernel_pair;
pub mod memory;
#[cfg(all(test, loom))]
mod models;
mod notifier;
mod pages;
mod pair;
pub mod queue;
pub mod rc;
mod readback;
#[cfg(feature = "verbs")]
mod route;
#[cfg(feature = "verbs")]
pub mod setup;
mod shared_receive;
#[cfg(feature = "verbs")]
mod smoke;
mod store;
pub mod ud;
mod values;
mod wqe;

#[cfg(feature = "soft")]
pub use barewire_hca as hca;
pub use barewire_layouts as layouts;
pub use barewire_layouts::command::qp::{Mtu, QpState};
pub use barewire_layouts::wqe::{ControlFlags, DataSegment, RemoteAddressSegment};

pub use context::{Context, ProtectionDomain, Uar};
pub use dc::{Initiator, InitiatorConfig, Target, TargetConfig};
pub use error::Error;
pub use memory::{Buffer, MemoryRegion};
pub use notifier::Notifier;
pub use queue::completion::{Completion, CompletionKind, CompletionQueue, Failure, Polled};
pub use queue::receive::ReceiveQueue;
pub use queue::send::{PostError, SendQueue, WqeIndex};
pub use rc::{RcConfig, RcQueuePair};
pub use ud::{UdConfig, UdQueuePair};
pub use values::{Access, Capabilities, Port, PortAddress, PortOptions, RcPath};
