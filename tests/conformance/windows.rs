//! Windows, which open parts of memory to a peer for a time.

use std::cell::RefCell;

use barewire::{
    Access, Cause, ChangeError, Endpoint, EndpointError, Flags, FlushMode, MemoryError, Post,
    PostError, Posted, RemoteKey, View, Window,
};

use crate::place::Place;
use crate::support::{Pair, Watch, collect, connect, contents, watch_errors};

const LENGTH: usize = 4096;

/// Waits for the end of a post of the server's endpoint.
pub(crate) fn changed(pair: &mut Pair, watch: &Watch, posted: Result<Posted, ChangeError>) {
    match posted.unwrap() {
        Posted::Done => {}
        Posted::InProgress => {
            pair.until("the change", || watch.is_done());
            watch.result().unwrap().unwrap();
        }
    }
}

fn bind<'m>(
    pair: &mut Pair,
    window: &mut Window<'m>,
    memory: &'m barewire::Memory,
    range: std::ops::Range<usize>,
    access: Access,
) -> RemoteKey {
    let watch = Watch::new(1);
    let endpoint = pair.server.endpoint.clone();
    let first = range.start as u64;
    let posted = window.bind(&endpoint, memory, range, access, Some(&watch.completion));
    changed(pair, &watch, posted);
    assert_eq!(window.address(), Some(memory.address() + first));
    pair.client.domain.unpack_key(&window.pack_key().unwrap()).unwrap()
}

/// Puts 8 bytes through `key` and waits for the end.
pub(crate) fn put(pair: &mut Pair, key: &RemoteKey, remote: u64) -> Post {
    let source = pair.client.domain.allocate(8, Access::empty()).unwrap();
    source.write(0, &[9; 8]).unwrap();
    let slice = [source.slice(0, 8).unwrap()];
    let watch = Watch::new(1);
    let posted = pair.post("put", |e| e.put_zcopy(&slice, remote, key, Some(&watch.completion)))?;
    if posted == Posted::InProgress {
        pair.until("the put", || watch.is_done());
        watch.result().unwrap().map_err(|_| PostError::EndpointFailed)?;
    }
    Ok(posted)
}

pub(crate) fn a_window_opens_its_range_until_it_is_invalidated(place: &Place) {
    let mut pair = place.pair();
    let memory = pair.server.domain.allocate(LENGTH, Access::LOCAL_WRITE).unwrap();
    let endpoint = pair.server.endpoint.clone();
    let mut window = Window::new(&pair.server.domain).unwrap();
    assert_eq!((window.address(), window.pack_key()), (None, None));
    assert!(matches!(window.invalidate(&endpoint, None), Err(ChangeError::Free)));
    for (round, first) in [64, 2000, 8].into_iter().enumerate() {
        let key = bind(&mut pair, &mut window, &memory, first..first + 64, Access::REMOTE_WRITE);
        let again = window.bind(&endpoint, &memory, 0..8, Access::REMOTE_READ, None);
        assert!(matches!(again, Err(ChangeError::Bound)), "{}: round {round}", pair.name);
        let remote = memory.address() + first as u64 + 56;
        let _ = put(&mut pair, &key, remote).unwrap();
        pair.flush(FlushMode::Remote);
        assert_eq!(contents(&memory)[first + 56..][..8], [9; 8], "{}: round {round}", pair.name);
        let watch = Watch::new(1);
        let posted = window.invalidate(&endpoint, Some(&watch.completion));
        changed(&mut pair, &watch, posted);
    }
    let sum = contents(&memory).into_iter().map(u32::from).sum::<u32>();
    assert_eq!(sum, 3 * 8 * 9, "{}: other bytes changed", pair.name);
}

/// Beyond its range, without the right, and once it is invalidated, a window gives no access: the
/// post is refused, or the endpoint fails.
pub(crate) fn a_window_gives_no_more_than_it_says(place: &Place) {
    for (what, access, offset, revoked, rebound) in [
        ("beyond the range", Access::REMOTE_WRITE, 60, false, false),
        ("before the range", Access::REMOTE_WRITE, -1, false, false),
        ("without the right", Access::REMOTE_READ, 0, false, false),
        ("after the invalidation", Access::REMOTE_WRITE, 0, true, false),
        ("with an old key", Access::REMOTE_WRITE, 0, true, true),
    ] {
        let mut pair = place.pair();
        let errors = watch_errors(&pair.client.interface);
        let memory = pair.server.domain.allocate(LENGTH, Access::all()).unwrap();
        let endpoint = pair.server.endpoint.clone();
        let mut window = Window::new(&pair.server.domain).unwrap();
        let key = bind(&mut pair, &mut window, &memory, 64..128, access);
        if revoked {
            let watch = Watch::new(1);
            let posted = window.invalidate(&endpoint, Some(&watch.completion));
            changed(&mut pair, &watch, posted);
        }
        if rebound {
            bind(&mut pair, &mut window, &memory, 64..128, access);
        }
        let remote = memory.address().wrapping_add(64).wrapping_add_signed(offset);
        put_is_refused(&mut pair, &key, remote, &errors, what);
        assert_eq!(contents(&memory), [0; LENGTH], "{}: {what}", pair.name);
    }
}

/// A put that the key does not permit is refused, or the endpoint fails.
pub(crate) fn put_is_refused(
    pair: &mut Pair,
    key: &RemoteKey,
    remote: u64,
    errors: &RefCell<Vec<EndpointError>>,
    what: &str,
) {
    let refused = put(pair, key, remote).unwrap_err();
    let known = matches!(
        refused,
        PostError::OutOfRange
            | PostError::AccessDenied
            | PostError::KeyExpired
            | PostError::EndpointFailed
    );
    assert!(known, "{}: {what}: {refused}", pair.name);
    if refused == PostError::EndpointFailed {
        pair.until("the error", || !errors.borrow().is_empty());
    }
}

/// Another endpoint of the server, which can post.
fn another_endpoint(pair: &mut Pair) -> Endpoint {
    let interface = &pair.server.interface;
    if interface.attributes().flags.contains(Flags::CONNECT_TO_INTERFACE) {
        return interface.connect(&pair.client.interface.address()).unwrap();
    }
    let (one, other) = (pair.server.another(), pair.client.another());
    connect(&other, &one);
    let (endpoint, peer) = (one.endpoint.clone(), other.endpoint.clone());
    // Over `tcp`, posts wait for the connection.
    pair.until("the connection", || peer.fence() != Err(PostError::NoResource));
    endpoint
}

pub(crate) fn a_window_is_free_once_its_endpoint_has_ended(place: &Place) {
    let mut pair = place.pair();
    let memory = pair.server.domain.allocate(LENGTH, Access::LOCAL_WRITE).unwrap();
    let second = another_endpoint(&mut pair);
    let mut window = Window::new(&pair.server.domain).unwrap();
    let old = bind(&mut pair, &mut window, &memory, 0..64, Access::REMOTE_WRITE);
    // It may end before the device has carried out an invalidation that was posted.
    let first = pair.server.endpoint.clone();
    let _ = window.invalidate(&first, None).unwrap();
    let _ = window.bind(&first, &memory, 0..64, Access::REMOTE_WRITE, None).unwrap();
    let _ = first.flush(FlushMode::Cancel, None).unwrap();
    assert_eq!((window.address(), window.pack_key()), (None, None), "{}", pair.name);
    let refused = window.bind(&first, &memory, 0..64, Access::REMOTE_WRITE, None).unwrap_err();
    let ended = matches!(refused, ChangeError::Post(PostError::EndpointFailed));
    assert!(ended, "{}: {refused}", pair.name);

    let watch = Watch::new(1);
    let access = Access::REMOTE_WRITE;
    let posted = window.bind(&second, &memory, 64..128, access, Some(&watch.completion));
    changed(&mut pair, &watch, posted);
    assert_eq!(window.address(), Some(memory.address() + 64));
    let watch = Watch::new(1);
    let posted = window.invalidate(&second, Some(&watch.completion));
    changed(&mut pair, &watch, posted);
    assert_eq!(second.error(), None, "{}", pair.name);
    // It was free before this one ends.
    let _ = second.flush(FlushMode::Cancel, None).unwrap();
    let free = window.invalidate(&second, None).unwrap_err();
    assert!(matches!(free, ChangeError::Free), "{}: {free}", pair.name);
    drop(old);
}

pub(crate) fn another_endpoint_invalidates_no_window_of_a_peer(place: &Place) {
    let mut pair = place.pair();
    let memory = pair.server.domain.allocate(LENGTH, Access::LOCAL_WRITE).unwrap();
    let second = another_endpoint(&mut pair);
    let mut window = Window::new(&pair.server.domain).unwrap();
    let key = bind(&mut pair, &mut window, &memory, 0..64, Access::REMOTE_WRITE);
    let refused = window.invalidate(&second, None).unwrap_err();
    assert!(matches!(refused, ChangeError::OtherEndpoint), "{}: {refused}", pair.name);
    let _ = put(&mut pair, &key, memory.address()).unwrap();
    let watch = Watch::new(1);
    let first = pair.server.endpoint.clone();
    let posted = window.invalidate(&first, Some(&watch.completion));
    changed(&mut pair, &watch, posted);
    assert_eq!(window.address(), None, "{}", pair.name);
}

/// With tag matching, requests of the peer arrive at another queue pair than the one that binds.
pub(crate) fn windows_are_used_beside_tag_matching(place: &Place) {
    let place = place.matching_tags();
    a_window_opens_its_range_until_it_is_invalidated(&place);
    a_window_gives_no_more_than_it_says(&place);
    a_window_that_cannot_be_bound(&place);
    a_window_is_free_once_its_endpoint_has_ended(&place);
    another_endpoint_invalidates_no_window_of_a_peer(&place);
    // A window for every peer is not ended by one of them.
    let mut pair = place.pair();
    let flags = pair.client.interface.attributes().flags;
    assert!(!flags.contains(Flags::SEND_INVALIDATE), "{}", pair.name);
    let memory = pair.server.domain.allocate(LENGTH, Access::LOCAL_WRITE).unwrap();
    let mut window = Window::new(&pair.server.domain).unwrap();
    let key = bind(&mut pair, &mut window, &memory, 0..64, Access::REMOTE_WRITE);
    let refused = pair.post("message", |e| e.am_short_invalidate(3, 0, b"mine", &key));
    assert_eq!(refused, Err(PostError::Unsupported), "{}", pair.name);
    let _ = put(&mut pair, &key, memory.address()).unwrap();
}

/// The peer gives its access back with the message that it does not need it any more.
pub(crate) fn a_message_ends_the_access_by_its_key(place: &Place) {
    let mut pair = place.pair();
    let errors = watch_errors(&pair.client.interface);
    let inbox = collect(&pair.server.interface, 3);
    let memory = pair.server.domain.allocate(LENGTH, Access::LOCAL_WRITE).unwrap();
    let mut window = Window::new(&pair.server.domain).unwrap();
    let mut old = Vec::new();
    for (round, payload) in [&b""[..], b"8 bytes.", b"done with it"].into_iter().enumerate() {
        let first = 64 * round;
        let key = bind(&mut pair, &mut window, &memory, first..first + 64, Access::REMOTE_WRITE);
        let _ = put(&mut pair, &key, memory.address() + first as u64).unwrap();
        pair.post("message", |e| e.am_short_invalidate(3, 77, payload, &key)).unwrap();
        pair.until("the message", || inbox.borrow().len() > round);
        assert_eq!(inbox.borrow()[round], [&77_u64.to_le_bytes(), payload].concat());
        assert_eq!((window.address(), window.pack_key()), (None, None), "{}", pair.name);
        let endpoint = pair.server.endpoint.clone();
        let free = window.invalidate(&endpoint, None).unwrap_err();
        assert!(matches!(free, ChangeError::Free), "{}: {free}", pair.name);
        old.push(key);
    }
    assert!(errors.borrow().is_empty(), "{}: {:?}", pair.name, errors.borrow());
    let before = contents(&memory);
    let refused = put(&mut pair, &old[1], memory.address() + 64).unwrap_err();
    let known = matches!(refused, PostError::KeyExpired | PostError::EndpointFailed);
    assert!(known, "{}: {refused}", pair.name);
    assert_eq!(contents(&memory), before, "{}", pair.name);
}

/// Sends a message with the key of a region or view: it is refused, or fails its endpoint.
pub(crate) fn message_is_refused(pair: &mut Pair, key: &RemoteKey) {
    let errors = watch_errors(&pair.client.interface);
    let inbox = collect(&pair.server.interface, 3);
    if let Err(error) = pair.post("message", |e| e.am_short_invalidate(3, 0, b"mine", key)) {
        assert_eq!(error, PostError::AccessDenied, "{}", pair.name);
    } else {
        pair.until("the error", || !errors.borrow().is_empty());
        let cause = errors.borrow()[0].cause;
        // An adapter does not report a refused key, and does not respond any more.
        let known = matches!(cause, Cause::RemoteAccess | Cause::PeerUnreachable);
        assert!(known, "{}: {cause:?}", pair.name);
    }
    assert!(inbox.borrow().is_empty(), "{}", pair.name);
}

pub(crate) fn a_message_ends_no_access_to_a_region(place: &Place) {
    let mut pair = place.pair();
    let (memory, key) = pair.target(LENGTH, Access::all());
    let long = pair.client.endpoint.am_short_invalidate(3, 0, &[0; 16000], &key);
    assert!(matches!(long, Err(PostError::TooLong { .. })), "{}: {long:?}", pair.name);
    message_is_refused(&mut pair, &key);
    drop(memory);
}

/// Ranges, rights and domains are checked before anything is posted.
pub(crate) fn a_window_that_cannot_be_bound(place: &Place) {
    let pair = place.pair();
    let (domain, endpoint) = (&pair.server.domain, &pair.server.endpoint);
    let memory = domain.allocate(LENGTH, Access::REMOTE_READ).unwrap();
    let mut window = Window::new(domain).unwrap();
    let mut refused =
        |range, access| window.bind(endpoint, &memory, range, access, None).unwrap_err();
    assert!(matches!(
        refused(4000..4097, Access::REMOTE_READ),
        ChangeError::Memory(MemoryError::OutOfRange { offset: 4000, length: 97, region: LENGTH })
    ));
    assert!(matches!(refused(8..8, Access::REMOTE_READ), ChangeError::Length(0)));
    let rights = refused(0..8, Access::REMOTE_WRITE);
    assert!(matches!(rights, ChangeError::Rights(Access::LOCAL_WRITE)), "{rights}");
    let other = place.pair();
    let foreign = window.bind(&other.server.endpoint, &memory, 0..8, Access::REMOTE_READ, None);
    let foreign = foreign.map(|_| ()).unwrap_err();
    assert!(matches!(foreign, ChangeError::Post(PostError::ForeignMemory)), "{foreign}");
}

/// Without windows or views, the error names transports that have them.
pub(crate) fn who_has_no_windows_names_others(place: &Place) {
    let pair = place.pair();
    let flags = pair.client.interface.attributes().flags;
    let window = Window::new(&pair.client.domain).map(drop);
    let view = View::new(&pair.client.domain, 4).map(drop);
    let has = [barewire::Flags::WINDOWS, barewire::Flags::VIEWS];
    for (has, created) in has.into_iter().zip([window, view]) {
        match created {
            Ok(()) => assert!(flags.contains(has), "{}: {has:?}", pair.name),
            Err(ChangeError::Unsupported { instead, .. }) => {
                assert!(!flags.contains(has) && instead.contains("rc_mlx5"), "{}", pair.name);
            }
            Err(error) => panic!("{}: {has:?}: {error}", pair.name),
        }
    }
}
