//! `check` of a peer.

use std::rc::Rc;
use std::time::Duration;

use barewire::{FlushMode, InterfaceConfig, PostError, TransportId, Worker};

use crate::place::Place;
use crate::support::{Pair, watch_errors};

/// 34 ms before the first retry.
const ACK_TIMEOUT: u8 = 13;

/// Checks have no effect on a running peer, however many there are and however full the queue is.
pub(crate) fn a_peer_that_lives_is_not_disturbed(place: &Place) {
    let mut pair = place.pair();
    let errors = [watch_errors(&pair.client.interface), watch_errors(&pair.server.interface)];
    for _ in 0..1000 {
        assert_eq!(pair.client.endpoint.check(), Ok(()), "{}", pair.name);
    }
    pair.flush(FlushMode::Remote);
    let endpoint = &pair.client.endpoint;
    let posts =
        (0..10_000).take_while(|number| endpoint.am_short(1, *number, &[0; 160]).is_ok()).count();
    assert_eq!(endpoint.check(), Ok(()), "{}: on a full queue", pair.name);
    pair.flush(FlushMode::Remote);
    let seen = pair.server.interface.clone();
    pair.until("messages", || seen.unhandled() >= posts as u64);
    assert!(errors.iter().all(|errors| errors.borrow().is_empty()), "{}: {errors:?}", pair.name);
}

/// A check after the peer has closed in order is reported, even if this side has not noticed the
/// end of the connection before.
pub(crate) fn a_peer_that_closed_is_reported(place: &Place) {
    // Within a second, over devices with all retries.
    let config =
        InterfaceConfig::default().peer_timeout(Duration::from_secs(1)).ack_timeout(ACK_TIMEOUT);
    let mut pair = place.pair_with(&config);
    if matches!(pair.client.interface.transport(), TransportId::Self_ | TransportId::Cma) {
        // The peer is the process, which goes on.
        return;
    }
    let errors = watch_errors(&pair.client.interface);
    assert_eq!(pair.client.endpoint.check(), Ok(()), "{}", pair.name);
    pair.flush(FlushMode::Remote);
    let client = pair.client.another_handle();
    drop(std::mem::replace(&mut pair.server, client));
    pair.server_worker = Worker::new();
    assert!(errors.borrow().is_empty(), "{}: {errors:?}", pair.name);
    let checked = pair.client.endpoint.check();
    assert!(
        matches!(checked, Ok(()) | Err(PostError::EndpointFailed)),
        "{}: {checked:?}",
        pair.name
    );
    let seen = Rc::clone(&errors);
    pair.until("the error", || !seen.borrow().is_empty());
    assert_eq!(errors.borrow().len(), 1, "{}: {errors:?}", pair.name);
    assert!(pair.client.endpoint.error().is_some(), "{}", pair.name);
}

pub(crate) fn who_was_cancelled_asks_nobody(place: &Place) {
    let mut pair = place.pair();
    let Pair { name, worker, client, .. } = &mut pair;
    assert!(client.endpoint.flush(FlushMode::Cancel, None).is_ok());
    let answer = client.endpoint.check();
    assert!(
        matches!(answer, Err(PostError::EndpointFailed | PostError::Closed)),
        "{name}: {answer:?}"
    );
    worker.progress();
    *worker = Worker::new();
    assert_eq!(client.endpoint.check(), Err(PostError::Closed), "{name}");
}
