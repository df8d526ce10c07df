//! Handlers and callbacks that open, drop and panic.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use barewire::{
    Access, Completion, Endpoint, Flags, FlushMode, PendingResult, PostError, Posted, TransportId,
};

use crate::place::Place;
use crate::support::{DEADLINE, Watch, collect, connect};

/// The last handle of an endpoint is dropped inside its handler.
pub(crate) fn a_handler_drops_its_endpoint(place: &Place) {
    let mut pair = place.pair();
    let (client, server) = (pair.client.another(), pair.server.another());
    connect(&client, &server);
    pair.taken_by(&[&client.endpoint, &server.endpoint]);
    let (interface, last) = (server.interface.clone(), Cell::new(Some(server.endpoint)));
    let calls = Rc::new(Cell::new(0));
    let seen = Rc::clone(&calls);
    interface
        .set_handler(1, move |message| {
            assert_eq!(message.data().len(), 8);
            drop(last.take());
            assert_eq!(message.data().len(), 8);
            seen.set(seen.get() + 1);
        })
        .unwrap();
    for i in 0..10 {
        assert_eq!(client.endpoint.am_short(1, i, &[]), Ok(()));
    }
    pair.until("first", || calls.get() > 0);
    for _ in 0..100 {
        pair.server_worker.progress();
    }
    // If the interface receives messages, closing the endpoint does not stop them. Those of XRC name
    // its receive queue.
    let flags = pair.client.interface.attributes().flags;
    let to_interface = flags.contains(Flags::CONNECT_TO_INTERFACE)
        || place.transport() == Some(TransportId::XrcMlx5);
    assert!(calls.get() == 1 || to_interface, "a closed endpoint delivers nothing");
    drop(client);
    pair.flush(FlushMode::Local);
}

/// A completion callback drops the endpoint whose operations are still completing.
pub(crate) fn a_callback_drops_its_endpoint(place: &Place) {
    let mut pair = place.pair();
    let (client, server) = (pair.client.another(), pair.server.another());
    connect(&client, &server);
    pair.taken_by(&[&client.endpoint, &server.endpoint]);
    let (target, key) = pair.target(64, Access::all());
    pair.reach(&key);
    let source = pair.client.domain.allocate(64, Access::empty()).unwrap();
    let slice = [source.slice(0, 64).unwrap()];
    let last = Rc::new(Cell::new(None));
    let inner = Rc::clone(&last);
    let first = Completion::new(move |_| drop(inner.take()));
    let endpoint = client.endpoint;
    if endpoint.put_zcopy(&slice, target.address(), &key, Some(&first)) == Ok(Posted::Done) {
        drop(first.hold());
    }
    let watches: Vec<_> = (0..10).map(|_| Watch::new(1)).collect();
    for watch in &watches {
        let completion = Some(&watch.completion);
        watch.posted(endpoint.put_zcopy(&slice, target.address(), &key, completion));
    }
    last.set(Some(endpoint));
    pair.until("all", || watches.iter().all(Watch::is_done));
    assert_eq!(first.pending(), 0);
    assert!(watches.iter().all(|watch| watch.calls() == 1));
}

/// Handlers and callbacks open, connect, flush and close endpoints.
pub(crate) fn handlers_open_and_flush(place: &Place) {
    let mut pair = place.pair();
    let inbox = collect(&pair.server.interface, 2);
    let (client, server) = (pair.client.interface.clone(), pair.server.interface.clone());
    let opened: Rc<RefCell<Vec<Endpoint>>> = Rc::default();
    let inner = Rc::clone(&opened);
    let flushed = Watch::new(3);
    let done = flushed.clone();
    pair.server
        .interface
        .set_handler(1, move |_| {
            let (from, to) = (Endpoint::new(&client).unwrap(), Endpoint::new(&server).unwrap());
            from.connect(&to.address()).unwrap();
            to.connect(&from.address()).unwrap();
            let done = done.clone();
            let mut sent = false;
            let mut start = move |from: &Endpoint| {
                sent = sent || from.am_short(2, 1, &[]).is_ok();
                match if sent {
                    from.flush(FlushMode::Remote, Some(&done.completion))
                } else {
                    Err(PostError::NoResource)
                } {
                    Err(error) => {
                        assert_eq!(error, PostError::NoResource);
                        PendingResult::Again
                    }
                    posted => {
                        done.posted(posted);
                        PendingResult::Done
                    }
                }
            };
            // If connecting takes time, later.
            if start(&from) == PendingResult::Again {
                from.pending_add(start).unwrap();
            }
            inner.borrow_mut().extend([from, to]);
        })
        .unwrap();
    for _ in 0..3 {
        pair.post("send", |e| e.am_short(1, 0, &[])).unwrap();
    }
    pair.until("all", || flushed.is_done() && inbox.borrow().len() == 3);
    assert_eq!(flushed.result(), Some(Ok(())));
    // An error handler drops the endpoint that failed.
    let failing = opened.borrow_mut().remove(0);
    let (target, key) = pair.target(8, Access::empty());
    let last = Rc::new(Cell::new(Some(failing.clone())));
    let calls = Rc::new(Cell::new(0));
    let (inner, seen) = (Rc::clone(&last), Rc::clone(&calls));
    pair.client.interface.set_error_handler(move |_| {
        seen.set(seen.get() + 1);
        drop(inner.take());
    });
    let refused = failing.put_short(&[1], target.address(), &key);
    drop(failing);
    if refused.is_ok() {
        pair.until("error", || calls.get() == 1);
    }
    pair.post("send", |e| e.am_short(2, 0, &[])).unwrap();
    pair.until("message", || inbox.borrow().len() == 4);
}

/// A panic in a handler leaves the interface usable; the handler is removed.
pub(crate) fn a_panic_in_a_handler_does_no_harm(place: &Place) {
    let mut pair = place.pair();
    pair.server.interface.set_handler(1, |_| panic!("expected by the test")).unwrap();
    let inbox = collect(&pair.server.interface, 2);
    let endpoint = pair.client.endpoint.clone();
    let mut send = || {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = endpoint.am_short(1, 0, &[]);
            let start = std::time::Instant::now();
            while start.elapsed() < DEADLINE {
                pair.worker.progress();
                pair.server_worker.progress();
            }
        }));
        assert!(caught.is_err());
    };
    send();
    for i in 0..10 {
        pair.post("after", |e| e.am_short(2, i, &[])).unwrap();
    }
    pair.until("after", || inbox.borrow().len() == 10);
    assert_eq!(pair.server.interface.unhandled(), 0);
}

/// The buffer of a pack closure stays valid, whatever the closure does to the endpoint and the
/// worker.
pub(crate) fn a_pack_closure_ends_its_connection(place: &Place) {
    for by_worker in [false, true] {
        let mut pair = place.pair();
        let inbox = collect(&pair.server.interface, 1);
        // Enough for a transport that allocates its buffers with the first messages.
        for sent in 1..=100 {
            let packed = pair.post("am_bcopy", |endpoint| endpoint.am_bcopy(1, |_| 1));
            assert_eq!(packed, Ok(1));
            pair.until("am_bcopy", || inbox.borrow().len() == sent);
        }
        // On a wire that loses packets the last messages may still be unacknowledged.
        pair.flush(FlushMode::Local);
        let (endpoint, other) = (pair.client.endpoint.clone(), pair.client.endpoint.clone());
        let worker = std::mem::replace(&mut pair.worker, barewire::Worker::new());
        let mut filled = false;
        let sent = endpoint.am_bcopy(1, |buffer| {
            if by_worker {
                drop(worker);
            } else {
                let _ = other.flush(FlushMode::Cancel, None);
            }
            buffer.fill(0x41);
            filled = buffer.iter().all(|byte| *byte == 0x41);
            8
        });
        assert!(filled, "{}: {sent:?}", pair.name);
        let after = endpoint.am_bcopy(1, |_| 0);
        assert!(matches!(after, Err(PostError::EndpointFailed | PostError::Closed)), "{after:?}");
    }
}
