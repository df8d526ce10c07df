//! Errors.

use barewire::{ConnectError, KeyError, MemoryError, OpenError, OperationError, PostError};

/// Why an end cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The transport does not open.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// Memory cannot be registered.
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// The transport lacks active messages or puts.
    #[error(
        "{0} lacks buffered active messages or zero-copy puts: use self, shm, tcp or an rc transport"
    )]
    Unsupported(&'static str),
    /// The kernel has no random bytes, of which a channel's number is made.
    #[error("the kernel has no random bytes: {0}")]
    Random(std::io::Error),
    /// The peer's handle is malformed, or of another release.
    #[error("the peer's handle is malformed: use the same barewire at both ends")]
    Handle,
    /// The transport does not connect to the peer.
    #[error("{0}")]
    Connect(#[from] ConnectError),
}

/// Why a call on a channel fails. The variants are those of `barewire_channel::Error`.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The range does not lie in the region. Nothing was posted.
    #[error("{length} bytes at offset {offset} do not lie in a region of {size} bytes")]
    OutOfBounds {
        /// Offset of the range.
        offset: usize,
        /// Length of the range in bytes.
        length: usize,
        /// Size of the region in bytes.
        size: usize,
    },
    /// The region belongs to another [`Port`](crate::Port). Nothing was posted.
    #[error("the region was allocated by another port than that of the channel")]
    Foreign,
    /// The region is for sending only. Nothing was posted.
    #[error("the region is for sending only: allocate it with Usage::Receive")]
    SendOnly,
    /// A group has no or too many buffers. Nothing was posted.
    #[error("a group has 1 to 8 buffers, not {0}")]
    Group(usize),
    /// The send is longer than the buffer that the receiver announced for it. Nothing was written,
    /// the buffer is used up, and the receiver's request fails, too. The channel works on.
    #[error("the send of {length} bytes does not fit the peer's buffer of {room} bytes")]
    Overlong {
        /// Length of the send in bytes.
        length: u64,
        /// Length of the buffer in bytes.
        room: u64,
    },
    /// The peer's send is longer than a buffer of this request. The other buffers of the group were
    /// received. The channel works on.
    #[error("the peer's send is longer than buffer {member} of the receive ({room} bytes)")]
    Refused {
        /// Number of the buffer in its group.
        member: u8,
        /// Length of the buffer in bytes.
        room: u64,
    },
    /// No such request: it was tested successfully before, or is of another channel.
    #[error("no such request: it is complete already, or of another channel")]
    UnknownRequest,
    /// The channel has failed. Every later call returns the same failure.
    #[error("the channel has failed: {0}")]
    Failed(Failure),
}

/// Why a channel has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The peer has closed the channel.
    #[error("the peer has closed the channel")]
    Closed,
    /// The peer does not keep to the protocol.
    #[error("the peer violates the protocol: {0}; use the same barewire at both ends")]
    Protocol(&'static str),
    /// The connection has failed.
    #[error("{0}")]
    Lost(String),
}

impl From<PostError> for Failure {
    fn from(error: PostError) -> Self {
        Self::Lost(error.to_string())
    }
}

impl From<OperationError> for Failure {
    fn from(error: OperationError) -> Self {
        Self::Lost(error.to_string())
    }
}

impl From<KeyError> for Failure {
    fn from(_: KeyError) -> Self {
        Self::Protocol("a line with a malformed key")
    }
}
