//! Queues and pools that run full, and go on after progress.

use crate::support::{collect, pattern, small};

/// Payload sizes that make short messages of one to four WQEBBs.
const SHORT_SIZES: [usize; 6] = [0, 8, 32, 90, 160, 224];
use crate::place::Place;

pub(crate) fn messages_survive_a_full_queue(place: &Place) {
    let mut pair = place.pair_with(&small());
    let inbox = collect(&pair.server.interface, 1);
    let mut sent = Vec::new();
    for i in 0..3000u32 {
        let payload = pattern(i, SHORT_SIZES[i as usize % SHORT_SIZES.len()]);
        let _ = pair.post("send", |e| e.am_short(1, i.into(), &payload)).unwrap();
        sent.push([&u64::from(i).to_le_bytes()[..], &payload].concat());
    }
    pair.until("all", || inbox.borrow().len() == sent.len());
    assert!(*inbox.borrow() == sent, "{}", pair.name);
}
