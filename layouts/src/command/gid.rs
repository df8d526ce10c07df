//! The GID table of a RoCE port: QUERY_ROCE_ADDRESS, SET_ROCE_ADDRESS (mlx5_ifc.h:
//! `query_roce_address_*`, `set_roce_address_*`, `roce_addr_layout`).

use super::{StatusOut, requests};
use crate::prm::{ByteField, Field, Nested, field_enum, layouts};

field_enum! {
    /// How packets of a GID look on the wire (mlx5 device.h: `MLX5_ROCE_VERSION_*`).
    RoceVersion: u8, "RoCE version" {
        /// Straight over Ethernet.
        V1 = 0, "RoCE v1";
        /// Over UDP and IP.
        V2 = 2, "RoCE v2";
    }
}

field_enum! {
    /// The IP version of a RoCE v2 GID (mlx5 device.h: `MLX5_ROCE_L3_TYPE_*`).
    RoceL3Type: u8, "RoCE L3 type" {
        /// IPv4: the GID is `::ffff:a.b.c.d`.
        Ipv4 = 0, "IPv4";
        /// IPv6.
        Ipv6 = 1, "IPv6";
    }
}

layouts! {
    /// Queries one entry of the table.
    QueryRoceAddressIn: 16, "query_roce_address_in";
    /// The entry.
    QueryRoceAddressOut: 16 + RoceAddress::BYTES, "query_roce_address_out";
    /// Changes one entry of the table.
    SetRoceAddressIn: 16 + RoceAddress::BYTES, "set_roce_address_in";
    /// One source address of a port. All zero: the entry is empty.
    RoceAddress: 32, "roce_addr_layout";
}

requests! {
    QueryRoceAddressIn => QueryRoceAddress, QueryRoceAddressOut;
    SetRoceAddressIn => SetRoceAddress, StatusOut;
}

impl QueryRoceAddressIn {
    /// Index into the table.
    pub const ROCE_ADDRESS_INDEX: Field<Self, u16> = Field::new(0x40, 16);
    /// The port, from 1; 0 means the first.
    pub const VHCA_PORT_NUM: Field<Self, u8> = Field::new(0x5c, 4);
}

impl SetRoceAddressIn {
    /// Index into the table.
    pub const ROCE_ADDRESS_INDEX: Field<Self, u16> = Field::new(0x40, 16);
    /// The port, from 1; 0 means the first.
    pub const VHCA_PORT_NUM: Field<Self, u8> = Field::new(0x5c, 4);
    /// The entry. All zero: none.
    pub const ROCE_ADDRESS: Nested<Self, RoceAddress> = Nested::new(0x80);
}

impl QueryRoceAddressOut {
    /// The entry.
    pub const ROCE_ADDRESS: Nested<Self, RoceAddress> = Nested::new(0x80);
}

impl RoceAddress {
    /// The GID.
    pub const SOURCE_L3_ADDRESS: ByteField<Self, 16> = ByteField::new(0x0);
    /// The Ethernet address.
    pub const SOURCE_MAC: ByteField<Self, 6> = ByteField::new(0x90);
    /// IP version.
    pub const ROCE_L3_TYPE: Field<Self, RoceL3Type> = Field::new(0xd4, 4);
    /// RoCE version.
    pub const ROCE_VERSION: Field<Self, RoceVersion> = Field::new(0xd8, 8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prm::{Layout, ViewMut};

    #[test]
    fn an_ipv4_entry_byte_for_byte() {
        let mut bytes = [0; QueryRoceAddressOut::BYTES];
        let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 1, 2, 3];
        let mut out = ViewMut::<QueryRoceAddressOut>::new(&mut bytes).unwrap();
        let mut address = out.nested(QueryRoceAddressOut::ROCE_ADDRESS);
        address
            .set_array(RoceAddress::SOURCE_L3_ADDRESS, gid)
            .set_array(RoceAddress::SOURCE_MAC, [2, 0, 127, 1, 2, 3])
            .set(RoceAddress::ROCE_L3_TYPE, RoceL3Type::Ipv4)
            .set(RoceAddress::ROCE_VERSION, RoceVersion::V2);
        assert_eq!(bytes[16..32], gid);
        assert_eq!(bytes[32..40], [0, 0, 2, 0, 127, 1, 2, 3]);
        assert_eq!(bytes[40..48], [0, 0, 0, 2, 0, 0, 0, 0]);
    }
}
