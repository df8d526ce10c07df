//! Common parts of posts.

use barewire_mlx5::request::ToPeer;
use barewire_mlx5::{ControlFlags, DataSegment};

use super::Endpoint;
use super::initiator::{Initiator, Towards};
use crate::base::completion::Completion;
use crate::base::error::PostError;
use crate::base::memory::Slice;
use crate::base::status::{Post, Posted};
use crate::transport::common::operation::Done;
use crate::transport::common::pool::Buffer;
use crate::transport::common::registered::Registered;
use crate::transport::mlx5::requests::Posting;
use crate::transport::rc::{AM_HEADER, BUFFER, DATA, MESSAGE, SEGMENT, am_header};

/// Every request has a completion: an initiator is free when nothing is outstanding.
pub(super) const SIGNALED: ControlFlags = ControlFlags::COMPLETION;
/// An empty segment, which posting omits.
pub(super) const EMPTY: DataSegment = DataSegment::new(0, 0, 0);

/// A buffer of the interface.
pub(super) type PooledBuffer<'a> = Buffer<'a, Registered<barewire_mlx5::MemoryRegion>, BUFFER>;

impl Endpoint {
    /// Posts an operation of `bytes` bytes. The limits were checked, so a refusal means a full
    /// queue. Returns the initiator and the index of the WQE.
    #[inline(always)]
    pub(super) fn post_sized(
        &self,
        bytes: usize,
        request: impl ToPeer,
    ) -> Result<(&Initiator, u16), PostError> {
        self.post_by(
            bytes,
            #[inline(always)]
            |mut to| to.post(request, SIGNALED),
        )
    }

    /// As [`Self::post_sized`], by `run`, which posts one request.
    #[inline(always)]
    pub(super) fn post_by(
        &self,
        bytes: usize,
        run: impl FnOnce(Towards<'_>) -> Posting,
    ) -> Result<(&Initiator, u16), PostError> {
        let state = &*self.0;
        let initiator = state.take()?;
        let posted = initiator.post_by(&state.address.get(), run);
        let index = posted.map_err(|_| state.refuse())?;
        initiator.note_owner(index, state.slot);
        state.posting.tally.posted(bytes);
        Ok((initiator, index))
    }

    /// Posts an operation of `bytes` bytes from or to the user's memory.
    #[inline(always)]
    pub(super) fn zcopy(
        &self,
        bytes: usize,
        completion: Option<&Completion>,
        request: impl ToPeer,
    ) -> Post {
        let (initiator, index) = self.post_sized(bytes, request)?;
        if let Some(completion) = completion {
            initiator.await_done(index, Done::Notify(completion.begin()));
        }
        Ok(Posted::InProgress)
    }

    /// Takes a buffer of the interface and lets `pack` fill it. Takes none if nothing could be
    /// posted.
    #[inline(always)]
    pub(super) fn pack(
        &self,
        limit: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(PooledBuffer<'_>, usize), PostError> {
        let state = &*self.0;
        state.posting.check()?;
        if !state.has_room() {
            return Err(state.posting.refuse());
        }
        let mut buffer = self.take_buffer()?;
        let data = &mut buffer.bytes()[DATA..DATA + SEGMENT];
        let length = pack(data.get_mut(..limit).unwrap_or_default());
        if length > limit {
            return Err(PostError::too_long(length, limit));
        }
        // The user's function may have posted on, failed or closed this endpoint.
        state.posting.check()?;
        Ok((buffer, length))
    }

    #[inline(always)]
    pub(super) fn take_buffer(&self) -> Result<PooledBuffer<'_>, PostError> {
        self.0.shared.buffers.take().ok_or_else(|| self.0.posting.refuse())
    }

    /// Returns the segment of `length` bytes at `offset` of a buffer.
    #[inline(always)]
    pub(super) fn in_buffer(
        &self,
        buffer: &PooledBuffer<'_>,
        offset: usize,
        length: usize,
    ) -> DataSegment {
        let address = buffer.address() + offset as u64;
        DataSegment::new(address, length as u32, self.0.shared.buffers_key)
    }

    /// Takes a buffer and writes the start of a message to handler `id`: the transport's header,
    /// and the user's. Also returns their segment.
    #[inline(always)]
    pub(super) fn header_buffer(
        &self,
        id: u8,
        header: &[u8],
    ) -> Result<(PooledBuffer<'_>, DataSegment), PostError> {
        let mut buffer = self.take_buffer()?;
        am_header(buffer.bytes(), id);
        if let Some(data) = buffer.bytes()[DATA..].get_mut(..header.len()) {
            data.copy_from_slice(header);
        }
        let segment = self.in_buffer(&buffer, MESSAGE, AM_HEADER + header.len());
        Ok((buffer, segment))
    }

    /// Returns the segment of a slice of at most `limit` bytes.
    #[inline(always)]
    pub(super) fn segment(
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
        Ok(DataSegment::new(slice.address, slice.length as u32, slice.key))
    }

    /// Writes the segments of the slices to `into` and returns them with their total length, which
    /// is at most `limit`.
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
        let total = slices.iter().fold(0_usize, |sum, slice| sum.saturating_add(slice.length));
        for (segment, slice) in into.iter_mut().zip(slices) {
            *segment = self.segment(slice, limit).map_err(|error| match error {
                PostError::ForeignMemory => error,
                _ => PostError::too_long(total, limit),
            })?;
        }
        if total > limit {
            return Err(PostError::too_long(total, limit));
        }
        Ok((into, total))
    }
}
