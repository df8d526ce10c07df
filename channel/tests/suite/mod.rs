//! What every channel does, whatever implements it: the behaviours, over a trait with one
//! implementation per driver. Tests of other crates include this file by its path.
//!
//! | driver | in |
//! |---|---|
//! | `barewire-channel` over every set of rails | `channel/tests/channel/` |
//! | a plugin table for NCCL: `barewire-nccl`'s, and those of other libraries | `nccl/tests/` |

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// For one wait. The machine may be loaded. `BAREWIRE_SUITE_SECONDS` shortens it, for drivers that
/// fail some behaviours by waiting for ever.
fn deadline() -> Duration {
    static DEADLINE: OnceLock<Duration> = OnceLock::new();
    *DEADLINE.get_or_init(|| {
        let seconds = std::env::var("BAREWIRE_SUITE_SECONDS").ok();
        Duration::from_secs(seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or(60))
    })
}

/// Bytes of the source and of the target.
pub(crate) const SIZE: usize = 1 << 20;

/// Why a call fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Overlong,
    Refused,
    UnknownRequest,
    OutOfBounds,
    Group,
    /// The peer has closed the channel, or is lost.
    Closed,
    #[allow(dead_code, reason = "printed when a test fails")]
    Other(String),
}

/// A buffer to announce.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) offset: usize,
    pub(crate) length: usize,
    pub(crate) tag: u32,
}

/// Both ends of a connected channel, and [`SIZE`] bytes of memory at each.
pub(crate) trait Channel {
    /// Rails, over which long messages are cut.
    fn rails(&self) -> usize;
    /// Most buffers of a group.
    fn most_in_group(&self) -> usize {
        8
    }
    /// Groups that may be outstanding.
    fn most_outstanding(&self) -> usize {
        32
    }
    fn receive(&mut self, buffers: &[Buffer]) -> Result<Option<u64>, Fault>;
    fn send(&mut self, offset: usize, length: usize, tag: u32) -> Result<Option<u64>, Fault>;
    fn test_received(&mut self, request: u64) -> Result<Option<Vec<usize>>, Fault>;
    fn test_sent(&mut self, request: u64) -> Result<Option<usize>, Fault>;
    fn fill_source(&mut self, offset: usize, bytes: &[u8]);
    fn fill_target(&mut self, offset: usize, bytes: &[u8]);
    fn target(&self, offset: usize, length: usize) -> Vec<u8>;
    fn close_sender(&mut self);
    fn close_receiver(&mut self);
}

/// Calls until there is a result.
fn wait<T>(what: &str, mut call: impl FnMut() -> Result<Option<T>, Fault>) -> Result<T, Fault> {
    let start = Instant::now();
    loop {
        if let Some(value) = call()? {
            return Ok(value);
        }
        assert!(start.elapsed() < deadline(), "waited too long for {what}");
        std::thread::yield_now();
    }
}

fn announce(channel: &mut impl Channel, offset: usize, length: usize, tag: u32) -> u64 {
    let buffer = Buffer { offset, length, tag };
    wait("room", || channel.receive(&[buffer])).unwrap()
}

/// Announces a group of buffers of `room` bytes, one after the other from `start`.
fn group(channel: &mut impl Channel, start: usize, room: usize, tags: &[u32]) -> u64 {
    let buffer =
        |(at, tag): (usize, &u32)| Buffer { offset: start + at * room, length: room, tag: *tag };
    let buffers: Vec<_> = tags.iter().enumerate().map(buffer).collect();
    wait("room", || channel.receive(&buffers)).unwrap()
}

fn send(channel: &mut impl Channel, offset: usize, length: usize, tag: u32) -> u64 {
    wait("a buffer", || channel.send(offset, length, tag)).unwrap()
}

fn received(channel: &mut impl Channel, request: u64) -> Vec<usize> {
    wait("the receive", || channel.test_received(request)).unwrap()
}

fn sent(channel: &mut impl Channel, request: u64) -> usize {
    wait("the send", || channel.test_sent(request)).unwrap()
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

/// Fills the source with bytes of `seed`, and the target with others. Returns the former.
fn fill(channel: &mut impl Channel, seed: u64, length: usize) -> Vec<u8> {
    let bytes = pattern(seed, length);
    channel.fill_source(0, &bytes);
    channel.fill_target(0, &bytes.iter().map(|byte| !byte).collect::<Vec<_>>());
    bytes
}

/// Lengths around every cut of a message over `rails`.
fn lengths(rails: usize, limit: usize) -> Vec<usize> {
    let mut lengths = vec![0, 1, 127, 128, 129, limit - 1, limit];
    for units in [1, 2, rails - 1, rails, rails + 1, 2 * rails, 4096 / 128, 3 * rails + 1] {
        let cut = units * 128;
        lengths.extend([cut.saturating_sub(1), cut, cut + 1]);
    }
    lengths.retain(|length| *length <= limit);
    lengths
}

pub(crate) fn messages_of_every_length_arrive(channel: &mut impl Channel) {
    const LIMIT: usize = 10_000;
    for (seed, length) in lengths(channel.rails(), LIMIT).into_iter().enumerate() {
        let offset = seed % 9;
        let bytes = fill(channel, seed as u64, offset + LIMIT + 64);
        let before = channel.target(0, offset + LIMIT + 64);
        // A buffer that is longer than the message.
        let receiving = announce(channel, offset, length + seed % 3, 7);
        let sending = send(channel, offset, length, 7);
        assert_eq!(received(channel, receiving), [length]);
        assert_eq!(sent(channel, sending), length);
        let after = channel.target(0, offset + LIMIT + 64);
        let end = offset + length;
        assert!(after[offset..end] == bytes[offset..end], "{length} bytes");
        assert!(after[..offset] == before[..offset], "before {length} bytes");
        assert!(after[end..] == before[end..], "after {length} bytes");
    }
    let bytes = fill(channel, 99, SIZE);
    let (receiving, sending) = (announce(channel, 0, SIZE, 0), send(channel, 0, SIZE, 0));
    assert_eq!(received(channel, receiving), [SIZE]);
    assert_eq!(sent(channel, sending), SIZE);
    assert!(channel.target(0, SIZE) == bytes, "the whole region");
}

pub(crate) fn calls_find_nothing_when_all_requests_are_outstanding(channel: &mut impl Channel) {
    let most = channel.most_outstanding();
    for round in 0..3 {
        let bytes = fill(channel, round, (most + 1) * 16);
        let mut receiving: Vec<_> = (0..most).map(|at| announce(channel, at * 16, 16, 0)).collect();
        let further = Buffer { offset: most * 16, length: 16, tag: 0 };
        assert_eq!(channel.receive(&[further]), Ok(None));
        let mut sending: Vec<_> = (0..most).map(|at| send(channel, at * 16, 16, 0)).collect();
        assert_eq!(received(channel, receiving.remove(0)), [16]);
        assert_eq!(sent(channel, sending.remove(0)), 16);
        receiving.push(announce(channel, most * 16, 16, 0));
        sending.push(send(channel, most * 16, 16, 0));
        for request in receiving {
            assert_eq!(received(channel, request), [16]);
        }
        for request in sending {
            assert_eq!(sent(channel, request), 16);
        }
        assert_eq!(channel.target(0, (most + 1) * 16), bytes);
    }
}

pub(crate) fn sends_wait_for_their_buffer(channel: &mut impl Channel) {
    for _ in 0..5000 {
        assert_eq!(channel.send(0, 8, 1), Ok(None));
    }
    let receiving = announce(channel, 0, 8, 1);
    let sending = send(channel, 0, 8, 1);
    let again = announce(channel, 8, 8, 2);
    // A tag that the announced group does not have.
    for _ in 0..5000 {
        assert_eq!(channel.send(0, 8, 1), Ok(None));
    }
    let other = send(channel, 0, 8, 2);
    for request in [receiving, again] {
        assert_eq!(received(channel, request), [8]);
    }
    for request in [sending, other] {
        assert_eq!(sent(channel, request), 8);
    }
}

pub(crate) fn groups_match_by_tag(channel: &mut impl Channel) {
    let mut random = fastrand::Rng::with_seed(channel.rails() as u64);
    for count in 1..=channel.most_in_group() {
        for round in 0..4 {
            const ROOM: usize = 1500;
            let bytes = fill(channel, round, count * ROOM);
            let tags: Vec<u32> = (0..count as u32).map(|at| 100 - at).collect();
            let receiving = group(channel, 0, ROOM, &tags);
            let mut order: Vec<usize> = (0..count).collect();
            random.shuffle(&mut order);
            // Lengths from 0 on, so that some messages are empty.
            let length = |at: usize| (at * 171 + round as usize * 500) % ROOM;
            let mut sending = Vec::new();
            for at in &order {
                sending.push(send(channel, at * ROOM, length(*at), tags[*at]));
            }
            let sizes = received(channel, receiving);
            assert_eq!(sizes, (0..count).map(length).collect::<Vec<_>>());
            for (request, at) in sending.into_iter().zip(&order) {
                assert_eq!(sent(channel, request), length(*at));
                let place = at * ROOM..at * ROOM + length(*at);
                assert!(channel.target(place.start, place.len()) == bytes[place], "{count} {at}");
            }
        }
    }
}

pub(crate) fn equal_tags_match_in_order(channel: &mut impl Channel) {
    let bytes = fill(channel, 3, 8 * 256);
    let receiving = group(channel, 0, 256, &[5, 6, 5, 5, 6, 5, 6, 5]);
    let mut sending = Vec::new();
    // The parts of the source in the order of the buffers with each tag.
    for (tag, parts) in [(6, &[1, 4, 6][..]), (5, &[0, 2, 3, 5, 7])] {
        for part in parts {
            sending.push(send(channel, part * 256, 256 - part, tag));
        }
    }
    let sizes: Vec<_> = (0..8).map(|at| 256 - at).collect();
    assert_eq!(received(channel, receiving), sizes);
    for request in sending {
        sent(channel, request);
    }
    for at in 0..8 {
        assert_eq!(channel.target(at * 256, 256 - at), bytes[at * 256..][..256 - at]);
    }
}

pub(crate) fn groups_and_single_buffers_alternate(channel: &mut impl Channel) {
    let bytes = fill(channel, 9, 4 * 64);
    for _ in 0..40 {
        let first = group(channel, 0, 64, &[1, 2]);
        let second = announce(channel, 128, 64, 1);
        let third = group(channel, 192, 64, &[1]);
        // A part of a group does not end it.
        let early = send(channel, 64, 64, 2);
        assert_eq!(channel.send(0, 1, 2), Ok(None), "tag 2 has its send");
        assert_eq!(channel.test_received(first), Ok(None));
        let late = send(channel, 0, 64, 1);
        // The next buffer is announced meanwhile, with another tag.
        for _ in 0..500 {
            assert_eq!(channel.send(0, 1, 9), Ok(None), "no buffer has tag 9");
        }
        let sending = [early, late, send(channel, 128, 64, 1), send(channel, 192, 64, 1)];
        assert_eq!(received(channel, first), [64, 64]);
        assert_eq!(received(channel, second), [64]);
        assert_eq!(received(channel, third), [64]);
        for request in sending {
            assert_eq!(sent(channel, request), 64);
        }
        assert_eq!(channel.target(0, 256), bytes);
    }
}

/// The send of one buffer of a group is complete although the others have none.
pub(crate) fn sends_of_a_group_do_not_wait_for_each_other(channel: &mut impl Channel) {
    let bytes = fill(channel, 4, 256);
    let receiving = group(channel, 0, 128, &[1, 2]);
    let first = send(channel, 128, 128, 2);
    assert_eq!(sent(channel, first), 128);
    let second = send(channel, 0, 128, 1);
    assert_eq!(sent(channel, second), 128);
    assert_eq!(received(channel, receiving), [128, 128]);
    assert_eq!(channel.target(0, 256), bytes);
}

pub(crate) fn a_send_longer_than_its_buffer_fails_at_both_ends(channel: &mut impl Channel) {
    fill(channel, 5, 64);
    let before = channel.target(0, 64);
    let single = announce(channel, 0, 16, 0);
    let several = group(channel, 16, 16, &[1, 2, 3]);
    let overlong = |channel: &mut _, tag| {
        let fault = wait("the buffer", || Channel::send(channel, 0, 17, tag)).unwrap_err();
        assert_eq!(fault, Fault::Overlong);
    };
    overlong(channel, 0);
    overlong(channel, 2);
    let sending = [send(channel, 0, 16, 1), send(channel, 0, 3, 3)];
    for request in [single, several] {
        let fault = wait("the refusal", || channel.test_received(request)).unwrap_err();
        assert_eq!(fault, Fault::Refused);
    }
    for request in sending {
        sent(channel, request);
    }
    assert_eq!(channel.target(0, 16), before[..16], "nothing is written");
    assert_eq!(channel.target(32, 16), before[32..48]);
    // Many of them: what they use has to be freed.
    for _ in 0..300 {
        let receiving = announce(channel, 0, 16, 0);
        overlong(channel, 0);
        wait("the refusal", || channel.test_received(receiving)).unwrap_err();
    }
    let (receiving, sending) = (announce(channel, 0, 16, 0), send(channel, 0, 16, 0));
    assert_eq!((received(channel, receiving), sent(channel, sending)), (vec![16], 16));
}

pub(crate) fn requests_complete_in_any_order(channel: &mut impl Channel) {
    for _ in 0..5 {
        let (mut receiving, mut sending) = (Vec::new(), Vec::new());
        for at in 0..channel.most_outstanding() {
            receiving.push(announce(channel, at * 8, 8, 0));
        }
        for at in 0..channel.most_outstanding() {
            sending.push(send(channel, at * 8, 8, 0));
        }
        for (ours, theirs) in sending.into_iter().zip(receiving).rev() {
            assert_eq!(received(channel, theirs), [8]);
            assert_eq!(sent(channel, ours), 8);
        }
    }
}

pub(crate) fn requests_are_tested_once(channel: &mut impl Channel) {
    let (receiving, sending) = (announce(channel, 0, 8, 0), send(channel, 0, 8, 0));
    assert_eq!((received(channel, receiving), sent(channel, sending)), (vec![8], 8));
    assert_eq!(channel.test_received(receiving), Err(Fault::UnknownRequest));
    assert_eq!(channel.test_sent(sending), Err(Fault::UnknownRequest));
}

pub(crate) fn wrong_arguments_are_refused_without_effect(channel: &mut impl Channel) {
    for (offset, length) in [(SIZE, 1), (0, SIZE + 1), (usize::MAX, 2), (1, usize::MAX)] {
        let buffer = Buffer { offset, length, tag: 0 };
        assert_eq!(channel.receive(&[buffer]), Err(Fault::OutOfBounds));
    }
    let buffer = Buffer { offset: 0, length: 1, tag: 0 };
    assert_eq!(channel.receive(&[]), Err(Fault::Group));
    assert_eq!(channel.receive(&[buffer; 9]), Err(Fault::Group));
    let receiving = announce(channel, 0, 64, 0);
    for (offset, length) in [(SIZE, 1), (0, SIZE + 1), (usize::MAX, 2), (1, usize::MAX)] {
        let fault = wait("the buffer", || channel.send(offset, length, 0)).unwrap_err();
        assert_eq!(fault, Fault::OutOfBounds);
    }
    let sending = send(channel, SIZE - 64, 64, 0);
    assert_eq!((received(channel, receiving), sent(channel, sending)), (vec![64], 64));
}

/// Many messages with everything outstanding, through rings that are much smaller.
pub(crate) fn rings_wrap(channel: &mut impl Channel) {
    const MESSAGES: usize = 3000;
    let window = channel.most_outstanding();
    let (mut receiving, mut sending) = (VecDeque::new(), VecDeque::new());
    let (mut announced, mut begun, mut complete) = (0, 0, 0);
    let place = |number: usize| number % 64 * 512;
    let length = |number: usize| 8 + number * 7 % 300;
    let start = Instant::now();
    while complete < MESSAGES {
        assert!(start.elapsed() < 2 * deadline(), "{complete} of {MESSAGES} messages");
        if announced < MESSAGES && announced - complete < window {
            let buffer = Buffer { offset: place(announced), length: 512, tag: announced as u32 };
            if let Some(request) = channel.receive(&[buffer]).unwrap() {
                receiving.push_back(request);
                announced += 1;
            }
        }
        if begun < announced && sending.len() < window {
            channel.fill_source(place(begun), &(begun as u64).to_le_bytes());
            let request = channel.send(place(begun), length(begun), begun as u32).unwrap();
            if let Some(request) = request {
                sending.push_back(request);
                begun += 1;
            }
        }
        while let Some(request) = sending.front()
            && channel.test_sent(*request).unwrap().is_some()
        {
            sending.pop_front();
        }
        while let Some(request) = receiving.front()
            && let Some(sizes) = channel.test_received(*request).unwrap()
        {
            assert_eq!(sizes, [length(complete)]);
            assert_eq!(channel.target(place(complete), 8), (complete as u64).to_le_bytes());
            receiving.pop_front();
            complete += 1;
        }
    }
}

pub(crate) fn a_closed_sender_is_noticed(channel: &mut impl Channel) {
    let (receiving, sending) = (announce(channel, 0, 8, 0), send(channel, 0, 8, 0));
    assert_eq!((received(channel, receiving), sent(channel, sending)), (vec![8], 8));
    let receiving = announce(channel, 0, 8, 0);
    channel.close_sender();
    for _ in 0..2 {
        let fault = wait("the end", || channel.test_received(receiving)).unwrap_err();
        assert_eq!(fault, Fault::Closed);
    }
    let buffer = Buffer { offset: 0, length: 8, tag: 0 };
    assert_eq!(channel.receive(&[buffer]), Err(Fault::Closed));
}

pub(crate) fn a_closed_receiver_is_noticed(channel: &mut impl Channel) {
    let (receiving, sending) = (announce(channel, 0, 8, 0), send(channel, 0, 8, 0));
    assert_eq!((received(channel, receiving), sent(channel, sending)), (vec![8], 8));
    channel.close_receiver();
    for _ in 0..2 {
        let fault = wait("the end", || channel.send(0, 8, 0)).unwrap_err();
        assert_eq!(fault, Fault::Closed);
    }
}

/// Passes the names of all behaviours to a macro of the test: `$then! { @each $context; names }`.
#[macro_export]
macro_rules! behaviours {
    ($then:ident $($context:tt)*) => {
        $crate::$then! { @each $($context)*;
            messages_of_every_length_arrive
            calls_find_nothing_when_all_requests_are_outstanding
            sends_wait_for_their_buffer
            groups_match_by_tag
            equal_tags_match_in_order
            groups_and_single_buffers_alternate
            sends_of_a_group_do_not_wait_for_each_other
            a_send_longer_than_its_buffer_fails_at_both_ends
            requests_complete_in_any_order
            requests_are_tested_once
            wrong_arguments_are_refused_without_effect
            rings_wrap
            a_closed_sender_is_noticed
            a_closed_receiver_is_noticed
        }
    };
}

/// Defines a test per behaviour. `$open` makes a channel, or is `None` if the driver cannot run
/// here.
#[allow(unused_macros, reason = "some tests list the behaviours otherwise")]
#[macro_export]
macro_rules! suite {
    (@each $open:expr; $($behaviour:ident)+) => {
        $(#[test]
        fn $behaviour() {
            if let Some(mut channel) = $open {
                $crate::suite::$behaviour(&mut channel);
            }
        })+
    };
    ($open:expr) => {
        $crate::behaviours! { suite $open }
    };
}
