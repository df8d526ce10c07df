//! Tests of the transport `self` through the public API that are small enough for Miri.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use barewire::{
    Access, AtomicOp, Completion, Domain, Endpoint, FetchResult, Interface, InterfaceConfig,
    KeptMessage, MESSAGE_HEADROOM, PendingResult, PostError, Posted, Unpack, Worker,
};

/// Opens an interface with this many buffers for messages.
fn open(bcopy_buffers: u32) -> (Worker, Domain, Interface, Endpoint) {
    let mut worker = Worker::new();
    let domain = Domain::open(&"self/memory".parse().unwrap()).unwrap();
    let config = InterfaceConfig::default().bcopy_buffers(bcopy_buffers);
    let interface = Interface::open(&mut worker, &domain, &config).unwrap();
    let endpoint = interface.connect(&interface.address()).unwrap();
    (worker, domain, interface, endpoint)
}

#[test]
fn memory_is_written_and_read_in_every_way() {
    let (_worker, domain, _interface, endpoint) = open(4);
    let target = domain.allocate(64, Access::all()).unwrap();
    let local = domain.allocate(64, Access::all()).unwrap();
    let (at, key) = (target.address(), domain.unpack_key(&target.pack_key()).unwrap());
    assert_eq!(endpoint.put_short(&[1; 11], at + 3, &key), Ok(()));
    let pack = |buffer: &mut [u8]| {
        buffer[..5].fill(2);
        5
    };
    assert_eq!(endpoint.put_bcopy(pack, at + 14, &key), Ok(5));
    local.write(0, &[3; 20]).unwrap();
    let slices = [local.slice(1, 9).unwrap(), local.slice(10, 4).unwrap()];
    assert_eq!(endpoint.put_zcopy(&slices, at + 19, &key, None), Ok(Posted::Done));
    assert_eq!(endpoint.atomic_post(AtomicOp::Add(5_u64), at + 40, &key), Ok(()));
    let result = FetchResult::new();
    assert_eq!(
        endpoint.atomic_fetch(
            AtomicOp::CompareSwap { compare: 5_u64, swap: 6 },
            at + 40,
            &key,
            &result,
            None
        ),
        Ok(Posted::Done)
    );
    assert_eq!(result.get(), 5);

    let wanted =
        [vec![0; 3], vec![1; 11], vec![2; 5], vec![3; 13], vec![0; 8], vec![6, 0]].concat();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let inner = Rc::clone(&seen);
    let unpack = Unpack::new(move |bytes| inner.borrow_mut().extend_from_slice(bytes));
    assert_eq!(endpoint.get_bcopy(&unpack, 42, at, &key, None), Ok(Posted::Done));
    assert_eq!(*seen.borrow(), wanted);
    assert_eq!(
        endpoint.get_zcopy(&[local.slice(7, 42).unwrap()], at, &key, None),
        Ok(Posted::Done)
    );
    let mut read = [0; 42];
    local.read(7, &mut read).unwrap();
    assert_eq!(read[..], wanted);

    target.deregister().unwrap();
    assert_eq!(endpoint.put_short(&[1], at, &key), Err(PostError::KeyExpired));
}

#[test]
fn messages_are_kept_and_outlive_the_worker() {
    let (worker, domain, interface, endpoint) = open(4);
    let kept = Rc::new(RefCell::new(Vec::<KeptMessage>::new()));
    let (inner, again) = (Rc::clone(&kept), endpoint.clone());
    let handler = move |message: barewire::Message<'_>| {
        if message.data().len() < 10 {
            // Delivered after this handler has returned.
            assert_eq!(again.am_short(1, 9, b"from the handler"), Ok(()));
        }
        inner.borrow_mut().push(message.keep());
    };
    interface.set_handler(1, handler).unwrap();
    let pack = |buffer: &mut [u8]| {
        buffer[..3].copy_from_slice(b"abc");
        3
    };
    assert_eq!(endpoint.am_bcopy(1, pack), Ok(3));
    let local = domain.allocate(8, Access::all()).unwrap();
    local.write(0, b"payload.").unwrap();
    assert_eq!(
        endpoint.am_zcopy(1, b"header: ", &[local.slice(0, 8).unwrap()], None),
        Ok(Posted::Done)
    );
    drop((worker, interface, endpoint, domain, local));
    let kept = kept.take();
    let data: Vec<&[u8]> = kept.iter().map(|message| &message[..]).collect();
    let nested = [&9u64.to_le_bytes()[..], b"from the handler"].concat();
    assert_eq!(data, [&b"abc"[..], &nested, b"header: payload."]);
}

#[test]
fn the_owner_of_a_kept_message_writes_in_front_of_it() {
    let (worker, domain, interface, endpoint) = open(4);
    let kept = Rc::new(Cell::new(None));
    let inner = Rc::clone(&kept);
    let handler = move |message: barewire::Message<'_>| {
        inner.set(message.keep_if(|headroom, _| {
            headroom.fill(1);
            true
        }));
    };
    interface.set_handler(1, handler).unwrap();
    assert_eq!(endpoint.am_short(1, 7, b"data"), Ok(()));
    drop((worker, interface, endpoint, domain));
    let mut kept = kept.take().unwrap();
    assert_eq!(kept.headroom(), [1; MESSAGE_HEADROOM]);
    kept.headroom().fill(2);
    assert_eq!(kept[..], [&7u64.to_le_bytes()[..], b"data"].concat());
    assert_eq!(kept.headroom(), [2; MESSAGE_HEADROOM]);
}

#[test]
fn a_request_waits_until_a_kept_message_is_dropped() {
    let (mut worker, _domain, interface, endpoint) = open(1);
    let kept = Rc::new(Cell::new(None));
    let inner = Rc::clone(&kept);
    interface.set_handler(0, move |message| inner.set(Some(message.keep()))).unwrap();
    assert_eq!(endpoint.am_short(0, 1, b"first"), Ok(()));
    assert_eq!(endpoint.am_short(0, 2, b"second"), Err(PostError::NoResource));
    let done = Completion::counter();
    let mut hold = Some(done.hold());
    let request = move |endpoint: &Endpoint| {
        if endpoint.am_short(0, 2, b"second").is_err() {
            return PendingResult::Again;
        }
        drop(hold.take());
        PendingResult::Done
    };
    endpoint.pending_add(request).unwrap();
    worker.progress();
    assert_eq!(done.pending(), 1);
    drop(kept.take());
    worker.progress();
    assert_eq!(done.pending(), 0);
    assert_eq!(kept.take().as_deref(), Some(&[&2u64.to_le_bytes()[..], b"second"].concat()[..]));
}

#[test]
fn a_message_that_a_handler_sends_waits_for_the_next_call() {
    let (mut worker, _domain, interface, endpoint) = open(4);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let (inner, again) = (Rc::clone(&seen), endpoint.clone());
    let handler = move |message: barewire::Message<'_>| {
        inner.borrow_mut().push(message.data()[0]);
        // Without a bound, the first send would not return.
        assert_eq!(again.am_short(1, 7, &[]), Ok(()));
    };
    interface.set_handler(1, handler).unwrap();
    assert_eq!(endpoint.am_short(1, 1, &[]), Ok(()));
    assert_eq!(seen.take(), [1]);
    for _ in 0..3 {
        assert_eq!((worker.progress(), seen.take()), (1, vec![7]));
    }
    // In the order of the sends.
    assert_eq!(endpoint.am_short(1, 2, &[]), Ok(()));
    assert_eq!(seen.take(), [7, 2]);
    assert_eq!((worker.progress(), seen.take()), (2, vec![7, 7]));
}

/// A handler that replaces itself runs to its end, and one that panics releases its only buffer.
#[test]
fn handlers_are_replaced_and_panic() {
    let (_worker, _domain, interface, endpoint) = open(1);
    let (calls, own) = (Rc::new(Cell::new(0)), interface.clone());
    let counted = Rc::clone(&calls);
    let first = move |_: barewire::Message<'_>| {
        own.set_handler(3, |_| panic!("expected by the test")).unwrap();
        counted.set(counted.get() + 1);
    };
    interface.set_handler(3, first).unwrap();
    assert_eq!(endpoint.am_short(3, 0, &[]), Ok(()));
    assert_eq!((calls.get(), Rc::strong_count(&calls)), (1, 1), "dropped when it had ended");
    for _ in 0..2 {
        let post = AssertUnwindSafe(|| endpoint.am_short(3, 0, &[]));
        assert!(catch_unwind(post).is_err());
    }
}
