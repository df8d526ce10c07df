//! Addresses: versioned bytes that one process hands to another.
//!
//! | byte | meaning |
//! |---|---|
//! | 0..2 | `b"bw"` |
//! | 2 | version of this layout, 1 |
//! | 3 | kind: device, interface, endpoint, key |
//! | 4 | transport |
//! | 5 | length of the body in bytes |
//! | 6.. | body, defined by the transport, integers big-endian |

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use thiserror::Error;

use crate::transport::table::transports;

/// Bytes before the body.
const HEADER: usize = 6;
const MAGIC: [u8; 2] = *b"bw";
const VERSION: u8 = 1;
/// No body is longer; addresses live inline.
const MAX_BODY: usize = 40;

/// Why bytes are not an address (or a key).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Cut short.
    #[error("truncated: {got} bytes of at least {need}")]
    Truncated {
        /// Bytes given.
        got: usize,
        /// Bytes needed.
        need: usize,
    },
    /// Not written by barewire.
    #[error("foreign: it does not start with \"bw\"")]
    Foreign,
    /// Written by a version with another layout.
    #[error("version {found}, this library reads version {VERSION}")]
    Version {
        /// The version found.
        found: u8,
    },
    /// An address of another kind, for example a device address where an endpoint address belongs.
    #[error("a {found} where a {expected} belongs")]
    Kind {
        /// The kind asked for.
        expected: Kind,
        /// The kind found.
        found: Kind,
    },
    /// A kind this library does not know.
    #[error("unknown kind {0:#04x}")]
    UnknownKind(u8),
    /// A transport this library does not know.
    #[error("unknown transport {0:#04x}")]
    UnknownTransport(u8),
    /// The body has another length than the transport writes.
    #[error("a body of {found} bytes, the transport writes {expected}")]
    Length {
        /// Bytes that the transport writes.
        expected: usize,
        /// Bytes found.
        found: usize,
    },
    /// More bytes than the address has.
    #[error("{0} bytes too many at the end")]
    Trailing(usize),
    /// A field has a value that cannot be.
    #[error("field {0} has an impossible value")]
    Field(&'static str),
}

/// What the bytes name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A device: where packets go.
    Device,
    /// An interface on a device.
    Interface,
    /// One end of a connection.
    Endpoint,
    /// A remote key.
    Key,
}

impl Kind {
    const fn code(self) -> u8 {
        match self {
            Self::Device => b'D',
            Self::Interface => b'I',
            Self::Endpoint => b'E',
            Self::Key => b'K',
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        match code {
            b'D' => Some(Self::Device),
            b'I' => Some(Self::Interface),
            b'E' => Some(Self::Endpoint),
            b'K' => Some(Self::Key),
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
        })
    }
}

transports!(ids!
    /// A transport. Its name is what [`Domain::open`](crate::Domain::open) takes.
    ///
    /// ```
    /// use barewire::TransportId;
    ///
    /// assert_eq!("shm".parse(), Ok(TransportId::Shm));
    /// assert_eq!(TransportId::Shm.to_string(), "shm");
    /// ```
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    #[repr(u8)]
    pub enum TransportId
);

impl fmt::Display for TransportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl AsRef<str> for TransportId {
    fn as_ref(&self) -> &str {
        self.name()
    }
}

impl FromStr for TransportId {
    type Err = UnknownTransport;

    fn from_str(name: &str) -> Result<Self, UnknownTransport> {
        Self::ALL.iter().copied().find(|id| id.name() == name).ok_or(UnknownTransport)
    }
}

/// A name that is no transport's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("there is no transport of this name")]
pub struct UnknownTransport;

/// Checked bytes of one kind and transport.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Packed {
    bytes: [u8; HEADER + MAX_BODY],
    len: u8,
}

impl Packed {
    /// Writes the header and `body`; the body's length is the transport's for this kind.
    pub(crate) fn new<const N: usize>(kind: Kind, transport: TransportId, body: &[u8; N]) -> Self {
        const { assert!(N <= MAX_BODY) };
        debug_assert_eq!(N, transport.body(kind));
        let mut bytes = [0; HEADER + MAX_BODY];
        bytes[..HEADER].copy_from_slice(&[
            MAGIC[0],
            MAGIC[1],
            VERSION,
            kind.code(),
            transport as u8,
            N as u8,
        ]);
        bytes[HEADER..HEADER + N].copy_from_slice(body);
        Self { bytes, len: (HEADER + N) as u8 }
    }

    /// Checks bytes that came from elsewhere.
    pub(crate) fn parse(kind: Kind, bytes: &[u8]) -> Result<Self, AddressError> {
        let Some((header, body)) = bytes.split_first_chunk::<HEADER>() else {
            // Foreign bytes are named as such even when they are short.
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
        let transport = TransportId::from_code(header[4]).ok_or(AddressError::UnknownTransport(header[4]))?;
        let expected = transport.body(kind);
        if usize::from(header[5]) != expected {
            return Err(AddressError::Length { expected, found: header[5].into() });
        }
        if body.len() < expected {
            return Err(AddressError::Truncated { got: bytes.len(), need: HEADER + expected });
        }
        if body.len() > expected {
            return Err(AddressError::Trailing(body.len() - expected));
        }
        let mut copy = [0; HEADER + MAX_BODY];
        copy[..bytes.len()].copy_from_slice(bytes);
        Ok(Self { bytes: copy, len: bytes.len() as u8 })
    }

    pub(crate) fn transport(&self) -> TransportId {
        // Both constructors wrote a known code.
        TransportId::from_code(self.bytes[4]).unwrap_or(TransportId::Self_)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }

    /// The body, if it has `N` bytes.
    pub(crate) fn body<const N: usize>(&self) -> Option<&[u8; N]> {
        self.bytes()[HEADER..].try_into().ok()
    }
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the body, which has a secret over some transports.
        write!(f, "{}, {} bytes", self.transport().name(), self.len)
    }
}

macro_rules! address {
    ($(#[$doc:meta])* $name:ident, $kind:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub(crate) Packed);

        impl $name {
            /// The bytes to send to the peer by any means.
            pub fn to_bytes(&self) -> Vec<u8> {
                self.0.bytes().to_vec()
            }

            /// Checks bytes that came from the peer.
            ///
            /// # Errors
            /// [`AddressError`] names what is wrong: truncated, foreign, another version, kind or
            /// transport, bytes too many.
            pub fn from_bytes(bytes: &[u8]) -> Result<Self, AddressError> {
                Packed::parse(Kind::$kind, bytes).map(Self)
            }

            /// The transport this address is for.
            pub fn transport(&self) -> &'static str {
                self.0.transport().name()
            }
        }
    };
}

address!(
    /// Where a device is reached: a RoCE GID, or the process for `self`. Displays as people write it.
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

impl fmt::Display for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.transport(), self.0.bytes()[HEADER..].first_chunk::<16>()) {
            (TransportId::RcMlx5 | TransportId::RcVerbs, Some(gid)) => {
                write!(f, "{}", Ipv6Addr::from(*gid).to_canonical())
            }
            (TransportId::Tcp, _) => match crate::transport::tcp::socket_address(self) {
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
        DeviceAddress(Packed::new(Kind::Device, TransportId::RcMlx5, &[7; 24])).to_bytes()
    }

    #[test]
    fn golden_bytes_both_ways() {
        let bytes = sample();
        assert_eq!(bytes[..HEADER], [b'b', b'w', 1, b'D', 2, 24]);
        let back = DeviceAddress::from_bytes(&bytes).unwrap();
        assert_eq!(back.to_bytes(), bytes);
        assert_eq!(back.transport(), "rc_mlx5");
    }

    #[test]
    fn every_defect_is_named() {
        let bytes = sample();
        for cut in 0..bytes.len() {
            assert!(
                matches!(DeviceAddress::from_bytes(&bytes[..cut]), Err(AddressError::Truncated { .. })),
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
        assert_eq!(with(3, b'E'), AddressError::Kind { expected: Kind::Device, found: Kind::Endpoint });
        assert_eq!(with(3, 0), AddressError::UnknownKind(0));
        assert_eq!(with(4, 200), AddressError::UnknownTransport(200));
        assert_eq!(with(5, 15), AddressError::Length { expected: 24, found: 15 });
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
