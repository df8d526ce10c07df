//! One thread polls the completion queue of queue pairs that other threads own.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use barewire_mlx5::doorbell::BlueFlameShared;
use barewire_mlx5::request::{Inline, Write};
use barewire_mlx5::{
    Access, Buffer, Completion, CompletionKind, CompletionQueue, ControlFlags, Polled,
    ProtectionDomain, RcConfig, RcPath, RcQueuePair, RemoteAddressSegment, Uar, setup,
};

const TIMEOUT: Duration = Duration::from_mins(1);

/// Writes once, and then to memory that is not registered. Returns which writes were executed, and
/// whether the queue pair works again after a reset.
fn work(
    mut pair: RcQueuePair<BlueFlameShared>,
    target: RemoteAddressSegment,
    inbox: &Receiver<Completion>,
) -> ([bool; 2], bool) {
    let write = |pair: &mut RcQueuePair<BlueFlameShared>, to| {
        pair.send
            .post(Write { local: Inline(b"barewire"), remote: to }, ControlFlags::COMPLETION)
            .unwrap()
    };
    let posted = [target, RemoteAddressSegment::new(0x1000, 0x1234)].map(|to| write(&mut pair, to));
    let first = inbox.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(first.kind, CompletionKind::Send);
    pair.send.reap(first.wqe_counter);
    pair.drain_with(TIMEOUT, || inbox.recv_timeout(Duration::from_millis(1)).ok(), |_| {}).unwrap();
    let executed = posted.map(|index| pair.send.is_executed(index));

    pair.reset().unwrap();
    pair.connect(&RcPath::to(&pair.address())).unwrap();
    let again = write(&mut pair, target);
    pair.send.reap(inbox.recv_timeout(TIMEOUT).unwrap().wqe_counter);
    (executed, pair.send.is_executed(again))
}

#[test]
fn a_thread_drains_its_queue_pair_by_completions_that_another_polls() {
    let context = setup::open("soft0", 1, None).unwrap().context;
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let uar = Uar::allocate(&context).unwrap();
    let mut completions = CompletionQueue::create(&context, &uar, 1024).unwrap();
    let memory = Buffer::allocate(&domain, 64, Access::all()).unwrap();
    let mut inboxes = HashMap::new();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..2 {
            let config = RcConfig::default();
            let mut pair =
                RcQueuePair::create_with(&domain, &uar, &completions, &completions, &config)
                    .unwrap();
            pair.connect(&RcPath::to(&pair.address())).unwrap();
            let (sender, inbox) = channel();
            inboxes.insert(pair.number(), sender);
            let target = memory.region().remote(0);
            threads.push(scope.spawn(move || work(pair, target, &inbox)));
        }
        let start = Instant::now();
        while threads.iter().any(|thread| !thread.is_finished()) {
            assert!(start.elapsed() < TIMEOUT, "the threads end");
            match completions.poll().map(Polled::completion) {
                // A thread that has ended needs no more completions.
                Some(completion) => drop(inboxes[&completion.qpn].send(completion)),
                None => std::thread::yield_now(),
            }
        }
        for thread in threads {
            assert_eq!(thread.join().unwrap(), ([true, false], true));
        }
    });
}
