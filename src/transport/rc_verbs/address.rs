//! The bodies of this transport's addresses. Integers are big-endian.

use std::fmt;
use std::net::Ipv6Addr;

use barewire_verbs::{Gid, LinkLayer, Route};

use super::NAME;
use super::domain::Domain;
use crate::address::{
    AddressError, DeviceAddress, EndpointAddress, InterfaceAddress, Kind, Packed, TransportId,
};
use crate::error::ConnectError;

/// 24-bit numbers: QPN and PSN.
pub(super) const MASK24: u32 = 0x00ff_ffff;

/// Where a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortAddress {
    /// All zero for a port that goes by LID.
    pub(super) gid: Gid,
    pub(super) lid: u16,
}

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
    let mut body = [0; 24];
    if let Some(entry) = domain.gid() {
        body[..16].copy_from_slice(&entry.gid.0);
    }
    body[16..18].copy_from_slice(&domain.port().lid.to_be_bytes());
    DeviceAddress(Packed::new(Kind::Device, TransportId::RcVerbs, &body))
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
    let body = body::<24>(&address.0)?;
    let mut gid = [0; 16];
    gid.copy_from_slice(&body[..16]);
    Ok(PortAddress { gid: Gid(gid), lid: u16::from_be_bytes([body[16], body[17]]) })
}

impl PortAddress {
    /// The way there from a port of ours.
    pub(super) fn route(&self, domain: &Domain) -> Result<Route, ConnectError> {
        let number = domain.port().number;
        let unreachable = |reason: &str| ConnectError::Unreachable {
            transport: NAME,
            peer: self.to_string(),
            reason: reason.to_owned(),
        };
        match domain.gid() {
            Some(_) if self.gid == Gid([0; 16]) => {
                Err(unreachable("it is on InfiniBand, this port is on Ethernet"))
            }
            Some(own) => {
                let index =
                    u8::try_from(own.index).map_err(|_| unreachable("the own GID's index is beyond 255"))?;
                Ok(Route::to_gid(number, self.gid, index))
            }
            None if domain.port().link_layer == LinkLayer::Ethernet || self.lid == 0 => {
                Err(unreachable("it has no LID"))
            }
            None => Ok(Route::to_lid(number, self.lid)),
        }
    }
}

impl fmt::Display for PortAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.gid == Gid([0; 16]) {
            return write!(f, "LID {}", self.lid);
        }
        Ipv6Addr::from(self.gid.0).to_canonical().fmt(f)
    }
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
