//! Atomics: those of InfiniBand.

use barewire_verbs::{self as verbs, Data, Remote};

use super::Endpoint;
use crate::base::atomic::{Change, ChangeWord, Fetch, Kind};
use crate::base::completion::{Completion, FetchResult};
use crate::base::error::{Operation, PostError};
use crate::base::status::{Post, Posted};
use crate::transport::common::operation::Done;
use crate::transport::rdma::RemoteKey;

impl ChangeWord for Endpoint {
    /// Carries out the changes that InfiniBand has: adds and compare-and-swaps of 8 bytes.
    fn change(&self, change: Change, remote: u64, key: &RemoteKey, fetch: Fetch<'_>) -> Post {
        let Change { kind, width, operand, compare } = change;
        if width != 8 {
            return Err(PostError::Unsupported);
        }
        self.0.posting.check()?;
        let remote = self.atomic_target(remote, *key)?;
        match (kind, fetch) {
            (Kind::Add, None) => {
                let local = [self.0.unwanted_result()];
                let operation = verbs::Operation::FetchAdd { remote, add: operand };
                self.post(Operation::Atomic, operation, Data::Elements(&local), false)?;
                Ok(Posted::Done)
            }
            (Kind::Add, Some((result, completion))) => {
                self.fetch(verbs::Operation::FetchAdd { remote, add: operand }, result, completion)
            }
            (Kind::CompareSwap, Some((result, completion))) => {
                let operation = verbs::Operation::CompareSwap { remote, compare, swap: operand };
                self.fetch(operation, result, completion)
            }
            _ => Err(PostError::Unsupported),
        }
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
        let word = self.0.take_word()?;
        let local = [self.0.word_segment(&word)];
        let index = self.post(Operation::Atomic, operation, Data::Elements(&local), true)?;
        let done = Done::Fetch {
            word: word.into_lease(),
            result: result.clone(),
            completion: completion.map(Completion::begin),
        };
        self.await_done(index, done);
        Ok(Posted::InProgress)
    }

    #[inline]
    fn atomic_target(&self, remote: u64, key: RemoteKey) -> Result<Remote, PostError> {
        if self.0.shared.core.attributes.atomic64.is_empty() {
            return Err(PostError::Unsupported);
        }
        if !remote.is_multiple_of(size_of::<u64>() as u64) {
            return Err(PostError::Unaligned);
        }
        Ok(Remote { address: remote, key: key.rkey() })
    }
}
