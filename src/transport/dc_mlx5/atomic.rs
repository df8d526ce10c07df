//! Atomics: those of InfiniBand, and all others as masked atomics, on devices that have these.

use barewire_mlx5::queue::send::{MaskedAdd, MaskedSwap};
use barewire_mlx5::{DataSegment, RemoteAddressSegment};

use super::initiator::{Posting, Towards};
use super::post::SIGNALED;
use super::{Endpoint, RemoteKey};
use crate::base::atomic::{Change, ChangeWord, Fetch, Kind};
use crate::base::completion::Completion;
use crate::base::error::PostError;
use crate::base::status::{Post, Posted};
use crate::transport::common::operation::Done;

impl ChangeWord for Endpoint {
    fn change(&self, change: Change, remote: u64, key: &RemoteKey, fetch: Fetch<'_>) -> Post {
        let Change { kind, width, .. } = change;
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
        let (initiator, index) =
            self.post_sized(width, |queue| post(queue, change, is_standard, local, remote))?;
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

fn post(
    queue: Towards<'_>,
    change: Change,
    is_standard: bool,
    local: DataSegment,
    remote: RemoteAddressSegment,
) -> Posting {
    let Change { kind, width, operand, compare } = change;
    let replace = |swap_mask| MaskedSwap { swap: operand, swap_mask, compare: 0, compare_mask: 0 };
    let swap = match kind {
        Kind::Add if is_standard => return queue.fetch_add(local, remote, operand, SIGNALED),
        Kind::CompareSwap if is_standard => {
            return queue.compare_swap(local, remote, compare, operand, SIGNALED);
        }
        Kind::Add => return add(queue, width, [operand, 0], local, remote),
        // A field of one bit has no carry.
        Kind::Xor => return add(queue, width, [operand, u64::MAX], local, remote),
        Kind::And => replace(!operand),
        Kind::Or => replace(operand),
        Kind::Swap => replace(u64::MAX),
        Kind::CompareSwap => MaskedSwap { compare, compare_mask: u64::MAX, ..replace(u64::MAX) },
    };
    if width == 8 {
        return queue.masked_compare_swap_64(local, remote, swap, SIGNALED);
    }
    let swap = MaskedSwap {
        compare: swap.compare as u32,
        compare_mask: swap.compare_mask as u32,
        swap: swap.swap as u32,
        swap_mask: swap.swap_mask as u32,
    };
    queue.masked_compare_swap_32(local, remote, swap, SIGNALED)
}

fn add(
    queue: Towards<'_>,
    width: usize,
    [operand, field_boundary]: [u64; 2],
    local: DataSegment,
    remote: RemoteAddressSegment,
) -> Posting {
    if width == 8 {
        let operands = MaskedAdd { operand, field_boundary };
        return queue.masked_fetch_add_64(local, remote, operands, SIGNALED);
    }
    let operands = MaskedAdd { operand: operand as u32, field_boundary: field_boundary as u32 };
    queue.masked_fetch_add_32(local, remote, operands, SIGNALED)
}
