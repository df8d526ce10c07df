//! A peer that is no device: packets made by hand, from a plain UDP socket.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use barewire_hca::{Config, Mode, Strict, WireKind};
use barewire_layouts::icrc::icrc_ipv4;
use barewire_layouts::roce::{Aeth, AethSyndrome, Bth, BthOpcode, Headers, UDP_PORT};
use zerocopy::{FromBytes, IntoBytes};

use super::{Connection, Node, Qp};

/// The queue pair number that the foreign peer goes by.
pub const QPN: u32 = 0x1234;
/// The first sequence number either side sends.
pub const PSN: u32 = 0xff_fffe;

/// A stepped device with a queue pair that is connected to a socket.
pub struct Foreign {
    pub node: Node,
    pub qp: Qp,
    pub socket: UdpSocket,
    address: Ipv4Addr,
}

/// A packet that the device sent.
#[derive(Debug)]
pub struct Reply {
    pub opcode: BthOpcode,
    pub psn: u32,
    pub syndrome: Option<AethSyndrome>,
    pub msn: u32,
    pub rest: Vec<u8>,
}

fn bind() -> (UdpSocket, Ipv4Addr) {
    let seed = std::process::id() ^ Instant::now().elapsed().subsec_nanos();
    for number in 0..1000_u32 {
        let [a, b, ..] = seed.wrapping_add(number).wrapping_mul(0x9e37_79b9).to_be_bytes();
        let address = Ipv4Addr::new(127, 1, a, b);
        if let Ok(socket) = UdpSocket::bind(SocketAddrV4::new(address, UDP_PORT)) {
            socket.set_nonblocking(true).unwrap();
            return (socket, address);
        }
    }
    panic!("no free address in 127.1.0.0/16");
}

impl Foreign {
    pub fn new(connection: &Connection) -> Self {
        let strict = Strict::Report;
        Self::with(
            connection,
            Config::default().mode(Mode::Stepped).wire(WireKind::Roce).strict(strict),
        )
    }

    /// The same with a device of another kind, as long as it is stepped and has a socket.
    pub fn with(connection: &Connection, config: Config) -> Self {
        let node = Node::open(config);
        let mut qp = Qp::new(&node);
        let (socket, address) = bind();
        qp.connect_to(address.to_ipv6_mapped().octets(), QPN, connection, (PSN, PSN));
        Self { node, qp, socket, address }
    }

    /// Where the foreign peer is.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    fn device_address(&self) -> Ipv4Addr {
        match self.node.device.address() {
            IpAddr::V4(address) => address,
            IpAddr::V6(address) => panic!("{address}: an IPv4 device"),
        }
    }

    /// Another socket, whose packets belong to no connection.
    pub fn stranger() -> (UdpSocket, Ipv4Addr) {
        bind()
    }

    /// Sends a packet with sequence number [`PSN`]` + psn`: headers and payload are in `rest`.
    pub fn send(&self, opcode: BthOpcode, psn: u32, rest: &[&[u8]]) {
        self.send_from(
            &self.socket,
            self.address,
            Bth::new(opcode, self.qp.number, PSN + psn),
            rest,
        );
    }

    pub fn send_from(&self, socket: &UdpSocket, source: Ipv4Addr, bth: Bth, rest: &[&[u8]]) {
        let payload = rest.concat();
        let bth = bth.padded_for(payload.len()).with_ack_request(true);
        let mut frame = bth.as_bytes().to_vec();
        frame.extend(payload);
        frame.resize(frame.len().next_multiple_of(4), 0);
        let device = self.device_address();
        frame.extend(icrc_ipv4(source.octets(), device.octets(), UDP_PORT, UDP_PORT, &frame));
        self.send_raw(socket, &frame);
    }

    /// Sends bytes and lets the device work until it has taken them.
    pub fn send_raw(&self, socket: &UdpSocket, frame: &[u8]) {
        let before = self.node.device.counters().packets_received;
        socket.send_to(frame, SocketAddrV4::new(self.device_address(), UDP_PORT)).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.node.device.counters().packets_received == before {
            assert!(Instant::now() < deadline, "the device takes no packet");
            self.node.device.step();
        }
        self.node.device.step();
    }

    /// The device's packets since the last call.
    pub fn replies(&self) -> Vec<Reply> {
        let mut buffer = [0; 8192];
        std::iter::from_fn(|| {
            let (length, from) = self.socket.recv_from(&mut buffer).ok()?;
            let transport = &buffer[..length - 4];
            let std::net::SocketAddr::V4(from) = from else { panic!("an IPv4 socket") };
            let icrc = icrc_ipv4(
                from.ip().octets(),
                self.address.octets(),
                from.port(),
                UDP_PORT,
                transport,
            );
            assert_eq!(buffer[length - 4..length], icrc);
            let (bth, rest) = Bth::read_from_prefix(transport).unwrap();
            assert_eq!(bth.destination(), QPN);
            let opcode = bth.opcode().unwrap();
            let (aeth, rest) = if opcode.headers().contains(Headers::AETH) {
                let (aeth, rest) = Aeth::read_from_prefix(rest).unwrap();
                (Some(aeth), rest)
            } else {
                (None, rest)
            };
            Some(Reply {
                opcode,
                psn: bth.psn().wrapping_sub(PSN) & 0xff_ffff,
                syndrome: aeth.and_then(|aeth| aeth.syndrome()),
                msn: aeth.map_or(0, |aeth| aeth.msn()),
                rest: rest[..rest.len() - bth.pad()].to_vec(),
            })
        })
        .collect()
    }
}
