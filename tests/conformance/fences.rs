//! What a fence orders: operations on the peer's memory, and operations on local memory that an
//! earlier one fills, at sizes around the limits at which transports change their protocol.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use barewire::{Access, AtomicOp, Endpoint, FlushMode, Memory, Post, PostError, RemoteKey, Unpack};

use crate::place::Place;
use crate::support::{Pair, Watch, collect, contents, pattern, small, until};

/// Around inline data, copied data, segments, packets, frames and buffers.
const SIZES: [usize; 12] = [1, 8, 33, 257, 1025, 2049, 4097, 8192, 8193, 8257, 65_537, 262_145];
const ROUNDS: u32 = 2;

/// An operation that changes the peer's memory. Returns whether the transport has it for these
/// bytes.
type Write = (&'static str, fn(&Pair, usize) -> bool, fn(&mut Pair, &Memory, u64, &RemoteKey));

const WRITES: [Write; 4] = [
    (
        "put_short",
        |pair, size| size <= limits(pair).max_short,
        |pair, new, remote, key| {
            let data = contents(new);
            pair.post("put_short", |e| e.put_short(&data, remote, key)).unwrap();
        },
    ),
    (
        "put_bcopy",
        |pair, size| size <= limits(pair).max_bcopy,
        |pair, new, remote, key| {
            let data = contents(new);
            let pack = |room: &mut [u8]| {
                room[..data.len()].copy_from_slice(&data);
                data.len()
            };
            pair.post("put_bcopy", |e| e.put_bcopy(pack, remote, key)).unwrap();
        },
    ),
    (
        "put_zcopy",
        |pair, size| size <= limits(pair).max_zcopy,
        |pair, new, remote, key| {
            let slice = [new.slice(0, new.len()).unwrap()];
            let _ = pair.post("put_zcopy", |e| e.put_zcopy(&slice, remote, key, None)).unwrap();
        },
    ),
    // Changes every word; the bytes behind the last one stay.
    (
        "atomic",
        |pair, size| size == 8 && !pair.lacks_atomics(),
        |pair, _, remote, key| {
            pair.post("atomic", |e| e.atomic_post(AtomicOp::Add(u64::MAX / 7), remote, key))
                .unwrap();
        },
    ),
];

fn limits(pair: &Pair) -> barewire::RmaLimits {
    pair.client.interface.attributes().put
}

impl Pair {
    fn lacks_atomics(&self) -> bool {
        self.client.interface.attributes().atomic64.is_empty()
    }
}

/// Every operation that changes memory, behind a fence and a get of the same memory: the get
/// returns the bytes from before.
pub(crate) fn a_write_behind_a_fence_does_not_change_an_earlier_get(place: &Place) {
    let mut pair = place.pair();
    for size in SIZES {
        let (target, key) = pair.target(size.next_multiple_of(8), Access::all());
        let got = pair.client.domain.allocate(size, Access::LOCAL_WRITE).unwrap();
        let new = pair.client.domain.allocate(size, Access::empty()).unwrap();
        for (name, fits, write) in WRITES {
            if !fits(&pair, size) {
                continue;
            }
            for round in 0..ROUNDS {
                let old = pattern(round, target.len());
                target.write(0, &old).unwrap();
                new.write(0, &pattern(round + 100, size)).unwrap();
                got.write(0, &vec![0; size]).unwrap();
                let watch = Watch::new(1);
                let slice = [got.slice(0, size).unwrap()];
                let remote = target.address();
                watch.posted(
                    pair.post("get", |e| {
                        e.get_zcopy(&slice, remote, &key, Some(&watch.completion))
                    }),
                );
                pair.client.endpoint.fence().unwrap();
                write(&mut pair, &new, remote, &key);
                pair.until("the get", || watch.is_done());
                pair.flush(FlushMode::Remote);
                let what = format!("{}: {name} of {size} bytes", pair.name);
                assert!(contents(&got) == old[..size], "{what}: a get saw a later write");
                assert!(contents(&target) != old, "{what}");
            }
        }
    }
}

/// As above, for a get that passes its data to a function.
pub(crate) fn a_put_behind_a_fence_does_not_change_what_an_earlier_get_unpacks(place: &Place) {
    let mut pair = place.pair();
    let limit = pair.client.interface.attributes().get.max_bcopy;
    for size in SIZES.into_iter().filter(|size| *size <= limit) {
        let (target, key) = pair.target(size, Access::all());
        let new = pair.client.domain.allocate(size, Access::empty()).unwrap();
        for round in 0..ROUNDS {
            let (old, put) = (pattern(round, size), pattern(round + 100, size));
            target.write(0, &old).unwrap();
            new.write(0, &put).unwrap();
            let got: Rc<RefCell<Vec<u8>>> = Rc::default();
            let copy = Rc::clone(&got);
            let unpack = Unpack::new(move |data| *copy.borrow_mut() = data.to_vec());
            let (watch, remote) = (Watch::new(1), target.address());
            watch.posted(pair.post("get", |e| {
                e.get_bcopy(&unpack, size, remote, &key, Some(&watch.completion))
            }));
            pair.client.endpoint.fence().unwrap();
            let slice = [new.slice(0, size).unwrap()];
            let _ = pair.post("put", |e| e.put_zcopy(&slice, remote, &key, None)).unwrap();
            pair.until("the get", || watch.is_done());
            pair.flush(FlushMode::Remote);
            let what = format!("{}: {size} bytes", pair.name);
            assert!(*got.borrow() == old, "{what}: a get saw a later put");
            assert!(contents(&target) == put, "{what}");
        }
    }
}

pub(crate) fn a_get_behind_a_fence_reads_what_an_earlier_put_wrote(place: &Place) {
    let mut pair = place.pair();
    for size in SIZES {
        let (target, key) = pair.target(size, Access::all());
        let got = pair.client.domain.allocate(size, Access::LOCAL_WRITE).unwrap();
        let new = pair.client.domain.allocate(size, Access::empty()).unwrap();
        for round in 0..ROUNDS {
            let put = pattern(round, size);
            new.write(0, &put).unwrap();
            got.write(0, &vec![0; size]).unwrap();
            let (watch, remote) = (Watch::new(1), target.address());
            let from = [new.slice(0, size).unwrap()];
            let _ = pair.post("put", |e| e.put_zcopy(&from, remote, &key, None)).unwrap();
            pair.client.endpoint.fence().unwrap();
            let to = [got.slice(0, size).unwrap()];
            watch.posted(
                pair.post("get", |e| e.get_zcopy(&to, remote, &key, Some(&watch.completion))),
            );
            pair.until("the get", || watch.is_done());
            assert!(contents(&got) == put, "{}: {size} bytes", pair.name);
            pair.flush(FlushMode::Remote);
        }
    }
}

/// Posts a get into memory, a fence, and an operation that sends the memory.
fn relay(
    place: &Place,
    what: &str,
    most: impl Fn(&Pair) -> usize,
    mut send: impl FnMut(&mut Pair, &Memory, &dyn Fn(&Endpoint, &Memory) -> Post) -> Vec<u8>,
) {
    let mut pair = place.pair();
    let most = most(&pair);
    for size in SIZES.into_iter().filter(|size| *size <= most) {
        let (source, from) = pair.target(size, Access::all());
        let local = pair.client.domain.allocate(size, Access::LOCAL_WRITE).unwrap();
        for round in 0..ROUNDS {
            let data = pattern(round, size);
            source.write(0, &data).unwrap();
            local.write(0, &vec![0; size]).unwrap();
            let watch = Watch::new(1);
            let get = |endpoint: &Endpoint, local: &Memory| {
                let slice = [local.slice(0, size).unwrap()];
                endpoint.get_zcopy(&slice, source.address(), &from, Some(&watch.completion))
            };
            let sent = send(&mut pair, &local, &get);
            assert!(sent == data, "{}: {what} of {size} bytes", pair.name);
            pair.flush(FlushMode::Remote);
        }
    }
}

pub(crate) fn a_put_behind_a_fence_sends_what_an_earlier_get_brought(place: &Place) {
    let most = |_: &Pair| usize::MAX;
    relay(place, "put", most, |pair, local, get| {
        let (target, key) = pair.target(local.len(), Access::all());
        let _ = pair.post("get", |e| get(e, local)).unwrap();
        pair.client.endpoint.fence().unwrap();
        let slice = [local.slice(0, local.len()).unwrap()];
        let remote = target.address();
        let _ = pair.post("put", |e| e.put_zcopy(&slice, remote, &key, None)).unwrap();
        pair.flush(FlushMode::Remote);
        contents(&target)
    });
}

pub(crate) fn a_message_behind_a_fence_sends_what_an_earlier_get_brought(place: &Place) {
    let most = |pair: &Pair| pair.client.interface.attributes().am.max_zcopy;
    relay(place, "message", most, |pair, local, get| {
        let inbox = crate::support::collect(&pair.server.interface, 5);
        let _ = pair.post("get", |e| get(e, local)).unwrap();
        pair.client.endpoint.fence().unwrap();
        let slice = [local.slice(0, local.len()).unwrap()];
        let watch = Watch::new(1);
        watch.posted(pair.post("message", |e| e.am_zcopy(5, &[], &slice, Some(&watch.completion))));
        pair.until("the message", || watch.is_done() && !inbox.borrow().is_empty());
        inbox.take().remove(0)
    });
}

/// Once the put is seen, the receiver needs no more progress of the sender for the messages, which
/// are so many that queues and sockets are full.
pub(crate) fn a_put_behind_a_fence_arrives_after_earlier_messages(place: &Place) {
    const MOST: usize = 1000;
    let mut pair = place.pair_with(&small());
    let (target, key) = pair.target(8, Access::all());
    let inbox = collect(&pair.server.interface, 7);
    let (endpoint, is_self) = (pair.client.endpoint.clone(), pair.is_self());
    let length = pair.client.interface.attributes().am.max_bcopy;
    for round in 1..4_u64 {
        // Connects. Later, it makes room.
        pair.post("put", |e| e.put_short(&[0; 8], target.address(), &key)).unwrap();
        pair.flush(FlushMode::Remote);
        let fits = |_: &usize| match endpoint.am_bcopy(7, |_| length) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error, PostError::NoResource, "{}", pair.name);
                false
            }
        };
        let sent = (0..MOST).take_while(fits).count();
        pair.post("fence", Endpoint::fence).unwrap();
        pair.post("put", |e| e.put_short(&round.to_ne_bytes(), target.address(), &key)).unwrap();
        let is_seen = || target.load_u64(0).unwrap() == round;
        // Most transports need no progress here, which could send messages that are late.
        let is_seen_alone = (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            is_seen()
        });
        if !is_seen_alone {
            pair.until("the put", is_seen);
        }
        // Over `self` both ends have one worker.
        let Pair { worker, server_worker, .. } = &mut pair;
        let receiver = if is_self { worker } else { server_worker };
        let what = format!("{}: {sent} messages before the put", place.name);
        until(&mut [receiver], &what, || inbox.borrow().len() == sent);
        inbox.borrow_mut().clear();
    }
}

/// The handler of a message finds in memory what puts before the fence wrote.
pub(crate) fn a_message_behind_a_fence_arrives_after_earlier_puts(place: &Place) {
    let mut pair = place.pair();
    for size in SIZES {
        let (target, key) = pair.target(size, Access::all());
        let target = Rc::new(target);
        let new = pair.client.domain.allocate(size, Access::empty()).unwrap();
        let found: Rc<RefCell<Option<Vec<u8>>>> = Rc::default();
        let (seen, memory) = (Rc::clone(&found), Rc::clone(&target));
        pair.server
            .interface
            .set_handler(6, move |_| *seen.borrow_mut() = Some(contents(&memory)))
            .unwrap();
        for round in 0..ROUNDS {
            let put = pattern(round, size);
            new.write(0, &put).unwrap();
            let slice = [new.slice(0, size).unwrap()];
            let remote = target.address();
            let _ = pair.post("put", |e| e.put_zcopy(&slice, remote, &key, None)).unwrap();
            pair.client.endpoint.fence().unwrap();
            pair.post("message", |e| e.am_short(6, 0, &[])).unwrap();
            pair.until("the message", || found.borrow().is_some());
            assert!(found.take() == Some(put), "{}: {size} bytes", pair.name);
            pair.flush(FlushMode::Remote);
        }
    }
}
