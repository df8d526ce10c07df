//! What channels do over any number of rails, besides the behaviours of every channel
//! ([`crate::suite`]).

use barewire_channel::{Error, Failure, Rails, Request, Target, Usage};

use crate::pair::{Pair, SIZE, Set, Shape, config, contexts, pattern, rails, wait};

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

/// WQEs of refusals complete no request, and have to be reaped.
pub(crate) fn refusals_make_room(set: Set) {
    let mut pair = Pair::new(set, &config());
    let source = pair.source.clone();
    // More than a send queue has blocks.
    for _ in 0..if set.lossy { 300 } else { 1100 } {
        let receiving = pair.receive(0, 16, 0);
        let error = wait("the buffer", || pair.sender.send(&source, 0, 17, 0)).unwrap_err();
        assert!(matches!(error, Error::Overlong { length: 17, room: 16 }), "{error}");
        let error = wait("the refusal", || pair.receiver.test(receiving)).unwrap_err();
        assert!(matches!(error, Error::Refused { member: 0, room: 16 }), "{error}");
    }
    assert_eq!(pair.message(16, 16), (16, 16));
}

pub(crate) fn unknown_requests_are_refused(set: Set) {
    let mut pair = Pair::new(set, &config());
    for bits in [0, 1, 255, 256, 1 << 40, (1 << 62) - 1] {
        let request = Request::from_bits(bits).unwrap();
        assert!(matches!(pair.sender.test(request), Err(Error::UnknownRequest)));
        assert!(matches!(pair.receiver.test(request), Err(Error::UnknownRequest)));
    }
    for bits in [1 << 62, (1 << 63) - 1, 1 << 63, 1 << 63 | 8, u64::MAX] {
        assert_eq!(Request::from_bits(bits), None);
    }
}

pub(crate) fn wrong_regions_are_refused_without_effect(set: Set) {
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

pub(crate) fn counters_of_the_rails_add_up(set: Set) {
    let mut pair = Pair::new(set, &config().whole(100).pairs(2));
    // Short ones take turns, and long ones have a share per rail.
    let lengths = [10, 100, 128 * set.rails, 10_000, 0, 77_777];
    let in_use = pair.sender.rails();
    let mut shares = 0;
    for length in lengths.into_iter().cycle().take(60) {
        assert_eq!(pair.message(length, SIZE), (length, length));
        shares += if length > 100 { in_use as u64 } else { 1 };
    }
    let (sent, received) = (pair.sender.counters(), pair.receiver.counters());
    assert_eq!(sent.len(), set.rails);
    assert_eq!(sent, received, "both ends have the same names here");
    let sum: u64 = sent.iter().map(|rail| rail.shares).sum();
    // A rail of little weight has no share of a short message.
    let is_exact = set.shape != Shape::Weighted;
    assert!(sum == shares || (!is_exact && sum < shares), "{sent:?}");
    for (at, rail) in sent.iter().enumerate() {
        assert_eq!(rail.rail, format!("rail{at}"));
        assert_eq!((rail.in_use, rail.losses), (at < in_use, 0), "{rail:?}");
        let least = if !rail.in_use {
            0
        } else if is_exact {
            30
        } else {
            20
        };
        assert!(rail.shares >= least && (rail.in_use || rail.shares == 0), "{rail:?}");
    }
}
