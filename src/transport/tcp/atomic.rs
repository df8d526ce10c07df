//! Atomics, which the peer's target carries out with the CPU's own.

use barewire_tcp::request::{Action, Change, Request};

use super::domain::RemoteKey;
use super::endpoint::Endpoint;
use super::memory::Done;
use crate::completion::{Completion, FetchResult};
use crate::error::{Operation, PostError};
use crate::status::{Post, Posted};

/// An atomic on a word of `width` bytes.
struct Atomic {
    change: Change,
    width: u8,
    operand: u64,
    compare: u64,
}

impl Atomic {
    const fn on_64(change: Change, operand: u64) -> Self {
        Self { change, width: 8, operand, compare: 0 }
    }
}

impl Endpoint {
    fn atomic(&self, atomic: &Atomic, remote: u64, key: &RemoteKey, done: Option<Done>) -> Post {
        let state = &*self.0;
        state.gate.check()?;
        let &Atomic { change, width, operand, compare } = atomic;
        if !remote.is_multiple_of(width.into()) {
            return Err(PostError::Unaligned);
        }
        let posted = if done.is_some() { Posted::InProgress } else { Posted::Done };
        let action = Action::Atomic { change, width, fetch: done.is_some(), operand, compare };
        state.with_memory(key, 1, Operation::Atomic, |state, memory| {
            state.request(memory, Request { token: key.token, address: remote, action }, done)?;
            Ok(posted)
        })
    }

    /// Adds `operand` to the word at `remote`.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn atomic_add64(&self, operand: u64, remote: u64, key: &RemoteKey) -> Post {
        self.atomic(&Atomic::on_64(Change::Add, operand), remote, key, None)
    }

    /// Adds `operand` to the word at `remote` and fetches what was there.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn atomic_fetch_add64(
        &self,
        operand: u64,
        remote: u64,
        key: &RemoteKey,
        result: &FetchResult,
        completion: Option<&Completion>,
    ) -> Post {
        let done = Done::Fetch { result: result.clone(), completion: completion.cloned() };
        self.atomic(&Atomic::on_64(Change::Add, operand), remote, key, Some(done))
    }

    /// Stores `swap` at `remote` if `compare` is there, and fetches what was there.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn atomic_compare_swap64(
        &self,
        compare: u64,
        swap: u64,
        remote: u64,
        key: &RemoteKey,
        result: &FetchResult,
        completion: Option<&Completion>,
    ) -> Post {
        let done = Done::Fetch { result: result.clone(), completion: completion.cloned() };
        let atomic = Atomic { compare, ..Atomic::on_64(Change::CompareSwap, swap) };
        self.atomic(&atomic, remote, key, Some(done))
    }
}
