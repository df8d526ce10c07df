//! Common parts of posts.

use barewire_mlx5 as mlx5;
use barewire_mlx5::queue::send::MAX_SEGMENTS;
use barewire_mlx5::request::{ToPeer, Write};
use barewire_mlx5::{ControlFlags, DataSegment, RemoteAddressSegment, WqeIndex};

use super::requests::{Posts, Requests};
use crate::base::completion::Completion;
use crate::base::error::PostError;
use crate::base::memory::Slice;
use crate::base::status::{Post, Posted};
use crate::transport::common::operation::Done;
use crate::transport::rc::{Driver, Endpoint, State};

/// Blocks of the longest post.
pub(super) const MAX_BLOCKS: u32 = (1 + MAX_SEGMENTS as u32 + 1).div_ceil(4);

impl<D: Driver<Queue: Requests>> State<D> {
    /// Posts a request.
    #[inline(always)]
    pub(in crate::transport) fn post(
        &self,
        request: impl ToPeer,
        flags: ControlFlags,
    ) -> Result<u16, mlx5::PostError> {
        let posted = self.with_queue(
            #[inline(always)]
            |queue| queue.post(request, flags),
        );
        posted.map(|WqeIndex(index)| index)
    }
}

impl<D: Driver<Queue: Requests>> Endpoint<D> {
    /// Posts an operation of `bytes` bytes. The limits were checked, so a refusal means a full
    /// queue.
    #[inline(always)]
    pub(in crate::transport) fn post_sized(
        &self,
        bytes: usize,
        request: impl ToPeer,
        flags: ControlFlags,
    ) -> Result<u16, PostError> {
        let posted = self.0.post(request, flags);
        let index = posted.map_err(|_| self.0.refuse_full(MAX_BLOCKS))?;
        self.0.posting.tally.add_bytes(bytes);
        Ok(index)
    }

    /// As [`Self::post_sized`], for a post that nothing follows.
    #[inline(always)]
    pub(in crate::transport) fn post_short(
        &self,
        bytes: usize,
        request: impl ToPeer,
    ) -> Result<(), PostError> {
        if self.0.post(request, NO_FLAGS).is_err() {
            self.0.note_full(MAX_BLOCKS);
            return Err(PostError::NoResource);
        }
        self.0.posting.tally.add_bytes(bytes);
        Ok(())
    }

    /// Posts an operation of `bytes` bytes from or to the user's memory.
    #[inline(always)]
    pub(in crate::transport) fn zcopy(
        &self,
        bytes: usize,
        completion: Option<&Completion>,
        request: impl ToPeer,
    ) -> Post {
        let Some(completion) = completion else {
            self.post_sized(bytes, request, NO_FLAGS)?;
            return Ok(Posted::InProgress);
        };
        let index = self.post_sized(bytes, request, ControlFlags::COMPLETION)?;
        self.await_done(index, Done::Notify(completion.begin()));
        Ok(Posted::InProgress)
    }

    /// As [`Self::zcopy`], for a put of one segment, with one copy of the post.
    #[inline(always)]
    pub(in crate::transport) fn put_one(
        &self,
        bytes: usize,
        local: DataSegment,
        remote: RemoteAddressSegment,
        completion: Option<&Completion>,
    ) -> Post {
        let flags = if completion.is_some() { ControlFlags::COMPLETION } else { NO_FLAGS };
        // SAFETY: the reference is used only to post, and ends with the statement.
        let posted = unsafe { self.0.queue().post(Write { local, remote }, flags) };
        let WqeIndex(index) = posted.map_err(|_| self.0.refuse_full(MAX_BLOCKS))?;
        self.0.posting.tally.add_bytes(bytes);
        if let Some(completion) = completion {
            self.await_done(index, Done::Notify(completion.begin()));
        }
        Ok(Posted::InProgress)
    }

    /// Returns the segment of a slice of at most `limit` bytes.
    #[inline(always)]
    pub(in crate::transport) fn segment(
        &self,
        slice: &Slice<'_>,
        limit: usize,
    ) -> Result<DataSegment, PostError> {
        if slice.domain != self.0.shared.tag {
            return Err(PostError::ForeignMemory);
        }
        if slice.length > limit {
            return Err(PostError::too_long(slice.length, limit));
        }
        Ok(data_segment(slice))
    }

    /// Writes the segments of the slices to `into` and returns them with their total length, which
    /// is at most `limit`. `into` must have room for all.
    #[inline(always)]
    pub(in crate::transport) fn segments<'s>(
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

pub(in crate::transport) const NO_FLAGS: ControlFlags = ControlFlags::empty();
/// An empty segment, which posting omits.
pub(in crate::transport) const EMPTY: DataSegment = DataSegment::new(0, 0, 0);

/// Returns the segment of a slice whose length was checked.
#[inline(always)]
pub(in crate::transport) fn data_segment(slice: &Slice<'_>) -> DataSegment {
    DataSegment::new(slice.address, slice.length as u32, slice.key)
}

#[cold]
fn total_too_long(slices: &[Slice<'_>], limit: usize) -> PostError {
    let total = slices.iter().fold(0usize, |sum, slice| sum.saturating_add(slice.length));
    PostError::too_long(total, limit)
}
