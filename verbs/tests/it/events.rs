//! Asynchronous events and completion events, and shared receive queues, which cause some.

use crate::support;

use std::os::fd::AsFd;

use barewire_verbs::{
    CompletionChannel, CompletionQueue, Context, Data, EventKind, Operation, ProtectionDomain,
    QueuePair, QueuePairKind, QueuePairOptions, Request, SendFlags, SharedReceiveQueue,
    WorkCompletion,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use support::{Buffer, connect, device, options, to_itself};

fn wait(descriptor: impl AsFd) {
    let deadline = Timespec { tv_sec: 60, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&deadline)).unwrap();
    assert_eq!(ready, 1, "no event arrived");
}

#[test]
#[ignore = "needs a device"]
fn completions_wake_by_a_descriptor() {
    let context = Context::open(&device()).unwrap();
    let domain = ProtectionDomain::new(&context).unwrap();
    let channel = CompletionChannel::new(&context).unwrap();
    let queue = CompletionQueue::with_channel(&channel, 16).unwrap();
    let other = CompletionQueue::with_channel(&channel, 16).unwrap();
    let qp = QueuePair::new(&domain, &options(QueuePairKind::ReliableConnection, &queue)).unwrap();
    connect(&qp, qp.number(), to_itself(&context, &domain));
    let buffer = Buffer::new(&domain);
    let operation = Operation::Write { remote: buffer.remote(0), immediate: None };
    let write = Request { id: 1, operation, data: Data::Inline(b"x"), flags: SendFlags::SIGNALED };
    for _ in 0..3 {
        assert!(channel.next_event().unwrap().is_none());
        queue.arm(false).unwrap();
        qp.post(&write).unwrap();
        wait(&channel);
        let event = channel
            .next_event()
            .unwrap()
            .expect("the descriptor is readable, so there is an event");
        assert_eq!(event.queue(), queue.id());
        assert_ne!(event.queue(), other.id());
        let mut found = [WorkCompletion::empty(), WorkCompletion::empty()];
        assert_eq!(queue.poll(&mut found).unwrap().len(), 1);
    }
    // All events are acknowledged, so destroying the queue does not block.
    drop((qp, queue));
}

#[test]
#[ignore = "needs a device"]
fn a_shared_queue_tells_its_limit() {
    let context = Context::open(&device()).unwrap();
    let domain = ProtectionDomain::new(&context).unwrap();
    let queue = CompletionQueue::new(&context, 64).unwrap();
    let shared = SharedReceiveQueue::new(&domain, 16, 1).unwrap();
    assert!(shared.requests() >= 16 && shared.elements() >= 1, "{shared:?}");
    let options = QueuePairOptions {
        shared_receive: Some(shared.reference()),
        ..options(QueuePairKind::ReliableConnection, &queue)
    };
    let qp = QueuePair::new(&domain, &options).unwrap();
    connect(&qp, qp.number(), to_itself(&context, &domain));
    let buffer = Buffer::new(&domain);
    for id in 0..4 {
        shared.post(id, &[buffer.element(64 * id, 64)]).unwrap();
    }
    shared.set_limit(4).unwrap();
    assert!(context.next_event().unwrap().is_none());
    let send = Request {
        id: 99,
        operation: Operation::Send { immediate: None },
        data: Data::Inline(b"hello"),
        flags: SendFlags::SIGNALED,
    };
    qp.post(&send).unwrap();
    wait(context.event_descriptor().unwrap());
    let event = context.next_event().unwrap().unwrap();
    assert_eq!(event.kind(), EventKind::SharedReceiveLimit(shared.id()));
    let mut ended = Vec::new();
    while ended.len() < 2 {
        let one = support::completion(&queue);
        one.outcome().unwrap();
        ended.push(one.id());
    }
    assert!(ended.contains(&0) && ended.contains(&99), "{ended:?}");
    assert_eq!(&buffer.pages.read::<5>(0), b"hello");
    drop(event);
    drop((qp, shared));
}
