//! Atomics: those of InfiniBand, and all others as masked atomics, on devices that have these.

use barewire_mlx5::request::{CompareSwap, FetchAdd};
use barewire_mlx5::{DataSegment, RemoteAddressSegment};

use super::post::SIGNALED;
use super::{Endpoint, RemoteKey};
use crate::base::atomic::{Change, ChangeWord, Fetch, Kind};
use crate::base::completion::Completion;
use crate::base::error::PostError;
use crate::base::status::{Post, Posted};
use crate::transport::common::operation::Done;
use crate::transport::mlx5::atomic::masked;

impl ChangeWord for Endpoint {
    fn change(&self, change: Change, remote: u64, key: &RemoteKey, fetch: Fetch<'_>) -> Post {
        let Change { kind, width, operand, compare } = change;
        let state = &*self.0;
        // Every device has these.
        let is_standard =
            width == 8 && (kind == Kind::Add || (kind == Kind::CompareSwap && fetch.is_some()));
        if !is_standard {
            let attributes = &state.shared.core.attributes;
            let has = if width == 4 { attributes.atomic32 } else { attributes.atomic64 };
            if !change.need(fetch.is_some()).is_some_and(|need| has.contains(need)) {
                return Err(PostError::Unsupported);
            }
        }
        state.posting.check()?;
        if !remote.is_multiple_of(width as u64) {
            return Err(PostError::Unaligned);
        }
        let remote = RemoteAddressSegment::new(remote, key.rkey());
        let initiator = state.take()?;
        let (word, local) = initiator.next_result();
        let local = if fetch.is_some() { local } else { initiator.unwanted_result() };
        let local = DataSegment::new(local.address.get(), width as u32, local.lkey.get());
        let (initiator, index) = match kind {
            Kind::Add if is_standard => {
                self.post_sized(width, FetchAdd { local, remote, add: operand })?
            }
            Kind::CompareSwap if is_standard => {
                self.post_sized(width, CompareSwap { local, remote, compare, swap: operand })?
            }
            _ => self.post_by(width, |mut to| masked(&mut to, change, local, remote, SIGNALED))?,
        };
        let Some((result, completion)) = fetch else { return Ok(Posted::Done) };
        let (result, completion) = (result.clone(), completion.map(Completion::begin));
        // The device writes the results of masked operations of 4 bytes big-endian.
        initiator.await_done(
            index,
            if width == 4 {
                Done::Fetch32 { word, result, completion }
            } else {
                Done::Fetch { word, result, completion }
            },
        );
        Ok(Posted::InProgress)
    }
}
