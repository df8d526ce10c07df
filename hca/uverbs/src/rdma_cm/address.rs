//! Socket addresses of the ABI, and the addresses in connection requests.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use barewire_layouts::management::IpHeader;
use barewire_layouts::prm::{Layout, View, ViewMut};
use barewire_layouts::roce::DEFAULT_PKEY;

use super::abi::STORAGE;
use super::state::{PS_IB, PS_TCP, PS_UDP};
use crate::errno::Errno;

const AF_INET: u16 = libc::AF_INET as u16;
const AF_INET6: u16 = libc::AF_INET6 as u16;
/// `AF_IB`.
const AF_IB: u16 = 27;
/// Bytes of `sockaddr_ib`.
pub(super) const IB: u16 = 48;

/// `RDMA_IB_IP_PS_MASK`: the part of a service identifier that is a port space.
const SPACE: u64 = 0xffff_ffff_ffff_0000;

/// An address of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// The IP address and the port; of an AF_IB address, the IP address that its GID contains.
    pub(super) socket: SocketAddr,
    /// The rest of an AF_IB address.
    pub(super) native: Option<Native>,
}

/// What a `sockaddr_ib` has beside its GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Native {
    pkey: u16,
    flow: u32,
    /// The service identifier: a port space and a port.
    service: u64,
    /// The bits of `service` that count.
    mask: u64,
    scope: u64,
}

/// Returns the service identifier of a port in a port space.
pub(super) fn service(space: u16, port: u16) -> u64 {
    u64::from(space) << 16 | u64::from(port)
}

impl Native {
    /// Returns the name of the service of a peer, or of a program that receives a request for it.
    pub(super) fn of_service(service: u64) -> Self {
        Self { pkey: DEFAULT_PKEY, flow: 0, service, mask: u64::MAX, scope: 0 }
    }
}

impl From<SocketAddr> for Address {
    fn from(socket: SocketAddr) -> Self {
        Self { socket, native: None }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}

impl Address {
    pub(super) fn ip(&self) -> IpAddr {
        self.socket.ip()
    }

    pub(super) fn port(&self) -> u16 {
        self.socket.port()
    }

    /// Returns the service that the address names for an identifier of a port space.
    pub(super) fn service(&self, space: u16) -> u64 {
        self.native.map_or_else(|| service(space, self.port()), |native| native.service)
    }

    /// Returns any address of this kind, for the other end of a connection.
    pub(super) fn any(&self) -> Self {
        let ip = match self.ip() {
            IpAddr::V4(_) if self.native.is_none() => Ipv4Addr::UNSPECIFIED.into(),
            _ => Ipv6Addr::UNSPECIFIED.into(),
        };
        let native = self.native.map(|native| Native { service: 0, mask: 0, ..native });
        Self { socket: SocketAddr::new(ip, 0), native }
    }

    /// Returns the same with another IP address.
    pub(super) fn with_ip(self, ip: IpAddr) -> Self {
        Self { socket: SocketAddr::new(ip, self.port()), ..self }
    }

    /// Returns the same with a port of `space`, to which the identifier is bound.
    pub(super) fn with_port(self, space: u16, port: u16) -> Self {
        let service = service(space, port);
        let native = self.native.map(|native| Native { service, mask: u64::MAX, ..native });
        Self { socket: SocketAddr::new(self.ip(), port), native }
    }

    /// Returns the port space in which an identifier of `space` is bound (linux cma.c:
    /// `cma_select_ib_ps`): that of its service identifier, as far as its mask says.
    pub(super) fn space(&self, space: u16) -> Result<u16, Errno> {
        let Some(native) = self.native else { return Ok(space) };
        let mask = native.mask & SPACE;
        let names = |of: u16| native.service & mask == u64::from(of) << 16 & mask;
        let fits = |of: &u16| (space == PS_IB || space == *of) && names(*of);
        [PS_IB, PS_TCP, PS_UDP].into_iter().find(fits).ok_or(Errno(libc::EPROTONOSUPPORT))
    }
}

/// Returns `N` bytes at `offset`.
fn part<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], Errno> {
    let part = bytes.get(offset..).and_then(|rest| rest.first_chunk());
    part.copied().ok_or(Errno::INVALID)
}

/// Reads a `sockaddr`; `None` for one without a family.
pub(super) fn read(bytes: &[u8]) -> Result<Option<Address>, Errno> {
    let port = || part(bytes, 2).map(u16::from_be_bytes);
    match u16::from_ne_bytes(part(bytes, 0)?) {
        0 => Ok(None),
        AF_INET => {
            let address = Ipv4Addr::from(part::<4>(bytes, 4)?);
            Ok(Some(SocketAddr::from((address, port()?)).into()))
        }
        AF_INET6 => {
            let address = IpAddr::from(Ipv6Addr::from(part::<16>(bytes, 8)?)).to_canonical();
            Ok(Some(SocketAddr::new(address, port()?).into()))
        }
        AF_IB => {
            let native = Native {
                pkey: u16::from_be_bytes(part(bytes, 2)?),
                flow: u32::from_be_bytes(part(bytes, 4)?),
                service: u64::from_be_bytes(part(bytes, 24)?),
                mask: u64::from_be_bytes(part(bytes, 32)?),
                scope: u64::from_ne_bytes(part(bytes, 40)?),
            };
            let address = IpAddr::from(part::<16>(bytes, 8)?).to_canonical();
            let port = (native.service & native.mask) as u16;
            Ok(Some(Address { socket: SocketAddr::new(address, port), native: Some(native) }))
        }
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Returns the `sockaddr` of an address, and its length; all zeros without one.
pub(super) fn write(address: Option<Address>) -> ([u8; STORAGE], u16) {
    let mut bytes = [0; STORAGE];
    let Some(Address { socket, native }) = address else { return (bytes, 0) };
    if let Some(native) = native {
        bytes = write_gid(gid(socket.ip()), native.pkey);
        bytes[4..8].copy_from_slice(&native.flow.to_be_bytes());
        bytes[24..32].copy_from_slice(&native.service.to_be_bytes());
        bytes[32..40].copy_from_slice(&native.mask.to_be_bytes());
        bytes[40..48].copy_from_slice(&native.scope.to_ne_bytes());
        return (bytes, IB);
    }
    bytes[2..4].copy_from_slice(&socket.port().to_be_bytes());
    let length = match socket.ip() {
        IpAddr::V4(address) => {
            bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
            bytes[4..8].copy_from_slice(&address.octets());
            16
        }
        IpAddr::V6(address) => {
            bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
            bytes[8..24].copy_from_slice(&address.octets());
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
            assert_eq!(read(&write(Some(address.into())).0), Ok(Some(address.into())));
            let ends = Ends { source: address, destination: address.ip() };
            let mut private = [0; Ends::BYTES];
            ends.write(&mut private);
            assert_eq!(Ends::read(&private), Some(ends));
            let native =
                Address { native: Some(Native::of_service(0x0106_1c06)), ..address.into() };
            let native = native.with_port(PS_TCP, address.port());
            assert_eq!(read(&write(Some(native)).0), Ok(Some(native)));
        }
        assert_eq!(read(&write(None).0), Ok(None));
        assert_eq!(read(&[1; 48]), Err(Errno(libc::EAFNOSUPPORT)));
        assert_eq!(read(&[2]), Err(Errno::INVALID));
        assert_eq!(read(&write_gid([1; 16], 0xffff)[..47]), Err(Errno::INVALID));
        assert_eq!(Ends::read(&[0xff; 36]), None);
        assert_eq!(Ends::read(&[0; 35]), None);
    }

    /// `struct sockaddr_ib` of librdmacm's ib.h.
    #[test]
    fn an_infiniband_address_byte_for_byte() {
        let mut bytes = [0; 48];
        (bytes[0], bytes[2], bytes[3]) = (27, 0xff, 0xff);
        bytes[8..24].copy_from_slice(&gid(IpAddr::from([127, 66, 0, 1])));
        // A TCP port, of which only the port space counts.
        bytes[24..32].copy_from_slice(&0x0106_1c06_u64.to_be_bytes());
        bytes[32..40].copy_from_slice(&SPACE.to_be_bytes());
        let address = read(&bytes).unwrap().unwrap();
        assert_eq!(address.socket, SocketAddr::from(([127, 66, 0, 1], 0)));
        assert_eq!(write(Some(address)).0[..48], bytes);
        let bound = address.with_port(PS_TCP, 7174);
        assert_eq!((bound.port(), bound.service(PS_IB)), (7174, 0x0106_1c06));
    }

    /// Linux cma.c: `cma_select_ib_ps`.
    #[test]
    fn a_service_identifier_selects_the_port_space() {
        let of = |service, mask| {
            let native = Native { mask, ..Native::of_service(service) };
            Address { native: Some(native), ..SocketAddr::from(([0; 16], 0)).into() }
        };
        let refused = Err(Errno(libc::EPROTONOSUPPORT));
        for (address, space, selected) in [
            (of(0x0106_0000, SPACE), PS_IB, Ok(PS_TCP)),
            (of(0x0111_0000, SPACE), PS_IB, Ok(PS_UDP)),
            (of(0x013f_0001, u64::MAX), PS_IB, Ok(PS_IB)),
            (of(0, 0), PS_IB, Ok(PS_IB)),
            (of(0, 0), PS_UDP, Ok(PS_UDP)),
            (of(0x0106_0000, SPACE), PS_UDP, refused),
            (of(0x1000_0000_0106_0000, SPACE), PS_IB, refused),
        ] {
            assert_eq!(address.space(space), selected, "{address:?}");
        }
    }
}
