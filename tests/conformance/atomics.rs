//! Atomics.

use barewire::{
    Access, AtomicOp, AtomicOperations, AtomicWord, Endpoint, FetchResult, Memory, Post, PostError,
    Posted, RemoteKey,
};

use crate::place::Place;
use crate::support::{Pair, Watch, connect, contents};

fn every_operation<W>(
    pair: &mut Pair,
    has: AtomicOperations,
    offset: usize,
    operand: W,
    word: impl Fn(u64) -> W,
) where
    W: AtomicWord + std::fmt::Debug + PartialEq,
{
    let start = 0x0123_4567_89ab_cdef_u64;
    let old = word(start);
    let all: u64 = word(u64::MAX).into();
    let (a, b): (u64, u64) = (old.into(), operand.into());
    let swap = AtomicOp::CompareSwap { compare: old, swap: operand };
    let misses = AtomicOp::CompareSwap { compare: operand, swap: operand };
    // The capability of each operation without and with result, and the value afterwards.
    let none = AtomicOperations::all().complement();
    let cases = [
        (
            AtomicOp::Add(operand),
            AtomicOperations::ADD,
            AtomicOperations::FETCH_ADD,
            a.wrapping_add(b) & all,
        ),
        (AtomicOp::And(operand), AtomicOperations::AND, AtomicOperations::FETCH_AND, a & b),
        (AtomicOp::Or(operand), AtomicOperations::OR, AtomicOperations::FETCH_OR, a | b),
        (AtomicOp::Xor(operand), AtomicOperations::XOR, AtomicOperations::FETCH_XOR, a ^ b),
        (AtomicOp::Swap(operand), none, AtomicOperations::SWAP, b),
        (swap, none, AtomicOperations::COMPARE_SWAP, b),
        (misses, none, AtomicOperations::COMPARE_SWAP, a),
    ];
    for (op, posted, fetched, after) in cases {
        for fetch in [false, true] {
            let (memory, key) = pair.target(32, Access::REMOTE_ATOMIC);
            memory.write(0, &[0x5a; 32]).unwrap();
            memory.write(offset, &start.to_ne_bytes()[..size_of::<W>()]).unwrap();
            let remote = memory.address() + offset as u64;
            let need = if fetch { fetched } else { posted };
            let (result, watch) = (FetchResult::new(), Watch::new(1));
            let what = format!("{}: {op:?}, fetching: {fetch}", pair.name);
            let post = |endpoint: &Endpoint, key: &RemoteKey| -> Post {
                if fetch {
                    endpoint.atomic_fetch(op, remote, key, &result, Some(&watch.completion))
                } else {
                    endpoint.atomic_post(op, remote, key).map(|()| Posted::Done)
                }
            };
            if need == none || !has.contains(need) {
                let answer = pair.post(&what, |endpoint| post(endpoint, &key));
                assert_eq!(answer, Err(PostError::Unsupported), "{what}");
                continue;
            }
            let answer = pair.post(&what, |endpoint| post(endpoint, &key));
            if fetch {
                watch.posted(answer);
                pair.until(&what, || watch.is_done());
                assert_eq!(word(result.get()), old, "{what}");
            } else {
                assert_eq!(answer, Ok(Posted::Done), "{what}");
                pair.flush(barewire::FlushMode::Remote);
            }
            expect_word(&memory, offset, &after.to_ne_bytes()[..size_of::<W>()], &what);
            let odd = pair.post(&what, |endpoint| {
                endpoint.atomic_fetch(AtomicOp::Add(operand), remote + 1, &key, &result, None)
            });
            if has.contains(AtomicOperations::FETCH_ADD) {
                assert_eq!(odd, Err(PostError::Unaligned), "{what}");
            }
        }
    }
}

fn expect_word(memory: &Memory, offset: usize, word: &[u8], what: &str) {
    let mut expected = vec![0x5a; memory.len()];
    expected[offset..offset + word.len()].copy_from_slice(word);
    assert_eq!(contents(memory), expected, "{what}");
}

pub(crate) fn atomics(place: &Place) {
    let mut pair = place.pair();
    let (memory, key) = pair.target(64, Access::REMOTE_ATOMIC);
    memory.store_u64(8, 40).unwrap();
    let remote = memory.address() + 8;
    let posted =
        pair.post("add", |endpoint| endpoint.atomic_post(AtomicOp::Add(2_u64), remote, &key));
    assert_eq!(posted, Ok(()));
    let (result, watch) = (FetchResult::new(), Watch::new(1));
    watch.posted(pair.post("fetch_add", |endpoint| {
        endpoint.atomic_fetch(
            AtomicOp::Add(u64::MAX),
            remote,
            &key,
            &result,
            Some(&watch.completion),
        )
    }));
    pair.until("fetch_add", || watch.is_done());
    assert_eq!((result.get(), watch.result()), (42, Some(Ok(()))));
    for (compare, found, after) in [(7_u64, 41, 41), (41, 41, 0xdead_beef_0bad_cafe)] {
        let watch = Watch::new(1);
        watch.posted(pair.post("compare_swap", |endpoint| {
            endpoint.atomic_fetch(
                AtomicOp::CompareSwap { compare, swap: 0xdead_beef_0bad_cafe },
                remote,
                &key,
                &result,
                Some(&watch.completion),
            )
        }));
        pair.until("compare_swap", || watch.is_done());
        assert_eq!(result.get(), found, "{}", pair.name);
        assert_eq!(memory.load_u64(8).unwrap(), after, "{}", pair.name);
    }
    let endpoint = &pair.client.endpoint;
    assert_eq!(
        endpoint.atomic_post(AtomicOp::Add(1_u64), remote + 4, &key),
        Err(PostError::Unaligned)
    );
    assert_eq!(
        endpoint.atomic_fetch(AtomicOp::Add(1_u64), remote + 1, &key, &result, None),
        Err(PostError::Unaligned)
    );
    assert_eq!(contents(&memory)[..8], [0; 8]);
    assert_eq!(contents(&memory)[16..], [0; 48]);
}

/// Many fetches in flight: each gets its own result.
pub(crate) fn fetches_in_flight_do_not_mix(place: &Place) {
    let mut pair = place.pair();
    let (memory, key) = pair.target(8, Access::REMOTE_ATOMIC);
    let remote = memory.address();
    let watch = Watch::new(100);
    let results: Vec<_> = (0..100).map(|_| FetchResult::new()).collect();
    for result in &results {
        watch.posted(pair.post("fetch_add", |endpoint| {
            endpoint.atomic_fetch(
                AtomicOp::Add(3_u64),
                remote,
                &key,
                result,
                Some(&watch.completion),
            )
        }));
    }
    pair.until("all", || watch.is_done());
    let values: Vec<_> = results.iter().map(FetchResult::get).collect();
    assert_eq!(values, (0..100).map(|i| 3 * i).collect::<Vec<_>>(), "{}", pair.name);
}

/// Every operation, with and without result, by capability; the adjacent words stay unchanged.
pub(crate) fn every_operation_on_words_of_both_sizes(place: &Place) {
    let mut pair = place.pair();
    let attributes = pair.client.interface.attributes();
    let (of_32, of_64) = (attributes.atomic32, attributes.atomic64);
    for offset in [8, 12] {
        every_operation(&mut pair, of_32, offset, 0xf0f0_1234_u32, |word| word as u32);
    }
    every_operation(&mut pair, of_64, 16, 0xf0f0_1234_5678_9abc_u64, |word| word);
}

/// `None` if there is no room.
fn taken(endpoint: &Endpoint, post: Post) -> Option<Posted> {
    match post {
        Ok(posted) => Some(posted),
        Err(PostError::NoResource) => None,
        Err(error) => panic!("{error}: {:?}", endpoint.error()),
    }
}

/// Two endpoints change one word without ordering: no change is lost.
pub(crate) fn concurrent_changes_of_one_word_are_exact(place: &Place) {
    const EACH: u64 = 500;
    let mut pair = place.pair();
    let (memory, key) = pair.target(16, Access::REMOTE_ATOMIC);
    let (sum, counter) = (memory.address(), memory.address() + 8);
    // Both ends of a second connection, which `self` does not need.
    let second = (!pair.is_self()).then(|| (pair.client.another(), pair.server.another()));
    if let Some((other, peer)) = &second {
        connect(other, peer);
        pair.taken_by(&[&other.endpoint, &peer.endpoint]);
    }
    let other = second.as_ref().map_or(&pair.client, |(other, _)| other).endpoint.clone();
    let endpoints = [pair.client.endpoint.clone(), other];
    let watch = Watch::new(2 * EACH as u32);
    let results: Vec<FetchResult> = (0..2 * EACH).map(|_| FetchResult::new()).collect();
    for i in 0..EACH {
        for (end, endpoint) in endpoints.iter().enumerate() {
            let operand = i * 2 + end as u64;
            pair.until("add", || {
                taken(
                    endpoint,
                    endpoint.atomic_post(AtomicOp::Add(operand), sum, &key).map(|()| Posted::Done),
                )
                .is_some()
            });
            let result = &results[(2 * i) as usize + end];
            let mut posted = None;
            pair.until("fetch", || {
                posted = taken(
                    endpoint,
                    endpoint.atomic_fetch(
                        AtomicOp::Add(1_u64),
                        counter,
                        &key,
                        result,
                        Some(&watch.completion),
                    ),
                );
                posted.is_some()
            });
            watch.posted(Ok(posted.unwrap()));
        }
    }
    pair.until("all", || watch.is_done());
    for endpoint in &endpoints {
        pair.until("flush", || {
            endpoint.flush(barewire::FlushMode::Remote, None) == Ok(Posted::Done)
        });
    }
    assert_eq!(memory.load_u64(0).unwrap(), (0..2 * EACH).sum::<u64>(), "{}", pair.name);
    // Each value was fetched once.
    let mut found: Vec<u64> = results.iter().map(FetchResult::get).collect();
    found.sort_unstable();
    assert_eq!(found, (0..2 * EACH).collect::<Vec<_>>(), "{}", pair.name);
}
