//! What a post answers.

use crate::error::PostError;

/// The answer of every post.
pub type Post = Result<Posted, PostError>;

/// The operation was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "an operation in progress still uses its buffers"]
pub enum Posted {
    /// Finished as far as the caller is concerned: buffers may be reused, the completion was not touched
    /// and will not be.
    Done,
    /// The completion will be counted down when the operation is finished. Without a completion, flush
    /// tells when.
    InProgress,
}

/// What a flush waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlushMode {
    /// Every operation posted so far is finished here: its buffers may be reused and its results are
    /// there.
    Local,
    /// As `Local`, and everything written is visible in the peer's memory.
    Remote,
    /// Outstanding operations are given up: each completes once with
    /// [`Cause::Canceled`](crate::Cause::Canceled). The endpoint takes no more posts.
    Cancel,
}

/// What a pending request answers when its turn comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingResult {
    /// Posted (or given up): take it off the queue.
    Done,
    /// No resources yet: keep it at the head of the queue.
    Again,
}
