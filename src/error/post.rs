//! Why a post was refused.

use thiserror::Error;

/// Why a post was refused. Nothing was posted and no completion will be counted down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue, the buffer pool or the credits are used up, or requests are already pending on this
    /// endpoint. Call progress and try again, or add the request to the pending queue.
    #[error("no resources now: progress, or add the request to the pending queue")]
    NoResource,
    /// The payload is longer than the operation carries; see the interface's attributes.
    #[error("{length} bytes are more than the {limit} that this operation carries")]
    TooLong {
        /// Bytes asked for (saturated).
        length: u32,
        /// Bytes possible.
        limit: u32,
    },
    /// More memory slices than one operation gathers or scatters.
    #[error("more than the {limit} memory slices that one operation takes")]
    TooManySlices {
        /// Slices possible.
        limit: u32,
    },
    /// More transfers in a list than the send queue ever holds.
    #[error("more than the {limit} transfers that the send queue holds: post the list in parts")]
    TooManyTransfers {
        /// Transfers possible.
        limit: u32,
    },
    /// Active-message ids are 0 to 31.
    #[error("active-message id {0} is not in 0..32")]
    UnknownHandlerId(u8),
    /// The endpoint failed or was cancelled; [`Endpoint::error`](crate::Endpoint::error) tells why.
    #[error("the endpoint has failed or was cancelled")]
    EndpointFailed,
    /// The endpoint is not connected yet.
    #[error("the endpoint is not connected")]
    NotConnected,
    /// The interface's `Progress` (or the `Worker` that owned it) is gone.
    #[error("the interface is closed: its worker was dropped")]
    Closed,
    /// The endpoint belongs to the process that this one was forked from.
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
    /// Atomics need an address that is a multiple of their word's size, and the 8 bytes around a word of 4 inside the region.
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
    /// `TooLong` from sizes as callers have them.
    #[cold]
    pub(crate) fn too_long(length: usize, limit: usize) -> Self {
        let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self::TooLong { length: narrow(length), limit: narrow(limit) }
    }
}

/// A pending request was not taken because resources are there right now: post instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("resources are available: post the operation instead of queueing it")]
pub struct Busy;
