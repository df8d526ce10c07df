//! Why a post was refused.

use thiserror::Error;

use super::OperationError;

/// Why a post was refused. Nothing was posted, and no completion counts it.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue, the buffer pool or the credits are used up, or requests are already pending on
    /// this endpoint. Call progress and try again, or add the request to the pending queue.
    #[error("no resources now: call progress, or add the request to the pending queue")]
    NoResource,
    /// The payload is longer than the operation allows; see the interface's attributes.
    #[error("{length} bytes are more than the {limit} that this operation can carry")]
    TooLong {
        /// Requested bytes (saturated).
        length: u32,
        /// The limit in bytes.
        limit: u32,
    },
    /// More memory slices than one operation can gather or scatter.
    #[error("more than the {limit} memory slices that one operation can take")]
    TooManySlices {
        /// The limit of slices.
        limit: u32,
    },
    /// A list has more transfers than the send queue can hold.
    #[error("more than the {limit} transfers that the send queue can hold: post the list in parts")]
    TooManyTransfers {
        /// The limit of transfers.
        limit: u32,
    },
    /// Active-message ids are 0 to 31.
    #[error("active-message id {0} is not in 0..32")]
    UnknownHandlerId(u8),
    /// The endpoint failed or was cancelled; [`Endpoint::error`](crate::Endpoint::error) returns
    /// why.
    #[error("the endpoint has failed or was cancelled")]
    EndpointFailed,
    /// The endpoint is not connected yet.
    #[error("the endpoint is not connected")]
    NotConnected,
    /// The interface's `Progress` (or the `Worker` that owned it) was dropped.
    #[error("the interface is closed: its worker was dropped")]
    Closed,
    /// The endpoint belongs to the process from which this one was forked.
    #[error("the endpoint belongs to the parent process: open an interface after the fork")]
    Forked,
    /// The remote range is not inside the key's region.
    #[error("the remote range is not inside the region of this key")]
    OutOfRange,
    /// The key lacks the right that this operation needs.
    #[error("the region of this key does not allow this operation")]
    AccessDenied,
    /// The region of this key was freed.
    #[error("the region of this key was freed")]
    KeyExpired,
    /// An atomic needs an address that is a multiple of its word's size. For a word of 4 bytes, the
    /// aligned 8 bytes around it must be inside the region.
    #[error(
        "an atomic needs an address that is a multiple of its word's size, 4 or 8, in 8 bytes of the region"
    )]
    Unaligned,
    /// The key belongs to another transport or domain than this endpoint.
    #[error("the key belongs to another transport or domain")]
    ForeignKey,
    /// A slice belongs to memory of another domain than this endpoint.
    #[error("a slice belongs to memory of another domain")]
    ForeignMemory,
    /// The transport does not have this operation; see the interface's attributes.
    #[error("this transport does not have the operation")]
    Unsupported,
}

impl PostError {
    /// Creates `TooLong` from `usize` lengths.
    #[cold]
    pub(crate) fn too_long(length: usize, limit: usize) -> Self {
        let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self::TooLong { length: narrow(length), limit: narrow(limit) }
    }
}

/// Why an operation for which the worker waited was not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WaitError {
    /// It was not posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// It was posted, and failed.
    #[error(transparent)]
    Operation(#[from] OperationError),
}

/// A pending request was not accepted because resources are available now: post instead.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[error("resources are available: post the operation instead of queueing it")]
pub struct Busy;
