//! The address of a host.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

use rustix::net::{AddressFamily, SocketType, netdevice, socket};

/// The address of a host. That of one link (fe80::/10) has a scope, the number of the interface of
/// this host through which the link is reached: `fe80::1%eth0`. The number means nothing to another
/// host, so an address travels without it.
///
/// ```
/// use barewire_tcp::HostAddress;
///
/// let address: HostAddress = "fe80::1%lo".parse()?;
/// assert_eq!(address.to_string(), "fe80::1%lo");
/// assert_eq!(address.at(7).to_string(), "[fe80::1%1]:7");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostAddress {
    ip: IpAddr,
    /// Zero if there is none, or it is not known.
    scope: u32,
}

/// Whether an address is of one link, and needs a scope.
pub(crate) fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

impl HostAddress {
    /// The address of a host; with the number of an interface of this host, which is the scope if
    /// the address is of one link.
    pub fn new(ip: IpAddr, interface: u32) -> Self {
        Self { ip, scope: if is_link_local(ip) { interface } else { 0 } }
    }

    /// The address without its scope.
    pub fn ip(self) -> IpAddr {
        self.ip
    }

    /// The scope; zero if there is none, or it is not known.
    pub(crate) fn scope(self) -> u32 {
        self.scope
    }

    /// A port at the address.
    pub fn at(self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V4(ip) => SocketAddr::from((ip, port)),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, self.scope).into(),
        }
    }

    /// The address of a peer as this own address reaches it: in this scope.
    #[must_use]
    pub fn toward(self, peer: SocketAddr) -> SocketAddr {
        Self::new(peer.ip(), self.scope).at(peer.port())
    }

    /// It leads to this host only.
    pub fn is_loopback(self) -> bool {
        self.ip.is_loopback()
    }

    /// It is of one link, and needs a scope.
    pub fn is_link_local(self) -> bool {
        is_link_local(self.ip)
    }
}

impl From<IpAddr> for HostAddress {
    fn from(ip: IpAddr) -> Self {
        Self::new(ip, 0)
    }
}

impl From<Ipv4Addr> for HostAddress {
    fn from(ip: Ipv4Addr) -> Self {
        IpAddr::from(ip).into()
    }
}

impl From<Ipv6Addr> for HostAddress {
    fn from(ip: Ipv6Addr) -> Self {
        IpAddr::from(ip).into()
    }
}

impl From<SocketAddr> for HostAddress {
    fn from(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(address) => Self::new(IpAddr::V4(*address.ip()), 0),
            SocketAddr::V6(address) => Self::new(IpAddr::V6(*address.ip()), address.scope_id()),
        }
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip.fmt(f)?;
        if self.scope == 0 {
            return Ok(());
        }
        let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None);
        match any.and_then(|any| netdevice::index_to_name(any, self.scope)) {
            Ok(name) => write!(f, "%{name}"),
            Err(_) => write!(f, "%{}", self.scope),
        }
    }
}

/// As in `10.0.0.1`, `fd00::1` and `fe80::1%eth0`. The scope is the name or the number of an
/// interface of this host, and may be left out.
impl FromStr for HostAddress {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        let invalid = |what: String| io::Error::new(ErrorKind::InvalidInput, what);
        let (ip, interface) = text.split_once('%').unzip();
        let ip: IpAddr = ip.unwrap_or(text).parse().map_err(|_| {
            invalid("not an address, such as 10.0.0.1, fd00::1 or fe80::1%eth0".into())
        })?;
        let Some(interface) = interface else { return Ok(ip.into()) };
        if !is_link_local(ip) {
            return Err(invalid("only a link-local address (fe80::/10) has a scope".into()));
        }
        if let Ok(number) = interface.parse::<u32>() {
            return Ok(Self::new(ip, number));
        }
        let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
        match netdevice::name_to_index(any, interface) {
            Ok(number) => Ok(Self::new(ip, number)),
            Err(error) => {
                Err(invalid(format!("no network interface is named '{interface}' ({error})")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scope_of_a_peer_is_that_of_the_own_address() {
        let own = HostAddress::new("fe80::1".parse().unwrap(), 3);
        for (peer, reached) in [
            ("[fe80::2]:80", "[fe80::2%3]:80"),
            ("[fe80::2%9]:80", "[fe80::2%3]:80"),
            ("[fd00::2]:80", "[fd00::2]:80"),
            ("10.0.0.1:80", "10.0.0.1:80"),
        ] {
            assert_eq!(own.toward(peer.parse().unwrap()), reached.parse().unwrap(), "{peer}");
        }
    }

    #[test]
    fn text_names_the_interface() {
        for text in ["10.0.0.1", "fd00::1", "fe80::1", "fe80::1%lo"] {
            assert_eq!(text.parse::<HostAddress>().unwrap().to_string(), text);
        }
        assert_eq!("fe80::1%1".parse::<HostAddress>().unwrap().to_string(), "fe80::1%lo");
        // The number of an interface that does not exist.
        let text = "fe80::1%4294967295";
        assert_eq!(text.parse::<HostAddress>().unwrap().to_string(), text);
        for (text, error) in
            [("fe80::1%nosuch0", "nosuch0"), ("fd00::1%lo", "scope"), ("host", "not an address")]
        {
            let found = text.parse::<HostAddress>().unwrap_err().to_string();
            assert!(found.contains(error), "{text}: {found}");
        }
    }
}
