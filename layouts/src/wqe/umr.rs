//! User-mode memory registration (UMR): the segments with which a queue pair changes a memory key.
//!
//! A [`UmrControlSegment`] selects the changes, a [`MkeyContextSegment`] has the new values, and a
//! list of translations may follow, in the WQE or by a data segment: [`crate::command::klm::Klm`]s,
//! or a [`RepeatBlock`] with its entries. Memory windows are bound and local keys invalidated in
//! the same way (libmlx5 `set_bind_wr`), as devices do not take `MLX5_OPCODE_LOCAL_INVAL` from user
//! space. Sources: mlx5dv.h `struct mlx5_wqe_umr_ctrl_seg`, `struct mlx5_wqe_mkey_context_seg`,
//! `struct mlx5_wqe_umr_repeat_block_seg`; linux device.h `MLX5_UMR_*`, `MLX5_MKEY_MASK_*`.

use bitflags::bitflags;
use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::be::{Be16, Be32, Be64};

bitflags! {
    /// The interpretation of the segments (mlx5dv.h: `MLX5_WQE_UMR_CTRL_FLAG_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct UmrFlags: u8 {
        /// The key must be of this queue pair.
        const CHECK_QPN = 1 << 3;
        /// The key's translations start at an offset.
        const TRANSLATION_OFFSET = 1 << 4;
        /// The key must be free.
        const CHECK_FREE = 1 << 5;
        /// The key must not be free (linux device.h, where the two have each other's names).
        const CHECK_NOT_FREE = 1 << 6;
        /// Translations are in the WQE.
        const INLINE = 1 << 7;
    }
}

bitflags! {
    /// Which fields of the key change (mlx5dv.h: `MLX5_WQE_UMR_CTRL_MKEY_MASK_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct UmrMask: u64 {
        /// Length.
        const LENGTH = 1 << 0;
        /// Start address.
        const START_ADDRESS = 1 << 6;
        /// The key's low byte.
        const KEY = 1 << 13;
        /// The queue pair that may use it.
        const QPN = 1 << 14;
        /// Local writes.
        const LOCAL_WRITE = 1 << 18;
        /// Remote reads.
        const REMOTE_READ = 1 << 19;
        /// Remote writes.
        const REMOTE_WRITE = 1 << 20;
        /// Remote atomics.
        const ATOMIC = 1 << 21;
        /// Whether it is free.
        const FREE = 1 << 29;
    }
}

/// The changes to an mkey (mlx5dv.h: `struct mlx5_wqe_umr_ctrl_seg`).
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
pub struct UmrControlSegment {
    /// [`UmrFlags`].
    pub flags: u8,
    /// Zero.
    pub reserved_1: [u8; 3],
    /// 16-byte units of translations.
    pub translation_octowords: Be16,
    /// Where they start.
    pub translation_offset: Be16,
    /// [`UmrMask`].
    pub mask: Be64,
    /// Zero.
    pub reserved_16: [u8; 32],
}

impl UmrControlSegment {
    /// Binds a free key, that of a memory window, to the one range of the list, for this queue pair
    /// only.
    pub const BIND: Self = Self {
        flags: UmrFlags::INLINE
            .union(UmrFlags::TRANSLATION_OFFSET)
            .union(UmrFlags::CHECK_FREE)
            .bits(),
        translation_octowords: Be16::new(Self::LIST_UNIT),
        mask: Be64::new(Self::REPLACED.union(UmrMask::START_ADDRESS).union(UmrMask::QPN).bits()),
        ..Self::INVALIDATE
    };

    /// As [`Self::BIND`], for every queue pair of the protection domain (libmlx5: type 1).
    pub const BIND_SHARED: Self = Self {
        flags: UmrFlags::INLINE.union(UmrFlags::TRANSLATION_OFFSET).bits(),
        mask: Be64::new(Self::REPLACED.union(UmrMask::START_ADDRESS).bits()),
        ..Self::BIND
    };

    /// Replaces the list of a key, and its length, its rights and its low byte.
    pub const REPLACE: Self = Self {
        flags: UmrFlags::INLINE.bits(),
        translation_octowords: Be16::new(Self::LIST_UNIT),
        mask: Be64::new(Self::REPLACED.bits()),
        ..Self::INVALIDATE
    };

    /// Lists in WQEs have a multiple of so many entries.
    pub const LIST_UNIT: u16 = 4;

    const REPLACED: UmrMask = UmrMask::LENGTH
        .union(UmrMask::KEY)
        .union(UmrMask::LOCAL_WRITE)
        .union(UmrMask::REMOTE_READ)
        .union(UmrMask::REMOTE_WRITE)
        .union(UmrMask::ATOMIC)
        .union(UmrMask::FREE);

    /// Frees the key that the control segment's immediate names, if it is of this queue pair.
    pub const INVALIDATE: Self = Self {
        flags: UmrFlags::INLINE
            .union(UmrFlags::TRANSLATION_OFFSET)
            .union(UmrFlags::CHECK_QPN)
            .bits(),
        reserved_1: [0; 3],
        translation_octowords: Be16::ZERO,
        translation_offset: Be16::ZERO,
        mask: Be64::new(UmrMask::FREE.union(UmrMask::KEY).union(UmrMask::QPN).bits()),
        reserved_16: [0; 32],
    };

    /// As [`Self::INVALIDATE`], for a key of every queue pair (libmlx5: type 1, a bind of no
    /// bytes).
    pub const INVALIDATE_SHARED: Self = Self {
        flags: UmrFlags::INLINE.union(UmrFlags::TRANSLATION_OFFSET).bits(),
        mask: Be64::new(UmrMask::FREE.union(UmrMask::KEY).bits()),
        ..Self::INVALIDATE
    };
}

/// The key's new fields (mlx5dv.h: `struct mlx5_wqe_mkey_context_seg`).
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
pub struct MkeyContextSegment {
    /// Bit 6: the key is free.
    pub free: u8,
    /// Zero.
    pub reserved_1: u8,
    /// The rights of the key.
    pub access: u8,
    /// Sub-function.
    pub sub_function: u8,
    /// The queue pair that may use it (24 bits, all ones: any) and the key's low byte.
    pub qpn_mkey: Be32,
    /// Zero.
    pub reserved_8: Be32,
    /// Flags and protection domain.
    pub flags_pd: Be32,
    /// Start address.
    pub start_address: Be64,
    /// Length in bytes.
    pub length: Be64,
    /// Size of the signature description.
    pub signature_octowords: Be32,
    /// Zero.
    pub reserved_36: [u8; 16],
    /// 16-byte units of translations.
    pub translation_octowords: Be32,
    /// Zero.
    pub reserved_56: [u8; 3],
    /// Page size as log2.
    pub log_page_size: u8,
    /// Zero.
    pub reserved_60: Be32,
}

impl MkeyContextSegment {
    /// A free key that belongs to no queue pair.
    pub const FREE: Self = Self {
        free: 1 << 6,
        reserved_1: 0,
        access: 0,
        sub_function: 0,
        qpn_mkey: Be32::new(0xffff_ff00),
        reserved_8: Be32::ZERO,
        flags_pd: Be32::ZERO,
        start_address: Be64::ZERO,
        length: Be64::ZERO,
        signature_octowords: Be32::ZERO,
        reserved_36: [0; 16],
        translation_octowords: Be32::ZERO,
        reserved_56: [0; 3],
        log_page_size: 0,
        reserved_60: Be32::ZERO,
    };
}

/// The `key` of a list's entry that is a [`RepeatBlock`] and no range: what libmlx5 writes as its
/// `op`.
pub const REPEAT_BLOCK: u32 = 0x400;

impl RepeatEntry {
    /// `bytes` bytes at `address` of `key`, and again each `stride` bytes after.
    #[inline]
    pub const fn new(stride: u16, bytes: u16, key: u32, address: u64) -> Self {
        Self {
            stride: Be16::new(stride),
            byte_count: Be16::new(bytes),
            key: Be32::new(key),
            address: Be64::new(address),
        }
    }
}

/// Starts a strided part of a list: the entries after it repeat (mlx5dv.h: `struct
/// mlx5_wqe_umr_repeat_block_seg`).
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
pub struct RepeatBlock {
    /// Bytes of all entries in one repetition.
    pub byte_count: Be32,
    /// [`REPEAT_BLOCK`].
    pub operation: Be32,
    /// Number of repetitions.
    pub repeat_count: Be32,
    /// Zero.
    pub reserved: Be16,
    /// Number of the [`RepeatEntry`]s that follow.
    pub entries: Be16,
}

/// A range of bytes; each repetition of a [`RepeatBlock`] is `stride` bytes after the previous one
/// (mlx5dv.h: `struct mlx5_wqe_umr_repeat_ent_seg`).
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
pub struct RepeatEntry {
    /// Bytes from one repetition's start to the next one's.
    pub stride: Be16,
    /// Bytes of one repetition.
    pub byte_count: Be16,
    /// The key to the memory that is repeated.
    pub key: Be32,
    /// Start of the first repetition, an address in the other key's address space.
    pub address: Be64,
}

const_assert_eq!(size_of::<RepeatBlock>(), 16);
const_assert_eq!(core::mem::offset_of!(RepeatBlock, repeat_count), 8);
const_assert_eq!(core::mem::offset_of!(RepeatBlock, entries), 14);
const_assert_eq!(size_of::<RepeatEntry>(), 16);
const_assert_eq!(core::mem::offset_of!(RepeatEntry, key), 4);
const_assert_eq!(core::mem::offset_of!(RepeatEntry, address), 8);
const_assert_eq!(size_of::<UmrControlSegment>(), 48);
const_assert_eq!(core::mem::offset_of!(UmrControlSegment, translation_octowords), 4);
const_assert_eq!(core::mem::offset_of!(UmrControlSegment, translation_offset), 6);
const_assert_eq!(core::mem::offset_of!(UmrControlSegment, mask), 8);
const_assert_eq!(core::mem::offset_of!(UmrControlSegment, reserved_16), 16);
const_assert_eq!(size_of::<MkeyContextSegment>(), 64);
const_assert_eq!(core::mem::offset_of!(MkeyContextSegment, access), 2);
const_assert_eq!(core::mem::offset_of!(MkeyContextSegment, qpn_mkey), 4);
const_assert_eq!(core::mem::offset_of!(MkeyContextSegment, flags_pd), 12);
const_assert_eq!(core::mem::offset_of!(MkeyContextSegment, start_address), 16);
const_assert_eq!(core::mem::offset_of!(MkeyContextSegment, length), 24);
const_assert_eq!(core::mem::offset_of!(MkeyContextSegment, signature_octowords), 32);
const_assert_eq!(core::mem::offset_of!(MkeyContextSegment, translation_octowords), 52);
const_assert_eq!(core::mem::offset_of!(MkeyContextSegment, log_page_size), 59);

#[cfg(test)]
mod tests {
    use super::super::golden::golden;
    use super::*;

    #[test]
    fn a_local_invalidation() {
        golden::<_, 48>(
            UmrControlSegment::INVALIDATE,
            "980000000000000000000000200060000000000000000000000000000000000000000000000000000000000000000000",
        );
        golden::<_, 64>(
            MkeyContextSegment::FREE,
            "40000000ffffff000000000000000000000000000000000000000000000000000000000000000000000000000000000000\
             000000000000000000000000000000",
        );
    }

    #[test]
    fn a_bind_and_a_list() {
        golden::<_, 48>(
            UmrControlSegment::BIND,
            "b00000000004000000000000203c60410000000000000000000000000000000000000000000000000000000000000000",
        );
        golden::<_, 48>(
            UmrControlSegment::BIND_SHARED,
            "900000000004000000000000203c20410000000000000000000000000000000000000000000000000000000000000000",
        );
        golden::<_, 48>(
            UmrControlSegment::INVALIDATE_SHARED,
            "900000000000000000000000200020000000000000000000000000000000000000000000000000000000000000000000",
        );
        golden::<_, 48>(
            UmrControlSegment::REPLACE,
            "800000000004000000000000203c20010000000000000000000000000000000000000000000000000000000000000000",
        );
    }

    #[test]
    fn a_strided_list() {
        golden::<_, 16>(
            RepeatBlock {
                byte_count: 24.into(),
                operation: REPEAT_BLOCK.into(),
                repeat_count: 3.into(),
                reserved: Be16::ZERO,
                entries: 2.into(),
            },
            "00000018000004000000000300000002",
        );
        golden::<_, 16>(
            RepeatEntry {
                stride: 64.into(),
                byte_count: 16.into(),
                key: 0x1234.into(),
                address: 0x1000.into(),
            },
            "00400010000012340000000000001000",
        );
    }
}
