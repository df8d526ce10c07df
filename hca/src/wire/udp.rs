//! RoCEv2 over a UDP socket, and through shared memory to devices nearby.

use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use barewire_layouts::icrc::{ICRC_BYTES, icrc_ipv4, identification_ipv4};
use barewire_layouts::roce::{FECN, FECN_OFFSET};
use socket2::{Domain, Protocol, Socket, Type};

use super::batch::{CONGESTION_EXPERIENCED, ECN, Inbox, Outbox, use_congestion_bits, use_segments};
use super::control;
use super::fault::SplitMix;
use super::groups::{self, Groups};
use super::near::{Heard, Near, QUESTION, Way};
use super::tag::Tags;
use super::{ROCE_PORT, WIRE_VARIABLE, Wire, option};
use crate::counters::Counters;
use crate::key::{KEY_VARIABLE, Key};

/// Requested size of the kernel's buffers; the kernel may grant less.
const SOCKET_BUFFER: usize = 8 << 20;

/// Random addresses to try.
const ADDRESS_TRIES: u32 = 64;

/// Maximum number of packets without a valid tag that are dropped in a call.
const MOST_DROPPED: usize = 64;

/// Maximum number of frames from shared memory between two looks at the socket.
const MOST_NEAR: u32 = 32;

/// Maximum number of times that nothing is received without a look at the socket: it is a system
/// call.
const MOST_SKIPPED: u32 = 8;

/// Port 4791 of one local address.
#[derive(Debug)]
pub(crate) struct Udp {
    socket: Socket,
    address: IpAddr,
    /// The tagger, if the device has a key.
    tags: Option<Tags>,
    /// Devices that are reached through shared memory, if this one has a key.
    near: Option<Near>,
    /// Frames from shared memory since the last look at the socket.
    taken: u32,
    /// Times that nothing was received since then.
    skipped: u32,
    bad_tags: u64,
    /// The last command of the user about the link, and its sender.
    link_command: Option<(bool, SocketAddr)>,
    inbox: Inbox,
    /// The multicast groups, if there are any.
    groups: Option<Groups>,
    /// Alternates between both sources, so that neither starves.
    groups_first: bool,
    outbox: Outbox,
    failures: u64,
    /// The traffic classes of packets to be sent, and of the one that was received last.
    sends: u8,
    received: u8,
    /// The group to which the packet that was received last was sent.
    group: Option<IpAddr>,
}

/// Fails if packets cannot leave the address: an address of the loopback can be bound while the
/// loopback is down.
fn check_route(address: IpAddr) -> io::Result<()> {
    let probe = std::net::UdpSocket::bind((address, 0))?;
    probe.connect((address, ROCE_PORT))
}

/// Adds what to do to an error of binding or connecting. A loopback that was never up has no address.
fn advise(address: IpAddr, error: io::Error) -> io::Error {
    match error.kind() {
        kind @ (io::ErrorKind::NetworkUnreachable | io::ErrorKind::AddrNotAvailable)
            if address.is_loopback() =>
        {
            io::Error::new(kind, format!("{error}; the loopback is down: ip link set lo up"))
        }
        _ => error,
    }
}

impl Udp {
    /// Binds port 4791 of `address`, or of a free address in 127.0.0.0/8. With a `key` packets have
    /// tags, and with `near` devices nearby are reached through shared memory.
    ///
    /// # Errors
    /// The kernel's error: usually the address is in use or not local.
    pub(crate) fn bind(address: Option<IpAddr>, key: Option<Key>, near: bool) -> io::Result<Self> {
        let Some(address) = address else { return Self::bind_free(key, near) };
        let local = SocketAddr::new(address, ROCE_PORT);
        let socket = Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        match address {
            IpAddr::V4(_) => send_unfragmented(&socket)?,
            // No packets of IPv4, mapped to IPv6.
            IpAddr::V6(_) => socket.set_only_v6(true)?,
        }
        enlarge(&socket);
        use_congestion_bits(&socket, address);
        let bound = socket.bind(&local.into()).and_then(|()| check_route(address));
        bound.map_err(|error| advise(address, error))?;
        // Without it, only datagrams to groups may be lost.
        let _ = groups::use_interface(&socket, address);
        // Segments of one buffer have ascending identifications, which the invariant CRC covers:
        // only devices of this crate, which have keys, take them.
        let segments = key.is_some() && use_segments(&socket);
        let (inbox, outbox, tags) = (Inbox::default(), Outbox::new(segments), key.map(Tags::new));
        let near = (near && key.is_some() && address.is_loopback())
            .then(|| Near::open(address, socket.as_fd()))
            .and_then(Result::ok);
        Ok(Self {
            socket,
            address,
            tags,
            near,
            taken: 0,
            skipped: 0,
            bad_tags: 0,
            link_command: None,
            inbox,
            groups: None,
            groups_first: false,
            outbox,
            failures: 0,
            sends: 0,
            received: 0,
            group: None,
        })
    }

    fn bind_free(key: Option<Key>, near: bool) -> io::Result<Self> {
        let clock =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let mut random =
            SplitMix::new(clock.as_nanos() as u64 ^ u64::from(std::process::id()) << 32);
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for _ in 0..ADDRESS_TRIES {
            // 127.0.x.x and 127.1.x.x are used by people and distributions.
            let [a, b, c, ..] = random.next().to_ne_bytes();
            let address = IpAddr::V4(Ipv4Addr::new(127, 2 + a % 250, b, 1 + c % 250));
            match Self::bind(Some(address), key, near) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
                result => return result,
            }
        }
        Err(last)
    }

    /// Receives the next packet, without its tag, and its traffic class.
    fn next(&mut self, frame: &mut Vec<u8>) -> Option<(SocketAddr, u8)> {
        for _ in 0..MOST_DROPPED {
            let (source, class) = self.inbox.receive(&self.socket, frame)?;
            if !self.admits(source, self.address, frame) {
                continue;
            }
            let near = self.near.as_mut();
            match near.map_or(Heard::Frame, |near| near.hear(source.ip(), frame)) {
                Heard::Frame => return Some((source, class)),
                Heard::Nothing => {}
                Heard::Question(reply) => {
                    self.send_by_udp(source.ip(), &reply);
                    self.failures += self.outbox.flush(&self.socket);
                }
            }
        }
        None
    }

    /// Takes a command of the user about the link.
    fn is_link_command(&mut self, source: SocketAddr, frame: &mut Vec<u8>) -> bool {
        let Some(tags) = self.tags.as_ref().filter(|_| source.ip() == self.address) else {
            return false;
        };
        if source.port() == ROCE_PORT || !tags.take(self.address, self.address, frame) {
            return false;
        }
        let Some(up) = control::read(frame) else { return false };
        self.link_command = Some((up, source));
        true
    }

    /// Receives the next packet to a multicast group.
    fn next_of_groups(&mut self, frame: &mut Vec<u8>) -> Option<(SocketAddr, u8)> {
        for _ in 0..MOST_DROPPED {
            let (source, class, group) = self.groups.as_mut()?.next(frame)?;
            if self.admits(source, group, frame) {
                self.group = Some(group);
                return Some((source, class));
            }
        }
        None
    }

    /// Looks at all sockets.
    fn look(&mut self, frame: &mut Vec<u8>) -> Option<(SocketAddr, u8)> {
        self.groups_first = self.groups.is_some() && !self.groups_first;
        if self.groups_first {
            self.next_of_groups(frame).or_else(|| self.next(frame))
        } else {
            self.next(frame).or_else(|| self.next_of_groups(frame))
        }
    }

    /// Removes the tag of a frame to this device or one of its groups. Returns false for a frame
    /// without a valid one, which is to be dropped. Without a key, all frames pass.
    fn admits(&mut self, source: SocketAddr, to: IpAddr, frame: &mut Vec<u8>) -> bool {
        let Some(tags) = &self.tags else {
            if source.port() != ROCE_PORT {
                take_number_off(frame, source, to);
            }
            return true;
        };
        if source.port() == ROCE_PORT && tags.take(source.ip(), to, frame) {
            return true;
        }
        if to == self.address && self.is_link_command(source, frame) {
            return false;
        }
        self.bad_tags += 1;
        if self.bad_tags == 1 {
            // Otherwise two programs with different keys would only time out.
            // An error of standard error is no reason to stop the device.
            let _ = writeln!(
                io::stderr(),
                "software HCA: {} drops packets without a valid tag, the first from {source}; \
                 a device that should reach it needs the same {KEY_VARIABLE}, or both need \
                 {WIRE_VARIABLE}=roce",
                self.address
            );
        }
        false
    }

    fn send_by_udp(&mut self, to: IpAddr, frame: &[u8]) {
        let tag = self.tags.as_ref().map(|tags| tags.tag(self.address, to, frame));
        let tag = tag.as_ref().map_or(&[][..], |tag| tag);
        self.failures += self.outbox.send(&self.socket, (to, self.sends), frame, tag);
    }

    /// Receives the next frame from shared memory.
    fn next_near(&mut self, frame: &mut Vec<u8>) -> Option<SocketAddr> {
        let (source, class) = self.near.as_mut()?.receive(frame)?;
        self.taken += 1;
        self.received = class & !ECN;
        Some(SocketAddr::new(source, ROCE_PORT))
    }

    /// Returns whether frames to a device go through shared memory.
    #[cfg(test)]
    pub(super) fn is_near(&self, to: IpAddr) -> bool {
        self.near.as_ref().is_some_and(|near| near.is_open(to))
    }

    /// Returns the bound address.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }
}

/// The invariant CRC covers identification and 'do not fragment': with path MTU discovery enabled,
/// an unconnected socket sends identification 0 and that flag in every datagram.
fn send_unfragmented(socket: &Socket) -> io::Result<()> {
    option::set(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
}

/// Requests large buffers, beyond the kernel's limit if this process may. Any size works, since
/// losses are repaired.
pub(super) fn enlarge(socket: &Socket) {
    let size = SOCKET_BUFFER as libc::c_int;
    for (force, plain) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        let _ = option::set(socket, libc::SOL_SOCKET, force, size)
            .or_else(|_| option::set(socket, libc::SOL_SOCKET, plain, size));
    }
}

/// The invariant CRC of another RoCE implementation covers the identification of its datagram,
/// which a socket does not show. Devices of this crate, which send from the RoCEv2 port, always
/// send zero. If the CRC is right for any identification, it is replaced by the one for zero.
fn take_number_off(frame: &mut [u8], from: SocketAddr, to: IpAddr) {
    let (IpAddr::V4(source), IpAddr::V4(to)) = (from.ip(), to) else { return };
    let Some((transport, icrc)) = frame.split_last_chunk_mut::<ICRC_BYTES>() else { return };
    let (source, to, port) = (source.octets(), to.octets(), from.port());
    if identification_ipv4(source, to, port, ROCE_PORT, transport, *icrc).is_some() {
        *icrc = icrc_ipv4(source, to, port, ROCE_PORT, transport);
    }
}

impl Wire for Udp {
    fn send(&mut self, to: IpAddr, frame: &[u8]) {
        match self.near.as_mut().map_or(Way::Udp, |near| near.send(to, self.sends, frame)) {
            Way::Taken => return,
            Way::Udp => {}
            Way::Ask => self.send_by_udp(to, &QUESTION),
        }
        self.send_by_udp(to, frame);
    }

    fn set_class(&mut self, class: u8) {
        self.sends = class;
    }

    fn class(&self) -> u8 {
        self.received
    }

    fn group(&self) -> Option<IpAddr> {
        self.group
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        if self.groups.is_none() {
            let near = self.near.as_ref().map(Near::events);
            self.groups = Some(Groups::new(near.unwrap_or_else(|| self.socket.as_fd()))?);
        }
        let joined = self.groups.as_mut().map(|groups| groups.join(group, self.address));
        joined.unwrap_or(Ok(())).inspect_err(|_| self.leave(group))
    }

    fn leave(&mut self, group: IpAddr) {
        if self.groups.as_mut().is_some_and(|groups| groups.leave(group)) {
            self.groups = None;
        }
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<SocketAddr> {
        self.group = None;
        if self.taken < MOST_NEAR
            && let Some(source) = self.next_near(frame)
        {
            return Some(source);
        }
        self.skipped += 1;
        if self.taken < MOST_NEAR
            && self.skipped < MOST_SKIPPED
            && self.inbox.is_empty()
            && self.groups.as_ref().is_none_or(Groups::is_empty)
            && self.near.as_ref().is_some_and(Near::suffices)
        {
            return None;
        }
        (self.taken, self.skipped) = (0, 0);
        let Some((source, class)) = self.look(frame) else {
            self.near.as_mut()?.switch();
            return self.next_near(frame);
        };
        let congested = class & ECN == CONGESTION_EXPERIENCED;
        // Every packet is sent as capable of ECN, whatever the class of its sender says.
        self.received = class & !ECN;
        // Congestion in the network header is reported by the bit of the transport header, which
        // the invariant CRC does not cover.
        if let Some(byte) = frame.get_mut(FECN_OFFSET).filter(|_| congested) {
            *byte |= FECN;
        }
        Some(source)
    }

    fn take_link_command(&mut self) -> Option<bool> {
        let (up, source) = self.link_command.take()?;
        let response = control::response();
        let tag = self.tags.as_ref()?.tag(self.address, self.address, &response);
        // The sender repeats a command that gets no response.
        let _ = self.socket.send_to(&[&response[..], &tag].concat(), &source.into());
        Some(up)
    }

    fn tick(&mut self, now: u64) {
        if let Some(near) = &mut self.near {
            near.tick(now);
        }
    }

    fn deadline(&self) -> Option<u64> {
        self.near.as_ref().and_then(Near::deadline)
    }

    fn flush(&mut self) {
        self.failures += self.outbox.flush(&self.socket);
        if let Some(near) = self.near.as_mut().filter(|near| near.is_pending()) {
            near.open_links();
        }
    }

    fn descriptor(&self) -> Option<RawFd> {
        let groups = self.groups.as_ref().map(Groups::descriptor);
        let near = self.near.as_ref().map(|near| near.events().as_raw_fd());
        Some(groups.or(near).unwrap_or_else(|| self.socket.as_raw_fd()))
    }

    fn rest(&mut self) -> bool {
        self.inbox.is_empty()
            && self.groups.as_ref().is_none_or(Groups::is_empty)
            && self.near.as_mut().is_none_or(Near::rest)
    }

    fn count(&self, counters: &mut Counters) {
        counters.send_failures += self.failures + self.near.as_ref().map_or(0, Near::failures);
        counters.bad_tags += self.bad_tags;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_free_addresses_reach_each_other() {
        let mut a = Udp::bind(None, None, false).unwrap();
        let mut b = Udp::bind(None, None, false).unwrap();
        assert_ne!(a.address(), b.address());
        a.send(b.address(), &[7; 4200]);
        a.flush();
        let mut frame = Vec::new();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let from = loop {
            if let Some(from) = b.receive(&mut frame) {
                break from;
            }
            assert!(std::time::Instant::now() < deadline, "no datagram came");
            std::thread::yield_now();
        };
        assert_eq!(from, SocketAddr::new(a.address(), ROCE_PORT));
        assert_eq!(frame, [7; 4200]);
    }

    #[test]
    fn a_numbered_packet_looks_like_one_without_number() {
        // An acknowledgment of rdma_rxe, in a datagram with identification 0x473f.
        let sent = [
            0x11, 0, 0xff, 0xff, 0, 0, 0, 0x40, 0, 0xff, 0xff, 0x80, 0x1f, 0, 0, 1, 0x1d, 0xd3,
            0x2b, 0xc8,
        ];
        let from = SocketAddr::from(([10, 98, 0, 1], 0xc440));
        let mut frame = sent;
        take_number_off(&mut frame, from, [10, 98, 0, 2].into());
        assert_eq!(frame[..16], sent[..16]);
        assert_eq!(
            frame[16..],
            icrc_ipv4([10, 98, 0, 1], [10, 98, 0, 2], 0xc440, ROCE_PORT, &sent[..16])
        );
        let mut corrupt = sent;
        corrupt[15] = 2;
        take_number_off(&mut corrupt, from, [10, 98, 0, 2].into());
        assert_eq!(corrupt[16..], sent[16..]);
        take_number_off(&mut [1, 2, 3], from, [10, 98, 0, 2].into());
    }

    /// Waits for the next packet, or until packets were dropped.
    fn wait(udp: &mut Udp, frame: &mut Vec<u8>, dropped: u64) -> Option<SocketAddr> {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            if let Some(from) = udp.receive(frame) {
                return Some(from);
            }
            if udp.bad_tags >= dropped {
                return None;
            }
            assert!(std::time::Instant::now() < deadline, "no datagram came");
            std::thread::yield_now();
        }
    }

    #[test]
    fn only_packets_under_the_key_are_taken() {
        let key = Key::random().ok();
        let mut device = Udp::bind(None, key, false).unwrap();
        let mut peer = Udp::bind(None, key, false).unwrap();
        let mut frame = Vec::new();
        // Without a tag, with another key, and from another port.
        for stranger in [None, Key::random().ok()] {
            let count = device.bad_tags + 1;
            let mut stranger = Udp::bind(None, stranger, false).unwrap();
            stranger.send(device.address(), &[1; 20]);
            stranger.flush();
            assert_eq!(wait(&mut device, &mut frame, count), None);
        }
        let other = std::net::UdpSocket::bind((peer.address(), 0)).unwrap();
        let tag = Tags::new(key.unwrap()).tag(peer.address(), device.address(), &[2; 20]);
        other.send_to(&[&[2; 20][..], &tag].concat(), (device.address(), ROCE_PORT)).unwrap();
        let count = device.bad_tags + 1;
        assert_eq!(wait(&mut device, &mut frame, count), None);
        peer.send(device.address(), &[3; 20]);
        peer.flush();
        assert_eq!(
            wait(&mut device, &mut frame, 99),
            Some(SocketAddr::new(peer.address(), ROCE_PORT))
        );
        assert_eq!(frame, [3; 20]);
    }

    /// Sends the frames from `a` to `b`, and returns those that `b` received.
    fn carry(a: &mut Udp, b: &mut Udp, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        for frame in frames {
            a.send(b.address(), frame);
        }
        a.flush();
        let (mut frame, mut got) = (Vec::new(), Vec::new());
        let deadline = std::time::Instant::now() + std::time::Duration::from_mins(1);
        while got.len() < frames.len() {
            if b.receive(&mut frame).is_some() {
                got.push(frame.clone());
            }
            assert!(
                std::time::Instant::now() < deadline,
                "{} of {} datagrams came",
                got.len(),
                frames.len()
            );
        }
        got
    }

    #[test]
    fn segments_arrive_as_the_datagrams_that_were_sent() {
        let key = Key::random().ok();
        let (mut a, mut b) =
            (Udp::bind(None, key, false).unwrap(), Udp::bind(None, key, false).unwrap());
        let lengths = [
            // More than a buffer of the kernel holds, and more than a batch.
            vec![4096; 16],
            vec![16; 70],
            // The last one is shorter, or of the same length, or longer.
            vec![4112, 4096, 4096, 100, 100, 99, 101, 1, 4096, 1],
            vec![4300, 4300, 4299],
        ];
        for lengths in lengths {
            let frames: Vec<Vec<u8>> =
                lengths.iter().zip(0..).map(|(&length, number)| vec![number; length]).collect();
            assert!(carry(&mut a, &mut b, &frames) == frames, "{lengths:?}");
        }
        // The traffic class and the receiver divide a burst.
        let mut c = Udp::bind(None, key, false).unwrap();
        for number in 0..12_u8 {
            a.set_class(if number % 4 < 2 { 0x20 } else { 0x40 });
            a.send(if number % 3 == 0 { c.address() } else { b.address() }, &[number; 64]);
        }
        a.flush();
        let mut frame = Vec::new();
        for number in 0..12_u8 {
            let to = if number % 3 == 0 { &mut c } else { &mut b };
            assert!(wait(to, &mut frame, 99).is_some());
            let class = if number % 4 < 2 { 0x20 } else { 0x40 };
            assert_eq!((&frame[..], to.class()), (&[number; 64][..], class));
        }
        assert_eq!(a.failures, 0);
    }

    #[test]
    fn bursts_arrive_whole_and_in_order() {
        let mut a = Udp::bind(None, None, false).unwrap();
        let mut b = Udp::bind(None, None, false).unwrap();
        let frames: Vec<Vec<u8>> =
            (0..100_u8).map(|number| vec![number; 1 + usize::from(number) * 40]).collect();
        assert!(carry(&mut a, &mut b, &frames) == frames);
        let mut frame = Vec::new();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        // A packet that cannot be sent is counted, and does not hold up others.
        a.send("::1".parse().unwrap(), &[1]);
        a.send(b.address(), &[2]);
        a.flush();
        assert_eq!(a.failures, 1);
        while b.receive(&mut frame).is_none() {
            assert!(std::time::Instant::now() < deadline, "no datagram came");
        }
        assert_eq!(frame, [2]);
    }

    #[test]
    fn a_mark_on_the_way_is_seen() {
        let mut device = Udp::bind(None, None, false).unwrap();
        let to = SocketAddr::new(device.address(), ROCE_PORT);
        let other = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
        for (class, want) in [(0, 0x41), (2, 0x41), (3, 0xc1)] {
            other.set_tos_v4(class).unwrap();
            other.send_to(&[0x41; 16], &to.into()).unwrap();
            let (mut frame, deadline) =
                (Vec::new(), std::time::Instant::now() + std::time::Duration::from_secs(10));
            while device.receive(&mut frame).is_none() {
                assert!(std::time::Instant::now() < deadline, "no datagram came");
            }
            assert_eq!((frame[3], frame[4], frame[5]), (0x41, want, 0x41), "class {class}");
        }
    }

    #[test]
    fn the_traffic_class_arrives_with_its_packet() {
        let (mut a, mut b) =
            (Udp::bind(None, None, false).unwrap(), Udp::bind(None, None, false).unwrap());
        for class in [0x68, 0, 0xfc] {
            a.set_class(class);
            a.send(b.address(), &[class; 20]);
        }
        a.flush();
        let deadline = std::time::Instant::now() + std::time::Duration::from_mins(1);
        let mut frame = Vec::new();
        for class in [0x68, 0, 0xfc] {
            while b.receive(&mut frame).is_none() {
                assert!(std::time::Instant::now() < deadline, "no datagram came");
            }
            assert_eq!((frame[0], b.class()), (class, class));
        }
    }

    #[test]
    fn an_address_is_taken_once() {
        let first = Udp::bind(None, None, false).unwrap();
        let second = Udp::bind(Some(first.address()), None, false).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
    }
}
