//! Socket addresses in the format of the C library.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::sys::SocketBytes;

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

pub(crate) fn to_bytes(address: SocketAddr) -> SocketBytes {
    let mut bytes = [0; 32];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    let family = match address {
        SocketAddr::V4(address) => {
            bytes[4..8].copy_from_slice(&address.ip().octets());
            AF_INET
        }
        SocketAddr::V6(address) => {
            bytes[4..8].copy_from_slice(&address.flowinfo().to_ne_bytes());
            bytes[8..24].copy_from_slice(&address.ip().octets());
            bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
            AF_INET6
        }
    };
    bytes[..2].copy_from_slice(&family.to_ne_bytes());
    SocketBytes(bytes)
}

/// `None` for other families.
pub(crate) fn from_bytes(bytes: &SocketBytes) -> Option<SocketAddr> {
    let bytes = &bytes.0;
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    match u16::from_ne_bytes([bytes[0], bytes[1]]) {
        AF_INET => {
            let octets: [u8; 4] = bytes[4..8].try_into().ok()?;
            Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(octets)), port))
        }
        AF_INET6 => {
            let octets: [u8; 16] = bytes[8..24].try_into().ok()?;
            let flow = u32::from_ne_bytes(bytes[4..8].try_into().ok()?);
            let scope = u32::from_ne_bytes(bytes[24..28].try_into().ok()?);
            Some(SocketAddrV6::new(Ipv6Addr::from(octets), port, flow, scope).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_c_library() {
        for text in ["127.0.0.1:7471", "[fe80::1%3]:65535", "[::]:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(from_bytes(&to_bytes(address)), Some(address));
        }
        let bytes = to_bytes("192.0.2.1:258".parse().unwrap()).0;
        assert_eq!(bytes[..8], [2, 0, 1, 2, 192, 0, 2, 1]);
        assert_eq!(from_bytes(&SocketBytes([0; 32])), None);
    }
}
