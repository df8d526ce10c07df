//! Queues and pools that run full, and continue after progress.

use std::cell::Cell;
use std::rc::Rc;

use barewire::{Access, FlushMode, PostError, Posted};

use crate::support::{Pair, Watch, collect, contents, fill, headers, pattern, send_later, small};

/// Payload sizes that make short messages of one to four WQEBBs.
const SHORT_SIZES: [usize; 6] = [0, 8, 32, 90, 160, 224];

#[test]
fn a_full_queue_refuses_and_goes_on_after_progress() {
    for mut pair in Pair::rc(&small()) {
        for size in SHORT_SIZES {
            let (memory, key) = pair.target(256, Access::REMOTE_WRITE);
            let payload = pattern(1, size.min(220));
            let endpoint = pair.client.endpoint.clone();
            for _ in 0..20 {
                let mut posted = 0;
                let refused = loop {
                    match endpoint.put_short(&payload, memory.address(), &key) {
                        Ok(()) => {}
                        Err(error) => break error,
                    }
                    posted += 1;
                    assert!(posted <= 16, "more than the ring holds");
                };
                assert_eq!(refused, PostError::NoResource);
                assert!(posted >= 4 - 1, "{size}: {posted}");
                // All operations are refused.
                let unpack = barewire::Unpack::new(|_| ());
                assert_eq!(endpoint.put_bcopy(|_| panic!("not posted"), 0, &key), Err(refused));
                if posted == 16 {
                    assert_eq!(endpoint.get_bcopy(&unpack, 1, 0, &key, None), Err(refused));
                }
                pair.flush(FlushMode::Remote);
                assert_eq!(contents(&memory)[..payload.len()], payload);
                // All room is free again.
                assert_eq!(endpoint.flush(FlushMode::Local, None), Ok(Posted::Done));
            }
        }
    }
}

#[test]
fn buffers_run_out_and_come_back() {
    for mut pair in Pair::rc(&small()) {
        let inbox = collect(&pair.server.interface, 1);
        let endpoint = pair.client.endpoint.clone();
        for round in 0..50u8 {
            let mut posted = 0u8;
            let refused = loop {
                let pack = |buffer: &mut [u8]| {
                    buffer[..2].copy_from_slice(&[round, posted]);
                    2
                };
                match endpoint.am_bcopy(1, pack) {
                    Ok(length) => assert_eq!(length, 2),
                    Err(error) => break error,
                }
                posted += 1;
            };
            assert_eq!((refused, posted), (PostError::NoResource, 4), "{}", pair.name);
            pair.until("messages", || inbox.borrow().len() == 4);
            assert_eq!(inbox.take(), [0, 1, 2, 3].map(|i| vec![round, i]));
            pair.flush(FlushMode::Local);
        }
    }
}

/// An unlimited number of flushes with completions, and nothing between them.
#[test]
fn flushes_are_bounded() {
    let mut pair = Pair::stepped(&small());
    let (memory, key) = pair.target(8, Access::all());
    let endpoint = pair.client.endpoint.clone();
    assert_eq!(endpoint.put_short(&[1; 8], memory.address(), &key), Ok(()));
    let watches: Vec<_> = (0..100).map(|_| Watch::new(1)).collect();
    let mut taken = 0;
    for watch in &watches {
        match endpoint.flush(FlushMode::Local, Some(&watch.completion)) {
            Ok(posted) => assert_eq!(posted, Posted::InProgress),
            Err(error) => {
                assert_eq!(error, PostError::NoResource);
                break;
            }
        }
        taken += 1;
    }
    assert!((8..100).contains(&taken), "{taken}");
    // The flushes do not use the room of puts.
    assert_eq!(endpoint.put_short(&[2; 8], memory.address(), &key), Ok(()));
    pair.settle();
    assert!(watches[..taken].iter().all(|watch| watch.calls() == 1));
    assert!(watches[taken..].iter().all(|watch| watch.calls() == 0));
}

/// Inside a handler of `self` the queue of messages is bounded as well.
#[test]
fn self_bounds_nested_sends() {
    let mut pair = Pair::over_self(&small());
    let inbox = collect(&pair.server.interface, 2);
    let endpoint = pair.client.endpoint.clone();
    let sent = Rc::new(Cell::new(0));
    let count = Rc::clone(&sent);
    pair.server
        .interface
        .set_handler(1, move |_| {
            count.set(fill(&endpoint, 2));
            endpoint.pending_add(send_later(2, count.get())).unwrap();
            assert_eq!(endpoint.am_short(2, 99, &[]), Err(PostError::NoResource));
        })
        .unwrap();
    pair.client.endpoint.am_short(1, 0, &[]).unwrap();
    // One of the four buffers holds the message that is being handled.
    assert_eq!(sent.get(), 3);
    pair.until("pending", || inbox.borrow().len() == 4);
    assert_eq!(headers(&inbox), [0, 1, 2, 3]);
}
