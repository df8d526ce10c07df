//! What the posts of every operation are made of.

use std::hint::cold_path;

use barewire_mlx5 as mlx5;
use barewire_mlx5::{ControlFlags, DataSegment, SendQueue, WqeIndex};

use super::domain::Registered;
use super::endpoint::Endpoint;
use super::interface::Shared;
use super::{BUFFER, DATA, SEGMENT};
use crate::completion::Completion;
use crate::error::PostError;
use crate::memory::Slice;
use crate::status::{Post, Posted};
use crate::transport::common::operation::{Done, InFlight};
use crate::transport::common::pool::Buffer;

pub(super) type PooledBuffer<'a> = Buffer<'a, Registered, BUFFER>;
pub(super) type Posting = Result<WqeIndex, mlx5::PostError>;

impl Endpoint {
    /// Lets `pack` fill a buffer; nothing is taken if nothing could be posted.
    #[inline(always)]
    pub(super) fn pack(
        &self,
        limit: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(PooledBuffer<'_>, usize), PostError> {
        let state = &*self.0;
        state.gate.check()?;
        if !state.has_room() {
            return Err(state.gate.refuse());
        }
        let shared = &*state.shared;
        let mut buffer = shared.buffers.take().ok_or_else(|| state.gate.refuse())?;
        self.signal_if_last(shared);
        let data = &mut buffer.bytes()[DATA..DATA + SEGMENT];
        let length = pack(data.get_mut(..limit).unwrap_or_default());
        if length > limit {
            return Err(PostError::too_long(length, limit));
        }
        // The user's function may have posted, failed or closed this endpoint.
        state.gate.check()?;
        Ok((buffer, length))
    }

    /// `length` bytes at `offset` of a buffer.
    #[inline(always)]
    pub(super) fn in_buffer(&self, buffer: &PooledBuffer<'_>, offset: usize, length: usize) -> DataSegment {
        DataSegment::new(buffer.address() + offset as u64, length as u32, self.0.shared.buffers_key)
    }

    /// Whoever took the last buffer asks for a completion, so that buffers come back.
    #[inline(always)]
    pub(super) fn signal_if_last(&self, shared: &Shared) {
        if shared.buffers.is_empty() {
            cold_path();
            self.0.with_pair(|pair| pair.send.request_completion());
        }
    }

    /// Posts an operation of so many bytes that was found to be within the limits, so that a refusal means a full queue.
    #[inline(always)]
    pub(super) fn post_sized(
        &self,
        bytes: usize,
        run: impl FnOnce(&mut SendQueue) -> Posting,
    ) -> Result<u16, PostError> {
        let gate = &self.0.gate;
        let index = self.0.post(run).map_err(|_| gate.refuse())?;
        gate.tally.add_bytes(bytes);
        Ok(index)
    }

    /// Posts so many bytes from, or to, the user's memory.
    #[inline(always)]
    pub(super) fn zcopy(
        &self,
        bytes: usize,
        completion: Option<&Completion>,
        run: impl Fn(&mut SendQueue, ControlFlags) -> Posting,
    ) -> Post {
        let Some(completion) = completion else {
            self.post_sized(bytes, |queue| run(queue, NO_FLAGS))?;
            return Ok(Posted::InProgress);
        };
        let index = self.post_sized(bytes, |queue| run(queue, ControlFlags::COMPLETION))?;
        self.await_done(index, Done::Notify(completion.clone()));
        Ok(Posted::InProgress)
    }

    /// Remembers what is to be done once the WQE at `index` is done.
    #[inline(always)]
    pub(super) fn await_done(&self, index: u16, done: Done) {
        self.0.in_flight.push(InFlight { index, done });
    }

    /// The segment of a slice of at most `limit` bytes.
    #[inline(always)]
    pub(super) fn segment(&self, slice: &Slice<'_>, limit: usize) -> Result<DataSegment, PostError> {
        if slice.domain != self.0.shared.tag {
            return Err(PostError::ForeignMemory);
        }
        if slice.length > limit {
            return Err(PostError::too_long(slice.length, limit));
        }
        Ok(data_segment(slice))
    }

    /// The segments of the slices, in `into`, and their bytes, if there is room and together they have at most `limit`.
    #[inline(always)]
    pub(super) fn segments<'s>(
        &self,
        into: &'s mut [DataSegment],
        slices: &[Slice<'_>],
        limit: usize,
    ) -> Result<(&'s [DataSegment], usize), PostError> {
        let most = into.len();
        let Some(into) = into.get_mut(..slices.len()) else {
            return Err(PostError::TooManySlices { limit: most as u32 });
        };
        let mut room = limit;
        for (segment, slice) in into.iter_mut().zip(slices) {
            if slice.domain != self.0.shared.tag {
                return Err(PostError::ForeignMemory);
            }
            let Some(rest) = room.checked_sub(slice.length) else {
                return Err(total_too_long(slices, limit));
            };
            room = rest;
            *segment = data_segment(slice);
        }
        Ok((into, limit - room))
    }
}

pub(super) const NO_FLAGS: ControlFlags = ControlFlags::empty();
/// A segment without bytes; posting leaves it out.
pub(super) const EMPTY: DataSegment = DataSegment::new(0, 0, 0);

/// The segment of a slice whose length was found to be within a limit.
#[inline(always)]
pub(super) fn data_segment(slice: &Slice<'_>) -> DataSegment {
    DataSegment::new(slice.address, slice.length as u32, slice.key)
}

#[cold]
fn total_too_long(slices: &[Slice<'_>], limit: usize) -> PostError {
    let total = slices.iter().fold(0usize, |sum, slice| sum.saturating_add(slice.length));
    PostError::too_long(total, limit)
}
