//! The network interfaces of this host, why some are not used, and the one that leads to a peer.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;

use if_addrs::IfAddr;

use crate::address::HostAddress;

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkInterface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its addresses: IPv4 first, those of one link last.
    pub addresses: Vec<HostAddress>,
    /// Why it is not used unless it is named; `None` if it is.
    pub reason: Option<String>,
}

impl NetworkInterface {
    /// Every address of it is this host's own.
    pub fn is_loopback(&self) -> bool {
        !self.addresses.is_empty() && self.addresses.iter().all(|one| one.is_loopback())
    }

    /// Whether it has no address, or addresses of one link only.
    fn is_local(&self) -> bool {
        self.addresses.iter().all(|one| one.is_link_local())
    }
}

/// Every network interface that has an address or could have one: first those whose addresses are
/// of more than one link, the loopback last.
///
/// # Errors
/// Those of getifaddrs(3).
pub fn list() -> io::Result<Vec<NetworkInterface>> {
    let mut interfaces: Vec<NetworkInterface> = Vec::new();
    for found in if_addrs::get_if_addrs()? {
        let address = HostAddress::new(found.ip(), found.index.unwrap_or(0));
        let known = interfaces.iter().position(|interface| interface.name == found.name);
        let place = known.unwrap_or_else(|| {
            interfaces.push(NetworkInterface { name: found.name, addresses: vec![], reason: None });
            interfaces.len() - 1
        });
        // Those of IPv4 have no scope, so that routes do not tell their links apart.
        if !matches!(address.ip(), IpAddr::V4(ip) if ip.is_link_local()) {
            interfaces[place].addresses.push(address);
        }
    }
    // Interfaces without an address are only in sysfs.
    for entry in std::fs::read_dir(SYSFS).into_iter().flatten().flatten() {
        if let Ok(name) = entry.file_name().into_string()
            && entry.path().is_dir()
            && !interfaces.iter().any(|interface| interface.name == name)
        {
            interfaces.push(NetworkInterface { name, addresses: vec![], reason: None });
        }
    }
    for interface in &mut interfaces {
        interface.addresses.sort_by_key(|one| (one.is_link_local(), one.ip().is_ipv6()));
        interface.reason = reason(Path::new(SYSFS), interface);
    }
    let order = |one: &NetworkInterface| (one.is_loopback(), one.is_local(), one.name.clone());
    interfaces.sort_by_cached_key(order);
    Ok(interfaces)
}

/// The interfaces through which an address of one link may lead to a peer, if its scope is not
/// known: those of this host that have such an address, as scopes.
///
/// # Errors
/// Those of getifaddrs(3).
pub(crate) fn scopes() -> io::Result<Vec<u32>> {
    let mut scopes: Vec<u32> = list()?
        .iter()
        .flat_map(|interface| &interface.addresses)
        .filter(|address| address.is_link_local())
        .map(|address| address.scope())
        .collect();
    scopes.dedup();
    Ok(scopes)
}

const SYSFS: &str = "/sys/class/net";

/// Why an interface is not used unless it is named.
fn reason(sysfs: &Path, interface: &NetworkInterface) -> Option<String> {
    let directory = sysfs.join(&interface.name);
    let state = std::fs::read_to_string(directory.join("operstate")).unwrap_or_default();
    if matches!(state.trim(), "down" | "lowerlayerdown" | "notpresent" | "dormant") {
        return Some(format!("its link is {}: ip link set {} up", state.trim(), interface.name));
    }
    if directory.join("bridge").is_dir() {
        return Some(
            "it is a bridge, which usually leads to containers of this host: name it to use it"
                .into(),
        );
    }
    if interface.addresses.is_empty() {
        let name = &interface.name;
        return Some(format!(
            "it has no address, or only one of 169.254.0.0/16: ip addr add ADDRESS dev {name}"
        ));
    }
    // The kernel gives every one of them an address.
    if interface.is_local() && directory.join("brport").is_dir() {
        return Some("it is a port of a bridge, and has only a link-local address".into());
    }
    None
}

/// Adds what to do to an error of bind(2) or connect(2), if the address shows it.
pub fn advise(address: SocketAddr, error: io::Error) -> io::Error {
    let advice = match (address, error.kind()) {
        // Without 127.0.0.1 it was never up; otherwise it has been set down.
        (address, ErrorKind::AddrNotAvailable | ErrorKind::NetworkUnreachable)
            if address.ip().is_loopback() =>
        {
            match address {
                SocketAddr::V4(_) => "the loopback is down: ip link set lo up",
                SocketAddr::V6(_) => "the loopback is down, or has no IPv6: ip link set lo up",
            }
        }
        (SocketAddr::V6(v6), ErrorKind::InvalidInput)
            if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 =>
        {
            "a link-local address needs the name of an interface, as in fe80::1%eth0"
        }
        (SocketAddr::V6(v6), ErrorKind::AddrNotAvailable) if v6.ip().is_unicast_link_local() => {
            "no interface of this scope has the address, or not yet: see ip addr"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{error}; {advice}"))
}

/// The source address of packets to `peer`, by the current routes. Sends nothing.
///
/// # Errors
/// There is no route.
pub fn source_of(peer: HostAddress) -> io::Result<HostAddress> {
    let any: IpAddr = if peer.ip().is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    // The port does not matter: connecting a datagram socket only finds the route.
    socket.connect(peer.at(9))?;
    Ok(socket.local_addr()?.into())
}

/// The routes and interfaces of this host, each as it was when it was first asked for: for a choice
/// among many addresses.
#[derive(Debug, Default)]
pub struct Routes {
    /// Of each peer, the source address or the number of the error.
    sources: RefCell<BTreeMap<HostAddress, Result<HostAddress, i32>>>,
    interfaces: OnceCell<Vec<if_addrs::Interface>>,
}

impl Routes {
    /// As [`source_of`].
    ///
    /// # Errors
    /// There is no route.
    pub fn source_of(&self, peer: HostAddress) -> io::Result<HostAddress> {
        if let Some(known) = self.sources.borrow().get(&peer) {
            return known.map_err(io::Error::from_raw_os_error);
        }
        let found = source_of(peer);
        let kept = match &found {
            Ok(source) => Some(Ok(*source)),
            // An error that does not come from the kernel is not one of the route.
            Err(error) => error.raw_os_error().map(Err),
        };
        if let Some(kept) = kept {
            self.sources.borrow_mut().insert(peer, kept);
        }
        found
    }

    /// Whether packets to `peer` leave through the network interface that has the address `own`:
    /// the route has this source address, or both addresses are of one subnet.
    ///
    /// # Errors
    /// There is no route, or those of getifaddrs(3).
    pub fn lead_to(&self, own: HostAddress, peer: HostAddress) -> io::Result<bool> {
        if self.source_of(peer)? == own {
            return Ok(true);
        }
        let interfaces = if let Some(known) = self.interfaces.get() {
            known
        } else {
            let found = if_addrs::get_if_addrs()?;
            self.interfaces.get_or_init(|| found)
        };
        let Some(found) = interfaces.iter().find(|interface| interface.ip() == own.ip()) else {
            return Ok(false);
        };
        // A prefix of more bits than an address has does not come from the kernel.
        let differ = |bits: u128, width: u32, prefix: u8| {
            bits.checked_shr(width.saturating_sub(prefix.into())).unwrap_or(0) != 0
        };
        Ok(match (&found.addr, peer.ip()) {
            (IfAddr::V4(own), IpAddr::V4(peer)) => {
                !differ(u128::from(own.ip.to_bits() ^ peer.to_bits()), 32, own.prefixlen)
            }
            (IfAddr::V6(own), IpAddr::V6(peer)) => {
                !differ(own.ip.to_bits() ^ peer.to_bits(), 128, own.prefixlen)
            }
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_there_and_leads_to_itself() {
        let interfaces = list().unwrap();
        let loopback = interfaces.last().unwrap();
        assert!(loopback.is_loopback(), "{interfaces:?}");
        let address = loopback.addresses[0];
        assert_eq!(source_of(address).unwrap(), address);
    }

    #[test]
    fn errors_of_a_loopback_that_is_down_and_without_a_scope_say_what_to_do() {
        let advised = |address: &str, error: i32| {
            let error = io::Error::from_raw_os_error(error);
            let kind = error.kind();
            let advised = advise(address.parse().unwrap(), error);
            assert_eq!(advised.kind(), kind);
            advised.to_string()
        };
        // ENETUNREACH, EADDRNOTAVAIL, EINVAL
        assert!(advised("127.0.0.1:80", 101).ends_with("ip link set lo up"));
        assert!(advised("127.3.0.1:80", 99).ends_with("ip link set lo up"));
        assert!(advised("[::1]:80", 99).contains("has no IPv6"));
        assert!(advised("[fe80::7]:80", 22).ends_with("fe80::1%eth0"));
        assert!(advised("[fe80::7%1]:80", 99).ends_with("ip addr"));
        let without = io::Error::from_raw_os_error(101).to_string();
        assert_eq!(advised("192.0.2.1:80", 101), without);
        assert_eq!(advised("[fe80::7%3]:80", 101), without);
    }

    #[test]
    fn routes_are_asked_for_once() {
        let (routes, loopback) =
            (Routes::default(), HostAddress::from(IpAddr::from([127, 0, 0, 1])));
        assert_eq!(routes.source_of(loopback).unwrap(), loopback);
        assert!(routes.lead_to(loopback, loopback).unwrap());
        // What is known is returned, whatever the kernel would say.
        let other = HostAddress::from(IpAddr::from([192, 0, 2, 7]));
        routes.sources.borrow_mut().insert(loopback, Ok(other));
        assert_eq!(routes.source_of(loopback).unwrap(), other);
        routes.sources.borrow_mut().insert(loopback, Err(101));
        let error = routes.lead_to(loopback, loopback).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NetworkUnreachable);
        // One of the loopback's addresses, without being the source of the route.
        let second = HostAddress::from(IpAddr::from([127, 0, 0, 2]));
        routes.sources.borrow_mut().insert(second, Ok(other));
        assert!(routes.lead_to(loopback, second).unwrap());
        routes.interfaces.get().expect("the interfaces are kept");
    }

    #[test]
    fn reasons_are_why() {
        let root = std::env::temp_dir().join(format!("barewire-net-{}", std::process::id()));
        let interface =
            |name: &str, addresses| NetworkInterface { name: name.into(), addresses, reason: None };
        let address = [IpAddr::from([10, 0, 0, 1]).into()];
        let local = [HostAddress::new("fe80::1".parse().unwrap(), 7)];
        for name in ["down0", "br0", "port0", "good0"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
            let state = if name == "down0" { "down\n" } else { "up\n" };
            std::fs::write(root.join(name).join("operstate"), state).unwrap();
        }
        std::fs::create_dir(root.join("br0/bridge")).unwrap();
        std::fs::create_dir(root.join("port0/brport")).unwrap();
        let why = |name: &str, addresses: &[HostAddress]| {
            reason(&root, &interface(name, addresses.to_vec()))
        };
        assert!(why("down0", &address).unwrap().contains("link is down"));
        assert!(why("br0", &address).unwrap().contains("bridge"));
        assert!(why("port0", &local).unwrap().contains("port of a bridge"));
        assert!(why("good0", &[]).unwrap().contains("no address"));
        for (name, addresses) in [("good0", address), ("good0", local), ("port0", address)] {
            assert_eq!(why(name, &addresses), None);
        }
        std::fs::remove_dir_all(root).unwrap();
    }
}
