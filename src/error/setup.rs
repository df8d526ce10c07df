//! Why something could not be set up.

use thiserror::Error;

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
    /// The device did not give up the region and may still access it.
    #[error(
        "could not deregister {length} bytes: {source}; \
         the memory has to stay as it is for the life of the process"
    )]
    Deregister {
        /// The region's length.
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
    /// The memory was registered, not allocated, and other processes cannot map it.
    #[error(
        "the memory of this key was not allocated by {transport}, so that peers cannot map it: use {instead} for it"
    )]
    NotShared {
        /// The transport.
        transport: &'static str,
        /// One that can reach it.
        instead: &'static str,
    },
}

/// Why a handler could not be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// Active-message ids are 0 to 31.
    #[error("active-message id {0} is not in 0..32")]
    UnknownHandlerId(u8),
    /// The interface's `Progress` (or the `Worker` that owned it) is gone: nothing would call the handler.
    #[error("the interface is closed: its worker was dropped")]
    Closed,
}
