//! What a post returns.

use crate::base::error::PostError;

/// The result of a post whose operation may stay in progress: one that uses the caller's memory or
/// fetches, or a flush.
pub type Post = Result<Posted, PostError>;

/// The operation was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "an operation in progress still uses its buffers"]
pub enum Posted {
    /// Finished for the caller: buffers may be reused. The completion does not count it.
    Done,
    /// The completion counts it until it is finished. Without a completion, flush the endpoint to
    /// wait for it.
    InProgress,
}

/// What a flush waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlushMode {
    /// All operations posted so far are finished on this side: buffers may be reused, and results
    /// are available.
    Local,
    /// As `Local`, and everything written is visible in the peer's memory.
    Remote,
    /// Cancels outstanding operations: each completes once with
    /// [`Cause::Canceled`](crate::Cause::Canceled). The endpoint accepts no more posts.
    Cancel,
}

/// The result of a pending request that progress has run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingResult {
    /// The request is done: remove it from the queue.
    Done,
    /// No resources yet: keep the request at the head of the queue.
    Again,
}
