//! Atomics, by this CPU: they may be mixed with those of every process that maps the memory.

use std::sync::atomic::{AtomicU64, Ordering};

use super::domain::RemoteKey;
use super::endpoint::Endpoint;
use crate::atomic::{Change, ChangeWord, Fetch, Kind};
use crate::capability::{Atomic64, AtomicFetch64};
use crate::completion::{Completion, FetchResult};
use crate::error::PostError;
use crate::memory::Access;
use crate::status::{Post, Posted};

impl Endpoint {
    #[inline(always)]
    fn with_word(&self, remote: u64, key: &RemoteKey, run: impl FnOnce(&AtomicU64)) -> Post {
        if let Some((bytes, at)) = self.reach_mapped(key, (remote, size_of::<u64>()), Access::REMOTE_ATOMIC)
            // SAFETY: it is mapped while this runs: `run` is a closure of this module, which does nothing but this access.
            && let Some(word) = unsafe { bytes.atomic(at) }
        {
            run(word);
            self.0.gate.tally.posted(size_of::<u64>());
            return Ok(Posted::Done);
        }
        self.with_word_otherwise(remote, key, run)
    }

    #[cold]
    #[inline(never)]
    fn with_word_otherwise(&self, remote: u64, key: &RemoteKey, run: impl FnOnce(&AtomicU64)) -> Post {
        let (bytes, at) = self.reach_memory(key, (remote, size_of::<u64>()), Access::REMOTE_ATOMIC)?;
        // SAFETY: as in `with_word`.
        run(unsafe { bytes.atomic(at) }.ok_or(PostError::Unaligned)?);
        self.0.gate.tally.posted(size_of::<u64>());
        Ok(Posted::Done)
    }

    /// On a word of 4 bytes, as part of the 8 around it: all accesses to a region are of one size.
    #[inline(never)]
    fn change_half(&self, change: Change, remote: u64, key: &RemoteKey, fetch: Fetch<'_>) -> Post {
        let (bytes, at) = self.reach_memory(key, (remote, change.width), Access::REMOTE_ATOMIC)?;
        // SAFETY: as in `with_word`.
        let old = unsafe { crate::transport::common::copy::update(&bytes, at, change) }
            .ok_or(PostError::Unaligned)?;
        self.0.gate.tally.posted(change.width);
        if let Some((result, _)) = fetch {
            result.set(old);
        }
        Ok(Posted::Done)
    }
}

impl ChangeWord for Endpoint {
    #[inline]
    fn change(&self, change: Change, remote: u64, key: &RemoteKey, fetch: Fetch<'_>) -> Post {
        change.need(fetch.is_some()).ok_or(PostError::Unsupported)?;
        if change.width != size_of::<u64>() {
            return self.change_half(change, remote, key, fetch);
        }
        let operand = change.operand;
        self.with_word(remote, key, |word| {
            let old = match change.kind {
                Kind::Add => word.fetch_add(operand, Ordering::SeqCst),
                Kind::And => word.fetch_and(operand, Ordering::SeqCst),
                Kind::Or => word.fetch_or(operand, Ordering::SeqCst),
                Kind::Xor => word.fetch_xor(operand, Ordering::SeqCst),
                Kind::Swap => word.swap(operand, Ordering::SeqCst),
                Kind::CompareSwap => word
                    .compare_exchange(change.compare, operand, Ordering::SeqCst, Ordering::SeqCst)
                    .unwrap_or_else(|found| found),
            };
            if let Some((result, _)) = fetch {
                result.set(old);
            }
        })
    }
}

impl Atomic64 for Endpoint {
    #[inline]
    fn atomic_add64(&self, operand: u64, remote: u64, key: &RemoteKey) -> Post {
        self.with_word(remote, key, |word| {
            word.fetch_add(operand, Ordering::SeqCst);
        })
    }
}

impl AtomicFetch64 for Endpoint {
    #[inline]
    fn atomic_fetch_add64(
        &self,
        operand: u64,
        remote: u64,
        key: &RemoteKey,
        result: &FetchResult,
        _completion: Option<&Completion>,
    ) -> Post {
        self.with_word(remote, key, |word| result.set(word.fetch_add(operand, Ordering::SeqCst)))
    }

    #[inline]
    fn atomic_compare_swap64(
        &self,
        compare: u64,
        swap: u64,
        remote: u64,
        key: &RemoteKey,
        result: &FetchResult,
        _completion: Option<&Completion>,
    ) -> Post {
        self.with_word(remote, key, |word| {
            let found = word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
            result.set(found.unwrap_or_else(|found| found));
        })
    }
}
