//! Cancelling, dropping and closing, in every order: each operation completes once, and the device
//! has no objects left.

use std::cell::RefCell;
use std::rc::Rc;

use barewire::{
    Access, AtomicOp, Cause, Domain, Endpoint, FlushMode, InterfaceConfig, OpenError,
    PendingResult, PostError, Posted, Worker,
};
use barewire_hca as hca;

use crate::support::{Pair, Side, Watch, collect, connect, device, until, watch_errors};

/// `count` zero-copy puts in flight on a device that is not stepped.
fn in_flight(pair: &Pair, count: usize) -> (Vec<Watch>, [barewire::Memory; 2]) {
    let (target, key) = pair.target(64, Access::REMOTE_WRITE);
    let source = pair.client.domain.allocate(64, Access::empty()).unwrap();
    let slice = [source.slice(0, 64).unwrap()];
    let watches: Vec<_> = (0..count).map(|_| Watch::new(1)).collect();
    for watch in &watches {
        let completion = Some(&watch.completion);
        let post = pair.client.endpoint.put_zcopy(&slice, target.address(), &key, completion);
        assert_eq!(post, Ok(Posted::InProgress));
    }
    (watches, [source, target])
}

fn assert_canceled(watches: &[Watch]) {
    for watch in watches {
        assert_eq!(watch.calls(), 1);
        assert_eq!(watch.result().unwrap().unwrap_err().cause, Cause::Canceled);
    }
}

#[test]
fn cancel_completes_everything_once() {
    let mut pair = Pair::stepped(&InterfaceConfig::default());
    let errors = watch_errors(&pair.client.interface);
    let (watches, _memory) = in_flight(&pair, 10);
    let flush = Watch::new(1);
    let endpoint = pair.client.endpoint.clone();
    let post = endpoint.flush(FlushMode::Local, Some(&flush.completion));
    assert_eq!(post, Ok(Posted::InProgress));
    let canceled = Watch::new(1);
    let post = endpoint.flush(FlushMode::Cancel, Some(&canceled.completion));
    assert_eq!(post, Ok(Posted::InProgress));
    pair.settle();
    assert_canceled(&watches);
    assert_canceled(&[flush]);
    assert_eq!((canceled.calls(), canceled.result()), (1, Some(Ok(()))));
    assert!(errors.borrow().is_empty(), "cancelling is no error");
    assert_eq!(endpoint.error(), None);
    assert_eq!(endpoint.am_short(0, 0, &[]), Err(PostError::EndpointFailed));
    assert_eq!(endpoint.flush(FlushMode::Local, None), Err(PostError::EndpointFailed));
    assert_eq!(endpoint.flush(FlushMode::Cancel, None), Ok(Posted::Done));
    assert_eq!(endpoint.pending_add(|_| PendingResult::Done), Err(barewire::error::Busy));
}

#[test]
fn dropping_an_endpoint_cancels_what_is_in_flight() {
    let mut pair = Pair::stepped(&InterfaceConfig::default());
    let errors = watch_errors(&pair.client.interface);
    let side = pair.client.another();
    let peer = pair.server.another();
    connect(&side, &peer);
    let first = std::mem::replace(&mut pair.client.endpoint, side.endpoint.clone());
    drop(side);
    let (watches, _memory) = in_flight(&pair, 10);
    let second = std::mem::replace(&mut pair.client.endpoint, first);
    drop(second);
    assert!(watches.iter().all(|watch| watch.calls() == 0), "callbacks run in progress");
    pair.settle();
    assert_canceled(&watches);
    assert!(errors.borrow().is_empty());
    // The other endpoint is not affected.
    let inbox = collect(&pair.server.interface, 2);
    assert_eq!(pair.client.endpoint.am_short(2, 5, &[]), Ok(()));
    pair.settle();
    assert_eq!(inbox.borrow().len(), 1);
}

/// Operations that the device finished before the endpoint was dropped complete successfully.
#[test]
fn dropping_an_endpoint_keeps_what_was_done() {
    let mut pair = Pair::stepped(&InterfaceConfig::default());
    let (done, _memory) = in_flight(&pair, 3);
    while pair.devices[0].step() {}
    let (canceled, _memory) = in_flight(&pair, 3);
    let spare = pair.client.another().endpoint;
    drop(std::mem::replace(&mut pair.client.endpoint, spare));
    pair.settle();
    for watch in &done {
        assert_eq!((watch.calls(), watch.result()), (1, Some(Ok(()))));
    }
    assert_canceled(&canceled);
}

#[test]
fn dropping_the_worker_cancels_what_is_in_flight() {
    let mut pair = Pair::stepped(&InterfaceConfig::default());
    let (watches, _memory) = in_flight(&pair, 10);
    let (fetched, unpacked) = (Watch::new(1), Watch::new(1));
    let (target, key) = pair.target(64, Access::all());
    let endpoint = pair.client.endpoint.clone();
    let result = barewire::FetchResult::new();
    let unpack = barewire::Unpack::new(|_| panic!("nothing was read"));
    let posts = [
        endpoint.atomic_fetch(
            AtomicOp::Add(1_u64),
            target.address(),
            &key,
            &result,
            Some(&fetched.completion),
        ),
        endpoint.get_bcopy(&unpack, 8, target.address(), &key, Some(&unpacked.completion)),
    ];
    assert_eq!(posts, [Ok(Posted::InProgress); 2]);
    drop(std::mem::take(&mut pair.worker));
    assert_canceled(&watches);
    assert_canceled(&[fetched, unpacked]);
    assert_eq!(endpoint.am_short(0, 0, &[]), Err(PostError::Closed));
    assert_eq!(endpoint.put_short(&[], 0, &key), Err(PostError::Closed));
    assert_eq!(endpoint.flush(FlushMode::Local, None), Err(PostError::Closed));
    assert_eq!(endpoint.flush(FlushMode::Cancel, None), Err(PostError::Closed));
    assert_eq!(pair.client.interface.flush(None), Err(PostError::Closed));
    assert_eq!(pair.client.interface.fence(), Err(PostError::Closed));
    assert!(matches!(Endpoint::new(&pair.client.interface), Err(OpenError::Closed { .. })));
    let refused = pair.client.interface.set_handler(0, |_| ());
    assert_eq!(refused, Err(barewire::HandlerError::Closed));
}

#[test]
fn self_closes_with_its_worker() {
    let mut pair = Pair::over_self(&InterfaceConfig::default());
    let (memory, key) = pair.target(8, Access::all());
    drop(std::mem::take(&mut pair.worker));
    let endpoint = &pair.client.endpoint;
    assert_eq!(endpoint.am_short(0, 0, &[]), Err(PostError::Closed));
    assert_eq!(endpoint.put_short(&[1], memory.address(), &key), Err(PostError::Closed));
    assert_eq!(endpoint.flush(FlushMode::Cancel, None), Err(PostError::Closed));
    assert_eq!(pair.client.interface.fence(), Err(PostError::Closed));
}

/// Endpoints are created and dropped repeatedly: their queue pairs and their share of the
/// completion queue are reused.
#[test]
fn endpoints_are_used_again() {
    let config = InterfaceConfig::default().max_endpoints(2).send_ring(16).receive_ring(4);
    let one = device(hca::Faults::default());
    let mut pair = Pair::over_soft(
        "rc_mlx5, one device",
        &config,
        barewire::TransportId::RcMlx5,
        [one.clone(), one.clone()],
    );
    let inbox = collect(&pair.server.interface, 1);
    let pairs = one.objects().queue_pairs;
    for round in 0..100u64 {
        let (client, server) = (pair.client.another(), pair.server.another());
        assert!(matches!(
            Endpoint::new(&pair.client.interface),
            Err(OpenError::TooManyEndpoints { limit: 2, .. })
        ));
        connect(&client, &server);
        // More than fits, without waiting for completions.
        let mut posted = 0;
        while client.endpoint.am_short(1, round, &[0; 200]).is_ok() {
            posted += 1;
        }
        assert!(posted > 0);
        drop((client, server));
        pair.until("queue pairs", || one.objects().queue_pairs == pairs);
        inbox.borrow_mut().clear();
        // The first pair continues.
        pair.post("message", |e| e.am_short(1, round, &[])).unwrap();
        pair.until("message", || inbox.borrow().len() == 1);
        assert_eq!(inbox.borrow_mut().pop().unwrap(), round.to_le_bytes());
    }
}

/// All objects of a program are dropped in many orders; the device has no objects left.
#[test]
fn any_order_of_dropping_leaves_nothing_behind() {
    for order in permutations(6) {
        let soft = device(hca::Faults::default());
        let config = InterfaceConfig::default().max_endpoints(2).send_ring(16).receive_ring(8);
        let mut worker = Worker::new();
        let domain = Domain::open_soft(soft.clone()).unwrap();
        let a = Side::open(&mut worker, &domain, &config);
        let b = a.another();
        connect(&a, &b);
        let kept: Rc<RefCell<Vec<barewire::KeptMessage>>> = Rc::default();
        let (inner, captured) = (Rc::clone(&kept), a.endpoint.clone());
        a.interface
            .set_handler(0, move |message| {
                // A handler that holds an endpoint of its own interface.
                let _ = captured.error();
                inner.borrow_mut().push(message.keep());
            })
            .unwrap();
        assert_eq!(a.endpoint.am_short(0, 1, &[]), Ok(()));
        until(&mut [&mut worker], "message", || kept.borrow().len() == 1);
        let memory = domain.allocate(64, Access::all()).unwrap();
        let key = domain.unpack_key(&memory.pack_key()).unwrap();
        let slice = [memory.slice(0, 64).unwrap()];
        let watch = Watch::new(1);
        let post = b.endpoint.put_zcopy(&slice, memory.address(), &key, Some(&watch.completion));
        assert_eq!(post, Ok(Posted::InProgress));

        let mut worker = Some(worker);
        let mut things: Vec<Option<Box<dyn FnOnce()>>> = vec![
            Some(Box::new(move || drop(a))),
            Some(Box::new(move || drop(b))),
            Some(Box::new(move || drop(memory))),
            Some(Box::new(move || drop(domain))),
            Some(Box::new(move || kept.borrow_mut().clear())),
        ];
        for index in order {
            match things.get_mut(index) {
                Some(thing) => (thing.take().unwrap())(),
                None => drop(worker.take()),
            }
            if let Some(worker) = &mut worker {
                worker.progress();
            }
        }
        assert_eq!(watch.calls(), 1);
        assert_eq!(soft.objects(), hca::ObjectCounts::default(), "{order:?}");
        assert!(soft.take_reports().is_empty());
    }
}

fn permutations(n: usize) -> Vec<[usize; 6]> {
    // Heap's algorithm.
    fn generate(k: usize, items: &mut [usize; 6], all: &mut Vec<[usize; 6]>) {
        if k == 1 {
            return all.push(*items);
        }
        for i in 0..k {
            generate(k - 1, items, all);
            items.swap(if k.is_multiple_of(2) { i } else { 0 }, k - 1);
        }
    }
    let mut all = Vec::new();
    generate(n, &mut [0, 1, 2, 3, 4, 5], &mut all);
    // Every seventh: about a hundred.
    all.into_iter().step_by(7).collect()
}

/// The device reports when a queue pair in error has returned what it took from the shared receive
/// queue, which may take long. A queue pair that is destroyed earlier would lose it.
#[test]
fn a_closed_endpoint_stays_until_its_queue_pair_has_returned_its_receives() {
    let late = "late-flush".parse().unwrap();
    let config = hca::Config::default().mode(hca::Mode::Stepped).requirements(late);
    let device = hca::Device::open(config).unwrap();
    let domain = Domain::open_soft(device.clone()).unwrap();
    let mut worker = Worker::new();
    let config = InterfaceConfig::default();
    let [here, there] = [(); 2].map(|()| Side::open(&mut worker, &domain, &config));
    connect(&here, &there);
    let count = || device.objects().queue_pairs;
    let before = count();
    drop(here.endpoint);
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_millis(300) {
        worker.progress();
        std::thread::yield_now();
    }
    assert_eq!(count(), before);
    until(&mut [&mut worker], "the end of the queue pair", || {
        device.step();
        count() < before
    });
}
