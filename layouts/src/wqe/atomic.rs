//! Operands of atomic operations.
//!
//! The extended atomics work on 4 or 8 bytes and under masks; the opcode modifier gives the width.
//! Sources: mlx5dv.h `struct mlx5_wqe_atomic_seg`, rdma-core wqe.h `struct
//! mlx5_wqe_masked_atomic_seg`, UCX `uct_ib_mlx5_atomic_masked_*_seg` and
//! `UCT_IB_MLX5_OPMOD_EXT_ATOMIC`.

use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::be::{Be32, Be64};

/// The opcode modifier of an extended atomic on `1 << log_bytes` bytes; devices support 2 and 3.
#[inline]
pub const fn extended_atomic_modifier(log_bytes: u8) -> u8 {
    8 | log_bytes.wrapping_sub(2)
}

/// Operands of an 8-byte atomic (mlx5dv.h: `struct mlx5_wqe_atomic_seg`).
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
pub struct AtomicSegment {
    /// The value to swap in, or to add.
    pub swap_or_add: Be64,
    /// The value to compare with; not looked at by fetch-and-add.
    pub compare: Be64,
}

/// Operands of a 4-byte masked compare-and-swap.
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
pub struct MaskedCompareSwap32 {
    /// The value to swap in.
    pub swap: Be32,
    /// The value to compare with.
    pub compare: Be32,
    /// The bits that are swapped.
    pub swap_mask: Be32,
    /// The bits that are compared.
    pub compare_mask: Be32,
}

/// Operands of an 8-byte masked compare-and-swap: two 16-byte units.
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
pub struct MaskedCompareSwap64 {
    /// The value to swap in.
    pub swap: Be64,
    /// The value to compare with.
    pub compare: Be64,
    /// The bits that are swapped.
    pub swap_mask: Be64,
    /// The bits that are compared.
    pub compare_mask: Be64,
}

/// Operands of a 4-byte masked fetch-and-add.
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
pub struct MaskedFetchAdd32 {
    /// The value to add.
    pub add: Be32,
    /// A set bit is the highest of a field: its carry is dropped. Zero: one field.
    pub field_boundary: Be32,
    /// Zero.
    pub reserved: Be64,
}

/// Operands of an 8-byte masked fetch-and-add.
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
pub struct MaskedFetchAdd64 {
    /// The value to add.
    pub add: Be64,
    /// A set bit is the highest of a field: its carry is dropped. Zero: one field.
    pub field_boundary: Be64,
}

const_assert_eq!(size_of::<AtomicSegment>(), 16);
const_assert_eq!(core::mem::offset_of!(AtomicSegment, compare), 8);
const_assert_eq!(size_of::<MaskedCompareSwap32>(), 16);
const_assert_eq!(core::mem::offset_of!(MaskedCompareSwap32, compare), 4);
const_assert_eq!(core::mem::offset_of!(MaskedCompareSwap32, swap_mask), 8);
const_assert_eq!(core::mem::offset_of!(MaskedCompareSwap32, compare_mask), 12);
const_assert_eq!(size_of::<MaskedCompareSwap64>(), 32);
const_assert_eq!(core::mem::offset_of!(MaskedCompareSwap64, compare), 8);
const_assert_eq!(core::mem::offset_of!(MaskedCompareSwap64, swap_mask), 16);
const_assert_eq!(core::mem::offset_of!(MaskedCompareSwap64, compare_mask), 24);
const_assert_eq!(size_of::<MaskedFetchAdd32>(), 16);
const_assert_eq!(core::mem::offset_of!(MaskedFetchAdd32, field_boundary), 4);
const_assert_eq!(size_of::<MaskedFetchAdd64>(), 16);
const_assert_eq!(core::mem::offset_of!(MaskedFetchAdd64, field_boundary), 8);
const_assert_eq!(extended_atomic_modifier(2), 8);
const_assert_eq!(extended_atomic_modifier(3), 9);

#[cfg(test)]
mod tests {
    use super::super::golden::golden;
    use super::*;

    /// reference/golden, operations fetch_add_sig and cmp_swp_sig: the bytes are libmlx5's own.
    #[test]
    fn operands_as_libmlx5_writes_them() {
        golden::<_, 16>(
            AtomicSegment {
                swap_or_add: Be64::new(0x1122_3344_5566_7788),
                compare: Be64::new(u64::from_be_bytes([0xee; 8])),
            },
            "1122334455667788eeeeeeeeeeeeeeee",
        );
        golden::<_, 16>(
            AtomicSegment {
                swap_or_add: Be64::new(0xa1a2_a3a4_a5a6_a7a8),
                compare: Be64::new(0x1122_3344_5566_7788),
            },
            "a1a2a3a4a5a6a7a81122334455667788",
        );
    }

    #[test]
    fn masked_operands() {
        golden::<_, 16>(
            MaskedCompareSwap32 {
                swap: Be32::new(0x01020304),
                compare: Be32::new(0x05060708),
                swap_mask: Be32::new(0xffff_0000),
                compare_mask: Be32::new(0xff),
            },
            "0102030405060708ffff0000000000ff",
        );
        golden::<_, 32>(
            MaskedCompareSwap64 {
                swap: Be64::new(1),
                compare: Be64::new(2),
                swap_mask: Be64::new(3),
                compare_mask: Be64::new(u64::MAX),
            },
            "000000000000000100000000000000020000000000000003ffffffffffffffff",
        );
        golden::<_, 16>(
            MaskedFetchAdd32 {
                add: Be32::new(7),
                field_boundary: Be32::new(0x8000_8000),
                reserved: Be64::ZERO,
            },
            "00000007800080000000000000000000",
        );
        golden::<_, 16>(
            MaskedFetchAdd64 { add: Be64::new(7), field_boundary: Be64::new(1 << 63) },
            "00000000000000078000000000000000",
        );
    }
}
