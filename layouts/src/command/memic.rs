//! Memory on the device: ALLOC_MEMIC, DEALLOC_MEMIC (mlx5_ifc.h: `alloc_memic_*`,
//! `dealloc_memic_*`).
//!
//! Addresses are relative to the device's BAR, in which the host maps the memory
//! ([`DeviceMemCap`](super::capability::DeviceMemCap)). A memory key of mode
//! [`AccessMode::Memic`](super::mkey::AccessMode::Memic) covers it: its `start_addr` is such an
//! address, and WQEs name bytes by their offsets.

use super::{StatusOut, requests};
use crate::prm::{Field, Layout, layouts};

/// log2 of the unit of lengths and alignments (mlx5_ib.h: `MLX5_MEMIC_BASE_ALIGN`).
pub const LOG_UNIT: u8 = 6;

layouts! {
    /// Allocates memory in a range of the BAR.
    AllocMemicIn: 32, "alloc_memic_in";
    /// The address of the memory.
    AllocMemicOut: 16, "alloc_memic_out";
    /// Frees memory.
    DeallocMemicIn: 32, "dealloc_memic_in";
}

requests! {
    AllocMemicIn => AllocMemic, AllocMemicOut;
    DeallocMemicIn => DeallocMemic, StatusOut;
}

impl AllocMemicIn {
    /// log2 of the alignment, minus [`LOG_UNIT`].
    pub const LOG_MEMIC_ADDR_ALIGNMENT: Field<Self, u8> = Field::new(0x78, 8);
    /// Start of the range in which the memory may lie.
    pub const RANGE_START_ADDR: Field<Self, u64> = Field::new(0x80, 64);
    /// Bytes of that range.
    pub const RANGE_SIZE: Field<Self> = Field::new(0xc0, 32);
    /// Bytes of memory.
    pub const MEMIC_SIZE: Field<Self> = Field::new(0xe0, 32);
}

impl AllocMemicOut {
    /// Address of the first byte.
    pub const MEMIC_START_ADDR: Field<Self, u64> = Field::new(0x40, 64);
}

impl DeallocMemicIn {
    /// Address of the first byte.
    pub const MEMIC_START_ADDR: Field<Self, u64> = Field::new(0x80, 64);
    /// Bytes of memory.
    pub const MEMIC_SIZE: Field<Self> = Field::new(0xc0, 32);
}

const _: () = assert!(AllocMemicIn::BYTES == 0x100 / 8 && DeallocMemicIn::BYTES == 0x100 / 8);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::request;
    use crate::prm::View;

    #[test]
    fn alloc_memic_byte_for_byte() {
        let mut bytes = [0; AllocMemicIn::BYTES];
        request::<AllocMemicIn>(&mut bytes)
            .unwrap()
            .set(AllocMemicIn::LOG_MEMIC_ADDR_ALIGNMENT, 6)
            .set(AllocMemicIn::RANGE_START_ADDR, 0x0123_4567_89ab_c000)
            .set(AllocMemicIn::RANGE_SIZE, 0x2_0000)
            .set(AllocMemicIn::MEMIC_SIZE, 0x1040);
        let mut want = [0; 32];
        want[..2].copy_from_slice(&[0x02, 0x05]);
        want[15] = 6;
        want[16..24].copy_from_slice(&[0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xc0, 0x00]);
        want[24..32].copy_from_slice(&[0, 2, 0, 0, 0, 0, 0x10, 0x40]);
        assert_eq!(bytes, want);
        let read = View::<AllocMemicIn>::new(&want).unwrap();
        assert_eq!(read.get(AllocMemicIn::RANGE_START_ADDR), 0x0123_4567_89ab_c000);
        assert_eq!(read.get(AllocMemicIn::MEMIC_SIZE), 0x1040);
    }

    #[test]
    fn dealloc_memic_byte_for_byte() {
        let mut bytes = [0; DeallocMemicIn::BYTES];
        request::<DeallocMemicIn>(&mut bytes)
            .unwrap()
            .set(DeallocMemicIn::MEMIC_START_ADDR, 0x0200_0040)
            .set(DeallocMemicIn::MEMIC_SIZE, 0x40);
        let mut want = [0; 32];
        want[..2].copy_from_slice(&[0x02, 0x06]);
        want[20..24].copy_from_slice(&[2, 0, 0, 0x40]);
        want[27] = 0x40;
        assert_eq!(bytes, want);
    }
}
