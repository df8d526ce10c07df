//! Cancelling, dropping and closing: each operation completes once, and other endpoints are not
//! affected.

use std::cell::RefCell;
use std::rc::Rc;

use barewire::{Access, Cause, FlushMode, PostError, Posted};

use crate::place::Place;
use crate::support::{Pair, Watch, connect, post_anything, small, watch_errors};

pub(crate) fn cancel_with_nothing_outstanding(place: &Place) {
    let pair = place.pair();
    let endpoint = &pair.client.endpoint;
    let (memory, key) = pair.target(8, Access::all());
    assert_eq!(endpoint.flush(FlushMode::Cancel, None), Ok(Posted::Done));
    assert_eq!(post_anything(&pair, &memory, &key), Err(PostError::EndpointFailed));
    assert_eq!(endpoint.flush(FlushMode::Local, None), Err(PostError::EndpointFailed));
}

/// Posts long puts until there is no room. Returns the watches of those in progress.
fn in_flight(pair: &Pair) -> (Vec<Watch>, [barewire::Memory; 2]) {
    const SIZE: usize = 1 << 20;
    let (target, key) = pair.target(SIZE, Access::REMOTE_WRITE);
    let source = pair.client.domain.allocate(SIZE, Access::empty()).unwrap();
    let slice = [source.slice(0, SIZE).unwrap()];
    let mut watches = Vec::new();
    for _ in 0..30 {
        let watch = Watch::new(1);
        match pair.client.endpoint.put_zcopy(
            &slice,
            target.address(),
            &key,
            Some(&watch.completion),
        ) {
            Ok(Posted::InProgress) => watches.push(watch),
            Ok(Posted::Done) => {}
            Err(error) => {
                assert_eq!(error, PostError::NoResource, "{}", pair.name);
                break;
            }
        }
    }
    (watches, [source, target])
}

/// Asserts that each operation ended once: completed, or cancelled.
fn assert_ended_once(pair: &Pair, watches: &[Watch]) {
    for watch in watches {
        assert_eq!(watch.calls(), 1, "{}", pair.name);
        if let Some(Err(error)) = watch.result() {
            assert_eq!(error.cause, Cause::Canceled, "{}", pair.name);
        }
    }
}

pub(crate) fn cancel_completes_everything_once(place: &Place) {
    let mut pair = place.pair();
    let errors = watch_errors(&pair.client.interface);
    let (watches, _memory) = in_flight(&pair);
    let flush = Watch::new(1);
    flush.posted(pair.client.endpoint.flush(FlushMode::Cancel, Some(&flush.completion)));
    pair.until("all", || flush.is_done() && watches.iter().all(Watch::is_done));
    assert_ended_once(&pair, &watches);
    assert_eq!((flush.calls(), flush.result()), (1, Some(Ok(()))), "{}", pair.name);
    for _ in 0..100 {
        pair.worker.progress();
        pair.server_worker.progress();
    }
    assert_ended_once(&pair, &watches);
    assert!(errors.borrow().is_empty(), "{}: cancelling is no error", pair.name);
    assert_eq!(pair.client.endpoint.flush(FlushMode::Local, None), Err(PostError::EndpointFailed));
}

/// The last handle of an endpoint is dropped while its operations are in flight; another endpoint
/// continues.
pub(crate) fn dropping_an_endpoint_completes_what_is_in_flight(place: &Place) {
    let mut pair = place.pair();
    let errors = watch_errors(&pair.client.interface);
    let (other, peer) = (pair.client.another(), pair.server.another());
    connect(&other, &peer);
    let (watches, _memory) = in_flight(&pair);
    let first = std::mem::replace(&mut pair.client.endpoint, other.endpoint.clone());
    drop(first);
    pair.until("all", || watches.iter().all(Watch::is_done));
    assert_ended_once(&pair, &watches);
    assert!(errors.borrow().is_empty(), "{}", pair.name);
    pair.flush(FlushMode::Remote);
}

/// The worker is dropped while operations are in flight.
pub(crate) fn dropping_the_worker_completes_what_is_in_flight(place: &Place) {
    let mut pair = place.pair();
    let (watches, _memory) = in_flight(&pair);
    drop(std::mem::take(&mut pair.worker));
    assert!(watches.iter().all(Watch::is_done), "{}", pair.name);
    assert_ended_once(&pair, &watches);
    let endpoint = &pair.client.endpoint;
    assert_eq!(endpoint.flush(FlushMode::Local, None), Err(PostError::Closed), "{}", pair.name);
    assert_eq!(pair.client.interface.flush(None), Err(PostError::Closed), "{}", pair.name);
}

/// All objects of a user are dropped in many orders, with operations in flight and a kept message.
pub(crate) fn any_order_of_dropping_is_safe(place: &Place) {
    const THINGS: usize = 6;
    for order in 0..24_usize {
        let mut pair = place.pair_with(&small());
        let kept: Rc<RefCell<Vec<barewire::KeptMessage>>> = Rc::default();
        if pair.client.interface.attributes().am.max_bcopy > 0 {
            let inner = Rc::clone(&kept);
            let captured = pair.server.endpoint.clone();
            let keep = move |message: barewire::Message<'_>| {
                // A handler that holds an endpoint of its own interface.
                let _ = captured.error();
                inner.borrow_mut().push(message.keep());
            };
            pair.server.interface.set_handler(0, keep).unwrap();
            pair.post("send", |endpoint| endpoint.am_bcopy(0, |_| 8)).unwrap();
            pair.until("message", || kept.borrow().len() == 1);
        }
        let (watches, [source, target]) = in_flight(&pair);
        // Swapped out, because the pair checks its devices on drop.
        let (client, server) = (pair.client.another_handle(), pair.server.another_handle());
        let (client, server) = (
            std::mem::replace(&mut pair.client, client),
            std::mem::replace(&mut pair.server, server),
        );
        let mut workers =
            [std::mem::take(&mut pair.worker), std::mem::take(&mut pair.server_worker)].map(Some);
        let mut things: Vec<Option<Box<dyn FnOnce()>>> = vec![
            Some(Box::new(move || drop(client))),
            Some(Box::new(move || drop(server))),
            Some(Box::new(move || drop(source))),
            Some(Box::new(move || kept.borrow_mut().clear())),
        ];
        // The number of the order in the factorial base selects what is dropped next.
        let (mut left, mut number): (Vec<usize>, usize) = ((0..THINGS).collect(), order * 29);
        while !left.is_empty() {
            let index = left.remove(number % left.len());
            number /= left.len() + 1;
            match things.get_mut(index) {
                Some(thing) => (thing.take().unwrap())(),
                None => drop(workers[index - things.len()].take()),
            }
            for worker in workers.iter_mut().flatten() {
                worker.progress();
            }
        }
        drop(target);
        for watch in &watches {
            assert_eq!(watch.calls(), 1, "{}: order {order}", pair.name);
        }
        for device in &pair.devices {
            // The device reports accesses to memory that was dropped during use, which are
            // harmless.
            let _ = device.take_reports();
        }
    }
}
