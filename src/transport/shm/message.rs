//! Sending active messages.

use barewire_shm::{FastSend, INLINE};

use super::Endpoint;
use super::connection::Connection;
use super::{MAX_AM_HEADER, MAX_AM_SHORT, MAX_IOV, SEGMENT};
use crate::base::capability::{AmBcopy, AmShort, AmShortIov, AmZcopy};
use crate::base::completion::Completion;
use crate::base::error::{Operation, PostError};
use crate::base::memory::Slice;
use crate::base::status::{Post, Posted};
use crate::transport::common::message::{MAX_HANDLERS, SHORT_HEADER, check_id};
use crate::transport::common::{pieces, rma};

impl Endpoint {
    /// Sends a payload of one or two words, which takes half a line.
    #[inline(always)]
    fn am_words<const N: usize>(
        &self,
        id: u8,
        header: u64,
        words: [u8; N],
    ) -> Result<(), PostError> {
        let state = &*self.0;
        if state.posting.is_open()
            && id < MAX_HANDLERS
            // SAFETY: the reference is used only to call the driver, and ends with the block.
            && let Some(peer) = unsafe { state.peer() }
        {
            match peer.send_now(id, header, &words) {
                FastSend::Sent => {
                    state.posting.tally.posted(SHORT_HEADER + N);
                    return Ok(());
                }
                FastSend::Wake => {
                    peer.wake();
                    state.posting.tally.posted(SHORT_HEADER + N);
                    return Ok(());
                }
                FastSend::NotSent => {}
            }
        }
        self.am_words_otherwise(id, header, words)
    }

    #[cold]
    #[inline(never)]
    fn am_words_otherwise<const N: usize>(
        &self,
        id: u8,
        header: u64,
        words: [u8; N],
    ) -> Result<(), PostError> {
        self.am_any(id, header, &words)
    }

    #[inline(never)]
    fn am_any(&self, id: u8, header: u64, payload: &[u8]) -> Result<(), PostError> {
        let state = &*self.0;
        state.posting.check()?;
        check_id(id)?;
        if payload.len() > INLINE {
            return self.am_long(id, header, payload);
        }
        state.run(Operation::ActiveMessage, |peer| peer.send(id, header, payload))?;
        state.posting.tally.posted(SHORT_HEADER + payload.len());
        Ok(())
    }

    #[inline(never)]
    fn am_long(&self, id: u8, header: u64, payload: &[u8]) -> Result<(), PostError> {
        if payload.len() > MAX_AM_SHORT {
            return Err(PostError::too_long(payload.len(), MAX_AM_SHORT));
        }
        self.am_bcopy(id, |buffer| {
            let length = SHORT_HEADER + payload.len();
            buffer[..SHORT_HEADER].copy_from_slice(&header.to_le_bytes());
            buffer[SHORT_HEADER..length].copy_from_slice(payload);
            length
        })?;
        Ok(())
    }
}

impl AmShort for Endpoint {
    #[inline(always)]
    fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Result<(), PostError> {
        if let Ok(word) = payload.try_into() {
            return self.am_words::<8>(id, header, word);
        }
        match payload.try_into() {
            Ok(words) => self.am_words::<16>(id, header, words),
            Err(_) => self.am_any(id, header, payload),
        }
    }
}

impl AmShortIov for Endpoint {
    fn am_short_iov(&self, id: u8, header: u64, pieces: &[&[u8]]) -> Result<(), PostError> {
        pieces::am_short_iov(self, MAX_AM_SHORT, id, header, pieces)
    }
}

impl AmBcopy for Endpoint {
    #[inline]
    fn am_bcopy(&self, id: u8, pack: impl FnOnce(&mut [u8]) -> usize) -> Result<usize, PostError> {
        let state = &*self.0;
        state.posting.check()?;
        check_id(id)?;
        let connection = state.connection().ok_or(PostError::NotConnected)?;
        let number = state.run(Operation::ActiveMessage, barewire_shm::Peer::take_buffer)?;
        let mut taken = Taken { connection: &connection, number: Some(number) };
        let start = connection.with_peer(|peer| peer.buffer(number));
        // SAFETY: the buffer has that many bytes, is initialised, and is exclusively this side's
        // until it is sent or returned: the receiver is an authenticated process, which writes
        // there only to return the buffer. `connection` keeps the buffer mapped while `pack` runs,
        // even if `pack` closes the endpoint or drops the worker.
        let buffer = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), SEGMENT) };
        let length = pack(buffer);
        if length > SEGMENT {
            return Err(PostError::too_long(length, SEGMENT));
        }
        state.run(Operation::ActiveMessage, |peer| peer.send_buffer(id, number, length as u16))?;
        taken.number = None;
        state.posting.tally.posted(length);
        Ok(length)
    }
}

impl AmZcopy for Endpoint {
    fn am_zcopy(
        &self,
        id: u8,
        header: &[u8],
        slices: &[Slice<'_>],
        _completion: Option<&Completion>,
    ) -> Post {
        check_id(id)?;
        if header.len() > MAX_AM_HEADER {
            return Err(PostError::too_long(header.len(), MAX_AM_HEADER));
        }
        let length =
            rma::total(slices, self.0.shared.tag, MAX_IOV, true)?.saturating_add(header.len());
        if length > SEGMENT {
            return Err(PostError::too_long(length, SEGMENT));
        }
        // The lists are known before a buffer is taken.
        let mut of_views = Vec::new();
        if slices.iter().any(Slice::is_of_view) {
            of_views.resize(length - header.len(), 0);
            self.gather_lists(slices, &mut of_views)?;
        }
        self.am_bcopy(id, |buffer| {
            let (head, rest) = buffer.split_at_mut(header.len());
            head.copy_from_slice(header);
            if of_views.is_empty() {
                rma::gather(slices, rest);
            } else {
                rest[..of_views.len()].copy_from_slice(&of_views);
            }
            length
        })?;
        Ok(Posted::Done)
    }
}

/// A buffer that the drop returns unless it was sent, also when packing panics.
struct Taken<'a> {
    connection: &'a Connection,
    number: Option<u8>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.connection.with_peer(|peer| peer.put_back(number));
        }
    }
}
