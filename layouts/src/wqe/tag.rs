//! Operations on the list of a shared receive queue with tag matching (XRQ).
//!
//! They are WQEs with opcode [`super::Opcode::TagMatching`] of a queue pair that uses the queue: a
//! control segment, a [`TagSegment`] and, for an append, one [`super::DataSegment`]. Sources:
//! mlx5dv.h `struct mlx5_wqe_tm_seg`, rdma-core qp.c `mlx5_post_srq_ops`.

use bitflags::bitflags;
use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::be::{Be16, Be64};

/// What an operation does (rdma-core wqe.h: `MLX5_TM_OPCODE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TagOperation {
    /// Reports how many unexpected messages software has processed.
    Nop = 0,
    /// Fills the entry that the append before it named, or entry 0.
    Append = 1,
    /// Removes an entry.
    Remove = 2,
}

bitflags! {
    /// Flags of a [`TagSegment`] (rdma-core wqe.h: `MLX5_SRQ_FLAG_TM_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct TagFlags: u8 {
        /// [`TagSegment::software_count`] is valid.
        const SOFTWARE_COUNT = 1 << 6;
        /// Write a completion.
        const COMPLETION = 1 << 7;
    }
}

/// A list operation (mlx5dv.h: `struct mlx5_wqe_tm_seg`).
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
pub struct TagSegment {
    /// [`TagOperation`] in the high half.
    pub operation: u8,
    /// [`TagFlags`].
    pub flags: u8,
    /// The entry to remove. For an append, the entry that the next append fills.
    pub index: Be16,
    /// Zero.
    pub reserved_4: [u8; 2],
    /// Unexpected messages that software has processed, modulo 2^16.
    pub software_count: Be16,
    /// Zero.
    pub reserved_8: [u8; 8],
    /// The tag of the entry to append.
    pub tag: Be64,
    /// Bits of the tag that must be equal.
    pub mask: Be64,
}

impl TagSegment {
    /// Fills the next entry with a tag; the append after this one fills entry `next`.
    #[inline]
    pub const fn append(next: u16, tag: u64, mask: u64, flags: TagFlags) -> Self {
        Self {
            tag: Be64::new(tag),
            mask: Be64::new(mask),
            ..Self::new(TagOperation::Append, next, flags)
        }
    }

    /// Removes entry `index`.
    #[inline]
    pub const fn remove(index: u16, flags: TagFlags) -> Self {
        Self::new(TagOperation::Remove, index, flags)
    }

    /// Changes nothing in the list.
    #[inline]
    pub const fn nop(flags: TagFlags) -> Self {
        Self::new(TagOperation::Nop, 0, flags)
    }

    /// This segment with the number of unexpected messages that software has processed.
    #[inline]
    #[must_use]
    pub const fn with_software_count(self, count: u16) -> Self {
        Self {
            flags: self.flags | TagFlags::SOFTWARE_COUNT.bits(),
            software_count: Be16::new(count),
            ..self
        }
    }

    /// The operation, or `None` for one that this crate does not know.
    #[inline]
    pub const fn operation(&self) -> Option<TagOperation> {
        Some(match self.operation >> 4 {
            0 => TagOperation::Nop,
            1 => TagOperation::Append,
            2 => TagOperation::Remove,
            _ => return None,
        })
    }

    /// The flags, without unknown bits.
    #[inline]
    pub const fn flags(&self) -> TagFlags {
        TagFlags::from_bits_truncate(self.flags)
    }

    const fn new(operation: TagOperation, index: u16, flags: TagFlags) -> Self {
        Self {
            operation: (operation as u8) << 4,
            flags: flags.bits(),
            index: Be16::new(index),
            reserved_4: [0; 2],
            software_count: Be16::ZERO,
            reserved_8: [0; 8],
            tag: Be64::ZERO,
            mask: Be64::ZERO,
        }
    }
}

const_assert_eq!(size_of::<TagSegment>(), 32);
const_assert_eq!(core::mem::offset_of!(TagSegment, index), 2);
const_assert_eq!(core::mem::offset_of!(TagSegment, software_count), 6);
const_assert_eq!(core::mem::offset_of!(TagSegment, tag), 16);
const_assert_eq!(core::mem::offset_of!(TagSegment, mask), 24);

#[cfg(test)]
mod tests {
    use super::super::golden::{golden, hex};
    use super::super::{ControlFlags, ControlSegment, Opcode};
    use super::*;

    #[test]
    fn list_operations_byte_for_byte() {
        golden::<_, 32>(
            TagSegment::append(0x0102, 0x0304_0506_0708_090a, 0xffff, TagFlags::COMPLETION),
            "10800102000000000000000000000000030405060708090a000000000000ffff",
        );
        golden::<_, 32>(
            TagSegment::remove(5, TagFlags::empty()).with_software_count(0x0c0d),
            "2040000500000c0d000000000000000000000000000000000000000000000000",
        );
        let nop = TagSegment::nop(TagFlags::COMPLETION).with_software_count(1);
        assert_eq!((nop.operation, nop.flags), (0, 0xc0));
        for operation in [TagOperation::Nop, TagOperation::Append, TagOperation::Remove] {
            let segment = TagSegment::new(operation, 0, TagFlags::empty());
            assert_eq!(segment.operation(), Some(operation));
        }
        assert_eq!(TagSegment { operation: 0x30, ..nop }.operation(), None);
        assert_eq!(nop.flags(), TagFlags::all());
    }

    /// WQEs of libmlx5 1.24.44 (Debian 12), by `ibv_post_srq_ops` into a ring filled with `ee`:
    /// what it leaves there is not compared. The control segment precedes the tag matching segment.
    #[test]
    fn operations_as_libmlx5_writes_them() {
        const TAG: u64 = 0x1122_3344_5566_7788;
        const QPN: u32 = 0x2f_277b;
        let (completion, none) = (TagFlags::COMPLETION, TagFlags::empty());
        let cases: [(TagSegment, u16, u32, &str); 5] = [
            (
                TagSegment::append(2, TAG, u64::MAX, completion),
                1,
                4,
                "000001282f277b04000000000000000010800002eeeeeeeeeeeeeeeeeeeeeeee\
                 1122334455667788ffffffffffffffff",
            ),
            (
                TagSegment::append(3, TAG + 1, 0xffff, completion).with_software_count(0x1234),
                2,
                4,
                "000002282f277b04000000000000000010c00003eeee1234eeeeeeeeeeeeeeee\
                 1122334455667789000000000000ffff",
            ),
            (
                TagSegment::append(4, TAG + 2, 0, none),
                3,
                4,
                "000003282f277b04000000000000000010000004eeeeeeeeeeeeeeeeeeeeeeee\
                 112233445566778a0000000000000000",
            ),
            (
                TagSegment::nop(completion).with_software_count(0x2345),
                4,
                3,
                "000004282f277b03000000000000000000c0eeeeeeee2345eeeeeeeeeeeeeeee\
                 eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee",
            ),
            (
                TagSegment::remove(2, completion).with_software_count(5),
                5,
                3,
                "000005282f277b03000000000000000020c00002eeee0005eeeeeeeeeeeeeeee\
                 eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee",
            ),
        ];
        for (segment, index, ds, text) in cases {
            let control =
                ControlSegment::new(Opcode::TagMatching, index, QPN, ds, ControlFlags::empty(), 0);
            let theirs: [u8; 48] = hex(text);
            let mut ours = [0; 48];
            ours[..16].copy_from_slice(control.as_bytes());
            ours[16..].copy_from_slice(segment.as_bytes());
            for (at, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
                assert!(theirs == 0xee || *ours == theirs, "WQE {index}, byte {at}");
            }
            let read = TagSegment::read_from_bytes(&theirs[16..]).unwrap();
            assert_eq!(read.operation(), segment.operation());
            assert_eq!(read.flags(), segment.flags());
            if segment.flags().contains(TagFlags::SOFTWARE_COUNT) {
                assert_eq!(read.software_count, segment.software_count);
            }
            if segment.operation() == Some(TagOperation::Append) {
                assert_eq!((read.tag, read.mask), (segment.tag, segment.mask));
            }
        }
    }
}
