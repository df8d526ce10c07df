//! Direct verbs: access to mlx5 devices for a driver in this program.
//!
//! [`Devx`] sends commands to the device. Alternatively objects are created by verbs, and libmlx5
//! reports the addresses of their rings and registers: [`CompletionQueue`], [`QueuePair`] and
//! [`SharedReceiveQueue`]. This module does not write work queue entries or doorbells; that is up
//! to the driver.

mod devx;
mod events;
mod open;
mod queue_pair;
mod thread;

pub use devx::{Devx, Object, Uar, UarKind, Umem};
pub use events::EventChannel;
pub use open::{
    CompletionQueue, CompletionQueueInfo, QueuePair, QueuePairInfo, Ring, ScatterToEntry,
    SharedReceiveInfo, SharedReceiveQueue,
};
pub use thread::ThreadDomain;

pub(crate) use open::{library, open};
