//! Atomics: standard ones of 8 bytes, and masked ones of 4 or 8 bytes.
//!
//! A device reports the latter in its capabilities (PRM: atomic capabilities, masked compare-swap
//! and fetch-add). The remote word must be aligned to its size. Its previous value is written to
//! `local`, as long as the word.

use barewire_layouts::be::{Be32, Be64};
use barewire_layouts::wqe::{
    AtomicSegment, ControlFlags, DS, DataSegment, MaskedCompareSwap32, MaskedCompareSwap64,
    MaskedFetchAdd32, MaskedFetchAdd64, Opcode, RemoteAddressSegment, extended_atomic_modifier,
};
use zerocopy::transmute;

use super::super::{Destination, Directed};
use super::{Head, Posting, ToPeer, sealed};
use crate::doorbell::Doorbell;
use crate::wqe::Unit;

/// Opcode modifiers of extended atomics on 4 and on 8 bytes.
const BYTES_4: u8 = extended_atomic_modifier(2);
const BYTES_8: u8 = extended_atomic_modifier(3);

/// Adds to the remote 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct FetchAdd {
    /// Where the previous value is stored, in host order.
    pub local: DataSegment,
    /// The word, aligned to 8.
    pub remote: RemoteAddressSegment,
    /// What is added.
    pub add: u64,
}

/// Replaces the remote 8 bytes by `swap` if they equal `compare`.
#[derive(Clone, Copy, Debug)]
pub struct CompareSwap {
    /// Where the previous value is stored, in host order.
    pub local: DataSegment,
    /// The word, aligned to 8.
    pub remote: RemoteAddressSegment,
    /// The value to compare with.
    pub compare: u64,
    /// The value to swap in.
    pub swap: u64,
}

/// Masked compare-and-swap of the remote 4 (`u32`) or 8 (`u64`) bytes.
#[derive(Clone, Copy, Debug)]
pub struct MaskedCompareSwap<T> {
    /// Where the previous value is stored: of 4 bytes big-endian, of 8 in host order.
    pub local: DataSegment,
    /// The word, aligned to its size.
    pub remote: RemoteAddressSegment,
    /// The operands.
    pub operands: MaskedSwap<T>,
}

/// Adds to the fields of the remote 4 (`u32`) or 8 (`u64`) bytes.
#[derive(Clone, Copy, Debug)]
pub struct MaskedFetchAdd<T> {
    /// Where the previous value is stored: of 4 bytes big-endian, of 8 in host order.
    pub local: DataSegment,
    /// The word, aligned to its size.
    pub remote: RemoteAddressSegment,
    /// The operands.
    pub operands: MaskedAdd<T>,
}

/// Operands of a masked compare-and-swap: if `(remote & compare_mask) == (compare & compare_mask)`,
/// the bits of `swap_mask` are replaced by those of `swap`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MaskedSwap<T> {
    /// The value to compare with.
    pub compare: T,
    /// The bits to compare.
    pub compare_mask: T,
    /// The value to swap in.
    pub swap: T,
    /// The bits to swap.
    pub swap_mask: T,
}

/// Operands of a masked fetch-and-add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MaskedAdd<T> {
    /// The value to add.
    pub operand: T,
    /// Each set bit is the highest bit of a field, whose carry is dropped: `1 << 31` and `1 << 15`
    /// make two 16-bit fields. Zero: one field.
    pub field_boundary: T,
}

/// The operands of a standard atomic as a WQE carries them.
#[inline(always)]
fn standard(swap_or_add: u64, compare: u64) -> Unit {
    Unit::segment(&AtomicSegment {
        swap_or_add: Be64::new(swap_or_add),
        compare: Be64::new(compare),
    })
}

/// `atomics!(Type(name) { opcode, modifier, units of the operands } ...)`.
macro_rules! atomics {
    ($($type:ty, $name:ident { $opcode:ident, $modifier:expr, [$($unit:expr),+] })+) => {$(
        impl sealed::Request for $type {
            #[inline(always)]
            fn post_to<A: Destination, D: Doorbell>(
                self,
                to: Directed<'_, A, D>,
                flags: ControlFlags,
            ) -> Posting {
                let $name = self;
                let head = Head { opcode: Opcode::$opcode, modifier: $modifier, immediate: 0 };
                let units = [$($unit,)+ Unit::local(&self.local)];
                to.post_units(head, flags, Some(Unit::remote(&self.remote)), units)
            }
        }

        impl ToPeer for $type {}
    )+};
}

atomics! {
    FetchAdd, atomic { AtomicFetchAdd, 0, [standard(atomic.add, 0)] }
    CompareSwap, atomic { AtomicCompareSwap, 0, [standard(atomic.swap, atomic.compare)] }
    MaskedCompareSwap<u32>, atomic { MaskedCompareSwap, BYTES_4, [atomic.operands.unit()] }
    MaskedFetchAdd<u32>, atomic { MaskedFetchAdd, BYTES_4, [atomic.operands.unit()] }
    MaskedFetchAdd<u64>, atomic { MaskedFetchAdd, BYTES_8, [atomic.operands.unit()] }
}

impl sealed::Request for MaskedCompareSwap<u64> {
    #[inline(always)]
    fn post_to<A: Destination, D: Doorbell>(
        self,
        to: Directed<'_, A, D>,
        flags: ControlFlags,
    ) -> Posting {
        let head = Head { opcode: Opcode::MaskedCompareSwap, modifier: BYTES_8, immediate: 0 };
        let [low, high] = self.operands.units();
        to.post_units(
            head,
            flags,
            Some(Unit::remote(&self.remote)),
            [low, high, Unit::local(&self.local)],
        )
    }
}

impl ToPeer for MaskedCompareSwap<u64> {}

/// The operands as a WQE carries them.
impl MaskedSwap<u32> {
    #[inline(always)]
    fn unit(self) -> Unit {
        Unit::segment(&MaskedCompareSwap32 {
            swap: Be32::new(self.swap),
            compare: Be32::new(self.compare),
            swap_mask: Be32::new(self.swap_mask),
            compare_mask: Be32::new(self.compare_mask),
        })
    }
}

impl MaskedSwap<u64> {
    #[inline(always)]
    fn units(self) -> [Unit; 2] {
        let operands: [[u8; DS]; 2] = transmute!(MaskedCompareSwap64 {
            swap: Be64::new(self.swap),
            compare: Be64::new(self.compare),
            swap_mask: Be64::new(self.swap_mask),
            compare_mask: Be64::new(self.compare_mask),
        });
        operands.map(|unit| Unit::load(&unit))
    }
}

impl MaskedAdd<u32> {
    #[inline(always)]
    fn unit(self) -> Unit {
        Unit::segment(&MaskedFetchAdd32 {
            add: Be32::new(self.operand),
            field_boundary: Be32::new(self.field_boundary),
            reserved: Be64::ZERO,
        })
    }
}

impl MaskedAdd<u64> {
    #[inline(always)]
    fn unit(self) -> Unit {
        Unit::segment(&MaskedFetchAdd64 {
            add: Be64::new(self.operand),
            field_boundary: Be64::new(self.field_boundary),
        })
    }
}
