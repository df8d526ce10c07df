//! Compressed CQEs: completions that differ little, stored as one title and an array of 8-byte mini
//! CQEs.
//!
//! In the *basic* layout the title is an entry of format
//! [`CqeFormat::Compressed`](super::CqeFormat) whose byte count is the number of completions. They
//! take as many slots as they are, the title's first. The mini CQEs lie in arrays of eight: the
//! first array in the slot behind the title, every further one in the slot of the completion that
//! it begins with, which is the 8th, 16th ... behind the title. The device writes no more slots
//! than these, so software gives the others the owner bit of their lap.
//!
//! In the *enhanced* layout the title is the last entry that was not compressed, and itself a
//! completion. A block is one slot: up to seven mini CQEs, the lap in the signature byte, and in
//! `op_own` the number of completions less one above the format. The completions take as many slots
//! as there are completions. Software owns an entry if its signature byte is the number of the lap
//! (8 bits); there is no owner bit.
//!
//! Sources: linux device.h `struct mlx5_mini_cqe8`, `MLX5_CQE_COMPRESS_LAYOUT_*`,
//! `get_cqe_enhanced_num_mini_cqes`; en_rx.c `mlx5e_decompress_cqe`; mlx5dv.h
//! `MLX5DV_CQE_RES_FORMAT_*`; UCX `uct_ib_mlx5_iface_cqe_unzip`.

use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::{Cqe64, CqeFormat, CqeOpcode, OWNER};
use crate::be::{Be16, Be32};
use crate::codes::codes;

/// Mini CQEs of an array in the basic layout.
pub const MINI_ARRAY: usize = 8;
/// Most mini CQEs of a block in the enhanced layout: the eighth would lie over signature and
/// `op_own`.
pub const MAX_ENHANCED: u32 = 7;

codes! {
    /// What a responder's mini CQEs carry beside the byte count. Chosen when the queue is created
    /// (mlx5dv.h: `MLX5DV_CQE_RES_FORMAT_*`; PRM: CQC, mini_cqe_res_format). A requester's always
    /// carry [`MiniRequester`].
    MiniFormat {
        /// The receive hash.
        Hash = 0,
        /// The checksum.
        Checksum = 1,
        /// The checksum, and the index of the stride.
        ChecksumStride = 3,
    }
}

/// The fields in which a completion differs from its title.
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
pub struct MiniCqe {
    /// A hash, [`MiniChecksum`] or [`MiniRequester`].
    pub fields: [u8; 4],
    /// Bytes received, or transferred by a read or atomic.
    pub byte_count: Be32,
}

/// [`MiniCqe::fields`] in the formats with a checksum.
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
pub struct MiniChecksum {
    /// Ones' complement sum.
    pub checksum: Be16,
    /// Index of the stride; reserved in [`MiniFormat::Checksum`].
    pub stride: Be16,
}

/// [`MiniCqe::fields`] of a requester's completion.
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
pub struct MiniRequester {
    /// Index of the WQE's first WQEBB.
    pub wqe_counter: Be16,
    /// Opcode of the send WQE.
    pub opcode: u8,
    /// Reserved.
    pub reserved: u8,
}

/// A slot full of mini CQEs.
pub type MiniArray = [MiniCqe; MINI_ARRAY];

impl MiniCqe {
    /// The completion that results from the mini CQE and `title`. `counter` is the receive WQE's
    /// index, as far as it is not in the mini CQE; `owner` is the owner bit of the lap.
    #[inline]
    pub fn expand(self, title: &Cqe64, format: MiniFormat, counter: u16, owner: u8) -> Cqe64 {
        let opcode = title.opcode();
        let mut cqe = *title;
        cqe.byte_count = self.byte_count;
        cqe.op_own = opcode << 4 | title.op_own & super::SOLICITED | owner & OWNER;
        cqe.wqe_counter = Be16::new(counter);
        let mut packet = title.packet();
        if opcode == CqeOpcode::Requester as u8 {
            let requester: MiniRequester = transmute!(self.fields);
            cqe.wqe_counter = requester.wqe_counter;
            cqe.opcode_qpn = Be32::new((requester.opcode as u32) << 24 | title.qpn());
            return cqe;
        }
        match format {
            MiniFormat::Hash => packet.hash = transmute!(self.fields),
            MiniFormat::Checksum | MiniFormat::ChecksumStride => {
                let checksum: MiniChecksum = transmute!(self.fields);
                packet.checksum = checksum.checksum;
                if format == MiniFormat::ChecksumStride {
                    cqe.wqe_counter = checksum.stride;
                }
            }
        }
        cqe.metadata = transmute!(packet);
        cqe
    }
}

impl Cqe64 {
    /// The slot's bytes as mini CQEs.
    #[inline]
    pub const fn mini_array(&self) -> MiniArray {
        transmute!(*self)
    }

    /// Completions of the block that this title of the basic layout starts: at least one.
    #[inline]
    pub fn basic_count(&self) -> u32 {
        self.byte_count.get().max(1)
    }

    /// Completions of the block that this slot of the enhanced layout is: one to [`MAX_ENHANCED`].
    #[inline]
    pub fn enhanced_count(&self) -> u32 {
        (u32::from(self.op_own >> 4) + 1).min(MAX_ENHANCED)
    }

    /// The slot starts or is a block of compressed CQEs.
    #[inline]
    pub const fn is_compressed(&self) -> bool {
        matches!(self.format(), CqeFormat::Compressed)
    }
}

const_assert_eq!(size_of::<MiniCqe>(), 8);
const_assert_eq!(core::mem::offset_of!(MiniCqe, byte_count), 4);
const_assert_eq!(size_of::<MiniArray>(), size_of::<Cqe64>());
const_assert_eq!(size_of::<MiniChecksum>(), 4);
const_assert_eq!(core::mem::offset_of!(MiniChecksum, stride), 2);
const_assert_eq!(size_of::<MiniRequester>(), 4);
const_assert_eq!(core::mem::offset_of!(MiniRequester, opcode), 2);

#[cfg(test)]
mod tests {
    use super::*;

    fn title(opcode: CqeOpcode) -> Cqe64 {
        Cqe64 {
            opcode_qpn: Be32::new(0x0a00_0048),
            byte_count: Be32::new(3),
            wqe_counter: Be16::new(9),
            op_own: (opcode as u8) << 4 | CqeFormat::Compressed.bits(),
            ..Cqe64::INITIAL
        }
    }

    #[test]
    fn a_requesters_mini_cqe_has_counter_and_opcode() {
        let mini = MiniCqe::read_from_bytes(&[0x12, 0x34, 0x10, 0, 0, 0, 1, 0]).unwrap();
        let cqe = mini.expand(&title(CqeOpcode::Requester), MiniFormat::Hash, 77, 1);
        assert_eq!((cqe.wqe_counter.get(), cqe.send_opcode(), cqe.qpn()), (0x1234, 0x10, 0x48));
        assert_eq!((cqe.byte_count.get(), cqe.op_own), (0x100, 0x01));
    }

    #[test]
    fn a_responders_mini_cqe_has_what_the_format_says() {
        let mini = MiniCqe::read_from_bytes(&[0xaa, 0xbb, 0xcc, 0xdd, 0, 0, 0, 64]).unwrap();
        let title = title(CqeOpcode::ResponderSend);
        let cqe = mini.expand(&title, MiniFormat::Hash, 10, 0);
        assert_eq!(
            (cqe.packet().hash.get(), cqe.wqe_counter.get(), cqe.op_own),
            (0xaabb_ccdd, 10, 0x20)
        );
        let cqe = mini.expand(&title, MiniFormat::Checksum, 10, 0);
        assert_eq!((cqe.packet().checksum.get(), cqe.wqe_counter.get()), (0xaabb, 10));
        let cqe = mini.expand(&title, MiniFormat::ChecksumStride, 10, 0);
        assert_eq!((cqe.packet().checksum.get(), cqe.wqe_counter.get()), (0xaabb, 0xccdd));
        assert_eq!(cqe.byte_count.get(), 64);
    }

    #[test]
    fn arrays_and_counts_of_either_layout() {
        let slot =
            Cqe64::read_from_bytes(&core::array::from_fn::<u8, 64, _>(|at| at as u8)).unwrap();
        let minis = slot.mini_array();
        assert_eq!(minis[7].fields, [56, 57, 58, 59]);
        assert_eq!(minis.as_bytes(), slot.as_bytes());
        assert_eq!(title(CqeOpcode::Requester).basic_count(), 3);
        assert_eq!(Cqe64 { byte_count: Be32::ZERO, ..slot }.basic_count(), 1);
        assert_eq!(Cqe64 { op_own: 0x0c, ..slot }.enhanced_count(), 1);
        assert_eq!(Cqe64 { op_own: 0x6c, ..slot }.enhanced_count(), 7);
        assert_eq!(Cqe64 { op_own: 0xfc, ..slot }.enhanced_count(), MAX_ENHANCED);
        assert!(Cqe64 { op_own: 0x0d, ..slot }.is_compressed());
    }
}
