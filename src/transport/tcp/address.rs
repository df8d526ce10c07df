//! Addresses as peers exchange them.
//!
//! | kind | body |
//! |---|---|
//! | device | family (4 or 6), 0, port of the interface, address in 16 bytes, an IPv4 address mapped, network namespace |
//! | interface | its number |
//! | endpoint | the interface's number, its own |
//! | key | port of the domain's target or 0, the domain's number, the region's |

use std::net::{IpAddr, SocketAddr};

use super::ID;
use crate::base::address::{
    AddressError, DeviceAddress, EndpointAddress, InterfaceAddress, Kind, Packed, TransportId,
};
use crate::base::error::{ConnectError, KeyError};
use crate::base::network::{self, network};

/// Bytes of the body of a device address.
const DEVICE: usize = 20 + network::BYTES;

/// A key to a peer's region: the port and domain that serve it, and the region's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteKey {
    /// Zero if the peer's domain could not start its thread.
    pub(super) port: u16,
    pub(super) domain: u64,
    pub(super) token: u64,
}

/// The numbers of one end. Of two ends the one with the smaller numbers connects to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct End {
    pub(super) interface: u64,
    pub(super) endpoint: u64,
}

impl End {
    /// The endpoint with this count of endpoints opened before, in a slot of the interface.
    pub(super) fn new(interface: u64, opened: u32, slot: u32) -> Self {
        Self { interface, endpoint: u64::from(opened) << 32 | u64::from(slot) }
    }

    /// The endpoint's slot at its interface.
    pub(super) fn slot(self) -> u32 {
        self.endpoint as u32
    }
}

pub(super) fn device(address: SocketAddr) -> DeviceAddress {
    let mut body = [0; DEVICE];
    let (family, bytes) = match address.ip() {
        IpAddr::V4(address) => (4, address.to_ipv6_mapped().octets()),
        IpAddr::V6(address) => (6, address.octets()),
    };
    body[0] = family;
    body[2..4].copy_from_slice(&address.port().to_be_bytes());
    body[4..20].copy_from_slice(&bytes);
    body[20..].copy_from_slice(&network());
    DeviceAddress(Packed::new(Kind::Device, TransportId::Tcp, &body))
}

pub(super) fn interface(number: u64) -> InterfaceAddress {
    InterfaceAddress(Packed::new(Kind::Interface, TransportId::Tcp, &number.to_be_bytes()))
}

pub(super) fn endpoint(end: End) -> EndpointAddress {
    let body = u128::from(end.interface) << 64 | u128::from(end.endpoint);
    EndpointAddress(Packed::new(Kind::Endpoint, TransportId::Tcp, &body.to_be_bytes()))
}

fn body<const N: usize>(packed: &Packed) -> Result<&[u8; N], ConnectError> {
    match (packed.transport(), packed.body::<N>()) {
        (TransportId::Tcp, Some(body)) => Ok(body),
        (found, _) => Err(ConnectError::ForeignTransport { transport: ID, found }),
    }
}

/// The address that the peer's interface listens on.
pub(super) fn unpack_device(address: &DeviceAddress) -> Result<SocketAddr, ConnectError> {
    body::<DEVICE>(&address.0)?;
    address.tcp_body().map_err(|field| ConnectError::Address {
        transport: ID,
        source: AddressError::Field(field),
    })
}

pub(super) fn unpack_interface(address: &InterfaceAddress) -> Result<u64, ConnectError> {
    Ok(u64::from_be_bytes(*body::<8>(&address.0)?))
}

pub(super) fn unpack_endpoint(address: &EndpointAddress) -> Result<End, ConnectError> {
    let both = u128::from_be_bytes(*body::<16>(&address.0)?);
    Ok(End { interface: (both >> 64) as u64, endpoint: both as u64 })
}

pub(super) fn key(key: &RemoteKey) -> Packed {
    let mut body = [0; 18];
    body[..2].copy_from_slice(&key.port.to_be_bytes());
    body[2..10].copy_from_slice(&key.domain.to_be_bytes());
    body[10..].copy_from_slice(&key.token.to_be_bytes());
    Packed::new(Kind::Key, TransportId::Tcp, &body)
}

pub(super) fn unpack_key(bytes: &[u8]) -> Result<RemoteKey, KeyError> {
    let packed = Packed::parse(Kind::Key, bytes)?;
    let (TransportId::Tcp, Some(body)) = (packed.transport(), packed.body::<18>()) else {
        return Err(KeyError::ForeignTransport { expected: ID, found: packed.transport() });
    };
    let number = |at: usize| body[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    Ok(RemoteKey {
        port: u16::from_be_bytes([body[0], body[1]]),
        domain: number(2),
        token: number(10),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        for text in ["10.1.2.3:513", "[fd00::1]:513"] {
            let address: SocketAddr = text.parse().unwrap();
            let packed = device(address);
            assert_eq!(packed.to_bytes()[8..10], [2, 1]);
            assert_eq!(unpack_device(&packed).unwrap(), address);
            assert_eq!(packed.to_string(), text);
        }
        let end = End { interface: 1, endpoint: 0x0203 };
        let bytes = endpoint(end).to_bytes();
        assert_eq!(bytes[6..], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2, 3]);
        assert_eq!(unpack_endpoint(&endpoint(end)).unwrap(), end);
        let remote = RemoteKey { port: 0x0102, domain: 3, token: 4 };
        let packed = key(&remote);
        assert_eq!(packed.bytes()[6..9], [1, 2, 0]);
        assert_eq!(unpack_key(packed.bytes()), Ok(remote));
    }

    #[test]
    fn impossible_addresses_are_named() {
        let good = device("10.0.0.1:1".parse().unwrap()).to_bytes();
        for (at, value, field) in
            [(6, 5, "family"), (6, 6, "family"), (9, 0, "port"), (7, 1, "port")]
        {
            let mut bytes = good.clone();
            bytes[at] = value;
            let error = unpack_device(&DeviceAddress::from_bytes(&bytes).unwrap()).unwrap_err();
            assert!(error.to_string().contains(field), "{at}: {error}");
        }
        for nowhere in ["0.0.0.0:1", "[::]:1", "224.0.0.1:1"] {
            assert!(unpack_device(&device(nowhere.parse().unwrap())).is_err(), "{nowhere}");
        }
    }
}
