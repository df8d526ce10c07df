//! Where an interface listens, as a part of its address.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The listener of an interface.
///
/// | bytes | contents |
/// |---|---|
/// | 0 to 7 | a random number, which later users of the port do not have |
/// | 8 to 9 | port |
/// | 10 to 25 | address; an IPv4 address is mapped |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contact {
    pub(crate) number: u64,
    pub(crate) address: SocketAddr,
}

impl Contact {
    pub(crate) const BYTES: usize = 26;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let address = match self.address.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        bytes[..8].copy_from_slice(&self.number.to_be_bytes());
        bytes[8..10].copy_from_slice(&self.address.port().to_be_bytes());
        bytes[10..].copy_from_slice(&address.octets());
        bytes
    }

    /// Returns the contact in these bytes; `None` if no interface listens there.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let number = u64::from_be_bytes(*bytes.first_chunk()?);
        let port = u16::from_be_bytes([bytes[8], bytes[9]]);
        let address = Ipv6Addr::from(*bytes.last_chunk::<16>()?);
        let address = address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4);
        let is_host = !address.is_unspecified() && !address.is_multicast();
        (port != 0 && is_host).then_some(Self { number, address: SocketAddr::new(address, port) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        for (text, tail) in
            [("10.1.2.3:513", [0xff, 0xff, 10, 1, 2, 3]), ("[fd00::1]:513", [0, 0, 0, 0, 0, 1])]
        {
            let contact = Contact { number: 0x0102, address: text.parse().unwrap() };
            let bytes = contact.to_bytes();
            assert_eq!(bytes[..10], [0, 0, 0, 0, 0, 0, 1, 2, 2, 1]);
            assert_eq!(bytes[20..], tail);
            assert_eq!(Contact::parse(&bytes), Some(contact));
        }
    }

    #[test]
    fn impossible_contacts_are_refused() {
        let good = Contact { number: 1, address: "10.1.2.3:4".parse().unwrap() }.to_bytes();
        assert_eq!(Contact::parse(&good[1..]), None);
        assert_eq!(Contact::parse(&[0; Contact::BYTES]), None);
        for text in ["0.0.0.0:1", "224.0.0.1:1", "10.1.2.3:0", "[::]:1"] {
            let contact = Contact { number: 1, address: text.parse().unwrap() };
            assert_eq!(Contact::parse(&contact.to_bytes()), None, "{text}");
        }
    }
}
