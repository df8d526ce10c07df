//! What a peer needs to know: the address of a queue pair, and that of memory. Both are bytes that
//! travel over any channel.

use core::array::TryFromSliceError;

use barewire_layouts::command::qp::Mtu;
use barewire_layouts::wqe::RemoteAddressSegment;

use crate::values::PortAddress;

/// Bytes that are not the address of a queue pair or of memory.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The number of bytes is wrong.
    #[error("{found} bytes are not {what}, which has {wanted}")]
    Length {
        /// The kind of address.
        what: &'static str,
        /// Bytes of such an address.
        wanted: usize,
        /// Bytes that were passed.
        found: usize,
    },
    /// A number does not fit its field.
    #[error("the {what} {value:#x} has more than 24 bits")]
    Range {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u32,
    },
    /// There is no path MTU of this number.
    #[error("{number} is no path MTU of the IBTA, whose numbers are 1 to 5")]
    Mtu {
        /// The number.
        number: u8,
    },
}

/// The address of a reliable connected queue pair, for the peer to connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RcAddress {
    /// The port.
    pub port: PortAddress,
    /// Queue pair number (24 bits).
    pub number: u32,
    /// The packet sequence number at which it starts to send (24 bits).
    pub psn: u32,
    /// The largest path MTU that its port carries.
    pub mtu: Mtu,
}

impl RcAddress {
    /// Size of [`Self::to_bytes`].
    pub const BYTES: usize = 33;

    /// The address as bytes: GID, MAC address, LID, queue pair number and packet sequence number,
    /// big-endian, and the number of the MTU. The peer may use another version of this crate: a
    /// version with another layout would have another length.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.port.gid);
        bytes[16..22].copy_from_slice(&self.port.mac);
        bytes[22..24].copy_from_slice(&self.port.lid.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.number.to_be_bytes());
        bytes[28..32].copy_from_slice(&self.psn.to_be_bytes());
        bytes[32] = self.mtu as u8;
        bytes
    }

    /// The address in bytes that [`Self::to_bytes`] of a peer returned.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, AddressError> {
        let bytes: &[u8; Self::BYTES] = sized("the address of a queue pair", bytes)?;
        let field = |what, at: usize| {
            let value =
                u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            if value >> 24 == 0 { Ok(value) } else { Err(AddressError::Range { what, value }) }
        };
        let mut port = PortAddress { gid: [0; 16], mac: [0; 6], lid: 0 };
        port.gid.copy_from_slice(&bytes[..16]);
        port.mac.copy_from_slice(&bytes[16..22]);
        port.lid = u16::from_be_bytes([bytes[22], bytes[23]]);
        let number = field("queue pair number", 24)?;
        let psn = field("packet sequence number", 28)?;
        let mtu = Mtu::try_from(bytes[32]).map_err(|_| AddressError::Mtu { number: bytes[32] })?;
        Ok(Self { port, number, psn, mtu })
    }
}

/// Registered memory, as its owner describes it to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// The key ([`MemoryRegion::rkey`](crate::MemoryRegion::rkey)).
    pub key: u32,
}

impl RemoteMemory {
    /// Size of [`Self::to_bytes`].
    pub const BYTES: usize = 20;

    /// The description as bytes: address, length and key, big-endian. As for
    /// [`RcAddress::to_bytes`], the peer may use another version.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_be_bytes());
        bytes[16..].copy_from_slice(&self.key.to_be_bytes());
        bytes
    }

    /// The description in bytes that [`Self::to_bytes`] of a peer returned. The peer's device
    /// checks the address, length and key of every access.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, AddressError> {
        let bytes: &[u8; Self::BYTES] = sized("the description of memory", bytes)?;
        let number = |range: core::ops::Range<usize>| {
            bytes[range].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        Ok(Self { address: number(0..8), length: number(8..16), key: number(16..20) as u32 })
    }

    /// The segment for an access to `length` bytes at `offset`. `None` if they do not lie in the
    /// memory.
    #[inline]
    pub fn segment(&self, offset: u64, length: u64) -> Option<RemoteAddressSegment> {
        let end = offset.checked_add(length)?;
        (end <= self.length)
            .then(|| RemoteAddressSegment::new(self.address.wrapping_add(offset), self.key))
    }
}

fn sized<'b, const N: usize>(
    what: &'static str,
    bytes: &'b [u8],
) -> Result<&'b [u8; N], AddressError> {
    let wrong = |_: TryFromSliceError| AddressError::Length { what, wanted: N, found: bytes.len() };
    bytes.try_into().map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_their_bytes() {
        let mut bytes: [u8; RcAddress::BYTES] = core::array::from_fn(|at| at as u8);
        (bytes[24], bytes[28], bytes[32]) = (0, 0, 3);
        let address = RcAddress::from_bytes(&bytes).unwrap();
        assert_eq!((address.port.lid, address.number, address.psn), (0x1617, 0x19_1a1b, 0x1d_1e1f));
        assert_eq!(address.port.mac, [16, 17, 18, 19, 20, 21]);
        assert_eq!(address.mtu, Mtu::Bytes1024);
        assert_eq!(address.to_bytes(), bytes);
        bytes[28] = 1;
        let wrong = AddressError::Range { what: "packet sequence number", value: 0x011d_1e1f };
        assert_eq!(RcAddress::from_bytes(&bytes), Err(wrong));
        bytes[28] = 0;
        for number in [0, 6, 255] {
            bytes[32] = number;
            assert_eq!(RcAddress::from_bytes(&bytes), Err(AddressError::Mtu { number }));
        }
        for length in [0, 32, 34] {
            assert!(RcAddress::from_bytes(&vec![0; length]).is_err());
        }
    }

    #[test]
    fn memory_is_its_bytes_and_has_an_end() {
        let bytes: [u8; RemoteMemory::BYTES] = core::array::from_fn(|at| at as u8);
        let memory = RemoteMemory::from_bytes(&bytes).unwrap();
        assert_eq!(memory.to_bytes(), bytes);
        assert_eq!((memory.address, memory.key), (0x0001_0203_0405_0607, 0x1011_1213));
        assert!(RemoteMemory::from_bytes(&bytes[1..]).is_err());
        let memory = RemoteMemory { length: 100, ..memory };
        assert_eq!(
            memory.segment(4, 96),
            Some(RemoteAddressSegment::new(0x0001_0203_0405_060b, 0x1011_1213))
        );
        assert!(memory.segment(100, 0).is_some());
        assert_eq!(memory.segment(4, 97), None);
        assert_eq!(memory.segment(u64::MAX, 2), None);
    }
}
