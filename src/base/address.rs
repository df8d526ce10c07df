//! Addresses: versioned bytes that a process sends to its peers.
//!
//! | byte | meaning |
//! |---|---|
//! | 0..2 | `b"bw"` |
//! | 2 | version of this layout, 1 |
//! | 3 | kind: device, interface, endpoint, key, peer |
//! | 4 | transport |
//! | 5 | length of the body in bytes |
//! | 6.. | body, defined by the transport, integers big-endian |
//!
//! The body of a peer's address consists of the bodies of its device, its interface and, if
//! present, its endpoint, in this order.

use std::fmt;
#[cfg(feature = "tcp")]
use std::net::SocketAddr;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;

use crate::base::error::ConnectError;
use crate::base::transports::{ids, rows};

/// Bytes before the body.
const HEADER: usize = 6;
const MAGIC: [u8; 2] = *b"bw";
const VERSION: u8 = 1;
/// Longest body. Addresses are stored inline.
pub(crate) const MAX_BODY: usize = 41;

/// Returns bytes that identify the network namespace of this thread, as
/// [`DeviceAddress::network`] returns them.
#[cfg(any(feature = "mlx5", feature = "verbs", feature = "tcp"))]
pub fn network() -> [u8; 6] {
    super::network::network()
}

/// Why bytes are not an address (or a key).
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The bytes are truncated.
    #[error("truncated: {got} bytes of at least {need}")]
    Truncated {
        /// Number of bytes passed in.
        got: usize,
        /// Number of bytes needed.
        need: usize,
    },
    /// The bytes were not written by barewire.
    #[error("foreign: it does not start with \"bw\"")]
    Foreign,
    /// The bytes were written by a version with another layout.
    #[error("version {found}, this library reads version {VERSION}")]
    Version {
        /// The version in the bytes.
        found: u8,
    },
    /// The address is of another kind, for example a device address instead of an endpoint address.
    #[error("a {found} instead of a {expected}")]
    Kind {
        /// The expected kind.
        expected: Kind,
        /// The kind in the bytes.
        found: Kind,
    },
    /// The kind is unknown to this version.
    #[error("unknown kind {0:#04x}")]
    UnknownKind(u8),
    /// The transport is unknown to this version.
    #[error("unknown transport {0:#04x}")]
    UnknownTransport(u8),
    /// The body has another length than the transport writes.
    #[error("a body of {found} bytes, but the transport writes {expected}")]
    Length {
        /// Bytes that the transport writes.
        expected: usize,
        /// Bytes in the body.
        found: usize,
    },
    /// There are more bytes than the address has.
    #[error("{0} bytes too many at the end")]
    Trailing(usize),
    /// The parts of a peer's address are of different transports.
    #[error("a device address of {device} beside an address of {other}")]
    Mixed {
        /// The transport of the device address.
        device: TransportId,
        /// The transport of another part.
        other: TransportId,
    },
    /// A field has an invalid value.
    #[error("field {0} has an invalid value")]
    Field(&'static str),
}

/// The kind of object that an address identifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A device: the destination of packets.
    Device,
    /// An interface on a device.
    Interface,
    /// One end of a connection.
    Endpoint,
    /// A remote key.
    Key,
    /// All that is needed to connect to a peer.
    Peer,
}

impl Kind {
    const fn code(self) -> u8 {
        match self {
            Self::Device => b'D',
            Self::Interface => b'I',
            Self::Endpoint => b'E',
            Self::Key => b'K',
            Self::Peer => b'P',
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        match code {
            b'D' => Some(Self::Device),
            b'I' => Some(Self::Interface),
            b'E' => Some(Self::Endpoint),
            b'K' => Some(Self::Key),
            b'P' => Some(Self::Peer),
            _ => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device address",
            Self::Interface => "interface address",
            Self::Endpoint => "endpoint address",
            Self::Key => "remote key",
            Self::Peer => "peer address",
        })
    }
}

rows!({ids} (
    /// A transport. Its code is the byte that identifies it in addresses and keys.
    ///
    /// ```
    /// use barewire::TransportId;
    ///
    /// assert_eq!("shm".parse(), Ok(TransportId::Shm));
    /// assert_eq!(TransportId::Shm.to_string(), "shm");
    /// assert_eq!(TransportId::from_code(3), Some(TransportId::Shm));
    /// ```
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    #[repr(u8)]
    pub enum TransportId
));

impl fmt::Display for TransportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl TransportId {
    /// Returns the byte that identifies the transport in addresses and keys. It is the same in
    /// every version.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the feature of the crate that builds the transport; `None` for `self`, which needs
    /// none.
    pub const fn feature(self) -> Option<&'static str> {
        match self {
            Self::Self_ => None,
            Self::RcMlx5 | Self::UdMlx5 | Self::DcMlx5 | Self::XrcMlx5 => Some("mlx5"),
            Self::RcVerbs | Self::UdVerbs => Some("verbs"),
            Self::Shm | Self::Cma | Self::Tcp => Some(self.name()),
        }
    }

    /// Returns the length of a packed remote key of the transport.
    pub(crate) const fn packed_key(self) -> usize {
        HEADER + self.body(Kind::Key)
    }

    /// Returns the names of `transports`, separated by commas.
    pub(crate) fn list(transports: &[Self]) -> String {
        let names: Vec<_> = transports.iter().map(|id| id.name()).collect();
        names.join(", ")
    }
}

impl FromStr for TransportId {
    type Err = UnknownTransport;

    fn from_str(name: &str) -> Result<Self, UnknownTransport> {
        Self::ALL.iter().copied().find(|id| id.name() == name).ok_or(UnknownTransport)
    }
}

/// A name that is not the name of a transport.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[error("there is no transport of this name")]
pub struct UnknownTransport;

/// Returns the header of a body of `length` bytes.
const fn header(kind: Kind, transport: TransportId, length: usize) -> [u8; HEADER] {
    [MAGIC[0], MAGIC[1], VERSION, kind.code(), transport.code(), length as u8]
}

/// Checks untrusted bytes. `expected` returns the length of the body, given the length in the
/// header.
fn checked_body(
    kind: Kind,
    bytes: &[u8],
    expected: impl FnOnce(TransportId, usize) -> usize,
) -> Result<(TransportId, &[u8]), AddressError> {
    let Some((header, body)) = bytes.split_first_chunk::<HEADER>() else {
        // Foreign bytes are reported as such even if they are short.
        return Err(if MAGIC.starts_with(&bytes[..bytes.len().min(2)]) {
            AddressError::Truncated { got: bytes.len(), need: HEADER }
        } else {
            AddressError::Foreign
        });
    };
    if header[..2] != MAGIC {
        return Err(AddressError::Foreign);
    }
    if header[2] != VERSION {
        return Err(AddressError::Version { found: header[2] });
    }
    let found = Kind::from_code(header[3]).ok_or(AddressError::UnknownKind(header[3]))?;
    if found != kind {
        return Err(AddressError::Kind { expected: kind, found });
    }
    let transport =
        TransportId::from_code(header[4]).ok_or(AddressError::UnknownTransport(header[4]))?;
    let found = usize::from(header[5]);
    let expected = expected(transport, found);
    if found != expected {
        return Err(AddressError::Length { expected, found });
    }
    if body.len() < expected {
        return Err(AddressError::Truncated { got: bytes.len(), need: HEADER + expected });
    }
    if body.len() > expected {
        return Err(AddressError::Trailing(body.len() - expected));
    }
    Ok((transport, body))
}

/// Checked bytes of one kind and transport.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Packed {
    bytes: [u8; HEADER + MAX_BODY],
    len: u8,
}

impl Packed {
    /// Writes the header and `body`, whose length is the transport's for this kind.
    pub(crate) fn new<const N: usize>(kind: Kind, transport: TransportId, body: &[u8; N]) -> Self {
        const { assert!(N <= MAX_BODY) };
        debug_assert_eq!(N, transport.body(kind));
        Self::of(kind, transport, body)
    }

    /// As [`Self::new`], for a body of at most [`MAX_BODY`] bytes.
    pub(crate) fn of(kind: Kind, transport: TransportId, body: &[u8]) -> Self {
        let mut bytes = [0; HEADER + MAX_BODY];
        bytes[..HEADER].copy_from_slice(&header(kind, transport, body.len()));
        bytes[HEADER..HEADER + body.len()].copy_from_slice(body);
        Self { bytes, len: (HEADER + body.len()) as u8 }
    }

    /// As [`Self::new`], with an untrusted body.
    fn from_body(kind: Kind, transport: TransportId, body: &[u8]) -> Result<Self, AddressError> {
        let expected = transport.body(kind);
        if body.len() != expected {
            return Err(AddressError::Length { expected, found: body.len() });
        }
        Ok(Self::of(kind, transport, body))
    }

    /// Checks untrusted bytes.
    pub(crate) fn parse(kind: Kind, bytes: &[u8]) -> Result<Self, AddressError> {
        let (transport, body) = checked_body(kind, bytes, |transport, _| transport.body(kind))?;
        Ok(Self::of(kind, transport, body))
    }

    pub(crate) fn transport(&self) -> TransportId {
        // Both constructors wrote a known code.
        TransportId::from_code(self.bytes[4]).unwrap_or(TransportId::Self_)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }

    fn any_body(&self) -> &[u8] {
        &self.bytes()[HEADER..]
    }

    /// Returns the body, if it has `N` bytes.
    pub(crate) fn body<const N: usize>(&self) -> Option<&[u8; N]> {
        self.any_body().try_into().ok()
    }
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits the body, which contains a secret for some transports.
        write!(f, "{}, {} bytes", self.transport(), self.len)
    }
}

macro_rules! address {
    ($(#[$doc:meta])* $name:ident, $kind:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub(crate) Packed);

        impl $name {
            /// Returns the bytes to send to the peer by any means.
            pub fn to_bytes(&self) -> Vec<u8> {
                self.0.bytes().to_vec()
            }

            /// Checks bytes from the peer.
            ///
            /// # Errors
            /// [`AddressError`] with the reason: truncated, foreign, another version, kind or
            /// transport, too many bytes.
            pub fn from_bytes(bytes: &[u8]) -> Result<Self, AddressError> {
                Packed::parse(Kind::$kind, bytes).map(Self)
            }

            /// Returns the bytes without the header, for a container that stores the transport
            /// elsewhere.
            pub fn body(&self) -> &[u8] {
                self.0.any_body()
            }

            /// Creates the address with these bytes after the header.
            pub fn from_body(transport: TransportId, body: &[u8]) -> Result<Self, AddressError> {
                Packed::from_body(Kind::$kind, transport, body).map(Self)
            }

            /// Returns the length of the body of such an address of a transport.
            pub const fn body_length(transport: TransportId) -> usize {
                transport.body(Kind::$kind)
            }

            /// Returns the transport of this address.
            pub fn transport(&self) -> TransportId {
                self.0.transport()
            }
        }
    };
}

address!(
    /// The location of a device: a RoCE GID, or the process for `self`. `Display` writes it in its
    /// usual form.
    DeviceAddress,
    Device
);
address!(
    /// An interface on its device, for transports that connect to interfaces.
    InterfaceAddress,
    Interface
);
address!(
    /// One end of a connection, for transports that connect endpoint to endpoint.
    EndpointAddress,
    Endpoint
);

/// All that is needed to connect to a peer: the addresses of its device and its interface,
/// and, for transports that connect endpoint to endpoint, of its endpoint.
///
/// [`Interface::address`](crate::Interface::address) names an interface, to which
/// [`Interface::connect`](crate::Interface::connect) opens an endpoint.
/// [`Endpoint::address`](crate::Endpoint::address) names an endpoint, to which
/// [`Endpoint::connect`](crate::Endpoint::connect) connects another one. The bytes can be
/// sent by any means:
///
/// ```
/// # use barewire::*;
/// # let mut worker = Worker::new();
/// # let domain = Domain::open(&"self/memory".parse()?)?;
/// let interface = Interface::open(&mut worker, &domain, &InterfaceConfig::default())?;
/// let bytes = interface.address().to_bytes();
///
/// let peer = PeerAddress::from_bytes(&bytes)?;
/// assert_eq!(peer.transport(), TransportId::Self_);
/// let endpoint = interface.connect(&peer)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PeerAddress {
    device: DeviceAddress,
    interface: InterfaceAddress,
    endpoint: Option<EndpointAddress>,
}

impl PeerAddress {
    /// Combines the parts of an address.
    ///
    /// # Errors
    /// [`AddressError::Mixed`] if they are of different transports.
    pub fn new(
        device: DeviceAddress,
        interface: InterfaceAddress,
        endpoint: Option<EndpointAddress>,
    ) -> Result<Self, AddressError> {
        let others = [Some(interface.transport()), endpoint.map(|endpoint| endpoint.transport())];
        match others.into_iter().flatten().find(|other| *other != device.transport()) {
            Some(other) => Err(AddressError::Mixed { device: device.transport(), other }),
            None => Ok(Self { device, interface, endpoint }),
        }
    }

    /// Returns the address of an interface. Both parts are of one transport.
    pub(crate) fn of_interface(device: DeviceAddress, interface: InterfaceAddress) -> Self {
        Self { device, interface, endpoint: None }
    }

    /// Returns the address of an endpoint of this interface, of the same transport.
    pub(crate) fn with_endpoint(self, endpoint: EndpointAddress) -> Self {
        Self { endpoint: Some(endpoint), ..self }
    }

    /// Returns the transport of this address.
    pub fn transport(&self) -> TransportId {
        self.device.transport()
    }

    /// Returns the location of the peer's device.
    pub fn device(&self) -> &DeviceAddress {
        &self.device
    }

    /// Returns the interface on the device.
    pub fn interface(&self) -> &InterfaceAddress {
        &self.interface
    }

    /// Returns the endpoint of the interface, if the address has one.
    pub fn endpoint(&self) -> Option<&EndpointAddress> {
        self.endpoint.as_ref()
    }

    /// Returns the endpoint to which an endpoint of `transport` connects.
    pub(crate) fn endpoint_for(
        &self,
        transport: TransportId,
    ) -> Result<&EndpointAddress, ConnectError> {
        self.endpoint.as_ref().ok_or(ConnectError::NoEndpoint { transport })
    }

    /// Returns the bytes to send to the peer by any means.
    pub fn to_bytes(&self) -> Vec<u8> {
        let parts = [
            Some(&self.device.0),
            Some(&self.interface.0),
            self.endpoint.as_ref().map(|part| &part.0),
        ];
        let body: Vec<u8> =
            parts.into_iter().flatten().flat_map(Packed::any_body).copied().collect();
        [&header(Kind::Peer, self.transport(), body.len())[..], &body].concat()
    }

    /// Checks bytes from the peer.
    ///
    /// # Errors
    /// [`AddressError`] with the reason: truncated, foreign, another version, kind or transport,
    /// too many bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, AddressError> {
        let (transport, body) = checked_body(Kind::Peer, bytes, |transport, found| {
            let interface = transport.body(Kind::Device) + transport.body(Kind::Interface);
            let endpoint = interface + transport.body(Kind::Endpoint);
            if found == interface { interface } else { endpoint }
        })?;
        let (device, rest) = body.split_at(transport.body(Kind::Device));
        let (interface, endpoint) = rest.split_at(transport.body(Kind::Interface));
        let endpoint = Some(endpoint).filter(|endpoint| !endpoint.is_empty());
        Ok(Self {
            device: DeviceAddress(Packed::of(Kind::Device, transport, device)),
            interface: InterfaceAddress(Packed::of(Kind::Interface, transport, interface)),
            endpoint: endpoint
                .map(|body| EndpointAddress(Packed::of(Kind::Endpoint, transport, body))),
        })
    }
}

impl DeviceAddress {
    /// Returns the IP address or the GID of the device, IPv4 mapped; `None` for transports of one
    /// host.
    fn ip(&self) -> Option<IpAddr> {
        let body = self.body();
        let octets = match self.transport() {
            TransportId::Tcp => body.get(4..)?.first_chunk::<16>()?,
            TransportId::Self_ | TransportId::Shm | TransportId::Cma => return None,
            _ => body.first_chunk::<16>()?,
        };
        Some(Ipv6Addr::from(*octets).to_canonical())
    }

    /// Returns the address and port of a `tcp` interface; `None` for other transports.
    #[cfg(feature = "tcp")]
    pub fn socket_address(&self) -> Option<SocketAddr> {
        if self.transport() == TransportId::Tcp { self.tcp_body().ok() } else { None }
    }

    /// Returns the address and port in the body of a `tcp` interface's address.
    ///
    /// # Errors
    /// The name of the field that is not valid.
    #[cfg(feature = "tcp")]
    pub(crate) fn tcp_body(&self) -> Result<SocketAddr, &'static str> {
        let Some((head, rest)) = self.body().split_first_chunk::<4>() else {
            return Err("address");
        };
        let (octets, port) = (rest.first_chunk::<16>(), u16::from_be_bytes([head[2], head[3]]));
        let Some(octets) = octets else { return Err("address") };
        let address = Ipv6Addr::from(*octets);
        let address = match (head[0], address.to_ipv4_mapped()) {
            (4, Some(address)) => IpAddr::V4(address),
            (6, None) => IpAddr::V6(address),
            _ => return Err("family"),
        };
        if port == 0 || head[1] != 0 {
            return Err("port");
        }
        if address.is_unspecified() || address.is_multicast() {
            return Err("address");
        }
        Ok(SocketAddr::new(address, port))
    }

    /// Returns whether the device has a loopback address, which leads to no other network
    /// namespace.
    pub fn is_loopback(&self) -> bool {
        self.ip().is_some_and(|ip| ip.is_loopback())
    }

    /// Returns bytes that identify the network namespace of the process that opened the device;
    /// `None` for transports that have no address in a network. Hosts have different namespaces.
    pub fn network(&self) -> Option<[u8; 6]> {
        self.ip()?;
        self.body().last_chunk().copied()
    }
}

impl fmt::Display for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.transport(), self.0.any_body().first_chunk::<16>()) {
            (TransportId::RcMlx5 | TransportId::RcVerbs, Some(gid)) => {
                write!(f, "{}", Ipv6Addr::from(*gid).to_canonical())
            }
            #[cfg(feature = "tcp")]
            (TransportId::Tcp, _) => match self.socket_address() {
                Some(address) => write!(f, "{address}"),
                None => write!(f, "{:?}", self.0),
            },
            _ => write!(f, "{:?}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Vec<u8> {
        DeviceAddress(Packed::new(Kind::Device, TransportId::RcMlx5, &[7; 30])).to_bytes()
    }

    #[test]
    fn golden_bytes_both_ways() {
        let bytes = sample();
        assert_eq!(bytes[..HEADER], [b'b', b'w', 1, b'D', 2, 30]);
        let back = DeviceAddress::from_bytes(&bytes).unwrap();
        assert_eq!(back.to_bytes(), bytes);
        assert_eq!(back.transport(), TransportId::RcMlx5);
    }

    fn peer(transport: TransportId, with_endpoint: bool) -> PeerAddress {
        let part = |kind, fill| {
            let body: Vec<u8> = (0..transport.body(kind) as u8).map(|at| at ^ fill).collect();
            Packed::of(kind, transport, &body)
        };
        let address = PeerAddress::of_interface(
            DeviceAddress(part(Kind::Device, 0x10)),
            InterfaceAddress(part(Kind::Interface, 0x20)),
        );
        let endpoint = EndpointAddress(part(Kind::Endpoint, 0x30));
        if with_endpoint { address.with_endpoint(endpoint) } else { address }
    }

    #[test]
    fn peers_of_every_transport_go_both_ways() {
        for &transport in TransportId::ALL {
            assert_eq!(TransportId::from_code(transport.code()), Some(transport));
            for with_endpoint in [false, true] {
                let address = peer(transport, with_endpoint);
                let bytes = address.to_bytes();
                assert_eq!(bytes[..5], [b'b', b'w', 1, b'P', transport.code()]);
                assert_eq!(usize::from(bytes[5]), bytes.len() - HEADER);
                let back = PeerAddress::from_bytes(&bytes).unwrap();
                assert_eq!((back, back.endpoint().is_some()), (address, with_endpoint));
                assert_eq!(
                    PeerAddress::new(*back.device(), *back.interface(), back.endpoint().copied()),
                    Ok(back)
                );
                for cut in 0..bytes.len() {
                    assert!(PeerAddress::from_bytes(&bytes[..cut]).is_err(), "{cut}");
                }
                let long = [&bytes[..], &[0]].concat();
                assert_eq!(PeerAddress::from_bytes(&long), Err(AddressError::Trailing(1)));
            }
        }
    }

    #[test]
    fn mixed_parts_are_refused() {
        let (shm, tcp) = (peer(TransportId::Shm, true), peer(TransportId::Tcp, true));
        let mixed = Err(AddressError::Mixed { device: TransportId::Shm, other: TransportId::Tcp });
        assert_eq!(PeerAddress::new(*shm.device(), *tcp.interface(), None), mixed);
        assert_eq!(
            PeerAddress::new(*shm.device(), *shm.interface(), tcp.endpoint().copied()),
            mixed
        );
        let mut bytes = shm.to_bytes();
        bytes[5] -= 1;
        bytes.pop();
        assert_eq!(
            PeerAddress::from_bytes(&bytes),
            Err(AddressError::Length { expected: 56, found: 55 })
        );
    }

    #[test]
    fn every_defect_is_named() {
        let bytes = sample();
        for cut in 0..bytes.len() {
            assert!(
                matches!(
                    DeviceAddress::from_bytes(&bytes[..cut]),
                    Err(AddressError::Truncated { .. })
                ),
                "{cut}"
            );
        }
        let with = |at: usize, value: u8| {
            let mut bytes = sample();
            bytes[at] = value;
            DeviceAddress::from_bytes(&bytes).unwrap_err()
        };
        assert_eq!(with(0, b'x'), AddressError::Foreign);
        assert_eq!(with(2, 9), AddressError::Version { found: 9 });
        assert_eq!(
            with(3, b'E'),
            AddressError::Kind { expected: Kind::Device, found: Kind::Endpoint }
        );
        assert_eq!(with(3, 0), AddressError::UnknownKind(0));
        assert_eq!(with(4, 200), AddressError::UnknownTransport(200));
        assert_eq!(with(5, 15), AddressError::Length { expected: 30, found: 15 });
        let mut long = sample();
        long.push(0);
        assert_eq!(DeviceAddress::from_bytes(&long), Err(AddressError::Trailing(1)));
        assert_eq!(DeviceAddress::from_bytes(b"xyz"), Err(AddressError::Foreign));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            for parsed in [
                DeviceAddress::from_bytes(&bytes).map(|a| a.to_bytes()),
                InterfaceAddress::from_bytes(&bytes).map(|a| a.to_bytes()),
                EndpointAddress::from_bytes(&bytes).map(|a| a.to_bytes()),
                PeerAddress::from_bytes(&bytes).map(|a| a.to_bytes()),
            ].into_iter().flatten() {
                prop_assert_eq!(&parsed, &bytes);
            }
        }

        #[test]
        fn one_changed_byte_is_parsed_or_named(at in 0usize..28, value: u8) {
            let mut bytes = sample();
            bytes[at] = value;
            if let Ok(address) = DeviceAddress::from_bytes(&bytes) {
                prop_assert_eq!(address.to_bytes(), bytes);
            }
        }
    }
}
