//! The contents of addresses. Integers are big-endian.

use std::fmt;

use super::Driver;
use crate::base::address::{
    AddressError, DeviceAddress, EndpointAddress, InterfaceAddress, Kind, Packed,
};
use crate::base::error::ConnectError;
use crate::transport::rc::{PORT, Port};

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

pub(super) fn device<D: Driver>(port: D::Port) -> DeviceAddress {
    port.to_device(D::ID)
}

/// Returns the body of `packed`, if it is of this transport.
fn body<D: Driver, const N: usize>(packed: &Packed) -> Result<&[u8; N], ConnectError> {
    match (packed.transport(), packed.body()) {
        (id, Some(body)) if id == D::ID => Ok(body),
        (found, _) => Err(ConnectError::ForeignTransport { transport: D::ID, found }),
    }
}

pub(super) fn port<D: Driver>(address: &DeviceAddress) -> Result<D::Port, ConnectError> {
    D::Port::from_device(address, D::ID)
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

    pub(super) fn pack<D: Driver>(self) -> InterfaceAddress {
        InterfaceAddress(Packed::new(Kind::Interface, D::ID, &self.to_bytes()))
    }

    pub(super) fn unpack<D: Driver>(address: &InterfaceAddress) -> Result<Self, ConnectError> {
        Self::from_bytes(body::<D, INTERFACE>(&address.0)?).map_err(bad::<D>)
    }

    /// Packs it with the name of an endpoint of the interface.
    pub(super) fn pack_endpoint<D: Driver>(self, name: u32) -> EndpointAddress {
        let mut body = [0; 24];
        body[..INTERFACE].copy_from_slice(&self.to_bytes());
        body[INTERFACE..20].copy_from_slice(&name.to_be_bytes());
        EndpointAddress(Packed::new(Kind::Endpoint, D::ID, &body))
    }

    pub(super) fn unpack_endpoint<D: Driver>(
        address: &EndpointAddress,
    ) -> Result<(Self, u32), ConnectError> {
        let body = body::<D, 24>(&address.0)?;
        let (queue, rest) = body.split_first_chunk().unwrap_or((&[0; INTERFACE], &[]));
        let name = rest.first_chunk().map_or(0, |name| u32::from_be_bytes(*name));
        Ok((Self::from_bytes(queue).map_err(bad::<D>)?, name))
    }

    /// Returns the bytes that describe the local side in a connection request.
    pub(super) fn for_request<P: Port>(self, port: P) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..PORT].copy_from_slice(&port.to_bytes());
        bytes[PORT..28].copy_from_slice(&self.qpn.to_be_bytes());
        bytes[28] = self.log_mtu;
        bytes
    }

    /// Parses the bytes that describe `interface` in its connection request.
    pub(super) fn of_request<P: Port>(
        bytes: &[u8; 32],
        interface: u64,
    ) -> Result<(P, Self), AddressError> {
        let (port, rest) = bytes.split_first_chunk().unwrap_or((&[0; PORT], &[]));
        let mut body = [0; INTERFACE];
        if let Some(rest) = rest.first_chunk::<5>() {
            body[..5].copy_from_slice(rest);
        }
        body[8..].copy_from_slice(&interface.to_be_bytes());
        Ok((P::from_bytes(port), Self::from_bytes(&body)?))
    }
}

fn bad<D: Driver>(source: AddressError) -> ConnectError {
    ConnectError::Address { transport: D::ID, source }
}

/// A peer in error messages: its port, its queue pair and the endpoint there.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerName<P> {
    pub(super) port: P,
    pub(super) qpn: u32,
}

impl<P: fmt::Display> fmt::Display for PeerName<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} QP {:#08x}", self.port, self.qpn)
    }
}

#[cfg(all(test, feature = "mlx5"))]
mod tests {
    use barewire_mlx5::PortAddress;
    use proptest::prelude::*;

    use super::*;
    use crate::transport::ud_mlx5::UdMlx5;

    #[test]
    fn golden_bytes_both_ways() {
        let sample = QueueAddress { qpn: 0x48, log_mtu: 10, interface: 0x0102_0304_0506_0708 };
        let bytes = sample.pack::<UdMlx5>().to_bytes();
        assert_eq!(bytes[6..], [0, 0, 0, 0x48, 10, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let back = InterfaceAddress::from_bytes(&bytes).unwrap();
        assert_eq!(QueueAddress::unpack::<UdMlx5>(&back).unwrap(), sample);
        let bytes = sample.pack_endpoint::<UdMlx5>(0x090a_0b0c).to_bytes();
        assert_eq!(bytes[22..], [9, 10, 11, 12, 0, 0, 0, 0]);
        let back = EndpointAddress::from_bytes(&bytes).unwrap();
        let unpacked = QueueAddress::unpack_endpoint::<UdMlx5>(&back).unwrap();
        assert_eq!(unpacked, (sample, 0x090a_0b0c));
        let port = PortAddress { gid: [7; 16], mac: [1, 2, 3, 4, 5, 6], lid: 3 };
        let told = QueueAddress::of_request(&sample.for_request(port), sample.interface).unwrap();
        assert_eq!(told, (port, sample));
    }

    proptest! {
        #[test]
        fn arbitrary_bodies_are_read_or_named(body: [u8; INTERFACE], request: [u8; 32]) {
            let of_request = QueueAddress::of_request::<PortAddress>(&request, 1);
            for read in [QueueAddress::from_bytes(&body), of_request.map(|told| told.1)] {
                match read {
                    Ok(address) => {
                        prop_assert!(address.qpn <= MASK24);
                        prop_assert!((8..=12).contains(&address.log_mtu));
                    }
                    Err(error) => prop_assert!(matches!(error, AddressError::Field(_))),
                }
            }
        }
    }
}
