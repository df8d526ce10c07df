//! Entries of the translation lists of indirect memory keys (mlx5 device.h and qp.h: `struct
//! mlx5_klm`, `struct mlx5_ksm`).

use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::be::{Be32, Be64};

/// A range of another memory key.
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
pub struct Klm {
    /// Bytes of the range; reserved in a KSM, whose ranges have the size given by the context.
    pub byte_count: Be32,
    /// The other key.
    pub key: Be32,
    /// Where the range starts, as the other key counts.
    pub address: Be64,
}

impl Klm {
    /// The `length` bytes at `address` of `key`.
    #[inline]
    pub const fn new(length: u32, key: u32, address: u64) -> Self {
        Self { byte_count: Be32::new(length), key: Be32::new(key), address: Be64::new(address) }
    }
}

const_assert_eq!(size_of::<Klm>(), 16);
const_assert_eq!(core::mem::offset_of!(Klm, key), 4);
const_assert_eq!(core::mem::offset_of!(Klm, address), 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_byte_for_byte() {
        let want = [0, 0, 1, 0, 0x12, 0x34, 0x56, 0x78, 0, 0, 0, 0, 0, 0, 0x20, 0];
        assert_eq!(Klm::new(0x100, 0x1234_5678, 0x2000).as_bytes(), want);
    }
}
