//! Handlers and callbacks that open, drop and panic.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use barewire::{Access, Completion, Endpoint, FlushMode, InterfaceConfig, Posted};

use crate::support::{DEADLINE, Pair, Watch, collect, connect};

/// An endpoint whose last handle is dropped inside its own handler.
#[test]
fn a_handler_drops_its_endpoint() {
    for mut pair in Pair::joined(&InterfaceConfig::default()) {
        let (client, server) = (pair.client.another(), pair.server.another());
        connect(&client, &server);
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
            assert_eq!(client.endpoint.am_short(1, i, &[]), Ok(Posted::Done));
        }
        pair.until("first", || calls.get() == 1);
        for _ in 0..100 {
            pair.server_worker.progress();
        }
        assert_eq!(calls.get(), 1, "a closed endpoint delivers nothing");
        drop(client);
        pair.flush(FlushMode::Local);
    }
}

/// A completion callback that drops the endpoint whose operations are still completing.
#[test]
fn a_callback_drops_its_endpoint() {
    for mut pair in Pair::joined(&InterfaceConfig::default()) {
        let (client, server) = (pair.client.another(), pair.server.another());
        connect(&client, &server);
        let (target, key) = pair.target(64, Access::all());
        let source = pair.client.domain.allocate(64, Access::empty()).unwrap();
        let slice = [source.slice(0, 64).unwrap()];
        let last = Rc::new(Cell::new(None));
        let inner = Rc::clone(&last);
        let first = Completion::new(1, move |_| drop(inner.take()));
        let endpoint = client.endpoint;
        let post = endpoint.put_zcopy(&slice, target.address(), &key, Some(&first));
        assert_eq!(post, Ok(Posted::InProgress));
        let watches: Vec<_> = (0..10).map(|_| Watch::new(1)).collect();
        for watch in &watches {
            let completion = Some(&watch.completion);
            let post = endpoint.put_zcopy(&slice, target.address(), &key, completion);
            assert_eq!(post, Ok(Posted::InProgress));
        }
        last.set(Some(endpoint));
        pair.until("all", || watches.iter().all(Watch::is_done));
        assert_eq!(first.pending(), 0);
        assert!(watches.iter().all(|watch| watch.calls() == 1));
    }
}

/// Handlers and callbacks open, connect, flush and close endpoints.
#[test]
fn handlers_open_and_flush() {
    for mut pair in Pair::joined(&InterfaceConfig::default()) {
        let inbox = collect(&pair.server.interface, 2);
        let (client, server) = (pair.client.interface.clone(), pair.server.interface.clone());
        let opened: Rc<RefCell<Vec<Endpoint>>> = Rc::default();
        let inner = Rc::clone(&opened);
        let flushed = Watch::new(3);
        let done = flushed.completion.clone();
        pair.server
            .interface
            .set_handler(1, move |_| {
                let (from, to) = (Endpoint::new(&client).unwrap(), Endpoint::new(&server).unwrap());
                from.connect(&server.device_address(), &to.address()).unwrap();
                to.connect(&client.device_address(), &from.address()).unwrap();
                assert_eq!(from.am_short(2, 1, &[]), Ok(Posted::Done));
                let post = from.flush(FlushMode::Remote, Some(&done)).unwrap();
                assert_eq!(post, Posted::InProgress);
                inner.borrow_mut().extend([from, to]);
            })
            .unwrap();
        for _ in 0..3 {
            let _ = pair.post("send", |e| e.am_short(1, 0, &[])).unwrap();
        }
        pair.until("all", || flushed.is_done() && inbox.borrow().len() == 3);
        assert_eq!(flushed.result(), Some(Ok(())));
        // An error handler that drops the endpoint that failed.
        let failing = opened.borrow_mut().remove(0);
        let (target, key) = pair.target(8, Access::empty());
        let last = Rc::new(Cell::new(Some(failing.clone())));
        let calls = Rc::new(Cell::new(0));
        let (inner, seen) = (Rc::clone(&last), Rc::clone(&calls));
        pair.client.interface.set_error_handler(move |_| {
            seen.set(seen.get() + 1);
            drop(inner.take());
        });
        assert_eq!(failing.put_short(&[1], target.address(), &key), Ok(Posted::Done));
        drop(failing);
        pair.until("error", || calls.get() == 1);
        let _ = pair.post("send", |e| e.am_short(2, 0, &[])).unwrap();
        pair.until("message", || inbox.borrow().len() == 4);
    }
}

/// A panic in a handler leaves the interface usable; the handler is gone.
#[test]
fn a_panic_in_a_handler_does_no_harm() {
    for mut pair in Pair::all() {
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
            let _ = pair.post("after", |e| e.am_short(2, i, &[])).unwrap();
        }
        pair.until("after", || inbox.borrow().len() == 10);
        assert_eq!(pair.server.interface.unhandled(), 0);
    }
}

/// A panic in a completion callback: the operations behind it complete all the same, and the queue goes on.
#[test]
fn a_panic_in_a_callback_does_no_harm() {
    let mut pair = Pair::stepped(&InterfaceConfig::default());
    let (target, key) = pair.target(64, Access::all());
    let source = pair.client.domain.allocate(64, Access::empty()).unwrap();
    let slice = [source.slice(0, 64).unwrap()];
    let endpoint = pair.client.endpoint.clone();
    let bad = Completion::new(1, |_| panic!("expected by the test"));
    let watches: Vec<_> = (0..5).map(|_| Watch::new(1)).collect();
    // All of them are covered by the completion of the last.
    let _ = endpoint.put_bcopy(|_| 8, target.address(), &key).unwrap();
    let _ = endpoint.flush(FlushMode::Local, Some(&bad)).unwrap();
    for watch in &watches {
        let _ = endpoint.flush(FlushMode::Local, Some(&watch.completion)).unwrap();
    }
    while pair.devices[0].step() {}
    let worker = &mut pair.worker;
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| while worker.progress() > 0 {}));
    assert!(caught.is_err());
    pair.settle();
    for watch in &watches {
        assert_eq!((watch.calls(), watch.result()), (1, Some(Ok(()))));
    }
    assert_eq!(endpoint.flush(FlushMode::Local, None), Ok(Posted::Done));
    let watch = Watch::new(1);
    let post = endpoint.put_zcopy(&slice, target.address(), &key, Some(&watch.completion));
    assert_eq!(post, Ok(Posted::InProgress));
    pair.settle();
    assert_eq!(watch.result(), Some(Ok(())));
}
