//! The headers below the transport that a socket does not show, for receivers of datagrams and
//! capture files.

use std::net::IpAddr;

use super::ROCE_PORT;
use crate::address::gid;

/// Bytes before a received datagram's payload: room for a global routing header (IBTA 8.3).
pub(crate) const GRH: usize = 40;
/// Bytes of an IPv4 header, which is at the end of that room.
pub(crate) const IPV4: usize = 20;
const UDP: usize = 8;
const UDP_PROTOCOL: u8 = 17;
const HOP_LIMIT: u8 = 64;

/// Returns the network header of a datagram with a traffic class and `length` bytes of UDP payload,
/// as devices deliver it: an IPv6 header, or 20 unused bytes and an IPv4 header (IBTA A17.4.5.2).
/// Empty for addresses of different families.
pub(crate) fn network(
    (source, destination): (IpAddr, IpAddr),
    class: u8,
    length: usize,
) -> [u8; GRH] {
    let mut header = [0; GRH];
    let udp = (UDP + length) as u16;
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let ip = &mut header[GRH - IPV4..];
            (ip[0], ip[1]) = (0x45, class);
            ip[2..4].copy_from_slice(&(IPV4 as u16 + udp).to_be_bytes());
            // Do not fragment, as the invariant CRC assumes.
            ip[6] = 0x40;
            ip[8] = HOP_LIMIT;
            ip[9] = UDP_PROTOCOL;
            ip[12..16].copy_from_slice(&source.octets());
            ip[16..20].copy_from_slice(&destination.octets());
            let checksum = checksum(ip);
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            header[..2].copy_from_slice(&(0x6000 | u16::from(class) << 4).to_be_bytes());
            header[4..6].copy_from_slice(&udp.to_be_bytes());
            header[6] = UDP_PROTOCOL;
            header[7] = HOP_LIMIT;
            header[8..24].copy_from_slice(&source.octets());
            header[24..40].copy_from_slice(&destination.octets());
        }
        _ => {}
    }
    header
}

/// Returns the global routing header of a datagram that InfiniBand ports deliver (IBTA 8.3). Their
/// devices have GIDs for addresses, and packets here always carry the addresses of both ends.
pub(crate) fn global_route(
    (source, destination): (IpAddr, IpAddr),
    class: u8,
    length: usize,
) -> [u8; GRH] {
    /// IBA transport, instead of UDP.
    const NEXT_HEADER: u8 = 0x1b;
    let mut header = [0; GRH];
    header[..2].copy_from_slice(&(0x6000 | u16::from(class) << 4).to_be_bytes());
    header[4..6].copy_from_slice(&(length as u16).to_be_bytes());
    (header[6], header[7]) = (NEXT_HEADER, HOP_LIMIT);
    header[8..24].copy_from_slice(&gid(source));
    header[24..40].copy_from_slice(&gid(destination));
    header
}

/// Returns the UDP header of `length` bytes from `source_port`. Its checksum is zero, for none.
pub(crate) fn udp(source_port: u16, length: usize) -> [u8; UDP] {
    let mut header = [0; UDP];
    header[..2].copy_from_slice(&source_port.to_be_bytes());
    header[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
    header[4..6].copy_from_slice(&((UDP + length) as u16).to_be_bytes());
    header
}

/// Returns the internet checksum (RFC 1071) of a header whose checksum field is zero.
fn checksum(header: &[u8]) -> u16 {
    let sum: u32 =
        header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_is_behind_and_sums_up() {
        let header = network(([127, 2, 0, 1].into(), [127, 2, 0, 2].into()), 0x68, 24);
        assert_eq!(header[..20], [0; 20]);
        assert_eq!(header[20..30], [0x45, 0x68, 0, 52, 0, 0, 0x40, 0, 64, 17]);
        assert_eq!(header[32..], [127, 2, 0, 1, 127, 2, 0, 2]);
        // The sum over a header with its checksum is all ones.
        assert_eq!(checksum(&header[20..]), 0);
    }

    #[test]
    fn infiniband_has_gids_in_either_case() {
        let header = global_route(([127, 66, 0, 1].into(), [127, 66, 0, 2].into()), 0x68, 24);
        assert_eq!(header[..8], [0x66, 0x80, 0, 0, 0, 24, 0x1b, 64]);
        let own = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 66, 0];
        assert_eq!((&header[8..23], header[23]), (&own[..], 1));
        assert_eq!((&header[24..39], header[39]), (&own[..], 2));
    }

    #[test]
    fn ipv6_fills_the_room() {
        let header = network(("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()), 0x68, 24);
        assert_eq!(header[..8], [0x66, 0x80, 0, 0, 0, 32, 17, 64]);
        assert_eq!((header[8], header[23], header[24], header[39]), (0xfd, 1, 0xfd, 2));
        assert_eq!(network(("::1".parse().unwrap(), [127, 0, 0, 1].into()), 0, 1), [0; 40]);
    }

    #[test]
    fn udp_goes_to_the_roce_port() {
        assert_eq!(udp(0xc000, 16), [0xc0, 0, 0x12, 0xb7, 0, 24, 0, 0]);
    }
}
