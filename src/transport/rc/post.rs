//! Common parts of posts, compiled for each driver's queue.

use super::{AM_HEADER, AM_ID, BUFFER, DATA, Driver, Endpoint, MESSAGE, Queue, SEGMENT};
use crate::base::completion::{Completion, Unpack};
use crate::base::error::PostError;
use crate::transport::common::message::SHORT_HEADER;
use crate::transport::common::operation::{Done, InFlight};
use crate::transport::common::pool::Buffer;
use crate::transport::common::registered::{Domain, Registered};

/// A buffer of the interface.
pub(crate) type PooledBuffer<'a, D> =
    Buffer<'a, Registered<<<D as Driver>::Domain as Domain>::Region>, BUFFER>;

impl<D: Driver> Endpoint<D> {
    /// Takes a buffer of the interface and lets `pack` fill it. Takes none if nothing could be
    /// posted.
    #[inline(always)]
    pub(crate) fn pack(
        &self,
        limit: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(PooledBuffer<'_, D>, usize), PostError> {
        let state = &*self.0;
        state.posting.check()?;
        if !state.has_room() {
            return Err(state.refuse_full(D::Queue::LARGEST_POST));
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

    /// Takes a buffer for a post that need not request a completion. If it is the last one, the
    /// post requests one, so that buffers return.
    #[inline(always)]
    pub(crate) fn take_buffer(&self) -> Result<PooledBuffer<'_, D>, PostError> {
        let request_completion = || self.0.with_queue(D::Queue::request_completion);
        let buffer = self.0.shared.buffers.take_and(request_completion);
        buffer.ok_or_else(|| self.0.posting.refuse())
    }

    /// Takes a buffer for a get of `length` bytes, which requests a completion.
    #[inline(always)]
    pub(crate) fn get_buffer(&self, length: usize) -> Result<PooledBuffer<'_, D>, PostError> {
        self.0.posting.check()?;
        if length > SEGMENT {
            return Err(PostError::too_long(length, SEGMENT));
        }
        self.0.shared.buffers.take().ok_or_else(|| self.0.posting.refuse())
    }

    /// Passes the `length` bytes in the buffer to `unpack` once the get at `index` is complete.
    #[inline(always)]
    pub(crate) fn await_data(
        &self,
        index: u16,
        buffer: PooledBuffer<'_, D>,
        length: usize,
        unpack: &Unpack,
        completion: Option<&Completion>,
    ) {
        let done = Done::Unpack {
            buffer: buffer.into_lease(),
            length: length as u32,
            unpack: unpack.clone(),
            completion: completion.map(Completion::begin),
        };
        self.await_done(index, done);
    }

    /// Returns the segment of `length` bytes at `offset` of a buffer.
    #[inline(always)]
    pub(crate) fn in_buffer(
        &self,
        buffer: &PooledBuffer<'_, D>,
        offset: usize,
        length: usize,
    ) -> <D::Queue as Queue>::Segment {
        let address = buffer.address() + offset as u64;
        D::Queue::segment(address, length as u32, self.0.shared.buffers_key)
    }

    /// Takes a buffer and writes the start of a message to handler `id`: the transport's header,
    /// and the user's, which has at most [`MAX_AM_HEADER`](super::MAX_AM_HEADER) bytes. Also
    /// returns their segment.
    #[inline(always)]
    pub(crate) fn header_buffer(
        &self,
        id: u8,
        header: &[u8],
    ) -> Result<(PooledBuffer<'_, D>, <D::Queue as Queue>::Segment), PostError> {
        let mut buffer = self.take_buffer()?;
        am_header(buffer.bytes(), id);
        if let Some(data) = buffer.bytes()[DATA..].get_mut(..header.len()) {
            data.copy_from_slice(header);
        }
        let segment = self.in_buffer(&buffer, MESSAGE, AM_HEADER + header.len());
        Ok((buffer, segment))
    }

    /// Stores what to do once the post at `index` is complete.
    #[inline(always)]
    pub(crate) fn await_done(&self, index: u16, done: Done) {
        self.0.in_flight().push(InFlight { index, done });
    }
}

/// Writes the header of a message to handler `id` to a buffer.
#[inline(always)]
pub(crate) fn am_header(buffer: &mut [u8; BUFFER], id: u8) {
    let (header, _) = buffer[MESSAGE..]
        .split_first_chunk_mut::<AM_HEADER>()
        .expect("a buffer is longer than a header");
    *header = (u32::from(id) << (8 * AM_ID)).to_le_bytes();
}

/// Returns the bytes in front of the payload of `am_short`.
#[inline(always)]
pub(crate) fn am_prefix(id: u8, header: u64) -> [u8; AM_HEADER + SHORT_HEADER] {
    let prefix = u128::from(id) << (8 * AM_ID) | u128::from(header) << (8 * AM_HEADER);
    *prefix.to_le_bytes().first_chunk().unwrap_or(&[0; AM_HEADER + SHORT_HEADER])
}
