//! Extended atomics: 4 or 8 bytes, under masks.
//!
//! A device offers them by its capabilities (PRM: atomic capabilities, masked compare-swap and fetch-add).

use barewire_layouts::be::{Be32, Be64};
use barewire_layouts::wqe::{
    ControlFlags, ControlSegment, DS, DataSegment, MaskedCompareSwap32, MaskedCompareSwap64,
    MaskedFetchAdd32, MaskedFetchAdd64, Opcode, RemoteAddressSegment, extended_atomic_modifier,
};
use zerocopy::transmute;

use super::{PostError, SendQueue, WqeIndex, emit_wrapped};
use crate::doorbell::Doorbell;
use crate::wqe::{BLOCK_UNITS, Body, Sink, Unit};

/// log2 of the bytes that an operation works on.
const BYTES_4: u8 = 2;
const BYTES_8: u8 = 3;

/// What a masked compare-and-swap compares and swaps: `(remote & compare_mask) == (compare & compare_mask)` replaces the bits of
/// `swap_mask` by those of `swap`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MaskedSwap<T> {
    /// The value to compare with.
    pub compare: T,
    /// The bits that are compared.
    pub compare_mask: T,
    /// The value to swap in.
    pub swap: T,
    /// The bits that are swapped.
    pub swap_mask: T,
}

/// What a masked fetch-and-add adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MaskedAdd<T> {
    /// The value to add.
    pub operand: T,
    /// A set bit is the highest of a field, whose carry is dropped: `1 << 31` and `1 << 15` make two 16-bit fields. Zero: one field.
    pub field_boundary: T,
}

/// Where to, with what, and where what was there before lands.
#[derive(Clone, Copy)]
struct Operands<const N: usize> {
    remote: Unit,
    values: [Unit; N],
    local: Unit,
}

impl<const N: usize> Body for Operands<N> {
    #[inline(always)]
    fn units(&self) -> u32 {
        2 + N as u32
    }

    #[inline(always)]
    fn emit(&self, sink: &mut impl Sink) {
        sink.unit(self.remote);
        for unit in self.values {
            sink.unit(unit);
        }
        sink.unit(self.local);
    }
}

/// Extended atomics. `remote` must be aligned to the operation's size; what was there before lands in `local`, 4 or 8 bytes long.
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
        let operands = MaskedCompareSwap32 {
            swap: Be32::new(operands.swap),
            compare: Be32::new(operands.compare),
            swap_mask: Be32::new(operands.swap_mask),
            compare_mask: Be32::new(operands.compare_mask),
        };
        self.post_extended(
            Opcode::MaskedCompareSwap,
            BYTES_4,
            flags,
            local,
            remote,
            [Unit::segment(&operands)],
        )
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
        let operands: [[u8; DS]; 2] = transmute!(MaskedCompareSwap64 {
            swap: Be64::new(operands.swap),
            compare: Be64::new(operands.compare),
            swap_mask: Be64::new(operands.swap_mask),
            compare_mask: Be64::new(operands.compare_mask),
        });
        let operands = operands.map(|unit| Unit::load(&unit));
        self.post_extended(Opcode::MaskedCompareSwap, BYTES_8, flags, local, remote, operands)
    }

    /// Adds to the fields of the remote 4 bytes.
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
        let operands = MaskedFetchAdd32 {
            add: Be32::new(operands.operand),
            field_boundary: Be32::new(operands.field_boundary),
            reserved: Be64::ZERO,
        };
        self.post_extended(Opcode::MaskedFetchAdd, BYTES_4, flags, local, remote, [Unit::segment(&operands)])
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
        let operands = MaskedFetchAdd64 {
            add: Be64::new(operands.operand),
            field_boundary: Be64::new(operands.field_boundary),
        };
        self.post_extended(Opcode::MaskedFetchAdd, BYTES_8, flags, local, remote, [Unit::segment(&operands)])
    }

    /// As [`SendQueue::post_wqe`], with an opcode modifier: kept apart, so that the usual operations need not carry one.
    #[inline(always)]
    fn post_extended<const N: usize>(
        &mut self,
        opcode: Opcode,
        log_bytes: u8,
        flags: ControlFlags,
        local: DataSegment,
        remote: RemoteAddressSegment,
        operands: [Unit; N],
    ) -> Result<WqeIndex, PostError> {
        let body = Operands { remote: Unit::remote(&remote), values: operands, local: Unit::local(&local) };
        let units = 1 + body.units();
        let blocks = units.div_ceil(BLOCK_UNITS as u32);
        let index = self.reserve(blocks)?;
        let signaled = (index & self.signal_mask) + blocks > self.signal_mask;
        let flags = if signaled { flags | ControlFlags::COMPLETION } else { flags };
        let control = ControlSegment::new(opcode, index as u16, self.qpn(), units, flags, 0)
            .with_modifier(extended_atomic_modifier(log_bytes));
        let control = Unit::segment(&control);
        match self.ring.linear(index, blocks) {
            Some(mut sink) => {
                sink.unit(control);
                body.emit(&mut sink);
            }
            None => emit_wrapped(control, body, self.ring.wrapping(index)),
        }
        self.publish(index, blocks);
        self.register.ring_wqe(control, &body, units);
        Ok(WqeIndex(index as u16))
    }
}
