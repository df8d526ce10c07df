//! Why an endpoint fails.

use barewire_tcp::connector::ConnectFailure;
use barewire_tcp::handshake::HandshakeError;
use barewire_tcp::outbox::SendError;
use barewire_tcp::{seal, socket};

use crate::base::error::{Cause, Operation};

/// A failure that the next progress call reports: the error handler does not run inside a post.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PendingFailure {
    pub(super) operation: Operation,
    pub(super) cause: Cause,
    pub(super) detail: String,
}

impl PendingFailure {
    pub(super) fn new(operation: Operation, cause: Cause, detail: impl Into<String>) -> Self {
        Self { operation, cause, detail: detail.into() }
    }

    pub(super) fn of_connecting(failure: &ConnectFailure) -> Self {
        let cause = match failure {
            ConnectFailure::Handshake(HandshakeError::Key) => Cause::Unauthenticated,
            ConnectFailure::Handshake(HandshakeError::Altered) => Cause::Altered,
            // Not the peer's fault: for example, this process has no descriptor left.
            ConnectFailure::Io(error) if !socket::is_disconnected(error) => Cause::LocalOperation,
            _ => Cause::PeerUnreachable,
        };
        // The cause says what to do about it.
        let detail = match cause {
            Cause::Unauthenticated => "it does not know this job's key".to_owned(),
            _ => failure.to_string(),
        };
        Self::new(Operation::Connect, cause, detail)
    }

    pub(super) fn of_sending(operation: Operation, error: &SendError) -> Self {
        let cause = match error {
            SendError::Revoked => Cause::LocalAccess,
            SendError::Io(error) if socket::is_disconnected(error) => Cause::Disconnected,
            SendError::Io(error) if seal::is_altered(error) => Cause::Altered,
            SendError::Io(_) => Cause::LocalOperation,
        };
        Self::new(operation, cause, error.to_string())
    }
}
