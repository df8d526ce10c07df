//! The handle of a listener: what a peer needs to connect, as bytes.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::message::VERSION;

const MAGIC: [u8; 4] = *b"BWCH";
/// Bytes of a token.
pub(crate) const TOKEN: usize = 16;

/// Bytes of a handle. NCCL has room for 128.
pub const HANDLE_BYTES: usize = 48;

/// Why bytes are no handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// The bytes are not of a handle.
    #[error("these bytes are no handle of a channel")]
    Foreign,
    /// The listener has another version.
    #[error("the handle has version {0}, this end {VERSION}: use the same barewire at both ends")]
    Version(u16),
}

/// The address of a listener, and the token that tells it from others at one address. It crosses
/// to the peer by other means, and is no secret.
///
/// | bytes | contents |
/// |---|---|
/// | 0 | `BWCH` |
/// | 4 | version (u16), port (u16), little-endian |
/// | 8 | zeros |
/// | 16 | IPv6 address; IPv4 is mapped |
/// | 32 | token |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    pub(crate) address: SocketAddr,
    pub(crate) token: [u8; TOKEN],
}

impl Handle {
    /// The scope of a link-local address is left out: it is the peer's own.
    pub(super) fn new(address: SocketAddr, token: [u8; TOKEN]) -> Self {
        Self { address: SocketAddr::new(address.ip(), address.port()), token }
    }

    /// The address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The bytes of the handle.
    pub fn to_bytes(&self) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        let ip = match self.address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.address.port().to_le_bytes());
        bytes[16..32].copy_from_slice(&ip.octets());
        bytes[32..].copy_from_slice(&self.token);
        bytes
    }

    /// Reads a handle from the start of `bytes`, which may be longer.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HandleError> {
        let bytes: &[u8; HANDLE_BYTES] = bytes.first_chunk().ok_or(HandleError::Foreign)?;
        let (head, rest) = bytes.split_at(16);
        let [m0, m1, m2, m3, v0, v1, p0, p1, 0, 0, 0, 0, 0, 0, 0, 0] = *head else {
            return Err(HandleError::Foreign);
        };
        if [m0, m1, m2, m3] != MAGIC {
            return Err(HandleError::Foreign);
        }
        match u16::from_le_bytes([v0, v1]) {
            VERSION => {}
            other => return Err(HandleError::Version(other)),
        }
        let (ip, rest) = rest.split_first_chunk::<16>().ok_or(HandleError::Foreign)?;
        let token = *rest.first_chunk().ok_or(HandleError::Foreign)?;
        let port = u16::from_le_bytes([p0, p1]);
        if port == 0 {
            return Err(HandleError::Foreign);
        }
        Ok(Self::new(SocketAddr::new(Ipv6Addr::from(*ip).to_canonical(), port), token))
    }

    /// The token as the numbers of a claim.
    pub(super) fn numbers(&self) -> (u64, u64) {
        let token = u128::from_le_bytes(self.token);
        (token as u64, (token >> 64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_read_back() {
        for address in ["127.0.0.1:1", "[fe80::1%3]:65535", "[2001:db8::2]:4791"] {
            let handle = Handle::new(address.parse().unwrap(), [0xa5; TOKEN]);
            let mut bytes = [0; 128];
            bytes[..HANDLE_BYTES].copy_from_slice(&handle.to_bytes());
            assert_eq!(Handle::from_bytes(&bytes), Ok(handle));
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let handle = Handle { address: "127.0.0.1:7".parse().unwrap(), token: [1; TOKEN] };
        let good = handle.to_bytes();
        assert_eq!(Handle::from_bytes(&good[..47]), Err(HandleError::Foreign));
        let mut newer = good;
        newer[4] = 9;
        assert_eq!(Handle::from_bytes(&newer), Err(HandleError::Version(9)));
        for at in [0, 8, 12, 15] {
            let mut other = good;
            other[at] ^= 1;
            assert_eq!(Handle::from_bytes(&other), Err(HandleError::Foreign), "byte {at}");
        }
        assert_eq!(Handle::from_bytes(&[0; 128]), Err(HandleError::Foreign));
    }
}
