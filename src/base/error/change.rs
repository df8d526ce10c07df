//! Why a window or a view was not changed.

use thiserror::Error;

use super::setup::Source;
use super::{MemoryError, PostError};
use crate::base::address::TransportId;
use crate::base::memory::Access;

/// Why a window or a view was not created or changed. Nothing was posted.
#[derive(Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The endpoint accepts no post now.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A range is not inside its memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The device refused a key.
    #[error("the device refused a key: {0}")]
    Key(#[source] Source),
    /// The transport does not have windows, or views.
    #[error("{transport} has no {what}: use one of {instead}")]
    Unsupported {
        /// The transport.
        transport: TransportId,
        /// `windows` or `views`.
        what: &'static str,
        /// The transports of this build that have them, separated by commas.
        instead: String,
    },
    /// The memory was registered without rights that the window or view grants.
    #[error(
        "the memory was registered without {}",
        .0.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" and ")
    )]
    Rights(Access),
    /// The window is bound.
    #[error("the window is bound: invalidate it first")]
    Bound,
    /// The window is not bound.
    #[error("the window is not bound")]
    Free,
    /// Another endpoint bound the window.
    #[error("another endpoint bound the window and must invalidate it")]
    OtherEndpoint,
    /// A range has no bytes, or more than 2^31 - 1.
    #[error("a range has {0} bytes, but must have 1 to 2147483647")]
    Length(u64),
    /// More ranges than the view has room for.
    #[error("the layout takes {got} entries, but the view was created for {room}")]
    Entries {
        /// Ranges, and one more for an interleaved layout.
        got: usize,
        /// Room of the view.
        room: usize,
    },
    /// A stride or the length of an interleaved range does not fit in 16 bits.
    #[error(
        "{0} bytes, but strides and lengths of interleaved ranges are 1 to 65535: join the ranges instead"
    )]
    Wide(usize),
}
