//! Who listens to a service at the addresses of this machine.
//!
//! On a machine with an adapter, a program that listens at any address is reached by 127.0.0.1 and
//! every other address of the machine. Software devices have addresses of their own, in each
//! process another. A listener at any address therefore also has a name in the network namespace,
//! an abstract socket, by which programs of the same user find the address of its device.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr as SocketAddress};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use barewire_layouts::roce::UDP_PORT;
use socket2::{Domain, Socket, Type};

use super::state::{PS_TCP, PS_UDP};
use crate::private::Private;

/// How long to wait for a listener, which may share its processor.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait for room in the backlog of a listener, and how long between two attempts.
const BACKLOG: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

fn user() -> u32 {
    // SAFETY: no arguments, and no error.
    unsafe { libc::geteuid() }
}

/// How many processes of a user may listen to one service at any address in a network namespace.
const PLACES: u16 = 256;

/// Returns an abstract name of this user.
pub(super) fn own_name(of: std::fmt::Arguments<'_>) -> Result<SocketAddr> {
    // Programs do not find the listeners of tests.
    let kind = if cfg!(test) { "test" } else { "rdma_cm" };
    SocketAddr::from_abstract_name(format!("barewire-hca/{kind}/{}/{of}", user()))
}

fn name(service: u64, place: u16) -> Result<SocketAddr> {
    own_name(format_args!("{service:x}/{place}"))
}

/// Gives a listener to a service the first free name. `None` if other processes have all.
pub(super) fn enter(service: u64) -> Option<Private<UnixListener>> {
    (0..PLACES).find_map(|place| listen(&name(service, place).ok()?).ok())
}

/// Listens at a name. The listener does not block.
pub(super) fn listen(name: &SocketAddr) -> Result<Private<UnixListener>> {
    let listener = Private::new(UnixListener::bind_addr(name)?);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The address of the device.
    pub(super) address: IpAddr,
    /// Whether a program listens now. Otherwise it may do so again in a moment.
    pub(super) listens: bool,
}

impl Found {
    fn write(self) -> String {
        format!("{}{}", if self.listens { "" } else { "-" }, self.address)
    }

    fn read(text: &str) -> Option<Self> {
        let address = text.strip_prefix('-');
        let listens = address.is_none();
        Some(Self { address: address.unwrap_or(text).parse().ok()?, listens })
    }
}

/// Responds to those who look up the address.
pub(super) fn respond(listener: &UnixListener, found: Option<Found>) {
    while let Some(stream) = accept(listener) {
        if let Some(found) = found {
            // A peer that does not wait for the response does not need it.
            let _ = (&*stream).write_all(found.write().as_bytes());
        }
    }
}

/// Accepts a connection to a listener that does not block.
pub(super) fn accept(listener: &UnixListener) -> Option<Private<UnixStream>> {
    match listener.accept() {
        Ok((stream, _)) => Some(Private::new(stream)),
        Err(error) => {
            // The listener stays readable: without descriptors, the thread must not spin.
            if error.kind() != ErrorKind::WouldBlock {
                std::thread::sleep(PAUSE);
            }
            None
        }
    }
}

/// Connects to a process of this user, without waiting. The stream does not block.
///
/// # Errors
/// [`ErrorKind::WouldBlock`] if the backlog is full; that of connect(2).
pub(super) fn connect_now(name: &SocketAddr) -> Result<Private<UnixStream>> {
    let name = name.as_abstract_name().unwrap_or_default();
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    // An abstract name begins with a zero, and fits.
    for (to, &from) in address.sun_path.iter_mut().skip(1).zip(name) {
        *to = from as libc::c_char;
    }
    let length = size_of::<libc::sa_family_t>() + 1 + name.len();
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is passed; a descriptor that the kernel returns is open and has no other
    // owner.
    let stream = unsafe {
        let descriptor = libc::socket(libc::AF_UNIX, kind, 0);
        if descriptor < 0 {
            return Err(Error::last_os_error());
        }
        Private::new(UnixStream::from(OwnedFd::from_raw_fd(descriptor)))
    };
    // SAFETY: the address is live and has at least `length` bytes: `SocketAddr` holds no longer
    // name than `sun_path` has room for.
    let result =
        unsafe { libc::connect(stream.as_raw_fd(), (&raw const address).cast(), length as u32) };
    if result != 0 {
        return Err(Error::last_os_error());
    }
    if is_own(&stream) { Ok(stream) } else { Err(ErrorKind::PermissionDenied.into()) }
}

/// Asks the process that has a name.
fn ask(service: u64, place: u16) -> Option<Found> {
    let (name, start) = (name(service, place).ok()?, Instant::now());
    let stream = loop {
        match connect_now(&name) {
            Ok(stream) => break stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock && start.elapsed() < BACKLOG => {
                std::thread::sleep(PAUSE);
            }
            Err(_) => return None,
        }
    };
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut text = String::new();
    (&*stream).take(64).read_to_string(&mut text).ok()?;
    Found::read(&text)
}

/// Opens a socket at the address where a device would have its own. It receives nothing that
/// matters: it is closed at once.
fn probe(address: IpAddr) -> Result<Socket> {
    let to = SocketAddress::new(address, UDP_PORT);
    let probe = Socket::new(Domain::for_address(to), Type::DGRAM, None)?;
    // Beside the probes of other programs. Devices do not share their addresses.
    probe.set_reuse_address(true)?;
    probe.bind(&to.into())?;
    Ok(probe)
}

/// Returns whether a device has the address, or another machine.
fn is_devices(address: IpAddr) -> bool {
    let error = probe(address).err().and_then(|error| error.raw_os_error());
    // The last is for link-local addresses, whose interface is not known here. Other errors, such
    // as a lack of descriptors, say nothing about the address.
    matches!(error, Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL | libc::EINVAL))
}

/// Returns the address of the device that is reached by `destination`. An address of this machine
/// without a device is that of the first listener to the service, if there is one, or of a process
/// that may listen to the service in a moment: it has just listened to it, or listens to the same
/// port in another port space.
pub(super) fn find(service: u64, destination: IpAddr) -> Option<IpAddr> {
    let destination =
        if destination.is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { destination };
    if is_devices(destination) {
        return Some(destination);
    }
    let mut later = None;
    for found in (0..PLACES).filter_map(|place| ask(service, place)) {
        if found.listens {
            return Some(found.address);
        }
        later = later.or(Some(found.address));
    }
    let others = [PS_TCP, PS_UDP].map(|space| u64::from(space) << 16 | service & 0xffff);
    let mut others =
        others.into_iter().flat_map(|other| (0..PLACES).map(move |place| (other, place)));
    later.or_else(|| others.find_map(|(other, place)| Some(ask(other, place)?.address)))
}

/// Returns whether a process of this user, or of root, has the other end.
pub(super) fn is_own(stream: &UnixStream) -> bool {
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

    /// Returns what is found while the processes that have the names respond.
    fn found_among(
        listeners: &[(Private<UnixListener>, Found)],
        service: u64,
        destination: IpAddr,
    ) -> Option<IpAddr> {
        std::thread::scope(|scope| {
            let found = scope.spawn(|| find(service, destination));
            while !found.is_finished() {
                for (listener, found) in listeners {
                    respond(listener, Some(*found));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            found.join().unwrap()
        })
    }

    #[test]
    fn a_device_has_its_address_and_a_search_does_not() {
        let here = IpAddr::from([127, 66, 255, 254]);
        let others = [probe(here).unwrap(), probe(here).unwrap()];
        assert!(!is_devices(here));
        drop(others);
        // As a device opens its own.
        let device = std::net::UdpSocket::bind((here, UDP_PORT)).unwrap();
        assert!(is_devices(here));
        drop(device);
        assert!(!is_devices(here));
        assert!(is_devices([203, 0, 113, 1].into()), "an address of another machine");
        assert!(is_devices("fe80::1".parse().unwrap()), "a link-local address");
    }

    #[test]
    fn a_listener_is_found_by_addresses_without_a_device() {
        let service = super::super::state::random();
        let here = IpAddr::from([127, 66, 255, 255]);
        assert_eq!(find(service, here), None);
        let [first, second] = [7, 8].map(|last| IpAddr::from([127, 9, 8, last]));
        let mut listeners = Vec::from(
            [first, second]
                .map(|address| (enter(service).unwrap(), Found { address, listens: true })),
        );
        assert_eq!(found_among(&listeners, service, here), Some(first));
        // The first program has destroyed its listener; then the second one has, too.
        listeners[0].1.listens = false;
        assert_eq!(found_among(&listeners, service, here), Some(second));
        listeners[1].1.listens = false;
        assert_eq!(found_among(&listeners, service, here), Some(first));
        // The first process has ended.
        listeners[1].1.listens = true;
        listeners.remove(0);
        assert_eq!(found_among(&listeners, service, here), Some(second));
        // The address of another machine.
        let remote = IpAddr::from([203, 0, 113, 1]);
        assert_eq!(find(service, remote), Some(remote));
    }
}
