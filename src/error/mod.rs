//! What can go wrong, to whom, and what to look at next.
//!
//! Posting answers with the small [`PostError`]; an operation that was posted and failed tells its
//! [`Completion`](crate::Completion) an [`OperationError`]; the endpoint it ran on reports once, in full
//! words, an [`EndpointError`]. Setting things up has an error type per object.

mod operation;
mod post;
mod setup;

pub use operation::{Cause, EndpointError, Operation, OperationError, Syndrome};
pub use post::{Busy, PostError};
pub(crate) use setup::Source;
pub use setup::{ConnectError, HandlerError, KeyError, MemoryError, OpenError};
