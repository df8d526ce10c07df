//! What can go wrong, to whom, and what to look at next.
//!
//! Posting answers with the small [`PostError`]; an operation that was posted and failed tells its
//! [`Completion`](crate::Completion) an [`OperationError`]; the endpoint it ran on reports once, in full
//! words, an [`EndpointError`]. Setting things up has an error type per object.

use std::fmt;

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
    /// The remote range is not inside the key's region.
    #[error("the remote range is not inside the region of this key")]
    OutOfRange,
    /// The key lacks the right that this operation needs.
    #[error("the region of this key does not allow this operation")]
    AccessDenied,
    /// The region of this key was freed.
    #[error("the region of this key was freed")]
    KeyExpired,
    /// Atomics need an address that is a multiple of 8.
    #[error("an 8-byte atomic needs an address that is a multiple of 8")]
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

/// Why an operation that was posted did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
            Self::Unnamed => "operation",
        })
    }
}

/// The one report of an endpoint that failed. Its other operations complete with an error of their own;
/// other endpoints go on.
#[derive(Debug, Clone, PartialEq, Eq)]
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
        write!(f, "; {}", self.cause.hint())
    }
}

impl std::error::Error for EndpointError {}

/// An error of a layer below, kept as the source of one of ours.
pub(crate) type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why a domain, an interface or an endpoint could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No transport of this name is compiled in.
    #[error("unknown transport '{name}': there are {known}")]
    UnknownTransport {
        /// The name asked for.
        name: String,
        /// The names that exist, with commas.
        known: String,
    },
    /// The transport has no device of this name.
    #[error("unknown device '{device}' for transport {transport}: there are {known}")]
    UnknownDevice {
        /// The transport.
        transport: &'static str,
        /// The device asked for.
        device: String,
        /// The devices that exist, with commas.
        known: String,
    },
    /// A setting is outside what the transport takes.
    #[error("{transport}: {setting} = {value} is not possible: {reason}")]
    Setting {
        /// The transport.
        transport: &'static str,
        /// Name of the setting in [`InterfaceConfig`](crate::InterfaceConfig).
        setting: &'static str,
        /// The value given.
        value: u64,
        /// What is possible.
        reason: String,
    },
    /// The interface has as many endpoints as its completion queue can serve.
    #[error(
        "{transport}: all {limit} endpoints of this interface are in use; open it with a larger max_endpoints"
    )]
    TooManyEndpoints {
        /// The transport.
        transport: &'static str,
        /// Endpoints that the interface was opened for.
        limit: u32,
    },
    /// The interface's `Progress` (or the `Worker` that owned it) is gone.
    #[error("{transport}: the interface is closed: its worker was dropped")]
    Closed {
        /// The transport.
        transport: &'static str,
    },
    /// The transport connects in the other way; see [`Flags`](crate::Flags).
    #[error("{transport} connects {instead}")]
    Unsupported {
        /// The transport.
        transport: &'static str,
        /// The call to use.
        instead: &'static str,
    },
    /// A layer below refused.
    #[error("{device}: could not {step}: {source}")]
    Device {
        /// Device name.
        device: String,
        /// What was tried.
        step: &'static str,
        /// The refusal.
        source: Source,
    },
}

/// Why an endpoint could not be connected.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The addresses are of another transport than the endpoint.
    #[error("a {transport} endpoint cannot use an address of {found}")]
    ForeignTransport {
        /// The endpoint's transport.
        transport: &'static str,
        /// The address's transport.
        found: &'static str,
    },
    /// The peer's address holds a value that cannot be.
    #[error("{transport}: the peer's address is not usable: {source}")]
    Address {
        /// The endpoint's transport.
        transport: &'static str,
        /// What is wrong.
        source: crate::address::AddressError,
    },
    /// The address is not reachable from here.
    #[error("{transport}: {peer} is not reachable: {reason}")]
    Unreachable {
        /// The endpoint's transport.
        transport: &'static str,
        /// The peer.
        peer: String,
        /// Why not.
        reason: String,
    },
    /// The endpoint is connected, failed or closed already.
    #[error("{transport}: the endpoint was connected before")]
    Connected {
        /// The endpoint's transport.
        transport: &'static str,
    },
    /// The transport connects in the other way; see [`Flags`](crate::Flags).
    #[error("{transport} connects {instead}")]
    Unsupported {
        /// The transport.
        transport: &'static str,
        /// The call to use.
        instead: &'static str,
    },
    /// The endpoint to connect could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The device refused.
    #[error("{transport}: could not connect to {peer}: {source}")]
    Device {
        /// The endpoint's transport.
        transport: &'static str,
        /// The peer.
        peer: String,
        /// The refusal.
        source: Source,
    },
}

/// Why memory could not be allocated, registered or reached.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Regions have at least one byte.
    #[error("a memory region needs at least one byte")]
    Empty,
    /// The system or the device has no room for the region.
    #[error("no memory for a region of {length} bytes")]
    NoMemory {
        /// Bytes asked for.
        length: usize,
    },
    /// The range is not inside the region.
    #[error("{length} bytes at offset {offset} are not inside the region of {region} bytes")]
    OutOfRange {
        /// Offset from the region's start.
        offset: usize,
        /// Bytes asked for.
        length: usize,
        /// The region's length.
        region: usize,
    },
    /// 8-byte loads and stores need a multiple of 8.
    #[error("offset {offset} is not at an address that is a multiple of 8")]
    Unaligned {
        /// Offset from the region's start.
        offset: usize,
    },
    /// The device refused to register the region.
    #[error("could not register {length} bytes: {source}")]
    Device {
        /// Bytes asked for.
        length: usize,
        /// The refusal.
        source: Source,
    },
}

/// Why bytes are not a usable remote key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Not written by `pack_key`, cut short, or of another version.
    #[error("not a remote key: {0}")]
    Format(#[from] crate::address::AddressError),
    /// The key is for another transport.
    #[error("the key is for transport {found}, this domain is {expected}")]
    ForeignTransport {
        /// The domain's transport.
        expected: &'static str,
        /// The key's transport.
        found: &'static str,
    },
    /// The key is for another domain of the same transport and cannot be used here.
    #[error("the key belongs to another domain")]
    ForeignDomain,
    /// The region was freed.
    #[error("the region of this key was freed")]
    Expired,
}

/// Why a handler could not be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// Active-message ids are 0 to 31.
    #[error("active-message id {0} is not in 0..32")]
    UnknownHandlerId(u8),
}
