//! The entries of a completion ring: 64 bytes, or 128 with the CQE in the second half.

use core::fmt;

use barewire_layouts::cqe::{Cqe64, Cqe128, HARDWARE_OP_OWN};
use zerocopy::{FromBytes, IntoBytes};

mod sealed {
    /// Any bytes are a valid entry.
    pub trait Sealed: super::FromBytes + super::IntoBytes {}

    impl Sealed for super::Cqe64 {}
    impl Sealed for super::Cqe128 {}
}

/// An entry of a completion ring: [`Cqe64`] or [`Cqe128`]. Selected by type when the queue is
/// created (PRM: CQC, cqe_sz).
pub trait Slot: sealed::Sealed + Copy + fmt::Debug + 'static {
    /// Offset of the CQE in bytes.
    const CQE: usize;
    /// The initial value: owner bit set for the first lap, and a lap number that differs from those
    /// of the first laps.
    const INITIAL: Self;

    /// The CQE.
    fn cqe(&self) -> &Cqe64;

    /// The bytes before it.
    fn data(&self) -> Option<&[u8; 64]>;
}

impl Slot for Cqe64 {
    const CQE: usize = 0;
    const INITIAL: Self = Self { op_own: HARDWARE_OP_OWN, signature: 0xff, ..Cqe64::INITIAL };

    #[inline(always)]
    fn cqe(&self) -> &Cqe64 {
        self
    }

    #[inline(always)]
    fn data(&self) -> Option<&[u8; 64]> {
        None
    }
}

impl Slot for Cqe128 {
    const CQE: usize = 64;
    const INITIAL: Self = Self { data: [0; 64], cqe: <Cqe64 as Slot>::INITIAL };

    #[inline(always)]
    fn cqe(&self) -> &Cqe64 {
        &self.cqe
    }

    #[inline(always)]
    fn data(&self) -> Option<&[u8; 64]> {
        Some(&self.data)
    }
}
