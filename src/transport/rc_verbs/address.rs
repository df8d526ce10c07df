//! The bodies of this transport's addresses. Integers are big-endian.

use std::fmt;

use super::NAME;
use crate::address::{
    AddressError, DeviceAddress, EndpointAddress, InterfaceAddress, Kind, Packed, TransportId,
};
use crate::error::ConnectError;
use crate::transport::rdma::{Domain, PortAddress};

/// 24-bit numbers: QPN and PSN.
pub(super) const MASK24: u32 = 0x00ff_ffff;

/// What an endpoint tells its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueAddress {
    pub(super) qpn: u32,
    /// Packet sequence number of its first request.
    pub(super) psn: u32,
    /// log2 of the path MTU in bytes.
    pub(super) log_mtu: u8,
    /// Reads and atomics in flight.
    pub(super) reads: u8,
    /// A word that the peer reads to flush what it wrote: address and key.
    pub(super) flush_address: u64,
    pub(super) flush_key: u32,
}

pub(super) fn device(domain: &Domain) -> DeviceAddress {
    DeviceAddress(Packed::new(Kind::Device, TransportId::RcVerbs, &PortAddress::of(domain).to_bytes()))
}

pub(super) fn interface() -> InterfaceAddress {
    InterfaceAddress(Packed::new(Kind::Interface, TransportId::RcVerbs, &[]))
}

/// `packed`'s body, if it is this transport's.
fn body<const N: usize>(packed: &Packed) -> Result<&[u8; N], ConnectError> {
    match (packed.transport(), packed.body()) {
        (TransportId::RcVerbs, Some(body)) => Ok(body),
        (other, _) => Err(ConnectError::ForeignTransport { transport: NAME, found: other.name() }),
    }
}

pub(super) fn port(address: &DeviceAddress) -> Result<PortAddress, ConnectError> {
    body(&address.0).map(PortAddress::from_bytes)
}

impl QueueAddress {
    pub(super) fn pack(&self) -> EndpointAddress {
        let mut body = [0; 24];
        body[..4].copy_from_slice(&self.qpn.to_be_bytes());
        body[4..8].copy_from_slice(&self.psn.to_be_bytes());
        body[8] = self.log_mtu;
        body[9] = self.reads;
        body[12..20].copy_from_slice(&self.flush_address.to_be_bytes());
        body[20..].copy_from_slice(&self.flush_key.to_be_bytes());
        EndpointAddress(Packed::new(Kind::Endpoint, TransportId::RcVerbs, &body))
    }

    pub(super) fn unpack(address: &EndpointAddress) -> Result<Self, ConnectError> {
        let body = body::<24>(&address.0)?;
        let word = |at: usize| u32::from_be_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
        let bad = |field| ConnectError::Address { transport: NAME, source: AddressError::Field(field) };
        let number = |at, field| Some(word(at)).filter(|n| *n <= MASK24).ok_or_else(|| bad(field));
        if !(8..=12).contains(&body[8]) {
            return Err(bad("MTU"));
        }
        Ok(Self {
            qpn: number(0, "QPN")?,
            psn: number(4, "PSN")?,
            log_mtu: body[8],
            reads: body[9],
            flush_address: u64::from(word(12)) << 32 | u64::from(word(16)),
            flush_key: word(20),
        })
    }
}

/// A peer in words: its port and queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) port: PortAddress,
    pub(super) qpn: u32,
}

impl fmt::Display for Peer {
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
        let sample = QueueAddress {
            qpn: 0x48,
            psn: 0x00ab_cdef,
            log_mtu: 10,
            reads: 8,
            flush_address: 0x0102_0304_0506_0708,
            flush_key: 0x1122_3344,
        };
        let bytes = sample.pack().to_bytes();
        let body =
            [0, 0, 0, 0x48, 0, 0xab, 0xcd, 0xef, 10, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x22, 0x33, 0x44];
        assert_eq!(bytes[6..], body);
        let back = EndpointAddress::from_bytes(&bytes).unwrap();
        assert_eq!(QueueAddress::unpack(&back).unwrap(), sample);
        assert_eq!(interface().to_bytes().len(), 6);
    }

    #[test]
    fn peers_are_told_as_people_write_them() {
        let port = PortAddress { gid: Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 1)), lid: 0 };
        assert_eq!(Peer { port, qpn: 0x48 }.to_string(), "10.0.0.1 QP 0x000048");
        let port = PortAddress { gid: Gid([0; 16]), lid: 7 };
        assert_eq!(Peer { port, qpn: 0x48 }.to_string(), "LID 7 QP 0x000048");
    }

    proptest! {
        #[test]
        fn arbitrary_bodies_are_read_or_named(body: [u8; 24]) {
            let packed = Packed::new(Kind::Endpoint, TransportId::RcVerbs, &body);
            match QueueAddress::unpack(&EndpointAddress(packed)) {
                Ok(address) => prop_assert!(address.qpn <= MASK24 && address.psn <= MASK24 && address.log_mtu <= 12),
                Err(error) => {
                    let named = matches!(
                        error,
                        ConnectError::Address { source: AddressError::Field(_), .. }
                    );
                    prop_assert!(named);
                }
            }
        }
    }
}
