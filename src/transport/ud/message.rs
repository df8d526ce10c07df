//! Sending active messages.

use std::hint::cold_path;

use super::socket::SendBuffer;
use super::state::Sent;
use super::{DATA, MAX_AM_HEADER, MAX_IOV};
use super::{Driver, Endpoint};
use crate::base::capability::{AmBcopy, AmShort, AmShortIov, AmZcopy, Check};
use crate::base::completion::Completion;
use crate::base::error::{Cause, Operation, PostError};
use crate::base::memory::Slice;
use crate::base::status::{Post, Posted};
use crate::transport::common::message::{SHORT_HEADER, check_id};
use crate::transport::common::pieces;
use crate::transport::handle::EndpointState as _;
use crate::transport::reliable::HEADER;

impl<D: Driver> Endpoint<D> {
    fn limits(&self) -> &crate::base::attributes::AmLimits {
        &self.0.shared.core.attributes.am
    }

    /// Takes a buffer for a message that can be sent now.
    #[inline(always)]
    fn start(&self, id: u8) -> Result<SendBuffer<'_, D>, PostError> {
        self.0.posting.check()?;
        check_id(id)?;
        self.room()?;
        self.0.shared.socket.take().ok_or_else(|| self.0.posting.refuse())
    }

    /// Checks that a message can be sent, apart from buffers.
    #[inline(always)]
    fn ready(&self) -> Result<(), PostError> {
        self.0.posting.check()?;
        self.room()
    }

    /// As [`Self::ready`], for an endpoint that accepts posts.
    #[inline(always)]
    fn room(&self) -> Result<(), PostError> {
        let state = &*self.0;
        if state.has_peer_left() {
            cold_path();
            state.shared.fail_later(&self.0, Operation::ActiveMessage, Cause::Disconnected);
            return Err(PostError::EndpointFailed);
        }
        if !state.sender.borrow().has_room() || !state.shared.socket.has_room() {
            return Err(state.posting.refuse());
        }
        Ok(())
    }

    /// Sends the message in the buffer.
    fn finish(
        &self,
        id: u8,
        buffer: SendBuffer<'_, D>,
        length: usize,
        completion: Option<&Completion>,
    ) -> Result<(), PostError> {
        let buffer = buffer.into_lease();
        let length_of_packet = (HEADER + length) as u16;
        let sent = Sent { buffer, length: length_of_packet, last: None, completion: None };
        self.0.transmit(id, sent, completion).map_err(|buffer| {
            self.0.shared.socket.retire_buffer(buffer, None);
            self.0.posting.refuse()
        })?;
        self.0.posting.tally.posted(length);
        Ok(())
    }
}

impl<D: Driver> Check for Endpoint<D> {
    /// Sends a message without contents, unless one is outstanding.
    #[inline(never)]
    fn check(&self) -> Result<(), PostError> {
        self.ready()?;
        self.0.probe()
    }
}

impl<D: Driver> AmShort for Endpoint<D> {
    #[inline(never)]
    fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Result<(), PostError> {
        match payload.try_into() {
            Ok(word) if self.0.shared.socket.takes_words() => self.am_word(id, header, word),
            _ => self.am_short_any(id, header, payload),
        }
    }
}

impl<D: Driver> Endpoint<D> {
    #[inline(always)]
    fn am_word(&self, id: u8, header: u64, word: [u8; 8]) -> Result<(), PostError> {
        let words = [header, u64::from_le_bytes(word)];
        let buffer = self.start(id)?;
        self.0.transmit_word(id, words, buffer).map_err(|()| self.0.posting.refuse())?;
        self.0.posting.tally.posted(SHORT_HEADER + size_of::<u64>());
        Ok(())
    }

    #[inline(never)]
    fn am_short_any(&self, id: u8, header: u64, payload: &[u8]) -> Result<(), PostError> {
        let limit = self.limits().max_short;
        if payload.len() > limit {
            self.0.posting.check()?;
            return Err(PostError::too_long(payload.len(), limit));
        }
        let mut buffer = self.start(id)?;
        let data = &mut buffer.bytes()[DATA..];
        if let Some((place, rest)) = data.split_first_chunk_mut() {
            *place = header.to_le_bytes();
            if let Some(rest) = rest.get_mut(..payload.len()) {
                rest.copy_from_slice(payload);
            }
        }
        self.finish(id, buffer, SHORT_HEADER + payload.len(), None)?;
        Ok(())
    }
}

impl<D: Driver> AmShortIov for Endpoint<D> {
    fn am_short_iov(&self, id: u8, header: u64, pieces: &[&[u8]]) -> Result<(), PostError> {
        pieces::am_short_iov(self, self.limits().max_short, id, header, pieces)
    }
}

impl<D: Driver> AmBcopy for Endpoint<D> {
    #[inline(never)]
    fn am_bcopy(&self, id: u8, pack: impl FnOnce(&mut [u8]) -> usize) -> Result<usize, PostError> {
        let mut buffer = self.start(id)?;
        let limit = self.limits().max_bcopy;
        let length = pack(buffer.bytes().get_mut(DATA..DATA + limit).unwrap_or_default());
        if length > limit {
            return Err(PostError::too_long(length, limit));
        }
        // The user's function may have posted, failed or closed this endpoint.
        self.ready()?;
        self.finish(id, buffer, length, None)?;
        Ok(length)
    }
}

impl<D: Driver> AmZcopy for Endpoint<D> {
    #[inline(never)]
    fn am_zcopy(
        &self,
        id: u8,
        header: &[u8],
        slices: &[Slice<'_>],
        completion: Option<&Completion>,
    ) -> Post {
        self.0.posting.check()?;
        if header.len() > MAX_AM_HEADER {
            return Err(PostError::too_long(header.len(), MAX_AM_HEADER));
        }
        if slices.len() > MAX_IOV {
            return Err(PostError::TooManySlices { limit: MAX_IOV as u32 });
        }
        if slices.iter().any(|slice| slice.domain != self.0.shared.tag) {
            return Err(PostError::ForeignMemory);
        }
        let limit = self.limits().max_zcopy;
        let total = slices.iter().fold(header.len(), |sum, slice| sum.saturating_add(slice.length));
        if total > limit {
            return Err(PostError::too_long(
                total - header.len(),
                limit.saturating_sub(header.len()),
            ));
        }
        let mut buffer = self.start(id)?;
        let mut at = DATA + header.len();
        if let Some(place) = buffer.bytes().get_mut(DATA..at) {
            place.copy_from_slice(header);
        }
        for slice in slices {
            let offset =
                slice.memory.offset_of(slice.address, slice.length).ok_or(PostError::OutOfRange)?;
            if let Some(place) = buffer.bytes().get_mut(at..at + slice.length) {
                // SAFETY: the slice borrows its memory, and its range was checked on creation.
                unsafe { slice.memory.read(offset, place) };
            }
            at += slice.length;
        }
        self.finish(id, buffer, total, completion)?;
        Ok(Posted::InProgress)
    }
}
