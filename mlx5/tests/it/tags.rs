//! Tag matching in the device: on the software HCA and, if `BAREWIRE_TEST_DEVICE` names one, on a
//! device of the machine that was set up by DEVX.

use crate::machine;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use barewire_mlx5::channel::soft::Soft;
use barewire_mlx5::layouts::tag::{RendezvousHeader, TagHeader, TagOpcode};
use barewire_mlx5::queue::tags::TagReport;
use barewire_mlx5::request::{Inline, Segments, SendRendezvous, SendTagged};
use barewire_mlx5::tags::{RendezvousPair, TagConfig, TagQueue};
use barewire_mlx5::{
    Access, Buffer, CompletionKind, CompletionQueue, Context, ControlFlags, DataSegment, Error,
    Polled, PostError, ProtectionDomain, RcConfig, RcPath, RcQueuePair, Uar, hca,
};

const ALL: u64 = u64::MAX;
const DONE: ControlFlags = ControlFlags::COMPLETION;
/// Tags of the list.
const TAGS: u32 = 15;
/// Bytes of the buffer of an entry, and of a receive WQE.
const SLOT: usize = 8192;
/// Receive WQEs: more than the 33 without which devices match nothing.
const PLAIN: u32 = 64;

fn context() -> Context {
    machine::context().unwrap_or_else(|| {
        let config = hca::Config::default().strict(hca::Strict::Panic);
        Context::open(Soft::new(hca::Device::open(config).unwrap())).unwrap()
    })
}

/// A queue with tag matching, and a queue pair that is connected to a sender.
struct Node {
    events: CompletionQueue,
    sends: CompletionQueue,
    tags: TagQueue,
    sender: RcQueuePair,
    _receiver: RendezvousPair,
    /// Buffers of entries, by index.
    matched: Buffer,
    /// Buffers of receive WQEs, by index.
    plain: Buffer,
    source: Buffer,
    /// Where ends of rendezvous arrive.
    replies: Buffer,
}

impl Node {
    /// `None` on a device that was set up by verbs objects.
    fn new() -> Option<Self> {
        let context = context();
        let domain = ProtectionDomain::allocate(&context).unwrap();
        let uar = Uar::allocate(&context).unwrap();
        let events = CompletionQueue::create(&context, &uar, 1024).unwrap();
        let sends = CompletionQueue::create(&context, &uar, 1024).unwrap();
        let config = TagConfig::default().tags(TAGS).entries(PLAIN).user_index(0x123);
        let mut tags = match TagQueue::create(&domain, &uar, &events, &config) {
            Ok(tags) => tags,
            Err(Error::Unsupported { what, .. }) => {
                assert!(what.contains("tag matching"), "{what}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let config = RcConfig::default();
        let mut receiver =
            RendezvousPair::create_for_rendezvous(&domain, &uar, &events, &tags.receive, &config)
                .unwrap();
        let mut sender = RcQueuePair::create(&domain, &uar, &sends, &sends, &config).unwrap();
        receiver.connect(&RcPath::to(&sender.address())).unwrap();
        sender.connect(&RcPath::to(&receiver.address())).unwrap();
        let buffer = |length| Buffer::allocate(&domain, length, Access::all()).unwrap();
        let plain = buffer(PLAIN as usize * SLOT);
        let slot = |wqe| plain.region().segment(usize::from(wqe) * SLOT, SLOT).unwrap();
        assert!(tags.receive.extend(PLAIN, slot));
        tags.receive.publish();
        let mut node = Self {
            events,
            sends,
            tags,
            sender,
            _receiver: receiver,
            matched: buffer((TAGS as usize + 1) * SLOT),
            plain,
            source: buffer(2 * SLOT),
            replies: buffer(64),
        };
        node.expect_reply();
        Some(node)
    }

    fn expect_reply(&mut self) {
        assert!(self.sender.receive.push(self.replies.region().segment(0, 64).unwrap()));
        self.sender.receive.publish();
    }

    fn report(&mut self) -> TagReport {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            if let Some(polled) = self.events.poll() {
                assert_eq!(polled.user_index(), 0x123);
                return self.tags.list.completed(polled).expect("a report");
            }
            assert!(Instant::now() < deadline, "no completion");
            std::thread::yield_now();
        }
    }

    /// Appends an entry whose buffer is that of its index.
    fn append(&mut self, tag: u64, mask: u64) -> u16 {
        let entry = self.post_append(tag, mask, SLOT);
        assert_eq!(self.report(), TagReport::Appended(entry));
        entry
    }

    fn post_append(&mut self, tag: u64, mask: u64, length: usize) -> u16 {
        // The buffer of an entry has to be known before its index.
        let next = self.tags.list.next();
        let buffer = self.matched.region().segment(usize::from(next) * SLOT, length).unwrap();
        let entry = self.tags.list.append(tag, mask, buffer).unwrap();
        assert_eq!(entry, next);
        entry
    }

    /// Waits for the completion of the sender's last WQE, or for the end of a rendezvous.
    fn wait(&mut self) -> CompletionKind {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            if let Some(completion) = self.sends.poll().map(Polled::completion) {
                match completion.kind {
                    CompletionKind::Send => self.sender.send.reap(completion.wqe_counter),
                    CompletionKind::Receive => self.sender.receive.reap(),
                    other => panic!("{other:?}"),
                }
                return completion.kind;
            }
            assert!(Instant::now() < deadline, "no completion");
            std::thread::yield_now();
        }
    }

    /// Sends `data` with a tag: inline if it fits.
    fn send(&mut self, header: &TagHeader, data: &[u8]) {
        let posted = self.sender.send.post(SendTagged { header, payload: Inline(data) }, DONE);
        if posted == Err(PostError::TooLong) {
            self.source.write(0, data).unwrap();
            let segment = self.source.region().segment(0, data.len()).unwrap();
            self.sender
                .send
                .post(SendTagged { header, payload: Segments(&[segment]) }, DONE)
                .unwrap();
        } else {
            posted.unwrap();
        }
        assert_eq!(self.wait(), CompletionKind::Send);
    }

    /// Announces `data`, which the peer reads from the sender's memory.
    fn announce(&mut self, tag: u64, data: &[u8]) {
        self.source.write(0, data).unwrap();
        let remote = self.source.region().remote(0);
        let data = RendezvousHeader {
            address: remote.address,
            rkey: remote.rkey,
            length: (data.len() as u32).into(),
        };
        let header = TagHeader::new(TagOpcode::Rendezvous, 9, tag);
        self.sender
            .send
            .post(SendRendezvous { header: &header, data: &data, program: b"program" }, DONE)
            .unwrap();
    }

    /// The report of a message that matches, with its header; without data of several packets, one.
    fn arrived(&mut self) -> (u16, TagHeader, u32) {
        match self.report() {
            TagReport::Matched { entry, header } => match self.report() {
                TagReport::Arrived { entry: same, header: None, length, .. } if same == entry => {
                    (entry, header, length)
                }
                other => panic!("{other:?}"),
            },
            TagReport::Arrived { entry, header: Some(header), length, .. } => {
                (entry, header, length)
            }
            other => panic!("{other:?}"),
        }
    }

    /// The bytes of a message without a match, whose WQE is posted again.
    fn unexpected(&mut self) -> Vec<u8> {
        let TagReport::Unexpected(plain) = self.report() else { panic!("a match") };
        self.take(plain.wqe, plain.length)
    }

    fn take(&mut self, wqe: u16, length: u32) -> Vec<u8> {
        let data = bytes(&self.plain, usize::from(wqe) * SLOT, length as usize);
        assert!(self.tags.receive.recycle(wqe.into()), "the device owned it");
        self.tags.receive.publish();
        data
    }

    fn data(&self, entry: u16, length: u32) -> Vec<u8> {
        bytes(&self.matched, usize::from(entry) * SLOT, length as usize)
    }
}

fn bytes(buffer: &Buffer, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    buffer.read(offset, &mut bytes).unwrap();
    bytes
}

fn eager(tag: u64) -> TagHeader {
    TagHeader::new(TagOpcode::Eager, 0x0102_0304, tag)
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length).map(|at| (at as u64 * 7 + seed) as u8).collect()
}

/// Messages of all lengths, more than the list and its queue have entries.
#[test]
fn messages_arrive_in_the_buffers_that_they_match() {
    let Some(mut node) = Node::new() else { return };
    for round in 0..200_u64 {
        let length = [0, 1, 8, 44, 220, 221, 1000, 4096, 4200][round as usize % 9];
        let other = node.append(1 << 40 | round, ALL);
        let entry = node.append(round & 0xff, 0xff);
        assert_ne!(entry, other);
        let data = pattern(length, round);
        let header = eager(0xabc00 | round & 0xff);
        node.send(&header, &data);
        assert_eq!(node.arrived(), (entry, header, length as u32), "round {round}");
        assert_eq!(node.data(entry, length as u32), data, "round {round}");
        assert!(!node.tags.list.is_used(entry) && node.tags.list.is_used(other));
        assert!(node.tags.list.remove(other).unwrap());
        assert!(!node.tags.list.remove(other).unwrap(), "under way");
        assert_eq!(node.report(), TagReport::Removed(other));
        assert!(!node.tags.list.remove(other).unwrap(), "free");
    }
}

#[test]
fn the_device_reads_what_is_announced() {
    let Some(mut node) = Node::new() else { return };
    for length in [1, 300, SLOT] {
        let entry = node.append(5, ALL);
        let data = pattern(length, 3);
        node.announce(5, &data);
        let (matched, header, arrived) = node.arrived();
        assert_eq!((matched, arrived as usize), (entry, length));
        assert_eq!(header, TagHeader::new(TagOpcode::Rendezvous, 9, 5));
        assert_eq!(node.data(entry, arrived), data);
        // The send, and the end of the rendezvous, in either order.
        let kinds = [node.wait(), node.wait()];
        assert!(kinds.contains(&CompletionKind::Send) && kinds.contains(&CompletionKind::Receive));
        let finished = TagHeader::new(TagOpcode::Finished, 9, 5);
        assert_eq!(bytes(&node.replies, 0, 16), zerocopy::IntoBytes::as_bytes(&finished));
        node.expect_reply();
    }
}

/// The buffer is too short: what the message carries comes to software.
#[test]
fn data_that_does_not_fit_is_left_to_software() {
    let Some(mut node) = Node::new() else { return };
    let entry = node.post_append(5, ALL, 64);
    assert_eq!(node.report(), TagReport::Appended(entry));
    node.announce(5, &pattern(65, 0));
    let TagReport::Announced { entry: same, header, length } = node.report() else {
        panic!("read by the device")
    };
    assert_eq!((same, header.application.get(), length), (entry, 9, 16 + 7));
    assert_eq!(&node.data(entry, length)[16..], b"program");
    assert_eq!(node.wait(), CompletionKind::Send);
    assert!(!node.tags.list.is_used(entry));
}

/// An entry that is appended while an unexpected message is on its way does not match before the
/// program has processed that message.
#[test]
fn entries_wait_until_unexpected_messages_are_processed() {
    let Some(mut node) = Node::new() else { return };
    node.send(&eager(7), b"first");
    let entry = node.post_append(7, ALL, SLOT);
    // The message is still in the completion queue, so the device must not match the second.
    node.send(&eager(7), b"second");
    let first = node.unexpected();
    assert_eq!(first[16..], *b"first");
    assert_eq!(node.report(), TagReport::Appended(entry));
    assert!(node.tags.list.is_behind());
    assert_eq!(node.unexpected()[16..], *b"second");
    assert_eq!(node.tags.list.processed(), 2);
    node.tags.list.synchronize().unwrap();
    assert!(!node.tags.list.is_behind());
    assert_eq!(node.report(), TagReport::Synchronized);
    node.send(&eager(7), b"third");
    assert_eq!(node.arrived(), (entry, eager(7), 5));
}

#[test]
fn untagged_messages_need_no_entry() {
    let Some(mut node) = Node::new() else { return };
    node.append(0, 0);
    let header = TagHeader::new(TagOpcode::NoTag, 0, 0);
    node.send(&header, b"plain");
    let TagReport::Untagged(plain) = node.report() else { panic!("matched") };
    assert_eq!(node.take(plain.wqe, plain.length)[16..], *b"plain");
    assert_eq!(node.tags.list.processed(), 0);
}

#[test]
fn a_full_list_refuses_appends() {
    let Some(mut node) = Node::new() else { return };
    assert_eq!(node.tags.list.capacity(), TAGS);
    for tag in 0..TAGS {
        node.append(tag.into(), ALL);
    }
    let full = node.tags.list.append(99, ALL, DataSegment::new(0, 0, 0));
    assert_eq!(full, Err(PostError::QueueFull));
    node.send(&eager(3), b"");
    let (entry, ..) = node.arrived();
    // The reserved entry is filled, and the one that is free is reserved.
    assert_ne!(node.append(99, ALL), entry);
    assert!(matches!(node.tags.list.remove(entry), Ok(false)));
    assert!(matches!(node.tags.list.remove(TAGS as u16 + 1), Ok(false)));
}

/// More operations are posted at once than the software HCA fetches ahead. It has no other reason to
/// look at the queue pair again.
#[test]
fn many_operations_at_once_all_complete() {
    const COUNT: usize = 200;
    let config = hca::Config::default().mode(hca::Mode::Stepped).strict(hca::Strict::Panic);
    let device = hca::Device::open(config).unwrap();
    let context = Context::open(Soft::new(device.clone())).unwrap();
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let uar = Uar::allocate(&context).unwrap();
    let mut events = CompletionQueue::create(&context, &uar, 2048).unwrap();
    let config = TagConfig::default().tags(255).entries(PLAIN).user_index(0x123);
    let mut tags: TagQueue = TagQueue::create(&domain, &uar, &events, &config).unwrap();
    let buffer = Buffer::allocate(&domain, SLOT, Access::LOCAL_WRITE).unwrap();
    for tag in 0..COUNT {
        tags.list.append(tag as u64, ALL, buffer.region().segment(0, SLOT).unwrap()).unwrap();
    }
    while device.step() {}
    let mut appended = 0;
    while let Some(polled) = events.poll() {
        assert!(matches!(tags.list.completed(polled), Some(TagReport::Appended(_))));
        appended += 1;
    }
    assert_eq!(appended, COUNT);
}

#[test]
fn sizes_beyond_the_limits_are_refused() {
    let context = context();
    if context.capabilities().log_max_tags == 0 {
        return;
    }
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let uar = Uar::allocate(&context).unwrap();
    let small = CompletionQueue::create(&context, &uar, 64).unwrap();
    let most = (1 << context.capabilities().log_max_tags) - 1;
    for config in [
        TagConfig::default().tags(0),
        TagConfig::default().tags(most + 1),
        TagConfig::default().user_index(1 << 24),
        // The completion queue; the second has 64 receive WQEs.
        TagConfig::default(),
        TagConfig::default().tags(1).entries(33),
        TagConfig::default().entries(u32::MAX),
    ] {
        let refused =
            TagQueue::<barewire_mlx5::doorbell::BlueFlame>::create(&domain, &uar, &small, &config);
        assert!(matches!(refused, Err(Error::Parameter { .. })), "{config:?}: {refused:?}");
    }
    // 32 receive WQEs, 4 messages that match, and 16 operations.
    let config = TagConfig::default().tags(1).entries(32);
    let _fits: TagQueue = TagQueue::create(&domain, &uar, &small, &config).unwrap();
}

/// Random appends, removals, sends and rendezvous against two lists.
#[test]
fn the_oldest_match_gets_each_message() {
    let Some(mut node) = Node::new() else { return };
    let mut random = fastrand::Rng::with_seed(21);
    // Entries in the order of their appends, with tag and mask.
    let mut waiting: Vec<(u16, u64, u64)> = Vec::new();
    let mut counts = HashMap::new();
    for round in 0..2000_u64 {
        let tag = random.u64(0..6);
        match random.u8(0..10) {
            0..4 if waiting.len() < TAGS as usize => {
                let mask = [ALL, ALL, 1, 0][random.usize(0..4)];
                waiting.push((node.append(tag, mask), tag & mask, mask));
            }
            4 if !waiting.is_empty() => {
                let (entry, ..) = waiting.remove(random.usize(0..waiting.len()));
                assert!(node.tags.list.remove(entry).unwrap());
                assert_eq!(node.report(), TagReport::Removed(entry));
            }
            5..10 => {
                let found = waiting.iter().position(|&(_, wanted, mask)| tag & mask == wanted);
                let data = pattern(random.usize(1..5000), round);
                let rendezvous = random.u8(0..4) == 0;
                let Some(at) = found else {
                    node.send(&eager(tag), &data);
                    assert_eq!(node.unexpected()[16..], data);
                    // Nothing in the list matches it, so it is processed.
                    node.tags.list.synchronize().unwrap();
                    assert_eq!(node.report(), TagReport::Synchronized);
                    *counts.entry("unexpected").or_insert(0) += 1;
                    continue;
                };
                let (entry, ..) = waiting.remove(at);
                if rendezvous {
                    node.announce(tag, &data);
                } else {
                    node.send(&eager(tag), &data);
                }
                let (matched, header, length) = node.arrived();
                assert_eq!((matched, header.tag.get()), (entry, tag), "round {round}");
                assert_eq!(node.data(entry, length), data, "round {round}");
                if rendezvous {
                    node.wait();
                    node.wait();
                    node.expect_reply();
                }
                *counts.entry(if rendezvous { "rendezvous" } else { "eager" }).or_insert(0) += 1;
            }
            _ => {}
        }
    }
    assert!(counts.len() == 3 && counts.values().all(|&count| count > 50), "{counts:?}");
}
