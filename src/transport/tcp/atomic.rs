//! Atomics, which the peer's target executes with atomic instructions of its CPU.

use barewire_tcp::request::{Action, Change as Asked, Request};

use super::Endpoint;
use super::address::RemoteKey;
use super::remote_memory::Then;
use crate::base::atomic::{Change, ChangeWord, Fetch, Kind};
use crate::base::error::{Operation, PostError};
use crate::base::status::{Post, Posted};

impl ChangeWord for Endpoint {
    fn change(&self, change: Change, remote: u64, key: &RemoteKey, fetch: Fetch<'_>) -> Post {
        let state = &*self.0;
        state.posting.check()?;
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
        let request = Request { token: key.token, address: remote, action };
        state.with_memory(key, 1, Operation::Atomic, |state, memory| {
            let Some((result, completion)) = fetch else {
                state.request(memory, request, Then::Nothing, None)?;
                return Ok(Posted::Done);
            };
            state.request(memory, request, Then::Fetch(result.clone()), completion)?;
            Ok(Posted::InProgress)
        })
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
