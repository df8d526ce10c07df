//! Tag matching: list operations and messages with any contents.

use barewire_hca::{Config, Fabric, Mode, Strict, WireKind};
use barewire_layouts::command::qp::Mtu;
use barewire_layouts::tag::{RendezvousHeader, TagHeader, TagOpcode};
use barewire_layouts::wqe::{Opcode, TagFlags, TagSegment};
use bolero::check;
use zerocopy::IntoBytes;

use crate::allocation;
use crate::script::{Script, bytes_to};
use crate::support::tags::{LOG_LIST, Xrq, append, change};
use crate::support::{Connection, Cq, LOG_CQ, Node, Pair, Qp, Wqe};

const REGION: usize = 4096;
/// Limit for a few passes: packets that are built, the list, and reports.
const SHARE: usize = 4 << 20;

fn headers(length: u32, address: u64, rkey: u32) -> Vec<u8> {
    let mut bytes = TagHeader::new(TagOpcode::Rendezvous, 1, 2).as_bytes().to_vec();
    let (address, rkey, length) = (address.into(), rkey.into(), length.into());
    bytes.extend(RendezvousHeader { address, rkey, length }.as_bytes());
    bytes.resize(400, 7);
    bytes
}

#[test]
fn any_lists_and_messages() {
    check!().with_generator(bytes_to(512)).for_each(|bytes| {
        let mut script = Script::new(bytes);
        let wire = WireKind::Fabric(Fabric::new());
        let node = || {
            let config = Config::default().mode(Mode::Stepped).wire(wire.clone());
            Node::open(config.strict(Strict::Report))
        };
        let (a, b) = (node(), node());
        let mut xrq = Xrq::new(&b, Cq::new(&b, LOG_CQ), |_| ());
        let (qa, qb) = (Qp::new(&a), xrq.queue_pair());
        let connection = Connection {
            mtu: Mtu::Bytes256,
            retry_count: 1,
            rnr_retry: 1,
            ..Connection::default()
        };
        let (source, target) = (a.region(REGION), b.region(REGION));
        let mut pair = Pair::of(a, b, (qa, qb), &connection);
        let (mut next, mut operations, mut messages) = (0_u16, 0, 0);
        while !script.is_over() {
            match script.byte() % 8 {
                0..=2 => {
                    next = (next + 1) % (1 << LOG_LIST);
                    let tag = u64::from(script.byte() % 4);
                    let length = usize::from(script.number()) % REGION + 1;
                    let wqe = append(next, (tag, u64::from(script.byte())), &target, length);
                    let mut bytes = wqe.bytes(pair.qb.producer, pair.qb.number);
                    script.mutate(&mut bytes);
                    let (_, bytes) = pair.qb.place_bytes(bytes);
                    pair.qb.ring(&bytes[..8]);
                    operations += 1;
                }
                3 => {
                    let segment = TagSegment::remove(script.number() % 8, TagFlags::all());
                    pair.qb.post(&change(&segment.with_software_count(script.number() % 4)));
                    operations += 1;
                }
                4 => xrq.post(&[(target.address(), script.number().into(), target.key)]),
                kind => {
                    let length = u32::from(script.number()) % 5000;
                    let mut bytes = headers(length, source.address(), source.key);
                    bytes[0] = script.byte() % 5;
                    bytes[15] = script.byte() % 4;
                    script.mutate(&mut bytes[..32]);
                    bytes.truncate(usize::from(script.number()) % 400);
                    source.memory.write(0, &bytes);
                    let opcode = if kind == 7 { Opcode::SendImmediate } else { Opcode::Send };
                    pair.qa.post(&Wqe::new(opcode).data(source.address(), bytes.len(), source.key));
                    pair.qa.post_receive(&[(source.address() + 2048, 64, source.key)]);
                    messages += 1;
                }
            }
            let devices = [&pair.a, &pair.b].map(|node| node.device.clone());
            let findings = || devices.iter().map(|device| device.counters().findings).sum::<u64>();
            let before = findings();
            let most = allocation::peak(|| pair.step(4));
            assert!(most < SHARE || findings() > before, "{most} bytes in a few passes");
        }
        pair.step(100);
        pair.qa.to_error();
        pair.qb.to_error();
        pair.step(8);
        // An error completion has no fields of tag matching.
        let completed = xrq.cq.drain().len();
        assert!(completed <= operations + 2 * messages, "{completed} completions");
        let sent = pair.qa.send_cq.drain().len();
        assert_eq!(sent, messages, "each work request completes once");
    });
}
