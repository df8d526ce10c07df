//! Atomics: those of InfiniBand.

use barewire_verbs::{self as verbs, Data, Remote};

use super::Endpoint;
use crate::atomic::{Change, ChangeWord, Fetch, Kind};
use crate::capability::{Atomic64, AtomicFetch64};
use crate::completion::{Completion, FetchResult};
use crate::error::{Operation, PostError};
use crate::status::{Post, Posted};
use crate::transport::common::operation::Done;
use crate::transport::rdma::RemoteKey;

impl Atomic64 for Endpoint {
    #[inline]
    fn atomic_add64(&self, operand: u64, remote: u64, key: &RemoteKey) -> Post {
        self.0.gate.check()?;
        let remote = self.atomic_target(remote, *key)?;
        let local = [self.0.unwanted_result()];
        let operation = verbs::Operation::FetchAdd { remote, add: operand };
        self.post(Operation::Atomic, operation, Data::Elements(&local), false)?;
        Ok(Posted::Done)
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
        completion: Option<&Completion>,
    ) -> Post {
        self.0.gate.check()?;
        let remote = self.atomic_target(remote, *key)?;
        self.fetch(verbs::Operation::FetchAdd { remote, add: operand }, result, completion)
    }

    #[inline]
    fn atomic_compare_swap64(
        &self,
        compare: u64,
        swap: u64,
        remote: u64,
        key: &RemoteKey,
        result: &FetchResult,
        completion: Option<&Completion>,
    ) -> Post {
        self.0.gate.check()?;
        let remote = self.atomic_target(remote, *key)?;
        self.fetch(verbs::Operation::CompareSwap { remote, compare, swap }, result, completion)
    }
}

impl Endpoint {
    #[inline]
    fn fetch(
        &self,
        operation: verbs::Operation<'_>,
        result: &FetchResult,
        completion: Option<&Completion>,
    ) -> Post {
        let local = [self.0.next_result()];
        let index = self.post(Operation::Atomic, operation, Data::Elements(&local), true)?;
        let done = Done::Fetch { result: result.clone(), completion: completion.cloned() };
        self.await_done(index, done);
        Ok(Posted::InProgress)
    }

    #[inline]
    fn atomic_target(&self, remote: u64, key: RemoteKey) -> Result<Remote, PostError> {
        if self.0.shared.attributes.atomic64.is_empty() {
            return Err(PostError::Unsupported);
        }
        if !remote.is_multiple_of(size_of::<u64>() as u64) {
            return Err(PostError::Unaligned);
        }
        Ok(Remote { address: remote, key: key.0 })
    }
}

impl ChangeWord for Endpoint {
    /// Executes the changes that InfiniBand has: adds and compare-and-swaps of 8 bytes.
    fn change(&self, change: Change, remote: u64, key: &RemoteKey, fetch: Fetch<'_>) -> Post {
        match (change, fetch) {
            (Change { kind: Kind::Add, width: 8, operand, .. }, None) => {
                self.atomic_add64(operand, remote, key)
            }
            (Change { kind: Kind::Add, width: 8, operand, .. }, Some((result, completion))) => {
                self.atomic_fetch_add64(operand, remote, key, result, completion)
            }
            (Change { kind: Kind::CompareSwap, width: 8, operand, compare }, Some((result, completion))) => {
                self.atomic_compare_swap64(compare, operand, remote, key, result, completion)
            }
            _ => Err(PostError::Unsupported),
        }
    }
}
