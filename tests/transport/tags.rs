//! Interfaces of which only one matches tags, and handlers of tagged messages that panic.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use barewire::config::Choice;
use barewire::{
    Access, FlushMode, InterfaceConfig, PostError, TagEvent, TagLimits, TransportId, Worker,
};
use barewire_hca as hca;

use crate::support::{Pair, Side, collect, connect, device, open_soft, until};

/// Active messages and puts in both directions; tagged messages are refused.
#[test]
fn an_end_that_matches_tags_and_one_that_does_not() {
    let domain = open_soft(TransportId::RcMlx5, device(hca::Faults::default()));
    let mut worker = Worker::new();
    let sides = [Choice::No, Choice::Yes].map(|choice| {
        let config = InterfaceConfig::default().tag_matching(choice);
        Side::open(&mut worker, &domain, &config)
    });
    connect(&sides[0], &sides[1]);
    let inboxes = [0, 1].map(|side| collect(&sides[side].interface, 2));
    assert_eq!(sides[0].interface.attributes().tag, TagLimits::default());
    assert_ne!(sides[1].interface.attributes().tag, TagLimits::default());
    let memory = domain.allocate(64, Access::REMOTE_WRITE).unwrap();
    let key = domain.unpack_key(&memory.pack_key()).unwrap();
    for (from, to) in [(0, 1), (1, 0)] {
        let endpoint = &sides[from].endpoint;
        assert_eq!(endpoint.tag_short(1, b"tagged"), Err(PostError::Unsupported));
        for round in 0..100_u64 {
            let posted = || endpoint.am_short(2, round, &[from as u8; 9]).is_ok();
            until(&mut [&mut worker], "a message", posted);
        }
        until(&mut [&mut worker], "the messages", || inboxes[to].borrow().len() == 100);
        assert_eq!(inboxes[to].borrow()[99][8..], [from as u8; 9]);
        endpoint.put_short(&[7 + from as u8], memory.address(), &key).unwrap();
        worker.flush(endpoint, FlushMode::Remote).unwrap();
        assert_eq!(memory.load_u8(0).unwrap(), 7 + from as u8);
    }
}

/// The next events come to the same handler, and no buffer is lost.
#[test]
fn a_handler_of_tagged_messages_that_panics() {
    let config = InterfaceConfig::default().tag_matching(Choice::Yes).receive_ring(64);
    let mut pair = Pair::over_udp(&config, hca::Faults::default());
    let calls = Rc::new(Cell::new(0_u64));
    let count = Rc::clone(&calls);
    let handler = move |_: TagEvent<'_>| {
        count.set(count.get() + 1);
        assert!(count.get().is_multiple_of(2), "expected by the test");
    };
    pair.server.interface.set_tag_handler(handler).unwrap();
    for round in 0..500 {
        let endpoint = pair.client.endpoint.clone();
        let (client, server) = (&mut pair.worker, &mut pair.server_worker);
        until(&mut [client], "a send", || endpoint.tag_short(round, b"message").is_ok());
        while calls.get() <= round {
            pair.worker.progress();
            let panicked = catch_unwind(AssertUnwindSafe(|| server.progress())).is_err();
            assert_eq!(panicked, calls.get() > round && calls.get() % 2 == 1);
            std::thread::yield_now();
        }
    }
}

/// The handler replaces itself, posts, and drops the endpoint.
#[test]
fn a_handler_of_tagged_messages_calls_the_interface() {
    let config = InterfaceConfig::default().tag_matching(Choice::Yes);
    let mut pair = Pair::over_udp(&config, hca::Faults::default());
    let memory = Rc::new(pair.server.domain.allocate(64, Access::LOCAL_WRITE).unwrap());
    let interface = pair.server.interface.clone();
    let log = Rc::new(RefCell::new(Vec::new()));
    let (seen, buffer) = (Rc::clone(&log), Rc::clone(&memory));
    let handler = move |event: TagEvent<'_>| {
        let TagEvent::Unexpected { tag, .. } = event else { panic!("{event:?}") };
        seen.borrow_mut().push(tag);
        let slice = buffer.slice(0, 64).unwrap();
        interface.tag_receive(tag + 1, u64::MAX, &slice, 9).unwrap();
        let seen = Rc::clone(&seen);
        let next = move |event: TagEvent<'_>| match event {
            TagEvent::Received { context: 9, tag, .. } => seen.borrow_mut().push(tag),
            // Sent before the receive was in the list.
            TagEvent::Unexpected { .. } => {}
            other => panic!("{other:?}"),
        };
        interface.set_tag_handler(next).unwrap();
    };
    pair.server.interface.set_tag_handler(handler).unwrap();
    pair.post("the first", |endpoint| endpoint.tag_short(1, b"first")).unwrap();
    let endpoint = pair.client.endpoint.clone();
    let received = Rc::clone(&log);
    pair.until("the second", || {
        if received.borrow().len() == 1 {
            let _ = endpoint.tag_short(2, b"second");
        }
        received.borrow().len() == 2
    });
    assert_eq!(*log.borrow(), [1, 2]);
}
