//! Tag matching: messages to a shared receive queue with a list of tags.

mod errors;
mod lists;
mod rendezvous;

use crate::support::tags::{Xrq, append, change};
use crate::support::{
    Completion, Connection, Cq, LOG_CQ, Node, Pair, Qp, Region, Wqe, command, pattern,
};
use barewire_hca::{Config, Fabric, Faults, Mode, Strict, WireKind};
use barewire_layouts::command::answer;
use barewire_layouts::command::cq::CqeSize;
use barewire_layouts::command::qp::{Mtu, QpState, Qpc, QueryQpIn, QueryQpOut};
use barewire_layouts::command::xrq::{TagMatchingContext, Xrqc};
use barewire_layouts::cqe::{CqeFormat, CqeOpcode, TagEvent};
use barewire_layouts::tag::{RendezvousHeader, TagHeader, TagOpcode};
use barewire_layouts::wqe::{ControlFlags, Opcode, TagFlags, TagSegment};
use zerocopy::IntoBytes;

const ALL: u64 = u64::MAX;
const HEADER: usize = 16;
const LOG_ENTRIES: u8 = 7;
/// The bytes of a receive WQE, more than the packets of 256 bytes that are sent at once.
const PLAIN: usize = 16384;

/// A sender, and a receiver whose queue pair uses a queue with tag matching.
///
/// Dropped in this order: the queue pair uses the others.
struct Tags {
    pair: Pair,
    /// Changes the list.
    list: Qp,
    xrq: Xrq,
    /// The buffers of entries, of receive WQEs, and of the sender.
    matched: Region,
    plain: Region,
    source: Region,
}

impl Tags {
    fn new() -> Self {
        Self::with(Faults::default(), Mtu::Bytes256)
    }

    fn with(faults: Faults, mtu: Mtu) -> Self {
        Self::open(faults, mtu, CqeSize::Bytes64, 0)
    }

    /// With completions of a size, which may hold the data of received messages.
    fn open(faults: Faults, mtu: Mtu, entry: CqeSize, scatter: u8) -> Self {
        let fabric = Fabric::new();
        let open = |faults| {
            let wire = WireKind::Fabric(fabric.clone());
            let config = Config::default().mode(Mode::Stepped).wire(wire).faults(faults);
            Node::open(config.strict(Strict::Report))
        };
        let (a, b) = (open(faults.clone()), open(faults));
        let mut xrq = Xrq::new(&b, Cq::with(&b, LOG_CQ, entry, |_| ()), |context| {
            context
                .nested(Xrqc::TAG_MATCHING_TOPOLOGY_CONTEXT)
                .set(TagMatchingContext::LOG_MATCHING_LIST_SZ, LOG_ENTRIES);
        });
        let qb = xrq.queue_pair_with(|context| _ = context.set(Qpc::CS_RES, scatter));
        let (qa, list) = (Qp::new(&a), xrq.list_pair());
        let connection = Connection { mtu, ..Connection::default() };
        let (source, matched, plain) = (a.region(8192), b.region(8192), b.region(8192));
        for _ in 0..4 {
            xrq.post(&[(plain.address(), PLAIN / 2, plain.key); 2]);
        }
        Self { pair: Pair::of(a, b, (qa, qb), &connection), list, xrq, matched, plain, source }
    }

    /// Appends an entry with a buffer of `length` bytes.
    fn append(&mut self, next: u16, tag: u64, length: usize) {
        self.list.post(&append(next, (tag, ALL), &self.matched, length));
        self.pair.settle();
    }

    fn change(&mut self, segment: &TagSegment) {
        self.list.post(&change(segment));
        self.pair.settle();
    }

    fn change_count(&mut self, count: u16) {
        self.change(&TagSegment::nop(TagFlags::empty()).with_software_count(count));
    }

    fn send(&mut self, header: TagHeader, data: &[u8]) {
        self.post(&Wqe::new(Opcode::Send), header, data);
        assert!(self.pair.qa.send_cq.drain().iter().all(Completion::is_ok));
    }

    fn post(&mut self, wqe: &Wqe, header: TagHeader, data: &[u8]) {
        let bytes = [header.as_bytes(), data].concat();
        self.source.memory.write(0, &bytes);
        let wqe = wqe.clone().data(self.source.address(), bytes.len(), self.source.key);
        self.pair.qa.post(&wqe);
        self.pair.settle();
    }

    /// Posts a message with tag 5 whose data is longer than the packets that are sent at once, or
    /// which the device reads.
    fn begin(&mut self, is_read: bool) {
        let (address, key) = (self.source.address(), self.source.key);
        let message = Wqe::new(Opcode::Send);
        let message = if is_read {
            let announcement = [rendezvous(5).as_bytes(), self.remote(4096).as_bytes()].concat();
            self.source.memory.write(0, &announcement);
            message.data(address, announcement.len(), key)
        } else {
            self.source.memory.write(0, eager(5).as_bytes());
            message.data(address, PLAIN / 2, key).data(address, PLAIN / 2, key)
        };
        self.pair.qa.post(&message);
    }

    /// The rendezvous header of `length` bytes in the second half of the sender's memory.
    fn remote(&self, length: u32) -> RendezvousHeader {
        RendezvousHeader {
            address: (self.source.address() + 4096).into(),
            rkey: self.source.key.into(),
            length: length.into(),
        }
    }

    fn receiver_state(&self) -> QpState {
        let output = command::<QueryQpIn>(&self.pair.b.device, |query| {
            query.set(QueryQpIn::QPN, self.pair.qb.number);
        });
        let output = output.unwrap();
        let context = answer::<QueryQpIn>(&output).unwrap().nested(QueryQpOut::QPC);
        context.get(Qpc::STATE).unwrap()
    }
}

fn eager(tag: u64) -> TagHeader {
    TagHeader::new(TagOpcode::Eager, 0x0102_0304, tag)
}

fn rendezvous(tag: u64) -> TagHeader {
    TagHeader::new(TagOpcode::Rendezvous, 0x0506_0708, tag)
}

#[test]
fn a_message_goes_to_the_entry_that_it_matches() {
    for length in [0, 1, 200, 240, 241, 1000] {
        let mut test = Tags::new();
        test.append(1, 5, 4096);
        test.append(2, 6, 4096);
        assert_eq!(test.xrq.drain(), [(TagEvent::Append, 1), (TagEvent::Append, 2)]);
        let data = pattern(length, 1);
        test.send(eager(6), &data);
        let last = if length + HEADER > 256 {
            let first = test.xrq.poll().unwrap();
            assert_eq!((first.kind, first.entry), (Some(TagEvent::Consumed), 1));
            assert_eq!((first.opcode, first.header), (CqeOpcode::NoPacket, eager(6)));
            let last = test.xrq.poll().unwrap();
            assert_eq!((last.kind, last.header), (Some(TagEvent::Expected), TagHeader::default()));
            last
        } else {
            let only = test.xrq.poll().unwrap();
            assert_eq!((only.kind, only.header), (Some(TagEvent::ConsumedMessage), eager(6)));
            only
        };
        assert_eq!(last.opcode, CqeOpcode::ResponderSend);
        assert_eq!((last.entry, last.length as usize), (1, length));
        assert_eq!(test.matched.memory.read(0, length), data);
        // Once only.
        test.send(eager(6), &data);
        assert_eq!(test.xrq.drain(), [(TagEvent::Unexpected, 0)]);
    }
}

#[test]
fn a_message_with_an_immediate_delivers_it_with_the_data() {
    let mut test = Tags::new();
    test.append(1, 5, 4096);
    test.xrq.drain();
    test.post(&Wqe::new(Opcode::SendImmediate).immediate(0x0a0b_0c0d), eager(5), &[7; 600]);
    test.xrq.poll().unwrap();
    let last = test.xrq.poll().unwrap();
    assert_eq!((last.opcode, last.immediate), (CqeOpcode::ResponderSendImmediate, 0x0a0b_0c0d));
}

/// The header is in the second half of the entry, so the data is in the first one, if there is one.
#[test]
fn matched_data_fits_large_completions() {
    for (entry, scatter, length, held) in [
        (CqeSize::Bytes128, 2, 64, true),
        (CqeSize::Bytes128, 2, 20, true),
        (CqeSize::Bytes128, 2, 65, false),
        (CqeSize::Bytes128, 1, 20, false),
        (CqeSize::Bytes64, 2, 20, false),
    ] {
        let mut test = Tags::open(Faults::default(), Mtu::Bytes256, entry, scatter);
        test.append(1, 5, 4096);
        test.xrq.drain();
        let data = pattern(length, 4);
        test.send(eager(5), &data);
        let matched = test.xrq.poll().unwrap();
        assert_eq!((matched.kind, matched.header), (Some(TagEvent::ConsumedMessage), eager(5)));
        assert_eq!(matched.length as usize, length);
        let format = CqeFormat::from_op_own(*test.xrq.cq.last.last().unwrap());
        assert_eq!(format, if held { CqeFormat::Inline64 } else { CqeFormat::Plain });
        if held {
            assert_eq!(test.xrq.cq.last[..length], data);
        } else {
            assert_eq!(test.matched.memory.read(0, length), data);
        }
    }
}

#[test]
fn messages_without_a_match_keep_their_header() {
    let mut test = Tags::new();
    test.append(1, 5, 4096);
    test.xrq.drain();
    for (opcode, event) in [
        (TagOpcode::Eager, TagEvent::Unexpected),
        (TagOpcode::NoTag, TagEvent::NoTag),
        (TagOpcode::Finished, TagEvent::NoTag),
    ] {
        let header = TagHeader { opcode: opcode as u8, ..eager(9) };
        test.send(header, b"data");
        let arrived = test.xrq.poll().unwrap();
        assert_eq!((arrived.kind, arrived.length), (Some(event), 20));
        assert_eq!(arrived.header, TagHeader::default(), "no tag in the completion");
        let wanted = [header.as_bytes(), &b"data"[..]].concat();
        assert_eq!(test.plain.memory.read(0, 20), wanted);
    }
    // Too short for a header.
    test.source.memory.write(0, &[TagOpcode::Eager as u8; 4]);
    test.pair.qa.post(&Wqe::new(Opcode::Send).data(test.source.address(), 4, test.source.key));
    test.pair.settle();
    assert_eq!(test.xrq.drain(), [(TagEvent::NoTag, 0)]);
}

#[test]
fn solicited_messages_and_cancelled_matches_have_solicited_completions() {
    use TagEvent::{Cancelled, Consumed, ConsumedMessage, Expected};
    for solicited in [false, true] {
        let flags = if solicited { ControlFlags::SOLICITED } else { ControlFlags::empty() };
        let wqe = Wqe::new(Opcode::Send).flags(flags);
        let send = |header, data: &dyn Fn(&Tags) -> Vec<u8>| {
            let mut test = Tags::new();
            let reply = test.pair.a.region(64);
            test.pair.qa.post_receive(&[(reply.address(), 64, reply.key)]);
            test.append(1, 5, 64);
            test.xrq.drain();
            let data = data(&test);
            test.post(&wqe, header, &data);
            let events = std::iter::from_fn(|| test.xrq.poll());
            events.map(|event| (event.kind.unwrap(), event.solicited)).collect::<Vec<_>>()
        };
        let read = send(rendezvous(5), &|test| test.remote(8).as_bytes().to_vec());
        assert_eq!(read, [(Consumed, solicited), (Expected, solicited)]);
        assert_eq!(send(eager(5), &|_| vec![0; 8]), [(ConsumedMessage, solicited)]);
        assert_eq!(send(eager(5), &|_| vec![0; 65]), [(Cancelled, true)]);
    }
}

/// Messages of every kind over a wire that drops, duplicates and reorders: each entry completes
/// once, with its own data.
#[test]
fn a_bad_wire_changes_nothing() {
    let mut random = fastrand::Rng::with_seed(7);
    for seed in 0..10 {
        let faults = Faults::default().drop(0.05).duplicate(0.05).reorder(0.05).seed(seed);
        let mut test = Tags::with(faults, Mtu::Bytes256);
        let reply = test.pair.a.region(64);
        let mut unexpected = 0;
        for round in 0..40_u64 {
            let (index, next) = ((round % 8) as u16, ((round + 1) % 8) as u16);
            test.change_count(unexpected);
            test.append(next, round, 4096);
            let length = random.usize(0..3000);
            let data = pattern(length, round);
            let offloaded = random.bool();
            if offloaded {
                test.pair.qa.post_receive(&[(reply.address(), 64, reply.key)]);
                test.source.memory.write(4096, &data);
                let header = test.remote(length as u32);
                test.send(rendezvous(round), header.as_bytes());
            } else {
                test.send(eager(round), &data);
            }
            let events = test.xrq.drain();
            assert_eq!(events[0], (TagEvent::Append, next));
            let several = offloaded || length + HEADER > 256;
            let wanted = if several {
                vec![(TagEvent::Consumed, index), (TagEvent::Expected, index)]
            } else {
                vec![(TagEvent::ConsumedMessage, index)]
            };
            assert_eq!(events[1..], wanted, "seed {seed} round {round} length {length}");
            assert_eq!(test.matched.memory.read(0, length), data);
            if round % 10 == 9 {
                test.xrq.post(&[(test.plain.address(), 4096, test.plain.key)]);
                test.send(eager(1 << 40), b"nobody");
                assert_eq!(test.xrq.drain(), [(TagEvent::Unexpected, 0)]);
                unexpected += 1;
            }
            assert_eq!(test.pair.qa.receive_cq.drain().len(), usize::from(offloaded));
        }
    }
}
