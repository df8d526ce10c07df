//! Sending active messages.

use barewire_mlx5::ControlFlags;
use barewire_mlx5::queue::send::Destination as _;
use barewire_mlx5::request::{Inline, Payload, Prefixed, Segments, Send, Word};

use super::attributes::MAX_AM_SLICES;
use super::post::{EMPTY, NO_FLAGS};
use super::requests::Requests;
use crate::base::completion::Completion;
use crate::base::error::PostError;
use crate::base::memory::Slice;
use crate::base::status::{Post, Posted};
use crate::transport::common::message::{SHORT_HEADER, check_id};
use crate::transport::common::operation::Done;
use crate::transport::rc::{
    AM_HEADER, Driver, Endpoint, MAX_AM, MAX_AM_HEADER, MESSAGE, PooledBuffer, am_header, am_prefix,
};

/// Returns the longest payload of a short message.
pub(in crate::transport) const fn max_am_short<D: Driver<Queue: Requests>>() -> usize {
    <D::Queue as Requests>::To::MAX_INLINE - AM_HEADER - SHORT_HEADER
}

impl<D: Driver<Queue: Requests>> Endpoint<D> {
    /// See [`AmShort`](crate::capability::AmShort).
    #[inline(always)]
    pub(in crate::transport) fn send_short(
        &self,
        id: u8,
        header: u64,
        payload: &[u8],
    ) -> Result<(), PostError> {
        self.0.posting.check()?;
        check_id(id)?;
        let prefix = am_prefix(id, header);
        match payload.try_into() {
            Ok(word) => {
                let message = Prefixed { prefix, payload: Word(word) };
                self.post_short(SHORT_HEADER + size_of::<u64>(), Send(message))
            }
            Err(_) => self.am_short_other(id, header, payload),
        }
    }

    /// See [`AmBcopy`](crate::capability::AmBcopy).
    #[inline(always)]
    pub(in crate::transport) fn send_bcopy(
        &self,
        id: u8,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize, PostError> {
        check_id(id)?;
        let (mut buffer, length) = self.pack(MAX_AM, pack)?;
        am_header(buffer.bytes(), id);
        let local = self.in_buffer(&buffer, MESSAGE, AM_HEADER + length);
        let index = self.post_sized(length, Send(local), NO_FLAGS)?;
        let done = Done::Release { buffer: buffer.into_lease() };
        self.await_done(index, done);
        Ok(length)
    }

    /// See [`AmZcopy`](crate::capability::AmZcopy).
    #[inline(always)]
    pub(in crate::transport) fn send_zcopy(
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
        if let [slice] = slices {
            let local = self.segment(slice, MAX_AM - header.len())?;
            let bytes = header.len() + slice.length;
            let (buffer, header) = self.header_buffer(id, header)?;
            return self.am_segments(buffer, bytes, completion, [header, local]);
        }
        self.am_gather(id, header, slices, completion)
    }

    #[inline(never)]
    fn am_short_other(&self, id: u8, header: u64, payload: &[u8]) -> Result<(), PostError> {
        if payload.len() > max_am_short::<D>() {
            return Err(PostError::too_long(payload.len(), max_am_short::<D>()));
        }
        let message = Prefixed { prefix: am_prefix(id, header), payload: Inline(payload) };
        self.post_short(SHORT_HEADER + payload.len(), Send(message))
    }

    #[inline(never)]
    fn am_gather(
        &self,
        id: u8,
        header: &[u8],
        slices: &[Slice<'_>],
        completion: Option<&Completion>,
    ) -> Post {
        // The header takes the first segment.
        let mut local = [EMPTY; 1 + MAX_AM_SLICES];
        let [first, rest @ ..] = &mut local;
        let rest =
            rest.get_mut(..<D::Queue as Requests>::To::MAX_SEND_SEGMENTS - 1).unwrap_or_default();
        let (segments, bytes) = self.segments(rest, slices, MAX_AM.saturating_sub(header.len()))?;
        let (count, bytes) = (1 + segments.len(), header.len() + bytes);
        let (buffer, header) = self.header_buffer(id, header)?;
        *first = header;
        let local = local.get(..count).unwrap_or(&local);
        self.am_segments(buffer, bytes, completion, Segments(local))
    }

    #[inline(always)]
    fn am_segments(
        &self,
        buffer: PooledBuffer<'_, D>,
        bytes: usize,
        completion: Option<&Completion>,
        message: impl Payload,
    ) -> Post {
        let Some(completion) = completion else {
            let index = self.post_sized(bytes, Send(message), NO_FLAGS)?;
            self.await_done(index, Done::Release { buffer: buffer.into_lease() });
            return Ok(Posted::InProgress);
        };
        let index = self.post_sized(bytes, Send(message), ControlFlags::COMPLETION)?;
        let buffer = buffer.into_lease();
        self.await_done(index, Done::ReleaseNotify { buffer, completion: completion.begin() });
        Ok(Posted::InProgress)
    }
}

/// Implements the messages of the endpoints of a driver. A generic implementation would conflict
/// with that of datagrams.
macro_rules! messages {
    ($driver:ty) => {
        const _: () = {
            use $crate::base::capability::{AmBcopy, AmShort, AmShortIov, AmZcopy, Check};
            use $crate::base::completion::Completion;
            use $crate::base::error::PostError;
            use $crate::base::memory::Slice;
            use $crate::base::status::Post;
            use $crate::transport::common::pieces;
            use $crate::transport::mlx5::message::max_am_short;
            use $crate::transport::rc::Endpoint;

            impl AmShort for Endpoint<$driver> {
                #[inline(always)]
                fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Result<(), PostError> {
                    self.send_short(id, header, payload)
                }
            }

            impl AmShortIov for Endpoint<$driver> {
                fn am_short_iov(
                    &self,
                    id: u8,
                    header: u64,
                    pieces: &[&[u8]],
                ) -> Result<(), PostError> {
                    pieces::am_short_iov(self, max_am_short::<$driver>(), id, header, pieces)
                }
            }

            impl AmBcopy for Endpoint<$driver> {
                #[inline(always)]
                fn am_bcopy(
                    &self,
                    id: u8,
                    pack: impl FnOnce(&mut [u8]) -> usize,
                ) -> Result<usize, PostError> {
                    self.send_bcopy(id, pack)
                }
            }

            impl AmZcopy for Endpoint<$driver> {
                #[inline(always)]
                fn am_zcopy(
                    &self,
                    id: u8,
                    header: &[u8],
                    slices: &[Slice<'_>],
                    completion: Option<&Completion>,
                ) -> Post {
                    self.send_zcopy(id, header, slices, completion)
                }
            }

            impl Check for Endpoint<$driver> {
                fn check(&self) -> Result<(), PostError> {
                    self.check_peer()
                }
            }
        };
    };
}
pub(in crate::transport) use messages;
