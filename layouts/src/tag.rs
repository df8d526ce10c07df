//! Headers at the start of messages to a shared receive queue with tag matching (XRQ).
//!
//! They are payload for the network. The sender's software writes them, the receiver's device reads
//! them. Sources: infiniband/tm_types.h `struct ibv_tmh`, `struct ibv_rvh`; UCX
//! rc_mlx5_common.h `struct ibv_ravh`.

use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::be::{Be32, Be64};
use crate::codes::codes;

/// The most bytes of the headers of a rendezvous message, with those of the program (linux
/// mlx5_ib.h: `MLX5_TM_MAX_RNDV_MSG_SIZE`).
pub const MAX_RENDEZVOUS_HEADER: usize = 64;

codes! {
    /// Kind of a message (tm_types.h: `enum ibv_tmh_op`).
    TagOpcode {
        /// It is not matched.
        NoTag = 0,
        /// A [`RendezvousHeader`] names the data, which the receiver reads.
        Rendezvous = 1,
        /// The receiver has read the data.
        Finished = 2,
        /// The data follows.
        Eager = 3,
    }
}

/// Tag matching header, TMH (tm_types.h: `struct ibv_tmh`).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct TagHeader {
    /// See [`TagOpcode::from_bits`].
    pub opcode: u8,
    /// Reserved. UCX stores data here.
    pub reserved: [u8; 3],
    /// A value of the sender, which the end of a rendezvous returns to it.
    pub application: Be32,
    /// The tag.
    pub tag: Be64,
}

impl TagHeader {
    /// A header with nothing in its reserved bytes.
    #[inline]
    pub const fn new(opcode: TagOpcode, application: u32, tag: u64) -> Self {
        Self {
            opcode: opcode as u8,
            reserved: [0; 3],
            application: Be32::new(application),
            tag: Be64::new(tag),
        }
    }

    /// Returns the bytes of the header.
    #[inline]
    pub fn to_bytes(self) -> [u8; size_of::<Self>()] {
        zerocopy::transmute!(self)
    }

    /// Reads a header.
    #[inline]
    pub fn from_bytes(bytes: [u8; size_of::<Self>()]) -> Self {
        zerocopy::transmute!(bytes)
    }
}

/// Rendezvous header, RVH: where the data is (tm_types.h: `struct ibv_rvh`).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct RendezvousHeader {
    /// The address at the sender.
    pub address: Be64,
    /// The key of the data.
    pub rkey: Be32,
    /// Its length in bytes.
    pub length: Be32,
}

impl RendezvousHeader {
    /// Reads a header from the start of `bytes`, and returns it with the rest; `None` if there are
    /// too few.
    #[inline]
    pub fn split_from(bytes: &[u8]) -> Option<(Self, &[u8])> {
        Self::read_from_prefix(bytes).ok()
    }
}

/// The sender's address for the read, RAVH. It follows the RVH on dynamic connections (UCX:
/// `struct ibv_ravh`).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct RendezvousAddress {
    /// Service level (8 bits), number of the DC target (24).
    pub level_dctn: Be32,
    /// Zero.
    pub reserved: Be32,
    /// The target's access key.
    pub access_key: Be64,
}

const_assert_eq!(size_of::<TagHeader>(), 16);
const_assert_eq!(core::mem::offset_of!(TagHeader, application), 4);
const_assert_eq!(core::mem::offset_of!(TagHeader, tag), 8);
const_assert_eq!(size_of::<RendezvousHeader>(), 16);
const_assert_eq!(core::mem::offset_of!(RendezvousHeader, rkey), 8);
const_assert_eq!(core::mem::offset_of!(RendezvousHeader, length), 12);
const_assert_eq!(size_of::<RendezvousAddress>(), 16);
const_assert_eq!(core::mem::offset_of!(RendezvousAddress, access_key), 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_byte_for_byte() {
        let header = TagHeader::new(TagOpcode::Rendezvous, 0x0102_0304, 0x0506_0708_090a_0b0c);
        let bytes = [1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        assert_eq!(header.as_bytes(), bytes);
        assert_eq!(TagHeader::read_from_bytes(&bytes).unwrap(), header);
        assert_eq!((header.to_bytes(), TagHeader::from_bytes(bytes)), (bytes, header));
        let data = RendezvousHeader {
            address: Be64::new(0x0102_0304_0506_0708),
            rkey: Be32::new(0x090a_0b0c),
            length: Be32::new(0x0d0e_0f10),
        };
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
        assert_eq!(data.as_bytes(), bytes);
        assert_eq!(RendezvousHeader::read_from_bytes(&bytes).unwrap(), data);
        assert_eq!(
            RendezvousHeader::split_from(&[&bytes[..], b"rest"].concat()),
            Some((data, &b"rest"[..]))
        );
        assert_eq!(RendezvousHeader::split_from(&bytes[1..]), None);
        let address = RendezvousAddress {
            level_dctn: Be32::new(0x0304_0506),
            reserved: Be32::ZERO,
            access_key: Be64::new(7),
        };
        let bytes = [3, 4, 5, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
        assert_eq!(address.as_bytes(), bytes);
        assert_eq!(RendezvousAddress::read_from_bytes(&bytes).unwrap(), address);
    }

    #[test]
    fn every_kind_decodes_to_itself() {
        let known = (0..=u8::MAX).filter_map(TagOpcode::from_bits).map(|opcode| opcode as u8);
        assert!(known.eq([0, 1, 2, 3]));
    }
}
