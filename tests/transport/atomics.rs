//! 64-bit atomics.

use barewire::{Access, FetchResult, PostError, Posted};

use crate::support::{Pair, Watch, contents};

#[test]
fn atomics() {
    for mut pair in Pair::all() {
        let (memory, key) = pair.target(64, Access::REMOTE_ATOMIC);
        memory.store_u64(8, 40).unwrap();
        let remote = memory.address() + 8;
        let posted = pair.post("add", |endpoint| endpoint.atomic_add64(2, remote, &key));
        assert_eq!(posted, Ok(Posted::Done));
        let (result, watch) = (FetchResult::new(), Watch::new(1));
        watch.posted(pair.post("fetch_add", |endpoint| {
            endpoint.atomic_fetch_add64(u64::MAX, remote, &key, &result, Some(&watch.completion))
        }));
        pair.until("fetch_add", || watch.is_done());
        assert_eq!((result.get(), watch.result()), (42, Some(Ok(()))));
        for (compare, found, after) in [(7, 41, 41), (41, 41, 0xdead_beef_0bad_cafe)] {
            let watch = Watch::new(1);
            watch.posted(pair.post("compare_swap", |endpoint| {
                endpoint.atomic_compare_swap64(
                    compare,
                    0xdead_beef_0bad_cafe,
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
        assert_eq!(endpoint.atomic_add64(1, remote + 4, &key), Err(PostError::Unaligned));
        assert_eq!(
            endpoint.atomic_fetch_add64(1, remote + 1, &key, &result, None),
            Err(PostError::Unaligned)
        );
        assert_eq!(contents(&memory)[..8], [0; 8]);
        assert_eq!(contents(&memory)[16..], [0; 48]);
    }
}

/// Many fetches in flight: each gets its own result.
#[test]
fn fetches_in_flight_do_not_mix() {
    for mut pair in Pair::all() {
        let (memory, key) = pair.target(8, Access::REMOTE_ATOMIC);
        let remote = memory.address();
        let watch = Watch::new(100);
        let results: Vec<_> = (0..100).map(|_| FetchResult::new()).collect();
        for result in &results {
            watch.posted(pair.post("fetch_add", |endpoint| {
                endpoint.atomic_fetch_add64(3, remote, &key, result, Some(&watch.completion))
            }));
        }
        pair.until("all", || watch.is_done());
        let values: Vec<_> = results.iter().map(FetchResult::get).collect();
        assert_eq!(values, (0..100).map(|i| 3 * i).collect::<Vec<_>>(), "{}", pair.name);
    }
}
