//! Cancellation, futures, and handles that are dropped early.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use barewire_wireup::tag::{Buffer, FULL_MASK, Mode, TagError};

use crate::support::{CMA, LANES, SHM, bytes, ends, result, settle, until};

#[test]
fn a_cancelled_request_ends_once() {
    for (messages, bulk) in LANES {
        let mut ends = ends(messages, bulk);
        let target = Buffer::new(100_000).expect("memory");
        // A receive that is not matched.
        let receive = ends[1].tags.receive(1, FULL_MASK, &target);
        assert!(receive.cancel());
        assert_eq!(result(&mut ends, &receive), Err(TagError::Canceled));
        assert!(!receive.cancel(), "it is complete");
        // An eager message has left: too late.
        let eager = ends[0].tags.send(&ends[0].link, 1, b"eager", Mode::Auto);
        assert!(result(&mut ends, &eager).is_ok());
        assert!(!eager.cancel());
        // An announced one is withdrawn.
        let announced = ends[0].tags.send(&ends[0].link, 2, &bytes(2, 100_000)[..], Mode::Auto);
        until(&mut ends, "an announcement", |ends| ends[1].tags.counters().announced == 1);
        assert!(announced.cancel());
        assert_eq!(result(&mut ends, &announced), Err(TagError::Canceled));
        assert_eq!(ends[1].tags.counters().announced, 0);
        // One that is matched meanwhile is received.
        let late = ends[0].tags.send(&ends[0].link, 3, &bytes(3, 100_000)[..], Mode::Auto);
        until(&mut ends, "an announcement", |ends| ends[1].tags.counters().announced == 1);
        let receive = ends[1].tags.receive(3, FULL_MASK, &target);
        assert!(!receive.cancel() || receive.poll().is_none(), "matched");
        assert!(late.cancel() || late.poll().is_some());
        assert!(result(&mut ends, &receive).is_ok() && result(&mut ends, &late).is_ok());
        assert!(target.to_vec() == bytes(3, 100_000));
        // The cancelled receive took nothing.
        let receive = ends[1].tags.receive(1, FULL_MASK, &target);
        assert_eq!(result(&mut ends, &receive).map(|envelope| envelope.length), Ok(5));
    }
}

#[test]
fn a_synchronous_send_waits_for_its_receive() {
    let mut ends = ends(SHM, &[CMA]);
    let send = ends[0].tags.send(&ends[0].link, 1, b"now?", Mode::Synchronous);
    until(&mut ends, "the message", |ends| ends[1].tags.counters().unexpected_messages == 1);
    settle(&mut ends);
    assert_eq!(send.poll(), None);
    assert!(!send.cancel(), "it has left");
    let target = Buffer::new(4).expect("memory");
    let receive = ends[1].tags.receive(1, FULL_MASK, &target);
    assert!(receive.poll().is_some_and(|result| result.is_ok()), "it was there");
    assert!(result(&mut ends, &send).is_ok());
}

#[test]
fn dropping_handles_and_buffers_early_does_no_harm() {
    for (messages, bulk) in LANES {
        let mut ends = ends(messages, bulk);
        for round in 0..20 {
            let source = Buffer::from_bytes(&bytes(round, 500_000)).expect("memory");
            let target = Buffer::new(500_000).expect("memory");
            drop(ends[0].tags.send(&ends[0].link, 1, &source, Mode::Auto));
            drop(ends[1].tags.receive(1, FULL_MASK, &target));
            drop(source);
            if round % 2 == 0 {
                drop(target);
            } else {
                until(&mut ends, "the data", |_| target.to_vec() == bytes(round, 500_000));
            }
        }
        // Also in the middle of transfers.
        for _ in 0..8 {
            let source = Buffer::from_bytes(&bytes(1, 500_000)).expect("memory");
            let target = Buffer::new(500_000).expect("memory");
            drop(ends[0].tags.send(&ends[0].link, 2, &source, Mode::Auto));
            drop(ends[1].tags.receive(2, FULL_MASK, &target));
            for end in &mut ends {
                end.worker.progress();
            }
        }
    }
}

#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_request_is_a_future() {
    let mut ends = ends(SHM, &[CMA]);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let target = Buffer::new(10).expect("memory");
    let mut receive = ends[1].tags.receive(1, FULL_MASK, &target);
    assert_eq!(Future::poll(Pin::new(&mut receive), &mut context), Poll::Pending);
    assert_eq!(Future::poll(Pin::new(&mut receive), &mut context), Poll::Pending);
    drop(ends[0].tags.send(&ends[0].link, 1, b"wake up", Mode::Auto));
    until(&mut ends, "the waker", |_| woken.0.load(Ordering::Relaxed) == 1);
    let Poll::Ready(Ok(envelope)) = Future::poll(Pin::new(&mut receive), &mut context) else {
        panic!("it was woken")
    };
    assert_eq!(envelope.length, 7);
}
