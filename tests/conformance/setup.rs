//! Opening and connecting: names, settings, addresses.

use barewire::{Access, FlushMode, PendingResult, PostError, Posted};

use crate::place::Place;

pub(crate) fn an_endpoint_that_was_never_connected(place: &Place) {
    let pair = place.pair();
    let side = pair.client.another();
    let (memory, key) = pair.target(8, Access::all());
    let endpoint = &side.endpoint;
    assert_eq!(endpoint.put_zcopy(&[], memory.address(), &key, None), Err(PostError::NotConnected));
    if pair.client.interface.attributes().flags.contains(barewire::Flags::AM_SHORT) {
        assert_eq!(endpoint.am_short(0, 0, &[]), Err(PostError::NotConnected));
        assert_eq!(endpoint.am_short(33, 0, &[]), Err(PostError::NotConnected));
    }
    assert_eq!(endpoint.flush(FlushMode::Local, None), Err(PostError::NotConnected));
    assert_eq!(endpoint.pending_add(|_| PendingResult::Done), Err(barewire::Busy));
    assert_eq!(endpoint.flush(FlushMode::Cancel, None), Ok(Posted::Done));
    assert_eq!(endpoint.put_zcopy(&[], memory.address(), &key, None), Err(PostError::EndpointFailed));
}
