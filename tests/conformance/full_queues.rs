//! Queues and pools that run full, and continue after progress.

use crate::place::Place;
use crate::support::{collect, headers, pattern, small};

/// Payload sizes that make short messages of one to four WQEBBs.
const SHORT_SIZES: [usize; 6] = [0, 8, 32, 90, 160, 224];
use std::cell::Cell;
use std::rc::Rc;

use barewire::{FlushMode, PostError, Posted};

pub(crate) fn messages_survive_a_full_queue(place: &Place) {
    let mut pair = place.pair_with(&small());
    let longest = pair.client.interface.attributes().am.max_short;
    let inbox = collect(&pair.server.interface, 1);
    let mut sent = Vec::new();
    for i in 0..3000u32 {
        let length = SHORT_SIZES[i as usize % SHORT_SIZES.len()].min(longest);
        let payload = pattern(i, length);
        pair.post("send", |e| e.am_short(1, i.into(), &payload)).unwrap();
        sent.push([&u64::from(i).to_le_bytes()[..], &payload].concat());
    }
    pair.until("all", || inbox.borrow().len() == sent.len());
    assert!(*inbox.borrow() == sent, "{}", pair.name);
}

/// Ten thousand messages of maximum length: every ring wraps, at every position.
pub(crate) fn ten_thousand_of_the_longest_short_messages(place: &Place) {
    let mut pair = place.pair();
    // If short messages have no limit of their own, a length that fits a buffer.
    let length = pair.client.interface.attributes().am.max_short.min(2000);
    let next = Rc::new(Cell::new(0u64));
    let seen = Rc::clone(&next);
    let check = move |message: barewire::Message<'_>| {
        let (header, payload) = message.split_short().unwrap();
        assert_eq!((header, payload.len()), (seen.get(), length));
        assert!(payload.iter().all(|&byte| byte == header as u8));
        seen.set(header + 1);
    };
    pair.server.interface.set_handler(1, check).unwrap();
    for i in 0..10_000u64 {
        pair.post("send", |e| e.am_short(1, i, &vec![i as u8; length])).unwrap();
    }
    pair.until("all", || next.get() == 10_000);
}

/// Without progress at both ends posts are eventually refused; after progress they are accepted,
/// and nothing is lost.
pub(crate) fn buffers_run_out_and_come_back(place: &Place) {
    let mut pair = place.pair_with(&small());
    let inbox = collect(&pair.server.interface, 1);
    let endpoint = pair.client.endpoint.clone();
    let length = pair.client.interface.attributes().am.max_bcopy;
    let mut sent = 0u64;
    for round in 0..5 {
        let first = sent;
        let refused = loop {
            let pack = |buffer: &mut [u8]| {
                buffer[..8].copy_from_slice(&sent.to_le_bytes());
                length
            };
            match endpoint.am_bcopy(1, pack) {
                Ok(packed) => assert_eq!(packed, length),
                Err(error) => break error,
            }
            sent += 1;
            assert!(sent - first < 1_000_000, "{}: room without end", pair.name);
        };
        assert_eq!(refused, PostError::NoResource, "{}", pair.name);
        assert!(sent > first, "{}: round {round}", pair.name);
        pair.until("messages", || inbox.borrow().len() as u64 == sent - first);
        for (i, message) in inbox.take().iter().enumerate() {
            assert_eq!(
                (message[..8].to_vec(), message.len()),
                ((first + i as u64).to_le_bytes().to_vec(), length)
            );
        }
        pair.until("room", || endpoint.flush(FlushMode::Local, None) == Ok(Posted::Done));
    }
}

/// Both ends send without progress until neither may post; after progress of both, everything
/// arrives.
pub(crate) fn two_full_ends_do_not_block_each_other(place: &Place) {
    let mut pair = place.pair_with(&small());
    let inboxes = [collect(&pair.client.interface, 1), collect(&pair.server.interface, 1)];
    let ends = [pair.client.endpoint.clone(), pair.server.endpoint.clone()];
    let sent = [Cell::new(0u64), Cell::new(0u64)];
    let post = |end: usize| {
        while sent[end].get() < 2000 {
            match ends[end].am_short(1, sent[end].get(), &[end as u8; 100]) {
                Ok(()) => sent[end].set(sent[end].get() + 1),
                Err(error) => return assert_eq!(error, PostError::NoResource),
            }
        }
    };
    pair.until("all", || {
        post(0);
        post(1);
        inboxes.iter().all(|inbox| inbox.borrow().len() == 2000)
    });
    for inbox in &inboxes {
        assert_eq!(headers(inbox), (0..2000).collect::<Vec<_>>(), "{}", pair.name);
    }
}
