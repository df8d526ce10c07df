//! Sending active messages.

use barewire_verbs::Data;

use super::post::no_elements;
use super::{Endpoint, MAX_ELEMENTS};
use crate::base::capability::{AmBcopy, AmShort, AmShortIov, AmZcopy};
use crate::base::completion::Completion;
use crate::base::error::{Operation, PostError};
use crate::base::memory::Slice;
use crate::base::status::{Post, Posted};
use crate::transport::common::message::{SHORT_HEADER, check_id};
use crate::transport::common::operation::Done;
use crate::transport::common::pieces;
use crate::transport::rc::{AM_HEADER, MAX_AM, MAX_AM_HEADER, MESSAGE, am_header, am_prefix};
use crate::transport::rdma::SEND;

/// Bytes in front of a short message's payload.
const PREFIX: usize = AM_HEADER + SHORT_HEADER;

impl AmShort for Endpoint {
    #[inline]
    fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Result<(), PostError> {
        self.0.posting.check()?;
        check_id(id)?;
        let limit = self.0.shared.core.attributes.am.max_short;
        if payload.len() > limit {
            return Err(PostError::too_long(payload.len(), limit));
        }
        let prefix = &am_prefix(id, header);
        // One inline range costs libibverbs less than two.
        let mut message = [0; PREFIX + 8];
        let data = match (message.split_first_chunk_mut::<PREFIX>(), payload.first_chunk()) {
            (Some((front, back)), Some(word)) if payload.len() == word.len() => {
                front.copy_from_slice(prefix);
                back.copy_from_slice(word as &[u8; 8]);
                Data::Inline(&message)
            }
            _ => Data::Inline2(prefix, payload),
        };
        self.post(Operation::ActiveMessage, SEND, data, false)?;
        Ok(())
    }
}

impl AmShortIov for Endpoint {
    fn am_short_iov(&self, id: u8, header: u64, pieces: &[&[u8]]) -> Result<(), PostError> {
        pieces::am_short_iov(self, self.0.shared.core.attributes.am.max_short, id, header, pieces)
    }
}

impl AmBcopy for Endpoint {
    #[inline]
    fn am_bcopy(&self, id: u8, pack: impl FnOnce(&mut [u8]) -> usize) -> Result<usize, PostError> {
        check_id(id)?;
        let (mut buffer, length) = self.pack(MAX_AM, pack)?;
        am_header(buffer.bytes(), id);
        let local = [self.in_buffer(&buffer, MESSAGE, AM_HEADER + length)];
        let index = self.post(Operation::ActiveMessage, SEND, Data::Elements(&local), false)?;
        self.await_done(index, Done::Release { buffer: buffer.into_lease() });
        Ok(length)
    }
}

impl AmZcopy for Endpoint {
    #[inline]
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
        let mut local = no_elements();
        let [first, rest @ ..] = &mut local;
        let most = self.0.shared.core.attributes.am.max_iov;
        let count = 1 + self.elements(rest, slices, most, MAX_AM - header.len())?.len();
        let (buffer, header) = self.header_buffer(id, header)?;
        *first = header;
        let data = Data::Elements(&local[..count.min(MAX_ELEMENTS)]);
        let index = self.post(Operation::ActiveMessage, SEND, data, completion.is_some())?;
        let buffer = buffer.into_lease();
        self.await_done(
            index,
            match completion.map(Completion::begin) {
                None => Done::Release { buffer },
                Some(completion) => Done::ReleaseNotify { buffer, completion },
            },
        );
        Ok(Posted::InProgress)
    }
}
