//! QUERY_ROCE_ADDRESS.

use std::net::IpAddr;

use barewire_layouts::command::gid::{
    QueryRoceAddressIn, QueryRoceAddressOut, RoceAddress, RoceL3Type, RoceVersion,
};
use barewire_layouts::prm::{View, ViewMut};

use super::{CommandSyndrome, Outcome};
use crate::limits;
use crate::wire::is_host;

/// PRM: QUERY_ROCE_ADDRESS. The table has one entry, the device's own address.
pub(super) fn query(
    address: IpAddr,
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
        .set(RoceAddress::ROCE_L3_TYPE, if address.is_ipv4() { RoceL3Type::Ipv4 } else { RoceL3Type::Ipv6 })
        .set(RoceAddress::ROCE_VERSION, RoceVersion::V2);
    Ok(())
}

/// The GID of an address: an IPv6 address itself, `::ffff:a.b.c.d` for an IPv4 address (IBTA A17.4.6).
pub(crate) fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The address that a GID stands for, if it is one that a host can have.
pub(crate) fn address(gid: [u8; 16]) -> Option<IpAddr> {
    Some(IpAddr::from(gid).to_canonical()).filter(|&address| is_host(address))
}

/// A locally administered Ethernet address made of the IP address. Nothing goes over Ethernet; tools like to see one.
pub(crate) fn mac(address: IpAddr) -> [u8; 6] {
    let [.., a, b, c, d] = gid(address);
    [0x02, 0, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_an_address() {
        let address = IpAddr::from([127, 7, 0, 1]);
        assert_eq!(gid(address), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 7, 0, 1]);
        assert_eq!(mac(address), [2, 0, 127, 7, 0, 1]);
        let six: IpAddr = "fd00::1:2".parse().unwrap();
        assert_eq!((super::address(gid(six)), mac(six)), (Some(six), [2, 0, 0, 1, 0, 2]));
    }

    #[test]
    fn peers_are_unicast() {
        let one: IpAddr = "127.7.0.1".parse().unwrap();
        assert_eq!(address(gid(one)), Some(one));
        assert_eq!(address(gid("::1".parse().unwrap())), Some("::1".parse().unwrap()));
        for address in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "ff02::1"] {
            assert_eq!(super::address(gid(address.parse().unwrap())), None, "{address}");
        }
    }
}
