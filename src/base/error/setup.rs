//! Errors of setting up devices, memory and connections.

use std::time::Duration;

use thiserror::Error;

use crate::base::address::TransportId;

/// An error of a lower layer, kept as the source of an error of this crate.
pub(crate) type Source = Box<dyn std::error::Error + Send + Sync>;

/// The features that a transport needs, after the words "the feature".
fn features(transport: TransportId) -> &'static str {
    match transport.feature() {
        Some("mlx5") => "soft for the software HCA, or the features mlx5 and verbs for an adapter",
        name => name.unwrap_or("of no name"),
    }
}

/// Why a domain, an interface or an endpoint could not be opened.
#[derive(Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The transport is not compiled into this build.
    #[error(
        "{transport} is not compiled in: it needs the feature {}, and this build has {known}",
        features(*.transport)
    )]
    NotBuilt {
        /// The requested transport.
        transport: TransportId,
        /// The transports of this build, separated by commas.
        known: String,
    },
    /// The transport has no device of this name.
    #[error("unknown device '{device}' for transport {transport}: there are {known}")]
    UnknownDevice {
        /// The transport.
        transport: TransportId,
        /// The requested device.
        device: String,
        /// The devices that exist, separated by commas.
        known: String,
    },
    /// A setting has a value that the transport does not accept.
    #[error("{transport}: {setting} = {value} is not valid: {reason}")]
    Setting {
        /// The transport.
        transport: TransportId,
        /// Name of the setting in [`InterfaceConfig`](crate::InterfaceConfig).
        setting: &'static str,
        /// The value given.
        value: u64,
        /// What is accepted.
        reason: String,
    },
    /// The interface already has as many endpoints as its completion queue can serve.
    #[error(
        "{transport}: all {limit} endpoints of this interface are in use; open it with a larger max_endpoints"
    )]
    TooManyEndpoints {
        /// The transport.
        transport: TransportId,
        /// The limit of endpoints with which the interface was opened.
        limit: u32,
    },
    /// The interface's `Progress` (or the `Worker` that owned it) was dropped.
    #[error("{transport}: the interface is closed: its worker was dropped")]
    Closed {
        /// The transport.
        transport: TransportId,
    },
    /// Progress of the shared worker is running further up the stack.
    #[error("a callback of a shared worker cannot open an interface: return from it first")]
    InCallback,
    /// The transport does not connect in this way; see [`Flags`](crate::Flags).
    #[error("{transport} connects {instead}")]
    Unsupported {
        /// The transport.
        transport: TransportId,
        /// The call to use.
        instead: &'static str,
    },
    /// A lower layer refused.
    #[error("{device}: could not {step}: {source}")]
    Device {
        /// Device name.
        device: String,
        /// The step that failed.
        step: &'static str,
        /// The refusal.
        source: Source,
    },
}

impl OpenError {
    /// Refuses a value of the setting `keepalive`.
    pub(crate) fn keepalive(transport: TransportId, value: Duration, reason: &str) -> Self {
        let value = u64::try_from(value.as_millis()).unwrap_or(u64::MAX);
        Self::Setting { transport, setting: "keepalive", value, reason: reason.to_owned() }
    }
}

/// Why an endpoint could not be connected.
#[derive(Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The addresses are of another transport than the endpoint.
    #[error("a {transport} endpoint cannot use an address of {found}")]
    ForeignTransport {
        /// The endpoint's transport.
        transport: TransportId,
        /// The address's transport.
        found: TransportId,
    },
    /// The peer's address contains an invalid value.
    #[error("{transport}: the peer's address is not usable: {source}")]
    Address {
        /// The endpoint's transport.
        transport: TransportId,
        /// The invalid value.
        source: crate::base::address::AddressError,
    },
    /// The address is not reachable from here.
    #[error("{transport}: {peer} is not reachable: {reason}")]
    Unreachable {
        /// The endpoint's transport.
        transport: TransportId,
        /// The peer.
        peer: String,
        /// The reason.
        reason: String,
    },
    /// The endpoint is connected, failed or closed already.
    #[error("{transport}: the endpoint was connected before")]
    Connected {
        /// The endpoint's transport.
        transport: TransportId,
    },
    /// The transport does not connect in this way; see [`Flags`](crate::Flags).
    #[error("{transport} connects {instead}")]
    Unsupported {
        /// The transport.
        transport: TransportId,
        /// The call to use.
        instead: &'static str,
    },
    /// The address is that of an interface, where that of an endpoint is needed.
    #[error(
        "{transport}: the address is that of an interface: pass Endpoint::address of the peer's endpoint, \
         or connect to the interface by Interface::connect"
    )]
    NoEndpoint {
        /// The endpoint's transport.
        transport: TransportId,
    },
    /// The endpoint to connect could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The device refused.
    #[error("{transport}: could not connect to {peer}: {source}")]
    Device {
        /// The endpoint's transport.
        transport: TransportId,
        /// The peer.
        peer: String,
        /// The refusal.
        source: Source,
    },
}

/// Why memory could not be allocated, registered or accessed.
#[derive(Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Regions have at least one byte.
    #[error("a memory region needs at least one byte")]
    Empty,
    /// The kernel or the device has no memory for the region.
    #[error("no memory for a region of {length} bytes")]
    NoMemory {
        /// Requested bytes.
        length: usize,
    },
    /// The address of a registration does not suit the memory.
    #[error(
        "address {address:#x} cannot name {length} bytes of this memory: it must be {offset:#x} above a \
         multiple of 4096, and all bytes must end below 2^64"
    )]
    Address {
        /// The address for peers.
        address: u64,
        /// Requested bytes.
        length: usize,
        /// Offset of the memory in a page of 4096 bytes.
        offset: u64,
    },
    /// The range is not inside the region.
    #[error("{length} bytes at offset {offset} are not inside the region of {region} bytes")]
    OutOfRange {
        /// Offset from the region's start.
        offset: usize,
        /// Requested bytes.
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
        /// Requested bytes.
        length: usize,
        /// The refusal.
        source: Source,
    },
    /// The transport has no such memory.
    #[error("{transport} has no {what}: use one of {instead}")]
    Unsupported {
        /// The transport.
        transport: TransportId,
        /// What it lacks.
        what: &'static str,
        /// The transports of this build that have them, separated by commas.
        instead: String,
    },
    /// Memory on the device could not be allocated or registered.
    #[error("could not allocate or register {length} bytes on the device: {source}")]
    OnDevice {
        /// Requested bytes.
        length: usize,
        /// The refusal.
        source: Source,
    },
    /// A dma-buf could not be registered.
    #[error("could not register {length} bytes of a dma-buf: {source}")]
    DmaBuf {
        /// Requested bytes.
        length: usize,
        /// The refusal.
        source: Source,
    },
    /// The device refused a key to the whole address space.
    #[error("could not register the whole address space: {source}")]
    AddressSpace {
        /// The refusal.
        source: Source,
    },
    /// Pages could not be brought in.
    #[error("could not bring in {length} bytes: {source}")]
    Prefetch {
        /// Requested bytes.
        length: usize,
        /// The refusal of the kernel.
        source: Source,
    },
    /// The device did not release the region and may still access it.
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
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Not written by `pack_key`, cut short, or of another version.
    #[error("not a remote key: {0}")]
    Format(#[from] crate::base::address::AddressError),
    /// The key is for another transport.
    #[error("the key is for transport {found}, this domain is {expected}")]
    ForeignTransport {
        /// The domain's transport.
        expected: TransportId,
        /// The key's transport.
        found: TransportId,
    },
    /// The key is for another domain of the same transport and cannot be used here.
    #[error("the key belongs to another domain")]
    ForeignDomain,
    /// The region was freed.
    #[error("the region of this key was freed")]
    Expired,
    /// The range of a region ends beyond the address space.
    #[error("a region of {length} bytes at address {address:#x} ends beyond the address space")]
    Range {
        /// Address of the first byte.
        address: u64,
        /// Bytes of the region.
        length: u64,
    },
    /// The memory was registered, not allocated, and other processes cannot map it.
    #[error(
        "the memory of this key was not allocated by {transport}, so that peers cannot map it: use {instead} for it"
    )]
    NotShared {
        /// The transport.
        transport: TransportId,
        /// A transport that can access it.
        instead: TransportId,
    },
}

/// Why the memory of a key could not be mapped.
#[derive(Error)]
#[non_exhaustive]
pub enum PointerError {
    /// Keys of this transport lead to memory through an endpoint only.
    #[error("{0}: the memory of a key cannot be mapped")]
    Unsupported(TransportId),
    /// The key does not permit to read the memory.
    #[error("the key does not permit to read the memory")]
    AccessDenied,
    /// The peer has freed the region.
    #[error("the region of this key was freed")]
    Expired,
    /// The kernel refuses.
    #[error("{transport}: cannot map the memory of process {process}: {source}")]
    Device {
        /// The transport.
        transport: TransportId,
        /// The process that the key names.
        process: u32,
        /// The kernel's reason.
        source: Source,
    },
}

/// Why a handler could not be set.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// Active-message ids are 0 to 31.
    #[error("active-message id {0} is not in 0..32")]
    UnknownHandlerId(u8),
    /// The interface's `Progress` (or the `Worker` that owned it) was dropped, so the handler would
    /// never be called.
    #[error("the interface is closed: its worker was dropped")]
    Closed,
    /// The device matches no tags: the transport is not `rc_mlx5`, or its setting `tag_matching` is
    /// off.
    #[error(
        "no tags are matched in the device: open rc_mlx5 with tag_matching, or match in software"
    )]
    NoTags,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_over_mlx5_that_is_not_built_names_the_features_of_both_devices() {
        let error =
            OpenError::NotBuilt { transport: TransportId::RcMlx5, known: "self".to_owned() };
        assert_eq!(
            error.to_string(),
            "rc_mlx5 is not compiled in: it needs the feature soft for the software HCA, or the \
             features mlx5 and verbs for an adapter, and this build has self"
        );
    }
}
