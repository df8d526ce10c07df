//! Failures of posted operations, and their effect on the endpoint.

use std::fmt;

use crate::base::address::TransportId;

/// Why a posted operation failed.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationError {
    /// The cause, independent of the transport.
    pub cause: Cause,
    /// The device's error code, if a device reported the failure.
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
    /// An earlier operation failed and put the queue in error.
    Flushed,
    /// A local buffer was too small for the received data, or a local length was wrong.
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
    /// No response from the peer after all retries.
    PeerUnreachable,
    /// The peer never had a receive buffer ready.
    ReceiverNotReady,
    /// The connection to the peer ended.
    Disconnected,
    /// The two ends have different keys, or one has none.
    Unauthenticated,
    /// Bytes of the connection were changed in transit. None of them took effect.
    Altered,
    /// The local device was removed or reset, or has failed.
    DeviceFailed,
    /// A code that this version does not know.
    Unknown,
}

impl Cause {
    /// Returns what to check next, in one line.
    pub const fn hint(self) -> &'static str {
        match self {
            Self::Canceled => "the endpoint was cancelled or dropped here",
            Self::Flushed => {
                "the queue was put in error before its turn came: see the first error of this endpoint, or of the peer's"
            }
            Self::LocalLength => {
                "check the lengths of the local slices and the peer's message size"
            }
            Self::LocalOperation => "check alignment, lengths and what the device supports",
            Self::LocalAccess => {
                "check that the local memory is alive and was registered with LOCAL_WRITE"
            }
            Self::RemoteRequest => {
                "check that both ends use the same path MTU, segment size and operation limits"
            }
            Self::RemoteAccess => {
                "check the remote key, that the region is alive, its bounds and its access rights"
            }
            Self::RemoteOperation => "check the peer's own errors",
            Self::PeerUnreachable => {
                "check that the peer process is alive and, over a network, that its address is \
                 reachable"
            }
            Self::ReceiverNotReady => {
                "check that the peer calls progress and releases kept messages"
            }
            Self::Disconnected => "check that the peer process is alive, and its own errors",
            Self::Unauthenticated => "set BAREWIRE_KEY_FILE for both",
            Self::Altered => "a host on the path changes the packets, or a device damages them",
            Self::DeviceFailed => "see the kernel's log, and open the device again once it is back",
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
            Self::PeerUnreachable => "the peer is unreachable",
            Self::ReceiverNotReady => "receiver-not-ready retries exceeded",
            Self::Disconnected => "disconnected",
            Self::Unauthenticated => "the two ends do not have the same key",
            Self::Altered => "bytes were changed in transit",
            Self::DeviceFailed => "the device failed",
            Self::Unknown => "unknown device error",
        })
    }
}

/// The kind of operation that an error is about.
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
    /// Connecting.
    Connect,
    /// A check that the peer is alive.
    Check,
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
            Self::Check => "check",
            Self::Unnamed => "operation",
        })
    }
}

/// The report of an endpoint that failed, made once. Its other operations complete with their own
/// errors; other endpoints are not affected.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointError {
    /// The transport.
    pub transport: TransportId,
    /// The peer: device address and queue.
    pub peer: String,
    /// The operation that failed.
    pub operation: Operation,
    /// The cause.
    pub cause: Cause,
    /// The device's error code.
    pub syndrome: Option<Syndrome>,
    /// Further details: the retries, the route, the device's counters.
    pub detail: Option<String>,
}

impl EndpointError {
    fn is_local(&self) -> bool {
        matches!(self.transport, TransportId::Shm | TransportId::Cma | TransportId::Self_)
    }

    /// Returns what users of adapters found behind the device's codes, and in brackets where, if
    /// anything.
    #[cfg(feature = "mlx5")]
    pub fn known_cause(&self) -> Option<&'static str> {
        use TransportId::{DcMlx5, RcMlx5, UdMlx5, XrcMlx5};
        let of_mlx5 = matches!(self.transport, DcMlx5 | RcMlx5 | UdMlx5 | XrcMlx5);
        let Syndrome { code, vendor } = self.syndrome.filter(|_| of_mlx5)?;
        let known = barewire_mlx5::layouts::cqe::KnownCause::find(code, vendor, 0)?;
        Some(known.text)
    }

    /// Returns what users of adapters found behind the device's codes: nothing without devices.
    #[cfg(not(feature = "mlx5"))]
    pub fn known_cause(&self) -> Option<&'static str> {
        None
    }
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transport, operation, peer, .. } = self;
        let error = OperationError { cause: self.cause, syndrome: self.syndrome };
        // Within a host, the peer's process has ended, and its name says so.
        if self.cause == Cause::PeerUnreachable && self.is_local() {
            write!(f, "{transport}: {peer}: {error}")?;
            return self.detail.as_ref().map_or(Ok(()), |detail| write!(f, "; {detail}"));
        }
        let preposition = if *operation == Operation::Receive { "from" } else { "to" };
        write!(f, "{transport}: {operation} {preposition} {peer} failed: {error}")?;
        let known = self.known_cause();
        if let Some(cause) = known {
            write!(f, "; {cause}")?;
        }
        // The known cause of a local protection error is often not the registration.
        if self.cause != Cause::LocalAccess || known.is_none() {
            write!(f, "; {}", self.cause.hint())?;
        }
        if self.cause == Cause::PeerUnreachable && self.transport != TransportId::Tcp {
            f.write_str("; an RDMA device reports this when its retries are used up")?;
        }
        self.detail.as_ref().map_or(Ok(()), |detail| write!(f, "; {detail}"))
    }
}

impl std::error::Error for EndpointError {}
