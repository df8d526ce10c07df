//! Sending active messages.

use barewire_mlx5::DataSegment;
use barewire_mlx5::request::{Inline, Payload, Prefixed, Segments, Send, Word};

use super::initiator::Initiator;
use super::post::{EMPTY, PooledBuffer};
use super::{Endpoint, MAX_AM_SHORT, MAX_AM_SLICES};
use crate::base::capability::{AmBcopy, AmShort, AmShortIov, AmZcopy};
use crate::base::completion::Completion;
use crate::base::error::PostError;
use crate::base::memory::Slice;
use crate::base::status::{Post, Posted};
use crate::transport::common::message::{SHORT_HEADER, check_id};
use crate::transport::common::operation::Done;
use crate::transport::common::pieces;
use crate::transport::rc::{AM_HEADER, MAX_AM, MAX_AM_HEADER, MESSAGE, am_header, am_prefix};

impl AmShort for Endpoint {
    #[inline(never)]
    fn am_short_selected(&self, id: u8, header: u64, payload: &[u8]) -> Result<(), PostError> {
        self.am_short(id, header, payload)
    }

    #[inline(always)]
    fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Result<(), PostError> {
        self.0.posting.check()?;
        check_id(id)?;
        match payload.try_into() {
            Ok(word) => {
                let message = Prefixed { prefix: am_prefix(id, header), payload: Word(word) };
                self.message(SHORT_HEADER + size_of::<u64>(), message)?;
                Ok(())
            }
            Err(_) => self.am_short_other(id, header, payload),
        }
    }
}

impl AmShortIov for Endpoint {
    fn am_short_iov(&self, id: u8, header: u64, pieces: &[&[u8]]) -> Result<(), PostError> {
        pieces::am_short_iov(self, MAX_AM_SHORT, id, header, pieces)
    }
}

impl AmBcopy for Endpoint {
    #[inline(always)]
    fn am_bcopy(&self, id: u8, pack: impl FnOnce(&mut [u8]) -> usize) -> Result<usize, PostError> {
        check_id(id)?;
        // Before the user's function runs.
        self.0.posting.check()?;
        self.0.credit()?;
        let (mut buffer, length) = self.pack(MAX_AM, pack)?;
        am_header(buffer.bytes(), id);
        let local = self.in_buffer(&buffer, MESSAGE, AM_HEADER + length);
        let (initiator, index) = self.message(length, local)?;
        initiator.await_done(index, Done::Release { buffer: buffer.into_lease() });
        Ok(length)
    }
}

impl AmZcopy for Endpoint {
    fn am_zcopy(
        &self,
        id: u8,
        header: &[u8],
        slices: &[Slice<'_>],
        completion: Option<&Completion>,
    ) -> Post {
        self.0.posting.check()?;
        check_id(id)?;
        if header.len() > MAX_AM_HEADER {
            return Err(PostError::too_long(header.len(), MAX_AM_HEADER));
        }
        // The header takes the first segment.
        let mut local = [EMPTY; 1 + MAX_AM_SLICES];
        let [first, rest @ ..] = &mut local;
        let (segments, bytes) = self.segments(rest, slices, MAX_AM - header.len())?;
        let (count, bytes) = (1 + segments.len(), header.len() + bytes);
        let (buffer, header) = self.header_buffer(id, header)?;
        *first = header;
        let local = local.get(..count).unwrap_or(&local);
        self.send_segments(buffer, bytes, completion, local)
    }
}

impl Endpoint {
    /// Posts a message of `bytes` bytes.
    #[inline(always)]
    fn message(&self, bytes: usize, message: impl Payload) -> Result<(&Initiator, u16), PostError> {
        self.0.credit()?;
        let posted = self.post_sized(bytes, Send(message))?;
        let credits = &self.0.credits;
        credits.set(credits.get().wrapping_sub(1));
        Ok(posted)
    }

    #[inline(never)]
    fn am_short_other(&self, id: u8, header: u64, payload: &[u8]) -> Result<(), PostError> {
        if payload.len() > MAX_AM_SHORT {
            return Err(PostError::too_long(payload.len(), MAX_AM_SHORT));
        }
        let message = Prefixed { prefix: am_prefix(id, header), payload: Inline(payload) };
        self.message(SHORT_HEADER + payload.len(), message)?;
        Ok(())
    }

    fn send_segments(
        &self,
        buffer: PooledBuffer<'_>,
        bytes: usize,
        completion: Option<&Completion>,
        segments: &[DataSegment],
    ) -> Post {
        let (initiator, index) = self.message(bytes, Segments(segments))?;
        let buffer = buffer.into_lease();
        initiator.await_done(
            index,
            match completion {
                None => Done::Release { buffer },
                Some(completion) => Done::ReleaseNotify { buffer, completion: completion.begin() },
            },
        );
        Ok(Posted::InProgress)
    }
}
