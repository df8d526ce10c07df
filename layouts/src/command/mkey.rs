//! Memory keys: CREATE_MKEY, QUERY_MKEY, DESTROY_MKEY (mlx5_ifc.h: `create_mkey_*`, `query_mkey_*`,
//! `destroy_mkey_*`, `mkc`).
//!
//! A key of 32 bits consists of the 24-bit index that the device assigns and 8 bits that the driver
//! chooses: [`key`].

use super::{StatusOut, requests};
use crate::prm::{Field, Layout, Nested, field_enum, layouts};

/// `qpn` of a memory key that any queue pair may use.
pub const ANY_QPN: u32 = 0x00ff_ffff;

/// The local and remote key of a memory key: the device's index above the driver's byte.
pub const fn key(index: u32, variant: u8) -> u32 {
    index << 8 | variant as u32
}

field_enum! {
    /// How a memory key finds its pages (mlx5_ifc.h: `MLX5_MKC_ACCESS_MODE_*`; the two fields of
    /// the context joined).
    AccessMode: u8, "mkey access mode" {
        /// The address is the bus address.
        Pa = 0, "PA";
        /// A table of pages.
        Mtt = 1, "MTT";
        /// A list of other keys' ranges.
        Klm = 2, "KLM";
        /// A list of other keys' ranges of one size.
        Ksm = 3, "KSM";
        /// Device memory of the steering engine.
        SwIcm = 4, "SW_ICM";
        /// Device memory.
        Memic = 5, "MEMIC";
        /// A key of another function.
        Crossing = 6, "CROSSING";
    }
}

layouts! {
    /// Creates a memory key. A list of translations may follow where no umem is given.
    CreateMkeyIn: 272, "create_mkey_in";
    /// Names the new memory key.
    CreateMkeyOut: 16, "create_mkey_out";
    /// Queries a memory key's context.
    QueryMkeyIn: 16, "query_mkey_in";
    /// The context.
    QueryMkeyOut: 304, "query_mkey_out";
    /// Destroys a memory key.
    DestroyMkeyIn: 16, "destroy_mkey_in";
    /// Memory key context.
    Mkc: 64, "mkc";
}

requests! {
    CreateMkeyIn => CreateMkey, CreateMkeyOut;
    QueryMkeyIn => QueryMkey, QueryMkeyOut;
    DestroyMkeyIn => DestroyMkey, StatusOut;
}

impl CreateMkeyIn {
    /// The translations are page-table entries.
    pub const PG_ACCESS: Field<Self, bool> = Field::new(0x60, 1);
    /// The pages are a umem's. The kernel sets it on behalf of a DEVX user.
    pub const MKEY_UMEM_VALID: Field<Self, bool> = Field::new(0x61, 1);
    /// The key's context.
    pub const MEMORY_KEY_MKEY_ENTRY: Nested<Self, Mkc> = Nested::new(0x80);
    /// Length of the translations, in 16-byte units.
    pub const TRANSLATIONS_OCTWORD_ACTUAL_SIZE: Field<Self> = Field::new(0x300, 32);
    /// The umem that the key covers.
    pub const MKEY_UMEM_ID: Field<Self> = Field::new(0x320, 32);
    /// Where the key's first byte is in the umem.
    pub const MKEY_UMEM_OFFSET: Field<Self, u64> = Field::new(0x340, 64);
}

impl CreateMkeyOut {
    /// The device's part of the key.
    pub const MKEY_INDEX: Field<Self> = Field::new(0x48, 24);
}

impl QueryMkeyIn {
    /// The device's part of the key.
    pub const MKEY_INDEX: Field<Self> = Field::new(0x48, 24);
}

impl QueryMkeyOut {
    /// The key's context.
    pub const MEMORY_KEY_MKEY_ENTRY: Nested<Self, Mkc> = Nested::new(0x80);
}

impl DestroyMkeyIn {
    /// The device's part of the key.
    pub const MKEY_INDEX: Field<Self> = Field::new(0x48, 24);
}

impl Mkc {
    /// The key exists but permits nothing until it is bound.
    pub const FREE: Field<Self, bool> = Field::new(0x1, 1);
    /// High bits of [`AccessMode`].
    pub const ACCESS_MODE_4_2: Field<Self, u8> = Field::new(0x3, 3);
    /// Writes may be reordered on the bus.
    pub const RELAXED_ORDERING_WRITE: Field<Self, bool> = Field::new(0xd, 1);
    /// The key may be changed by UMR work requests.
    pub const UMR_EN: Field<Self, bool> = Field::new(0x10, 1);
    /// Right: remote atomics.
    pub const A: Field<Self, bool> = Field::new(0x11, 1);
    /// Right: remote write.
    pub const RW: Field<Self, bool> = Field::new(0x12, 1);
    /// Right: remote read.
    pub const RR: Field<Self, bool> = Field::new(0x13, 1);
    /// Right: local write.
    pub const LW: Field<Self, bool> = Field::new(0x14, 1);
    /// Right: local read.
    pub const LR: Field<Self, bool> = Field::new(0x15, 1);
    /// Low bits of [`AccessMode`].
    pub const ACCESS_MODE_1_0: Field<Self, u8> = Field::new(0x16, 2);
    /// The only queue pair that may use the key, or [`ANY_QPN`].
    pub const QPN: Field<Self> = Field::new(0x20, 24);
    /// The driver's byte of the key.
    pub const MKEY_7_0: Field<Self, u8> = Field::new(0x38, 8);
    /// The key covers the whole 64-bit address space.
    pub const LENGTH64: Field<Self, bool> = Field::new(0x60, 1);
    /// A peer's send may invalidate the key.
    pub const EN_RINVAL: Field<Self, bool> = Field::new(0x67, 1);
    /// The protection domain.
    pub const PD: Field<Self> = Field::new(0x68, 24);
    /// The address of the first byte in work requests.
    pub const START_ADDR: Field<Self, u64> = Field::new(0x80, 64);
    /// Bytes covered.
    pub const LEN: Field<Self, u64> = Field::new(0xc0, 64);
    /// Length of the translations, in 16-byte units.
    pub const TRANSLATIONS_OCTWORD_SIZE: Field<Self> = Field::new(0x1a0, 32);
    /// Reads may be reordered on the bus.
    pub const RELAXED_ORDERING_READ: Field<Self, bool> = Field::new(0x1d9, 1);
    /// log2 of a page's bytes.
    pub const LOG_PAGE_SIZE: Field<Self, u8> = Field::new(0x1da, 6);
}

const _: () = assert!(
    CreateMkeyIn::BYTES == 0x880 / 8 && QueryMkeyOut::BYTES == 0x980 / 8 && Mkc::BYTES == 0x200 / 8
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::request;

    #[test]
    fn create_mkey_byte_for_byte() {
        let mut bytes = [0; CreateMkeyIn::BYTES];
        let mut create = request::<CreateMkeyIn>(&mut bytes).unwrap();
        create
            .set(CreateMkeyIn::MKEY_UMEM_VALID, true)
            .set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, 8)
            .set(CreateMkeyIn::MKEY_UMEM_ID, 5)
            .set(CreateMkeyIn::MKEY_UMEM_OFFSET, 0x1_0000_0002);
        create
            .nested(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
            .set(Mkc::A, true)
            .set(Mkc::RW, true)
            .set(Mkc::RR, true)
            .set(Mkc::LW, true)
            .set(Mkc::LR, true)
            .set(Mkc::ACCESS_MODE_1_0, AccessMode::Mtt as u8)
            .set(Mkc::QPN, ANY_QPN)
            .set(Mkc::MKEY_7_0, 0x42)
            .set(Mkc::PD, 3)
            .set(Mkc::START_ADDR, 0x7fff_0000_1000)
            .set(Mkc::LEN, 0x2000)
            .set(Mkc::LOG_PAGE_SIZE, 12);
        let mut want = [0; CreateMkeyIn::BYTES];
        want[0] = 0x02;
        want[12] = 0x40;
        want[16..20].copy_from_slice(&[0, 0, 0x7d, 0]);
        want[20..24].copy_from_slice(&[0xff, 0xff, 0xff, 0x42]);
        want[28..32].copy_from_slice(&[0, 0, 0, 3]);
        want[32..40].copy_from_slice(&[0, 0, 0x7f, 0xff, 0, 0, 0x10, 0]);
        want[40..48].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0x20, 0]);
        want[16 + 0x1c0 / 8 + 3] = 12;
        want[96 + 3] = 8;
        want[100 + 3] = 5;
        want[104..112].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 2]);
        assert_eq!(bytes, want);
    }

    #[test]
    fn a_key_is_index_and_byte() {
        assert_eq!(key(0x123456, 0x78), 0x1234_5678);
    }
}
