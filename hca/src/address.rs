//! IP addresses of ports, and the GIDs and MAC addresses derived from them.

use std::net::{IpAddr, Ipv4Addr};

use barewire_layouts::command::capability::PortType;

/// Returns whether `address` is the address of a single host.
pub(crate) fn is_host(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || broadcast)
}

/// Returns the GID of an address: an IPv6 address itself, `::ffff:a.b.c.d` for an IPv4 address
/// (IBTA A17.4.6).
pub(crate) fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Returns the link-local GID of an IPv4 address: that of its MAC address (RFC 4291, appendix A).
/// The other ports take it for the IPv4 address. An IPv6 address has none, since its MAC address
/// does not name it.
pub(crate) fn link_local(address: IpAddr) -> Option<[u8; 16]> {
    let [_, _, a, b, c, d] = mac(address);
    address.is_ipv4().then_some([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, a, 0xff, 0xfe, b, c, d])
}

/// Returns the address that a GID stands for, or `None` if no host can have it.
pub(crate) fn from_gid(gid: [u8; 16]) -> Option<IpAddr> {
    let address = match gid {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, a, 0xff, 0xfe, b, c, d] => {
            Ipv4Addr::from([a, b, c, d]).into()
        }
        _ => IpAddr::from(gid).to_canonical(),
    };
    Some(address).filter(|&address| is_host(address))
}

/// Returns the address of the multicast group that a GID stands for, `::ffff:a.b.c.d` for one of
/// IPv4 (linux cma.c: `cma_iboe_set_mgid`; RoCE v1 has `ff0e::ffff:a.b.c.d`). `None` for other
/// GIDs.
pub(crate) fn group(gid: [u8; 16]) -> Option<IpAddr> {
    Some(IpAddr::from(gid).to_canonical()).filter(IpAddr::is_multicast)
}

/// Returns the address to which datagrams to a group go on the wire, from ports with addresses like
/// `own`. InfiniBand has groups of any GID of multicast, also on ports with IPv4 addresses: there,
/// a group of 239.0.0.0/8 stands for one, chosen by a hash (FNV-1a) of the GID.
pub(crate) fn group_on_wire(gid: [u8; 16], port_type: PortType, own: IpAddr) -> Option<IpAddr> {
    let group = group(gid)?;
    if port_type != PortType::InfiniBand || group.is_ipv4() || own.is_ipv6() {
        return Some(group);
    }
    let add = |hash: u32, &byte: &u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let [a, b, c, d] = gid.iter().fold(0x811c_9dc5, add).to_be_bytes();
    Some(Ipv4Addr::new(239, a ^ b, c, d).into())
}

/// Returns a locally administered MAC address derived from the IP address, or that of a multicast
/// group (RFC 1112, RFC 2464). No packet uses it; tools expect a device to have one.
pub fn mac(address: IpAddr) -> [u8; 6] {
    let [.., a, b, c, d] = gid(address);
    match address {
        IpAddr::V4(group) if group.is_multicast() => [0x01, 0, 0x5e, b & 0x7f, c, d],
        IpAddr::V6(group) if group.is_multicast() => [0x33, 0x33, a, b, c, d],
        _ => [0x02, 0, a, b, c, d],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_an_address() {
        let address = IpAddr::from([127, 7, 0, 1]);
        assert_eq!(gid(address), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 7, 0, 1]);
        assert_eq!(mac(address), [2, 0, 127, 7, 0, 1]);
        let local = link_local(address).unwrap();
        assert_eq!(local, [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 127, 0xff, 0xfe, 7, 0, 1]);
        assert_eq!(from_gid(local), Some(address));
        let six: IpAddr = "fd00::1:2".parse().unwrap();
        assert_eq!((from_gid(gid(six)), mac(six)), (Some(six), [2, 0, 0, 1, 0, 2]));
        assert_eq!(link_local(six), None);
    }

    #[test]
    fn groups_are_multicast() {
        let four = IpAddr::from([239, 129, 2, 3]);
        assert_eq!(group(gid(four)), Some(four));
        let six: IpAddr = "ff0e::ffff:10.1.2.3".parse().unwrap();
        assert_eq!(group(gid(six)), Some(six));
        assert_eq!((mac(four), mac(six)), ([1, 0, 0x5e, 1, 2, 3], [0x33, 0x33, 10, 1, 2, 3]));
        for host in ["127.7.0.1", "::", "fe80::1", "255.255.255.255"] {
            assert_eq!(group(gid(host.parse().unwrap())), None, "{host}");
        }
    }

    #[test]
    fn groups_of_infiniband_have_addresses_of_the_ports_version() {
        let [one, two] = [1, 2].map(|last| {
            let gid: std::net::Ipv6Addr = format!("ff12:401b:ffff::f01:{last}").parse().unwrap();
            gid.octets()
        });
        let (four, six) = (IpAddr::from([127, 66, 0, 1]), IpAddr::from([1; 16]));
        let of = |gid, own| group_on_wire(gid, PortType::InfiniBand, own).unwrap();
        assert!(of(one, four).is_ipv4() && of(one, four).is_multicast());
        assert_ne!(of(one, four), of(two, four));
        assert_eq!(of(one, six), IpAddr::from(one));
        assert_eq!(group_on_wire(one, PortType::Ethernet, four), Some(IpAddr::from(one)));
        let ip = IpAddr::from([239, 1, 2, 3]);
        assert_eq!(of(gid(ip), four), ip);
        assert_eq!(group_on_wire(gid(four), PortType::InfiniBand, four), None);
    }

    #[test]
    fn peers_are_unicast() {
        let one: IpAddr = "127.7.0.1".parse().unwrap();
        assert_eq!(from_gid(gid(one)), Some(one));
        assert_eq!(from_gid(gid("::1".parse().unwrap())), Some("::1".parse().unwrap()));
        for address in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "ff02::1"] {
            assert_eq!(from_gid(gid(address.parse().unwrap())), None, "{address}");
        }
    }
}
