//! Atomics, which the peer's target carries out with the CPU's own.

use barewire_tcp::request::{Action, Change as Asked, Request};

use super::domain::RemoteKey;
use super::endpoint::Endpoint;
use super::memory::Done;
use crate::atomic::{AtomicOp, Change, ChangeWord, Fetch, Kind};
use crate::capability::{Atomic64, AtomicFetch64, Atomics};
use crate::completion::{Completion, FetchResult};
use crate::error::{Operation, PostError};
use crate::status::{Post, Posted};

impl ChangeWord for Endpoint {
    fn change(&self, change: Change, remote: u64, key: &RemoteKey, fetch: Fetch<'_>) -> Post {
        let state = &*self.0;
        state.gate.check()?;
        change.need(fetch.is_some()).ok_or(PostError::Unsupported)?;
        let Change { kind, width, operand, compare } = change;
        if !remote.is_multiple_of(width as u64) {
            return Err(PostError::Unaligned);
        }
        let action = Action::Atomic {
            change: asked(kind),
            width: width as u8,
            fetch: fetch.is_some(),
            operand,
            compare,
        };
        let posted = if fetch.is_some() { Posted::InProgress } else { Posted::Done };
        let done = fetch.map(|(result, completion)| Done::Fetch {
            result: result.clone(),
            completion: completion.cloned(),
        });
        state.with_memory(key, 1, Operation::Atomic, |state, memory| {
            state.request(memory, Request { token: key.token, address: remote, action }, done)?;
            Ok(posted)
        })
    }
}

impl Atomic64 for Endpoint {
    fn atomic_add64(&self, operand: u64, remote: u64, key: &RemoteKey) -> Post {
        self.atomic_post(AtomicOp::Add(operand), remote, key)
    }
}

impl AtomicFetch64 for Endpoint {
    fn atomic_fetch_add64(
        &self,
        operand: u64,
        remote: u64,
        key: &RemoteKey,
        result: &FetchResult,
        completion: Option<&Completion>,
    ) -> Post {
        self.atomic_fetch(AtomicOp::Add(operand), remote, key, result, completion)
    }

    fn atomic_compare_swap64(
        &self,
        compare: u64,
        swap: u64,
        remote: u64,
        key: &RemoteKey,
        result: &FetchResult,
        completion: Option<&Completion>,
    ) -> Post {
        self.atomic_fetch(AtomicOp::CompareSwap { compare, swap }, remote, key, result, completion)
    }
}

fn asked(kind: Kind) -> Asked {
    match kind {
        Kind::Add => Asked::Add,
        Kind::And => Asked::And,
        Kind::Or => Asked::Or,
        Kind::Xor => Asked::Xor,
        Kind::Swap => Asked::Swap,
        Kind::CompareSwap => Asked::CompareSwap,
    }
}
