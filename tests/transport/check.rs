//! Asking whether a peer is still there.

use barewire::{Cause, Domain, FlushMode, InterfaceConfig, PostError, Worker};
use barewire_hca as hca;

use crate::support::{Pair, Side, connect, device, watch_errors};

/// Of a peer that lives it changes nothing, however often and on a queue however full.
#[test]
fn a_peer_that_lives_is_not_disturbed() {
    for mut pair in Pair::all_with_zcopy() {
        let errors = [watch_errors(&pair.client.interface), watch_errors(&pair.server.interface)];
        for _ in 0..1000 {
            assert_eq!(pair.client.endpoint.check(), Ok(()), "{}", pair.name);
        }
        pair.flush(FlushMode::Remote);
        let endpoint = &pair.client.endpoint;
        let posts = (0..10_000).take_while(|number| endpoint.am_short(1, *number, &[0; 200]).is_ok()).count();
        assert_eq!(endpoint.check(), Ok(()), "{}: on a full queue", pair.name);
        pair.flush(FlushMode::Remote);
        let seen = pair.server.interface.clone();
        pair.until("messages", || seen.unhandled() >= posts as u64);
        assert!(errors.iter().all(|errors| errors.borrow().is_empty()), "{}: {errors:?}", pair.name);
    }
}

#[test]
fn whom_nobody_asks_any_more() {
    for mut pair in Pair::all_with_zcopy() {
        let Pair { name, worker, client, .. } = &mut pair;
        assert!(client.endpoint.flush(FlushMode::Cancel, None).is_ok());
        let answer = client.endpoint.check();
        assert!(matches!(answer, Err(PostError::EndpointFailed | PostError::Closed)), "{name}: {answer:?}");
        worker.progress();
        *worker = Worker::new();
        assert_eq!(client.endpoint.check(), Err(PostError::Closed), "{name}");
    }
}

/// Over a device an endpoint that did nothing else learns so what became of its peer.
#[test]
fn a_peer_that_is_gone_is_found() {
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
