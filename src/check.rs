//! Whether a peer is still there.

use crate::endpoint::Endpoint;
use crate::error::PostError;

impl Endpoint {
    /// Asks whether the peer is still there. It does not wait for the answer: a peer that is gone makes the endpoint fail, as any other
    /// operation would have, and the [error handler](crate::Interface::set_error_handler) is told. Nothing is asked where something
    /// outstanding asks already.
    ///
    /// | transport | how |
    /// |---|---|
    /// | `self` | it is this process |
    /// | `shm` | the kernel tells of the peer's end unasked; this says what is known |
    /// | `cma` | the kernel is asked, and answers at once |
    /// | `rc_mlx5`, `rc_verbs` | a write of no bytes, which the peer's device acknowledges |
    /// | `tcp` | eight bytes, which the peer's system acknowledges; silence is an answer after `peer_timeout` |
    ///
    /// # Errors
    /// [`PostError::Unsupported`] for the other transports. Else as posts, but for [`PostError::NoResource`].
    pub fn check(&self) -> Result<(), PostError> {
        match self {
            Self::Self_(endpoint) => endpoint.fence(),
            Self::RcMlx5(endpoint) => asked(endpoint.check()),
            Self::Shm(endpoint) => endpoint.fence(),
            Self::Cma(endpoint) => endpoint.check(),
            #[cfg(feature = "verbs")]
            Self::RcVerbs(endpoint) => asked(endpoint.check()),
            Self::Tcp(endpoint) => endpoint.check(),
            #[allow(unreachable_patterns, reason = "for transports that cannot ask")]
            _ => Err(PostError::Unsupported),
        }
    }
}

/// A queue without room has something outstanding.
fn asked(posted: Result<(), PostError>) -> Result<(), PostError> {
    match posted {
        Err(PostError::NoResource) => Ok(()),
        other => other,
    }
}
