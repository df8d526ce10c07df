//! Atomics by the CPU: they are atomic with those of every process that maps the memory.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Endpoint;
use super::domain::RemoteKey;
use crate::base::atomic::{Change, ChangeWord, Fetch, Kind};
use crate::base::error::PostError;
use crate::base::memory::Access;
use crate::base::status::{Post, Posted};

const ORDER: Ordering = Ordering::SeqCst;

impl Endpoint {
    #[inline(always)]
    fn with_word(&self, remote: u64, key: &RemoteKey, run: impl FnOnce(&AtomicU64)) -> Post {
        if let Some((bytes, at)) = self.reach_mapped(key, (remote, size_of::<u64>()), Access::REMOTE_ATOMIC)
            // SAFETY: the region stays mapped until another call uses this endpoint. `run` is a
            // closure of this module that does nothing but access the word.
            && let Some(word) = unsafe { bytes.atomic(at) }
        {
            run(word);
            self.0.posting.tally.posted(size_of::<u64>());
            return Ok(Posted::Done);
        }
        self.with_word_otherwise(remote, key, run)
    }

    #[cold]
    #[inline(never)]
    fn with_word_otherwise(
        &self,
        remote: u64,
        key: &RemoteKey,
        run: impl FnOnce(&AtomicU64),
    ) -> Post {
        let (bytes, at) =
            self.reach_memory(key, (remote, size_of::<u64>()), Access::REMOTE_ATOMIC)?;
        // SAFETY: the region stays mapped until another call uses this endpoint. `run` is a closure
        // of this module that does nothing but access the word.
        run(unsafe { bytes.atomic(at) }.ok_or(PostError::Unaligned)?);
        self.0.posting.tally.posted(size_of::<u64>());
        Ok(Posted::Done)
    }

    /// Changes a 4-byte word as part of the 8 bytes around it: all accesses to a region have one
    /// size. Also changes words of views.
    #[inline(never)]
    fn change_any(&self, change: Change, remote: u64, key: &RemoteKey, fetch: Fetch<'_>) -> Post {
        let old = match self.reach_memory(key, (remote, change.width), Access::REMOTE_ATOMIC) {
            // SAFETY: the region stays mapped until another call uses this endpoint. The closure
            // only computes.
            Ok((bytes, at)) => unsafe { bytes.update(at, change.width, |old| change.apply(old)) }
                .ok_or(PostError::Unaligned)?,
            Err(refused) => self.change_in_list(change, remote, key, refused)?,
        };
        self.0.posting.tally.posted(change.width);
        if let Some((result, _)) = fetch {
            result.set(old);
        }
        Ok(Posted::Done)
    }
}

impl ChangeWord for Endpoint {
    #[inline(always)]
    fn change(&self, change: Change, remote: u64, key: &RemoteKey, fetch: Fetch<'_>) -> Post {
        change.need(fetch.is_some()).ok_or(PostError::Unsupported)?;
        if change.width != size_of::<u64>() || key.is_list() {
            return self.change_any(change, remote, key, fetch);
        }
        let Change { kind, operand, compare, .. } = change;
        let result = fetch.map(|(result, _)| result);
        let fetched = move |old| {
            if let Some(result) = result {
                result.set(old);
            }
        };
        // One closure per kind: it is an argument of `with_word_otherwise`, and the operands of one
        // change fit into registers.
        match kind {
            Kind::Add => {
                self.with_word(remote, key, move |word| fetched(word.fetch_add(operand, ORDER)))
            }
            Kind::And => {
                self.with_word(remote, key, move |word| fetched(word.fetch_and(operand, ORDER)))
            }
            Kind::Or => {
                self.with_word(remote, key, move |word| fetched(word.fetch_or(operand, ORDER)))
            }
            Kind::Xor => {
                self.with_word(remote, key, move |word| fetched(word.fetch_xor(operand, ORDER)))
            }
            Kind::Swap => {
                self.with_word(remote, key, move |word| fetched(word.swap(operand, ORDER)))
            }
            Kind::CompareSwap => self.with_word(remote, key, move |word| {
                let found = word.compare_exchange(compare, operand, ORDER, ORDER);
                fetched(found.unwrap_or_else(|found| found));
            }),
        }
    }
}
