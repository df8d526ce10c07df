//! Error types: what failed, on which object, and what to check next.
//!
//! A post returns the small [`PostError`]. An operation that fails after it was posted passes an
//! [`OperationError`] to its [`Completion`](crate::Completion). Its endpoint reports an
//! [`EndpointError`] with all details once. Set-up functions have an error type per object.

mod change;
mod operation;
mod post;
mod report;
mod setup;

pub use change::ChangeError;
pub use operation::{Cause, EndpointError, Operation, OperationError, Syndrome};
pub use post::{Busy, PostError, WaitError};
pub use report::Report;
#[cfg(any(feature = "mlx5", feature = "shm", feature = "tcp", feature = "verbs"))]
pub(crate) use setup::Source;
pub use setup::{ConnectError, HandlerError, KeyError, MemoryError, OpenError, PointerError};
