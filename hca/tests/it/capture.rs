//! The captured packets, decoded by tshark and checked with the test's own CRC.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::support::foreign::{Foreign, PSN, QPN};
use crate::support::pcap::{self, Frame};
use crate::support::xrc::{Domain, XrcSrq};
use crate::support::{self, Connection, Node, Pair, Region, Wqe};
use barewire_hca::{Config, Fabric, Mode, OpenError, Strict, WireKind};
use barewire_layouts::command::qp::ServiceType;
use barewire_layouts::roce::{Bth, BthOpcode, Reth};
use barewire_layouts::wqe::{AddressVector, Opcode};
use zerocopy::{FromBytes, IntoBytes};

const RC: u8 = 0x00;
const UC: u8 = 0x20;
const UD: u8 = 0x60;
/// IBTA annex A17.9.3.
const NOTIFICATION: u8 = 0x81;
const QKEY: u32 = 0x1111_1111;

fn nodes(addresses: [&str; 2], pcap: &Path) -> [Node; 2] {
    let wire = WireKind::Fabric(Fabric::new());
    addresses.map(|address| {
        Node::open(
            Config::default()
                .address(Some(address.parse().unwrap()))
                .mode(Mode::Stepped)
                .wire(wire.clone())
                .pcap((address == addresses[0]).then(|| pcap.to_path_buf())),
        )
    })
}

/// Does one operation after another, each with receives for those that take them; all must succeed.
fn operate(pair: &mut Pair, memory: &[Region; 2], wqes: &[Wqe]) {
    for wqe in wqes {
        pair.qb.post_receive(&[(memory[1].address(), 1024, memory[1].key)]);
        pair.qa.post(wqe);
        pair.settle();
    }
    let done = pair.qa.send_cq.drain();
    assert!(done.len() == wqes.len() && done.iter().all(support::Completion::is_ok), "{done:?}");
}

/// Every kind of packet that goes from queue pair to queue pair: the capture of the one side.
fn run(addresses: [&str; 2], pcap: &Path) {
    let [a, b] = nodes(addresses, pcap);
    let memory = [a.region(1024), b.region(1024)];
    let data = |wqe: Wqe, length| wqe.data(memory[0].address(), length, memory[0].key);
    let there = |opcode| Wqe::new(opcode).remote(memory[1].address(), memory[1].key);
    let one_way = [
        data(Wqe::new(Opcode::Send), 600),
        data(Wqe::new(Opcode::SendImmediate).immediate(0x0102_0304), 600),
        data(Wqe::new(Opcode::Send), 10),
        data(Wqe::new(Opcode::SendImmediate).immediate(0x0102_0304), 5),
        data(there(Opcode::RdmaWrite), 600),
        data(there(Opcode::RdmaWriteImmediate).immediate(0x0102_0304), 600),
        data(there(Opcode::RdmaWrite), 3),
        data(there(Opcode::RdmaWriteImmediate).immediate(0x0102_0304), 1),
    ];
    let both_ways = [
        data(there(Opcode::RdmaRead), 600),
        data(there(Opcode::RdmaRead), 10),
        data(there(Opcode::AtomicFetchAdd).atomic(0x77, 0), 8),
        data(there(Opcode::AtomicCompareSwap).atomic(0x77, 0x88), 8),
    ];
    let mut rc = Pair::over(a.clone(), b.clone(), &Connection::default());
    operate(&mut rc, &memory, &one_way);
    operate(&mut rc, &memory, &both_ways);
    // Negative acknowledgments: there is no receive yet; there is no such key.
    let mut late = Pair::over(a.clone(), b.clone(), &Connection::default());
    late.qa.post(&one_way[2]);
    late.step(8);
    operate(&mut late, &memory, &[]);
    late.qb.post_receive(&[(memory[1].address(), 1024, memory[1].key)]);
    late.settle();
    assert!(late.qa.send_cq.poll().unwrap().is_ok());
    late.qa
        .post(&data(Wqe::new(Opcode::RdmaWrite).remote(memory[1].address(), memory[1].key ^ 1), 3));
    late.settle();
    assert!(!late.qa.send_cq.poll().unwrap().is_ok());
    let mut uc = Pair::with_service(ServiceType::Uc, a.clone(), b.clone(), &Connection::default());
    operate(&mut uc, &memory, &one_way);
    let domains = [Domain::new(&a), Domain::new(&b)];
    let mut queue = XrcSrq::new(&domains[1], 2, 1, true);
    let qps = (domains[0].queue_pair(true), domains[1].queue_pair(false));
    let mut xrc = Pair::of(a.clone(), b.clone(), qps, &Connection::default());
    queue.post(&[(memory[1].address(), 1024, memory[1].key)]);
    xrc.qa.post(&data(Wqe::new(Opcode::Send).shared_queue(queue.number), 600));
    let write =
        Wqe::new(Opcode::RdmaWrite).shared_queue(0).remote(memory[1].address(), memory[1].key);
    xrc.qa.post(&data(write, 6));
    xrc.settle();
    assert_eq!(xrc.qa.send_cq.drain().len(), 2);
    let mut ud = Pair::with_service(ServiceType::Ud, a, b, &Connection::default());
    let to = AddressVector::roce(ud.qb.number, QKEY, [0; 6], ud.b.device.gid(), 0, 0, 64);
    let datagrams = [
        data(Wqe::new(Opcode::Send).addressed(&to), 32),
        data(Wqe::new(Opcode::SendImmediate).immediate(0x0102_0304).addressed(&to), 7),
    ];
    operate(&mut ud, &memory, &datagrams);
    assert_eq!(ud.a.device.counters().capture_lost, 0);
}

/// IBTA table 38: the headers behind the BTH of each packet that `run` must cause, by opcode.
fn headers() -> BTreeMap<u8, Vec<&'static str>> {
    let (reth, immediate, aeth) = ("infiniband.reth", "infiniband.immdt", "infiniband.aeth");
    let one_way = [
        (0, vec![]),
        (1, vec![]),
        (2, vec![]),
        (3, vec![immediate]),
        (4, vec![]),
        (5, vec![immediate]),
        (6, vec![reth]),
        (7, vec![]),
        (8, vec![]),
        (9, vec![immediate]),
        (10, vec![reth]),
        (11, vec![reth, immediate]),
    ];
    let both_ways = [
        (12, vec![reth]),
        (13, vec![aeth]),
        (14, vec![]),
        (15, vec![aeth]),
        (16, vec![aeth]),
        (17, vec![aeth]),
        (18, vec![aeth, "infiniband.atomicacketh"]),
        (19, vec!["infiniband.atomiceth"]),
        (20, vec!["infiniband.atomiceth"]),
    ];
    let deth = "infiniband.deth";
    let datagrams = [(UD | 4, vec![deth]), (UD | 5, vec![deth, immediate])];
    let of = |service: u8, (opcode, headers): &(u8, Vec<_>)| (service | opcode, headers.clone());
    let connected = one_way.iter().chain(&both_ways).map(|entry| of(RC, entry));
    connected.chain(one_way.iter().map(|entry| of(UC, entry))).chain(datagrams).collect()
}

/// Opcodes of extended reliable connections in a run: send in three packets, write, acknowledgment.
/// tshark 4.0 knows their names, but no fields of their extended header.
const XRC: [u8; 5] = [0xa0, 0xa1, 0xa2, 0xaa, 0xb1];

/// As tshark names them.
const HEADERS: [&str; 6] = [
    "infiniband.reth",
    "infiniband.immdt",
    "infiniband.aeth",
    "infiniband.atomiceth",
    "infiniband.atomicacketh",
    "infiniband.deth",
];

/// A hexadecimal number as tshark shows it.
fn hexadecimal(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or_else(|_| panic!("'{text}'"))
}

/// A big-endian number of a packet's transport headers.
fn number(frame: &Frame, at: usize, length: usize) -> u64 {
    frame.transport()[at..at + length].iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Every packet is RoCEv2 to tshark, with the right CRC at its end and nothing to complain about.
fn check_frames(pcap: &Path, network: &str) {
    let fields = [
        "frame.protocols",
        "infiniband.bth.opcode",
        "infiniband.invariant.crc",
        "_ws.expert.message",
    ];
    let (frames, seen) = (pcap::frames(pcap), pcap::tshark(pcap, &fields));
    assert_eq!(frames.len(), seen.len());
    for (frame, seen) in frames.iter().zip(seen) {
        let [protocols, opcode, crc, complaint] = &seen[..] else { panic!("{seen:?}") };
        assert!(
            protocols.starts_with(&format!("eth:ethertype:{network}:udp:infiniband")),
            "{seen:?}"
        );
        assert_eq!(opcode, &frame.opcode().to_string());
        // It takes the CRC of these for a part of what it does not know.
        if frame.opcode() != NOTIFICATION && !XRC.contains(&frame.opcode()) {
            assert_eq!(
                hexadecimal(crc),
                u64::from(u32::from_be_bytes(frame.computed_icrc())),
                "{seen:?}"
            );
        }
        // RoCEv2 has no UDP checksum over IPv6 either (RFC 6936), which tshark holds against it.
        assert!(
            complaint.is_empty() || network == "ipv6" && complaint == "Illegal checksum value (0)",
            "{complaint}"
        );
    }
}

#[test]
fn every_packet_ends_with_the_crc_of_the_annex() {
    for (name, addresses) in
        [("crc4", ["127.7.1.1", "127.7.1.2"]), ("crc6", ["fd00::1", "fd00::2"])]
    {
        let pcap = pcap::file(name);
        run(addresses, &pcap);
        let frames = pcap::frames(&pcap);
        std::fs::remove_file(&pcap).unwrap();
        let seen: std::collections::BTreeSet<u8> = frames.iter().map(Frame::opcode).collect();
        assert_eq!(seen, headers().into_keys().chain(XRC).collect());
        for frame in frames {
            assert_eq!(frame.icrc(), frame.computed_icrc(), "{frame:02x?}");
        }
    }
}

#[test]
fn tshark_reads_every_header_over_ipv4_and_ipv6() {
    if !pcap::has_tshark() {
        return;
    }
    for (addresses, network) in
        [(["127.7.1.1", "127.7.1.2"], "ip"), (["fd00::1", "fd00::2"], "ipv6")]
    {
        let pcap = pcap::file(network);
        run(addresses, &pcap);
        check_frames(&pcap, network);
        let (frames, found) = (pcap::frames(&pcap), pcap::tshark(&pcap, &HEADERS));
        let expected = headers();
        for (frame, found) in frames.iter().zip(found) {
            let Some(expected) = expected.get(&frame.opcode()) else {
                assert!(XRC.contains(&frame.opcode()));
                continue;
            };
            let found = HEADERS.iter().zip(&found).filter(|(_, text)| !text.is_empty());
            let (mut found, mut expected) =
                (found.map(|(name, _)| *name).collect::<Vec<_>>(), expected.clone());
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "opcode {:#04x}", frame.opcode());
        }
        let values = [
            "infiniband.bth.destqp",
            "infiniband.bth.psn",
            "infiniband.bth.padcnt",
            "infiniband.reth.va",
            "infiniband.reth.r_key",
            "infiniband.reth.dmalen",
            "infiniband.immdt",
            "infiniband.aeth.msn",
            "infiniband.aeth.syndrome.opcode",
            "infiniband.atomiceth.swapdt",
            "infiniband.deth.q_key",
        ];
        let values = pcap::tshark(&pcap, &values);
        std::fs::remove_file(&pcap).unwrap();
        let mut syndromes = std::collections::BTreeSet::new();
        for (frame, values) in frames.iter().zip(values) {
            let [qpn, psn, padding, va, rkey, length, immediate, msn, syndrome, swap, qkey] =
                &values[..]
            else {
                panic!("{values:?}")
            };
            assert_eq!(hexadecimal(qpn), number(frame, 5, 3));
            assert_eq!(psn, &number(frame, 9, 3).to_string());
            assert_eq!(padding, &(frame.transport()[1] >> 4 & 3).to_string());
            if !length.is_empty() {
                assert_eq!(hexadecimal(va), number(frame, 12, 8));
                assert_eq!(hexadecimal(rkey), number(frame, 20, 4));
                assert_eq!(length, &number(frame, 24, 4).to_string());
            }
            assert!(
                ["", "0x01020304", "16909060", "01:02:03:04", "01020304"]
                    .contains(&immediate.as_str()),
                "{immediate}"
            );
            if !msn.is_empty() {
                assert_eq!(msn, &number(frame, 13, 3).to_string());
                syndromes.insert(syndrome.clone());
            }
            assert!(["", "119"].contains(&swap.as_str()), "{swap}");
            assert!(qkey.is_empty() || hexadecimal(qkey) == u64::from(QKEY), "{qkey}");
        }
        // Acknowledgment, receiver not ready, negative acknowledgment.
        assert_eq!(syndromes.into_iter().collect::<Vec<_>>(), ["0", "1", "3"]);
    }
}

#[test]
fn tshark_reads_a_congestion_notification() {
    let pcap = pcap::file("cnp");
    let config = Config::default()
        .mode(Mode::Stepped)
        .wire(WireKind::Roce)
        .strict(Strict::Report)
        .pcap(Some(pcap.clone()));
    let foreign = Foreign::with(&Connection::default(), config);
    let target = foreign.node.region(64);
    // FECN: a switch met on the way here was congested.
    let mut bytes = [0; 12];
    bytes.copy_from_slice(Bth::new(BthOpcode::WriteOnly, foreign.qp.number, PSN).as_bytes());
    bytes[4] |= 0x80;
    let bth = Bth::read_from_bytes(&bytes).unwrap();
    let reth = Reth { address: target.address().into(), rkey: target.key.into(), length: 1.into() };
    foreign.send_from(&foreign.socket, foreign.address(), bth, &[reth.as_bytes(), b"x"]);
    let frames = pcap::frames(&pcap);
    let notice =
        frames.iter().find(|frame| frame.opcode() == NOTIFICATION).expect("a notification");
    assert_eq!(notice.icrc(), notice.computed_icrc());
    if pcap::has_tshark() {
        check_frames(&pcap, "ip");
        // Version 4.0 reads the base header of a packet that it has no name for. BECN is in the
        // reserved byte.
        let seen = pcap::tshark(
            &pcap,
            &["infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.reserved"],
        );
        let notice = seen.iter().find(|line| line[0] == NOTIFICATION.to_string()).unwrap();
        assert_eq!((hexadecimal(&notice[1]), hexadecimal(&notice[2])), (u64::from(QPN), 0x40));
    }
    std::fs::remove_file(&pcap).unwrap();
}

#[test]
fn the_same_run_gives_the_same_file() {
    let files = [pcap::file("first"), pcap::file("second")];
    let [first, second] = files.each_ref().map(|pcap| {
        run(["127.7.1.1", "127.7.1.2"], pcap);
        // Addresses of the memory differ from run to run, its lengths do not.
        let bytes = std::fs::read(pcap).unwrap();
        std::fs::remove_file(pcap).unwrap();
        bytes
    });
    assert_eq!(first.len(), second.len());
    assert_eq!(first[..4], 0xa1b2_c3d4_u32.to_ne_bytes());
    // The first packet's time: one microsecond.
    assert_eq!(first[24..32], [[0; 4], 1_u32.to_ne_bytes()].concat());
}

#[test]
fn a_file_that_cannot_be_is_told() {
    let pcap = Some(PathBuf::from("/proc/no/such/place.pcap"));
    let error = barewire_hca::Device::open(Config::default().pcap(pcap)).unwrap_err();
    assert!(matches!(error, OpenError::Capture { .. }), "{error}");
    assert!(error.to_string().contains("/proc/no/such/place.pcap"), "{error}");
}
