//! The static API: one module per transport, each with `Domain`, `Interface`, `Progress`,
//! `Endpoint`, `Memory` and `RemoteKey`. Everything inlines, and an operation that a transport
//! lacks is a compile error (see [`capability`](crate::capability)).
//!
//! Code that is generic over the transport takes a [`Transport`]:
//!
//! ```
//! use barewire::capability::{PutShort, RemoteMemory};
//! use barewire::transport::{self, Domain as _, Interface as _, Memory as _, Transport};
//! use barewire::{Access, InterfaceConfig};
//!
//! /// Writes a byte of this process's memory through a connection to itself.
//! fn loop_back<T: Transport>(device: &str) -> Result<u8, Box<dyn std::error::Error>>
//! where
//!     T::Endpoint: PutShort + RemoteMemory<Key = T::RemoteKey>,
//! {
//!     let domain = T::open(device)?;
//!     let (interface, _progress) = T::open_interface(&domain, &InterfaceConfig::default())?;
//!     let endpoint = T::connect_to_interface(&interface, &interface.address())?;
//!     let memory = domain.allocate(64, Access::REMOTE_WRITE)?;
//!     let key = domain.unpack_key(&memory.pack_key())?;
//!     endpoint.put_short(&[7], memory.address(), &key)?;
//!     let mut byte = [0];
//!     memory.read(0, &mut byte)?;
//!     Ok(byte[0])
//! }
//!
//! assert_eq!(loop_back::<transport::self_::Self_>("memory")?, 7);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "cma")]
pub mod cma;
pub(crate) mod common;
#[cfg(feature = "mlx5")]
pub mod dc_mlx5;
pub mod handle;
mod object;
#[cfg(any(feature = "mlx5", feature = "verbs"))]
pub mod rc;
#[cfg(feature = "mlx5")]
pub mod rc_mlx5;
#[cfg(feature = "verbs")]
pub mod rc_verbs;
#[cfg(feature = "verbs")]
pub(crate) mod rdma;
#[cfg(any(feature = "mlx5", feature = "verbs"))]
mod reliable;
pub mod self_;
#[cfg(feature = "shm")]
pub mod shm;
pub(crate) mod table;
#[cfg(feature = "tcp")]
pub mod tcp;
#[cfg(any(feature = "mlx5", feature = "verbs"))]
pub mod ud;
#[cfg(feature = "mlx5")]
pub mod ud_mlx5;
#[cfg(feature = "verbs")]
pub mod ud_verbs;
#[cfg(feature = "mlx5")]
pub mod xrc_mlx5;

pub use object::{Domain, Endpoint, Interface, Memory, Progress};

use crate::address::{PeerAddress, TransportId};
use crate::attributes::Attributes;
use crate::config::InterfaceConfig;
use crate::error::{ConnectError, OpenError, PostError};
use crate::memory::Transfer;

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
    ///
    /// # Errors
    /// [`OpenError::UnknownDevice`], [`OpenError::Device`]
    fn open(device: &str) -> Result<Self::Domain, OpenError>;

    /// Opens an interface.
    ///
    /// # Errors
    /// [`OpenError::Setting`], [`OpenError::Device`]
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

/// Checks the name of the only device of a transport.
pub(crate) fn only_device(
    transport: TransportId,
    known: &str,
    device: &str,
) -> Result<(), OpenError> {
    if device == known {
        return Ok(());
    }
    Err(OpenError::UnknownDevice { transport, device: device.to_owned(), known: known.to_owned() })
}

const TO_INTERFACES: &str = "to interfaces: use Interface::connect";

/// The transfers of a list, with the keys of one transport. A list pays for one allocation.
pub(crate) fn transfers_of<'a, T: Transport>(
    transfers: &[Transfer<'a>],
) -> Result<Vec<Transfer<'a, T::RemoteKey>>, PostError> {
    let of = |&Transfer { local, remote, key }: &Transfer<'a>| {
        let key = T::from_key(key).ok_or(PostError::ForeignKey)?;
        Ok(Transfer { local, remote, key })
    };
    transfers.iter().map(of).collect()
}

pub(crate) mod sealed {
    use super::Transport;
    use super::common::handlers::Handlers;

    /// The part of every interface that its handlers need.
    pub trait Handled {
        fn handlers(&self) -> &Handlers;

        /// Makes the next progress install new handlers.
        fn call_attention(&self);
    }

    /// The conversions between the types of a transport and those of the dynamic API. The table of
    /// transports generates them.
    pub trait Conversions {
        fn into_domain(object: Self::Domain) -> crate::Domain
        where
            Self: Transport;
        fn from_domain(object: &crate::Domain) -> Option<&Self::Domain>
        where
            Self: Transport;
        fn into_memory(object: Self::Memory) -> crate::Memory
        where
            Self: Transport;
        fn from_memory(object: &crate::Memory) -> Option<&Self::Memory>
        where
            Self: Transport;
        fn into_key(object: Self::RemoteKey) -> crate::RemoteKey
        where
            Self: Transport;
        fn from_key(object: &crate::RemoteKey) -> Option<&Self::RemoteKey>
        where
            Self: Transport;
        fn into_interface(object: Self::Interface) -> crate::Interface
        where
            Self: Transport;
        fn from_interface(object: &crate::Interface) -> Option<&Self::Interface>
        where
            Self: Transport;
        fn into_endpoint(object: Self::Endpoint) -> crate::Endpoint
        where
            Self: Transport;
        fn from_endpoint(object: &crate::Endpoint) -> Option<&Self::Endpoint>
        where
            Self: Transport;
        fn into_progress(progress: Self::Progress) -> crate::worker::Kind
        where
            Self: Transport;
    }

    crate::transport::table::transports!(conversions!
        into_domain from_domain domain Kind Domain,
        into_memory from_memory memory Kind Memory,
        into_key from_key memory KeyKind RemoteKey,
        into_interface from_interface interface Kind Interface,
        into_endpoint from_endpoint endpoint Kind Endpoint,
    );
}
