//! Matching, probing and the window over real endpoints.

use barewire_wireup::tag::{Buffer, FULL_MASK, Limits, Mode, Request, Window};

use crate::support::{
    CMA, LANES, RC, SHM, TAGGED, TCP, bytes, ends, ends_with, result, settle, until,
};

#[test]
fn messages_of_a_tag_are_received_in_order_also_by_wildcards() {
    let mut ends = ends(SHM, &[CMA]);
    let targets: Vec<_> = (0..6).map(|_| Buffer::new(10_000).expect("memory")).collect();
    // Exact, wildcard, exact, exact on another tag, wildcard, all.
    let masks = [(5, FULL_MASK), (0, 0), (5, FULL_MASK), (6, FULL_MASK), (4, !3), (0, 0)];
    let receives: Vec<Request> = targets
        .iter()
        .zip(masks)
        .map(|(target, (tag, mask))| ends[1].tags.receive(tag, mask, target))
        .collect();
    // Eager and announced ones take turns.
    for (number, tag) in [5_u64, 5, 6, 5, 7, 9].into_iter().enumerate() {
        let length = if number % 2 == 0 { 16 } else { 9000 };
        drop(ends[0].tags.send(&ends[0].link, tag, &bytes(number, length)[..], Mode::Auto));
    }
    for (receive, (target, number)) in receives.iter().zip(targets.iter().zip([0, 1, 3, 2, 4, 5])) {
        let envelope = result(&mut ends, receive).expect("received");
        assert!(target.to_vec()[..envelope.length] == bytes(number, envelope.length), "{number}");
    }
}

#[test]
fn a_probed_message_is_received_by_its_handle_only() {
    let mut ends = ends(SHM, &[CMA]);
    assert!(ends[1].tags.peek(0, 0).is_none() && ends[1].tags.probe(0, 0).is_none());
    let sends: Vec<_> = [20, 50_000, 30]
        .iter()
        .map(|&length| {
            ends[0].tags.send(
                &ends[0].link,
                length as u64,
                &bytes(length, length)[..],
                Mode::Synchronous,
            )
        })
        .collect();
    until(&mut ends, "both kinds", |ends| {
        let counters = ends[1].tags.counters();
        counters.unexpected_messages == 2 && counters.announced == 1
    });
    assert_eq!(ends[1].tags.peek(0, 0).map(|envelope| envelope.length), Some(20));
    let first = ends[1].tags.probe(20, FULL_MASK).expect("there");
    let second = ends[1].tags.probe(0, 0).expect("there");
    assert_eq!((first.envelope().length, second.envelope().length), (20, 50_000));
    assert_eq!(ends[1].tags.peek(0, 0).map(|envelope| envelope.length), Some(30));
    settle(&mut ends);
    assert!(sends.iter().all(|send| send.poll().is_none()), "none is received");
    for (found, send) in [(second, &sends[1]), (first, &sends[0])] {
        let target = Buffer::new(50_000).expect("memory");
        let receive = found.receive(&target);
        let length = result(&mut ends, &receive).expect("received").length;
        assert!(target.to_vec()[..length] == bytes(length, length));
        assert!(result(&mut ends, send).is_ok());
    }
    // Dropping the handle discards the message.
    drop(ends[1].tags.probe(30, FULL_MASK));
    assert!(result(&mut ends, &sends[2]).is_ok());
    assert_eq!(ends[1].tags.counters().unexpected_messages, 0);
}

#[test]
fn a_flood_of_unexpected_messages_stays_within_the_window() {
    const MESSAGES: usize = 20_000;
    let window = Window { messages: 10, bytes: 1000 };
    for (messages, bulk) in LANES {
        let limits = Limits { window, ..Limits::default() };
        let mut ends = ends_with(messages, bulk, limits, &|_| {});
        let count = if [RC, TAGGED].contains(&messages) { MESSAGES / 10 } else { MESSAGES };
        let mut sends = Vec::new();
        for number in 0..count {
            let data = &bytes(number, 8 + number % 200)[..];
            sends.push(ends[0].tags.send(&ends[0].link, number as u64, data, Mode::Auto));
            if number % 64 == 0 {
                for end in &mut ends {
                    end.worker.progress();
                }
            }
            let counters = ends[1].tags.counters();
            assert!(
                counters.unexpected_messages <= 10 && counters.unexpected_bytes <= 1000,
                "{counters:?}"
            );
            assert!(counters.announced <= 256, "{counters:?}");
        }
        let target = Buffer::new(300).expect("memory");
        for number in 0..count {
            let receive = ends[1].tags.receive(number as u64, FULL_MASK, &target);
            let length = result(&mut ends, &receive).expect("received").length;
            assert!(target.to_vec()[..length] == bytes(number, 8 + number % 200), "{number}");
        }
        for send in &sends {
            assert!(result(&mut ends, send).is_ok());
        }
    }
}

#[test]
fn without_a_window_every_message_is_announced() {
    let limits = Limits { window: Window::CLOSED, ..Limits::default() };
    let mut ends = ends_with(TCP, &[TCP], limits, &|_| {});
    let send = ends[0].tags.send(&ends[0].link, 3, b"eight by", Mode::Eager);
    until(&mut ends, "an announcement", |ends| ends[1].tags.counters().announced == 1);
    assert!(send.poll().is_none());
    let target = Buffer::new(8).expect("memory");
    let receive = ends[1].tags.receive(3, FULL_MASK, &target);
    assert_eq!(result(&mut ends, &receive).expect("received").length, 8);
    assert_eq!(target.to_vec(), b"eight by");
    assert!(result(&mut ends, &send).is_ok());
}
