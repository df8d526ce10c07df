//! Doorbell records and the user access region (UAR) page.
//!
//! Sources: mlx5dv.h (`struct mlx5dv_qp`, `struct mlx5dv_cq`), PRM 'UAR Page Format' and 'Doorbell
//! Record'.

use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::be::{Be32, Be64};

/// Bytes of a UAR page.
pub const UAR_PAGE: usize = 4096;
/// Offset of the 8-byte CQ doorbell in a UAR page.
pub const CQ_DOORBELL_OFFSET: usize = 0x20;
/// Offset of the EQ doorbell that arms, in a UAR page (mlx5 eq.c: `MLX5_EQ_DOORBEL_OFFSET`).
pub const EQ_ARM_OFFSET: usize = 0x40;
/// Offset of the EQ doorbell that only updates the consumer counter.
pub const EQ_CONSUMER_OFFSET: usize = 0x48;
/// Offset of the first BlueFlame register in a UAR page.
pub const BLUEFLAME_OFFSET: usize = 0x800;
/// Distance between the BlueFlame registers of a page.
pub const BLUEFLAME_STRIDE: usize = 0x200;
/// Bytes of one half of a BlueFlame register. The two halves are written in turns; XOR with this
/// flips between them.
pub const BLUEFLAME_HALF: usize = 0x100;
/// BlueFlame registers of a page that any queue may use (the last two of the four slots are the
/// fast-path ones).
pub const BLUEFLAME_REGISTERS: usize = 2;

/// The doorbell record of a queue pair: software's producer counters, in host memory.
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
pub struct DoorbellRecord {
    /// Receive WQEs posted, modulo 2^16.
    pub receive: Be32,
    /// Send WQEBBs posted, modulo 2^16.
    pub send: Be32,
}

/// The doorbell record of a completion queue.
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
pub struct CqDoorbellRecord {
    /// CQEs consumed, modulo 2^24.
    pub consumer: Be32,
    /// The last arm request: see [`CqArm`].
    pub arm: Be32,
}

/// What arms a completion queue: the value of [`CqDoorbellRecord::arm`] and the high word of
/// [`CqDoorbell`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqArm {
    /// Counts the events that were asked for, modulo 4.
    pub sequence: u8,
    /// Fire only for a solicited completion.
    pub solicited_only: bool,
    /// CQEs consumed, modulo 2^24.
    pub consumer: u32,
}

impl CqArm {
    /// The 32-bit word: sequence in bits 28-29, command in bit 24, consumer counter below.
    pub const fn bits(self) -> u32 {
        (self.sequence as u32 & 3) << 28
            | (self.solicited_only as u32) << 24
            | (self.consumer & 0x00ff_ffff)
    }

    /// Takes the word apart; bits that mean nothing are ignored.
    pub const fn from_bits(bits: u32) -> Self {
        Self {
            sequence: (bits >> 28) as u8 & 3,
            solicited_only: bits >> 24 & 1 != 0,
            consumer: bits & 0x00ff_ffff,
        }
    }
}

/// The 8 bytes written at [`CQ_DOORBELL_OFFSET`]: an arm word, then the completion queue number.
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
#[repr(transparent)]
pub struct CqDoorbell(pub Be64);

impl CqDoorbell {
    /// The doorbell that arms queue `cqn` (24 bits).
    pub const fn new(arm: CqArm, cqn: u32) -> Self {
        Self(Be64::new((arm.bits() as u64) << 32 | (cqn & 0x00ff_ffff) as u64))
    }
}

/// The 4 bytes written at [`EQ_ARM_OFFSET`] or [`EQ_CONSUMER_OFFSET`]: event queue number (8 bits),
/// EQEs consumed modulo 2^24.
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
#[repr(transparent)]
pub struct EqDoorbell(pub Be32);

impl EqDoorbell {
    /// The doorbell of event queue `eqn` (8 bits), of which `consumer` entries are consumed.
    pub const fn new(eqn: u32, consumer: u32) -> Self {
        Self(Be32::new(eqn << 24 | (consumer & 0x00ff_ffff)))
    }

    /// The event queue.
    pub const fn eqn(self) -> u32 {
        self.0.get() >> 24
    }

    /// EQEs consumed, modulo 2^24.
    pub const fn consumer(self) -> u32 {
        self.0.get() & 0x00ff_ffff
    }
}

const_assert_eq!(size_of::<DoorbellRecord>(), 8);
const_assert_eq!(core::mem::offset_of!(DoorbellRecord, receive), 0);
const_assert_eq!(core::mem::offset_of!(DoorbellRecord, send), 4);
const_assert_eq!(size_of::<CqDoorbellRecord>(), 8);
const_assert_eq!(core::mem::offset_of!(CqDoorbellRecord, arm), 4);
const_assert_eq!(size_of::<CqDoorbell>(), 8);
const_assert_eq!(BLUEFLAME_STRIDE, 2 * BLUEFLAME_HALF);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_hold_receive_before_send() {
        // reference/golden, write_inl_8_unsig: the doorbell record after one send WQEBB.
        let record = DoorbellRecord { receive: Be32::ZERO, send: Be32::new(1) };
        assert_eq!(record.as_bytes(), [0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn event_queue_doorbells_hold_number_and_counter() {
        let doorbell = EqDoorbell::new(5, 0xff12_3456);
        assert_eq!(doorbell.as_bytes(), [5, 0x12, 0x34, 0x56]);
        assert_eq!((doorbell.eqn(), doorbell.consumer()), (5, 0x12_3456));
    }

    #[test]
    fn arm_word_round_trips() {
        let arm = CqArm { sequence: 3, solicited_only: true, consumer: 0x00ab_cdef };
        assert_eq!(arm.bits(), 0x31ab_cdef);
        assert_eq!(CqArm::from_bits(arm.bits()), arm);
        assert_eq!(CqDoorbell::new(arm, 0x400).as_bytes(), [0x31, 0xab, 0xcd, 0xef, 0, 0, 4, 0]);
    }
}
