//! Completions, flush and fence: when operations complete, and in which order.

use std::cell::Cell;
use std::rc::Rc;

use barewire::{Access, AtomicOp, FetchResult, FlushMode, InterfaceConfig, Posted};

use crate::place::Place;
use crate::support::{Watch, collect, connect, contents, pattern};

pub(crate) fn one_completion_serves_many_operations(place: &Place) {
    let mut pair = place.pair();
    let (memory, key) = pair.target(4096, Access::REMOTE_WRITE);
    let source = pair.client.domain.allocate(4096, Access::empty()).unwrap();
    source.write(0, &pattern(3, 4096)).unwrap();
    let watch = Watch::new(64);
    for i in 0..64 {
        let slice = [source.slice(i * 64, 64).unwrap()];
        let remote = memory.address() + i as u64 * 64;
        watch.posted(pair.post("put", |endpoint| {
            endpoint.put_zcopy(&slice, remote, &key, Some(&watch.completion))
        }));
    }
    pair.until("all", || watch.is_done());
    pair.flush(FlushMode::Remote);
    assert_eq!((watch.calls(), contents(&memory)), (1, pattern(3, 4096)));
}

/// Sends from inside completion callbacks keep order.
pub(crate) fn completions_post(place: &Place) {
    let mut pair = place.pair();
    let inbox = collect(&pair.server.interface, 4);
    let source = pair.client.domain.allocate(64, Access::empty()).unwrap();
    let endpoint = pair.client.endpoint.clone();
    let next = Rc::new(Cell::new(0u64));

    for i in 0..20u64 {
        let (endpoint, next) = (endpoint.clone(), Rc::clone(&next));
        let done = barewire::Completion::new(move |result| {
            assert_eq!(result, Ok(()));
            let header = next.replace(next.get() + 1);
            assert_eq!(endpoint.am_short(4, header, &[]), Ok(()));
        });
        let slice = [source.slice(0, 8).unwrap()];
        let posted =
            pair.post("am_zcopy", |e| e.am_zcopy(6, &i.to_le_bytes(), &slice, Some(&done)));
        if posted == Ok(Posted::Done) {
            drop(done.hold());
        }
    }
    pair.until("all", || inbox.borrow().len() == 20);
    let got: Vec<_> = inbox.borrow().iter().map(|m| m[0]).collect();
    assert_eq!(got, (0..20).collect::<Vec<u8>>(), "{}", pair.name);
}

/// A fence makes a fetch return the value of the put before it, and keeps a put behind a get.
pub(crate) fn fence_orders(place: &Place) {
    let mut pair = place.pair();
    let (memory, key) = pair.target(8, Access::all());
    let target = pair.client.domain.allocate(8, Access::LOCAL_WRITE).unwrap();
    let remote = memory.address();
    for round in 1..50u64 {
        let (result, watch) = (FetchResult::new(), Watch::new(1));
        pair.post("put", |e| e.put_short(&round.to_ne_bytes(), remote, &key)).unwrap();
        pair.client.endpoint.fence().unwrap();
        watch.posted(pair.post("fetch", |endpoint| {
            endpoint.atomic_fetch(
                AtomicOp::Add(1000_u64),
                remote,
                &key,
                &result,
                Some(&watch.completion),
            )
        }));
        let got = Watch::new(1);
        let slice = [target.slice(0, 8).unwrap()];
        got.posted(pair.post("get", |endpoint| {
            endpoint.get_zcopy(&slice, remote, &key, Some(&got.completion))
        }));
        pair.client.interface.fence().unwrap();
        pair.post("put", |e| e.put_short(&[0; 8], remote, &key)).unwrap();
        pair.until("fetch and get", || watch.is_done() && got.is_done());
        assert_eq!(result.get(), round, "{}", pair.name);
        assert_eq!(target.load_u64(0).unwrap(), round + 1000, "{}", pair.name);
    }
}

pub(crate) fn flush_counts_its_completion_down_after_the_operations(place: &Place) {
    let mut pair = place.pair();
    let (memory, key) = pair.target(64, Access::REMOTE_WRITE);
    let source = pair.client.domain.allocate(5 * 64, Access::empty()).unwrap();
    let slices: Vec<_> = (0..5).map(|i| [source.slice(64 * i, 64).unwrap()]).collect();
    (0..5_u8).for_each(|i| source.write(64 * usize::from(i), &[i; 64]).unwrap());
    for mode in [FlushMode::Local, FlushMode::Remote] {
        for _ in 0..20 {
            let flushed = Watch::new(1);
            for i in 0..5u8 {
                let _ = pair
                    .post("put", |e| {
                        e.put_zcopy(&slices[usize::from(i)], memory.address(), &key, None)
                    })
                    .unwrap();
            }
            flushed.posted(pair.post("flush", |e| e.flush(mode, Some(&flushed.completion))));
            pair.until("flush", || flushed.is_done());
            assert_eq!((flushed.calls(), flushed.result()), (1, Some(Ok(()))));
            if mode == FlushMode::Remote {
                assert_eq!(contents(&memory), [4; 64], "{}", pair.name);
            }
            // Nothing is left to wait for.
            assert_eq!(pair.client.endpoint.flush(mode, None), Ok(Posted::Done), "{}", pair.name);
        }
    }
}

pub(crate) fn flush_of_an_interface(place: &Place) {
    let mut pair = place.pair();
    let (memory, key) = pair.target(64, Access::REMOTE_WRITE);
    let source = pair.client.domain.allocate(8, Access::empty()).unwrap();
    let slice = [source.slice(0, 8).unwrap()];
    let interface = pair.client.interface.clone();
    assert_eq!(interface.flush(None), Ok(Posted::Done));
    for _ in 0..10 {
        let _ = pair.post("put", |e| e.put_zcopy(&slice, memory.address(), &key, None)).unwrap();
        let flushed = Watch::new(1);
        flushed.posted(pair.post("flush", |_| interface.flush(Some(&flushed.completion))));
        pair.until("flush", || flushed.is_done());
        assert_eq!((flushed.calls(), flushed.result()), (1, Some(Ok(()))));
        assert_eq!(interface.flush(None), Ok(Posted::Done));
    }
}

/// Small puts complete although large ones were posted before them on another endpoint.
pub(crate) fn small_puts_finish_beside_large_ones(place: &Place) {
    const LARGE: usize = 4 << 20;
    let mut pair = place.pair();
    let (other, peer) = (pair.client.another(), pair.server.another());
    connect(&other, &peer);
    pair.taken_by(&[&other.endpoint, &peer.endpoint]);
    let (target, key) = pair.target(LARGE, Access::REMOTE_WRITE);
    let source = pair.client.domain.allocate(LARGE, Access::empty()).unwrap();
    source.write(0, &pattern(4, LARGE)).unwrap();
    let (large, small) = ([source.slice(0, LARGE).unwrap()], [source.slice(0, 8).unwrap()]);
    let (larges, smalls) = (Watch::new(4), Watch::new(100));
    for _ in 0..4 {
        let completion = Some(&larges.completion);
        larges.posted(
            pair.post("large", |e| e.put_zcopy(&large, target.address(), &key, completion)),
        );
    }
    for _ in 0..100 {
        let mut posted = None;
        pair.until("small", || {
            posted = other
                .endpoint
                .put_zcopy(&small, target.address(), &key, Some(&smalls.completion))
                .ok();
            posted.is_some()
        });
        smalls.posted(Ok(posted.unwrap()));
    }
    pair.until("all", || larges.is_done() && smalls.is_done());
    assert_eq!((larges.result(), smalls.result()), (Some(Ok(())), Some(Ok(()))), "{}", pair.name);
    assert!(contents(&target) == pattern(4, LARGE), "{}", pair.name);
}

/// More gets than can be in flight, and puts after a fence: each get returns the bytes from before
/// the puts.
pub(crate) fn puts_stay_behind_many_gets(place: &Place) {
    const COUNT: usize = 60;
    const SIZE: usize = 5000;
    let mut pair = place.pair_with(&InterfaceConfig::default().max_rd_atomic(2));
    let (target, key) = pair.target(COUNT * SIZE, Access::all());
    target.write(0, &pattern(1, COUNT * SIZE)).unwrap();
    let local = pair.client.domain.allocate(COUNT * SIZE, Access::LOCAL_WRITE).unwrap();
    let new = pair.client.domain.allocate(COUNT * SIZE, Access::empty()).unwrap();
    new.write(0, &pattern(2, COUNT * SIZE)).unwrap();
    let watch = Watch::new(COUNT as u32);
    for i in 0..COUNT {
        let slice = [local.slice(i * SIZE, SIZE).unwrap()];
        let remote = target.address() + (i * SIZE) as u64;
        let completion = Some(&watch.completion);
        watch.posted(pair.post("get", |e| e.get_zcopy(&slice, remote, &key, completion)));
    }
    pair.client.endpoint.fence().unwrap();
    let slice = [new.slice(0, COUNT * SIZE).unwrap()];
    let _ = pair.post("put", |e| e.put_zcopy(&slice, target.address(), &key, None)).unwrap();
    pair.until("gets", || watch.is_done());
    pair.flush(FlushMode::Remote);
    assert!(contents(&local) == pattern(1, COUNT * SIZE), "{}: a get saw a later put", pair.name);
    assert!(contents(&target) == pattern(2, COUNT * SIZE), "{}", pair.name);
}
