//! Address vectors: the destination of a datagram.
//!
//! A UD send carries an address vector after its control segment: the full form of 48 bytes, or the
//! compact form, its first 16 bytes, on InfiniBand ports of devices that support it. Sources:
//! mlx5dv.h `struct mlx5_wqe_av` and `MLX5_EXTENDED_UD_AV`; rdma-core `mlx5_create_ah` for the
//! fields used on Ethernet.

use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::be::{Be16, Be32};

/// In [`CompactAddressVector::qpn`]: the full form follows.
pub const EXTENDED_ADDRESS_VECTOR: u32 = 1 << 31;
/// In [`AddressVector::grh_gid_flow`]: send a global routing header. Reserved on Ethernet, where
/// there always is one.
const GLOBAL: u32 = 1 << 30;

/// The first 16 bytes of an address vector; the compact form has only these.
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
pub struct CompactAddressVector {
    /// Key of the datagrams that the receiver takes.
    pub qkey: Be32,
    /// Zero; the low half of the key of a dynamically connected transport.
    pub reserved: Be32,
    /// Number of the receiver's queue pair (24 bits), and [`EXTENDED_ADDRESS_VECTOR`].
    pub qpn: Be32,
    /// Static rate (4 bits) and service level: the low four bits on InfiniBand, bits 1 to 3 on
    /// Ethernet.
    pub rate_service_level: u8,
    /// Source path bits (7 bits).
    pub path_bits: u8,
    /// LID of the receiver's port; source UDP port on Ethernet.
    pub lid_or_port: Be16,
}

impl CompactAddressVector {
    /// The compact form for queue pair `qpn` behind the InfiniBand port `lid`.
    #[inline]
    pub const fn new(qpn: u32, qkey: u32, lid: u16) -> Self {
        Self {
            qkey: Be32::new(qkey),
            reserved: Be32::ZERO,
            qpn: Be32::new(qpn & 0x00ff_ffff),
            rate_service_level: 0,
            path_bits: 0,
            lid_or_port: Be16::new(lid),
        }
    }

    /// This address with service level `level` (4 bits), as InfiniBand has it.
    #[inline]
    #[must_use]
    pub const fn with_service_level(self, level: u8) -> Self {
        Self { rate_service_level: self.rate_service_level & 0xf0 | level & 0x0f, ..self }
    }
}

/// The same for the other kind of receiver: the DC target `dctn`, whose access key fills the first
/// 8 bytes (mlx5dv.h: `mlx5dv_set_dgram_seg`).
impl CompactAddressVector {
    /// This address with access key `key` and target `dctn` in the place of queue key and queue
    /// pair.
    #[inline]
    #[must_use]
    pub const fn to_target(self, dctn: u32, key: u64) -> Self {
        let extended = self.qpn.get() & EXTENDED_ADDRESS_VECTOR;
        Self {
            qkey: Be32::new((key >> 32) as u32),
            reserved: Be32::new(key as u32),
            qpn: Be32::new(dctn & 0x00ff_ffff | extended),
            ..self
        }
    }

    /// The access key of a DC target.
    #[inline]
    pub const fn access_key(&self) -> u64 {
        (self.qkey.get() as u64) << 32 | self.reserved.get() as u64
    }
}

/// The full form of an address vector.
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
pub struct AddressVector {
    /// The compact form, with [`EXTENDED_ADDRESS_VECTOR`] set.
    pub base: CompactAddressVector,
    /// Zero.
    pub reserved: Be32,
    /// The receiver's MAC address, or the next hop's. Ethernet only.
    pub mac: [u8; 6],
    /// Traffic class of the global routing header.
    pub traffic_class: u8,
    /// Hop limit of the global routing header.
    pub hop_limit: u8,
    /// Global routing header present (bit 30, InfiniBand only), index of the source GID (bits 20 to
    /// 27), flow label (20 bits).
    pub grh_gid_flow: Be32,
    /// The receiver's GID.
    pub gid: [u8; 16],
}

impl AddressVector {
    /// The full form for queue pair `qpn` behind the InfiniBand port `lid` of this subnet.
    #[inline]
    pub const fn infiniband(qpn: u32, qkey: u32, lid: u16) -> Self {
        Self {
            base: CompactAddressVector {
                qpn: Be32::new(qpn & 0x00ff_ffff | EXTENDED_ADDRESS_VECTOR),
                ..CompactAddressVector::new(qpn, qkey, lid)
            },
            reserved: Be32::ZERO,
            mac: [0; 6],
            traffic_class: 0,
            hop_limit: 0,
            grh_gid_flow: Be32::ZERO,
            gid: [0; 16],
        }
    }

    /// This address with a global routing header to `gid`, from the port's GID at `source_index`.
    #[inline]
    #[must_use]
    pub const fn with_global_route(self, gid: [u8; 16], source_index: u8, hop_limit: u8) -> Self {
        Self {
            gid,
            hop_limit,
            grh_gid_flow: Be32::new(GLOBAL | (source_index as u32) << 20),
            ..self
        }
    }

    /// The RoCE v2 form: queue pair `qpn` at `gid`, which is reached over `mac`, from UDP port
    /// `source_port` and the port's GID at `source_index`.
    #[inline]
    pub const fn roce(
        qpn: u32,
        qkey: u32,
        mac: [u8; 6],
        gid: [u8; 16],
        source_port: u16,
        source_index: u8,
        hop_limit: u8,
    ) -> Self {
        Self {
            mac,
            hop_limit,
            grh_gid_flow: Be32::new((source_index as u32) << 20),
            gid,
            ..Self::infiniband(qpn, qkey, source_port)
        }
    }

    /// The queue pair that it names.
    #[inline]
    pub const fn qpn(&self) -> u32 {
        self.base.qpn.get() & 0x00ff_ffff
    }

    /// Index of the source GID.
    #[inline]
    pub const fn source_index(&self) -> u8 {
        (self.grh_gid_flow.get() >> 20) as u8
    }
}

const_assert_eq!(size_of::<CompactAddressVector>(), 16);
const_assert_eq!(core::mem::offset_of!(CompactAddressVector, qpn), 8);
const_assert_eq!(core::mem::offset_of!(CompactAddressVector, rate_service_level), 12);
const_assert_eq!(core::mem::offset_of!(CompactAddressVector, path_bits), 13);
const_assert_eq!(core::mem::offset_of!(CompactAddressVector, lid_or_port), 14);
const_assert_eq!(size_of::<AddressVector>(), 48);
const_assert_eq!(core::mem::offset_of!(AddressVector, reserved), 16);
const_assert_eq!(core::mem::offset_of!(AddressVector, mac), 20);
const_assert_eq!(core::mem::offset_of!(AddressVector, traffic_class), 26);
const_assert_eq!(core::mem::offset_of!(AddressVector, hop_limit), 27);
const_assert_eq!(core::mem::offset_of!(AddressVector, grh_gid_flow), 28);
const_assert_eq!(core::mem::offset_of!(AddressVector, gid), 32);

#[cfg(test)]
mod tests {
    use super::super::golden::golden;
    use super::*;

    /// reference/golden, operation ud_send_inl_8_unsig: the bytes are libmlx5's own.
    #[test]
    fn full_form_as_libmlx5_writes_it() {
        golden::<_, 48>(
            AddressVector::infiniband(77, 0x1111_1111, 1),
            "11111111000000008000004d0000000100000000000000000000000000000000\
             00000000000000000000000000000000",
        );
    }

    #[test]
    fn a_target_has_an_access_key() {
        let base = CompactAddressVector::new(0, 0, 7).to_target(0x0a0b0c, 0x0102_0304_0506_0708);
        golden::<_, 16>(base, "0102030405060708000a0b0c00000007");
        assert_eq!(base.access_key(), 0x0102_0304_0506_0708);
        let mut full = AddressVector::infiniband(0, 0, 7);
        full.base = full.base.to_target(5, 1);
        assert_eq!((full.base.access_key(), full.qpn(), full.base.qpn.get() >> 31), (1, 5, 1));
    }

    #[test]
    fn compact_form_is_its_start_without_the_flag() {
        let address =
            CompactAddressVector::new(0x0a0b0c, 0x8765_4321, 0x1234).with_service_level(5);
        golden::<_, 16>(address, "8765432100000000000a0b0c05001234");
    }

    #[test]
    fn infiniband_with_a_global_route() {
        let gid = core::array::from_fn(|at| at as u8);
        let address = AddressVector::infiniband(2, 3, 4).with_global_route(gid, 5, 6);
        golden::<_, 48>(
            address,
            "000000030000000080000002000000040000000000000000000000064050000000\
             0102030405060708090a0b0c0d0e0f",
        );
        assert_eq!((address.qpn(), address.source_index()), (2, 5));
    }

    #[test]
    fn roce_form_has_mac_and_gid_and_no_grh_flag() {
        let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 2];
        let address =
            AddressVector::roce(0x000102, 0x1111_1111, [2, 3, 4, 5, 6, 7], gid, 0xc000, 3, 64);
        golden::<_, 48>(
            address,
            "1111111100000000800001020000c000000000000203040506070040003000000000000000000000\
             0000ffff7f000002",
        );
    }
}
