//! Puts and gets.

use barewire_mlx5::{ControlFlags, RemoteAddressSegment};

use super::post::{EMPTY, NO_FLAGS};
use super::{Endpoint, MAX_PUT_SHORT, MAX_RMA_SLICES, RemoteKey};
use crate::capability::{Check, GetBcopy, GetZcopy, PutBcopy, PutShort, PutZcopy};
use crate::completion::{Completion, Unpack};
use crate::error::PostError;
use crate::memory::Slice;
use crate::status::{Post, Posted};
use crate::transport::common::operation::Done;
use crate::transport::rc::{DATA, SEGMENT};

impl PutShort for Endpoint {
    #[inline(always)]
    fn put_short(&self, payload: &[u8], remote: u64, key: &RemoteKey) -> Result<(), PostError> {
        // A word stays in registers; other sizes are handled out of line.
        match payload.try_into() {
            Ok(word) => {
                self.0.posting.check()?;
                let remote = RemoteAddressSegment::new(remote, key.0);
                self.post_sized(size_of::<u64>(), |queue| {
                    queue.write_inline_8(word, remote, NO_FLAGS)
                })?;
                Ok(())
            }
            Err(_) => match payload.try_into() {
                Ok(line) => {
                    if self.put_line(line, remote, key.0) {
                        self.0.posting.tally.add_bytes(line.len());
                        Ok(())
                    } else {
                        Err(self.refusal())
                    }
                }
                Err(_) => self.put_short_other(payload, remote, key.0),
            },
        }
    }
}

impl PutBcopy for Endpoint {
    #[inline(always)]
    fn put_bcopy(
        &self,
        pack: impl FnOnce(&mut [u8]) -> usize,
        remote: u64,
        key: &RemoteKey,
    ) -> Result<usize, PostError> {
        let (buffer, length) = self.pack(SEGMENT, pack)?;
        let local = self.in_buffer(&buffer, DATA, length);
        let remote = RemoteAddressSegment::new(remote, key.0);
        let index = self.post_sized(length, |queue| queue.write(local, remote, NO_FLAGS))?;
        let done = Done::Release { buffer: buffer.into_lease() };
        self.await_done(index, done);
        Ok(length)
    }
}

impl PutZcopy for Endpoint {
    #[inline(always)]
    fn put_zcopy(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        self.0.posting.check()?;
        let limit = self.0.shared.core.attributes.put.max_zcopy;
        let remote = RemoteAddressSegment::new(remote, key.0);
        if let [slice] = slices {
            let local = self.segment(slice, limit)?;
            return self
                .zcopy(slice.length, completion, |queue, flags| queue.write(local, remote, flags));
        }
        self.put_gather(slices, remote, completion)
    }
}

impl GetBcopy for Endpoint {
    #[inline(always)]
    fn get_bcopy(
        &self,
        unpack: &Unpack,
        length: usize,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        self.0.posting.check()?;
        if length > SEGMENT {
            return Err(PostError::too_long(length, SEGMENT));
        }
        let buffer = self.0.shared.buffers.take().ok_or_else(|| self.0.posting.refuse())?;
        let local = self.in_buffer(&buffer, DATA, length);
        let remote = RemoteAddressSegment::new(remote, key.0);
        let index =
            self.post_sized(length, |queue| queue.read(local, remote, ControlFlags::COMPLETION))?;
        let done = Done::Unpack {
            buffer: buffer.into_lease(),
            length: length as u32,
            unpack: unpack.clone(),
            completion: completion.map(Completion::begin),
        };
        self.await_done(index, done);
        Ok(Posted::InProgress)
    }
}

impl GetZcopy for Endpoint {
    #[inline(always)]
    fn get_zcopy(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        self.0.posting.check()?;
        let limit = self.0.shared.core.attributes.get.max_zcopy;
        let remote = RemoteAddressSegment::new(remote, key.0);
        if let [slice] = slices {
            let local = self.segment(slice, limit)?;
            return self
                .zcopy(slice.length, completion, |queue, flags| queue.read(local, remote, flags));
        }
        self.get_scatter(slices, remote, completion)
    }
}

impl Check for Endpoint {
    /// Posts a write of no bytes, which needs no rights (IBTA 9.4.3) and fails if the peer does not
    /// respond.
    fn check(&self) -> Result<(), PostError> {
        self.put_short_other(&[], 0, 0).map(drop)
    }
}

impl Endpoint {
    /// Implements `put_short` of a cache line. Returns `false` if it was refused.
    #[inline(never)]
    fn put_line(&self, line: &[u8; 64], remote: u64, key: u32) -> bool {
        let remote = RemoteAddressSegment::new(remote, key);
        self.0.posting.is_open()
            && self.0.post(|queue| queue.write_inline_64(line, remote, NO_FLAGS)).is_ok()
    }

    #[cold]
    fn refusal(&self) -> PostError {
        self.0.posting.check().err().unwrap_or_else(|| self.0.posting.refuse())
    }

    #[inline(never)]
    fn put_short_other(&self, payload: &[u8], remote: u64, key: u32) -> Result<(), PostError> {
        self.0.posting.check()?;
        if payload.len() > MAX_PUT_SHORT {
            return Err(PostError::too_long(payload.len(), MAX_PUT_SHORT));
        }
        let remote = RemoteAddressSegment::new(remote, key);
        self.post_sized(payload.len(), |queue| queue.write_inline(payload, remote, NO_FLAGS))?;
        Ok(())
    }

    #[inline(never)]
    fn put_gather(
        &self,
        slices: &[Slice<'_>],
        remote: RemoteAddressSegment,
        completion: Option<&Completion>,
    ) -> Post {
        let mut local = [EMPTY; MAX_RMA_SLICES];
        let (local, bytes) =
            self.segments(&mut local, slices, self.0.shared.core.attributes.put.max_zcopy)?;
        self.zcopy(bytes, completion, |queue, flags| queue.write_gather(local, remote, flags))
    }

    #[inline(never)]
    fn get_scatter(
        &self,
        slices: &[Slice<'_>],
        remote: RemoteAddressSegment,
        completion: Option<&Completion>,
    ) -> Post {
        let mut local = [EMPTY; MAX_RMA_SLICES];
        let (local, bytes) =
            self.segments(&mut local, slices, self.0.shared.core.attributes.get.max_zcopy)?;
        self.zcopy(bytes, completion, |queue, flags| queue.read_scatter(local, remote, flags))
    }
}
