//! What is measured in both shapes: a post each, with arguments as a caller has them.

#![allow(clippy::trivially_copy_pass_by_ref, reason = "as the API takes keys")]

use std::slice::from_ref;

use barewire::transport::rc_mlx5::{Endpoint, RemoteKey};
use barewire::{Completion, FetchResult, Slice, Unpack};

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

#[inline(always)]
pub(crate) fn put_short_8(endpoint: &Endpoint, payload: u64, remote: u64, key: &RemoteKey) -> bool {
    endpoint.put_short(&payload.to_ne_bytes(), remote, key).is_ok()
}

#[inline(always)]
pub(crate) fn put_short(endpoint: &Endpoint, payload: &[u8], remote: u64, key: &RemoteKey) -> bool {
    endpoint.put_short(payload, remote, key).is_ok()
}

#[inline(always)]
pub(crate) fn put_bcopy_8(endpoint: &Endpoint, payload: u64, remote: u64, key: &RemoteKey) -> bool {
    endpoint.put_bcopy(pack(payload), remote, key).is_ok()
}

#[inline(always)]
pub(crate) fn put_zcopy(
    endpoint: &Endpoint,
    slice: &Slice<'_>,
    remote: u64,
    key: &RemoteKey,
    completion: Option<&Completion>,
) -> bool {
    endpoint.put_zcopy(from_ref(slice), remote, key, completion).is_ok()
}

#[inline(always)]
pub(crate) fn get_bcopy(
    endpoint: &Endpoint,
    unpack: &Unpack,
    length: usize,
    remote: u64,
    key: &RemoteKey,
    completion: &Completion,
) -> bool {
    endpoint.get_bcopy(unpack, length, remote, key, Some(completion)).is_ok()
}

#[inline(always)]
pub(crate) fn get_zcopy(
    endpoint: &Endpoint,
    slice: &Slice<'_>,
    remote: u64,
    key: &RemoteKey,
    completion: &Completion,
) -> bool {
    endpoint.get_zcopy(from_ref(slice), remote, key, Some(completion)).is_ok()
}

#[inline(always)]
pub(crate) fn am_short_8(endpoint: &Endpoint, id: u8, header: u64, payload: u64) -> bool {
    endpoint.am_short(id, header, &payload.to_ne_bytes()).is_ok()
}

#[inline(always)]
pub(crate) fn am_bcopy_8(endpoint: &Endpoint, id: u8, payload: u64) -> bool {
    endpoint.am_bcopy(id, pack(payload)).is_ok()
}

#[inline(always)]
pub(crate) fn am_zcopy(
    endpoint: &Endpoint,
    id: u8,
    header: u64,
    slice: &Slice<'_>,
    completion: &Completion,
) -> bool {
    endpoint.am_zcopy(id, &header.to_ne_bytes(), from_ref(slice), Some(completion)).is_ok()
}

#[inline(always)]
pub(crate) fn atomic_add(endpoint: &Endpoint, operand: u64, remote: u64, key: &RemoteKey) -> bool {
    endpoint.atomic_add64(operand, remote, key).is_ok()
}

#[inline(always)]
pub(crate) fn fetch_add(
    endpoint: &Endpoint,
    operand: u64,
    remote: u64,
    key: &RemoteKey,
    result: &FetchResult,
    completion: &Completion,
) -> bool {
    endpoint.atomic_fetch_add64(operand, remote, key, result, Some(completion)).is_ok()
}

#[inline(always)]
pub(crate) fn compare_swap(
    endpoint: &Endpoint,
    operands: (u64, u64),
    remote: u64,
    key: &RemoteKey,
    result: &FetchResult,
    completion: &Completion,
) -> bool {
    let (compare, swap) = operands;
    endpoint.atomic_compare_swap64(compare, swap, remote, key, result, Some(completion)).is_ok()
}
