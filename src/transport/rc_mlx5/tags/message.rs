//! Sending tagged messages.

use barewire_mlx5::layouts::tag::{RendezvousHeader, TagHeader, TagOpcode};
use barewire_mlx5::queue::send::MAX_SEGMENTS;
use barewire_mlx5::request::{
    Inline, MAX_RENDEZVOUS_DATA, MAX_TAGGED_INLINE, Segments, Send, SendRendezvous, SendTagged,
};

use super::super::Endpoint;
use super::{HEADER, MAX_EAGER, Matching, TagEnd};
use crate::base::attributes::TagLimits;
use crate::base::capability::{TagEager, TagRendezvous};
use crate::base::completion::Completion;
use crate::base::error::PostError;
use crate::base::memory::Slice;
use crate::base::status::Post;
use crate::transport::common::operation::Done;
use crate::transport::mlx5::post::{EMPTY, NO_FLAGS, data_segment};
use crate::transport::rc::{DATA, MAX_ZCOPY};

/// The header, which is inline, takes two segments.
const MAX_SLICES: usize = MAX_SEGMENTS - 2;

/// Returns the limits of an interface whose list has room for `receives` receives.
pub(in super::super) fn limits(receives: u32) -> TagLimits {
    TagLimits {
        max_short: MAX_TAGGED_INLINE,
        max_bcopy: MAX_EAGER,
        max_zcopy: MAX_EAGER,
        max_iov: MAX_SLICES,
        max_rendezvous: MAX_ZCOPY,
        max_header: MAX_RENDEZVOUS_DATA,
        max_receives: receives,
    }
}

impl TagEager for Endpoint {
    #[inline]
    fn tag_short(&self, tag: u64, payload: &[u8]) -> Result<(), PostError> {
        self.check_tags()?;
        if payload.len() > MAX_TAGGED_INLINE {
            return Err(PostError::too_long(payload.len(), MAX_TAGGED_INLINE));
        }
        let header = TagHeader::new(TagOpcode::Eager, 0, tag);
        self.post_short(payload.len(), SendTagged { header: &header, payload: Inline(payload) })
    }

    #[inline]
    fn tag_bcopy(
        &self,
        tag: u64,
        immediate: u32,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize, PostError> {
        self.check_tags()?;
        let (mut buffer, length) = self.pack(MAX_EAGER, pack)?;
        let header = TagHeader::new(TagOpcode::Eager, immediate, tag);
        if let Some(front) = buffer.bytes().get_mut(DATA - HEADER..DATA) {
            front.copy_from_slice(&header.to_bytes());
        }
        let local = self.in_buffer(&buffer, DATA - HEADER, HEADER + length);
        let index = self.post_sized(length, Send(local), NO_FLAGS)?;
        self.await_done(index, Done::Release { buffer: buffer.into_lease() });
        Ok(length)
    }

    #[inline]
    fn tag_zcopy(
        &self,
        tag: u64,
        immediate: u32,
        slices: &[Slice<'_>],
        completion: Option<&Completion>,
    ) -> Post {
        self.check_tags()?;
        let mut local = [EMPTY; MAX_SLICES];
        let (segments, bytes) = self.segments(&mut local, slices, MAX_EAGER)?;
        let header = TagHeader::new(TagOpcode::Eager, immediate, tag);
        let message = SendTagged { header: &header, payload: Segments(segments) };
        self.zcopy(bytes, completion, message)
    }
}

impl TagRendezvous for Endpoint {
    fn tag_rendezvous(
        &self,
        tag: u64,
        header: &[u8],
        slice: &Slice<'_>,
        completion: &Completion,
    ) -> Result<(), PostError> {
        let (matching, end) = self.check_tags()?;
        if header.len() > MAX_RENDEZVOUS_DATA {
            return Err(PostError::too_long(header.len(), MAX_RENDEZVOUS_DATA));
        }
        self.segment(slice, MAX_ZCOPY)?;
        let local = data_segment(slice);
        // A key of an mlx5 device is lkey and rkey.
        let data = RendezvousHeader {
            address: slice.address.into(),
            rkey: local.lkey,
            length: local.byte_count,
        };
        let number = matching.announced.borrow_mut().next().ok_or(PostError::NoResource)?;
        let message = TagHeader::new(TagOpcode::Rendezvous, number, tag);
        let message = SendRendezvous { header: &message, data: &data, program: header };
        self.post_sized(slice.length, message, NO_FLAGS)?;
        matching.announced.borrow_mut().add([self.0.own.qpn, end.number()], completion.begin());
        Ok(())
    }
}

impl Endpoint {
    /// Checks that posts are accepted, and that both ends match tags.
    #[inline(always)]
    fn check_tags(&self) -> Result<(&Matching, &TagEnd), PostError> {
        self.0.posting.check()?;
        match (&self.0.shared.driver.tags, &self.0.driver.tags) {
            (Some(matching), Some(end)) if end.is_matched.get() => Ok((matching, end)),
            _ => Err(PostError::Unsupported),
        }
    }

    /// Returns the queue pair on which the peer's messages arrive.
    pub(crate) fn tag_queue_pair(&self) -> Option<u32> {
        self.0.driver.tags.as_ref().map(|end| end.number())
    }

    /// Completes the peer's rendezvous: [`crate::TagAnnouncement::finish`].
    pub(crate) fn finish_rendezvous(&self, tag: u64, operation: u32) -> Result<(), PostError> {
        self.check_tags()?;
        let header = TagHeader::new(TagOpcode::Finished, operation, tag);
        self.post_short(0, SendTagged { header: &header, payload: Inline(&[]) })
    }
}

const _: () = assert!(MAX_EAGER > MAX_TAGGED_INLINE);
