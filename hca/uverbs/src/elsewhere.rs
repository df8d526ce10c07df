//! A hint for programs whose peer is in another network namespace: addresses of the loopback lead
//! to devices of the same namespace only, and operations end in timeouts.

use std::net::{IpAddr, Ipv4Addr};

use barewire_layouts::roce::UDP_PORT;

use crate::explain;

/// Prints that packets for `gid` reach no device, if calls are explained and the address is of the
/// loopback.
pub(crate) fn tell(gid: [u8; 16]) {
    if !explain::is_on() {
        return;
    }
    if let IpAddr::V4(address) = IpAddr::from(gid).to_canonical()
        && address.is_loopback()
        && let Ok(sockets) = std::fs::read_to_string("/proc/self/net/udp")
        && !has_device(&sockets, address)
    {
        explain::tell(format_args!(
            "the peer's address {address} is of the loopback of another network namespace or host, \
             or the peer has ended: packets do not reach it. Start both sides with --address, each \
             with an address that the other one reaches"
        ));
    }
}

/// Returns whether `sockets`, the kernel's table of UDP sockets, has one of a device at `address`,
/// which is bound to the port of RoCEv2.
fn has_device(sockets: &str, address: Ipv4Addr) -> bool {
    let wanted = [address, Ipv4Addr::UNSPECIFIED]
        .map(|address| format!("{:08X}:{UDP_PORT:04X}", u32::from_ne_bytes(address.octets())));
    sockets
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .any(|local| wanted.iter().any(|wanted| local == wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    /// With an address of this process alone.
    #[test]
    fn devices_of_this_namespace_are_found() {
        let [low, high, ..] = std::process::id().to_le_bytes();
        let address = Ipv4Addr::new(127, 201, high, low.clamp(1, 254));
        let found = || has_device(&std::fs::read_to_string("/proc/self/net/udp").unwrap(), address);
        assert!(!found());
        let other = UdpSocket::bind((address, 0)).unwrap();
        assert!(!found(), "{other:?} is at another port");
        let _device = UdpSocket::bind((address, UDP_PORT)).unwrap();
        assert!(found());
    }
}
