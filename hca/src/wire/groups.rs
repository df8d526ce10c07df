//! Multicast groups over UDP: a socket for each, which is bound to the group's address and is a
//! member on the interface of the device's address (RoCEv2, IBTA A17.5.2: IP multicast).
//!
//! The devices of a host share address and port of a group, so each receives a copy, also of what
//! it sends.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use socket2::{Domain, Protocol, Socket, Type};

use super::batch::{Inbox, use_congestion_bits};
use super::epoll::Epoll;
use super::udp::enlarge;
use super::{ROCE_PORT, interface, option};

/// How many routers a datagram to a group may pass (linux cma.c: `IPV6_DEFAULT_HOPLIMIT`).
const HOPS: u32 = 64;

/// The sockets of a port's groups.
#[derive(Debug)]
pub(super) struct Groups {
    members: Vec<Member>,
    /// Readable when a group's socket is, or the descriptor of the port's other frames.
    events: Epoll,
    /// Datagrams of the group `arrived`.
    inbox: Inbox,
    arrived: usize,
}

#[derive(Debug)]
struct Member {
    group: IpAddr,
    socket: Socket,
}

/// Makes the datagrams that a socket sends to groups leave through the interface of its `address`.
/// Without that, they go where the kernel's routes say.
pub(super) fn use_interface(socket: &Socket, address: IpAddr) -> io::Result<()> {
    match address {
        IpAddr::V4(address) => {
            socket.set_multicast_if_v4(&address)?;
            socket.set_multicast_ttl_v4(HOPS)
        }
        IpAddr::V6(_) => {
            socket.set_multicast_if_v6(interface::index(address)?)?;
            socket.set_multicast_hops_v6(HOPS)
        }
    }
}

/// Opens a member of `group` on the interface of `address`.
fn open(group: IpAddr, address: IpAddr) -> io::Result<Socket> {
    let domain = if group.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    enlarge(&socket);
    use_congestion_bits(&socket, group);
    match (group, address) {
        (IpAddr::V4(to), IpAddr::V4(address)) => {
            // Not what others have joined on other interfaces.
            option::set(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
            socket.bind(&SocketAddr::new(group, ROCE_PORT).into())?;
            socket.join_multicast_v4(&to, &address)?;
        }
        (IpAddr::V6(to), IpAddr::V6(_)) => {
            let index = interface::index(address)?;
            socket.set_only_v6(true)?;
            option::set(&socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL, 0)?;
            socket.bind(&SocketAddrV6::new(to, ROCE_PORT, 0, index).into())?;
            socket.join_multicast_v6(&to, index)?;
        }
        _ => return Err(io::ErrorKind::AddrNotAvailable.into()),
    }
    Ok(socket)
}

impl Groups {
    /// Creates an empty list, for a port whose other frames make `descriptor` readable.
    pub(super) fn new(descriptor: BorrowedFd<'_>) -> io::Result<Self> {
        let events = Epoll::new(&[descriptor])?;
        Ok(Self { members: Vec::new(), events, inbox: Inbox::default(), arrived: 0 })
    }

    /// Joins a group on the interface of `address`.
    pub(super) fn join(&mut self, group: IpAddr, address: IpAddr) -> io::Result<()> {
        if self.members.iter().any(|member| member.group == group) {
            return Ok(());
        }
        let socket = open(group, address)?;
        self.events.add(socket.as_raw_fd())?;
        self.members.push(Member { group, socket });
        Ok(())
    }

    /// Leaves a group. Returns whether none is left.
    pub(super) fn leave(&mut self, group: IpAddr) -> bool {
        for member in self.members.extract_if(.., |member| member.group == group) {
            self.events.remove(member.socket.as_raw_fd());
        }
        // Datagrams of another group, whose index may have changed, are lost with those of this
        // one.
        (self.inbox, self.arrived) = (Inbox::default(), 0);
        self.members.is_empty()
    }

    /// Receives the next datagram. Returns its source, its traffic class and its group.
    pub(super) fn next(&mut self, frame: &mut Vec<u8>) -> Option<(SocketAddr, u8, IpAddr)> {
        if self.inbox.is_empty() {
            let at = |fd| self.members.iter().position(|member| member.socket.as_raw_fd() == fd);
            // In turn, so that a group with many datagrams does not keep others waiting.
            let (last, count) = (self.arrived, self.members.len());
            let turn = |at| if at > last { at - last } else { at + count - last };
            self.arrived = self.events.ready(|fd| at(fd).map(turn)).and_then(at)?;
        }
        let Member { group, socket } = self.members.get(self.arrived)?;
        let (source, class) = self.inbox.receive(socket, frame)?;
        Some((source, class, *group))
    }

    /// Returns whether all datagrams that the kernel has delivered were returned.
    pub(super) fn is_empty(&self) -> bool {
        self.inbox.is_empty()
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.events.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// There is a datagram of the first group whenever the port looks for one.
    #[test]
    fn a_group_with_many_datagrams_keeps_no_other_waiting() {
        let here = Ipv4Addr::LOCALHOST.into();
        let sender = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
        use_interface(&sender, here).unwrap();
        let mut groups = Groups::new(sender.as_fd()).unwrap();
        let [many, few, other] = [1, 2, 3].map(|last| IpAddr::from([239, 129, 77, last]));
        for group in [many, other, few] {
            groups.join(group, here).unwrap();
        }
        assert!(!groups.leave(other));
        let send =
            |group: IpAddr| sender.send_to(&[1; 64], &SocketAddr::new(group, ROCE_PORT).into());
        send(few).unwrap();
        let mut frame = Vec::new();
        let found = (0..1000).any(|_| {
            send(many).unwrap();
            groups.next(&mut frame).is_some_and(|(.., group)| group == few)
        });
        assert!(found, "only the group with many datagrams is read");
    }
}
