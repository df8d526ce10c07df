//! Event queue entries (EQEs).
//!
//! Sources: linux device.h `struct mlx5_eqe`, `union ev_data`, `enum mlx5_event`; eq.c for the
//! owner bit, which is the lap's parity as in a completion queue.

use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::be::Be32;
use crate::codes::codes;

/// `owner` of an entry as the driver initialises it: the device's on the first lap.
pub const INITIAL_OWNER: u8 = 0x01;
/// The owner bit. The device owns the entry while it differs from the parity of the consumer's lap.
pub const OWNER: u8 = 0x01;
/// Offset of the owner byte, the one that is written last.
pub const OWNER_OFFSET: usize = 63;

codes! {
    /// What happened (mlx5 device.h: `MLX5_EVENT_TYPE_*`).
    EventType {
        /// An armed completion queue has completions.
        Completion = 0x00,
        /// The first packet arrived at a queue pair that is ready to receive.
        CommunicationEstablished = 0x02,
        /// A draining send queue is empty.
        SendQueueDrained = 0x03,
        /// A completion queue is in error: see [`CqErrorSyndrome`].
        CqError = 0x04,
        /// A queue pair failed in a way that no completion can report.
        WqCatastrophic = 0x05,
        /// The device failed.
        InternalError = 0x08,
        /// A port changed: see [`PortChange`].
        PortChange = 0x09,
        /// Work waits for pages: see [`crate::page_fault`].
        PageFault = 0x0c,
        /// A responder met an invalid request.
        WqInvalidRequest = 0x10,
        /// A responder met a request that its rights or keys do not allow.
        WqAccess = 0x11,
        /// A shared receive queue failed.
        SrqCatastrophic = 0x12,
        /// A queue pair in error holds no WQE of its shared receive queue any more.
        LastWqeReached = 0x13,
        /// A shared receive queue holds fewer WQEs than its limit.
        SrqLimit = 0x14,
        /// All of a dynamically connected target's work is done.
        DctDrained = 0x1c,
        /// A request had the wrong access key for a dynamically connected target.
        DctKeyViolation = 0x1d,
    }
}

impl EventType {
    /// Returns its bit in an event queue's mask. All known types are in the first of the mask's
    /// four words.
    pub const fn mask(self) -> u64 {
        1 << self as u8
    }
}

/// What happened to a port: the sub-type of [`EventType::PortChange`] (mlx5 device.h:
/// `MLX5_PORT_CHANGE_SUBTYPE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PortChange {
    /// The link went down.
    Down = 1,
    /// The link came up.
    Active = 4,
}

/// Why a completion queue is in error (mlx4 and mlx5 drivers print the number; PRM, CQ error
/// event).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CqErrorSyndrome {
    /// An entry was lost: the queue was full.
    Overrun = 0x1,
    /// The device could not write to the queue's memory.
    AccessViolation = 0x2,
}

/// An event (mlx5 device.h: `struct mlx5_eqe`).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Eqe {
    /// Reserved.
    pub reserved_0: u8,
    /// See [`EventType::from_bits`].
    pub event_type: u8,
    /// Reserved.
    pub reserved_2: u8,
    /// Means something for some types: [`PortChange`].
    pub sub_type: u8,
    /// Reserved.
    pub reserved_4: [u8; 28],
    /// Data, depending on the type.
    pub data: [Be32; 7],
    /// Reserved.
    pub reserved_60: [u8; 2],
    /// Signature.
    pub signature: u8,
    /// Owner bit.
    pub owner: u8,
}

impl Eqe {
    /// The entry as the driver initialises it.
    pub const INITIAL: Self = Self {
        reserved_0: 0,
        event_type: 0,
        reserved_2: 0,
        sub_type: 0,
        reserved_4: [0; 28],
        data: [Be32::ZERO; 7],
        reserved_60: [0; 2],
        signature: 0,
        owner: INITIAL_OWNER,
    };

    pub(crate) const fn new(event_type: EventType, sub_type: u8, data: [Be32; 7]) -> Self {
        Self { event_type: event_type as u8, sub_type, data, owner: 0, ..Self::INITIAL }
    }

    const fn last(number: u32) -> [Be32; 7] {
        let mut data = [Be32::ZERO; 7];
        data[6] = Be32::new(number & 0x00ff_ffff);
        data
    }

    /// Completion queue `cqn`, which was armed, has completions (`struct mlx5_eqe_comp`).
    pub const fn completion(cqn: u32) -> Self {
        Self::new(EventType::Completion, 0, Self::last(cqn))
    }

    /// Something happened to queue pair or shared receive queue `number` (`struct mlx5_eqe_qp_srq`;
    /// its type is 0, a queue pair's).
    pub const fn queue(event_type: EventType, number: u32) -> Self {
        Self::new(event_type, 0, Self::last(number))
    }

    /// Completion queue `cqn` is in error (`struct mlx5_eqe_cq_err`).
    pub const fn cq_error(cqn: u32, syndrome: CqErrorSyndrome) -> Self {
        let mut data = [Be32::ZERO; 7];
        data[0] = Be32::new(cqn & 0x00ff_ffff);
        data[2] = Be32::new(syndrome as u32);
        Self::new(EventType::CqError, 0, data)
    }

    /// Port `port` (from 1) changed (`struct mlx5_eqe_port_state`: the number is in the high half
    /// of its byte).
    pub const fn port(change: PortChange, port: u8) -> Self {
        let mut data = [Be32::ZERO; 7];
        data[2] = Be32::new((port as u32) << 28);
        Self::new(EventType::PortChange, change as u8, data)
    }

    /// The number in the last data word: completion queue, queue pair or shared receive queue.
    #[inline]
    pub const fn number(&self) -> u32 {
        self.data[6].get() & 0x00ff_ffff
    }

    /// The completion queue of [`EventType::CqError`].
    #[inline]
    pub const fn failed_cqn(&self) -> u32 {
        self.data[0].get() & 0x00ff_ffff
    }

    /// The syndrome byte of [`EventType::CqError`]: see [`CqErrorSyndrome`].
    #[inline]
    pub const fn syndrome(&self) -> u8 {
        self.data[2].get() as u8
    }

    /// The port of [`EventType::PortChange`], from 1.
    #[inline]
    pub const fn port_number(&self) -> u8 {
        (self.data[2].get() >> 28) as u8
    }

    /// All bytes.
    #[inline]
    pub const fn to_bytes(self) -> [u8; 64] {
        transmute!(self)
    }
}

const_assert_eq!(size_of::<Eqe>(), 64);
const_assert_eq!(core::mem::offset_of!(Eqe, event_type), 1);
const_assert_eq!(core::mem::offset_of!(Eqe, sub_type), 3);
const_assert_eq!(core::mem::offset_of!(Eqe, data), 0x20);
const_assert_eq!(core::mem::offset_of!(Eqe, signature), 0x3e);
const_assert_eq!(core::mem::offset_of!(Eqe, owner), OWNER_OFFSET);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_headers_own() {
        // mlx5 device.h, enum mlx5_event.
        assert_eq!(EventType::from_bits(0x13), Some(EventType::LastWqeReached));
        assert_eq!(EventType::from_bits(0x14), Some(EventType::SrqLimit));
        assert_eq!(EventType::from_bits(0x01), None);
        assert_eq!(EventType::PortChange.mask(), 1 << 9);
        assert!(EventType::ALL.is_sorted_by_key(|event| *event as u8));
    }

    #[test]
    fn events_byte_for_byte() {
        let event = Eqe::completion(0x01_0203).to_bytes();
        assert_eq!((event[1], &event[0x38..0x3c]), (0, &[0, 1, 2, 3][..]));
        let event = Eqe::queue(EventType::WqAccess, 0x48).to_bytes();
        assert_eq!((event[1], event[0x34], event[0x3b]), (0x11, 0, 0x48));
        let event = Eqe::cq_error(0x40, CqErrorSyndrome::Overrun).to_bytes();
        assert_eq!((event[1], event[0x23], event[0x2b]), (4, 0x40, 1));
        let event = Eqe::port(PortChange::Active, 1).to_bytes();
        assert_eq!((event[1], event[3], event[0x28]), (9, 4, 0x10));
    }

    #[test]
    fn events_tell_their_numbers() {
        assert_eq!(Eqe::completion(7).number(), 7);
        let error = Eqe::cq_error(9, CqErrorSyndrome::AccessViolation);
        assert_eq!((error.failed_cqn(), error.syndrome()), (9, 2));
        assert_eq!(Eqe::port(PortChange::Down, 1).port_number(), 1);
        let mut want = [0; 64];
        want[63] = 1;
        assert_eq!(Eqe::INITIAL.to_bytes(), want);
    }
}
