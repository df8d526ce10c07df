//! Peers that have ended, are not ready, or are out of buffers.

use barewire::error::Operation;
use barewire::{Access, Cause, Domain, FlushMode, Interface, InterfaceConfig, PostError, Worker};
use barewire_hca as hca;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::support::{Pair, Side, Watch, collect, connect, device, until, watch_errors};

#[test]
fn a_peer_that_is_gone_is_reported() {
    // 4.096 us * 2^10 is 4 ms, three times.
    let config = InterfaceConfig::default().ack_timeout(10).retry_count(2);
    let mut pair = Pair::over_udp(&config, hca::Faults::default());
    let errors = watch_errors(&pair.client.interface);
    let gone = device(hca::Faults::default());
    let address = gone.address();
    let mut worker = Worker::new();
    let peer = Side::open(&mut worker, &Domain::open_soft(gone).unwrap(), &config);
    let client = pair.client.another();
    connect(&client, &peer);
    drop((peer, worker));
    let watches: Vec<_> = (0..10).map(|_| Watch::new(1)).collect();
    let source = client.domain.allocate(8, Access::empty()).unwrap();
    for watch in &watches {
        let slice = [source.slice(0, 8).unwrap()];
        watch.posted(client.endpoint.am_zcopy(0, &[], &slice, Some(&watch.completion)));
    }
    pair.until("error", || watches.iter().all(Watch::is_done) && errors.borrow().len() == 1);
    let error = errors.borrow()[0].clone();
    assert_eq!((error.operation, error.cause), (Operation::ActiveMessage, Cause::PeerUnreachable));
    assert_eq!(error.syndrome.map(|syndrome| syndrome.code), Some(0x15));
    assert!(error.peer.contains(&address.to_string()), "{error}");
    let causes: Vec<_> = watches.iter().map(|w| w.result().unwrap().unwrap_err().cause).collect();
    assert_eq!(causes[0], Cause::PeerUnreachable);
    assert!(causes[1..].iter().all(|cause| *cause == Cause::Flushed), "{causes:?}");
    // The pair's own endpoint continues.
    pair.flush(FlushMode::Remote);
}

/// A peer pays a system call for a message to an armed interface, and no other.
#[test]
fn an_interface_that_examines_its_connections_is_not_armed() {
    let is_signalled = |interface: &Interface| {
        let descriptor = interface.event_fd().unwrap().unwrap();
        let mut signalled = [PollFd::new(&descriptor, PollFlags::IN)];
        poll(&mut signalled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    };
    let mut pair = Pair::over_shm(&InterfaceConfig::default());
    let inbox = collect(&pair.server.interface, 1);
    pair.post("the first", |endpoint| endpoint.am_short(1, 0, &[])).unwrap();
    pair.until("the first", || inbox.borrow().len() == 1);
    for _ in 0..2 {
        pair.server.interface.examine();
        pair.server_worker.progress();
    }
    pair.client.endpoint.am_short(1, 1, &[]).unwrap();
    assert!(!is_signalled(&pair.server.interface));
    pair.until("the second", || inbox.borrow().len() == 2);

    // Over tcp, a post of this thread signals the descriptor of an armed interface only.
    let mut pair = Pair::over_tcp(&InterfaceConfig::default());
    let inbox = collect(&pair.server.interface, 1);
    pair.connected();
    pair.post("the first", |endpoint| endpoint.am_short(1, 0, &[])).unwrap();
    pair.until("the first", || inbox.borrow().len() == 1);
    while pair.worker.progress() > 0 {}
    pair.client.interface.examine();
    for header in 1..3 {
        pair.client.endpoint.am_short(1, header, &[]).unwrap();
    }
    assert!(!is_signalled(&pair.client.interface));
    pair.until("all", || inbox.borrow().len() == 3);
}

#[test]
fn a_receiver_that_is_never_ready_is_reported() {
    let config = InterfaceConfig::default()
        .receive_ring(4)
        .spare_receive_buffers(0)
        .rnr_retry(2)
        .min_rnr_timer(1);
    let mut pair = Pair::over_udp(&config, hca::Faults::default());
    let errors = watch_errors(&pair.client.interface);
    for i in 0..5 {
        assert_eq!(pair.client.endpoint.am_short(1, i, &[]), Ok(()));
    }
    // The server makes no progress.
    until(&mut [&mut pair.worker], "error", || !errors.borrow().is_empty());
    let error = errors.borrow()[0].clone();
    assert_eq!((error.operation, error.cause), (Operation::ActiveMessage, Cause::ReceiverNotReady));
    assert_eq!(error.syndrome.map(|syndrome| syndrome.code), Some(0x16));
}

/// Over a device, an idle endpoint detects by `check` that its peer has ended.
#[test]
fn a_peer_that_is_gone_is_found_by_a_check() {
    // 4.096 us * 2^10 is 4 ms, three times.
    let config = InterfaceConfig::default().ack_timeout(10).retry_count(2);
    let mut pair = Pair::over_udp(&config, hca::Faults::default());
    let errors = watch_errors(&pair.client.interface);
    let mut worker = Worker::new();
    let gone = Domain::open_soft(device(hca::Faults::default())).unwrap();
    let peer = Side::open(&mut worker, &gone, &config);
    let client = pair.client.another();
    connect(&client, &peer);
    drop((gone, peer, worker));
    assert_eq!(client.endpoint.check(), Ok(()));
    pair.until("the error", || errors.borrow().len() == 1);
    assert_eq!(errors.borrow()[0].cause, Cause::PeerUnreachable);
    assert_eq!(client.endpoint.check(), Err(PostError::EndpointFailed));
    assert_eq!(pair.client.endpoint.check(), Ok(()));
    pair.flush(FlushMode::Remote);
}
