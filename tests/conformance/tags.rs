//! Tagged messages that the device matches.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use barewire::config::Choice;
use barewire::error::HandlerError;
use barewire::tag::UnreadAnnouncement;
use barewire::{
    Access, Cause, FlushMode, InterfaceConfig, Memory, OperationError, PostError, TagAnnouncement,
    TagEvent, TagReceive,
};

use crate::place::Place;
use crate::support::{Pair, Watch, collect, contents, expect_too_long, pattern, sizes};

const ALL: u64 = u64::MAX;
/// A tag that no message of a test has.
const UNUSED: u64 = 0xdead << 48;
const CANCELED: OperationError = OperationError::CANCELED;

/// An event, with what it borrows copied.
#[derive(Debug)]
enum Event {
    Matched { context: u64, tag: u64 },
    Received { context: u64, queue_pair: u32, tag: u64, immediate: u32, length: usize },
    Ended { context: u64, error: OperationError },
    NotRead { context: u64, announcement: UnreadAnnouncement, length: usize },
    Unexpected { queue_pair: u32, tag: u64, immediate: u32, data: Vec<u8> },
    Announced { announcement: TagAnnouncement, header: Vec<u8> },
}

impl From<TagEvent<'_>> for Event {
    fn from(event: TagEvent<'_>) -> Self {
        match event {
            TagEvent::Matched { context, tag } => Self::Matched { context, tag },
            TagEvent::Received { context, queue_pair, tag, immediate, length } => {
                Self::Received { context, queue_pair, tag, immediate, length }
            }
            TagEvent::Ended { context, error } => Self::Ended { context, error },
            TagEvent::NotRead { context, announcement, length } => {
                Self::NotRead { context, announcement, length }
            }
            TagEvent::Unexpected { queue_pair, tag, immediate, message } => {
                let data = message.data().to_vec();
                Self::Unexpected { queue_pair, tag, immediate, data }
            }
            TagEvent::Announced { announcement, header } => {
                Self::Announced { announcement, header: header.to_vec() }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A client that sends to a server that matches.
struct Tagged {
    pair: Pair,
    events: Rc<RefCell<Vec<Event>>>,
    buffer: Memory,
}

/// Bytes of the server's buffer.
const LENGTH: usize = 1 << 20;

impl Tagged {
    fn new(place: &Place, config: &InterfaceConfig) -> Self {
        let pair = place.pair_with(&config.clone().tag_matching(Choice::Yes));
        let events = Rc::<RefCell<Vec<Event>>>::default();
        let log = Rc::clone(&events);
        let handler = move |event: TagEvent<'_>| log.borrow_mut().push(event.into());
        pair.server.interface.set_tag_handler(handler).unwrap();
        let buffer = pair.server.domain.allocate(LENGTH, Access::LOCAL_WRITE).unwrap();
        Self { pair, events, buffer }
    }

    fn try_receive(
        &mut self,
        (tag, mask): (u64, u64),
        (at, length): (usize, usize),
        context: u64,
    ) -> Result<TagReceive, PostError> {
        let slice = self.buffer.slice(at, length).unwrap();
        self.pair.server.interface.tag_receive(tag, mask, &slice, context)
    }

    /// Appends a receive, and waits until the device has it.
    fn receive(&mut self, tag: (u64, u64), at: (usize, usize), context: u64) -> TagReceive {
        let receive = self.try_receive(tag, at, context).unwrap();
        self.settle();
        receive
    }

    /// Waits until the device has carried out all operations on the list so far, in order.
    fn settle(&mut self) {
        let marker = self.try_receive((UNUSED, ALL), (0, 0), UNUSED).unwrap();
        assert_eq!(self.pair.server.interface.tag_cancel(marker, false), Ok(true));
        let found = |event: &Event| matches!(event, Event::Ended { context: UNUSED, .. });
        let events = Rc::clone(&self.events);
        self.pair.until("the list", || events.borrow().iter().any(found));
        self.events.borrow_mut().retain(|event| !found(event));
    }

    /// The next event. One of a match is that of the receive that the next event ends.
    fn event(&mut self) -> Event {
        let mut matched = None;
        loop {
            let events = Rc::clone(&self.events);
            self.pair.until("an event", || !events.borrow().is_empty());
            let event = self.events.borrow_mut().remove(0);
            match (&event, matched) {
                (Event::Matched { context, tag }, None) => matched = Some((*context, *tag)),
                (Event::Received { context, tag, .. }, Some(wanted)) => {
                    assert_eq!((*context, *tag), wanted);
                    return event;
                }
                (Event::Ended { context, .. }, Some((wanted, _))) => {
                    assert_eq!(*context, wanted);
                    return event;
                }
                (_, None) => return event,
                (other, Some(wanted)) => panic!("{other:?} after a match of {wanted:?}"),
            }
        }
    }

    fn expect_received(&mut self, wanted: (u64, u64, u32, usize)) {
        match self.event() {
            Event::Received { context, queue_pair, tag, immediate, length } => {
                assert_eq!((context, tag, immediate, length), wanted, "{}", self.pair.name);
                assert_eq!(Some(queue_pair), self.pair.server.endpoint.tag_queue_pair());
            }
            other => panic!("{}: {other:?} instead of {wanted:?}", self.pair.name),
        }
    }

    fn expect_unexpected(&mut self, wanted: (u64, u32, &[u8])) {
        match self.event() {
            Event::Unexpected { queue_pair, tag, immediate, data } => {
                assert_eq!((tag, immediate, &data[..]), wanted, "{}", self.pair.name);
                assert_eq!(Some(queue_pair), self.pair.server.endpoint.tag_queue_pair());
            }
            other => panic!("{}: {other:?} instead of {wanted:?}", self.pair.name),
        }
    }

    fn short(&mut self, tag: u64, data: &[u8]) {
        self.pair.post("short", |endpoint| endpoint.tag_short(tag, data)).unwrap();
    }

    fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.buffer.read(at, &mut bytes).unwrap();
        bytes
    }
}

/// All ways of sending, up to their limits.
pub(crate) fn eager_messages_go_to_the_receives_that_they_match(place: &Place) {
    let mut test = Tagged::new(place, &InterfaceConfig::default());
    let limits = test.pair.client.interface.attributes().tag;
    let source = test.pair.client.domain.allocate(1 << 14, Access::LOCAL_WRITE).unwrap();
    let data = pattern(9, 1 << 14);
    source.write(0, &data).unwrap();
    let clear = vec![0xee; 1 << 14];
    for (kind, limit) in
        [(0, limits.max_short), (1, limits.max_bcopy), (2, limits.max_zcopy), (3, limits.max_zcopy)]
    {
        for length in sizes(limit) {
            test.buffer.write(0, &clear).unwrap();
            let tag = (kind << 32) + length as u64;
            test.receive((tag, ALL), (64, limit), tag + 1);
            let immediate = if kind == 0 { 0 } else { 0x0102_0304 };
            let watch = Watch::new(1);
            match kind {
                0 => test.short(tag, &data[..length]),
                1 => {
                    let pack = |to: &mut [u8]| {
                        to[..length].copy_from_slice(&data[..length]);
                        length
                    };
                    let sent = test.pair.post("bcopy", |e| e.tag_bcopy(tag, immediate, pack));
                    assert_eq!(sent, Ok(length));
                }
                _ => {
                    // In one slice and in several, some of them empty.
                    let cuts =
                        if kind == 2 { vec![0, length] } else { cuts(length, limits.max_iov) };
                    let slices: Vec<_> = cuts
                        .windows(2)
                        .map(|cut| source.slice(cut[0], cut[1] - cut[0]).unwrap())
                        .collect();
                    let completion = Some(&watch.completion);
                    let posted = test
                        .pair
                        .post("zcopy", |e| e.tag_zcopy(tag, immediate, &slices, completion));
                    watch.posted(posted);
                }
            }
            test.expect_received((tag + 1, tag, immediate, length));
            assert_eq!(test.bytes(64, length), data[..length], "{kind}: {length} bytes");
            assert_eq!(test.bytes(64 + length, 64), clear[..64], "{kind}: {length} bytes");
            if kind >= 2 {
                test.pair.until("the send", || watch.is_done());
                assert_eq!(watch.result(), Some(Ok(())));
            }
        }
    }
    let short = test.pair.client.endpoint.tag_short(1, &vec![0; limits.max_short + 1]);
    expect_too_long(&test.pair, "short", limits.max_short, short);
    let bcopy = test.pair.client.endpoint.tag_bcopy(1, 0, |_| limits.max_bcopy + 1).map(drop);
    expect_too_long(&test.pair, "bcopy", limits.max_bcopy, bcopy);
    let slice = [source.slice(0, limits.max_zcopy + 1).unwrap()];
    let zcopy = test.pair.client.endpoint.tag_zcopy(1, 0, &slice, None).map(drop);
    expect_too_long(&test.pair, "zcopy", limits.max_zcopy, zcopy);
    let slices = vec![source.slice(0, 1).unwrap(); limits.max_iov + 1];
    let refused = test.pair.client.endpoint.tag_zcopy(1, 0, &slices, None);
    assert_eq!(refused, Err(PostError::TooManySlices { limit: limits.max_iov as u32 }));
}

/// Where `length` bytes are cut into `count` slices.
fn cuts(length: usize, count: usize) -> Vec<usize> {
    (0..=count).map(|cut| length * cut / count).collect()
}

pub(crate) fn the_receive_that_was_posted_first_gets_the_message(place: &Place) {
    let mut test = Tagged::new(place, &InterfaceConfig::default());
    // A message with tag 0x12 matches all but the first.
    let receives = [(0x13, ALL), (0x10, 0xf0), (0x12, ALL), (0, 0), (2, 0xf)];
    for (context, tag) in (0..).zip(receives) {
        test.receive(tag, (context as usize * 64, 64), context);
    }
    for context in 1..5 {
        let data = [context as u8; 8];
        test.short(0x12, &data);
        test.expect_received((context, 0x12, 0, 8));
        assert_eq!(test.bytes(context as usize * 64, 8), data);
    }
    test.short(0x12, b"no more");
    test.expect_unexpected((0x12, 0, b"no more"));
    test.short(0x13, b"");
    test.expect_received((0, 0x13, 0, 0));
}

/// A message that matched nothing is the program's; a receive that is posted later gets the next.
pub(crate) fn messages_without_a_receive_come_to_the_program(place: &Place) {
    let mut test = Tagged::new(place, &InterfaceConfig::default());
    let longest = test.pair.client.interface.attributes().tag.max_bcopy;
    let mut kept = Vec::new();
    for (round, length) in [0, 1, 100, longest].into_iter().enumerate() {
        let data = pattern(round as u32, length);
        let pack = |to: &mut [u8]| {
            to[..length].copy_from_slice(&data);
            length
        };
        test.pair.post("bcopy", |e| e.tag_bcopy(5, 77, pack)).unwrap();
        test.expect_unexpected((5, 77, &data));
        test.receive((5, ALL), (0, 64), 100 + round as u64);
        test.short(5, b"expected");
        test.expect_received((100 + round as u64, 5, 0, 8));
        kept.push(data);
    }
    // The program may keep them, as other messages.
    let keeper = Rc::<RefCell<Vec<_>>>::default();
    let seen = Rc::clone(&keeper);
    let keep = move |event: TagEvent<'_>| {
        if let TagEvent::Unexpected { message, .. } = event {
            seen.borrow_mut().push(message.keep());
        }
    };
    test.pair.server.interface.set_tag_handler(keep).unwrap();
    for data in &kept {
        let pack = |to: &mut [u8]| {
            to[..data.len()].copy_from_slice(data);
            data.len()
        };
        test.pair.post("bcopy", |e| e.tag_bcopy(6, 0, pack)).unwrap();
    }
    test.pair.until("the messages", || keeper.borrow().len() == kept.len());
    for (kept, data) in keeper.borrow().iter().zip(&kept) {
        assert_eq!(kept[..], data[..]);
    }
}

pub(crate) fn a_receive_is_cancelled(place: &Place) {
    let mut test = Tagged::new(place, &InterfaceConfig::default());
    let interface = test.pair.server.interface.clone();
    let receive = test.receive((5, ALL), (0, 64), 1);
    assert_eq!(interface.tag_cancel(receive, false), Ok(true));
    assert_eq!(interface.tag_cancel(receive, false), Ok(false), "its removal is under way");
    match test.event() {
        Event::Ended { context: 1, error } => assert_eq!(error, CANCELED),
        other => panic!("{other:?}"),
    }
    assert_eq!(interface.tag_cancel(receive, false), Ok(false), "it has ended");
    test.short(5, b"late");
    test.expect_unexpected((5, 0, b"late"));

    // By force: without an event.
    let receive = test.receive((5, ALL), (0, 64), 2);
    assert_eq!(interface.tag_cancel(receive, true), Ok(true));
    test.settle();
    assert!(test.events.borrow().is_empty(), "{:?}", test.events);
    test.short(5, b"later");
    test.expect_unexpected((5, 0, b"later"));

    // One that has got its message.
    let receive = test.receive((5, ALL), (0, 64), 3);
    test.short(5, b"in time");
    test.expect_received((3, 5, 0, 7));
    assert_eq!(interface.tag_cancel(receive, false), Ok(false));
    assert_eq!(interface.tag_cancel(receive, true), Ok(false));
}

/// Each receive ends once, whether the message or the cancellation is first.
pub(crate) fn a_cancellation_that_is_too_late_ends_with_the_message(place: &Place) {
    let mut test = Tagged::new(place, &InterfaceConfig::default());
    let (mut received, mut cancelled) = (0, 0);
    for round in 0..300 {
        let receive = test.receive((5, ALL), (0, 64), round);
        test.short(5, b"race");
        for _ in 0..round % 7 * 40 {
            std::thread::yield_now();
        }
        // No progress since the send: the handler does not know of a match.
        assert_eq!(test.pair.server.interface.tag_cancel(receive, false), Ok(true));
        match test.event() {
            Event::Received { context, tag: 5, length: 4, .. } => {
                assert_eq!(context, round);
                received += 1;
            }
            Event::Ended { context, error } => {
                assert_eq!((context, error), (round, CANCELED));
                test.expect_unexpected((5, 0, b"race"));
                cancelled += 1;
            }
            Event::Unexpected { tag: 5, .. } => {
                let Event::Ended { context, error } = test.event() else { panic!("no end") };
                assert_eq!((context, error), (round, CANCELED));
                cancelled += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received + cancelled, 300);
    assert!(received > 0, "every cancellation was in time");
    test.settle();
    assert!(test.events.borrow().is_empty(), "{:?}", test.events);
}

/// The peer's device reads the data; where it cannot, the peer's program does.
pub(crate) fn data_is_read_when_a_receive_matches(place: &Place) {
    let mut test = Tagged::new(place, &InterfaceConfig::default());
    let limits = test.pair.client.interface.attributes().tag;
    let source = test.pair.client.domain.allocate(LENGTH, Access::REMOTE_READ).unwrap();
    let data = pattern(4, LENGTH);
    source.write(0, &data).unwrap();
    let header = pattern(8, limits.max_header);
    let announce = |test: &mut Tagged, tag: u64, length: usize, header: &[u8]| {
        let (slice, watch) = (source.slice(0, length).unwrap(), Watch::new(1));
        let completion = &watch.completion;
        test.pair.post("announce", |e| e.tag_rendezvous(tag, header, &slice, completion)).unwrap();
        watch
    };
    for length in [1, 300, 8192, LENGTH] {
        test.buffer.write(0, &vec![0; length]).unwrap();
        test.receive((5, ALL), (0, length), 1);
        let watch = announce(&mut test, 5, length, &header);
        match test.event() {
            Event::Received { context: 1, tag: 5, length: read, .. } => assert_eq!(read, length),
            other => panic!("{other:?}"),
        }
        assert!(test.bytes(0, length) == data[..length], "{length} bytes");
        test.pair.until("the end", || watch.is_done());
        assert_eq!((watch.result(), watch.calls()), (Some(Ok(())), 1));
    }
    // Without a receive, and with one that is too short.
    for short in [false, true] {
        if short {
            test.receive((6, ALL), (64, 100), 2);
        }
        let watch = announce(&mut test, 6, 1000, &header);
        let announcement = match test.event() {
            Event::Announced { announcement, header: found } if !short => {
                assert_eq!(found, header);
                announcement
            }
            Event::NotRead { context: 2, announcement, length } if short => {
                let bytes = test.bytes(64, length);
                assert_eq!(announcement.tag(), 6);
                let (announcement, found) = announcement.read(&bytes).unwrap();
                assert_eq!(found, header);
                announcement
            }
            other => panic!("{other:?}"),
        };
        assert_eq!((announcement.tag(), announcement.len()), (6, 1000));
        let get = Watch::new(1);
        let slice = [test.buffer.slice(4096, 1000).unwrap()];
        let endpoint = announcement.endpoint().clone();
        let completion = Some(&get.completion);
        get.posted(endpoint.get_zcopy(
            &slice,
            announcement.address(),
            announcement.key(),
            completion,
        ));
        test.pair.until("the get", || get.is_done());
        assert_eq!(test.bytes(4096, 1000), data[..1000]);
        assert!(!watch.is_done(), "before the peer says so");
        announcement.finish().unwrap();
        test.pair.until("the end", || watch.is_done());
        // Once.
        announcement.finish().unwrap();
        test.short(9, b"behind");
        test.expect_unexpected((9, 0, b"behind"));
        assert_eq!((watch.result(), watch.calls()), (Some(Ok(())), 1));
    }
    let slice = source.slice(0, 8).unwrap();
    let watch = Watch::new(1);
    let header = vec![0; limits.max_header + 1];
    let refused = test.pair.client.endpoint.tag_rendezvous(1, &header, &slice, &watch.completion);
    expect_too_long(&test.pair, "header", limits.max_header, refused);
}

pub(crate) fn a_full_list_refuses_receives(place: &Place) {
    let mut test = Tagged::new(place, &InterfaceConfig::default().tag_list_size(3));
    assert_eq!(test.pair.server.interface.attributes().tag.max_receives, 3);
    for round in 0..10 {
        let receives = [0, 1, 2].map(|tag| test.try_receive((tag, ALL), (0, 8), tag).unwrap());
        assert_eq!(test.try_receive((3, ALL), (0, 8), 3), Err(PostError::NoResource));
        let interface = test.pair.server.interface.clone();
        if round % 2 == 0 {
            assert_eq!(interface.tag_cancel(receives[1], false), Ok(true));
            assert!(matches!(test.event(), Event::Ended { context: 1, .. }));
        } else {
            test.pair.until("the receive", || interface.tag_cancel(receives[1], true).is_ok());
        }
        // An entry is free when the device has reported the end of its removal.
        let mut again = Err(PostError::NoResource);
        let slice = test.buffer.slice(0, 8).unwrap();
        test.pair.until("room", || {
            again = interface.tag_receive(1, ALL, &slice, 1);
            again.is_ok()
        });
        for receive in [receives[0], receives[2], again.unwrap()] {
            assert_eq!(interface.tag_cancel(receive, false), Ok(true));
            assert!(matches!(test.event(), Event::Ended { .. }));
        }
    }
}

/// The counts of unexpected messages, which have 16 bits, wrap.
pub(crate) fn receives_match_after_any_number_of_unexpected_messages(place: &Place) {
    const COUNT: u64 = (1 << 16) + 500;
    let mut test = Tagged::new(place, &InterfaceConfig::default());
    let counted = Rc::new(Cell::new(0_u64));
    let (count, log) = (Rc::clone(&counted), Rc::clone(&test.events));
    let handler = move |event: TagEvent<'_>| match event {
        TagEvent::Unexpected { tag, .. } => {
            assert_eq!(tag, count.get());
            count.set(tag + 1);
        }
        other => log.borrow_mut().push(other.into()),
    };
    test.pair.server.interface.set_tag_handler(handler).unwrap();
    for tag in 0..COUNT {
        test.pair.post("short", |e| e.tag_short(tag, b"")).unwrap();
        if tag % 10_000 == 0 || tag + 1 == COUNT {
            // Between two counts, and at once after the last.
            test.pair.until("the messages", || counted.get() == tag + 1);
            test.receive((COUNT, ALL), (0, 64), tag);
            test.short(COUNT, b"matched");
            test.expect_received((tag, COUNT, 0, 7));
        }
    }
}

/// Active messages and puts work as without tag matching.
pub(crate) fn other_operations_are_not_disturbed(place: &Place) {
    let mut test = Tagged::new(place, &InterfaceConfig::default());
    let inbox = collect(&test.pair.server.interface, 3);
    let (memory, key) = test.pair.target(64, Access::REMOTE_WRITE);
    test.receive((0, 0), (0, 64), 1);
    for round in 0..200_u32 {
        let data = pattern(round, round as usize % 100);
        test.pair.post("am", |e| e.am_short(3, 7, &data)).unwrap();
        test.pair
            .post("put", |e| e.put_short(&round.to_le_bytes(), memory.address(), &key))
            .unwrap();
        test.pair.until("the message", || !inbox.borrow().is_empty());
        let message = inbox.borrow_mut().remove(0);
        assert_eq!(message[8..], data[..]);
    }
    test.pair.flush(FlushMode::Remote);
    assert_eq!(contents(&memory)[..4], 199_u32.to_le_bytes());
    test.short(1, b"tagged");
    test.expect_received((1, 1, 0, 6));
}

/// What is outstanding ends once, with an error.
pub(crate) fn the_end_of_a_connection_ends_what_is_outstanding(place: &Place) {
    let mut test = Tagged::new(place, &InterfaceConfig::default());
    let source = test.pair.client.domain.allocate(64, Access::REMOTE_READ).unwrap();
    let (slice, watch) = (source.slice(0, 64).unwrap(), Watch::new(1));
    test.pair.post("announce", |e| e.tag_rendezvous(5, b"", &slice, &watch.completion)).unwrap();
    assert!(matches!(test.event(), Event::Announced { .. }));
    test.receive((6, ALL), (0, 8), 6);
    // A message that is too long for its receive fails both ends.
    test.short(6, b"too long for it");
    match test.event() {
        Event::Ended { context: 6, error } => assert_eq!(error.cause, Cause::Flushed),
        other => panic!("{other:?}"),
    }
    test.pair.until("the failure", || watch.is_done());
    assert!(watch.result().is_some_and(|result| result.is_err()) && watch.calls() == 1);
    let refused = test.pair.client.endpoint.tag_short(6, b"");
    assert_eq!(refused, Err(PostError::EndpointFailed));

    // Receives belong to the interface.
    test.receive((7, ALL), (0, 8), 7);
    assert!(test.events.borrow().is_empty());
    drop(std::mem::take(&mut test.pair.server_worker));
    match test.events.borrow_mut().remove(0) {
        Event::Ended { context: 7, error } => assert_eq!(error, CANCELED),
        other => panic!("{other:?}"),
    }
    let slice = test.buffer.slice(0, 8).unwrap();
    let refused = test.pair.server.interface.tag_receive(7, ALL, &slice, 7);
    assert_eq!(refused, Err(PostError::Closed));
}

/// Without tag matching, everything about it is refused.
pub(crate) fn who_matches_no_tags_says_so(place: &Place) {
    let pair = place.pair();
    let memory = pair.client.domain.allocate(64, Access::all()).unwrap();
    let slice = memory.slice(0, 8).unwrap();
    let (endpoint, interface) = (&pair.client.endpoint, &pair.client.interface);
    let watch = Watch::new(1);
    let refused = [
        endpoint.tag_short(1, b"x").err(),
        endpoint.tag_bcopy(1, 0, |_| 0).err(),
        endpoint.tag_zcopy(1, 0, &[slice], None).err(),
        endpoint.tag_rendezvous(1, b"", &slice, &watch.completion).err(),
        interface.tag_receive(1, ALL, &slice, 0).err(),
    ];
    assert_eq!(refused, [Some(PostError::Unsupported); 5], "{}", pair.name);
    assert_eq!(interface.set_tag_handler(|_| ()), Err(HandlerError::NoTags), "{}", pair.name);
    assert_eq!(interface.attributes().tag, barewire::TagLimits::default(), "{}", pair.name);
    assert_eq!(endpoint.tag_queue_pair(), None, "{}", pair.name);
    assert_eq!(watch.completion.pending(), 0);
}
