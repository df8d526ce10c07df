//! Tag matching: lists, eager and rendezvous messages, unexpected messages, and errors.

use crate::support::tags::{Xrq, append, change};
use crate::support::{
    Completion, Connection, Cq, LOG_CQ, Node, Pair, Qp, Region, Wqe, command, pattern,
};
use barewire_hca::{Config, Fabric, Faults, Finding, Mode, Strict, WireKind};
use barewire_layouts::command::cq::CqeSize;
use barewire_layouts::command::qp::{Mtu, QpState, Qpc, QueryQpIn, QueryQpOut};
use barewire_layouts::command::rmp::{Wq, WqType};
use barewire_layouts::command::srq::{ArmRqIn, ArmRqKind};
use barewire_layouts::command::xrq::{
    ArmXrqIn, CreateXrqIn, QueryXrqIn, QueryXrqOut, TagMatchingContext, XrqOffload, XrqTopology,
    Xrqc,
};
use barewire_layouts::command::{CommandStatus, answer};
use barewire_layouts::cqe::{CqeFormat, CqeOpcode, Syndrome, TagEvent, TagListResult};
use barewire_layouts::tag::{RendezvousHeader, TagHeader, TagOpcode};
use barewire_layouts::wqe::{ControlFlags, INVALID_LKEY, Opcode, TagFlags, TagSegment};
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
        let qa = Qp::new(&a);
        let connection = Connection { mtu, ..Connection::default() };
        let (source, matched, plain) = (a.region(8192), b.region(8192), b.region(8192));
        for _ in 0..4 {
            xrq.post(&[(plain.address(), PLAIN / 2, plain.key); 2]);
        }
        Self { pair: Pair::of(a, b, (qa, qb), &connection), xrq, matched, plain, source }
    }

    /// Appends an entry with a buffer of `length` bytes.
    fn append(&mut self, next: u16, tag: u64, length: usize) {
        self.pair.qb.post(&append(next, (tag, ALL), &self.matched, length));
        self.pair.settle();
    }

    fn change(&mut self, segment: &TagSegment) {
        self.pair.qb.post(&change(segment));
        self.pair.settle();
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
fn entries_wait_until_software_has_seen_the_unexpected_messages() {
    let mut test = Tags::new();
    test.send(eager(5), b"first");
    assert_eq!(test.xrq.drain(), [(TagEvent::Unexpected, 0)]);
    test.append(1, 5, 4096);
    let appended = test.xrq.poll().unwrap();
    assert_eq!(appended.result.hardware_count.get(), 1);
    assert_eq!(appended.result.success.get(), TagListResult::SUCCESS);
    test.send(eager(5), b"second");
    assert_eq!(test.xrq.drain(), [(TagEvent::Unexpected, 0)]);
    test.change(&TagSegment::nop(TagFlags::COMPLETION).with_software_count(2));
    assert_eq!(test.xrq.drain(), [(TagEvent::Nop, 0)]);
    test.send(eager(5), b"third");
    assert_eq!(test.xrq.drain(), [(TagEvent::ConsumedMessage, 0)]);
    assert_eq!(test.matched.memory.read(0, 5), b"third");
}

#[test]
fn a_removed_entry_matches_nothing() {
    let mut test = Tags::new();
    test.append(1, 5, 4096);
    test.xrq.drain();
    test.change(&TagSegment::remove(0, TagFlags::COMPLETION));
    let removed = test.xrq.poll().unwrap();
    assert_eq!(removed.kind, Some(TagEvent::Remove));
    assert_eq!(removed.result.success.get(), TagListResult::SUCCESS);
    test.send(eager(5), b"late");
    assert_eq!(test.xrq.drain(), [(TagEvent::Unexpected, 0)]);
    // It is not in the list any more, and others never were.
    for index in [0, 1, u16::MAX] {
        test.change(&TagSegment::remove(index, TagFlags::COMPLETION));
        assert_eq!(test.xrq.poll().unwrap().result.success.get(), 0);
    }
}

#[test]
fn the_device_reads_the_data_of_a_rendezvous() {
    for (length, mtu) in [(0, 256), (3000, 256), (3000, 4096), (256 * 9, 256)] {
        let mtu = if mtu == 256 { Mtu::Bytes256 } else { Mtu::Bytes4096 };
        let mut test = Tags::with(Faults::default(), mtu);
        test.append(1, 5, 4096);
        test.xrq.drain();
        let data = pattern(length, 2);
        test.source.memory.write(4096, &data);
        let reply = test.pair.a.region(64);
        test.pair.qa.post_receive(&[(reply.address(), 64, reply.key)]);
        let header = test.remote(length as u32);
        test.send(rendezvous(5), &[header.as_bytes(), b"of the program"].concat());
        let first = test.xrq.poll().unwrap();
        assert_eq!((first.kind, first.header), (Some(TagEvent::Consumed), rendezvous(5)));
        let last = test.xrq.poll().unwrap();
        assert_eq!((last.kind, last.header), (Some(TagEvent::Expected), TagHeader::default()));
        assert_eq!((last.entry, last.length as usize), (0, length));
        assert_eq!(test.matched.memory.read(0, length), data);
        let finished = test.pair.qa.receive_cq.poll().unwrap();
        assert_eq!((finished.opcode, finished.length), (CqeOpcode::ResponderSend, 16));
        let end = TagHeader { opcode: TagOpcode::Finished as u8, ..rendezvous(5) };
        assert_eq!(reply.memory.read(0, 16), end.as_bytes());
        // The requests of the device have no completion of their own.
        assert_eq!((test.pair.qb.send_cq.poll(), test.xrq.poll()), (None, None));
    }
}

#[test]
fn a_rendezvous_without_a_match_is_left_to_software() {
    let mut test = Tags::new();
    let header = test.remote(100);
    test.send(rendezvous(5), header.as_bytes());
    assert_eq!(test.xrq.drain(), [(TagEvent::Unexpected, 0)]);
    assert_eq!(test.plain.memory.read(16, 16), header.as_bytes());
    // Too long for the device, and too short for its header.
    test.change(&TagSegment::nop(TagFlags::empty()).with_software_count(1));
    test.append(1, 5, 4096);
    test.xrq.drain();
    test.send(rendezvous(5), &[header.as_bytes(), &[0; 33]].concat());
    test.send(rendezvous(5), &[0; 15]);
    assert_eq!(test.xrq.drain(), [(TagEvent::Unexpected, 0), (TagEvent::Unexpected, 0)]);
}

#[test]
fn a_rendezvous_that_does_not_fit_is_matched_and_left_to_software() {
    let mut test = Tags::new();
    test.append(1, 5, 64);
    test.xrq.drain();
    let header = test.remote(65);
    test.send(rendezvous(5), header.as_bytes());
    let matched = test.xrq.poll().unwrap();
    assert_eq!(matched.kind, Some(TagEvent::ConsumedMessageSoftware));
    assert_eq!((matched.header, matched.length), (rendezvous(5), 16));
    assert_eq!(test.matched.memory.read(0, 16), header.as_bytes());
    assert_eq!(test.xrq.poll(), None);
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

/// The sender accepts no end of a rendezvous, so the reads of the others wait.
#[test]
fn software_reads_what_is_too_much_for_the_device() {
    const MESSAGES: u16 = 100;
    let mut test = Tags::new();
    for next in 1..=MESSAGES {
        test.append(next, 5, 64);
    }
    test.xrq.drain();
    let header = test.remote(8);
    test.source.memory.write(0, &[rendezvous(5).as_bytes(), header.as_bytes()].concat());
    let message = Wqe::new(Opcode::Send).data(test.source.address(), 32, test.source.key);
    for _ in 0..MESSAGES {
        test.pair.qa.post(&message);
        test.pair.step(2);
    }
    let reply = test.pair.a.region(64);
    test.pair.qa.post_receive(&[(reply.address(), 64, reply.key)]);
    let (mut consumed, mut left, mut last) = (Vec::new(), Vec::new(), Vec::new());
    let mut finished = 0;
    for _ in 0..100_000 {
        test.pair.step(1);
        for _ in test.pair.qa.receive_cq.drain() {
            test.pair.qa.post_receive(&[(reply.address(), 64, reply.key)]);
            finished += 1;
        }
        for (event, entry) in test.xrq.drain() {
            match event {
                TagEvent::Consumed => consumed.push(entry),
                TagEvent::ConsumedMessageSoftware => left.push(entry),
                TagEvent::Expected => last.push(entry),
                other => panic!("{other:?}"),
            }
        }
        if finished == consumed.len() && finished + left.len() == usize::from(MESSAGES) {
            break;
        }
    }
    let read = consumed.len() as u16;
    assert!((32..MESSAGES).contains(&read), "{read} rendezvous");
    assert!(consumed.into_iter().eq(0..read));
    assert!(left.into_iter().eq(read..MESSAGES));
    assert!(last.into_iter().eq(0..read));
    assert_eq!(finished, usize::from(read));
}

#[test]
fn a_match_that_fails_is_cancelled_once() {
    // Too long, in one packet and in several; a key that does not exist.
    for (buffer, message, key) in [(10, 11, true), (300, 301, true), (4096, 4, false)] {
        let mut test = Tags::new();
        if !key {
            test.matched.key = 0x00ab_cd00;
        }
        test.append(1, 5, buffer);
        test.xrq.drain();
        test.post(&Wqe::new(Opcode::Send), eager(5), &pattern(message, 3));
        let failed = test.pair.qa.send_cq.poll().unwrap().syndrome;
        let wanted = if key { Syndrome::RemoteInvalidRequest } else { Syndrome::RemoteOperation };
        assert_eq!(failed, Some(wanted));
        let events = test.xrq.drain();
        assert_eq!(events.last(), Some(&(TagEvent::Cancelled, 0)));
        assert_eq!(events.len(), if message > 240 { 2 } else { 1 });
        assert_eq!(test.receiver_state(), QpState::Err);
    }
}

/// Software gets no completion of such a message, so the entries of another queue pair must not wait
/// for one.
#[test]
fn an_unexpected_message_that_fails_is_not_counted() {
    type End = fn(&mut Qp);
    let cases: [(usize, End, Option<Syndrome>); 4] = [
        (PLAIN + 1, |_| (), Some(Syndrome::LocalLength)),
        (PLAIN, |qp| qp.to_error(), Some(Syndrome::WorkRequestFlushed)),
        (PLAIN, Qp::reset, None),
        (PLAIN, Qp::destroy, None),
    ];
    for (length, end, wanted) in cases {
        let mut test = Tags::new();
        let (mut sender, mut receiver) = (Qp::new(&test.pair.a), test.xrq.queue_pair());
        let connection = Connection::default();
        sender.connect(&test.pair.b, receiver.number, &connection, (1, 2));
        receiver.connect(&test.pair.a, sender.number, &connection, (2, 1));

        test.source.memory.write(0, eager(6).as_bytes());
        let (address, key) = (test.source.address(), test.source.key);
        let (half, rest) = (PLAIN / 2, length - PLAIN);
        let mut message = Wqe::new(Opcode::Send).data(address, half, key).data(address, half, key);
        if rest > 0 {
            message = message.data(address, rest, key);
        }
        test.pair.qa.post(&message);
        test.pair.step(1);
        receiver.post(&append(1, (5, ALL), &test.matched, 64));
        test.pair.b.device.step();
        let appended = test.xrq.poll().unwrap();
        assert_eq!(
            (appended.kind, appended.result.hardware_count.get()),
            (Some(TagEvent::Append), 1)
        );

        end(&mut test.pair.qb);
        test.pair.settle();
        let failed = test.xrq.cq.drain();
        assert_eq!(
            failed.iter().filter_map(|cqe| cqe.syndrome).collect::<Vec<_>>(),
            Vec::from_iter(wanted)
        );
        assert_eq!(failed.len(), usize::from(wanted.is_some()));

        test.source.memory.write(0, eager(5).as_bytes());
        sender.post(&Wqe::new(Opcode::Send).data(address, HEADER + 4, key));
        test.pair.settle();
        assert_eq!(test.xrq.drain(), [(TagEvent::ConsumedMessage, 0)]);
    }
}

#[test]
fn a_read_that_is_refused_cancels_the_match() {
    let mut test = Tags::new();
    test.append(1, 5, 4096);
    test.append(2, 6, 4096);
    test.xrq.drain();
    let header = RendezvousHeader { rkey: 0x00ab_cd00.into(), ..test.remote(100) };
    test.post(&Wqe::new(Opcode::Send), rendezvous(5), header.as_bytes());
    assert_eq!(test.xrq.drain(), [(TagEvent::Consumed, 0), (TagEvent::Cancelled, 0)]);
    assert_eq!(test.receiver_state(), QpState::Err);
    assert_eq!(test.pair.qb.send_cq.poll(), None);
}

#[test]
fn operations_are_executed_in_order() {
    // Behind more packets than may be unacknowledged, and behind a fence.
    let cases =
        [(Opcode::RdmaWrite, 2, ControlFlags::empty()), (Opcode::RdmaRead, 1, ControlFlags::FENCE)];
    for (opcode, count, fence) in cases {
        let mut test = Tags::new();
        let refused = Wqe::new(opcode).remote(test.source.address(), 0x00ab_cd00).data(
            test.matched.address(),
            8192,
            test.matched.key,
        );
        for _ in 0..count {
            test.pair.qb.post(&refused);
        }
        test.pair.qb.post(&append(1, (5, ALL), &test.matched, 64).flags(fence));
        test.pair.settle();
        let failed = test.pair.qb.send_cq.drain();
        let mut wanted = vec![Some(Syndrome::WorkRequestFlushed); count + 1];
        wanted[0] = Some(Syndrome::RemoteAccess);
        assert_eq!(failed.iter().map(|cqe| cqe.syndrome).collect::<Vec<_>>(), wanted);
        assert_eq!(test.xrq.poll(), None);
    }
}

#[test]
fn invalid_operations_are_reported() {
    let append = |next| {
        change(&TagSegment::append(next, 1, ALL, TagFlags::empty()))
            .raw(barewire_layouts::wqe::DataSegment::END.as_bytes())
    };
    let short = change(&TagSegment::append(1, 1, ALL, TagFlags::empty()));
    let unknown = change(&TagSegment { operation: 0x30, ..TagSegment::default() });
    let beyond = append(1 << LOG_ENTRIES);
    for wqe in [short, unknown, beyond] {
        let mut test = Tags::new();
        test.pair.qb.post(&wqe);
        test.pair.settle();
        let failed = test.pair.qb.send_cq.poll().expect("an error");
        assert_eq!(failed.syndrome, Some(Syndrome::LocalQpOperation));
        assert_eq!(test.pair.b.device.take_reports().len(), 1);
    }
    let mut test = Tags::new();
    test.pair.qb.post(&append(0));
    test.pair.qb.post(&append(0));
    test.pair.settle();
    let reports = test.pair.b.device.take_reports();
    assert_eq!(reports[0].finding, Finding::TagEntryTaken { entry: 0 });
    // The sender's queue pair has no list.
    test.pair.qa.post(&change(&TagSegment::nop(TagFlags::COMPLETION)));
    test.pair.settle();
    let reports = test.pair.a.device.take_reports();
    assert_eq!(reports[0].finding, Finding::NoTagList);
    assert_eq!(INVALID_LKEY, barewire_layouts::wqe::DataSegment::END.lkey.get());
}

#[test]
fn a_list_is_queried_and_armed() {
    let mut test = Tags::new();
    test.append(3, 5, 4096);
    test.send(eager(7), b"unexpected");
    let device = &test.pair.b.device;
    let output =
        command::<QueryXrqIn>(device, |query| _ = query.set(QueryXrqIn::XRQN, test.xrq.number))
            .unwrap();
    let context = answer::<QueryXrqIn>(&output).unwrap().nested(QueryXrqOut::XRQ_CONTEXT);
    assert_eq!(context.get(Xrqc::TOPOLOGY), Ok(XrqTopology::TagMatching));
    assert_eq!(context.get(Xrqc::OFFLOAD), Ok(XrqOffload::Rendezvous));
    assert_eq!(context.get(Xrqc::CQN), test.xrq.cq.number);
    let list = context.nested(Xrqc::TAG_MATCHING_TOPOLOGY_CONTEXT);
    assert_eq!(list.get(TagMatchingContext::LOG_MATCHING_LIST_SZ), LOG_ENTRIES);
    assert_eq!(list.get(TagMatchingContext::APPEND_NEXT_INDEX), 3);
    assert_eq!(list.get(TagMatchingContext::SW_PHASE_CNT), 0);
    assert_eq!(list.get(TagMatchingContext::HW_PHASE_CNT), 1);
    assert_eq!(context.nested(Xrqc::WQ).get(Wq::HW_COUNTER), 1);
    command::<ArmXrqIn>(device, |arm| _ = arm.set(ArmXrqIn::XRQN, test.xrq.number)).unwrap();
    command::<ArmRqIn>(device, |arm| {
        arm.set(ArmRqIn::OP_MOD, ArmRqKind::Xrq)
            .set(ArmRqIn::SRQ_NUMBER, test.xrq.number)
            .set(ArmRqIn::LWM, 1);
    })
    .unwrap();
}

#[test]
fn invalid_contexts_are_refused() {
    let node = Node::stepped(&Fabric::new(), Faults::default());
    let cq = Cq::new(&node, LOG_CQ);
    let create = |change: &dyn Fn(&mut barewire_layouts::prm::ViewMut<'_, Xrqc>)| {
        let made = command::<CreateXrqIn>(&node.device, |create| {
            let mut context = create.nested(CreateXrqIn::XRQ_CONTEXT);
            context.set(Xrqc::TOPOLOGY, XrqTopology::TagMatching).set(Xrqc::CQN, cq.number);
            change(&mut context);
        });
        made.unwrap_err().status
    };
    assert_eq!(
        create(&|context| _ = context.set(Xrqc::TOPOLOGY, XrqTopology::None)),
        Ok(CommandStatus::BadParameter)
    );
    let oversize = |context: &mut barewire_layouts::prm::ViewMut<'_, Xrqc>| {
        context
            .nested(Xrqc::TAG_MATCHING_TOPOLOGY_CONTEXT)
            .set(TagMatchingContext::LOG_MATCHING_LIST_SZ, 15);
    };
    assert_eq!(create(&oversize), Ok(CommandStatus::LimitExceeded));
    let striding = |context: &mut barewire_layouts::prm::ViewMut<'_, Xrqc>| {
        context.nested(Xrqc::WQ).set(Wq::WQ_TYPE, WqType::CyclicStriding);
    };
    assert_eq!(create(&striding), Ok(CommandStatus::BadParameter));
    assert_eq!(
        create(&|context| _ = context.set(Xrqc::CQN, 0x12_3456)),
        Ok(CommandStatus::BadResource)
    );
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

impl Tags {
    fn change_count(&mut self, count: u16) {
        self.change(&TagSegment::nop(TagFlags::empty()).with_software_count(count));
    }
}
