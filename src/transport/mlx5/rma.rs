//! Puts and gets.

use barewire_mlx5::queue::send::Destination as _;
use barewire_mlx5::request::{Inline, Line, Read, Segments, Word, Write};
use barewire_mlx5::{ControlFlags, RemoteAddressSegment};

use super::RemoteKey;
use super::attributes::MAX_RMA_SLICES;
use super::post::{EMPTY, NO_FLAGS};
use super::requests::Requests;
use crate::base::attributes::Attributes;
use crate::base::capability::{GetBcopy, PutBcopy, PutShort, RemoteMemory};
use crate::base::completion::{Completion, Unpack};
use crate::base::error::PostError;
use crate::base::memory::{Slice, Transfer};
use crate::base::status::{Post, Posted};
use crate::transport::common::operation::Done;
use crate::transport::common::rma::Rma;
use crate::transport::rc::{DATA, Driver, Endpoint, SEGMENT};

impl<D: Driver<Queue: Requests>> PutShort for Endpoint<D>
where
    Self: RemoteMemory<Key = RemoteKey>,
{
    #[inline(always)]
    fn put_short(&self, payload: &[u8], remote: u64, key: &RemoteKey) -> Result<(), PostError> {
        // A word stays in registers; other sizes are handled out of line.
        match payload.try_into() {
            Ok(word) => {
                self.0.posting.check()?;
                let remote = RemoteAddressSegment::new(remote, key.rkey());
                self.post_short(size_of::<u64>(), Write { local: Word(word), remote })
            }
            Err(_) => match payload.try_into() {
                Ok(line) => {
                    if self.put_line(line, remote, key.rkey()) {
                        self.0.posting.tally.add_bytes(line.len());
                        Ok(())
                    } else {
                        Err(self.refusal())
                    }
                }
                Err(_) => self.put_short_other(payload, remote, key.rkey()),
            },
        }
    }
}

impl<D: Driver<Queue: Requests>> PutBcopy for Endpoint<D>
where
    Self: RemoteMemory<Key = RemoteKey>,
{
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
        let index = self.post_sized(length, Write { local, remote }, NO_FLAGS)?;
        let done = Done::Release { buffer: buffer.into_lease() };
        self.await_done(index, done);
        Ok(length)
    }
}

impl<D: Driver<Queue: Requests>> Rma for Endpoint<D>
where
    Self: RemoteMemory<Key = RemoteKey>,
{
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
        if let [slice] = slices {
            let local = self.segment(slice, self.limit::<PUT>())?;
            return if PUT {
                self.zcopy(slice.length, completion, Write { local, remote })
            } else {
                self.zcopy(slice.length, completion, Read { local, remote })
            };
        }
        self.gather::<PUT>(slices, remote, completion)
    }

    #[inline(always)]
    fn transfer_list<const PUT: bool>(
        &self,
        transfers: &[Transfer<'_, RemoteKey>],
        completion: Option<&Completion>,
    ) -> Post {
        self.list::<PUT>(transfers, completion)
    }
}

impl<D: Driver<Queue: Requests>> GetBcopy for Endpoint<D>
where
    Self: RemoteMemory<Key = RemoteKey>,
{
    #[inline(always)]
    fn get_bcopy(
        &self,
        unpack: &Unpack,
        length: usize,
        remote: u64,
        key: &RemoteKey,
        completion: Option<&Completion>,
    ) -> Post {
        let buffer = self.get_buffer(length)?;
        let local = self.in_buffer(&buffer, DATA, length);
        let remote = RemoteAddressSegment::new(remote, key.rkey());
        let index = self.post_sized(length, Read { local, remote }, ControlFlags::COMPLETION)?;
        self.await_data(index, buffer, length, unpack, completion);
        Ok(Posted::InProgress)
    }
}

impl<D: Driver<Queue: Requests>> Endpoint<D> {
    /// Posts a write of no bytes, which needs no rights (IBTA 9.4.3) and fails if the peer does not
    /// respond.
    pub(in crate::transport) fn check_peer(&self) -> Result<(), PostError> {
        self.put_short_other(&[], 0, 0).map(drop)
    }

    /// Implements `put_short` of a cache line. Returns `false` if it was refused.
    #[inline(never)]
    fn put_line(&self, line: &[u8; 64], remote: u64, key: u32) -> bool {
        let remote = RemoteAddressSegment::new(remote, key);
        self.0.posting.is_open()
            && self.0.post(Write { local: Line(line), remote }, NO_FLAGS).is_ok()
    }

    #[cold]
    fn refusal(&self) -> PostError {
        self.0.posting.check().err().unwrap_or_else(|| self.0.refuse_full(2))
    }

    #[inline(never)]
    fn put_short_other(&self, payload: &[u8], remote: u64, key: u32) -> Result<(), PostError> {
        self.0.posting.check()?;
        let most = <D::Queue as Requests>::To::MAX_WRITE_INLINE;
        if payload.len() > most {
            return Err(PostError::too_long(payload.len(), most));
        }
        let remote = RemoteAddressSegment::new(remote, key);
        self.post_short(payload.len(), Write { local: Inline(payload), remote })
    }

    /// Most bytes of a put, or of a get.
    #[inline(always)]
    pub(in crate::transport) fn limit<const PUT: bool>(&self) -> usize {
        let Attributes { put, get, .. } = &self.0.shared.core.attributes;
        if PUT { put.max_zcopy } else { get.max_zcopy }
    }

    #[inline(never)]
    fn gather<const PUT: bool>(
        &self,
        slices: &[Slice<'_>],
        remote: RemoteAddressSegment,
        completion: Option<&Completion>,
    ) -> Post {
        let mut local = [EMPTY; MAX_RMA_SLICES];
        let local =
            local.get_mut(..<D::Queue as Requests>::To::MAX_RDMA_SEGMENTS).unwrap_or_default();
        let (local, bytes) = self.segments(local, slices, self.limit::<PUT>())?;
        let local = Segments(local);
        if PUT {
            self.zcopy(bytes, completion, Write { local, remote })
        } else {
            self.zcopy(bytes, completion, Read { local, remote })
        }
    }
}
