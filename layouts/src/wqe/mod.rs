//! Send and receive work queue entries (WQEs) as an mlx5 device reads them.
//!
//! A WQE is a run of 16-byte units (`ds`), laid into a ring of 64-byte basic blocks (WQEBBs). It
//! starts with a [`ControlSegment`]; what follows depends on the opcode. Sources: mlx5dv.h `struct
//! mlx5_wqe_*`, PRM 'Work Queue Element'.
//!
//! ```
//! use barewire_layouts::wqe::DataSegment;
//! use zerocopy::IntoBytes;
//!
//! let segment = DataSegment::new(0x7f00_0000_1000, 16, 0x1234);
//! assert_eq!(segment.as_bytes(), [0, 0, 0, 16, 0, 0, 0x12, 0x34, 0, 0, 0x7f, 0, 0, 0, 0x10, 0]);
//! ```

mod address_vector;
mod atomic;
mod receive;
mod tag;
mod umr;

pub use address_vector::{AddressVector, CompactAddressVector, EXTENDED_ADDRESS_VECTOR};
pub use atomic::{
    AtomicSegment, MaskedCompareSwap32, MaskedCompareSwap64, MaskedFetchAdd32, MaskedFetchAdd64,
    extended_atomic_modifier,
};
pub use receive::SharedReceiveHeader;
pub use tag::{TagFlags, TagOperation, TagSegment};
pub use umr::{
    MkeyContextSegment, REPEAT_BLOCK, RepeatBlock, RepeatEntry, UmrControlSegment, UmrFlags,
    UmrMask,
};

use bitflags::bitflags;
use static_assertions::{const_assert, const_assert_eq};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::be::{Be32, Be64};
use crate::codes::codes;

/// Bytes of a WQE basic block (WQEBB), the unit of a send ring and of the send doorbell counter.
pub const WQEBB: usize = 64;
/// Bytes of the unit that [`ControlSegment`] counts a WQE's length in.
pub const DS: usize = 16;
/// The largest `ds` count (6 bits).
pub const MAX_DS: u32 = 63;
/// In [`InlineHeader`] and the byte count of a data segment: the data follows in the WQE itself.
pub const INLINE: u32 = 1 << 31;
/// The local key that ends a receive WQE's scatter list early (mlx5dv.h: `MLX5_INVALID_LKEY`).
pub const INVALID_LKEY: u32 = 0x100;

codes! {
    /// The operation of a send WQE (mlx5dv.h: `MLX5_OPCODE_*`).
    Opcode {
        /// Does nothing but complete.
        Nop = 0x00,
        /// Send and invalidate a remote key.
        SendInvalidate = 0x01,
        /// RDMA write.
        RdmaWrite = 0x08,
        /// RDMA write that consumes a receive WQE and delivers an immediate.
        RdmaWriteImmediate = 0x09,
        /// Send.
        Send = 0x0a,
        /// Send with immediate.
        SendImmediate = 0x0b,
        /// RDMA read.
        RdmaRead = 0x10,
        /// 8-byte compare and swap.
        AtomicCompareSwap = 0x11,
        /// 8-byte fetch and add.
        AtomicFetchAdd = 0x12,
        /// Compare and swap of the bits that two masks select; the modifier gives the width: see
        /// [`extended_atomic_modifier`].
        MaskedCompareSwap = 0x14,
        /// Fetch and add in fields that a mask divides; width as above.
        MaskedFetchAdd = 0x15,
        /// Invalidate a local key by its own opcode. libmlx5 and the kernel use [`Self::Umr`].
        LocalInvalidate = 0x1b,
        /// User-mode memory registration: change a memory key, or free it.
        Umr = 0x25,
        /// Change the tag matching list of the queue pair's shared receive queue.
        TagMatching = 0x28,
    }
}

bitflags! {
    /// The `fm_ce_se` byte of a control segment (mlx5dv.h: `MLX5_WQE_CTRL_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct ControlFlags: u8 {
        /// Raise a solicited event at the responder.
        const SOLICITED = 0x02;
        /// Write a completion queue entry.
        const COMPLETION = 0x08;
        /// Wait for local operations of this queue, such as an invalidation posted just before
        /// (`INITIATOR_SMALL_FENCE`).
        const SMALL_FENCE = 0x20;
        /// Wait for all earlier RDMA reads and atomics of this queue.
        const FENCE = 0x80;
    }
}

impl ControlFlags {
    /// The two completion-mode bits: 2 means 'a CQE for every such WQE', 0 'only in error'.
    pub const COMPLETION_MASK: u8 = 0x0c;
    /// Fence-mode bits; 0, [`ControlFlags::SMALL_FENCE`] (1 << 5) and [`ControlFlags::FENCE`] (4 <<
    /// 5) are in use here.
    pub const FENCE_MASK: u8 = 0xe0;
}

/// First 16 bytes of every send WQE (mlx5dv.h: `struct mlx5_wqe_ctrl_seg`).
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
pub struct ControlSegment {
    /// Opcode modifier (8 bits), index of the WQE's first WQEBB (16), opcode (8).
    pub opmod_index_opcode: Be32,
    /// Queue pair number (24 bits), two reserved bits, `ds` count (6).
    pub qpn_ds: Be32,
    /// Signature (8 bits), stream of a DC initiator (16), [`ControlFlags`] (8).
    pub signature_stream_flags: Be32,
    /// Immediate, or the key to invalidate.
    pub immediate: Be32,
}

impl ControlSegment {
    /// A control segment with opcode modifier, signature and stream zero.
    #[inline]
    pub const fn new(
        opcode: Opcode,
        index: u16,
        qpn: u32,
        ds: u32,
        flags: ControlFlags,
        immediate: u32,
    ) -> Self {
        Self {
            opmod_index_opcode: Be32::new((index as u32) << 8 | opcode as u32),
            qpn_ds: Be32::new(qpn << 8 | ds),
            signature_stream_flags: Be32::new(flags.bits() as u32),
            immediate: Be32::new(immediate),
        }
    }

    /// This segment with opcode modifier `modifier`.
    #[inline]
    #[must_use]
    pub const fn with_modifier(self, modifier: u8) -> Self {
        let word = self.opmod_index_opcode.get() & 0x00ff_ffff | (modifier as u32) << 24;
        Self { opmod_index_opcode: Be32::new(word), ..self }
    }

    /// Opcode byte, raw: see [`Opcode::from_bits`].
    #[inline]
    pub const fn opcode(&self) -> u8 {
        self.opmod_index_opcode.get() as u8
    }

    /// Index of the WQE's first WQEBB, modulo 2^16.
    #[inline]
    pub const fn index(&self) -> u16 {
        (self.opmod_index_opcode.get() >> 8) as u16
    }

    /// Opcode modifier.
    #[inline]
    pub const fn opcode_modifier(&self) -> u8 {
        (self.opmod_index_opcode.get() >> 24) as u8
    }

    /// Queue pair number.
    #[inline]
    pub const fn qpn(&self) -> u32 {
        self.qpn_ds.get() >> 8
    }

    /// Length of the WQE in 16-byte units.
    #[inline]
    pub const fn ds(&self) -> u32 {
        self.qpn_ds.get() & MAX_DS
    }

    /// This segment with stream `stream` of a DC initiator.
    #[inline]
    #[must_use]
    pub const fn with_stream(self, stream: u16) -> Self {
        let word = self.signature_stream_flags.get() & 0xff00_00ff | (stream as u32) << 8;
        Self { signature_stream_flags: Be32::new(word), ..self }
    }

    /// Stream of a DC initiator.
    #[inline]
    pub const fn stream(&self) -> u16 {
        (self.signature_stream_flags.get() >> 8) as u16
    }

    /// The `fm_ce_se` byte, raw.
    #[inline]
    pub const fn flags(&self) -> u8 {
        self.signature_stream_flags.get() as u8
    }
}

/// The receiver's shared receive queue on an XRC connection. It follows the control segment of
/// every operation but NOP (linux qp.h: `struct mlx5_wqe_xrc_seg`).
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
pub struct XrcSegment {
    /// The shared receive queue at the receiver, 24 bits.
    pub srqn: Be32,
    /// Zero.
    pub reserved: [Be32; 3],
}

impl XrcSegment {
    /// A segment that names shared receive queue `srqn`.
    #[inline]
    pub const fn new(srqn: u32) -> Self {
        Self { srqn: Be32::new(srqn & 0x00ff_ffff), reserved: [Be32::ZERO; 3] }
    }
}

/// Where an RDMA operation goes (mlx5dv.h: `struct mlx5_wqe_raddr_seg`).
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
pub struct RemoteAddressSegment {
    /// Remote virtual address.
    pub address: Be64,
    /// Remote key.
    pub rkey: Be32,
    /// Zero.
    pub reserved: Be32,
}

impl RemoteAddressSegment {
    /// A segment that names `address` under `rkey`.
    #[inline]
    pub const fn new(address: u64, rkey: u32) -> Self {
        Self { address: Be64::new(address), rkey: Be32::new(rkey), reserved: Be32::ZERO }
    }
}

/// One scatter/gather element by reference (mlx5dv.h: `struct mlx5_wqe_data_seg`).
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
pub struct DataSegment {
    /// Length in bytes, 31 bits.
    pub byte_count: Be32,
    /// Local key.
    pub lkey: Be32,
    /// Local virtual address.
    pub address: Be64,
}

impl DataSegment {
    /// Ends the scatter list of a receive WQE that has room for more segments.
    pub const END: Self = Self::new(0, 0, INVALID_LKEY);

    /// A segment of `length` bytes at `address` under `lkey`.
    #[inline]
    pub const fn new(address: u64, length: u32, lkey: u32) -> Self {
        Self { byte_count: Be32::new(length), lkey: Be32::new(lkey), address: Be64::new(address) }
    }
}

/// Starts data inside the WQE (mlx5dv.h: `struct mlx5_wqe_inl_data_seg`). The bytes follow
/// directly; the segment is padded to a multiple of 16.
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
pub struct InlineHeader {
    /// Length in bytes with [`INLINE`] set.
    pub byte_count: Be32,
}

impl InlineHeader {
    /// A header for `length` bytes.
    #[inline]
    pub const fn new(length: u32) -> Self {
        Self { byte_count: Be32::new(length | INLINE) }
    }
}

const_assert_eq!(size_of::<ControlSegment>(), 16);
const_assert_eq!(core::mem::offset_of!(ControlSegment, opmod_index_opcode), 0);
const_assert_eq!(core::mem::offset_of!(ControlSegment, qpn_ds), 4);
const_assert_eq!(core::mem::offset_of!(ControlSegment, signature_stream_flags), 8);
const_assert_eq!(core::mem::offset_of!(ControlSegment, immediate), 12);
const_assert_eq!(size_of::<XrcSegment>(), 16);
const_assert_eq!(core::mem::offset_of!(XrcSegment, reserved), 4);
const_assert_eq!(size_of::<RemoteAddressSegment>(), 16);
const_assert_eq!(core::mem::offset_of!(RemoteAddressSegment, rkey), 8);
const_assert_eq!(core::mem::offset_of!(RemoteAddressSegment, reserved), 12);
const_assert_eq!(size_of::<DataSegment>(), 16);
const_assert_eq!(core::mem::offset_of!(DataSegment, lkey), 4);
const_assert_eq!(core::mem::offset_of!(DataSegment, address), 8);
const_assert_eq!(size_of::<InlineHeader>(), 4);
const_assert!(WQEBB.is_multiple_of(DS));

#[cfg(test)]
mod golden {
    use super::*;

    /// The bytes that hexadecimal `text` spells.
    pub(super) fn hex<const N: usize>(text: &str) -> [u8; N] {
        assert_eq!(text.len(), 2 * N);
        core::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
    }

    /// Both directions: the typed form yields the bytes, and the bytes yield the typed form.
    pub(super) fn golden<T, const N: usize>(typed: T, text: &str)
    where
        T: Copy
            + FromBytes
            + IntoBytes
            + Immutable
            + KnownLayout
            + Unaligned
            + PartialEq
            + core::fmt::Debug,
    {
        let bytes: [u8; N] = hex(text);
        assert_eq!(typed.as_bytes(), bytes);
        assert_eq!(T::read_from_bytes(&bytes).unwrap(), typed);
    }
}

#[cfg(test)]
mod tests {
    use super::golden::golden;
    use super::*;

    /// The bytes are libmlx5's own: reference/golden, operations write_inl_8_sig,
    /// write_imm_inl_8_sig_solicited and read_1sge_256_sig.
    #[test]
    fn segments_as_libmlx5_writes_them() {
        golden::<_, 16>(
            ControlSegment::new(Opcode::RdmaWrite, 1, 72, 3, ControlFlags::COMPLETION, 0),
            "00000108000048030000000800000000",
        );
        golden::<_, 16>(
            ControlSegment::new(
                Opcode::RdmaWriteImmediate,
                0x15,
                72,
                3,
                ControlFlags::COMPLETION | ControlFlags::SOLICITED,
                0x0102_0304,
            ),
            "00001509000048030000000a01020304",
        );
        golden::<_, 16>(
            RemoteAddressSegment::new(536_871_176, 4779),
            "0000000020000108000012ab00000000",
        );
        golden::<_, 16>(
            DataSegment::new(268_468_224, 256, 4523),
            "00000100000011ab0000000010008000",
        );
        golden::<_, 4>(InlineHeader::new(8), "80000008");
        golden::<_, 16>(XrcSegment::new(0x0a0b0c), "000a0b0c000000000000000000000000");
    }

    #[test]
    fn control_segment_fields_come_back() {
        let control =
            ControlSegment::new(Opcode::RdmaRead, 0xfffe, 0xff_ffff, 63, ControlFlags::FENCE, 7);
        assert_eq!(Opcode::from_bits(control.opcode()), Some(Opcode::RdmaRead));
        assert_eq!((control.index(), control.qpn(), control.ds()), (0xfffe, 0xff_ffff, 63));
        assert_eq!((control.opcode_modifier(), control.flags()), (0, 0x80));
        let modified = control.with_modifier(9);
        assert_eq!(
            (modified.opcode_modifier(), modified.index(), modified.opcode()),
            (9, 0xfffe, 0x10)
        );
        assert_eq!(modified.with_modifier(0), control);
        let streamed = control.with_stream(0x1234);
        assert_eq!((streamed.stream(), streamed.flags(), streamed.index()), (0x1234, 0x80, 0xfffe));
        assert_eq!(streamed.as_bytes()[8..12], [0, 0x12, 0x34, 0x80]);
        assert_eq!(streamed.with_stream(0), control);
    }

    #[test]
    fn every_known_opcode_decodes_to_itself() {
        let known = (0..=u8::MAX).filter_map(Opcode::from_bits).map(|opcode| opcode as u8);
        assert!(known.eq([
            0x00, 0x01, 0x08, 0x09, 0x0a, 0x0b, 0x10, 0x11, 0x12, 0x14, 0x15, 0x1b, 0x25, 0x28
        ]));
    }
}
