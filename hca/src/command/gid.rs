//! QUERY_ROCE_ADDRESS.

use std::net::Ipv4Addr;

use barewire_layouts::command::gid::{
    QueryRoceAddressIn, QueryRoceAddressOut, RoceAddress, RoceL3Type, RoceVersion,
};
use barewire_layouts::prm::{View, ViewMut};

use super::{CommandSyndrome, Outcome};
use crate::limits;

/// PRM: QUERY_ROCE_ADDRESS. The table has one entry, the device's own address.
pub(super) fn query(
    address: Ipv4Addr,
    input: View<'_, QueryRoceAddressIn>,
    mut output: ViewMut<'_, QueryRoceAddressOut>,
) -> Outcome {
    if input.get(QueryRoceAddressIn::ROCE_ADDRESS_INDEX) >= limits::GIDS {
        return Err(CommandSyndrome::GidIndex);
    }
    if !matches!(input.get(QueryRoceAddressIn::VHCA_PORT_NUM), 0 | limits::PORT) {
        return Err(CommandSyndrome::GidPort);
    }
    output
        .nested(QueryRoceAddressOut::ROCE_ADDRESS)
        .set_array(RoceAddress::SOURCE_L3_ADDRESS, gid(address))
        .set_array(RoceAddress::SOURCE_MAC, mac(address))
        .set(RoceAddress::ROCE_L3_TYPE, RoceL3Type::Ipv4)
        .set(RoceAddress::ROCE_VERSION, RoceVersion::V2);
    Ok(())
}

/// The GID of an IPv4 address: `::ffff:a.b.c.d` (IBTA A17.4.6).
pub(crate) fn gid(address: Ipv4Addr) -> [u8; 16] {
    address.to_ipv6_mapped().octets()
}

/// A locally administered Ethernet address made of the IPv4 address. Nothing goes over Ethernet; tools like to see one.
fn mac(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [0x02, 0, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_an_address() {
        let address = Ipv4Addr::new(127, 7, 0, 1);
        assert_eq!(gid(address), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 7, 0, 1]);
        assert_eq!(mac(address), [2, 0, 127, 7, 0, 1]);
    }
}
