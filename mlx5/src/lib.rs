//! An mlx5 driver that writes work queue entries, doorbell records and BlueFlame registers and
//! reads completions without a library on the data path.
//!
//! Set-up uses PRM commands over a [`channel`]: [`Context`], [`ProtectionDomain`], [`Uar`],
//! [`CompletionQueue`], [`RcQueuePair`], [`Buffer`]. The hot path is in [`queue`]: there is no
//! `dyn`, allocation, lock, system call or panic between a post and the register. What is posted is
//! a value: see [`request`].
//!
//! The crate stands alone: it provides devices, queues and keys, and depends on no transport. With
//! the feature `soft` (default) it drives the software HCA of `barewire-hca`;
//! `examples/embed_mlx5.rs` is a complete program.
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! use barewire_mlx5::channel::soft::Soft;
//! use barewire_mlx5::request::{Inline, Write};
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
//! let mut pair =
//!     RcQueuePair::create(&domain, &uar, &completions, &completions, &RcConfig::default())?;
//! // Connect to itself. A peer gets the bytes of the address.
//! pair.connect(&RcPath::to(&pair.address()))?;
//!
//! // The hot path: a WQE, the doorbell record, the BlueFlame register; then the CQE.
//! let target = Buffer::allocate(&domain, 4096, Access::all())?;
//! let hello = Write { local: Inline(b"hello"), remote: target.region().remote(0) };
//! pair.send.post(hello, ControlFlags::COMPLETION)?;
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
//!
//! # Threads
//!
//! Contexts, protection domains, memory regions and buffers can move to and be shared by any thread
//! (`Send` and `Sync`). Completion queues, their [`Notifier`]s and receive queues can move, and are
//! used by one thread at a time (`Send`). What decides about send queues is the BlueFlame register:
//!
//! - [`RcQueuePair`] with the default doorbell [`doorbell::BlueFlame`] writes a register without a
//!   lock and is not `Send`, nor is the [`Uar`] by which queue pairs share the register. Each
//!   thread allocates a `Uar` from the context, and creates its queue pairs itself.
//! - `RcQueuePair<BlueFlameShared>` ([`doorbell::BlueFlameShared`]) takes a lock around the register
//!   and is `Send`: one thread creates queue pairs for several threads by one `Uar`, and moves them
//!   there.
//! - [`doorbell::PlainDoorbell`] writes 8 bytes and lets the device fetch the WQE, and is not
//!   `Send` either. Where the pages of the UAR are not mapped write-combining
//!   ([`Capabilities::write_combining`]), the others are refused and this one works;
//!   [`doorbell::choose`] decides so at run time.
//!
//! Give each thread a completion queue for its queue pairs. If one thread polls for others, it
//! sends each [`Completion`] (`Copy`) to the thread that has the queue pair [`Completion::qpn`],
//! which calls [`SendQueue::reap`] or [`SendQueue::fail`], and [`RcQueuePair::drain_with`] instead
//! of [`RcQueuePair::drain`].
//!
//! # Recovering from an error
//!
//! A WQE that fails moves its queue pair to error. It completes with
//! [`CompletionKind::SendError`], which names the syndrome; all WQEs posted after it complete as
//! flushed ([`layouts::cqe::Syndrome::WorkRequestFlushed`]). On the peer, receive WQEs are flushed
//! if the error concerned it; without any, only [`RcQueuePair::state`] and the events of
//! [`Context::device_events`] show it ([`channel::DeviceEvent`]; with DEVX, the kernel reports those
//! of ports and of the device only). To use the queue pair again:
//!
//! 1. Pass each completion with an error that was polled to [`SendQueue::fail`] instead of
//!    [`SendQueue::reap`].
//! 2. Call [`RcQueuePair::drain`], which polls until all posted WQEs are complete. Now
//!    [`SendQueue::is_executed`] tells for each WQE whether the peer has executed it, and
//!    [`SendQueue::is_done`] is `true` for all of them. What the peer executed of the first that
//!    failed and of those after it is unknown. Their buffers are free: the device has completed
//!    the WQEs, and a queue pair in error takes no responses.
//! 3. Call [`RcQueuePair::reset`] on *both* sides, exchange the new
//!    [addresses](RcQueuePair::address), and call [`RcQueuePair::connect`] again on both. Until
//!    then, the queue has no room for posts. The indices of WQEs start again at 0, so keep none
//!    across a reset. The reset also discards the receive WQEs, whether or not their
//!    [`CompletionKind::ReceiveError`] was polled: post them again before `connect`, and call no
//!    [`ReceiveQueue::reap`] for completions of before the reset.
//!
//! `examples/recover.rs` does all of this.
//!
//! If the device itself fails or is removed, completions end without an error, and steps 2 and 3
//! return errors. Only [`channel::DeviceEvents::failure`] reports it: see
//! [`Context::device_events`]. All objects of the device must then be dropped.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod address;
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
mod object_events;
mod pages;
mod pair;
pub mod queue;
pub mod rc;
#[cfg(feature = "rdma-cm")]
pub mod rdma_cm;
mod readback;
mod ringless;
#[cfg(feature = "verbs")]
mod route;
mod sequence;
pub mod setup;
mod shared_receive;
mod store;
pub mod tags;
mod trial;
pub mod ud;
mod values;
mod wqe;
pub mod xrc;

#[cfg(feature = "soft")]
pub use barewire_hca as hca;
pub use barewire_layouts as layouts;
pub use barewire_layouts::command::qp::{Enhancements, Mtu, QpState};
pub use barewire_layouts::wqe::{ControlFlags, DataSegment, RemoteAddressSegment};

pub use address::{AddressError, RcAddress, RemoteMemory};
pub use context::{Context, ProtectionDomain, Uar};
pub use dc::{Initiator, InitiatorConfig, Target, TargetConfig};
pub use error::Error;
pub use memory::{Buffer, MemoryConfig, MemoryRegion, OwnedBytes, Window};
pub use notifier::Notifier;
pub use queue::completion::{Completion, CompletionKind, CompletionQueue, Failure, Polled};
pub use queue::receive::ReceiveQueue;
pub use queue::send::{PostError, SendQueue, WqeIndex, request};
pub use rc::{OwnReceive, RcConfig, RcQueuePair};
pub use ringless::RinglessPair;
pub use trial::Family;
pub use ud::{UdConfig, UdQueuePair};
pub use values::{Access, Capabilities, Port, PortAddress, PortOptions, RcPath};
