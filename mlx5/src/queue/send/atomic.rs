//! Atomics: standard ones of 8 bytes, and masked ones of 4 or 8 bytes.
//!
//! A device reports the latter in its capabilities (PRM: atomic capabilities, masked compare-swap
//! and fetch-add).

use barewire_layouts::be::{Be32, Be64};
use barewire_layouts::wqe::{
    AtomicSegment, ControlFlags, DS, DataSegment, MaskedCompareSwap32, MaskedCompareSwap64,
    MaskedFetchAdd32, MaskedFetchAdd64, Opcode, RemoteAddressSegment, extended_atomic_modifier,
};
use zerocopy::transmute;

use super::{PostError, SendQueue, WqeIndex};
use crate::doorbell::Doorbell;
use crate::wqe::Unit;

/// Opcode modifiers of extended atomics on 4 and on 8 bytes.
pub(super) const BYTES_4: u8 = extended_atomic_modifier(2);
pub(super) const BYTES_8: u8 = extended_atomic_modifier(3);

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

impl MaskedSwap<u32> {
    /// The operands as a WQE carries them.
    #[inline(always)]
    pub(super) fn unit(self) -> Unit {
        Unit::segment(&MaskedCompareSwap32 {
            swap: Be32::new(self.swap),
            compare: Be32::new(self.compare),
            swap_mask: Be32::new(self.swap_mask),
            compare_mask: Be32::new(self.compare_mask),
        })
    }
}

impl MaskedSwap<u64> {
    /// The operands as a WQE carries them.
    #[inline(always)]
    pub(super) fn units(self) -> [Unit; 2] {
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
    /// The operands as a WQE carries them.
    #[inline(always)]
    pub(super) fn unit(self) -> Unit {
        Unit::segment(&MaskedFetchAdd32 {
            add: Be32::new(self.operand),
            field_boundary: Be32::new(self.field_boundary),
            reserved: Be64::ZERO,
        })
    }
}

impl MaskedAdd<u64> {
    /// The operands as a WQE carries them.
    #[inline(always)]
    pub(super) fn unit(self) -> Unit {
        Unit::segment(&MaskedFetchAdd64 {
            add: Be64::new(self.operand),
            field_boundary: Be64::new(self.field_boundary),
        })
    }
}

/// The operands of a standard atomic as a WQE carries them.
#[inline(always)]
pub(super) fn standard(swap_or_add: u64, compare: u64) -> Unit {
    Unit::segment(&AtomicSegment {
        swap_or_add: Be64::new(swap_or_add),
        compare: Be64::new(compare),
    })
}

/// Atomics of 8 bytes.
impl<D: Doorbell> SendQueue<D> {
    /// Adds `operand` to the remote 8 bytes (aligned to 8). The previous value is written to
    /// `local` (8 bytes, host order).
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn fetch_add(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        operand: u64,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let units = [Unit::remote(&remote), standard(operand, 0), Unit::local(&local)];
        self.post_block::<4>(Opcode::AtomicFetchAdd, 0, flags, units)
    }

    /// Replaces the remote 8 bytes (aligned to 8) by `swap` if they equal `compare`. The previous
    /// value is written to `local` (8 bytes, host order).
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn compare_swap(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        compare: u64,
        swap: u64,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let units = [Unit::remote(&remote), standard(swap, compare), Unit::local(&local)];
        self.post_block::<4>(Opcode::AtomicCompareSwap, 0, flags, units)
    }
}

/// Extended atomics. `remote` must be aligned to the size of the operation. The previous value is
/// written to `local`, 4 or 8 bytes long.
impl<D: Doorbell> SendQueue<D> {
    /// Masked compare-and-swap of the remote 4 bytes.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn masked_compare_swap_32(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        operands: MaskedSwap<u32>,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let units = [Unit::remote(&remote), operands.unit(), Unit::local(&local)];
        self.post_extended(Opcode::MaskedCompareSwap, BYTES_4, flags, units)
    }

    /// Masked compare-and-swap of the remote 8 bytes.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn masked_compare_swap_64(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        operands: MaskedSwap<u64>,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let [low, high] = operands.units();
        let (zero, local) = (Unit::zero(), Unit::local(&local));
        let blocks = [[zero, Unit::remote(&remote), low, high], [local, zero, zero, zero]];
        self.post_blocks::<2, 5>(Opcode::MaskedCompareSwap, BYTES_8, 0, flags, blocks)
    }

    /// Adds to the fields of the remote 4 bytes. The previous value is written to `local`,
    /// big-endian.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn masked_fetch_add_32(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        operands: MaskedAdd<u32>,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let units = [Unit::remote(&remote), operands.unit(), Unit::local(&local)];
        self.post_extended(Opcode::MaskedFetchAdd, BYTES_4, flags, units)
    }

    /// Adds to the fields of the remote 8 bytes.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    #[inline]
    pub fn masked_fetch_add_64(
        &mut self,
        local: DataSegment,
        remote: RemoteAddressSegment,
        operands: MaskedAdd<u64>,
        flags: ControlFlags,
    ) -> Result<WqeIndex, PostError> {
        let units = [Unit::remote(&remote), operands.unit(), Unit::local(&local)];
        self.post_extended(Opcode::MaskedFetchAdd, BYTES_8, flags, units)
    }

    /// Posts an extended atomic of one block.
    #[inline(always)]
    fn post_extended(
        &mut self,
        opcode: Opcode,
        modifier: u8,
        flags: ControlFlags,
        [remote, operands, local]: [Unit; 3],
    ) -> Result<WqeIndex, PostError> {
        self.post_blocks::<1, 4>(
            opcode,
            modifier,
            0,
            flags,
            [[Unit::zero(), remote, operands, local]],
        )
    }
}
