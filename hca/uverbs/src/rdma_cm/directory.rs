//! Who listens to a service at the addresses of this machine.
//!
//! On a machine with an adapter, a program that listens at any address is reached by 127.0.0.1 and
//! every other address of the machine. Software devices have addresses of their own, in each process
//! another. A listener at any address therefore also has a name in the network namespace, an abstract
//! socket, by which programs of the same user find the address of its device.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use barewire_layouts::roce::UDP_PORT;

use super::state::{PS_TCP, PS_UDP};

/// How long to wait for a listener, which may share its processor.
const PATIENCE: Duration = Duration::from_secs(10);

fn user() -> u32 {
    // SAFETY: no arguments, and no error.
    unsafe { libc::geteuid() }
}

fn name(service: u64) -> std::io::Result<SocketAddr> {
    // Programs do not find the listeners of tests.
    let kind = if cfg!(test) { "test" } else { "rdma_cm" };
    SocketAddr::from_abstract_name(format!("barewire-hca/{kind}/{}/{service:x}", user()))
}

/// Gives a listener to a service its name. `None` if another process has it.
pub(super) fn enter(service: u64) -> Option<UnixListener> {
    let listener = UnixListener::bind_addr(&name(service).ok()?).ok()?;
    listener.set_nonblocking(true).ok()?;
    Some(listener)
}

/// Responds to those who look up the address.
pub(super) fn respond(listener: &UnixListener, address: Option<IpAddr>) {
    while let Ok((mut stream, _)) = listener.accept() {
        if let Some(address) = address {
            // A peer that does not wait for the response does not need it.
            let _ = stream.write_all(address.to_string().as_bytes());
        }
    }
}

/// Returns the address of the device that is reached by `destination`. An address of this machine
/// without a device is that of the listener to the service, if there is one, or of one with the same
/// port in another port space: its process may listen to the service in a moment.
pub(super) fn find(service: u64, destination: IpAddr) -> Option<IpAddr> {
    let destination =
        if destination.is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { destination };
    // Fails if a device has the address, or another machine.
    if UdpSocket::bind((destination, UDP_PORT)).is_err() {
        return Some(destination);
    }
    let others = [PS_TCP, PS_UDP].map(|space| u64::from(space) << 16 | service & 0xffff);
    let named = |service: u64| UnixStream::connect_addr(&name(service).ok()?).ok();
    let mut stream = named(service).or_else(|| others.into_iter().find_map(named))?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut text = String::new();
    is_own(&stream).then_some(())?;
    (&mut stream).take(64).read_to_string(&mut text).ok()?;
    text.parse().ok()
}

/// Returns whether a process of this user, or of root, has the other end.
fn is_own(stream: &UnixStream) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: 0 };
    let mut length = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: the structure and its length are live.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    result == 0 && (peer.uid == user() || peer.uid == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_by_addresses_without_a_device() {
        let service = super::super::state::random();
        let here = IpAddr::from([127, 66, 255, 255]);
        assert_eq!(find(service, here), None);
        let listener = enter(service).unwrap();
        assert!(enter(service).is_none());
        let address = IpAddr::from([127, 9, 8, 7]);
        let found = std::thread::scope(|scope| {
            let found = scope.spawn(|| find(service, here));
            while !found.is_finished() {
                respond(&listener, Some(address));
                std::thread::sleep(Duration::from_millis(1));
            }
            found.join().unwrap()
        });
        assert_eq!(found, Some(address));
        // The address of another machine.
        let remote = IpAddr::from([203, 0, 113, 1]);
        assert_eq!(find(service, remote), Some(remote));
    }
}
