//! What every channel does, over any number of rails.

use barewire_channel::{Error, Failure, Rails, Request, Target, Usage};

use crate::pair::{Pair, SIZE, Set, config, contexts, pattern, rails, wait};

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

pub(crate) fn messages_of_every_length_arrive(set: Set) {
    const LIMIT: usize = 10_000;
    for whole in [0, 4096] {
        let config = config().max_message(LIMIT as u64).whole(whole);
        let mut pair = Pair::new(set, &config);
        assert_eq!((pair.sender.limit(), pair.receiver.limit()), (LIMIT as u64, LIMIT as u64));
        assert_eq!((pair.sender.rails(), pair.receiver.rails()), (set.rails, set.rails));
        for (seed, length) in lengths(set.rails, LIMIT).into_iter().enumerate() {
            let offset = seed % 9;
            let bytes = pair.fill(seed as u64, offset + LIMIT + 64);
            let before = pair.target(0, offset + LIMIT + 64);
            // A buffer that is longer than the message.
            let receiving = pair.receive(offset, length + seed % 3, 7);
            let sending = pair.send(offset, length, 7);
            assert_eq!(pair.received(receiving).sizes(), [length]);
            assert_eq!(pair.sent(sending), length);
            let after = pair.target(0, offset + LIMIT + 64);
            let end = offset + length;
            assert!(after[offset..end] == bytes[offset..end], "{length} bytes");
            assert!(after[..offset] == before[..offset], "before {length} bytes");
            assert!(after[end..] == before[end..], "after {length} bytes");
        }
    }
}

pub(crate) fn lengths_beyond_the_limit_are_refused(set: Set) {
    let mut pair = Pair::new(set, &config().max_message(1000));
    // The buffer may be longer than the limit.
    let receiving = pair.receive(0, 2000, 0);
    let source = pair.source.clone();
    let error = wait("the announcement", || pair.sender.send(&source, 0, 1001, 0)).unwrap_err();
    assert!(matches!(error, Error::TooLong { length: 1001, limit: 1000 }), "{error}");
    // The buffer is still there.
    let sending = pair.send(0, 1000, 0);
    assert_eq!(pair.received(receiving).sizes(), [1000]);
    assert_eq!(pair.sent(sending), 1000);
}

pub(crate) fn announcements_wait_when_32_are_outstanding(set: Set) {
    let mut pair = Pair::new(set, &config());
    for round in 0..3 {
        let bytes = pair.fill(round, 33 * 16);
        let mut receiving: Vec<_> = (0..32).map(|at| pair.receive(at * 16, 16, 0)).collect();
        let target = pair.target.clone();
        assert_eq!(pair.receiver.receive(&target, 0, 16, 0).unwrap(), None);
        let mut sending: Vec<_> = (0..32).map(|at| pair.send(at * 16, 16, 0)).collect();
        assert_eq!(pair.received(receiving.remove(0)).sizes(), [16]);
        receiving.push(pair.receive(32 * 16, 16, 0));
        // The first send has the slot of the 33rd until it was tested.
        let source = pair.source.clone();
        for _ in 0..1000 {
            assert_eq!(pair.sender.send(&source, 32 * 16, 16, 0).unwrap(), None);
        }
        assert_eq!(pair.sent(sending.remove(0)), 16);
        sending.push(pair.send(32 * 16, 16, 0));
        for request in receiving {
            assert_eq!(pair.received(request).sizes(), [16]);
        }
        for request in sending {
            assert_eq!(pair.sent(request), 16);
        }
        assert_eq!(pair.target(0, 33 * 16), bytes);
    }
}

pub(crate) fn sends_wait_for_their_buffer(set: Set) {
    let mut pair = Pair::new(set, &config());
    let source = pair.source.clone();
    for _ in 0..5000 {
        assert_eq!(pair.sender.send(&source, 0, 8, 1).unwrap(), None);
    }
    let receiving = pair.receive(0, 8, 1);
    let sending = pair.send(0, 8, 1);
    let again = pair.receive(8, 8, 2);
    // A tag that the announced group does not have.
    for _ in 0..5000 {
        assert_eq!(pair.sender.send(&source, 0, 8, 1).unwrap(), None);
    }
    let other = pair.send(0, 8, 2);
    for request in [receiving, again] {
        assert_eq!(pair.received(request).sizes(), [8]);
    }
    for request in [sending, other] {
        assert_eq!(pair.sent(request), 8);
    }
}

/// Announces a group of buffers of `room` bytes, one after the other from `start`.
fn group(pair: &mut Pair, start: usize, room: usize, tags: &[u32]) -> Request {
    let target = |(at, tag): (usize, &u32)| Target {
        region: &pair.target,
        offset: start + at * room,
        length: room,
        tag: *tag,
    };
    let targets: Vec<_> = tags.iter().enumerate().map(target).collect();
    pair.receiver.receive_group(&targets).unwrap().unwrap()
}

pub(crate) fn groups_match_by_tag(set: Set) {
    let mut pair = Pair::new(set, &config().whole(0));
    let mut random = fastrand::Rng::with_seed(set.rails as u64);
    for count in 1..=8 {
        for round in 0..4 {
            const ROOM: usize = 1500;
            let bytes = pair.fill(round, count * ROOM);
            let tags: Vec<u32> = (0..count as u32).map(|at| 100 - at).collect();
            let receiving = group(&mut pair, 0, ROOM, &tags);
            let mut order: Vec<usize> = (0..count).collect();
            random.shuffle(&mut order);
            // Lengths from 0 on, so that some messages are empty.
            let length = |at: usize| (at * 171 + round as usize * 500) % ROOM;
            let sending: Vec<_> =
                order.iter().map(|at| pair.send(at * ROOM, length(*at), tags[*at])).collect();
            let received = pair.received(receiving);
            assert_eq!(received.sizes(), (0..count).map(length).collect::<Vec<_>>());
            for (request, at) in sending.into_iter().zip(&order) {
                assert_eq!(pair.sent(request), length(*at));
                let place = at * ROOM..at * ROOM + length(*at);
                assert!(pair.target(place.start, place.len()) == bytes[place], "{count} {at}");
            }
        }
    }
}

pub(crate) fn equal_tags_match_in_order(set: Set) {
    let mut pair = Pair::new(set, &config());
    let bytes = pair.fill(3, 8 * 256);
    let receiving = group(&mut pair, 0, 256, &[5, 6, 5, 5, 6, 5, 6, 5]);
    let mut sending = Vec::new();
    // The parts of the source in the order of the buffers with each tag.
    for (tag, parts) in [(6, &[1, 4, 6][..]), (5, &[0, 2, 3, 5, 7])] {
        for part in parts {
            sending.push(pair.send(part * 256, 256 - part, tag));
        }
    }
    let sizes: Vec<_> = (0..8).map(|at| 256 - at).collect();
    assert_eq!(pair.received(receiving).sizes(), sizes);
    for request in sending {
        pair.sent(request);
    }
    for at in 0..8 {
        assert_eq!(pair.target(at * 256, 256 - at), bytes[at * 256..][..256 - at]);
    }
}

pub(crate) fn groups_and_single_buffers_alternate(set: Set) {
    let mut pair = Pair::new(set, &config().pairs(2));
    let bytes = pair.fill(9, 4 * 64);
    for _ in 0..40 {
        let first = group(&mut pair, 0, 64, &[1, 2]);
        let second = pair.receive(128, 64, 1);
        let third = group(&mut pair, 192, 64, &[1]);
        // A part of a group does not end it.
        let early = pair.send(64, 64, 2);
        let source = pair.source.clone();
        assert_eq!(pair.sender.send(&source, 0, 1, 2).unwrap(), None, "tag 2 has its send");
        assert_eq!(pair.receiver.test(first).unwrap(), None);
        let sending = [early, pair.send(0, 64, 1), pair.send(128, 64, 1), pair.send(192, 64, 1)];
        assert_eq!(pair.received(first).sizes(), [64, 64]);
        assert_eq!(pair.received(second).sizes(), [64]);
        assert_eq!(pair.received(third).sizes(), [64]);
        for request in sending {
            assert_eq!(pair.sent(request), 64);
        }
        assert_eq!(pair.target(0, 256), bytes);
    }
}

pub(crate) fn a_send_longer_than_its_buffer_fails_at_both_ends(set: Set) {
    let mut pair = Pair::new(set, &config());
    let before = pair.target(0, 64);
    let single = pair.receive(0, 16, 0);
    let several = group(&mut pair, 16, 16, &[1, 2, 3]);
    let source = pair.source.clone();
    let mut overlong = |tag| {
        let error = wait("the buffer", || pair.sender.send(&source, 0, 17, tag)).unwrap_err();
        assert!(matches!(error, Error::Overlong { length: 17, room: 16 }), "{error}");
    };
    overlong(0);
    overlong(2);
    let sending = [pair.send(0, 16, 1), pair.send(0, 3, 3)];
    let error = wait("the refusal", || pair.receiver.test(single)).unwrap_err();
    assert!(matches!(error, Error::Refused { member: 0, room: 16 }), "{error}");
    let error = wait("the group", || pair.receiver.test(several)).unwrap_err();
    assert!(matches!(error, Error::Refused { member: 1, room: 16 }), "{error}");
    for request in sending {
        pair.sent(request);
    }
    assert_eq!(pair.target(0, 16), before[..16], "nothing is written");
    assert_eq!(pair.target(32, 16), before[32..48]);
    // Many of them: their WQEs have to be reaped, too.
    for _ in 0..if set.lossy { 300 } else { 3000 } {
        let receiving = pair.receive(0, 16, 0);
        let error = wait("the buffer", || pair.sender.send(&source, 0, 17, 0)).unwrap_err();
        assert!(matches!(error, Error::Overlong { .. }), "{error}");
        wait("the refusal", || pair.receiver.test(receiving)).unwrap_err();
    }
    assert_eq!(pair.message(16, 16), (16, 16));
}

pub(crate) fn requests_are_tested_once_and_in_any_order(set: Set) {
    let mut pair = Pair::new(set, &config());
    for _ in 0..5 {
        let receiving: Vec<_> = (0..32).map(|at| pair.receive(at * 8, 8, 0)).collect();
        let sending: Vec<_> = (0..32).map(|at| pair.send(at * 8, 8, 0)).collect();
        for (ours, theirs) in sending.into_iter().zip(receiving).rev() {
            assert_eq!(pair.received(theirs).sizes(), [8]);
            assert_eq!(pair.sent(ours), 8);
            let error = pair.receiver.test(theirs).unwrap_err();
            assert!(matches!(error, Error::UnknownRequest), "{error}");
            let error = pair.sender.test(ours).unwrap_err();
            assert!(matches!(error, Error::UnknownRequest), "{error}");
        }
    }
    for bits in [0, 1, 255, 256, 1 << 40, u64::MAX - 1] {
        let request = Request::from_bits(bits).unwrap();
        assert!(matches!(pair.sender.test(request), Err(Error::UnknownRequest)));
        assert!(matches!(pair.receiver.test(request), Err(Error::UnknownRequest)));
    }
    assert_eq!(Request::from_bits(u64::MAX), None);
}

pub(crate) fn wrong_arguments_are_refused_without_effect(set: Set) {
    let mut pair = Pair::new(set, &config());
    let (source, target) = (pair.source.clone(), pair.target.clone());
    let receiver = &mut pair.receiver;
    for (offset, length) in [(SIZE, 1), (0, SIZE + 1), (usize::MAX, 2), (1, usize::MAX)] {
        let error = receiver.receive(&target, offset, length, 0).unwrap_err();
        assert!(matches!(error, Error::OutOfBounds { .. }), "{error}");
    }
    let foreign = pair.from.allocate(64, Usage::Receive).unwrap();
    assert!(matches!(receiver.receive(&foreign, 0, 8, 0), Err(Error::Foreign)));
    let local = pair.to.allocate(64, Usage::Send).unwrap();
    assert!(matches!(receiver.receive(&local, 0, 8, 0), Err(Error::SendOnly)));
    assert!(matches!(receiver.receive_group(&[]), Err(Error::Group(0))));
    let buffer = Target { region: &target, offset: 0, length: 1, tag: 0 };
    assert!(matches!(receiver.receive_group(&[buffer; 9]), Err(Error::Group(9))));
    let late = Target { region: &local, ..buffer };
    assert!(matches!(receiver.receive_group(&[buffer, late]), Err(Error::SendOnly)));

    let receiving = pair.receive(0, 64, 0);
    let send = |pair: &mut Pair, region, offset, length| {
        wait("the buffer", || pair.sender.send(region, offset, length, 0)).unwrap_err()
    };
    for (offset, length) in [(SIZE, 1), (0, SIZE + 1), (usize::MAX, 2), (1, usize::MAX)] {
        let error = send(&mut pair, &source, offset, length);
        assert!(matches!(error, Error::OutOfBounds { .. }), "{error}");
    }
    assert!(matches!(send(&mut pair, &local, 0, 8), Error::Foreign));
    let sending = pair.send(SIZE - 64, 64, 0);
    assert_eq!(pair.received(receiving).sizes(), [64]);
    assert_eq!(pair.sent(sending), 64);
    // At the very end of the region, nothing fits.
    let receiving = pair.receive(SIZE, 0, 0);
    let sending = pair.send(SIZE, 0, 0);
    assert_eq!(pair.received(receiving).sizes(), [0]);
    assert_eq!(pair.sent(sending), 0);
}

pub(crate) fn regions_outlive_their_last_handle(set: Set) {
    let mut pair = Pair::new(set, &config().whole(0));
    let bytes = pattern(1, 100_000);
    for _ in 0..20 {
        let source = pair.from.allocate(bytes.len(), Usage::Send).unwrap();
        let target = pair.to.allocate(bytes.len(), Usage::Receive).unwrap();
        source.write(0, &bytes).unwrap();
        let receiving = pair.receiver.receive(&target, 0, bytes.len(), 0).unwrap().unwrap();
        drop(target);
        let sending = wait("the buffer", || pair.sender.send(&source, 0, bytes.len(), 0)).unwrap();
        drop(source);
        assert_eq!(pair.received(receiving).sizes(), [bytes.len()]);
        assert_eq!(pair.sent(sending), bytes.len());
    }
    // Both ends are closed with requests outstanding.
    let target = pair.to.allocate(64, Usage::Receive).unwrap();
    let _ = pair.receiver.receive(&target, 0, 64, 0).unwrap().unwrap();
    drop(target);
}

pub(crate) fn queue_pairs_take_turns(set: Set) {
    for pairs in [2, 3, 8] {
        let mut pair = Pair::new(set, &config().pairs(pairs).whole(1000));
        let bytes = pair.fill(pairs.into(), 20_000);
        for length in [0, 1, 999, 1000, 1001, 20_000, 5, 12_345, 0, 20_000, 64] {
            for _ in 0..3 {
                assert_eq!(pair.message(length, 20_000), (length, length));
                assert_eq!(pair.target(0, length), bytes[..length]);
            }
        }
    }
}

/// More messages than an immediate can number, through rings that are much smaller.
pub(crate) fn numbers_and_rings_wrap(set: Set) {
    let mut pair = Pair::new(set, &config().whole(64));
    // The 16 bits wrap on one rail; the rings of the others wrap as well.
    let messages: u32 = if set.rails == 1 && !set.lossy { 70_000 } else { 6_000 };
    let mut outstanding = std::collections::VecDeque::new();
    let (mut announced, mut sent) = (0u32, 0u32);
    let mut receiving = std::collections::VecDeque::new();
    let place = |number: u32| (number % 64) as usize * 512;
    let length = |number: u32| 8 + (number as usize * 7) % 300;
    let source = pair.source.clone();
    let target = pair.target.clone();
    let mut done = 0;
    let mut idle = 0;
    while done < messages {
        let before = (announced, sent, done);
        if announced < messages
            && let Some(request) =
                pair.receiver.receive(&target, place(announced), 512, announced).unwrap()
        {
            receiving.push_back(request);
            announced += 1;
        }
        if sent < announced {
            if outstanding.len() < 32 {
                source.write(place(sent), &u64::from(sent).to_le_bytes()).unwrap();
            }
            if let Some(request) =
                pair.sender.send(&source, place(sent), length(sent), sent).unwrap()
            {
                outstanding.push_back(request);
                sent += 1;
            }
        }
        while let Some(request) = outstanding.front()
            && pair.sender.test(*request).unwrap().is_some()
        {
            outstanding.pop_front();
        }
        while let Some(request) = receiving.front()
            && let Some(received) = pair.receiver.test(*request).unwrap()
        {
            assert_eq!(received.sizes(), [length(done)]);
            let mut number = [0; 8];
            target.read(place(done), &mut number).unwrap();
            assert_eq!(u64::from_le_bytes(number), u64::from(done));
            receiving.pop_front();
            done += 1;
        }
        idle = if before == (announced, sent, done) { idle + 1 } else { 0 };
        if idle > 0 {
            std::thread::yield_now();
        }
    }
    assert_eq!((announced, sent), (messages, messages));
}

pub(crate) fn ends_move_to_other_threads(set: Set) {
    const MESSAGES: usize = 200;
    let pair = Pair::new(set, &config().whole(512));
    let Pair { mut sender, mut receiver, source, target, to, .. } = pair;
    let bytes = pattern(8, 4096);
    source.write(0, &bytes).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..MESSAGES {
                let request = wait("a buffer", || sender.send(&source, 0, 4096, 0)).unwrap();
                wait("the send", || sender.test(request)).unwrap();
            }
        });
        scope.spawn(|| {
            for at in 0..MESSAGES {
                let offset = at * 4096;
                let request = wait("room", || receiver.receive(&target, offset, 4096, 0)).unwrap();
                let received = wait("the receive", || receiver.test(request)).unwrap();
                assert_eq!(received.sizes(), [4096]);
                let mut got = vec![0; 4096];
                target.read(offset, &mut got).unwrap();
                assert!(got == bytes, "message {at}");
            }
        });
        // Memory is registered beside the traffic.
        scope.spawn(|| {
            for length in 1..100 {
                drop(to.allocate(length * 100, Usage::Receive).unwrap());
            }
        });
    });
    // The ends come back to this thread.
    drop((sender, receiver));
}

pub(crate) fn a_closed_end_is_noticed_by_the_other(set: Set) {
    let is_closed = |error: &Error| match error {
        Error::Failed(failure) => {
            matches!(**failure, Failure::Closed { .. } | Failure::Rails(_))
        }
        _ => false,
    };
    let both: Rails = rails(&contexts(set), set.rails);
    let mut pair = Pair::between(both.clone(), both.clone(), &config());
    assert_eq!(pair.message(100, 100), (100, 100));
    let receiving = pair.receive(0, 8, 0);
    drop(pair.sender);
    let error = wait("the end", || pair.receiver.test(receiving)).unwrap_err();
    assert!(is_closed(&error), "{error}");
    let again = pair.receiver.test(receiving).unwrap_err();
    assert_eq!(again.to_string(), error.to_string(), "the same failure again");
    let target = pair.target.clone();
    assert!(is_closed(&pair.receiver.receive(&target, 0, 8, 0).unwrap_err()));

    let mut pair = Pair::between(both.clone(), both, &config());
    let receiving = pair.receive(0, 8, 0);
    let sending = pair.send(0, 8, 0);
    pair.received(receiving);
    pair.sent(sending);
    drop(pair.receiver);
    let source = pair.source.clone();
    let error = wait("the end", || pair.sender.send(&source, 0, 8, 0)).unwrap_err();
    assert!(is_closed(&error), "{error}");
    let again = pair.sender.send(&source, 0, 8, 0).unwrap_err();
    assert_eq!(again.to_string(), error.to_string());
}
