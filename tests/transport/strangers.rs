//! Another local user on the wire of the software HCA. It can bind the peer's address at another
//! port, and has everything except the key of the packets.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Instant;

use barewire::{FlushMode, InterfaceConfig, Posted};
use barewire_hca as hca;
use barewire_layouts::icrc::icrc_ipv4;
use barewire_layouts::roce::UDP_PORT;

use crate::support::{DEADLINE, Pair, collect};

const NUMBERS: u32 = 0x00ff_ffff;

fn ipv4(address: IpAddr) -> Ipv4Addr {
    match address {
        IpAddr::V4(address) => address,
        IpAddr::V6(address) => panic!("{address} is not of 127.0.0.0/8"),
    }
}

/// A socket whose packets look like those of a device.
fn socket(address: Ipv4Addr, port: u16) -> UdpSocket {
    let socket = UdpSocket::bind((address, port)).unwrap();
    let value = libc::IP_PMTUDISC_DO;
    // SAFETY: the socket is open, and the option is an int of the given size.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    assert_eq!(set, 0);
    socket
}

/// The packet of a short active message to handler 1.
fn message(qpn: u32, psn: u32, text: &[u8]) -> Vec<u8> {
    // Base transport header: SEND only of a reliable connection, the default partition.
    let mut packet = vec![0x04, 0, 0xff, 0xff];
    packet.extend(qpn.to_be_bytes());
    packet.extend(psn.to_be_bytes());
    packet.extend([0, 1, 0, 0]);
    packet.extend(7_u64.to_le_bytes());
    packet.extend(text);
    assert!(packet.len().is_multiple_of(4));
    packet
}

#[test]
fn a_stranger_at_the_wire_neither_injects_nor_loses_messages() {
    let mut pair = Pair::over_udp(&InterfaceConfig::default(), hca::Faults::default());
    let inbox = collect(&pair.server.interface, 1);
    pair.post("the first", |endpoint| endpoint.am_short(1, 1, b"true")).unwrap();
    pair.until("the first message", || inbox.borrow().len() == 1);

    // Number of the queue pair and next sequence number, which an attacker would have to guess.
    let word = |bytes: &[u8], at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let qpn = word(&pair.server.endpoint.address().to_bytes(), 6);
    let psn = word(&pair.client.endpoint.address().to_bytes(), 10) + 1;
    let [source, target] =
        [&pair.devices[0], &pair.devices[1]].map(|device| ipv4(device.address()));

    let before = pair.devices[1].counters();
    let beside = Ipv4Addr::from_bits(source.to_bits() ^ 0x80);
    let mut sent = 0;
    for stranger in [socket(source, 0), socket(beside, UDP_PORT)] {
        let from = stranger.local_addr().unwrap();
        for step in 0..20 {
            let mut packet = message(qpn, psn.wrapping_add(step) & NUMBERS, b"injected");
            let crc = icrc_ipv4(
                ipv4(from.ip()).octets(),
                target.octets(),
                from.port(),
                UDP_PORT,
                &packet,
            );
            packet.extend(crc);
            stranger.send_to(&packet, (target, UDP_PORT)).unwrap();
            // With other bytes in the place of the tag.
            packet.extend(*b"bwt\x01 a guess");
            stranger.send_to(&packet, (target, UDP_PORT)).unwrap();
            sent += 2;
        }
    }
    let server = pair.devices[1].clone();
    let end = Instant::now() + DEADLINE;
    while server.counters().bad_tags < before.bad_tags + sent {
        assert!(Instant::now() < end, "{:?}", server.counters());
        pair.worker.progress();
        pair.server_worker.progress();
        assert_eq!(inbox.borrow().len(), 1, "a stranger's message came");
    }
    for number in 2..5_u64 {
        pair.post("a message", |endpoint| endpoint.am_short(1, number, b"true")).unwrap();
    }
    pair.until("the true messages", || inbox.borrow().len() == 4);
    let endpoint = pair.client.endpoint.clone();
    pair.until("acknowledgements", || endpoint.flush(FlushMode::Local, None) == Ok(Posted::Done));
    let numbers: Vec<u8> = inbox.borrow().iter().map(|message| message[0]).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    assert_eq!(server.counters().duplicates, before.duplicates);
}
