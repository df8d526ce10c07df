//! Direct verbs: what libmlx5 lets a driver of its own do with an mlx5 device.
//!
//! [`Devx`] sends the device's own commands. The older way is to make objects by verbs and to have libmlx5 tell where their rings and
//! registers are: [`CompletionQueue`], [`QueuePair`] and [`SharedReceiveQueue`]. Both are for who writes work queue entries and doorbells; here nothing does.

mod devx;
mod events;
mod open;
mod thread;

pub use devx::{Devx, Object, Uar, UarKind, Umem};
pub use events::EventChannel;
pub use open::{
    CompletionQueue, CompletionQueueFacts, QueuePair, QueuePairFacts, Ring, ScatterToEntry,
    SharedReceiveFacts, SharedReceiveQueue,
};
pub use thread::ThreadDomain;

pub(crate) use open::{library, open};
