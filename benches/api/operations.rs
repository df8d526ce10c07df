//! The operations of the transport API: those of the static API of `rc_mlx5`, of the dynamic API,
//! and of the shared worker.

#![allow(clippy::no_mangle_with_rust_abi, reason = "the name is for the checks of the assembly")]
#![allow(clippy::trivially_copy_pass_by_ref, reason = "as the API takes keys")]

use std::hint::black_box;
use std::slice::from_ref;

use barewire::capability::{
    AmBcopy, AmShort, AmZcopy, Atomics, GetBcopy, GetZcopy, PutBcopy, PutShort, PutZcopy,
};
use barewire::transport::rc_mlx5::{Endpoint, RemoteKey};
use barewire::{AtomicOp, Completion, FetchResult, Slice, Unpack};
use iai_callgrind::{library_benchmark, library_benchmark_group};

use crate::budget::{Level, ROUNDS};
use crate::dynamic::{self, Dynamic};
use crate::shared::{self, Shared};
use crate::sides::{ID, Static, completed, connected, delivered, posted};

/// Fills a buffer with a word.
#[inline(always)]
fn pack(payload: u64) -> impl FnOnce(&mut [u8]) -> usize {
    move |buffer| match buffer.first_chunk_mut() {
        Some(word) => {
            *word = payload.to_ne_bytes();
            size_of::<u64>()
        }
        None => 0,
    }
}

crate::rows::operations! {
    Level::Api;
    [also progress: progress_empty, progress_receive, progress_batch, progress_complete];

    put_short_8: held_put_short_8(endpoint: &Endpoint, payload: u64, remote: u64, key: &RemoteKey) -> bool {
        endpoint.put_short(&payload.to_ne_bytes(), remote, key).is_ok()
    }
    with [connected()] until [posted] |post, sides: Static| {
        for round in 0..ROUNDS {
            post(&sides.client.endpoint, round, sides.remote, &sides.key);
        }
    }

    put_short_8_run_time: held_put_short(
        endpoint: &Endpoint,
        payload: &[u8],
        remote: u64,
        key: &RemoteKey,
    ) -> bool {
        endpoint.put_short(payload, remote, key).is_ok()
    }
    with [connected()] until [posted] |post, sides: Static| {
        let payload = black_box(&[7; 8][..]);
        for _ in 0..ROUNDS {
            post(&sides.client.endpoint, payload, sides.remote, &sides.key);
        }
    }

    put_short_64: held_put_short_64(
        endpoint: &Endpoint,
        payload: &[u8; 64],
        remote: u64,
        key: &RemoteKey,
    ) -> bool {
        endpoint.put_short(payload, remote, key).is_ok()
    }
    with [connected()] until [posted] |post, sides: Static| {
        let payload = black_box(&[7; 64]);
        for _ in 0..ROUNDS {
            post(&sides.client.endpoint, payload, sides.remote, &sides.key);
        }
    }

    put_bcopy_8: held_put_bcopy_8(endpoint: &Endpoint, payload: u64, remote: u64, key: &RemoteKey) -> bool {
        endpoint.put_bcopy(pack(payload), remote, key).is_ok()
    }
    with [connected()] until [posted] |post, sides: Static| {
        for round in 0..ROUNDS {
            post(&sides.client.endpoint, round, sides.remote, &sides.key);
        }
    }

    put_zcopy: held_put_zcopy(
        endpoint: &Endpoint,
        slice: &Slice<'_>,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> bool {
        endpoint.put_zcopy(from_ref(slice), remote, key, completion).is_ok()
    }
    with [connected()] until [completed] |post, sides: Static| {
        let slice = sides.memory.slice(0, 64).expect("inside");
        for _ in 0..ROUNDS {
            let Static { client, remote, key, completion, .. } = &*sides;
            post(&client.endpoint, &slice, *remote, key, Some(completion));
        }
    }

    put_zcopy_silent: held_put_zcopy_silent(
        endpoint: &Endpoint,
        slice: &Slice<'_>,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> bool {
        endpoint.put_zcopy(from_ref(slice), remote, key, completion).is_ok()
    }
    with [connected()] until [posted] |post, sides: Static| {
        let slice = sides.memory.slice(0, 64).expect("inside");
        for _ in 0..ROUNDS {
            post(&sides.client.endpoint, &slice, sides.remote, &sides.key, None);
        }
    }

    get_bcopy: held_get_bcopy(
        endpoint: &Endpoint,
        unpack: &Unpack,
        length: usize,
        remote: u64,
        key: &RemoteKey,
        completion: &Completion,
    ) -> bool {
        endpoint.get_bcopy(unpack, length, remote, key, Some(completion)).is_ok()
    }
    with [connected()] until [completed] |post, sides: Static| {
        let length = black_box(8);
        for _ in 0..ROUNDS {
            let Static { client, unpack, remote, key, completion, .. } = &*sides;
            post(&client.endpoint, unpack, length, *remote, key, completion);
        }
    }

    get_zcopy: held_get_zcopy(
        endpoint: &Endpoint,
        slice: &Slice<'_>,
        remote: u64,
        key: &RemoteKey,
        completion: &Completion,
    ) -> bool {
        endpoint.get_zcopy(from_ref(slice), remote, key, Some(completion)).is_ok()
    }
    with [connected()] until [completed] |post, sides: Static| {
        let slice = sides.memory.slice(0, 64).expect("inside");
        for _ in 0..ROUNDS {
            let Static { client, remote, key, completion, .. } = &*sides;
            post(&client.endpoint, &slice, *remote, key, completion);
        }
    }

    am_short_8: held_am_short_8(endpoint: &Endpoint, id: u8, header: u64, payload: u64) -> bool {
        endpoint.am_short(id, header, &payload.to_ne_bytes()).is_ok()
    }
    with [connected()] until [delivered] |post, sides: Static| {
        let (id, payload) = black_box((ID, 5));
        for round in 0..ROUNDS {
            post(&sides.client.endpoint, id, round, payload);
        }
    }

    am_bcopy_8: held_am_bcopy_8(endpoint: &Endpoint, id: u8, payload: u64) -> bool {
        endpoint.am_bcopy(id, pack(payload)).is_ok()
    }
    with [connected()] until [delivered] |post, sides: Static| {
        let id = black_box(ID);
        for round in 0..ROUNDS {
            post(&sides.client.endpoint, id, round);
        }
    }

    am_zcopy: held_am_zcopy(
        endpoint: &Endpoint,
        id: u8,
        header: u64,
        slice: &Slice<'_>,
        completion: &Completion,
    ) -> bool {
        endpoint.am_zcopy(id, &header.to_ne_bytes(), from_ref(slice), Some(completion)).is_ok()
    }
    with [connected()] until [completed] |post, sides: Static| {
        let id = black_box(ID);
        let slice = sides.memory.slice(0, 64).expect("inside");
        for round in 0..ROUNDS {
            post(&sides.client.endpoint, id, round, &slice, &sides.completion);
        }
    }

    atomic_add: held_atomic_add(endpoint: &Endpoint, operand: u64, remote: u64, key: &RemoteKey) -> bool {
        endpoint.atomic_post(AtomicOp::Add(operand), remote, key).is_ok()
    }
    with [connected()] until [posted] |post, sides: Static| {
        for round in 0..ROUNDS {
            post(&sides.client.endpoint, round, sides.remote, &sides.key);
        }
    }

    fetch_add: held_atomic_fetch_add(
        endpoint: &Endpoint,
        operand: u64,
        remote: u64,
        key: &RemoteKey,
        result: &FetchResult,
        completion: &Completion,
    ) -> bool {
        endpoint.atomic_fetch(AtomicOp::Add(operand), remote, key, result, Some(completion)).is_ok()
    }
    with [connected()] until [completed] |post, sides: Static| {
        for round in 0..ROUNDS {
            let Static { client, remote, key, result, completion, .. } = &*sides;
            post(&client.endpoint, round, *remote, key, result, completion);
        }
    }

    compare_swap: held_atomic_compare_swap(
        endpoint: &Endpoint,
        compare: u64,
        swap: u64,
        remote: u64,
        key: &RemoteKey,
        result: &FetchResult,
        completion: &Completion,
    ) -> bool {
        let operation = AtomicOp::CompareSwap { compare, swap };
        endpoint.atomic_fetch(operation, remote, key, result, Some(completion)).is_ok()
    }
    with [connected()] until [completed] |post, sides: Static| {
        for round in 0..ROUNDS {
            let Static { client, remote, key, result, completion, .. } = &*sides;
            post(&client.endpoint, round, round + 1, *remote, key, result, completion);
        }
    }

    dynamic_put_short: held_dynamic_put_short_8(
        endpoint: &barewire::Endpoint,
        payload: u64,
        remote: u64,
        key: &barewire::RemoteKey,
    ) -> bool {
        endpoint.put_short(&payload.to_ne_bytes(), remote, key).is_ok()
    }
    with [dynamic::connected()] until [dynamic::posted] |post, sides: Dynamic| {
        for round in 0..ROUNDS {
            post(&sides.endpoint, round, sides.remote, &sides.key);
        }
    }

    dynamic_am_short: held_dynamic_am_short_8(
        endpoint: &barewire::Endpoint,
        id: u8,
        header: u64,
        payload: u64,
    ) -> bool {
        endpoint.am_short(id, header, &payload.to_ne_bytes()).is_ok()
    }
    with [dynamic::connected()] until [dynamic::posted] |post, sides: Dynamic| {
        let (id, payload) = black_box((ID, 5));
        for round in 0..ROUNDS {
            post(&sides.endpoint, id, round, payload);
        }
    }

    dynamic_progress_empty: held_dynamic_progress(worker: &mut barewire::Worker) -> usize {
        worker.progress()
    }
    with [dynamic::connected()] until [dynamic::idle] |post, sides: Dynamic| {
        for _ in 0..ROUNDS {
            post(&mut sides.worker);
        }
    }

    shared_put_short: held_shared_put_short_8(
        endpoint: &barewire::shared::SharedEndpoint,
        payload: u64,
        remote: u64,
        key: &barewire::RemoteKey,
    ) -> bool {
        endpoint.put_short(&payload.to_ne_bytes(), remote, key).is_ok()
    }
    with [shared::connected()] until [shared::posted] |post, sides: Shared| {
        for round in 0..ROUNDS {
            post(&sides.endpoint, round, sides.remote, &sides.key);
        }
    }

    shared_am_short: held_shared_am_short_8(
        endpoint: &barewire::shared::SharedEndpoint,
        id: u8,
        header: u64,
        payload: u64,
    ) -> bool {
        endpoint.am_short(id, header, &payload.to_ne_bytes()).is_ok()
    }
    with [shared::connected()] until [shared::posted] |post, sides: Shared| {
        let (id, payload) = black_box((ID, 5));
        for round in 0..ROUNDS {
            post(&sides.endpoint, id, round, payload);
        }
    }

    shared_progress_empty: held_shared_progress(worker: &barewire::shared::SharedWorker) -> usize {
        worker.progress()
    }
    with [shared::connected()] until [shared::idle] |post, sides: Shared| {
        for _ in 0..ROUNDS {
            post(&sides.worker);
        }
    }
}
