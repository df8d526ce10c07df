//! The contents of addresses. Integers are big-endian.

use std::fmt;

use super::{Driver, Port};
use crate::base::address::{
    AddressError, DeviceAddress, EndpointAddress, InterfaceAddress, Kind, MAX_BODY, Packed,
};
use crate::base::error::ConnectError;

/// 24-bit numbers: QPN and PSN.
pub(crate) const MASK24: u32 = 0x00ff_ffff;

/// What a driver adds to the address of an endpoint.
pub(crate) trait Tail: Copy + fmt::Debug + PartialEq {
    /// Number of bytes.
    const BYTES: usize;

    /// Writes the bytes to `bytes`, which has [`Self::BYTES`].
    fn write(&self, bytes: &mut [u8]);

    /// Reads [`Self::BYTES`] bytes.
    ///
    /// # Errors
    /// The name of a field with an invalid value.
    fn read(bytes: &[u8]) -> Result<Self, &'static str>;
}

impl Tail for () {
    const BYTES: usize = 0;

    fn write(&self, _bytes: &mut [u8]) {}

    fn read(_bytes: &[u8]) -> Result<Self, &'static str> {
        Ok(())
    }
}

/// Bytes of an endpoint's address in front of its tail.
const FRONT: usize = 24;

/// The address of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueAddress<T = ()> {
    pub(crate) qpn: u32,
    /// Packet sequence number of its first request.
    pub(crate) psn: u32,
    /// Path MTU, in the driver's code.
    pub(crate) mtu: u8,
    /// Reads and atomics in flight, in the driver's code.
    pub(crate) reads: u8,
    /// Address and key of a word that the peer reads to flush what it wrote.
    pub(crate) flush_address: u64,
    pub(crate) flush_key: u32,
    /// What the driver adds.
    pub(crate) tail: T,
}

pub(super) fn device<D: Driver>(port: D::Port) -> DeviceAddress {
    port.to_device(D::ID)
}

/// Returns the interface's address, which is empty: endpoints connect to endpoints.
pub(super) fn interface<D: Driver>() -> InterfaceAddress {
    InterfaceAddress(Packed::new(Kind::Interface, D::ID, &[]))
}

/// Returns the body of `packed`, if it is of this transport.
pub(crate) fn body<D: Driver, const N: usize>(packed: &Packed) -> Result<&[u8; N], ConnectError> {
    match packed.body() {
        Some(body) if packed.transport() == D::ID => Ok(body),
        _ => Err(ConnectError::ForeignTransport { transport: D::ID, found: packed.transport() }),
    }
}

pub(crate) fn port<D: Driver>(address: &DeviceAddress) -> Result<D::Port, ConnectError> {
    D::Port::from_device(address, D::ID)
}

impl<T: Tail> QueueAddress<T> {
    pub(super) fn pack<D: Driver<Tail = T>>(&self) -> EndpointAddress {
        let mut bytes = [0; MAX_BODY];
        let (body, tail) = bytes.split_at_mut(FRONT);
        body[..4].copy_from_slice(&self.qpn.to_be_bytes());
        body[4..8].copy_from_slice(&self.psn.to_be_bytes());
        body[8] = self.mtu;
        body[9] = self.reads;
        body[12..20].copy_from_slice(&self.flush_address.to_be_bytes());
        body[20..].copy_from_slice(&self.flush_key.to_be_bytes());
        self.tail.write(&mut tail[..T::BYTES]);
        EndpointAddress(Packed::of(Kind::Endpoint, D::ID, &bytes[..FRONT + T::BYTES]))
    }

    pub(super) fn unpack<D: Driver<Tail = T>>(
        address: &EndpointAddress,
    ) -> Result<Self, ConnectError> {
        let (transport, body) = (address.transport(), address.body());
        if transport != D::ID || body.len() != FRONT + T::BYTES {
            return Err(ConnectError::ForeignTransport { transport: D::ID, found: transport });
        }
        let (body, tail) = body.split_at(FRONT);
        let word =
            |at: usize| u32::from_be_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
        let bad =
            |field| ConnectError::Address { transport: D::ID, source: AddressError::Field(field) };
        let number = |at, field| Some(word(at)).filter(|n| *n <= MASK24).ok_or_else(|| bad(field));
        let code = |at: usize, codes: std::ops::RangeInclusive<u8>, field| {
            Some(body[at]).filter(|code| codes.contains(code)).ok_or_else(|| bad(field))
        };
        Ok(Self {
            qpn: number(0, "QPN")?,
            psn: number(4, "PSN")?,
            mtu: code(8, D::MTU_CODES, "MTU")?,
            reads: code(9, D::READS_CODES, "reads")?,
            flush_address: u64::from(word(12)) << 32 | u64::from(word(16)),
            flush_key: word(20),
            tail: T::read(tail).map_err(bad)?,
        })
    }
}

/// A peer in error messages: its port and queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer<P> {
    pub(super) port: P,
    pub(super) qpn: u32,
}

impl<P: Port> fmt::Display for Peer<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} QP {:#08x}", self.port, self.qpn)
    }
}

#[cfg(all(test, feature = "mlx5"))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::transport::rc_mlx5::{RcMlx5, TagNumber};
    #[cfg(feature = "verbs")]
    use crate::transport::rc_verbs::RcVerbs;

    /// The bytes of an endpoint's address with these codes.
    fn golden_bytes<D: Driver>(mtu: u8, reads: u8, tail: D::Tail, after: &[u8]) {
        let sample = QueueAddress {
            qpn: 0x48,
            psn: 0x00ab_cdef,
            mtu,
            reads,
            flush_address: 0x0102_0304_0506_0708,
            flush_key: 0x1122_3344,
            tail,
        };
        let bytes = sample.pack::<D>().to_bytes();
        let [front, back] = [[0, 0, 0, 0x48, 0, 0xab, 0xcd, 0xef], [mtu, reads, 0, 0, 1, 2, 3, 4]];
        assert_eq!(bytes[6..22], [front, back].concat());
        assert_eq!(bytes[22..], [&[5, 6, 7, 8, 0x11, 0x22, 0x33, 0x44], after].concat());
        let back = EndpointAddress::from_bytes(&bytes).unwrap();
        assert_eq!(QueueAddress::unpack::<D>(&back).unwrap(), sample);
        assert_eq!(interface::<D>().to_bytes().len(), 6);
    }

    #[test]
    fn golden_bytes_both_ways() {
        // MTU 1024 and 8 reads.
        golden_bytes::<RcMlx5>(3, 3, TagNumber(0x0001_0203), &[0, 1, 2, 3]);
        #[cfg(feature = "verbs")]
        golden_bytes::<RcVerbs>(10, 8, (), &[]);
    }

    #[test]
    fn ports_of_devices_both_ways() {
        let address = barewire_mlx5::PortAddress {
            gid: *b"0123456789abcdef",
            mac: [1, 2, 3, 4, 5, 6],
            lid: 7,
        };
        let bytes = device::<RcMlx5>(address).to_bytes();
        assert_eq!(bytes[6..30], *b"0123456789abcdef\x01\x02\x03\x04\x05\x06\x00\x07");
        assert_eq!(bytes[30..], crate::base::address::network());
        let back = DeviceAddress::from_bytes(&bytes).unwrap();
        assert_eq!(port::<RcMlx5>(&back).unwrap(), address);
    }

    #[test]
    fn a_loopback_address_of_another_network_namespace_is_unreachable() {
        let mut address =
            barewire_mlx5::PortAddress { gid: [0; 16], mac: [1, 2, 3, 4, 5, 6], lid: 0 };
        for (ip, leads_away) in [("127.7.0.1", false), ("::1", false), ("10.0.0.1", true)] {
            let ip: std::net::IpAddr = ip.parse().unwrap();
            address.gid = match ip {
                std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                std::net::IpAddr::V6(ip) => ip.octets(),
            };
            let mut bytes = device::<RcMlx5>(address).to_bytes();
            let here = DeviceAddress::from_bytes(&bytes).unwrap();
            assert_eq!(port::<RcMlx5>(&here).unwrap(), address);
            bytes[35] ^= 1;
            let there = port::<RcMlx5>(&DeviceAddress::from_bytes(&bytes).unwrap());
            match there {
                Ok(port) => assert!(leads_away && port == address),
                Err(error) => {
                    assert!(!leads_away && error.to_string().contains("loopback"), "{error}");
                }
            }
        }
    }

    #[test]
    fn peers_are_named_as_people_write_them() {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 127, 1, 2, 3]);
        let port = barewire_mlx5::PortAddress { gid, mac: [0; 6], lid: 0 };
        assert_eq!(Peer { port, qpn: 0x48 }.to_string(), "127.1.2.3 QP 0x000048");
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn peers_over_verbs_are_named_as_people_write_them() {
        use crate::transport::rdma::PortAddress;
        use barewire_verbs::Gid;

        let port = PortAddress { gid: Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 1)), lid: 0 };
        assert_eq!(Peer { port, qpn: 0x48 }.to_string(), "10.0.0.1 QP 0x000048");
        let port = PortAddress { gid: Gid([0; 16]), lid: 7 };
        assert_eq!(Peer { port, qpn: 0x48 }.to_string(), "LID 7 QP 0x000048");
    }

    /// Reads `body` as an endpoint's address: it is within the limits, or the error names the
    /// field.
    fn read_or_name<D: Driver>(body: &[u8]) -> Result<(), TestCaseError> {
        let packed = Packed::of(Kind::Endpoint, D::ID, body);
        match QueueAddress::unpack::<D>(&EndpointAddress(packed)) {
            Ok(address) => {
                prop_assert!(address.qpn <= MASK24 && address.psn <= MASK24);
                prop_assert!(
                    D::MTU_CODES.contains(&address.mtu) && D::READS_CODES.contains(&address.reads)
                );
            }
            Err(error) => {
                let named =
                    matches!(error, ConnectError::Address { source: AddressError::Field(_), .. });
                prop_assert!(named);
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn arbitrary_bodies_are_read_or_named(body: [u8; 28]) {
            read_or_name::<RcMlx5>(&body)?;
            #[cfg(feature = "verbs")]
            read_or_name::<RcVerbs>(&body[..24])?;
        }
    }
}
