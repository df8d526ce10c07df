//! Work queues with any contents, and doorbells with any value.

use barewire_hca::{Config, Fabric, Mode, Strict, WireKind};
use barewire_layouts::command::qp::{Mtu, ServiceType};
use barewire_layouts::wqe::{AddressVector, DS, Opcode, WQEBB};
use bolero::check;

use crate::allocation;
use crate::script::{Script, bytes_to};
use crate::support::{Connection, Node, Pair, Region, Wqe};

const REGION: usize = 4096;
/// Limit for a few passes over the rings: packets that are built, and reports.
const SHARE: usize = 4 << 20;
const SERVICES: [ServiceType; 3] = [ServiceType::Rc, ServiceType::Uc, ServiceType::Ud];

fn pair(service: ServiceType) -> Pair {
    let wire = WireKind::Fabric(Fabric::new());
    let node = || {
        let (mode, wire) = (Mode::Stepped, wire.clone());
        Node::open(Config::default().mode(mode).wire(wire).strict(Strict::Report))
    };
    let connection =
        Connection { mtu: Mtu::Bytes1024, retry_count: 1, rnr_retry: 1, ..Connection::default() };
    Pair::with_service(service, node(), node(), &connection)
}

/// Valid work requests for a script to change.
fn templates(pair: &Pair, region: &Region) -> Vec<Wqe> {
    let data = |wqe: Wqe, length| wqe.data(region.address(), length, region.key);
    let there = |opcode| Wqe::new(opcode).remote(region.address(), region.key);
    let to =
        AddressVector::roce(pair.qb.number, 0x1111_1111, [0; 6], pair.b.device.gid(), 0, 0, 64);
    vec![
        data(Wqe::new(Opcode::Send), 2000),
        data(Wqe::new(Opcode::SendImmediate).immediate(7), 5),
        data(there(Opcode::RdmaWrite), 3000),
        data(there(Opcode::RdmaWriteImmediate).immediate(7), 8),
        data(there(Opcode::RdmaRead), 3000),
        data(there(Opcode::AtomicFetchAdd).atomic(1, 2), 8),
        data(there(Opcode::AtomicCompareSwap).atomic(1, 2), 8),
        there(Opcode::RdmaWrite).inline(&[3; 60]),
        Wqe::new(Opcode::Send).inline(&[4; 100]),
        data(Wqe::new(Opcode::Send).addressed(&to), 100),
        data(data(Wqe::new(Opcode::Send), 100), 200),
        Wqe::new(Opcode::Nop),
    ]
}

#[test]
fn any_rings() {
    check!().with_generator(bytes_to(1024)).for_each(|bytes| {
        let mut script = Script::new(bytes);
        let mut pair = pair(SERVICES[usize::from(script.byte()) % SERVICES.len()]);
        let region = pair.b.region(REGION);
        let templates = templates(&pair, &region);
        // Work requests have at least one block each, unless doorbells refer to blocks that were
        // not written.
        let (mut sends, mut jumped, mut receives) = (0, false, 0);
        while !script.is_over() {
            let which = usize::from(script.byte());
            match templates.get(which) {
                Some(template) => {
                    let mut wqe = template.bytes(pair.qa.producer, pair.qa.number);
                    script.mutate(&mut wqe);
                    let (_, wqe) = pair.qa.place_bytes(wqe);
                    pair.qa.ring(&wqe[..8]);
                    sends += wqe.len().div_ceil(WQEBB);
                }
                None if which == 0xff => pair.qa.ring(&script.array::<WQEBB>()),
                None if which == 0xfe => {
                    pair.qa.producer = script.number();
                    jumped = true;
                }
                None if which & 1 == 0 => {
                    let (address, length) = (u64::from_be_bytes(script.array()), script.number());
                    let (address, key) = if script.byte().is_multiple_of(4) {
                        (address, script.number().into())
                    } else {
                        (region.address(), region.key)
                    };
                    pair.qb.post_receive(&[(address, length.into(), key)]);
                    receives += 1;
                }
                None => {
                    let blocks = 1 + which % 4;
                    let mut wqe = script.bytes(blocks * WQEBB).to_vec();
                    wqe.resize(wqe.len().next_multiple_of(DS), 0);
                    if !wqe.is_empty() {
                        let (_, wqe) = pair.qa.place_bytes(wqe);
                        pair.qa.ring(&wqe[..8]);
                        sends += blocks;
                    }
                }
            }
            let devices = [&pair.a, &pair.b].map(|node| node.device.clone());
            let findings = || devices.iter().map(|device| device.counters().findings).sum::<u64>();
            let before = findings();
            let most = allocation::peak(|| pair.step(4));
            // A finding is printed, and the test harness stores the output.
            assert!(most < SHARE || findings() > before, "{most} bytes in a few passes");
        }
        pair.step(100);
        pair.qa.to_error();
        pair.qb.to_error();
        pair.step(8);
        // Each report of the device has a text.
        for node in [&pair.a, &pair.b] {
            assert!(node.device.take_reports().iter().all(|report| !report.to_string().is_empty()));
        }
        let (sent, received) = (pair.qa.send_cq.drain(), pair.qb.receive_cq.drain());
        assert!(jumped || sent.len() <= sends, "{sent:?} of {sends} blocks");
        assert!(
            received.len() <= receives,
            "{} completions of {receives} receives",
            received.len()
        );
        assert!(
            sent.iter()
                .chain(&received)
                .all(|done| [pair.qa.number, pair.qb.number].contains(&done.qpn))
        );
    });
}
