//! The invariant CRC of RoCEv2 packets (IBTA annex A17.3.3, 'ICRC').
//!
//! It covers the IP and UDP headers, the transport headers, the payload and its padding. Fields
//! that a router may change are taken as all ones, and a local route header of all ones, which is
//! not sent, goes first.

/// Bytes of the CRC, the last of a packet.
pub const ICRC_BYTES: usize = 4;

const LRH: [u8; 8] = [0xff; 8];
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;
const BTH_HEADER: usize = 12;
/// The byte of the BTH that holds FECN, BECN and reserved bits: routers may change it.
const BTH_VARIANT: usize = 4;
/// Bytes of the IPv4 header up to the end of its identification.
const IDENTIFICATION_END: usize = 6;
const DONT_FRAGMENT: u8 = 0x40;
const UDP: u8 = 17;
/// The polynomial of the Ethernet CRC, lowest term in the highest bit.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// Returns the four bytes that end a packet from `source` to `destination`.
///
/// `transport` is the UDP payload up to the CRC: base transport header (BTH), extended headers,
/// payload and padding. The IP header has no options, identification 0 and 'do not fragment', as
/// Linux sends from a socket with path MTU discovery on.
///
/// ```
/// use barewire_layouts::icrc::{ICRC_BYTES, icrc_ipv4};
///
/// let acknowledgment = [0x11, 0x40, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 2, 0x1f, 0, 0, 3];
/// let crc: [u8; ICRC_BYTES] = icrc_ipv4([127, 1, 0, 1], [127, 1, 0, 2], 4791, 4791, &acknowledgment);
/// assert_ne!(crc, icrc_ipv4([127, 1, 0, 3], [127, 1, 0, 2], 4791, 4791, &acknowledgment));
/// ```
pub fn icrc_ipv4(
    source: [u8; 4],
    destination: [u8; 4],
    udp_source: u16,
    udp_destination: u16,
    transport: &[u8],
) -> [u8; ICRC_BYTES] {
    icrc_identified(0, source, destination, udp_source, udp_destination, transport)
}

/// Returns the IP identification of the datagram that carried `transport` and `icrc`, which a
/// socket does not report, or `None` if the CRC matches none. The other arguments are those of
/// [`icrc_ipv4`].
///
/// Soft-RoCE and hardware set the identification. The check is weaker by these 16 bits: one in 65
/// 536 corrupted packets passes.
pub fn identification_ipv4(
    source: [u8; 4],
    destination: [u8; 4],
    udp_source: u16,
    udp_destination: u16,
    transport: &[u8],
    icrc: [u8; ICRC_BYTES],
) -> Option<u16> {
    let numbered_zero = icrc_ipv4(source, destination, udp_source, udp_destination, transport);
    // A CRC is linear, so the difference is the CRC of the identification with zeros in place of
    // all other bytes. Zeros before it have no effect; those after it are undone one division step
    // at a time.
    let difference = u32::from_le_bytes(icrc) ^ u32::from_le_bytes(numbered_zero);
    let behind = IPV4_HEADER - IDENTIFICATION_END + UDP_HEADER + transport.len();
    let [high, low, 0, 0] =
        (0..behind + 2).fold(difference, |crc, _| before_zero(crc)).to_le_bytes()
    else {
        return None;
    };
    Some(u16::from_be_bytes([high, low]))
}

/// Returns the state of the CRC register that a zero byte turns into `crc`.
fn before_zero(crc: u32) -> u32 {
    BEFORE_ZERO[(crc >> 24) as usize] ^ crc << 8
}

/// The effect of eight inverse steps, by the register's highest byte.
static BEFORE_ZERO: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut crc = (byte as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc >> 31 == 1 { (crc ^ POLYNOMIAL) << 1 | 1 } else { crc << 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// [`icrc_ipv4`] of a datagram with another identification.
fn icrc_identified(
    identification: u16,
    source: [u8; 4],
    destination: [u8; 4],
    udp_source: u16,
    udp_destination: u16,
    transport: &[u8],
) -> [u8; ICRC_BYTES] {
    let udp_length = udp_length(transport);
    let mut ip = [0xff; IPV4_HEADER];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((IPV4_HEADER + udp_length) as u16).to_be_bytes());
    ip[4..6].copy_from_slice(&identification.to_be_bytes());
    ip[6..8].copy_from_slice(&[DONT_FRAGMENT, 0]);
    ip[9] = UDP;
    ip[12..16].copy_from_slice(&source);
    ip[16..20].copy_from_slice(&destination);
    icrc(&ip, udp_source, udp_destination, transport)
}

/// [`icrc_ipv4`] of a datagram over IPv6: traffic class, flow label and hop limit are what routers
/// may change.
pub fn icrc_ipv6(
    source: [u8; 16],
    destination: [u8; 16],
    udp_source: u16,
    udp_destination: u16,
    transport: &[u8],
) -> [u8; ICRC_BYTES] {
    let mut ip = [0xff; IPV6_HEADER];
    ip[0] = 0x6f;
    ip[4..6].copy_from_slice(&(udp_length(transport) as u16).to_be_bytes());
    ip[6] = UDP;
    ip[8..24].copy_from_slice(&source);
    ip[24..40].copy_from_slice(&destination);
    icrc(&ip, udp_source, udp_destination, transport)
}

/// Bytes of the UDP datagram that carries `transport`.
fn udp_length(transport: &[u8]) -> usize {
    UDP_HEADER + transport.len() + ICRC_BYTES
}

/// The CRC behind a masked IP header.
fn icrc(ip: &[u8], udp_source: u16, udp_destination: u16, transport: &[u8]) -> [u8; ICRC_BYTES] {
    let mut udp = [0xff; UDP_HEADER];
    udp[0..2].copy_from_slice(&udp_source.to_be_bytes());
    udp[2..4].copy_from_slice(&udp_destination.to_be_bytes());
    udp[4..6].copy_from_slice(&(udp_length(transport) as u16).to_be_bytes());

    let (bth, rest) = transport.split_at(transport.len().min(BTH_HEADER));
    let mut masked = [0; BTH_HEADER];
    masked[..bth.len()].copy_from_slice(bth);
    masked[BTH_VARIANT] = 0xff;

    let mut crc = crc32fast::Hasher::new();
    crc.update(&LRH);
    crc.update(ip);
    crc.update(&udp);
    crc.update(&masked[..bth.len()]);
    crc.update(rest);
    // The CRC is that of Ethernet, sent least significant byte first (IBTA 7.8.1).
    crc.finalize().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// The Ethernet CRC as the polynomial division that it is, one bit at a time.
    fn crc_by_bits(bytes: &[u8]) -> u32 {
        let mut crc = u32::MAX;
        for &byte in bytes {
            for bit in 0..8 {
                let carry = (crc ^ u32::from(byte >> bit)) & 1;
                crc = crc >> 1 ^ if carry == 1 { POLYNOMIAL } else { 0 };
            }
        }
        !crc
    }

    #[test]
    fn the_bitwise_crc_is_the_ethernet_one() {
        assert_eq!(crc_by_bits(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn covers_what_the_annex_says() {
        let transport: Vec<u8> = (0..40_u8).map(|byte| byte.wrapping_mul(7)).collect();
        let mut covered = std::vec![0xff; 8];
        covered.extend([
            0x45, 0xff, 0, 72, 0, 0, 0x40, 0, 0xff, 17, 0xff, 0xff, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        covered.extend([0xc0, 0, 0x12, 0xb7, 0, 52, 0xff, 0xff]);
        covered.extend(&transport);
        covered[8 + 20 + 8 + 4] = 0xff;
        let got = icrc_ipv4([10, 0, 0, 1], [10, 0, 0, 2], 0xc000, 4791, &transport);
        assert_eq!(got, crc_by_bits(&covered).to_le_bytes());
    }

    #[test]
    fn covers_an_ipv6_header_without_what_routers_change() {
        let transport: Vec<u8> = (0..40_u8).map(|byte| byte.wrapping_mul(7)).collect();
        let (source, destination) = (core::array::from_fn(|at| at as u8), [0xfd; 16]);
        let mut covered = std::vec![0xff; 8];
        covered.extend([0x6f, 0xff, 0xff, 0xff, 0, 52, 17, 0xff]);
        covered.extend(source);
        covered.extend(destination);
        covered.extend([0xc0, 0, 0x12, 0xb7, 0, 52, 0xff, 0xff]);
        covered.extend(&transport);
        covered[8 + 40 + 8 + 4] = 0xff;
        let got = icrc_ipv6(source, destination, 0xc000, 4791, &transport);
        assert_eq!(got, crc_by_bits(&covered).to_le_bytes());
    }

    #[test]
    fn agrees_with_hardware() {
        // A congestion notification that a ConnectX-4 Lx sent, as captured for Scapy's RoCE tests:
        // identification 0x718c.
        let mut transport = [0; 28];
        transport[..12].copy_from_slice(&[0x81, 0, 0xff, 0xff, 0x40, 0, 0x01, 0x18, 0, 0, 0, 0]);
        let got = icrc_identified(0x718c, [10, 0, 17, 1], [10, 0, 18, 1], 0, 4791, &transport);
        assert_eq!(got, [0x82, 0xfd, 0x00, 0x2a]);
    }

    #[test]
    fn an_identification_is_found() {
        let (source, destination) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let bytes: Vec<u8> = (0..1100_u32).map(|number| (number * number) as u8).collect();
        for length in [12, 16, 28, 1052, 1100] {
            for identification in [0, 1, 0xff, 0x100, 0x473f, 0xffff] {
                let transport = &bytes[..length];
                let icrc =
                    icrc_identified(identification, source, destination, 0xc440, 4791, transport);
                let find =
                    |icrc| identification_ipv4(source, destination, 0xc440, 4791, transport, icrc);
                assert_eq!(find(icrc), Some(identification));
                let [a, b, c, d] = icrc;
                assert_eq!(find([a, b ^ 1, c, d]), None);
            }
        }
    }

    #[test]
    fn the_identification_of_soft_roce_is_found() {
        // An acknowledgment as rdma_rxe of Linux 6.1 sent it, with identification 0x473f in its IP
        // header.
        let transport = [0x11, 0, 0xff, 0xff, 0, 0, 0, 0x40, 0, 0xff, 0xff, 0x80, 0x1f, 0, 0, 1];
        let icrc = [0x1d, 0xd3, 0x2b, 0xc8];
        let found =
            identification_ipv4([10, 98, 0, 1], [10, 98, 0, 2], 0xc440, 4791, &transport, icrc);
        assert_eq!(found, Some(0x473f));
    }

    #[test]
    fn a_router_may_mark_congestion() {
        let mut transport = [0; 16];
        let plain = icrc_ipv4([10, 0, 0, 1], [10, 0, 0, 2], 4791, 4791, &transport);
        transport[4] = 0xc0;
        assert_eq!(plain, icrc_ipv4([10, 0, 0, 1], [10, 0, 0, 2], 4791, 4791, &transport));
        transport[5] = 1;
        assert_ne!(plain, icrc_ipv4([10, 0, 0, 1], [10, 0, 0, 2], 4791, 4791, &transport));
    }

    #[test]
    fn short_input_is_no_panic() {
        for length in 0..14 {
            let _ = icrc_ipv4([0; 4], [0; 4], 0, 0, &[1; 14][..length]);
            let _ = identification_ipv4([0; 4], [0; 4], 0, 0, &[1; 14][..length], [1; 4]);
        }
    }
}
