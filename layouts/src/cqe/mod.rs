//! Completion queue entries (CQEs).
//!
//! Sources: mlx5dv.h `struct mlx5_cqe64`, `struct mlx5_err_cqe`, PRM 'Completion Queue Entry'. A
//! 128-byte CQE carries the same 64 bytes in its second half ([`Cqe128`]). Compressed CQEs are in
//! [`compressed`].

pub mod compressed;
mod known;
mod stride;
mod syndrome;
mod tag;

pub use known::{EVIDENCE, KnownCause};
pub use stride::StrideCount;
pub use syndrome::Syndrome;
pub use tag::{Application, TagEvent, TagListResult};

use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::be::{Be16, Be32, Be64};
use crate::codes::codes;

/// `op_own` as libmlx5 initialises it: opcode [`CqeOpcode::Invalid`], owner bit clear. A consumer
/// must test opcode and owner bit.
pub const INITIAL_OP_OWN: u8 = 0xf0;
/// `op_own` of a CQE that the device owns on the first lap: opcode [`CqeOpcode::Invalid`], owner
/// bit set, so that the owner bit alone determines the owner of an entry.
pub const HARDWARE_OP_OWN: u8 = 0xf1;
/// The owner bit of `op_own`. Hardware owns the entry while it differs from the parity of the
/// consumer's lap.
pub const OWNER: u8 = 0x01;
/// The solicited-event bit of `op_own`.
pub const SOLICITED: u8 = 0x02;
/// Offset of `op_own`, the byte that is written last.
pub const OP_OWN_OFFSET: usize = 63;
/// Offset of the signature, which in the enhanced layout of compressed queues counts laps instead.
pub const SIGNATURE_OFFSET: usize = 62;
/// The format bits of `op_own`: see [`CqeFormat`].
pub const FORMAT: u8 = 0x0c;

/// Where the data of a completion lies, or that the entry is compressed: the format bits of
/// `op_own` (mlx5dv.h: `MLX5_INLINE_SCATTER_32`, `MLX5_INLINE_SCATTER_64`; linux device.h:
/// `MLX5_COMPRESSED`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CqeFormat {
    /// In the buffers that the WQE named.
    Plain = 0,
    /// In the first 32 bytes of the CQE.
    Inline32 = 1,
    /// In the 64 bytes before the CQE: the first half of a 128-byte entry.
    Inline64 = 2,
    /// The entry starts, or belongs to, a block of compressed CQEs.
    Compressed = 3,
}

impl CqeFormat {
    /// Decodes the format bits of an `op_own` byte.
    #[inline]
    pub const fn from_op_own(op_own: u8) -> Self {
        match op_own >> 2 & 3 {
            0 => Self::Plain,
            1 => Self::Inline32,
            2 => Self::Inline64,
            _ => Self::Compressed,
        }
    }

    /// The bits, at their place in `op_own`.
    #[inline]
    pub const fn bits(self) -> u8 {
        (self as u8) << 2
    }
}

codes! {
    /// Opcode of a completion: which queue, and its result (mlx5dv.h: `MLX5_CQE_*`).
    CqeOpcode {
        /// A send queue's WQE was done.
        Requester = 0x0,
        /// An RDMA write with immediate arrived.
        ResponderWriteImmediate = 0x1,
        /// A send arrived.
        ResponderSend = 0x2,
        /// A send with immediate arrived.
        ResponderSendImmediate = 0x3,
        /// A send arrived that invalidated a key.
        ResponderSendInvalidate = 0x4,
        /// The completion queue was resized here.
        Resize = 0x5,
        /// A receive WQE was given back without a packet.
        NoPacket = 0x6,
        /// A signature error.
        SignatureError = 0xc,
        /// A send queue's WQE failed: read the entry as [`ErrorCqe`].
        RequesterError = 0xd,
        /// A receive WQE failed: read the entry as [`ErrorCqe`].
        ResponderError = 0xe,
        /// Never written.
        Invalid = 0xf,
    }
}

/// A completion (mlx5dv.h: `struct mlx5_cqe64`).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Cqe64 {
    /// Packet metadata: see [`PacketFields`]. Holds the data itself in format
    /// [`CqeFormat::Inline32`].
    pub metadata: [u8; 32],
    /// Shared receive queue number in CQE version 0, user index of the queue in version 1 (24
    /// bits).
    pub srqn_user_index: Be32,
    /// Immediate, or the key that was invalidated.
    pub immediate: Be32,
    /// Fields of an offload: see [`Application`].
    pub application: Be32,
    /// Bytes received, or transferred by a read or atomic.
    pub byte_count: Be32,
    /// Device clock.
    pub timestamp: Be64,
    /// Opcode of the send WQE (8 bits), queue pair number (24).
    pub opcode_qpn: Be32,
    /// Index of the WQE's first WQEBB, or the receive WQE's index.
    pub wqe_counter: Be16,
    /// Signature or validity byte.
    pub signature: u8,
    /// Opcode (4 bits), format (2), solicited (1), owner (1).
    pub op_own: u8,
}

impl Cqe64 {
    /// The entry as the driver initialises it.
    pub const INITIAL: Self = Self {
        metadata: [0; 32],
        srqn_user_index: Be32::ZERO,
        immediate: Be32::ZERO,
        application: Be32::ZERO,
        byte_count: Be32::ZERO,
        timestamp: Be64::ZERO,
        opcode_qpn: Be32::ZERO,
        wqe_counter: Be16::ZERO,
        signature: 0,
        op_own: INITIAL_OP_OWN,
    };

    /// Opcode bits of `op_own`: see [`CqeOpcode::from_bits`].
    #[inline]
    pub const fn opcode(&self) -> u8 {
        self.op_own >> 4
    }

    /// Queue pair number.
    #[inline]
    pub const fn qpn(&self) -> u32 {
        self.opcode_qpn.get() & 0x00ff_ffff
    }

    /// Opcode byte of the send WQE.
    #[inline]
    pub const fn send_opcode(&self) -> u8 {
        (self.opcode_qpn.get() >> 24) as u8
    }

    /// User index of the queue (CQE version 1), or shared receive queue number (version 0).
    #[inline]
    pub const fn user_index(&self) -> u32 {
        self.srqn_user_index.get() & 0x00ff_ffff
    }

    /// Format bits of `op_own`.
    #[inline]
    pub const fn format(&self) -> CqeFormat {
        CqeFormat::from_op_own(self.op_own)
    }

    /// Fields about the received packet. Valid in a responder's completion, except in format
    /// [`CqeFormat::Inline32`].
    #[inline]
    pub const fn packet(&self) -> PacketFields {
        transmute!(self.metadata)
    }
}

/// The first 32 bytes of a responder's completion (mlx5dv.h and linux device.h: `struct
/// mlx5_cqe64`).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct PacketFields {
    /// Tunnel and TLS bits.
    pub tunnel: u8,
    /// Reserved.
    pub reserved_1: u8,
    /// Index of the WQE, where [`Cqe64::wqe_counter`] is that of a stride.
    pub wqe_id: Be16,
    /// Coalescing fields.
    pub reserved_4: [u8; 8],
    /// Receive hash.
    pub hash: Be32,
    /// The fields that were hashed.
    pub hash_type: u8,
    /// Destination path bits (7 bits), and whether the packet was for a multicast group.
    pub path_bits: u8,
    /// Reserved.
    pub reserved_18: [u8; 2],
    /// Ones' complement sum; index of the stride in a striding shared receive queue.
    pub checksum: Be16,
    /// The sender's LID.
    pub source_lid: Be16,
    /// Flags: how the packet carried the global routing header (bits 28-29), service level (24-27).
    /// Below it, the sender's queue pair.
    pub flags_source_qpn: Be32,
    /// Header checks.
    pub header_checks: u8,
    /// Header kinds.
    pub header_kinds: u8,
    /// VLAN tag.
    pub vlan: Be16,
}

impl PacketFields {
    /// The bit of [`path_bits`](Self::path_bits) that says that the packet was for a multicast
    /// group.
    pub const MULTICAST: u8 = 1 << 7;

    /// Index of the stride that holds the data, in a completion of a striding shared receive queue
    /// (UCX ib_mlx5.inl: `uct_ib_mlx5_cqe_stride_index`).
    #[inline]
    pub const fn stride(&self) -> u16 {
        self.checksum.get()
    }

    /// Number of the sender's queue pair, of a datagram.
    #[inline]
    pub const fn source_qpn(&self) -> u32 {
        self.flags_source_qpn.get() & 0x00ff_ffff
    }

    /// Service level on InfiniBand; kind of network header on Ethernet.
    #[inline]
    pub const fn service_level(&self) -> u8 {
        (self.flags_source_qpn.get() >> 24) as u8 & 0x0f
    }

    /// The packet had a global routing header. Of a datagram it lies in the first 40 bytes of the
    /// buffer.
    #[inline]
    pub const fn has_global_route(&self) -> bool {
        self.flags_source_qpn.get() >> 28 & 3 != 0
    }
}

/// A 128-byte completion: the CQE is its second half.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Cqe128 {
    /// The data itself in format [`CqeFormat::Inline64`].
    pub data: [u8; 64],
    /// The completion.
    pub cqe: Cqe64,
}

/// A failed WQE (mlx5dv.h: `struct mlx5_err_cqe`).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ErrorCqe {
    /// Reserved.
    pub reserved_0: [u8; 32],
    /// Shared receive queue number in CQE version 0, user index of the queue in version 1 (24
    /// bits).
    pub srqn_user_index: Be32,
    /// Reserved.
    pub reserved_36: [u8; 16],
    /// The hardware's finer reason, which the flushes behind the error repeat; 0 for what the peer
    /// caused (mlx5_ifc.h: `hw_error_syndrome`).
    pub hardware_syndrome: u8,
    /// Which part of the hardware reports it (UCX: `hw_synd_type`).
    pub hardware_syndrome_type: u8,
    /// The vendor's finer reason.
    pub vendor_syndrome: u8,
    /// See [`Syndrome::from_bits`].
    pub syndrome: u8,
    /// Opcode of the send WQE (8 bits), queue pair number (24).
    pub opcode_qpn: Be32,
    /// Index of the WQE's first WQEBB, or the receive WQE's index.
    pub wqe_counter: Be16,
    /// Signature or validity byte.
    pub signature: u8,
    /// Opcode (4 bits), format (2), solicited (1), owner (1).
    pub op_own: u8,
}

impl ErrorCqe {
    /// Queue pair number.
    #[inline]
    pub const fn qpn(&self) -> u32 {
        self.opcode_qpn.get() & 0x00ff_ffff
    }

    /// Opcode byte of the send WQE.
    #[inline]
    pub const fn send_opcode(&self) -> u8 {
        (self.opcode_qpn.get() >> 24) as u8
    }

    /// User index of the queue (CQE version 1), or shared receive queue number (version 0).
    #[inline]
    pub const fn user_index(&self) -> u32 {
        self.srqn_user_index.get() & 0x00ff_ffff
    }
}

const_assert_eq!(size_of::<Cqe64>(), 64);
const_assert_eq!(core::mem::offset_of!(Cqe64, srqn_user_index), 32);
const_assert_eq!(core::mem::offset_of!(Cqe64, immediate), 36);
const_assert_eq!(core::mem::offset_of!(Cqe64, application), 40);
const_assert_eq!(core::mem::offset_of!(Cqe64, byte_count), 44);
const_assert_eq!(core::mem::offset_of!(Cqe64, timestamp), 48);
const_assert_eq!(core::mem::offset_of!(Cqe64, opcode_qpn), 56);
const_assert_eq!(core::mem::offset_of!(Cqe64, wqe_counter), 60);
const_assert_eq!(core::mem::offset_of!(Cqe64, signature), SIGNATURE_OFFSET);
const_assert_eq!(core::mem::offset_of!(Cqe64, op_own), OP_OWN_OFFSET);
const_assert_eq!(size_of::<Cqe128>(), 128);
const_assert_eq!(core::mem::offset_of!(Cqe128, cqe), 64);
const_assert_eq!(size_of::<PacketFields>(), 32);
const_assert_eq!(core::mem::offset_of!(PacketFields, wqe_id), 2);
const_assert_eq!(core::mem::offset_of!(PacketFields, hash), 12);
const_assert_eq!(core::mem::offset_of!(PacketFields, path_bits), 17);
const_assert_eq!(core::mem::offset_of!(PacketFields, checksum), 20);
const_assert_eq!(core::mem::offset_of!(PacketFields, source_lid), 22);
const_assert_eq!(core::mem::offset_of!(PacketFields, flags_source_qpn), 24);
const_assert_eq!(core::mem::offset_of!(PacketFields, header_checks), 28);
const_assert_eq!(core::mem::offset_of!(PacketFields, vlan), 30);
const_assert_eq!(size_of::<ErrorCqe>(), 64);
const_assert_eq!(core::mem::offset_of!(ErrorCqe, srqn_user_index), 32);
const_assert_eq!(core::mem::offset_of!(ErrorCqe, hardware_syndrome), 52);
const_assert_eq!(core::mem::offset_of!(ErrorCqe, hardware_syndrome_type), 53);
const_assert_eq!(core::mem::offset_of!(ErrorCqe, vendor_syndrome), 54);
const_assert_eq!(core::mem::offset_of!(ErrorCqe, syndrome), 55);
const_assert_eq!(core::mem::offset_of!(ErrorCqe, opcode_qpn), 56);
const_assert_eq!(core::mem::offset_of!(ErrorCqe, wqe_counter), 60);
const_assert_eq!(core::mem::offset_of!(ErrorCqe, op_own), OP_OWN_OFFSET);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_entry_is_libmlx5s() {
        // reference/golden: kind cq, first_cqe_initial.
        let mut expected = [0; 64];
        expected[63] = 0xf0;
        assert_eq!(Cqe64::INITIAL.as_bytes(), expected);
        assert_eq!(Cqe64::INITIAL.opcode(), CqeOpcode::Invalid as u8);
    }

    #[test]
    fn a_completion_and_an_error_share_the_tail() {
        let error = ErrorCqe {
            reserved_0: [0; 32],
            srqn_user_index: Be32::new(5),
            reserved_36: [0; 16],
            hardware_syndrome: 0,
            hardware_syndrome_type: 0,
            vendor_syndrome: 0x88,
            syndrome: Syndrome::RemoteAccess as u8,
            opcode_qpn: Be32::new(0x0800_0048),
            wqe_counter: Be16::new(0x0102),
            signature: 0,
            op_own: (CqeOpcode::RequesterError as u8) << 4 | OWNER,
        };
        let bytes = error.as_bytes();
        assert_eq!(bytes[54..], [0x88, 0x13, 0x08, 0, 0, 0x48, 1, 2, 0, 0xd1]);
        let cqe = Cqe64::read_from_bytes(bytes).unwrap();
        assert_eq!((cqe.qpn(), cqe.wqe_counter.get(), cqe.opcode()), (0x48, 0x0102, 0xd));
        assert_eq!(ErrorCqe::read_from_bytes(bytes).unwrap(), error);
    }

    #[test]
    fn every_known_opcode_decodes_to_itself() {
        let known = (0..=u8::MAX).filter_map(CqeOpcode::from_bits).map(|opcode| opcode as u8);
        assert!(known.eq([0, 1, 2, 3, 4, 5, 6, 0xc, 0xd, 0xe, 0xf]));
    }

    #[test]
    fn formats_are_two_bits() {
        for op_own in 0..=u8::MAX {
            assert_eq!(CqeFormat::from_op_own(op_own).bits(), op_own & FORMAT);
        }
        assert_eq!(CqeFormat::Inline32.bits(), 0x4, "MLX5_INLINE_SCATTER_32");
        assert_eq!(CqeFormat::Inline64.bits(), 0x8, "MLX5_INLINE_SCATTER_64");
    }

    #[test]
    fn a_datagrams_sender_is_in_the_metadata() {
        let mut cqe = Cqe64::INITIAL;
        cqe.metadata[17] = 0x05;
        cqe.metadata[20..28].copy_from_slice(&[0xab, 0xcd, 0x12, 0x34, 0x27, 0, 0, 0x4d]);
        cqe.srqn_user_index = Be32::new(0x7f00_0102);
        cqe.opcode_qpn = Be32::new(0x0a00_0048);
        let packet = cqe.packet();
        assert_eq!(
            (packet.source_qpn(), packet.service_level(), packet.has_global_route()),
            (0x4d, 7, true)
        );
        assert_eq!((packet.source_lid.get(), packet.path_bits), (0x1234, 5));
        assert_eq!((cqe.user_index(), cqe.send_opcode(), cqe.qpn()), (0x0102, 0x0a, 0x48));
        assert_eq!(packet.as_bytes(), cqe.metadata);
    }

    #[test]
    fn the_long_form_ends_with_the_short_one() {
        let long = Cqe128 { data: [7; 64], cqe: Cqe64::INITIAL };
        let bytes = long.as_bytes();
        assert_eq!((bytes[63], bytes[64], bytes[127]), (7, 0, INITIAL_OP_OWN));
        assert_eq!(Cqe128::read_from_bytes(bytes).unwrap(), long);
    }
}
