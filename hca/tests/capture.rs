//! What the wire saw, as tshark reads it.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use barewire_hca::{Config, Fabric, Mode, OpenError, WireKind};
use barewire_layouts::command::qp::ServiceType;
use barewire_layouts::wqe::{AddressVector, Opcode};
use support::xrc::{Domain, XrcSrq};
use support::{Connection, Node, Pair, Wqe};

/// A file name of this test's own.
fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("barewire-hca-{}-{name}.pcap", std::process::id()))
}

fn run(addresses: [&str; 2], pcap: &Path) {
    let wire = WireKind::Fabric(Fabric::new());
    let [a, b] = addresses.map(|address| {
        Node::open(Config {
            address: Some(address.parse().unwrap()),
            mode: Mode::Stepped,
            wire: wire.clone(),
            pcap: (address == addresses[0]).then(|| pcap.to_path_buf()),
            ..Config::default()
        })
    });
    let mut rc = Pair::over(a.clone(), b.clone(), &Connection::default());
    let (local, remote) = (a.region(1024), b.region(1024));
    rc.qb.post_receive(&[(remote.address(), 1024, remote.key)]);
    let data = |wqe: Wqe, length| wqe.data(local.address(), length, local.key);
    let there = |opcode| Wqe::new(opcode).remote(remote.address(), remote.key);
    rc.qa.post(&data(there(Opcode::RdmaWrite), 600));
    rc.qa.post(&data(Wqe::new(Opcode::SendImmediate).immediate(5), 5));
    rc.qa.post(&data(there(Opcode::RdmaRead), 10));
    rc.qa.post(&data(there(Opcode::AtomicFetchAdd).atomic(1, 2), 8));
    rc.settle();
    assert!(rc.qa.send_cq.drain().len() == 4);
    let domains = [Domain::new(&a), Domain::new(&b)];
    let mut queue = XrcSrq::new(&domains[1], 2, 1, true);
    let qps = (domains[0].queue_pair(true), domains[1].queue_pair(false));
    let mut xrc = Pair::of(a.clone(), b.clone(), qps, &Connection::default());
    queue.post(&[(remote.address(), 1024, remote.key)]);
    xrc.qa.post(&data(Wqe::new(Opcode::Send).shared_queue(queue.number), 600));
    xrc.qa.post(&data(Wqe::new(Opcode::RdmaWrite).shared_queue(0).remote(remote.address(), remote.key), 6));
    xrc.settle();
    assert!(xrc.qa.send_cq.drain().len() == 2);
    let mut ud = Pair::with_service(ServiceType::Ud, a, b, &Connection::default());
    let to = AddressVector::roce(ud.qb.number, 0x1111_1111, [0; 6], ud.b.device.gid(), 0, 0, 64);
    ud.qa.post(&data(Wqe::new(Opcode::Send).addressed(&to), 32));
    ud.settle();
    assert_eq!(ud.a.device.counters().capture_lost, 0);
}

/// One line per packet: the fields given, separated by `;`.
fn tshark(pcap: &Path, fields: &[&str]) -> Option<Vec<String>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(pcap).args(["-T", "fields", "-E", "separator=;"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: tshark cannot be run: {error}");
            return None;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

const FIELDS: [&str; 5] = [
    "frame.protocols",
    "infiniband.bth.opcode",
    "infiniband.reth.dmalen",
    "infiniband.atomiceth.swapdt",
    "infiniband.deth.q_key",
];

#[test]
fn tshark_reads_every_header_over_ipv4_and_ipv6() {
    for (addresses, network) in [(["127.7.1.1", "127.7.1.2"], "ip"), (["fd00::1", "fd00::2"], "ipv6")] {
        let pcap = file(network);
        run(addresses, &pcap);
        let lines = tshark(&pcap, &FIELDS);
        let experts = tshark(&pcap, &["_ws.expert.message", "_ws.malformed"]);
        std::fs::remove_file(&pcap).unwrap();
        let (Some(lines), Some(experts)) = (lines, experts) else { return };
        println!("{lines:#?}");
        let protocols = format!("eth:ethertype:{network}:udp:infiniband");
        assert!(lines.iter().all(|line| line.starts_with(&protocols)), "{lines:#?}");
        let opcode = |opcode: u8| {
            lines.iter().filter(move |line| line.split(';').nth(1) == Some(&opcode.to_string())).count()
        };
        // Write first, middle, last; send with immediate; read request and response; fetch and add and its answer; datagram.
        for one in [6, 7, 8, 5, 12, 16, 20, 18, 100] {
            assert_eq!(opcode(one), 1, "opcode {one}: {lines:#?}");
        }
        // XRC: send first, middle, last; write only. Its acknowledgments.
        for one in [160, 161, 162, 170] {
            assert_eq!(opcode(one), 1, "opcode {one}: {lines:#?}");
        }
        assert!(opcode(17) >= 1 && opcode(177) >= 1, "acknowledgments: {lines:#?}");
        let field = |opcode: &str, at: usize| {
            let line = lines.iter().find(|line| line.split(';').nth(1) == Some(opcode));
            line.and_then(|line| line.split(';').nth(at)).unwrap_or_default().to_owned()
        };
        assert_eq!((field("6", 2).as_str(), field("20", 3).as_str()), ("600", "1"));
        assert!(field("100", 4).ends_with("11111111"), "{}", field("100", 4));
        println!("{experts:?}");
        assert!(experts.iter().all(|line| !line.to_lowercase().contains("malformed")), "{experts:?}");
    }
}

#[test]
fn the_same_run_gives_the_same_file() {
    let files = [file("first"), file("second")];
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
    let error = barewire_hca::Device::open(Config { pcap, ..Config::default() }).unwrap_err();
    assert!(matches!(error, OpenError::Capture { .. }), "{error}");
    assert!(error.to_string().contains("/proc/no/such/place.pcap"), "{error}");
}
