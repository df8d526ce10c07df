//! Puts and gets.

use barewire_mlx5::RemoteAddressSegment;
use barewire_mlx5::request::{Inline, Read, Segments, Word, Write};

use super::post::EMPTY;
use super::{Endpoint, MAX_PUT_SHORT, MAX_RMA_SLICES, RemoteKey};
use crate::base::attributes::Attributes;
use crate::base::capability::{Check, GetBcopy, PutBcopy, PutShort};
use crate::base::completion::{Completion, Unpack};
use crate::base::error::PostError;
use crate::base::memory::{Slice, Transfer};
use crate::base::status::{Post, Posted};
use crate::transport::common::operation::Done;
use crate::transport::common::rma::Rma;
use crate::transport::rc::{DATA, SEGMENT};

/// Blocks of a put or get of one segment: an address vector, a remote address, a segment.
const BLOCKS: u32 = 2;

impl PutShort for Endpoint {
    #[inline(never)]
    fn put_short_selected(
        &self,
        payload: &[u8],
        remote: u64,
        key: &RemoteKey,
    ) -> Result<(), PostError> {
        self.put_short(payload, remote, key)
    }

    #[inline(always)]
    fn put_short(&self, payload: &[u8], remote: u64, key: &RemoteKey) -> Result<(), PostError> {
        match payload.try_into() {
            Ok(word) => {
                self.0.posting.check()?;
                let remote = RemoteAddressSegment::new(remote, key.rkey());
                self.post_sized(size_of::<u64>(), Write { local: Word(word), remote })?;
                Ok(())
            }
            Err(_) => self.put_short_other(payload, remote, key.rkey()),
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
        let remote = RemoteAddressSegment::new(remote, key.rkey());
        let (initiator, index) = self.post_sized(length, Write { local, remote })?;
        initiator.await_done(index, Done::Release { buffer: buffer.into_lease() });
        Ok(length)
    }
}

impl Rma for Endpoint {
    #[inline(always)]
    fn transfer<const PUT: bool>(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        self.0.posting.check()?;
        let remote = RemoteAddressSegment::new(remote, key.rkey());
        let mut local = [EMPTY; MAX_RMA_SLICES];
        let (local, bytes) = self.segments(&mut local, slices, self.limit::<PUT>())?;
        let local = Segments(local);
        if PUT {
            self.zcopy(bytes, completion, Write { local, remote })
        } else {
            self.zcopy(bytes, completion, Read { local, remote })
        }
    }

    /// Each transfer has a doorbell of its own.
    fn transfer_list<const PUT: bool>(
        &self,
        transfers: &[Transfer<'_, RemoteKey>],
        completion: Option<&Completion>,
    ) -> Post {
        self.0.posting.check()?;
        let Some((last, others)) = transfers.split_last() else { return Ok(Posted::Done) };
        for transfer in transfers {
            self.segment(&transfer.local, self.limit::<PUT>())?;
        }
        let most = self.0.shared.config.send_ring / BLOCKS;
        if transfers.len() > most as usize {
            return Err(PostError::TooManyTransfers { limit: most });
        }
        let initiator = self.0.take()?;
        let room = initiator.with_queue(|queue| queue.send.room());
        if transfers.len() as u32 * BLOCKS > room {
            return Err(self.0.refuse());
        }
        let post = |transfer: &Transfer<'_, RemoteKey>, completion| {
            self.transfer::<PUT>(&[transfer.local], transfer.remote, transfer.key, completion)
        };
        for transfer in others {
            let _ = post(transfer, None)?;
        }
        post(last, completion)
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
        let buffer = self.take_buffer()?;
        let local = self.in_buffer(&buffer, DATA, length);
        let remote = RemoteAddressSegment::new(remote, key.rkey());
        let (initiator, index) = self.post_sized(length, Read { local, remote })?;
        let done = Done::Unpack {
            buffer: buffer.into_lease(),
            length: length as u32,
            unpack: unpack.clone(),
            completion: completion.map(Completion::begin),
        };
        initiator.await_done(index, done);
        Ok(Posted::InProgress)
    }
}

impl Check for Endpoint {
    /// Posts a write of no bytes, which needs no rights (IBTA 9.4.3) and fails if the peer does not
    /// respond.
    fn check(&self) -> Result<(), PostError> {
        self.put_short_other(&[], 0, 0)
    }
}

impl Endpoint {
    #[inline(never)]
    fn put_short_other(&self, payload: &[u8], remote: u64, key: u32) -> Result<(), PostError> {
        self.0.posting.check()?;
        if payload.len() > MAX_PUT_SHORT {
            return Err(PostError::too_long(payload.len(), MAX_PUT_SHORT));
        }
        let remote = RemoteAddressSegment::new(remote, key);
        self.post_sized(payload.len(), Write { local: Inline(payload), remote })?;
        Ok(())
    }

    /// Most bytes of a put, or of a get.
    #[inline(always)]
    fn limit<const PUT: bool>(&self) -> usize {
        let Attributes { put, get, .. } = &self.0.shared.core.attributes;
        if PUT { put.max_zcopy } else { get.max_zcopy }
    }
}
