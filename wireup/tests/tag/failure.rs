//! A peer that ends, and a peer that does not follow the protocol.

use barewire_wireup::tag::{Buffer, FULL_MASK, HANDLER, Mode, TagError};

use crate::support::{CMA, End, SHM, TCP, bytes, ends, result, settle, until};

#[test]
fn requests_of_a_link_whose_peer_ended_fail_and_others_go_on() {
    let [mut here, there] = ends(TCP, &[TCP]);
    let target = Buffer::new(100_000).expect("memory");
    // Received before the end, and still there after it.
    drop(there.tags.send(&there.link, 1, b"last words", Mode::Auto));
    let announced = here.tags.send(&here.link, 2, &bytes(2, 100_000)[..], Mode::Auto);
    let synchronous = here.tags.send(&here.link, 3, b"3", Mode::Synchronous);
    let unmatched = here.tags.receive(4, FULL_MASK, &target);
    let deadline = std::time::Instant::now() + std::time::Duration::from_mins(1);
    let mut there = Some(there);
    while [&announced, &synchronous].iter().any(|request| request.poll().is_none()) {
        here.worker.progress();
        if there.is_none() {
            // A peer that closes its connection in order is noticed when the endpoint is used.
            let _ = here.link.lanes().expect("connected").messages.endpoint.check();
        }
        if here.tags.counters().unexpected_messages == 1 {
            there = None;
        }
        if let Some(End { worker, .. }) = &mut there {
            worker.progress();
        }
        assert!(std::time::Instant::now() < deadline, "{here:?}", here = here.tags);
    }
    for request in [&announced, &synchronous] {
        assert!(matches!(request.poll(), Some(Err(TagError::LinkFailed(_)))), "{request:?}");
    }
    let later = here.tags.send(&here.link, 5, b"5", Mode::Auto);
    assert!(matches!(later.poll(), Some(Err(TagError::LinkFailed(_)))), "{later:?}");
    assert_eq!(here.tags.failure(&here.link), announced.poll().and_then(Result::err));
    assert!(unmatched.poll().is_none(), "any link may match it");
    assert!(unmatched.cancel());
    let receive = here.tags.receive(1, FULL_MASK, &target);
    assert_eq!(receive.poll().map(|result| result.map(|envelope| envelope.length)), Some(Ok(10)));
    here.tags.close(&here.link);
    assert_eq!(here.tags.failure(&here.link), Some(TagError::Closed));
}

#[test]
fn a_message_that_the_protocol_does_not_allow_fails_its_link_only() {
    let mut ends = ends(SHM, &[CMA]);
    let pending = ends[1].tags.send(&ends[1].link, 1, b"wait", Mode::Synchronous);
    settle(&mut ends);
    let endpoint = &ends[0].link.lanes().expect("connected").messages.endpoint;
    // No header: no link is concerned.
    endpoint
        .am_bcopy(HANDLER, |target| {
            target[..3].fill(1);
            3
        })
        .expect("posted");
    settle(&mut ends);
    assert_eq!(ends[1].tags.failure(&ends[1].link), None);
    // A header with a number that is not the next.
    let number = ends[1].link.opening().link;
    let endpoint = &ends[0].link.lanes().expect("connected").messages.endpoint;
    let pack = |target: &mut [u8]| {
        target[..8].fill(0);
        (target[8], target[9]) = (1, 77);
        target[10..16].copy_from_slice(&number.to_le_bytes()[..6]);
        16
    };
    endpoint.am_bcopy(HANDLER, pack).expect("posted");
    assert_eq!(result(&mut ends, &pending), Err(TagError::Protocol));
    assert_eq!(ends[1].tags.failure(&ends[1].link), Some(TagError::Protocol));
}

#[test]
fn closing_a_link_ends_its_requests() {
    let mut ends = ends(SHM, &[CMA]);
    let announced = ends[0].tags.send(&ends[0].link, 1, &bytes(1, 100_000)[..], Mode::Auto);
    drop(ends[1].tags.send(&ends[1].link, 1, b"never received", Mode::Auto));
    until(&mut ends, "both", |ends| {
        ends[1].tags.counters().announced == 1 && ends[0].tags.counters().unexpected_messages == 1
    });
    ends[0].tags.close(&ends[0].link);
    assert_eq!(announced.poll(), Some(Err(TagError::Closed)));
    assert_eq!(ends[0].tags.counters().unexpected_messages, 0);
    // The peer's key is useless, and its messages go nowhere.
    let target = Buffer::new(100_000).expect("memory");
    let receive = ends[1].tags.receive(1, FULL_MASK, &target);
    assert!(matches!(result(&mut ends, &receive), Err(TagError::Transfer(_))));
    drop(ends[1].tags.send(&ends[1].link, 1, b"late", Mode::Auto));
    until(&mut ends, "a stray message", |ends| ends[0].tags.counters().stray > 0);
}
