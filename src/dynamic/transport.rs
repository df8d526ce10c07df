//! A transport as a type, for code that is generic over it.

use super::table::transports;
use crate::base::address::{PeerAddress, TransportId};
use crate::base::attributes::Attributes;
use crate::base::config::InterfaceConfig;
use crate::base::error::{ConnectError, OpenError};
use crate::transport::{Domain, Endpoint, Interface, Memory, Progress};

/// A transport, as a type that names its objects and opens them.
///
/// The transports are those of this crate: the trait cannot be implemented outside of it.
pub trait Transport: Sized + sealed::Conversions + 'static {
    /// Which transport it is.
    const ID: TransportId;
    /// A device opened by this transport.
    type Domain: Domain<Memory = Self::Memory, RemoteKey = Self::RemoteKey>;
    /// Registered memory.
    type Memory: Memory;
    /// A right to a peer's memory.
    type RemoteKey: Clone + std::fmt::Debug + Send + Sync;
    /// The transport at work on a device.
    type Interface: Interface;
    /// The one owner of an interface's progress.
    type Progress: Progress;
    /// One end of a connection.
    type Endpoint: Endpoint;

    /// What an interface with these settings can do, on a device with common limits.
    fn attributes(config: &InterfaceConfig) -> Attributes;

    /// Opens a device.
    fn open(device: &str) -> Result<Self::Domain, OpenError>;

    /// Opens an interface.
    fn open_interface(
        domain: &Self::Domain,
        config: &InterfaceConfig,
    ) -> Result<(Self::Interface, Self::Progress), OpenError>;

    /// Opens an endpoint to be connected to a peer's endpoint; transports with
    /// [`Flags::CONNECT_TO_EP`](crate::Flags::CONNECT_TO_EP).
    ///
    /// # Errors
    /// [`OpenError::Unsupported`], [`OpenError::TooManyEndpoints`], [`OpenError::Device`],
    /// [`OpenError::Closed`]
    fn open_endpoint(interface: &Self::Interface) -> Result<Self::Endpoint, OpenError> {
        let _ = interface;
        Err(OpenError::Unsupported { transport: Self::ID, instead: TO_INTERFACES })
    }

    /// Connects to the peer's endpoint. Both ends connect to each other; after that, both can
    /// post.
    ///
    /// # Errors
    /// [`ConnectError`]; [`ConnectError::Unsupported`] without
    /// [`Flags::CONNECT_TO_EP`](crate::Flags::CONNECT_TO_EP).
    fn connect(endpoint: &Self::Endpoint, peer: &PeerAddress) -> Result<(), ConnectError> {
        let _ = (endpoint, peer);
        Err(ConnectError::Unsupported { transport: Self::ID, instead: TO_INTERFACES })
    }

    /// Opens an endpoint to an interface; transports with
    /// [`Flags::CONNECT_TO_INTERFACE`](crate::Flags::CONNECT_TO_INTERFACE).
    ///
    /// # Errors
    /// [`ConnectError`]; [`ConnectError::Unsupported`] without that flag.
    fn connect_to_interface(
        interface: &Self::Interface,
        peer: &PeerAddress,
    ) -> Result<Self::Endpoint, ConnectError> {
        let _ = (interface, peer);
        Err(ConnectError::Unsupported {
            transport: Self::ID,
            instead: "endpoint to endpoint: use Endpoint::new and Endpoint::connect",
        })
    }
}

const TO_INTERFACES: &str = "to interfaces: use Interface::connect";

transports!(implement!);

pub(crate) mod sealed {
    use super::Transport;

    /// The conversions between the types of a transport and those of the dynamic API. The table of
    /// transports generates them.
    pub trait Conversions {
        fn into_domain(object: Self::Domain) -> crate::dynamic::domain::Domain
        where
            Self: Transport;
        fn from_domain(object: &crate::dynamic::domain::Domain) -> Option<&Self::Domain>
        where
            Self: Transport;
        fn into_memory(object: Self::Memory) -> crate::dynamic::memory::Memory
        where
            Self: Transport;
        fn from_memory(object: &crate::dynamic::memory::Memory) -> Option<&Self::Memory>
        where
            Self: Transport;
        fn into_key(object: Self::RemoteKey) -> crate::dynamic::memory::RemoteKey
        where
            Self: Transport;
        fn from_key(object: &crate::dynamic::memory::RemoteKey) -> Option<&Self::RemoteKey>
        where
            Self: Transport;
        fn into_interface(object: Self::Interface) -> crate::dynamic::interface::Interface
        where
            Self: Transport;
        fn from_interface(
            object: &crate::dynamic::interface::Interface,
        ) -> Option<&Self::Interface>
        where
            Self: Transport;
        fn into_endpoint(object: Self::Endpoint) -> crate::dynamic::endpoint::Endpoint
        where
            Self: Transport;
        fn from_endpoint(object: &crate::dynamic::endpoint::Endpoint) -> Option<&Self::Endpoint>
        where
            Self: Transport;
        fn into_progress(progress: Self::Progress) -> crate::dynamic::worker::Kind
        where
            Self: Transport;
    }

    super::transports!(conversions!
        into_domain from_domain domain Kind Domain,
        into_memory from_memory memory Kind Memory,
        into_key from_key memory KeyKind RemoteKey,
        into_interface from_interface interface Kind Interface,
        into_endpoint from_endpoint endpoint Kind Endpoint,
    );
}
