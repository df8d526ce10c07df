//! The contents of this transport's addresses. Integers are big-endian.

use std::fmt;

use super::ID;
use crate::address::{
    AddressError, DeviceAddress, EndpointAddress, InterfaceAddress, Kind, Packed, TransportId,
};
use crate::error::ConnectError;
use crate::transport::rdma::{Domain, PortAddress};

/// The bits of a 24-bit number.
const MASK24: u32 = 0x00ff_ffff;
/// Bytes of an interface's address.
const INTERFACE: usize = 16;

/// The address of an interface on its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueAddress {
    pub(super) qpn: u32,
    /// log2 of the longest packet in bytes.
    pub(super) log_mtu: u8,
    /// A random number that identifies the interface.
    pub(super) interface: u64,
}

pub(super) fn device(domain: &Domain) -> DeviceAddress {
    DeviceAddress(Packed::new(
        Kind::Device,
        TransportId::UdVerbs,
        &PortAddress::of(domain).to_bytes(),
    ))
}

/// Returns the body of `packed`, if it is of this transport.
fn body<const N: usize>(packed: &Packed) -> Result<&[u8; N], ConnectError> {
    match (packed.transport(), packed.body()) {
        (TransportId::UdVerbs, Some(body)) => Ok(body),
        (other, _) => Err(ConnectError::ForeignTransport { transport: ID, found: other }),
    }
}

pub(super) fn port(address: &DeviceAddress) -> Result<PortAddress, ConnectError> {
    body(&address.0).map(PortAddress::from_bytes)
}

impl QueueAddress {
    fn to_bytes(self) -> [u8; INTERFACE] {
        let mut body = [0; INTERFACE];
        body[..4].copy_from_slice(&self.qpn.to_be_bytes());
        body[4] = self.log_mtu;
        body[8..].copy_from_slice(&self.interface.to_be_bytes());
        body
    }

    fn from_bytes(body: &[u8; INTERFACE]) -> Result<Self, AddressError> {
        let [q0, q1, q2, q3, log_mtu, _, _, _, interface @ ..] = *body;
        let qpn = u32::from_be_bytes([q0, q1, q2, q3]);
        if qpn > MASK24 {
            return Err(AddressError::Field("QPN"));
        }
        if !(8..=12).contains(&log_mtu) {
            return Err(AddressError::Field("MTU"));
        }
        Ok(Self { qpn, log_mtu, interface: u64::from_be_bytes(interface) })
    }

    pub(super) fn pack(self) -> InterfaceAddress {
        InterfaceAddress(Packed::new(Kind::Interface, TransportId::UdVerbs, &self.to_bytes()))
    }

    pub(super) fn unpack(address: &InterfaceAddress) -> Result<Self, ConnectError> {
        Self::from_bytes(body(&address.0)?).map_err(bad)
    }

    /// Packs it with the name of an endpoint of the interface.
    pub(super) fn pack_endpoint(self, name: u32) -> EndpointAddress {
        let mut body = [0; 24];
        body[..INTERFACE].copy_from_slice(&self.to_bytes());
        body[INTERFACE..20].copy_from_slice(&name.to_be_bytes());
        EndpointAddress(Packed::new(Kind::Endpoint, TransportId::UdVerbs, &body))
    }

    pub(super) fn unpack_endpoint(address: &EndpointAddress) -> Result<(Self, u32), ConnectError> {
        let body = body::<24>(&address.0)?;
        let (queue, rest) = body.split_first_chunk().unwrap_or((&[0; INTERFACE], &[]));
        let name = rest.first_chunk().map_or(0, |name| u32::from_be_bytes(*name));
        Ok((Self::from_bytes(queue).map_err(bad)?, name))
    }

    /// Returns the bytes that describe the local side in a connection request.
    pub(super) fn for_request(self, port: PortAddress) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..PortAddress::LENGTH].copy_from_slice(&port.to_bytes());
        bytes[PortAddress::LENGTH..28].copy_from_slice(&self.qpn.to_be_bytes());
        bytes[28] = self.log_mtu;
        bytes
    }

    /// Parses the bytes that describe `interface` in its connection request.
    pub(super) fn of_request(
        bytes: &[u8; 32],
        interface: u64,
    ) -> Result<(PortAddress, Self), AddressError> {
        let (port, rest) = bytes.split_first_chunk().unwrap_or((&[0; PortAddress::LENGTH], &[]));
        let mut body = [0; INTERFACE];
        if let Some(rest) = rest.first_chunk::<5>() {
            body[..5].copy_from_slice(rest);
        }
        body[8..].copy_from_slice(&interface.to_be_bytes());
        Ok((PortAddress::from_bytes(port), Self::from_bytes(&body)?))
    }
}

fn bad(source: AddressError) -> ConnectError {
    ConnectError::Address { transport: ID, source }
}

/// A peer in error messages: its port, its queue pair and the endpoint there.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerName {
    pub(super) port: PortAddress,
    pub(super) qpn: u32,
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} QP {:#08x}", self.port, self.qpn)
    }
}

#[cfg(test)]
mod tests {
    use barewire_verbs::Gid;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        let sample = QueueAddress { qpn: 0x48, log_mtu: 10, interface: 0x0102_0304_0506_0708 };
        let bytes = sample.pack().to_bytes();
        assert_eq!(bytes[6..], [0, 0, 0, 0x48, 10, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(
            QueueAddress::unpack(&InterfaceAddress::from_bytes(&bytes).unwrap()).unwrap(),
            sample
        );
        let bytes = sample.pack_endpoint(0x090a_0b0c).to_bytes();
        assert_eq!(bytes[22..], [9, 10, 11, 12, 0, 0, 0, 0]);
        let back = EndpointAddress::from_bytes(&bytes).unwrap();
        assert_eq!(QueueAddress::unpack_endpoint(&back).unwrap(), (sample, 0x090a_0b0c));
        let port = PortAddress { gid: Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 1)), lid: 3 };
        let told = QueueAddress::of_request(&sample.for_request(port), sample.interface).unwrap();
        assert_eq!(told, (port, sample));
    }

    proptest! {
        #[test]
        fn arbitrary_bodies_are_read_or_named(body: [u8; INTERFACE], request: [u8; 32]) {
            for read in [QueueAddress::from_bytes(&body), QueueAddress::of_request(&request, 1).map(|told| told.1)] {
                match read {
                    Ok(address) => prop_assert!(address.qpn <= MASK24 && (8..=12).contains(&address.log_mtu)),
                    Err(error) => prop_assert!(matches!(error, AddressError::Field(_))),
                }
            }
        }
    }
}
