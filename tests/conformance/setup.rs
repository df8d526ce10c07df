//! Opening and connecting: names, settings, addresses.

use barewire::{Access, FlushMode, PendingResult, PostError, Posted};

use crate::place::Place;
use crate::support::post_anything;

pub(crate) fn an_endpoint_that_was_never_connected(place: &Place) {
    let mut pair = place.pair();
    let side = pair.client.another();
    let (memory, key) = pair.target(8, Access::all());
    let endpoint = &side.endpoint;
    let other = std::mem::replace(&mut pair.client.endpoint, endpoint.clone());
    assert_eq!(post_anything(&pair, &memory, &key), Err(PostError::NotConnected));
    if pair.client.interface.attributes().flags.contains(barewire::Flags::AM_SHORT) {
        assert_eq!(endpoint.am_short(0, 0, &[]), Err(PostError::NotConnected));
        assert_eq!(endpoint.am_short(33, 0, &[]), Err(PostError::NotConnected));
    }
    assert_eq!(endpoint.flush(FlushMode::Local, None), Err(PostError::NotConnected));
    assert_eq!(endpoint.pending_add(|_| PendingResult::Done), Err(barewire::error::Busy));
    assert_eq!(endpoint.flush(FlushMode::Cancel, None), Ok(Posted::Done));
    assert_eq!(post_anything(&pair, &memory, &key), Err(PostError::EndpointFailed));
    // The other endpoint is not affected.
    pair.client.endpoint = other;
    assert_eq!(pair.client.endpoint.flush(FlushMode::Local, None), Ok(Posted::Done));
}
