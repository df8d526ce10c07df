//! Pending requests: no post overtakes them, each gets its turn, and each runs or is purged once.
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use barewire::error::Busy;
use barewire::{Endpoint, FlushMode, PendingRequest, PendingResult, PostError};

use crate::place::Place;
use crate::support::{DEADLINE, Watch, collect, connect, fill, headers, send_later, small};

/// Posts do not overtake pending requests on their endpoint; other endpoints are not affected.
pub(crate) fn pending_requests_keep_order(place: &Place) {
    let mut pair = place.pair_with(&small());
    let inbox = collect(&pair.server.interface, 1);
    let other_inbox = collect(&pair.server.interface, 2);
    let (other, other_peer) = (pair.client.another(), pair.server.another());
    connect(&other, &other_peer);
    let endpoint = pair.client.endpoint.clone();
    assert_eq!(endpoint.pending_add(|_| PendingResult::Done), Err(Busy));
    let first = fill(&endpoint, 1);
    for i in first..first + 20 {
        endpoint.pending_add(send_later(1, i)).unwrap();
    }
    let mut next = first + 20;
    pair.until("all", || {
        // A direct post is refused while requests are pending, even if there is room.
        match endpoint.am_short(1, next, &[]) {
            Ok(()) => next += 1,
            Err(error) => {
                assert_eq!(error, PostError::NoResource);
                let busy = endpoint.pending_add(|_| panic!("purged before it ran"));
                if busy.is_ok() {
                    // Accepted: there are requests before it, or there is no room. Purges the whole
                    // queue; the order is checked below.
                    let mut purged = 0;
                    endpoint.pending_purge(|| purged += 1);
                    for i in next - (purged - 1)..next {
                        endpoint.pending_add(send_later(1, i)).unwrap_or_else(|Busy| {
                            assert_eq!(send_later(1, i)(&endpoint), PendingResult::Done);
                        });
                    }
                }
            }
        }
        let _ = other.endpoint.am_short(2, 0, &[]);
        headers(&inbox).len() as u64 >= first + 20 && !other_inbox.borrow().is_empty()
    });
    let got = headers(&inbox);
    assert_eq!(got, (0..got.len() as u64).collect::<Vec<_>>(), "{}", pair.name);
}

/// A request that is deferred although there are resources waits for nothing that could end a sleep.
pub(crate) fn a_deferred_request_runs_before_a_sleep(place: &Place) {
    let mut pair = place.pair();
    pair.connected();
    let inbox = collect(&pair.server.interface, 1);
    // Nothing is outstanding any more.
    pair.flush(FlushMode::Remote);
    while pair.worker.progress() + pair.server_worker.progress() > 0 {}
    let endpoint = pair.client.endpoint.clone();
    for header in 0..3 {
        endpoint.pending_defer(PendingRequest::new(send_later(1, header))).unwrap();
    }
    let slept = Instant::now();
    pair.worker.wait(Some(DEADLINE)).unwrap();
    assert!(slept.elapsed() < DEADLINE / 2, "{}: it sleeps before a request has run", pair.name);
    pair.until("the messages", || inbox.borrow().len() == 3);
    assert_eq!(headers(&inbox), [0, 1, 2], "{}", pair.name);
}

/// A flush inside a pending request, and a request added inside a request.
pub(crate) fn pending_requests_flush_and_add(place: &Place) {
    let mut pair = place.pair_with(&small());
    let endpoint = pair.client.endpoint.clone();
    let inbox = collect(&pair.server.interface, 1);
    let filled = fill(&endpoint, 1);
    let watch = Watch::new(1);
    let flush = watch.clone();
    let mut added = false;
    let request = move |endpoint: &Endpoint| {
        if !added {
            endpoint.pending_add(send_later(1, filled)).unwrap();
            added = true;
        }
        match endpoint.flush(FlushMode::Local, Some(&flush.completion)) {
            Err(_) => PendingResult::Again,
            posted => {
                flush.posted(posted);
                PendingResult::Done
            }
        }
    };
    endpoint.pending_add(request).unwrap();
    pair.until("all", || watch.is_done() && inbox.borrow().len() as u64 == filled + 1);
    assert_eq!(headers(&inbox), (0..=filled).collect::<Vec<_>>());
    assert_eq!(watch.calls(), 1);
}

/// Every waiting request is handed back once, and none of them runs.
pub(crate) fn pending_requests_are_purged_once(place: &Place) {
    let mut pair = place.pair_with(&small());
    let inbox = collect(&pair.server.interface, 1);
    let endpoint = pair.client.endpoint.clone();
    let filled = fill(&endpoint, 1);
    let ran = Rc::new(Cell::new(0));
    for _ in 0..7 {
        let ran = Rc::clone(&ran);
        let request = move |_: &Endpoint| {
            ran.set(ran.get() + 1);
            PendingResult::Done
        };
        endpoint.pending_add(request).unwrap();
    }
    let mut purged = 0;
    endpoint.pending_purge(|| purged += 1);
    endpoint.pending_purge(|| purged += 100);
    assert_eq!((purged, ran.get()), (7, 0), "{}", pair.name);
    pair.until("messages", || inbox.borrow().len() as u64 == filled);
    pair.until("the gate is open again", || endpoint.am_short(1, filled, &[]).is_ok());
    pair.until("last", || inbox.borrow().len() as u64 == filled + 1);
    assert_eq!(ran.get(), 0, "{}", pair.name);
}

/// A waiting request does not keep its endpoint open: with the last handle, the endpoint is closed and
/// the requests are dropped, which may call the interface.
pub(crate) fn requests_are_dropped_with_their_endpoint(place: &Place) {
    #[derive(Default)]
    struct Counts {
        dropped: Cell<u32>,
        sent: Cell<usize>,
    }

    struct Sends(Endpoint, Rc<Counts>);

    impl Drop for Sends {
        fn drop(&mut self) {
            self.1.dropped.set(self.1.dropped.get() + 1);
            // Endpoints of some transports share their resources.
            self.1.sent.set(self.1.sent.get() + usize::from(self.0.am_short(2, 0, &[]).is_ok()));
        }
    }

    let mut pair = place.pair_with(&small());
    pair.connected();
    let (other, peer) = (pair.client.another(), pair.server.another());
    connect(&other, &peer);
    pair.taken_by(&[&other.endpoint, &peer.endpoint]);
    let counts: Rc<Counts> = Rc::default();
    fill(&other.endpoint, 1);
    for _ in 0..3 {
        let sends = Sends(pair.client.endpoint.clone(), Rc::clone(&counts));
        let request = move |_: &Endpoint| {
            let _ = &sends;
            panic!("the endpoint is closed")
        };
        other.endpoint.pending_add(request).unwrap();
    }
    let inbox = collect(&pair.server.interface, 2);
    drop(other.endpoint);
    assert_eq!(counts.dropped.get(), 3, "{}: requests outlive their endpoint", pair.name);
    pair.until("the messages", || inbox.borrow().len() == counts.sent.get());
}

/// A request that adds another one does not keep progress from returning.
pub(crate) fn a_request_that_defers_another_runs_once_per_progress(place: &Place) {
    const RUNS: u32 = 5;

    fn defer(endpoint: &Endpoint, ran: &Rc<Cell<u32>>) {
        let ran = Rc::clone(ran);
        let request = PendingRequest::new(move |endpoint| {
            ran.set(ran.get() + 1);
            if ran.get() < RUNS {
                defer(endpoint, &ran);
            }
            PendingResult::Done
        });
        endpoint.pending_defer(request).unwrap();
    }

    let mut pair = place.pair();
    pair.connected();
    let ran: Rc<Cell<u32>> = Rc::default();
    defer(&pair.client.endpoint, &ran);
    let start = Instant::now();
    while ran.get() < RUNS {
        let before = ran.get();
        pair.worker.progress();
        assert!(ran.get() - before <= 1, "{}: {} requests ran", pair.name, ran.get() - before);
        pair.server_worker.progress();
        assert!(start.elapsed() < DEADLINE, "{}: {} requests ran", pair.name, ran.get());
    }
}

/// Endpoints with pending requests take turns: one does not wait for all requests of another.
pub(crate) fn pending_requests_take_turns(place: &Place) {
    const EACH: usize = 60;
    // All have receive buffers: a peer without one delays one endpoint, and the other goes on.
    let mut pair = place.pair_with(&small().receive_ring(256));
    let (other, peer) = (pair.client.another(), pair.server.another());
    connect(&other, &peer);
    pair.taken_by(&[&other.endpoint, &peer.endpoint]);
    let order: Rc<RefCell<Vec<usize>>> = Rc::default();
    let endpoints = [pair.client.endpoint.clone(), other.endpoint.clone()];
    // Both are full, so that requests of both wait.
    for endpoint in &endpoints {
        fill(endpoint, 1);
    }
    for (i, endpoint) in endpoints.iter().enumerate() {
        for _ in 0..EACH {
            let order = Rc::clone(&order);
            let request = move |endpoint: &Endpoint| match endpoint.am_short(1, 0, &[0; 160]) {
                Ok(()) => {
                    order.borrow_mut().push(i);
                    PendingResult::Done
                }
                Err(_) => PendingResult::Again,
            };
            endpoint.pending_add(request).unwrap();
        }
    }
    pair.until("all", || order.borrow().len() == 2 * EACH);
    let order = order.borrow();
    let last_of_first = order.iter().rposition(|&i| i == 0).unwrap();
    let of_second = order[..last_of_first].iter().filter(|&&i| i == 1).count();
    assert!(of_second > EACH / 4, "{}: {order:?}", pair.name);
}
