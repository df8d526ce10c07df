//! Panics of user code: endpoints stay usable, nothing is lost, and nothing completes twice.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use barewire::{
    Access, Completion, Endpoint, Flags, PendingResult, Post, PostError, Posted, Slice, Unpack,
    Worker,
};

use crate::place::Place;
use crate::processes::{End, Peer};
use crate::support::{Pair, Watch, collect, fill, headers, send_later, small, until};

const EXPECTED: &str = "expected by the test";

/// Like `panic!`, without a message on standard error.
pub(crate) fn user_panics() -> ! {
    resume_unwind(Box::new(EXPECTED))
}

/// Makes progress until `done`. Returns the number of panics that unwound out of progress.
pub(crate) fn until_through_panics(
    workers: &mut [&mut Worker],
    what: &str,
    mut done: impl FnMut() -> bool,
) -> usize {
    let mut panics = 0;
    loop {
        let progress = AssertUnwindSafe(|| until(workers, what, &mut done));
        match catch_unwind(progress) {
            Ok(()) => return panics,
            Err(panic) if panic.downcast_ref() == Some(&EXPECTED) => panics += 1,
            Err(panic) => resume_unwind(panic),
        }
    }
}

pub(crate) fn both(pair: &mut Pair) -> (String, [&mut Worker; 2]) {
    (pair.name.to_owned(), [&mut pair.worker, &mut pair.server_worker])
}

/// The other requests run in order, and posts are accepted after them.
pub(crate) fn a_pending_request_that_panics_leaves_the_endpoint_usable(place: &Place) {
    let mut pair = place.pair_with(&small());
    let inbox = collect(&pair.server.interface, 1);
    let endpoint = pair.client.endpoint.clone();
    let first = fill(&endpoint, 1);
    let ran = Rc::new(Cell::new(0));
    for i in first..first + 20 {
        if i % 2 == 0 {
            let ran = Rc::clone(&ran);
            let request = move |_: &Endpoint| {
                ran.set(ran.get() + 1);
                user_panics();
            };
            endpoint.pending_add(request).unwrap();
        }
        endpoint.pending_add(send_later(1, i)).unwrap();
    }
    let (name, mut workers) = both(&mut pair);
    let all = || headers(&inbox).len() as u64 == first + 20;
    let panics = until_through_panics(&mut workers, &name, all);
    assert_eq!((panics, ran.get()), (10, 10), "{name}: each ran once");
    assert_eq!(headers(&inbox), (0..first + 20).collect::<Vec<_>>(), "{name}");
    pair.post("a post", |e| e.am_short(1, first + 20, &[])).unwrap();
    pair.until("its message", || headers(&inbox).len() as u64 == first + 21);
}

/// The same for a request that waits for a copy in progress.
pub(crate) fn a_request_that_panics_behind_puts(place: &Place) {
    const LENGTH: usize = 1 << 20;
    let mut pair = place.pair_with(&small());
    let (target, key) = pair.target(LENGTH, Access::all());
    let source = pair.client.domain.allocate(LENGTH, Access::empty()).unwrap();
    let slice = [source.slice(0, LENGTH).unwrap()];
    let endpoint = pair.client.endpoint.clone();
    let put = || endpoint.put_zcopy(&slice, target.address(), &key, None);
    // Transports that complete puts immediately never let a request wait for them.
    while put() == Ok(Posted::InProgress) {}
    if put() != Err(PostError::NoResource) || endpoint.pending_add(|_| user_panics()).is_err() {
        return;
    }
    let ran = Rc::new(Cell::new(false));
    let seen = Rc::clone(&ran);
    let request = move |_: &Endpoint| {
        seen.set(true);
        PendingResult::Done
    };
    endpoint.pending_add(request).unwrap();
    let (name, mut workers) = both(&mut pair);
    assert_eq!(until_through_panics(&mut workers, &name, || ran.get()), 1, "{name}");
    pair.until("a post", || put().is_ok());
}

/// Runs the callback if the post was done at once, in which case the caller gets its panic.
fn finish(posted: Post, completion: &Completion) -> usize {
    let Posted::Done = posted.unwrap() else { return 0 };
    usize::from(catch_unwind(AssertUnwindSafe(|| drop(completion.hold()))).is_err())
}

/// Later operations complete once, and the completion can be used again.
pub(crate) fn a_completion_callback_that_panics_loses_nothing(place: &Place) {
    let mut pair = place.pair();
    let (target, key) = pair.target(64, Access::all());
    pair.reach(&key);
    let source = pair.client.domain.allocate(64, Access::empty()).unwrap();
    let slice: [Slice<'_>; 1] = [source.slice(0, 64).unwrap()];
    let calls = Rc::new(Cell::new(0));
    let seen = Rc::clone(&calls);
    let bad = Completion::new(move |_| {
        seen.set(seen.get() + 1);
        user_panics();
    });
    for round in 1..=3 {
        let watches: Vec<_> = (0..6).map(|_| Watch::new(1)).collect();
        let mut panics = 0;
        for (i, watch) in watches.iter().enumerate() {
            if i == 2 {
                let put = |e: &Endpoint| e.put_zcopy(&slice, target.address(), &key, Some(&bad));
                panics += finish(put(&pair.client.endpoint), &bad);
            }
            watch.posted(pair.client.endpoint.put_zcopy(
                &slice,
                target.address(),
                &key,
                Some(&watch.completion),
            ));
        }
        let (name, mut workers) = both(&mut pair);
        let all = || calls.get() == round && watches.iter().all(Watch::is_done);
        panics += until_through_panics(&mut workers, &name, all);
        assert_eq!(panics, 1, "{name}");
        assert!(
            watches.iter().all(|watch| watch.calls() == 1 && watch.result() == Some(Ok(()))),
            "{name}"
        );
        assert_eq!(bad.pending(), 0, "{name}");
    }
}

/// The completion of the get is counted down nevertheless.
pub(crate) fn an_unpack_function_that_panics_completes_its_get(place: &Place) {
    let mut pair = place.pair();
    let (target, key) = pair.target(64, Access::all());
    pair.reach(&key);
    let bad = Unpack::new(|_| user_panics());
    let watch = Watch::new(1);
    let endpoint = pair.client.endpoint.clone();
    let get = || endpoint.get_bcopy(&bad, 64, target.address(), &key, Some(&watch.completion));
    // Transports that complete immediately panic in the post, and count nothing down.
    if let Ok(posted) = catch_unwind(AssertUnwindSafe(get)) {
        assert_eq!(posted, Ok(Posted::InProgress));
        let (name, mut workers) = both(&mut pair);
        assert_eq!(until_through_panics(&mut workers, &name, || watch.is_done()), 1, "{name}");
        assert_eq!((watch.calls(), watch.result()), (1, Some(Ok(()))), "{name}");
    }
    let good = Watch::new(1);
    let unpack = Unpack::new(|data| assert_eq!(data.len(), 64));
    good.posted(
        pair.post("get", |e| {
            e.get_bcopy(&unpack, 64, target.address(), &key, Some(&good.completion))
        }),
    );
    pair.until("get", || good.is_done());
}

/// Later messages are delivered, once and in order.
pub(crate) fn a_message_handler_that_panics_loses_no_message(place: &Place) {
    let mut pair = place.pair();
    let seen: Rc<RefCell<Vec<u64>>> = Rc::default();
    let inbox = Rc::clone(&seen);
    let handler = move |message: barewire::Message<'_>| {
        let (header, _) = message.split_short().unwrap();
        inbox.borrow_mut().push(header);
        if header % 7 == 3 {
            user_panics();
        }
    };
    pair.server.interface.set_handler(1, handler).unwrap();
    let endpoint = pair.client.endpoint.clone();
    let mut panics = 0;
    for i in 0..50 {
        // Over `self` the handler runs inside the post.
        let sent = catch_unwind(AssertUnwindSafe(|| endpoint.am_short(1, i, &[])));
        match sent {
            Ok(sent) => assert_eq!(sent, Ok(())),
            Err(_) => panics += 1,
        }
    }
    let (name, mut workers) = both(&mut pair);
    panics += until_through_panics(&mut workers, &name, || seen.borrow().len() == 50);
    assert_eq!(*seen.borrow(), (0..50).collect::<Vec<_>>(), "{name}");
    assert_eq!(panics, 7, "{name}");
}

/// Two peers end. The error handler panics for the first, and is called for the second; every
/// operation completes once, also with callbacks that panic.
pub(crate) fn an_error_handler_that_panics_is_called_for_every_endpoint(place: &Place) {
    let Some([here, there]) = place.ends() else { return };
    let mut peers = [Peer::start(there), Peer::start(there)];
    let mut end = End::open(here.0, here.1);
    let reports: Rc<RefCell<Vec<String>>> = Rc::default();
    let seen = Rc::clone(&reports);
    end.interface.set_error_handler(move |error| {
        seen.borrow_mut().push(error.to_string());
        user_panics();
    });
    let second = Endpoint::new(&end.interface).unwrap();
    let mut other = End {
        endpoint: second,
        worker: Worker::new(),
        domain: end.domain.clone(),
        interface: end.interface.clone(),
        memory: end.domain.allocate(8, Access::all()).unwrap(),
    };
    let mut targets = Vec::new();
    for (peer, end) in peers.iter_mut().zip([&end, &other]) {
        peer.tell(&end.introduction());
        let (key, remote) = end.connect(&peer.introduction);
        targets.push((end.domain.unpack_key(&key).unwrap(), remote));
    }
    let endpoints = [end.endpoint.clone(), other.endpoint.clone()];
    let by_message = !end.interface.attributes().flags.contains(Flags::PUT_ZCOPY);
    let slice = [end.memory.slice(0, 512).unwrap()];
    let post = |i: usize, completion: &Completion| {
        if by_message {
            endpoints[i].am_zcopy(0, &[], &slice, Some(completion))
        } else {
            endpoints[i].put_zcopy(&slice, targets[i].1, &targets[i].0, Some(completion))
        }
    };
    let what = place.name.clone();
    for i in 0..2 {
        let watch = Watch::new(1);
        until(&mut [&mut end.worker], &what, || match post(i, &watch.completion) {
            Ok(posted) => {
                watch.posted(Ok(posted));
                true
            }
            Err(error) => {
                assert_eq!(error, PostError::NoResource, "{what}");
                false
            }
        });
        until(&mut [&mut end.worker], &what, || watch.is_done());
    }
    peers.iter_mut().for_each(Peer::kill);
    let calls: Rc<Cell<usize>> = Rc::default();
    let mut posted = 0;
    let failed = || {
        for i in 0..2 {
            let seen = Rc::clone(&calls);
            let bad = Completion::new(move |_| {
                seen.set(seen.get() + 1);
                user_panics();
            });
            posted += usize::from(post(i, &bad) == Ok(Posted::InProgress));
        }
        endpoints.iter().all(|endpoint| endpoint.error().is_some()) && reports.borrow().len() == 2
    };
    until_through_panics(&mut [&mut end.worker], &what, failed);
    until_through_panics(&mut [&mut end.worker], &what, || calls.get() == posted);
    // Nothing is reported twice.
    for _ in 0..100 {
        end.worker.progress();
    }
    assert_eq!(
        (calls.get(), reports.borrow().len()),
        (posted, 2),
        "{what}: {:?}",
        reports.borrow()
    );
    for endpoint in &endpoints {
        let flush = endpoint.flush(barewire::FlushMode::Local, None);
        assert_eq!(flush, Err(PostError::EndpointFailed), "{what}");
    }
    other.worker.progress();
}
