//! Atomics: those of InfiniBand, and all others as masked atomics, on devices that have these.

use barewire_mlx5::request::{
    CompareSwap, FetchAdd, MaskedAdd, MaskedCompareSwap, MaskedFetchAdd, MaskedSwap, ToPeer,
};
use barewire_mlx5::{ControlFlags, DataSegment, RemoteAddressSegment, WqeIndex};

use super::RemoteKey;
use super::post::{MAX_BLOCKS, NO_FLAGS};
use super::requests::{Posting, Posts, Requests};
use crate::base::atomic::{Change, ChangeWord, Fetch, Kind};
use crate::base::capability::RemoteMemory;
use crate::base::completion::{Completion, FetchResult};
use crate::base::error::PostError;
use crate::base::status::{Post, Posted};
use crate::transport::common::operation::Done;
use crate::transport::rc::{Driver, Endpoint};

impl<D: Driver<Queue: Requests>> ChangeWord for Endpoint<D>
where
    Self: RemoteMemory<Key = RemoteKey>,
{
    /// Every device has the atomics of InfiniBand: add, fetch-add and compare-and-swap of 8 bytes.
    /// The compiler usually knows the change, so the match costs nothing.
    #[inline(always)]
    fn change(&self, change: Change, remote: u64, key: &RemoteKey, fetch: Fetch<'_>) -> Post {
        let Change { kind, width, operand, compare } = change;
        match (kind, width, fetch) {
            (Kind::Add, 8, None) => {
                self.0.posting.check()?;
                let remote = target(remote, *key, size_of::<u64>())?;
                let local = self.0.unwanted_result();
                self.post_short(size_of::<u64>(), FetchAdd { local, remote, add: operand })?;
                Ok(Posted::Done)
            }
            (Kind::Add, 8, Some((result, completion))) => self.fetch(
                remote,
                *key,
                result,
                completion,
                #[inline(always)]
                |local, remote| FetchAdd { local, remote, add: operand },
            ),
            (Kind::CompareSwap, 8, Some((result, completion))) => self.fetch(
                remote,
                *key,
                result,
                completion,
                #[inline(always)]
                |local, remote| CompareSwap { local, remote, compare, swap: operand },
            ),
            _ => self.change_masked(change, remote, *key, fetch),
        }
    }
}

impl<D: Driver<Queue: Requests>> Endpoint<D> {
    #[inline(never)]
    fn change_masked(&self, change: Change, remote: u64, key: RemoteKey, fetch: Fetch<'_>) -> Post {
        let state = &*self.0;
        let attributes = &state.shared.core.attributes;
        let has = if change.width == 4 { attributes.atomic32 } else { attributes.atomic64 };
        if !change.need(fetch.is_some()).is_some_and(|need| has.contains(need)) {
            return Err(PostError::Unsupported);
        }
        state.posting.check()?;
        let target = target(remote, key, change.width)?;
        let Some((result, completion)) = fetch else {
            let local = of_width(state.unwanted_result(), change.width);
            self.post_masked(change, local, target, NO_FLAGS)?;
            return Ok(Posted::Done);
        };
        let word = state.take_word()?;
        let local = of_width(state.word_segment(&word), change.width);
        let index = self.post_masked(change, local, target, ControlFlags::COMPLETION)?;
        let (result, completion) = (result.clone(), completion.map(Completion::begin));
        let word = word.into_lease();
        let done = if change.width == 4 {
            Done::Fetch32 { word, result, completion }
        } else {
            Done::Fetch { word, result, completion }
        };
        self.await_done(index, done);
        Ok(Posted::InProgress)
    }

    fn post_masked(
        &self,
        change: Change,
        local: DataSegment,
        remote: RemoteAddressSegment,
        flags: ControlFlags,
    ) -> Result<u16, PostError> {
        let posted = self.0.with_queue(|queue| masked(queue, change, local, remote, flags));
        let WqeIndex(index) = posted.map_err(|_| self.0.refuse_full(MAX_BLOCKS))?;
        self.0.posting.tally.add_bytes(change.width);
        Ok(index)
    }

    #[inline(always)]
    fn fetch<R: ToPeer>(
        &self,
        remote: u64,
        key: RemoteKey,
        result: &FetchResult,
        completion: Option<&Completion>,
        request: impl FnOnce(DataSegment, RemoteAddressSegment) -> R,
    ) -> Post {
        self.0.posting.check()?;
        let remote = target(remote, key, size_of::<u64>())?;
        let word = self.0.take_word()?;
        let local = self.0.word_segment(&word);
        let request = request(local, remote);
        let index = self.post_sized(size_of::<u64>(), request, ControlFlags::COMPLETION)?;
        let done = Done::Fetch {
            word: word.into_lease(),
            result: result.clone(),
            completion: completion.map(Completion::begin),
        };
        self.await_done(index, done);
        Ok(Posted::InProgress)
    }
}

#[inline(always)]
fn target(remote: u64, key: RemoteKey, width: usize) -> Result<RemoteAddressSegment, PostError> {
    if !remote.is_multiple_of(width as u64) {
        return Err(PostError::Unaligned);
    }
    Ok(RemoteAddressSegment::new(remote, key.rkey()))
}

/// Returns the segment of the first `width` bytes of a result word.
fn of_width(word: DataSegment, width: usize) -> DataSegment {
    DataSegment::new(word.address.get(), width as u32, word.lkey.get())
}

/// Posts a change as the equivalent masked operation.
pub(in crate::transport) fn masked(
    queue: &mut impl Posts,
    change: Change,
    local: DataSegment,
    remote: RemoteAddressSegment,
    flags: ControlFlags,
) -> Posting {
    let Change { kind, width, operand, compare } = change;
    let replace = |swap_mask| MaskedSwap { swap: operand, swap_mask, compare: 0, compare_mask: 0 };
    let swap = match kind {
        Kind::Add => return add(queue, width, [operand, 0], local, remote, flags),
        // A field of one bit has no carry.
        Kind::Xor => return add(queue, width, [operand, u64::MAX], local, remote, flags),
        Kind::And => replace(!operand),
        Kind::Or => replace(operand),
        Kind::Swap => replace(u64::MAX),
        Kind::CompareSwap => MaskedSwap { compare, compare_mask: u64::MAX, ..replace(u64::MAX) },
    };
    if width == 8 {
        return queue.post(MaskedCompareSwap { local, remote, operands: swap }, flags);
    }
    let swap = MaskedSwap {
        compare: swap.compare as u32,
        compare_mask: swap.compare_mask as u32,
        swap: swap.swap as u32,
        swap_mask: swap.swap_mask as u32,
    };
    queue.post(MaskedCompareSwap { local, remote, operands: swap }, flags)
}

fn add(
    queue: &mut impl Posts,
    width: usize,
    [operand, field_boundary]: [u64; 2],
    local: DataSegment,
    remote: RemoteAddressSegment,
    flags: ControlFlags,
) -> Posting {
    if width == 8 {
        let operands = MaskedAdd { operand, field_boundary };
        return queue.post(MaskedFetchAdd { local, remote, operands }, flags);
    }
    let operands = MaskedAdd { operand: operand as u32, field_boundary: field_boundary as u32 };
    queue.post(MaskedFetchAdd { local, remote, operands }, flags)
}
