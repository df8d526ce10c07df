//! The bodies of this transport's addresses. Integers are big-endian.

use std::fmt;
use std::net::Ipv6Addr;

use barewire_mlx5::{Mtu, PortAddress};

use super::NAME;
use crate::address::{
    AddressError, DeviceAddress, EndpointAddress, InterfaceAddress, Kind, Packed, TransportId,
};
use crate::error::ConnectError;

/// 24-bit numbers: QPN and PSN.
const MASK24: u32 = 0x00ff_ffff;

/// What an endpoint tells its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueAddress {
    pub(super) qpn: u32,
    /// Packet sequence number of its first request.
    pub(super) psn: u32,
    pub(super) mtu: Mtu,
    /// Reads and atomics in flight, as log2.
    pub(super) log_max_reads: u8,
    /// A word that the peer reads to flush what it wrote: address and key.
    pub(super) flush_address: u64,
    pub(super) flush_key: u32,
}

pub(super) fn device(port: PortAddress) -> DeviceAddress {
    let mut body = [0; 24];
    body[..16].copy_from_slice(&port.gid);
    body[16..22].copy_from_slice(&port.mac);
    body[22..].copy_from_slice(&port.lid.to_be_bytes());
    DeviceAddress(Packed::new(Kind::Device, TransportId::RcMlx5, &body))
}

pub(super) fn interface() -> InterfaceAddress {
    InterfaceAddress(Packed::new(Kind::Interface, TransportId::RcMlx5, &[]))
}

/// `packed`'s body, if it is this transport's.
fn body<const N: usize>(packed: &Packed) -> Result<&[u8; N], ConnectError> {
    match (packed.transport(), packed.body()) {
        (TransportId::RcMlx5, Some(body)) => Ok(body),
        (other, _) => Err(ConnectError::ForeignTransport { transport: NAME, found: other.name() }),
    }
}

pub(super) fn port(address: &DeviceAddress) -> Result<PortAddress, ConnectError> {
    let body = body::<24>(&address.0)?;
    let lid = u16::from_be_bytes([body[22], body[23]]);
    let mut port = PortAddress { gid: [0; 16], mac: [0; 6], lid };
    port.gid.copy_from_slice(&body[..16]);
    port.mac.copy_from_slice(&body[16..22]);
    Ok(port)
}

impl QueueAddress {
    pub(super) fn pack(&self) -> EndpointAddress {
        let mut body = [0; 24];
        body[..4].copy_from_slice(&self.qpn.to_be_bytes());
        body[4..8].copy_from_slice(&self.psn.to_be_bytes());
        body[8] = self.mtu as u8;
        body[9] = self.log_max_reads;
        body[12..20].copy_from_slice(&self.flush_address.to_be_bytes());
        body[20..].copy_from_slice(&self.flush_key.to_be_bytes());
        EndpointAddress(Packed::new(Kind::Endpoint, TransportId::RcMlx5, &body))
    }

    pub(super) fn unpack(address: &EndpointAddress) -> Result<Self, ConnectError> {
        let body = body::<24>(&address.0)?;
        let word = |at: usize| u32::from_be_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
        let bad = |field| ConnectError::Address { transport: NAME, source: AddressError::Field(field) };
        let number = |at, field| Some(word(at)).filter(|n| *n <= MASK24).ok_or_else(|| bad(field));
        if body[9] > 7 {
            return Err(bad("reads"));
        }
        Ok(Self {
            qpn: number(0, "QPN")?,
            psn: number(4, "PSN")?,
            mtu: mtu_from_code(body[8]).ok_or_else(|| bad("MTU"))?,
            log_max_reads: body[9],
            flush_address: u64::from(word(12)) << 32 | u64::from(word(16)),
            flush_key: word(20),
        })
    }
}

const MTUS: [(Mtu, u32); 5] = [
    (Mtu::Bytes256, 256),
    (Mtu::Bytes512, 512),
    (Mtu::Bytes1024, 1024),
    (Mtu::Bytes2048, 2048),
    (Mtu::Bytes4096, 4096),
];

fn mtu_from_code(code: u8) -> Option<Mtu> {
    MTUS.iter().map(|(mtu, _)| *mtu).find(|mtu| *mtu as u8 == code)
}

pub(super) fn mtu_from_bytes(bytes: u32) -> Option<Mtu> {
    MTUS.iter().find(|(_, b)| *b == bytes).map(|(mtu, _)| *mtu)
}

/// A peer in words: its device and queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) gid: [u8; 16],
    pub(super) qpn: u32,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = Ipv6Addr::from(self.gid).to_canonical();
        write!(f, "{ip} QP {:#08x}", self.qpn)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> QueueAddress {
        QueueAddress {
            qpn: 0x48,
            psn: 0x00ab_cdef,
            mtu: Mtu::Bytes1024,
            log_max_reads: 3,
            flush_address: 0x0102_0304_0506_0708,
            flush_key: 0x1122_3344,
        }
    }

    #[test]
    fn golden_bytes_both_ways() {
        let bytes = sample().pack().to_bytes();
        let body =
            [0, 0, 0, 0x48, 0, 0xab, 0xcd, 0xef, 3, 3, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x22, 0x33, 0x44];
        assert_eq!(bytes[6..], body);
        let back = EndpointAddress::from_bytes(&bytes).unwrap();
        assert_eq!(QueueAddress::unpack(&back).unwrap(), sample());

        let port_address = PortAddress { gid: *b"0123456789abcdef", mac: [1, 2, 3, 4, 5, 6], lid: 7 };
        let back = DeviceAddress::from_bytes(&device(port_address).to_bytes()).unwrap();
        assert_eq!(port(&back).unwrap(), port_address);
        assert_eq!(interface().to_bytes().len(), 6);
    }

    #[test]
    fn peers_are_told_as_people_write_them() {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 127, 1, 2, 3]);
        assert_eq!(Peer { gid, qpn: 0x48 }.to_string(), "127.1.2.3 QP 0x000048");
    }

    proptest! {
        #[test]
        fn arbitrary_bodies_are_read_or_named(body: [u8; 24]) {
            let packed = Packed::new(Kind::Endpoint, TransportId::RcMlx5, &body);
            match QueueAddress::unpack(&EndpointAddress(packed)) {
                Ok(address) => {
                    prop_assert!(address.qpn <= MASK24 && address.psn <= MASK24 && address.log_max_reads <= 7);
                }
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
