//! Completion queue entries (CQEs).
//!
//! Sources: mlx5dv.h `struct mlx5_cqe64`, `struct mlx5_err_cqe`, PRM 'Completion Queue Entry'. A 128-byte CQE carries the same
//! 64 bytes in its second half.

use core::fmt;

use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::be::{Be16, Be32, Be64};

/// `op_own` as libmlx5 initialises it: opcode [`CqeOpcode::Invalid`], owner bit clear. A consumer must test opcode and owner bit.
pub const INITIAL_OP_OWN: u8 = 0xf0;
/// `op_own` of a CQE that the device owns on the first lap: opcode [`CqeOpcode::Invalid`], owner bit set, so that the owner bit
/// alone tells whether an entry is software's.
pub const HARDWARE_OP_OWN: u8 = 0xf1;
/// The owner bit of `op_own`. Hardware owns the entry while it differs from the parity of the consumer's lap.
pub const OWNER: u8 = 0x01;
/// The solicited-event bit of `op_own`.
pub const SOLICITED: u8 = 0x02;
/// Offset of `op_own`, the byte that is written last.
pub const OP_OWN_OFFSET: usize = 63;

/// Who completed, and how (mlx5dv.h: `MLX5_CQE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CqeOpcode {
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
    /// A signature error.
    SignatureError = 0xc,
    /// A send queue's WQE failed: read the entry as [`ErrorCqe`].
    RequesterError = 0xd,
    /// A receive WQE failed: read the entry as [`ErrorCqe`].
    ResponderError = 0xe,
    /// Never written.
    Invalid = 0xf,
}

impl CqeOpcode {
    /// Decodes the high half of `op_own`.
    #[inline]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0x0 => Self::Requester,
            0x1 => Self::ResponderWriteImmediate,
            0x2 => Self::ResponderSend,
            0x3 => Self::ResponderSendImmediate,
            0x4 => Self::ResponderSendInvalidate,
            0x5 => Self::Resize,
            0xc => Self::SignatureError,
            0xd => Self::RequesterError,
            0xe => Self::ResponderError,
            0xf => Self::Invalid,
            _ => return None,
        })
    }
}

/// Why a WQE failed, in the device's own words (mlx5dv.h: `MLX5_CQE_SYNDROME_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Syndrome {
    /// A received message was longer than the receive WQE's buffers, or a send longer than the port's maximum.
    LocalLength = 0x01,
    /// The WQE itself was malformed or not allowed on this queue.
    LocalQpOperation = 0x02,
    /// A local key did not cover the address, or lacked the right.
    LocalProtection = 0x04,
    /// The queue was in error before this WQE was executed.
    WorkRequestFlushed = 0x05,
    /// A memory window could not be bound.
    MemoryWindowBind = 0x06,
    /// The peer's response was not what was asked for.
    BadResponse = 0x10,
    /// The responder hit a protection error in its own receive buffers.
    LocalAccess = 0x11,
    /// The peer rejected the request as invalid.
    RemoteInvalidRequest = 0x12,
    /// The remote key did not cover the address, or lacked the right.
    RemoteAccess = 0x13,
    /// The peer could not complete the operation.
    RemoteOperation = 0x14,
    /// No acknowledgement came within timeout and retry count.
    TransportRetryExceeded = 0x15,
    /// The peer had no receive WQE for longer than the RNR retry count allows.
    RnrRetryExceeded = 0x16,
    /// The peer aborted the operation.
    RemoteAborted = 0x22,
}

impl Syndrome {
    /// Decodes the syndrome byte; `None` for one that this crate does not know.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0x01 => Self::LocalLength,
            0x02 => Self::LocalQpOperation,
            0x04 => Self::LocalProtection,
            0x05 => Self::WorkRequestFlushed,
            0x06 => Self::MemoryWindowBind,
            0x10 => Self::BadResponse,
            0x11 => Self::LocalAccess,
            0x12 => Self::RemoteInvalidRequest,
            0x13 => Self::RemoteAccess,
            0x14 => Self::RemoteOperation,
            0x15 => Self::TransportRetryExceeded,
            0x16 => Self::RnrRetryExceeded,
            0x22 => Self::RemoteAborted,
            _ => return None,
        })
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LocalLength => "local length error",
            Self::LocalQpOperation => "local queue pair operation error",
            Self::LocalProtection => "local protection error",
            Self::WorkRequestFlushed => "work request flushed",
            Self::MemoryWindowBind => "memory window bind error",
            Self::BadResponse => "bad response",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::TransportRetryExceeded => "transport retry count exceeded",
            Self::RnrRetryExceeded => "receiver-not-ready retry count exceeded",
            Self::RemoteAborted => "remote aborted",
        })
    }
}

/// A completion (mlx5dv.h: `struct mlx5_cqe64`). Fields that only Ethernet or tag matching use are kept as reserved bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Cqe64 {
    /// Packet metadata; holds up to 32 bytes of scattered data when the inline-scatter bit is set.
    pub metadata: [u8; 32],
    /// Shared receive queue number or user index of the queue pair (24 bits).
    pub srqn_user_index: Be32,
    /// Immediate, or the key that was invalidated.
    pub immediate: Be32,
    /// Offload application fields.
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
}

/// A failed WQE (mlx5dv.h: `struct mlx5_err_cqe`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ErrorCqe {
    /// Reserved.
    pub reserved_0: [u8; 32],
    /// Shared receive queue number or user index of the queue pair (24 bits).
    pub srqn_user_index: Be32,
    /// Reserved.
    pub reserved_36: [u8; 18],
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
}

const_assert_eq!(size_of::<Cqe64>(), 64);
const_assert_eq!(core::mem::offset_of!(Cqe64, srqn_user_index), 32);
const_assert_eq!(core::mem::offset_of!(Cqe64, immediate), 36);
const_assert_eq!(core::mem::offset_of!(Cqe64, application), 40);
const_assert_eq!(core::mem::offset_of!(Cqe64, byte_count), 44);
const_assert_eq!(core::mem::offset_of!(Cqe64, timestamp), 48);
const_assert_eq!(core::mem::offset_of!(Cqe64, opcode_qpn), 56);
const_assert_eq!(core::mem::offset_of!(Cqe64, wqe_counter), 60);
const_assert_eq!(core::mem::offset_of!(Cqe64, signature), 62);
const_assert_eq!(core::mem::offset_of!(Cqe64, op_own), OP_OWN_OFFSET);
const_assert_eq!(size_of::<ErrorCqe>(), 64);
const_assert_eq!(core::mem::offset_of!(ErrorCqe, srqn_user_index), 32);
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
            reserved_36: [0; 18],
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
    fn every_known_code_decodes_to_itself() {
        for bits in 0..=u8::MAX {
            if let Some(syndrome) = Syndrome::from_bits(bits) {
                assert_eq!(syndrome as u8, bits);
            }
            if let Some(opcode) = CqeOpcode::from_bits(bits) {
                assert_eq!(opcode as u8, bits);
            }
        }
    }
}
