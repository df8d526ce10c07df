//! Parts of the posts of every operation. They are compiled for each driver's queue.

use std::hint::cold_path;

use super::{AM_HEADER, BUFFER, DATA, Driver, Endpoint, MESSAGE, Queue, SEGMENT};
use crate::error::PostError;
use crate::transport::common::operation::{Done, InFlight};
use crate::transport::common::pool::Buffer;
use crate::transport::common::registered::{Domain, Registered};

/// A buffer of the interface.
pub(crate) type PooledBuffer<'a, D> =
    Buffer<'a, Registered<<<D as Driver>::Domain as Domain>::Region>, BUFFER>;

impl<D: Driver> Endpoint<D> {
    /// Lets `pack` fill a buffer of the interface; takes none if nothing could be posted.
    #[inline(always)]
    pub(crate) fn pack(
        &self,
        limit: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(PooledBuffer<'_, D>, usize), PostError> {
        let state = &*self.0;
        state.gate.check()?;
        if !state.has_room() {
            return Err(state.gate.refuse());
        }
        let mut buffer = self.take_buffer()?;
        let data = &mut buffer.bytes()[DATA..DATA + SEGMENT];
        let length = pack(data.get_mut(..limit).unwrap_or_default());
        if length > limit {
            return Err(PostError::too_long(length, limit));
        }
        // The user's function may have posted, failed or closed this endpoint.
        state.gate.check()?;
        Ok((buffer, length))
    }

    /// Takes a buffer for a post that need not ask for a completion. If it is the last one, the post does,
    /// so that buffers come back.
    #[inline(always)]
    pub(crate) fn take_buffer(&self) -> Result<PooledBuffer<'_, D>, PostError> {
        let buffers = &self.0.shared.buffers;
        let buffer = buffers.take().ok_or_else(|| self.0.gate.refuse())?;
        if buffers.is_empty() {
            cold_path();
            self.0.with_queue(D::Queue::request_completion);
        }
        Ok(buffer)
    }

    /// `length` bytes at `offset` of a buffer.
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

    /// A buffer with the start of a message to handler `id`: its header, and the user's, which has at most
    /// [`MAX_AM_HEADER`](super::MAX_AM_HEADER) bytes. Also their segment.
    #[inline(always)]
    pub(crate) fn header_buffer(
        &self,
        id: u8,
        header: &[u8],
    ) -> Result<(PooledBuffer<'_, D>, <D::Queue as Queue>::Segment), PostError> {
        let mut buffer = self.take_buffer()?;
        *am_header(buffer.bytes()) = [id, 0, 0, 0];
        if let Some(data) = buffer.bytes()[DATA..].get_mut(..header.len()) {
            data.copy_from_slice(header);
        }
        let segment = self.in_buffer(&buffer, MESSAGE, AM_HEADER + header.len());
        Ok((buffer, segment))
    }

    /// Remembers what to do once the post at `index` is done.
    #[inline(always)]
    pub(crate) fn await_done(&self, index: u16, done: Done) {
        self.0.in_flight.push(InFlight { index, done });
    }
}

/// The header of a message in its buffer.
#[inline(always)]
pub(crate) fn am_header(buffer: &mut [u8; BUFFER]) -> &mut [u8; AM_HEADER] {
    let (header, _) = buffer[MESSAGE..].split_first_chunk_mut().expect("a buffer is longer than a header");
    header
}
