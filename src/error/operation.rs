//! Why an operation that was posted failed, and what it did to its endpoint.

use std::fmt;

/// Why an operation that was posted did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationError {
    /// The cause in the API's own terms.
    pub cause: Cause,
    /// The device's own code, where a device spoke.
    pub syndrome: Option<Syndrome>,
}

impl OperationError {
    /// The operation was cancelled before it finished.
    pub const CANCELED: Self = Self { cause: Cause::Canceled, syndrome: None };
}

impl fmt::Display for OperationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cause)?;
        if let Some(syndrome) = self.syndrome {
            write!(f, " ({syndrome})")?;
        }
        Ok(())
    }
}

impl std::error::Error for OperationError {}

/// A device's error code as its completion carries it (PRM: error CQE, `syndrome` and
/// `vendor_error_syndrome`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Syndrome {
    /// The architected code, 0x01 to 0x22.
    pub code: u8,
    /// The vendor's refinement.
    pub vendor: u8,
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "syndrome {:#04x}, vendor syndrome {:#04x}", self.code, self.vendor)
    }
}

/// The cause of a failed operation, independent of the transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Cancelled by flush-cancel or by dropping the endpoint.
    Canceled,
    /// An earlier operation failed and took the queue with it.
    Flushed,
    /// A local buffer was too small for what arrived, or a local length was wrong.
    LocalLength,
    /// The device refused the request itself.
    LocalOperation,
    /// A local buffer is not registered, was freed, or lacks a right.
    LocalAccess,
    /// The peer's queue refused the request.
    RemoteRequest,
    /// The peer's memory refused the access.
    RemoteAccess,
    /// The peer could not carry the request out.
    RemoteOperation,
    /// No answer from the peer after every retry.
    PeerUnreachable,
    /// The peer never had a receive buffer ready.
    ReceiverNotReady,
    /// The connection to the peer ended.
    Disconnected,
    /// The peer does not know the job's key, or this end does not.
    Unauthenticated,
    /// Bytes of the connection were changed on the way. Nothing of them took effect.
    Altered,
    /// A code this version does not know.
    Unknown,
}

impl Cause {
    /// What to check next, in one line.
    pub const fn hint(self) -> &'static str {
        match self {
            Self::Canceled => "the endpoint was cancelled or dropped here",
            Self::Flushed => {
                "the queue was put in error before its turn came: look at the first error of this endpoint, or of the peer's"
            }
            Self::LocalLength => "check the lengths of the local slices and the peer's message size",
            Self::LocalOperation => "check alignment, lengths and what the device supports",
            Self::LocalAccess => "check that the local memory is alive and was registered with LOCAL_WRITE",
            Self::RemoteRequest => "check that both ends use the same segment size and operation limits",
            Self::RemoteAccess => {
                "check the remote key, that the region is alive, its bounds and its access rights"
            }
            Self::RemoteOperation => "look at the peer's own errors",
            Self::PeerUnreachable => "check that the peer process is alive and its device address reachable",
            Self::ReceiverNotReady => "check that the peer calls progress and releases kept messages",
            Self::Disconnected => "check that the peer process is alive, and its own errors",
            Self::Unauthenticated => "give both ends the same key: see BAREWIRE_KEY_FILE",
            Self::Altered => "somebody between the two hosts changes the packets, or a device damages them",
            Self::Unknown => "see the device's manual for this syndrome",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Canceled => "canceled",
            Self::Flushed => "flushed after an earlier error",
            Self::LocalLength => "local length error",
            Self::LocalOperation => "local operation error",
            Self::LocalAccess => "local protection error",
            Self::RemoteRequest => "remote invalid request",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::PeerUnreachable => "transport retries exceeded",
            Self::ReceiverNotReady => "receiver-not-ready retries exceeded",
            Self::Disconnected => "disconnected",
            Self::Unauthenticated => "the two ends have different keys",
            Self::Altered => "bytes were changed on the way",
            Self::Unknown => "unknown device error",
        })
    }
}

/// The kind of operation an error speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Remote write.
    Put,
    /// Remote read.
    Get,
    /// Active message, sending side.
    ActiveMessage,
    /// Remote atomic.
    Atomic,
    /// Flush.
    Flush,
    /// Receiving.
    Receive,
    /// Making the connection.
    Connect,
    /// An operation that the device did not name.
    Unnamed,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::ActiveMessage => "active message",
            Self::Atomic => "atomic",
            Self::Flush => "flush",
            Self::Receive => "receive",
            Self::Connect => "connection",
            Self::Unnamed => "operation",
        })
    }
}

/// The one report of an endpoint that failed. Its other operations complete with an error of their own;
/// other endpoints go on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointError {
    /// Transport name, such as `rc_mlx5`.
    pub transport: &'static str,
    /// The peer: device address and queue.
    pub peer: String,
    /// What failed.
    pub operation: Operation,
    /// Why.
    pub cause: Cause,
    /// The device's own code.
    pub syndrome: Option<Syndrome>,
    /// What is known on this side: how often it was tried, from where, what the device counted.
    pub detail: Option<String>,
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let preposition = if self.operation == Operation::Receive { "from" } else { "to" };
        write!(
            f,
            "{}: {} {preposition} {} failed: {}",
            self.transport,
            self.operation,
            self.peer,
            OperationError { cause: self.cause, syndrome: self.syndrome }
        )?;
        write!(f, "; {}", self.cause.hint())?;
        self.detail.as_ref().map_or(Ok(()), |detail| write!(f, "; {detail}"))
    }
}

impl std::error::Error for EndpointError {}
