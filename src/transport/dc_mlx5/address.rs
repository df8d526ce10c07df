//! The contents of addresses. Integers are big-endian.

use barewire_mlx5::{Mtu, PortAddress};

use crate::base::address::{
    AddressError, DeviceAddress, EndpointAddress, InterfaceAddress, Kind, Packed, TransportId,
};
use crate::base::error::ConnectError;
use crate::transport::rc::{MASK24, Port as _};

/// The transport.
pub(crate) const ID: TransportId = TransportId::DcMlx5;
/// Version of messages and addresses: peers of another version are refused.
const VERSION: u8 = 1;

/// The address of an interface on its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TargetAddress {
    /// The number of the target.
    pub(super) target: u32,
    /// Its path MTU, as a code of the PRM.
    pub(super) mtu: u8,
    /// The key that it requires.
    pub(super) key: u64,
    /// Address and key of a word that the peer reads to flush what it wrote.
    pub(super) flush_address: u64,
    pub(super) flush_key: u32,
}

pub(super) fn device(port: PortAddress) -> DeviceAddress {
    port.to_device(ID)
}

/// Returns the body of `packed`, if it is of this transport.
fn body<const N: usize>(packed: &Packed) -> Result<&[u8; N], ConnectError> {
    match packed.body() {
        Some(body) if packed.transport() == ID => Ok(body),
        _ => Err(ConnectError::ForeignTransport { transport: ID, found: packed.transport() }),
    }
}

pub(super) fn port(address: &DeviceAddress) -> Result<PortAddress, ConnectError> {
    PortAddress::from_device(address, ID)
}

/// Returns the address of the endpoint with this number.
pub(super) fn endpoint(number: u32) -> EndpointAddress {
    EndpointAddress(Packed::new(Kind::Endpoint, ID, &u64::from(number).to_be_bytes()))
}

impl TargetAddress {
    pub(super) fn pack(&self) -> InterfaceAddress {
        InterfaceAddress(Packed::new(Kind::Interface, ID, &self.to_bytes()))
    }

    pub(super) fn unpack(address: &InterfaceAddress) -> Result<Self, ConnectError> {
        let bad = |source| ConnectError::Address { transport: ID, source };
        Self::from_bytes(body(&address.0)?).map_err(bad)
    }

    pub(super) fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&self.target.to_be_bytes());
        (bytes[4], bytes[5]) = (self.mtu, VERSION);
        bytes[8..16].copy_from_slice(&self.key.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.flush_address.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.flush_key.to_be_bytes());
        bytes
    }

    pub(super) fn from_bytes(body: &[u8; 32]) -> Result<Self, AddressError> {
        let bad = |field| Err(AddressError::Field(field));
        let [t0, t1, t2, t3, mtu, version, _, _, rest @ ..] = *body;
        let target = u32::from_be_bytes([t0, t1, t2, t3]);
        if target > MASK24 {
            return bad("DCT number");
        }
        if !(Mtu::Bytes256 as u8..=Mtu::Bytes4096 as u8).contains(&mtu) {
            return bad("MTU");
        }
        if version != VERSION {
            return bad("version of DC");
        }
        let (words, rest) = rest.as_chunks::<8>();
        let [key, flush_address, ..] = *words else { return bad("key") };
        let [f0, f1, f2, f3, ..] = words.get(2).copied().unwrap_or_default();
        debug_assert!(rest.is_empty());
        Ok(Self {
            target,
            mtu,
            key: u64::from_be_bytes(key),
            flush_address: u64::from_be_bytes(flush_address),
            flush_key: u32::from_be_bytes([f0, f1, f2, f3]),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        let sample = TargetAddress {
            target: 0x48,
            mtu: 5,
            key: 0x0102_0304_0506_0708,
            flush_address: 0x1112_1314_1516_1718,
            flush_key: 0x2122_2324,
        };
        let bytes = sample.pack().to_bytes();
        let (front, back) = bytes[6..].split_at(8);
        assert_eq!(front, [0, 0, 0, 0x48, 5, VERSION, 0, 0]);
        assert_eq!(back[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(back[8..16], [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        assert_eq!(back[16..], [0x21, 0x22, 0x23, 0x24, 0, 0, 0, 0]);
        let back = InterfaceAddress::from_bytes(&bytes).unwrap();
        assert_eq!(TargetAddress::unpack(&back).unwrap(), sample);
        assert_eq!(endpoint(7).to_bytes()[6..], [0, 0, 0, 0, 0, 0, 0, 7]);
    }

    proptest! {
        #[test]
        fn arbitrary_bodies_are_read_or_named(body: [u8; 32]) {
            match TargetAddress::from_bytes(&body) {
                Ok(read) => prop_assert!(read.target <= MASK24 && (1..=5).contains(&read.mtu)),
                Err(error) => prop_assert!(matches!(error, AddressError::Field(_))),
            }
        }
    }
}
