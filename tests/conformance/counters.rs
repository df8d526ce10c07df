//! The counters of endpoints and interfaces.

use barewire::{
    Access, AtomicOp, Counters, Endpoint, FetchResult, Flags, FlushMode, PostError, RemoteKey,
    SHORT_HEADER, Transfer, Unpack,
};

use crate::place::Place;
use crate::support::{Pair, collect, connect, fill, send_later, small};

/// An operation of `bytes` bytes, with the counters of the endpoint before and after it.
fn counted<T>(
    pair: &mut Pair,
    what: &str,
    bytes: usize,
    post: impl FnMut(&Endpoint) -> Result<T, PostError>,
) {
    let before = pair.client.endpoint.counters();
    if let Err(error) = pair.post(what, post) {
        panic!("{}: {what}: {error}", pair.name);
    }
    let did = pair.client.endpoint.counters() - before;
    assert_eq!((did.posted, did.bytes), (1, bytes as u64), "{}: {what}", pair.name);
}

/// Every operation of the transport adds one, and its bytes, once.
pub(crate) fn operations_and_their_bytes_are_counted(place: &Place) {
    const BYTES: usize = 24;
    let mut pair = place.pair();
    let (memory, key) = pair.target(64, Access::all());
    let (at, key): (u64, &RemoteKey) = (memory.address(), &key);
    let local = pair.client.domain.allocate(64, Access::LOCAL_WRITE).unwrap();
    let slices = [local.slice(0, BYTES - 8).unwrap(), local.slice(40, 8).unwrap()];
    let slices =
        if pair.client.interface.attributes().put.max_iov > 1 { &slices[..] } else { &slices[..1] };
    let sliced = slices.len() * BYTES - if slices.len() == 1 { 8 } else { BYTES };
    let data = [1; BYTES];
    let flags = pair.client.interface.attributes().flags;
    let pack = |buffer: &mut [u8]| {
        buffer[..BYTES].fill(2);
        BYTES
    };
    if flags.contains(Flags::PUT_SHORT) {
        for size in [0, 8, BYTES] {
            counted(&mut pair, "put_short", size, |endpoint| {
                endpoint.put_short(&data[..size], at, key)
            });
        }
    }
    if flags.contains(Flags::PUT_BCOPY) {
        counted(&mut pair, "put_bcopy", BYTES, |endpoint| endpoint.put_bcopy(pack, at, key));
    }
    if flags.contains(Flags::PUT_ZCOPY) {
        counted(&mut pair, "put_zcopy", 8, |endpoint| {
            endpoint.put_zcopy(&[local.slice(0, 8).unwrap()], at, key, None)
        });
        counted(&mut pair, "put_zcopy", sliced, |endpoint| {
            endpoint.put_zcopy(slices, at, key, None)
        });
    }
    if flags.contains(Flags::PUT_ZCOPY) {
        let transfers = [(8, 0), (16, 32)].map(|(length, offset)| Transfer {
            local: local.slice(0, length).unwrap(),
            remote: at + offset,
            key,
        });
        let before = pair.client.endpoint.counters();
        let _ = pair.post("put_list", |endpoint| endpoint.put_list(&transfers, None)).unwrap();
        let did = pair.client.endpoint.counters() - before;
        assert_eq!((did.posted, did.bytes), (2, 24), "{}: put_list", pair.name);
    }
    if flags.contains(Flags::GET_BCOPY) {
        let unpack = Unpack::new(|_: &[u8]| {});
        counted(&mut pair, "get_bcopy", BYTES, |endpoint| {
            endpoint.get_bcopy(&unpack, BYTES, at, key, None)
        });
    }
    if flags.contains(Flags::GET_ZCOPY) {
        counted(&mut pair, "get_zcopy", sliced, |endpoint| {
            endpoint.get_zcopy(slices, at, key, None)
        });
    }
    if flags.contains(Flags::AM_SHORT) {
        for size in [0, 8, BYTES] {
            let bytes = SHORT_HEADER + size;
            counted(&mut pair, "am_short", bytes, |endpoint| {
                endpoint.am_short(1, 7, &data[..size])
            });
        }
    }
    if flags.contains(Flags::AM_SHORT_IOV) {
        let pieces = [&data[..3], &data[3..]];
        counted(&mut pair, "am_short_iov", SHORT_HEADER + BYTES, |endpoint| {
            endpoint.am_short_iov(1, 7, &pieces)
        });
    }
    if flags.contains(Flags::AM_BCOPY) {
        counted(&mut pair, "am_bcopy", BYTES, |endpoint| endpoint.am_bcopy(1, pack));
    }
    if flags.contains(Flags::AM_ZCOPY) {
        counted(&mut pair, "am_zcopy", 4 + sliced, |endpoint| {
            endpoint.am_zcopy(1, &data[..4], slices, None)
        });
    }
    let result = FetchResult::new();
    if flags.intersects(Flags::ATOMIC_CPU | Flags::ATOMIC_DEVICE) {
        counted(&mut pair, "atomic_post", 8, |endpoint| {
            endpoint.atomic_post(AtomicOp::Add(1_u64), at, key)
        });
        counted(&mut pair, "atomic_fetch, add", 8, |endpoint| {
            endpoint.atomic_fetch(AtomicOp::Add(1_u64), at, key, &result, None)
        });
        counted(&mut pair, "atomic_fetch, compare and swap", 8, |endpoint| {
            endpoint.atomic_fetch(
                AtomicOp::CompareSwap { compare: 1_u64, swap: 2 },
                at,
                key,
                &result,
                None,
            )
        });
    }
    pair.flush(FlushMode::Remote);
}

/// A refused post, and a request that waits.
pub(crate) fn refusals_and_requests_that_wait_are_counted(place: &Place) {
    let mut pair = place.pair_with(&small());
    let inbox = collect(&pair.server.interface, 1);
    let before = pair.client.endpoint.counters();
    let sent = fill(&pair.client.endpoint, 1);
    let did = pair.client.endpoint.counters() - before;
    assert_eq!((did.posted, did.no_resource, did.waited), (sent, 1, 0), "{}", pair.name);
    pair.client.endpoint.pending_add(send_later(1, sent)).unwrap();
    assert_eq!(
        pair.client.endpoint.am_short(1, 0, &[]),
        Err(PostError::NoResource),
        "{}",
        pair.name
    );
    let did = pair.client.endpoint.counters() - before;
    assert_eq!((did.posted, did.no_resource, did.waited), (sent, 1, 1), "{}", pair.name);
    pair.until("all", || inbox.borrow().len() as u64 == sent + 1);
    let did = pair.client.endpoint.counters() - before;
    assert_eq!((did.posted, did.waited), (sent + 1, 1), "{}", pair.name);
    // Flushes are not operations.
    pair.flush(FlushMode::Remote);
    assert_eq!((pair.client.endpoint.counters() - before).posted, sent + 1, "{}", pair.name);
}

/// The counters of an interface include those of its endpoints, also of dropped ones.
pub(crate) fn interfaces_add_up_their_endpoints(place: &Place) {
    let mut pair = place.pair();
    let before = pair.client.interface.counters();
    let (other, other_peer) = (pair.client.another(), pair.server.another());
    connect(&other, &other_peer);
    pair.connected();
    let send = |pair: &mut Pair, endpoint: &Endpoint| {
        pair.until("a message", || endpoint.am_short(1, 1, &[3; 8]).is_ok());
    };
    let endpoint = pair.client.endpoint.clone();
    send(&mut pair, &endpoint);
    send(&mut pair, &other.endpoint);
    let did = |pair: &Pair| {
        let Counters { posted, bytes, .. } = pair.client.interface.counters() - before;
        (posted, bytes)
    };
    assert_eq!(did(&pair), (2, 32), "{}", pair.name);
    pair.flush(FlushMode::Remote);
    drop((other, other_peer));
    for _ in 0..100 {
        pair.worker.progress();
        pair.server_worker.progress();
    }
    assert_eq!(did(&pair), (2, 32), "{}: with one endpoint dropped", pair.name);
    send(&mut pair, &endpoint);
    assert_eq!(did(&pair), (3, 48), "{}", pair.name);
}
