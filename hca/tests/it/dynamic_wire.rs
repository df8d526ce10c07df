//! Dynamic connections on the wire: hand-made packets, in order, late, duplicated and invalid.

use std::net::{Ipv4Addr, UdpSocket};

use crate::support::dynamic::{KEY, Target, initiator, syndromes};
use crate::support::foreign::Foreign;
use crate::support::{Connection, Node, Qp, Wqe, pattern};
use barewire_hca::Faults;
use barewire_layouts::command::qp::Mtu;
use barewire_layouts::cqe::Syndrome;
use barewire_layouts::icrc::icrc_ipv4;
use barewire_layouts::roce::{
    Aeth, AethSyndrome, Bth, BthOpcode, DcEth, DcRefusal, NakCode, Reth, Transport, UDP_PORT,
    XrcEth,
};
use barewire_layouts::wqe::Opcode;
use zerocopy::{FromBytes, IntoBytes};

/// The number that the foreign initiator goes by.
const DCI: u32 = 0x4321;

/// A packet of the device: its base header and what follows.
type Reply = (BthOpcode, u32, u32, Vec<u8>);

fn replies(socket: &UdpSocket, address: Ipv4Addr) -> Vec<Reply> {
    let mut buffer = [0; 8192];
    std::iter::from_fn(|| {
        let (length, from) = socket.recv_from(&mut buffer).ok()?;
        let transport = &buffer[..length - 4];
        let std::net::SocketAddr::V4(from) = from else { panic!("an IPv4 socket") };
        let icrc =
            icrc_ipv4(from.ip().octets(), address.octets(), from.port(), UDP_PORT, transport);
        assert_eq!(buffer[length - 4..length], icrc);
        let (bth, rest) = Bth::read_from_prefix(transport).unwrap();
        assert_eq!(bth.transport(), Ok(Transport::Dc));
        Some((bth.operation().unwrap(), bth.destination(), bth.psn(), rest.to_vec()))
    })
    .collect()
}

struct Stranger {
    foreign: Foreign,
    target: Target,
}

impl Stranger {
    fn new() -> Self {
        let foreign = Foreign::new(&Connection::default());
        let target = Target::new(&foreign.node, &Connection::default());
        Self { foreign, target }
    }

    /// Sends a packet and returns the responses.
    fn say(&self, opcode: BthOpcode, to: u32, psn: u32, rest: &[&[u8]]) -> Vec<Reply> {
        let bth = Bth::new(opcode, to, psn).with_transport(Transport::Dc);
        self.foreign.send_from(&self.foreign.socket, self.foreign.address(), bth, rest);
        (0..4).for_each(|_| _ = self.foreign.node.device.step());
        replies(&self.foreign.socket, self.foreign.address())
    }

    fn connect(&self, connection: u64, psn: u32, key: u64) -> Vec<Reply> {
        let detail = DcEth::detail(Mtu::Bytes256 as u8, 14);
        let header = DcEth {
            access_key: key.into(),
            connection: connection.into(),
            qpn: DCI.into(),
            detail,
        };
        self.say(BthOpcode::Connect, self.target.number, psn, &[header.as_bytes()])
    }

    /// The responder context of a connection that is made.
    fn accepted(&self, connection: u64, psn: u32) -> u32 {
        let answers = self.connect(connection, psn, KEY);
        let [(BthOpcode::Accept, DCI, of, header)] = &answers[..] else {
            panic!("accept wanted: {answers:?}")
        };
        let header = DcEth::read_from_bytes(header).unwrap();
        assert_eq!((header.connection.get(), *of, header.access_key.get()), (connection, psn, 0));
        header.qpn.get()
    }

    fn disconnect(&self, context: u32, connection: u64) {
        let header = DcEth { connection: connection.into(), qpn: DCI.into(), ..DcEth::default() };
        let answers = self.say(BthOpcode::Disconnect, context, 0, &[header.as_bytes()]);
        let [(BthOpcode::Disconnected, DCI, _, header)] = &answers[..] else {
            panic!("{answers:?}")
        };
        assert_eq!(DcEth::read_from_bytes(header).unwrap().connection.get(), connection);
    }

    fn open(&self) -> usize {
        self.foreign.node.device.objects().dynamic_connections
    }
}

fn aeth(reply: &Reply) -> Option<AethSyndrome> {
    Aeth::read_from_prefix(&reply.3).unwrap().0.syndrome()
}

#[test]
fn a_connection_lives_from_accept_to_disconnect() {
    let test = Stranger::new();
    let region = test.foreign.node.region(64);
    let reth = Reth { address: region.address().into(), rkey: region.key.into(), length: 4.into() };
    let context = test.accepted(7, 0xff_ffff);
    // The request for it, doubled, finds it.
    assert_eq!((test.accepted(7, 0xff_ffff), test.open()), (context, 1));
    let done = test.say(BthOpcode::WriteOnly, context, 0xff_ffff, &[reth.as_bytes(), b"once"]);
    assert_eq!((done[0].0, done[0].1, done[0].2), (BthOpcode::Acknowledge, DCI, 0xff_ffff));
    assert!(matches!(aeth(&done[0]), Some(AethSyndrome::Ack(_))));
    assert_eq!(region.memory.read(0, 4), b"once");
    // A gap is reported.
    let gap = test.say(BthOpcode::WriteOnly, context, 2, &[reth.as_bytes(), b"gap!"]);
    assert_eq!(aeth(&gap[0]), Some(AethSyndrome::Nak(NakCode::PsnSequence)));
    test.disconnect(context, 7);
    assert_eq!(test.open(), 0);
    // Again: the response may have been lost. A late one is ignored.
    test.disconnect(context, 7);
    assert!(test.say(BthOpcode::WriteOnly, context, 0, &[reth.as_bytes(), b"late"]).is_empty());
    assert_eq!(region.memory.read(0, 4), b"once");
    // Nor does anything go to a target itself.
    assert!(
        test.say(BthOpcode::WriteOnly, test.target.number, 0, &[reth.as_bytes(), b"late"])
            .is_empty()
    );
}

#[test]
fn a_newer_connection_takes_the_place_of_the_older_one_only() {
    let mut test = Stranger::new();
    let region = test.foreign.node.region(600);
    test.target.srq.post(&[(region.address(), 600, region.key)]);
    let first = test.accepted(7, 5);
    // A message begins.
    let _ = test.say(BthOpcode::SendFirst, first, 5, &[&pattern(256, 1)]);
    let second = test.accepted(9, 100);
    assert_ne!(first, second);
    assert_eq!(test.open(), 1);
    let flushed: Vec<_> =
        test.target.cq.drain().iter().map(|one| (one.qpn, one.syndrome)).collect();
    assert_eq!(flushed, [(test.target.number, Some(Syndrome::WorkRequestFlushed))]);
    assert!(test.say(BthOpcode::SendLast, first, 6, &[b"rest"]).is_empty());
    // The network held this one back.
    assert!(test.connect(8, 50, KEY).is_empty());
    assert_eq!(test.accepted(9, 100), second);
    // Another number does not end it, nor does another host.
    test.disconnect(second, 8);
    assert_eq!(test.open(), 1);
    let (socket, address) = Foreign::stranger();
    let header = DcEth { connection: 9.into(), qpn: DCI.into(), ..DcEth::default() };
    let bth = Bth::new(BthOpcode::Disconnect, second, 0).with_transport(Transport::Dc);
    test.foreign.send_from(&socket, address, bth, &[header.as_bytes()]);
    assert_eq!(test.open(), 1);
    test.disconnect(second, 9);
    assert_eq!(test.open(), 0);
}

#[test]
fn a_silent_initiator_is_asked_and_forgotten() {
    let test = Stranger::new();
    let context = test.accepted(7, 5);
    let header = DcEth { connection: 7.into(), qpn: DCI.into(), ..DcEth::default() };
    let (mut questions, mut answered) = (0, 0);
    for _ in 0..100_000 {
        test.foreign.node.device.step();
        for (opcode, to, psn, rest) in replies(&test.foreign.socket, test.foreign.address()) {
            assert_eq!((opcode, to, psn), (BthOpcode::Accept, DCI, 5));
            assert_eq!(DcEth::read_from_bytes(&rest).unwrap().qpn.get(), context);
            questions += 1;
            // It responds to the fiftieth, and once more with another number.
            if questions == 50 {
                answered += test.say(BthOpcode::KeepAlive, context, 0, &[header.as_bytes()]).len();
                let other = DcEth { connection: 8.into(), ..header };
                answered += test.say(BthOpcode::KeepAlive, context, 0, &[other.as_bytes()]).len();
            }
        }
        if test.open() == 0 {
            break;
        }
    }
    assert_eq!((questions, answered, test.open()), (50 + 64, 0, 0));
}

#[test]
fn refusals_say_why() {
    let mut test = Stranger::new();
    let why = |answers: Vec<Reply>| {
        let [(BthOpcode::Refuse, DCI, _, header)] = &answers[..] else {
            panic!("refusal wanted: {answers:?}")
        };
        let header = DcEth::read_from_bytes(header).unwrap();
        (DcRefusal::try_from(header.code()).unwrap(), header.connection.get())
    };
    assert_eq!(why(test.connect(1, 0, KEY + 1)), (DcRefusal::AccessKey, 1));
    let with_mtu = |code| {
        let detail = DcEth::detail(code, 14);
        let header =
            DcEth { access_key: KEY.into(), connection: 2.into(), qpn: DCI.into(), detail };
        test.say(BthOpcode::Connect, test.target.number, 0, &[header.as_bytes()])
    };
    for code in [0, 2, 6, 0xff] {
        assert_eq!(why(with_mtu(code)), (DcRefusal::PathMtu, 2));
    }
    test.target.drain();
    assert_eq!(why(test.connect(3, 0, KEY)), (DcRefusal::Closed, 3));
    test.target.destroy();
    assert_eq!(why(test.connect(4, 0, KEY)), (DcRefusal::Unknown, 4));
    assert_eq!(test.open(), 0);
}

/// A connection request that the network delayed until no request waits for it is accepted, and the
/// acceptance is declined.
#[test]
fn an_unwanted_acceptance_is_declined() {
    let test = Stranger::new();
    let dci = initiator(&test.foreign.node, &Connection::default());
    for qpn in [dci.number, 0x3f_fff0] {
        let header = DcEth { connection: 77.into(), qpn: 0x80_1234.into(), ..DcEth::default() };
        let answers = test.say(BthOpcode::Accept, qpn, 3, &[header.as_bytes()]);
        let [(BthOpcode::Disconnect, 0x80_1234, _, header)] = &answers[..] else {
            panic!("{answers:?}")
        };
        let header = DcEth::read_from_bytes(header).unwrap();
        assert_eq!((header.connection.get(), header.qpn.get()), (77, qpn));
        // Other packets of a target about it need no response.
        for opcode in [BthOpcode::Refuse, BthOpcode::Disconnected] {
            assert!(test.say(opcode, qpn, 3, &[header.as_bytes()]).is_empty());
        }
    }
}

/// The network delays the refusal of a connection request, which is repeated and accepted. The
/// refusal of a connection that is open is its end.
#[test]
fn a_refusal_that_is_out_of_date_is_ignored() {
    let test = Stranger::new();
    let mut dci = initiator(&test.foreign.node, &Connection::default());
    let region = test.foreign.node.region(64);
    let mut target = test.target.address();
    target.gid = test.foreign.address().to_ipv6_mapped().octets();
    let write = Wqe::new(Opcode::RdmaWrite).addressed(&target).remote(0x1000, 7).data(
        region.address(),
        8,
        region.key,
    );
    let begin = |dci: &mut Qp| {
        dci.post(&write);
        (0..4).for_each(|_| _ = test.foreign.node.device.step());
        let asked = replies(&test.foreign.socket, test.foreign.address());
        let [(BthOpcode::Connect, _, _, header)] = &asked[..] else { panic!("{asked:?}") };
        let connection = DcEth::read_from_prefix(header).unwrap().0.connection;
        let header = DcEth { connection, qpn: 0x80_1234.into(), ..DcEth::default() };
        let sent = test.say(BthOpcode::Accept, dci.number, 0, &[header.as_bytes()]);
        let [(BthOpcode::WriteOnly, 0x80_1234, psn, _)] = sent[..] else { panic!("{sent:?}") };
        (connection, psn)
    };
    let refuse = |connection, refusal: DcRefusal| {
        let detail = DcEth::detail(refusal as u8, 12);
        DcEth { connection, detail, ..DcEth::default() }
    };
    let (connection, psn) = begin(&mut dci);
    for refusal in [DcRefusal::Busy, DcRefusal::AccessKey, DcRefusal::Unknown] {
        let header = refuse(connection, refusal);
        assert!(test.say(BthOpcode::Refuse, dci.number, 0, &[header.as_bytes()]).is_empty());
        assert_eq!(syndromes(&mut dci), []);
    }
    let done = Aeth::new(AethSyndrome::Ack(0x1f), 1);
    test.say(BthOpcode::Acknowledge, dci.number, psn, &[done.as_bytes()]);
    assert_eq!(syndromes(&mut dci), [None]);

    let mut other = initiator(&test.foreign.node, &Connection::default());
    let (connection, _) = begin(&mut other);
    let header = refuse(connection, DcRefusal::Closed);
    test.say(BthOpcode::Refuse, other.number, 0, &[header.as_bytes()]);
    assert_eq!(syndromes(&mut other), [Some(Syndrome::RemoteAborted)]);
}

#[test]
fn any_packet_is_survived() {
    let test = Stranger::new();
    let dci = initiator(&test.foreign.node, &Connection::default());
    let region = test.foreign.node.region(64);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut random = || rng.u64(..);
    let mut context = test.accepted(1, 0);
    for round in 0..4000_u64 {
        let numbers =
            [test.target.number, context, dci.number, test.foreign.qp.number, random() as u32];
        let to = numbers[random() as usize % numbers.len()];
        let opcode = BthOpcode::ALL[random() as usize % BthOpcode::ALL.len()];
        let transport = [Transport::Dc, Transport::Dc, Transport::Xrc, Transport::Vendor]
            [random() as usize % 4];
        let bth = Bth::new(opcode, to, random() as u32 % 4).with_transport(transport);
        let connection = if random().is_multiple_of(2) { round } else { random() };
        let header = DcEth {
            access_key: if random().is_multiple_of(4) { 0 } else { KEY }.into(),
            connection: connection.into(),
            qpn: if random().is_multiple_of(2) { DCI } else { random() as u32 }.into(),
            detail: (random() as u32 & 0x0fff).into(),
        };
        let reth =
            Reth { address: region.address().into(), rkey: region.key.into(), length: 64.into() };
        let xrc = XrcEth { srqn: test.target.srq.number.into() };
        let bytes: &[u8] = match random() % 4 {
            0 | 1 => header.as_bytes(),
            2 => reth.as_bytes(),
            _ => xrc.as_bytes(),
        };
        let length = if random().is_multiple_of(3) {
            random() as usize % (bytes.len() + 1)
        } else {
            bytes.len()
        };
        test.foreign.send_from(
            &test.foreign.socket,
            test.foreign.address(),
            bth,
            &[&bytes[..length]],
        );
        for (opcode, _, _, rest) in drain(&test) {
            if opcode == BthOpcode::Accept {
                context = DcEth::read_from_bytes(&rest).unwrap().qpn.get();
            }
        }
    }
    assert!(test.open() <= 4096);
}

/// Answers of dynamic connections; the others are let be.
fn drain(test: &Stranger) -> Vec<Reply> {
    let mut buffer = [0; 8192];
    std::iter::from_fn(|| {
        let (length, _) = test.foreign.socket.recv_from(&mut buffer).ok()?;
        let (bth, rest) = Bth::read_from_prefix(&buffer[..length - 4]).unwrap();
        Some((bth.operation().unwrap(), bth.destination(), bth.psn(), rest.to_vec()))
    })
    .collect()
}

#[test]
fn devices_with_threads_connect_over_udp() {
    let [a, b] = [(); 2].map(|()| Node::threaded(Faults::default()));
    let connection = Connection::default();
    let mut targets = [Target::new(&b, &connection), Target::new(&a, &connection)];
    let inboxes = targets.each_ref().map(|target| target.node.region(2000));
    let mut dci = initiator(&a, &connection);
    let data = a.region(2000);
    for round in 0..20 {
        let at = round % 2;
        data.memory.write(0, &pattern(2000, round as u64));
        targets[at].srq.post(&[(inboxes[at].address(), 2000, inboxes[at].key)]);
        let wqe = Wqe::new(Opcode::Send).addressed(&targets[at].address());
        dci.post(&wqe.data(data.address(), 2000, data.key));
        assert_eq!(dci.send_cq.wait().syndrome, None);
        assert_eq!(
            (targets[at].cq.wait().length, inboxes[at].memory.read(0, 2000)),
            (2000, pattern(2000, round as u64))
        );
    }
    assert!(b.device.counters().dc_connects >= 1);
}
