//! Pending requests: no post overtakes them, each gets its turn, and each runs or is purged once.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use barewire::error::Busy;
use barewire::{Access, Endpoint, InterfaceConfig, PendingResult, Posted};

use crate::support::{Pair, collect, connect, fill, headers, send_later, small};

/// A refused post can become a pending request: otherwise a caller that tries one and then the
/// other would loop forever.
#[test]
fn what_is_refused_may_wait() {
    let mut pair = Pair::stepped(&small());
    let (memory, key) = pair.target(256, Access::REMOTE_WRITE);
    let endpoint = pair.client.endpoint.clone();
    for first in 0..16 {
        for _ in 0..first {
            assert_eq!(endpoint.put_short(&[], memory.address(), &key), Ok(()));
        }
        // Puts of four WQEBBs.
        while endpoint.put_short(&[1; 220], memory.address(), &key).is_ok() {}
        assert_eq!(endpoint.pending_add(|_| PendingResult::Done), Ok(()), "{first}");
        pair.settle();
        assert_eq!(endpoint.pending_add(|_| PendingResult::Done), Err(Busy));
        pair.flush_stepped();
    }
}

/// Requests that wait over one transport go to another one, in order.
#[test]
fn pending_requests_move_to_another_transport() {
    let mut from = Pair::stepped(&small());
    let mut to = Pair::over_shm(&InterfaceConfig::default());
    let inbox = collect(&to.server.interface, 1);
    let (source, target) = (from.client.endpoint.clone(), to.client.endpoint.clone());
    let filled = fill(&source, 1);
    for header in 0..5 {
        source.pending_add(send_later(1, header)).unwrap();
    }
    let taken = source.pending_take();
    assert!(source.pending_take().is_empty());
    for request in taken {
        target.pending_defer(request).unwrap();
    }
    to.until("the messages", || inbox.borrow().len() == 5);
    assert_eq!(headers(&inbox), [0, 1, 2, 3, 4]);
    let before = collect(&from.server.interface, 1);
    from.settle();
    assert_eq!(headers(&before).len() as u64, filled, "none ran where it was taken from");
    assert_eq!(source.am_short(1, 0, &[]), Ok(()), "posts are accepted again");
}

/// Endpoints whose requests wait for a common resource take turns.
#[test]
fn pending_requests_take_turns() {
    let mut pair = Pair::stepped(&small().bcopy_buffers(1));
    let (a, peer_a) = (pair.client.another(), pair.server.another());
    let (b, peer_b) = (pair.client.another(), pair.server.another());
    connect(&a, &peer_a);
    connect(&b, &peer_b);
    let order: Rc<RefCell<Vec<usize>>> = Rc::default();
    let endpoints = [&a.endpoint, &b.endpoint, &pair.client.endpoint];
    assert_eq!(endpoints[0].am_bcopy(1, |_| 1), Ok(1));
    for (i, endpoint) in endpoints.iter().enumerate() {
        for _ in 0..4 {
            let order = Rc::clone(&order);
            let request = move |endpoint: &Endpoint| match endpoint.am_bcopy(1, |_| 1) {
                Ok(_) => {
                    order.borrow_mut().push(i);
                    PendingResult::Done
                }
                Err(_) => PendingResult::Again,
            };
            endpoint.pending_add(request).unwrap();
        }
    }
    pair.settle();
    // One buffer: one request at a time, in turn.
    assert_eq!(*order.borrow(), [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

/// When a callback runs, the credits of its operation are not returned yet, so a post of the
/// callback that finds the queue full does not overtake a pending request.
#[test]
fn callbacks_do_not_overtake_pending_requests() {
    for mut pair in Pair::rc(&small()) {
        let inbox = collect(&pair.server.interface, 1);
        let endpoint = pair.client.endpoint.clone();
        let source = pair.client.domain.allocate(64, Access::empty()).unwrap();
        let slice = [source.slice(0, 8).unwrap()];
        let overtook = Rc::new(Cell::new(0));
        let (poster, count) = (endpoint.clone(), Rc::clone(&overtook));
        let done = barewire::Completion::new(move |_| {
            if poster.am_short(1, u64::MAX, &[]).is_ok() {
                count.set(count.get() + 1);
            }
        });
        let post = endpoint.am_zcopy(2, &[], &slice, Some(&done));
        assert_eq!(post, Ok(Posted::InProgress));
        let filled = fill(&endpoint, 1);
        endpoint.pending_add(send_later(1, filled)).unwrap();
        pair.until("all", || inbox.borrow().len() as u64 == filled + 1 && done.pending() == 0);
        assert_eq!(overtook.get(), 0);
        assert_eq!(headers(&inbox), (0..=filled).collect::<Vec<_>>());
    }
}
