//! QUERY_ROCE_ADDRESS, SET_ROCE_ADDRESS, and what addresses are called.

use std::net::IpAddr;

use barewire_layouts::command::gid::{
    QueryRoceAddressIn, QueryRoceAddressOut, RoceAddress, SetRoceAddressIn,
};
use barewire_layouts::prm::{View, ViewMut};

use super::{CommandSyndrome, Outcome};
use crate::engine::Context;
use crate::object::InvalidGid;
use crate::wire::is_host;

/// The index of the table of a port.
fn table(device: &Context<'_>, number: u8) -> Result<usize, CommandSyndrome> {
    device.port_index(number).ok_or(CommandSyndrome::GidPort)
}

/// PRM: QUERY_ROCE_ADDRESS.
pub(super) fn query(
    device: &Context<'_>,
    input: View<'_, QueryRoceAddressIn>,
    mut output: ViewMut<'_, QueryRoceAddressOut>,
) -> Outcome {
    let at = table(device, input.get(QueryRoceAddressIn::VHCA_PORT_NUM))?;
    let gids = device.objects.gids.get(at).ok_or(CommandSyndrome::GidPort)?;
    let entry = gids.entry(input.get(QueryRoceAddressIn::ROCE_ADDRESS_INDEX));
    let entry = entry.ok_or(CommandSyndrome::GidIndex)?;
    output.nested(QueryRoceAddressOut::ROCE_ADDRESS).bytes().copy_from_slice(&entry);
    Ok(())
}

/// PRM: SET_ROCE_ADDRESS. Queue pairs that are connected keep the address that they have.
pub(super) fn set(device: &mut Context<'_>, input: View<'_, SetRoceAddressIn>) -> Outcome {
    let at = table(device, input.get(SetRoceAddressIn::VHCA_PORT_NUM))?;
    let gids = device.objects.gids.get_mut(at).ok_or(CommandSyndrome::GidPort)?;
    let index = input.get(SetRoceAddressIn::ROCE_ADDRESS_INDEX);
    gids.entry(index).ok_or(CommandSyndrome::GidIndex)?;
    let entry: View<'_, RoceAddress> = input.nested(SetRoceAddressIn::ROCE_ADDRESS);
    let entry = entry.bytes().try_into().map_err(|_| CommandSyndrome::InputLength)?;
    gids.set(index, entry).map_err(|invalid| match invalid {
        InvalidGid::Address => CommandSyndrome::GidAddress,
        InvalidGid::Version => CommandSyndrome::GidVersion,
    })
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
