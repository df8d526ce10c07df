//! Atomics.

use barewire_mlx5::{ControlFlags, DataSegment, RemoteAddressSegment, SendQueue};

use super::domain::RemoteKey;
use super::endpoint::Endpoint;
use super::post::{NO_FLAGS, Posting};
use crate::completion::{Completion, FetchResult};
use crate::error::PostError;
use crate::status::{Post, Posted};
use crate::transport::operation::Done;

impl Endpoint {
    /// Adds `operand` to the word at `remote`.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn atomic_add64(&self, operand: u64, remote: u64, key: &RemoteKey) -> Post {
        self.0.gate.check()?;
        let remote = atomic_target(remote, *key)?;
        let local = self.0.unwanted_result();
        self.post_sized(size_of::<u64>(), |queue| queue.fetch_add(local, remote, operand, NO_FLAGS))?;
        Ok(Posted::Done)
    }

    /// Adds `operand` to the word at `remote` and fetches what was there.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn atomic_fetch_add64(
        &self,
        operand: u64,
        remote: u64,
        key: &RemoteKey,
        result: &FetchResult,
        completion: Option<&Completion>,
    ) -> Post {
        self.fetch(remote, *key, result, completion, |queue, local, remote, flags| {
            queue.fetch_add(local, remote, operand, flags)
        })
    }

    /// Stores `swap` at `remote` if `compare` is there, and fetches what was there.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn atomic_compare_swap64(
        &self,
        compare: u64,
        swap: u64,
        remote: u64,
        key: &RemoteKey,
        result: &FetchResult,
        completion: Option<&Completion>,
    ) -> Post {
        self.fetch(remote, *key, result, completion, |queue, local, remote, flags| {
            queue.compare_swap(local, remote, compare, swap, flags)
        })
    }

    #[inline(always)]
    fn fetch(
        &self,
        remote: u64,
        key: RemoteKey,
        result: &FetchResult,
        completion: Option<&Completion>,
        run: impl FnOnce(&mut SendQueue, DataSegment, RemoteAddressSegment, ControlFlags) -> Posting,
    ) -> Post {
        self.0.gate.check()?;
        let remote = atomic_target(remote, key)?;
        let local = self.0.next_result();
        let index =
            self.post_sized(size_of::<u64>(), |queue| run(queue, local, remote, ControlFlags::COMPLETION))?;
        let done = Done::Fetch { result: result.clone(), completion: completion.cloned() };
        self.await_done(index, done);
        Ok(Posted::InProgress)
    }
}

#[inline(always)]
fn atomic_target(remote: u64, key: RemoteKey) -> Result<RemoteAddressSegment, PostError> {
    if !remote.is_multiple_of(size_of::<u64>() as u64) {
        return Err(PostError::Unaligned);
    }
    Ok(RemoteAddressSegment::new(remote, key.0))
}
