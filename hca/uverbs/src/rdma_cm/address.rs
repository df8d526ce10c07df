//! Socket addresses of the ABI, and the addresses in connection requests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

use barewire_layouts::management::IpHeader;
use barewire_layouts::prm::{Layout, View, ViewMut};

use super::abi::STORAGE;
use crate::errno::Errno;

const AF_INET: u16 = libc::AF_INET as u16;
const AF_INET6: u16 = libc::AF_INET6 as u16;
/// `AF_IB`.
const AF_IB: u16 = 27;
/// Bytes of `sockaddr_ib`.
pub(super) const IB: u16 = 48;

/// Returns `N` bytes at `offset`.
fn part<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], Errno> {
    let part = bytes.get(offset..).and_then(|rest| rest.first_chunk());
    part.copied().ok_or(Errno::INVALID)
}

/// Reads a `sockaddr`; `None` for one without a family.
pub(super) fn read(bytes: &[u8]) -> Result<Option<SocketAddr>, Errno> {
    let port = || part(bytes, 2).map(u16::from_be_bytes);
    match u16::from_ne_bytes(part(bytes, 0)?) {
        0 => Ok(None),
        AF_INET => {
            let address = Ipv4Addr::from(part::<4>(bytes, 4)?);
            Ok(Some(SocketAddrV4::new(address, port()?).into()))
        }
        AF_INET6 => {
            let address = IpAddr::from(Ipv6Addr::from(part::<16>(bytes, 8)?)).to_canonical();
            Ok(Some(SocketAddr::new(address, port()?)))
        }
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Returns the `sockaddr` of an address, and its length; all zeros without one.
pub(super) fn write(address: Option<SocketAddr>) -> ([u8; STORAGE], u16) {
    let mut bytes = [0; STORAGE];
    let length = match address {
        None => 0,
        Some(SocketAddr::V4(address)) => {
            bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
            bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
            bytes[4..8].copy_from_slice(&address.ip().octets());
            16
        }
        Some(SocketAddr::V6(address)) => {
            bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
            bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
            bytes[8..24].copy_from_slice(&address.ip().octets());
            28
        }
    };
    (bytes, length)
}

/// Returns the `sockaddr_ib` of a GID.
pub(super) fn write_gid(gid: [u8; 16], pkey: u16) -> [u8; STORAGE] {
    let mut bytes = [0; STORAGE];
    bytes[..2].copy_from_slice(&AF_IB.to_ne_bytes());
    bytes[2..4].copy_from_slice(&pkey.to_be_bytes());
    bytes[8..24].copy_from_slice(&gid);
    bytes
}

/// Returns the GID of an address.
pub(super) fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Returns whether sockets of one family reach the other address.
pub(super) fn same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

/// The addresses that the private data of a request starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) source: SocketAddr,
    pub(super) destination: IpAddr,
}

impl Ends {
    pub(super) const BYTES: usize = IpHeader::BYTES;

    /// Writes the header at the start of `private`.
    pub(super) fn write(&self, private: &mut [u8]) {
        let field = |address: IpAddr| match address {
            IpAddr::V4(address) => {
                let mut bytes = [0; 16];
                bytes[12..].copy_from_slice(&address.octets());
                bytes
            }
            IpAddr::V6(address) => address.octets(),
        };
        if let Some(mut header) = ViewMut::<IpHeader>::new(private) {
            header
                .set(IpHeader::IP_VERSION, if self.source.is_ipv4() { 4 } else { 6 })
                .set(IpHeader::PORT, self.source.port())
                .set_array(IpHeader::SOURCE, field(self.source.ip()))
                .set_array(IpHeader::DESTINATION, field(self.destination));
        }
    }

    /// Reads the header; `None` if it is of another version.
    pub(super) fn read(private: &[u8]) -> Option<Self> {
        let header = View::<IpHeader>::new(private)?;
        let of = |bytes: [u8; 16]| -> Option<IpAddr> {
            match header.get(IpHeader::IP_VERSION) {
                4 => Some(Ipv4Addr::new(bytes[12], bytes[13], bytes[14], bytes[15]).into()),
                6 => Some(Ipv6Addr::from(bytes).into()),
                _ => None,
            }
        };
        (header.get(IpHeader::VERSION) == 0).then_some(())?;
        let source = of(header.array(IpHeader::SOURCE))?;
        Some(Self {
            source: SocketAddr::new(source, header.get(IpHeader::PORT)),
            destination: of(header.array(IpHeader::DESTINATION))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were_written() {
        for text in ["127.1.2.3:7174", "[fd00::1]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(read(&write(Some(address)).0), Ok(Some(address)));
            let ends = Ends { source: address, destination: address.ip() };
            let mut private = [0; Ends::BYTES];
            ends.write(&mut private);
            assert_eq!(Ends::read(&private), Some(ends));
        }
        assert_eq!(read(&write(None).0), Ok(None));
        assert_eq!(read(&write_gid([1; 16], 0xffff)), Err(Errno(libc::EAFNOSUPPORT)));
        assert_eq!(read(&[2]), Err(Errno::INVALID));
        assert_eq!(Ends::read(&[0xff; 36]), None);
        assert_eq!(Ends::read(&[0; 35]), None);
    }
}
