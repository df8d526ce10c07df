//! Puts and gets: copies by this CPU, done when the call returns.

use super::SEGMENT;
use super::domain::RemoteKey;
use super::endpoint::Endpoint;
use crate::completion::{Completion, Unpack};
use crate::copy::Bytes;
use crate::error::PostError;
use crate::memory::{Access, Slice, Transfer};
use crate::status::{Post, Posted};

impl Endpoint {
    /// Has `run` work on a range of the peer's memory: the region's bytes and the offset in them.
    #[inline(always)]
    pub(super) fn reach_memory<R>(
        &self,
        key: &RemoteKey,
        range: (u64, usize),
        need: Access,
        run: impl FnOnce(&Bytes, usize) -> Result<R, PostError>,
    ) -> Result<R, PostError> {
        let state = &*self.0;
        state.gate.check()?;
        let (remote, length) = range;
        let offset = key.offset(remote, length, need)?;
        state.views.with(key, (offset, length), || state.map(key), run)
    }

    /// Writes `payload` to `remote`.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn put_short(&self, payload: &[u8], remote: u64, key: &RemoteKey) -> Post {
        self.reach_memory(key, (remote, payload.len()), Access::REMOTE_WRITE, |bytes, at| {
            // SAFETY: the view that runs this keeps the region mapped, and the range was checked.
            unsafe { bytes.write(at, payload) };
            Ok(Posted::Done)
        })
    }

    /// Lets `pack` fill a buffer and writes as many bytes as it says to `remote`.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn put_bcopy(
        &self,
        pack: impl FnOnce(&mut [u8]) -> usize,
        remote: u64,
        key: &RemoteKey,
    ) -> Result<usize, PostError> {
        self.0.gate.check()?;
        let mut buffer = self.0.shared.buffers.take().ok_or(PostError::NoResource)?;
        let length = pack(buffer.bytes());
        let packed = buffer.bytes().get(..length).ok_or_else(|| PostError::too_long(length, SEGMENT))?;
        self.put_short(packed, remote, key).map(|_| length)
    }

    /// Writes the slices, one after the other, to `remote`. Done at once: the completion is not used.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn put_zcopy(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &RemoteKey,
        _completion: Option<&Completion>,
    ) -> Post {
        let total = self.total(slices, Access::empty())?;
        self.reach_memory(key, (remote, total), Access::REMOTE_WRITE, |bytes, mut at| {
            for slice in slices {
                let from = (slice.address - slice.memory.address()) as usize;
                // SAFETY: as in `put_short`; the slice borrows its memory.
                unsafe { bytes.copy(at, slice.memory, from, slice.length) };
                at += slice.length;
            }
            Ok(Posted::Done)
        })
    }

    /// Reads `length` bytes at `remote` and gives them to `unpack` before it returns.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn get_bcopy(
        &self,
        unpack: &Unpack,
        length: usize,
        remote: u64,
        key: &RemoteKey,
        _completion: Option<&Completion>,
    ) -> Post {
        self.0.gate.check()?;
        let mut buffer = self.0.shared.buffers.take().ok_or(PostError::NoResource)?;
        let target = buffer.bytes().get_mut(..length).ok_or_else(|| PostError::too_long(length, SEGMENT))?;
        self.reach_memory(key, (remote, length), Access::REMOTE_READ, |bytes, at| {
            // SAFETY: as in `put_short`.
            unsafe { bytes.read(at, target) };
            Ok(())
        })?;
        unpack.call(target);
        Ok(Posted::Done)
    }

    /// Reads from `remote` into the slices, one after the other. Done at once: the completion is not used.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn get_zcopy(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &RemoteKey,
        _completion: Option<&Completion>,
    ) -> Post {
        let total = self.total(slices, Access::LOCAL_WRITE)?;
        self.reach_memory(key, (remote, total), Access::REMOTE_READ, |bytes, mut at| {
            for slice in slices {
                let to = (slice.address - slice.memory.address()) as usize;
                // SAFETY: as in `put_short`; the slice borrows its memory.
                unsafe { slice.memory.copy(to, bytes, at, slice.length) };
                at += slice.length;
            }
            Ok(Posted::Done)
        })
    }

    /// Writes every transfer's slice to its remote address, in order, at once. Stops at the first that cannot be done.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn put_list(&self, transfers: &[Transfer<'_, RemoteKey>], _completion: Option<&Completion>) -> Post {
        let put = |&Transfer { local, remote, key }: &Transfer<'_, RemoteKey>| {
            self.put_zcopy(&[local], remote, key, None).map(drop)
        };
        transfers.iter().try_for_each(put).map(|()| Posted::Done)
    }

    /// Reads into every transfer's slice from its remote address, in order, at once. Stops at the first that cannot be done.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn get_list(&self, transfers: &[Transfer<'_, RemoteKey>], _completion: Option<&Completion>) -> Post {
        let get = |&Transfer { local, remote, key }: &Transfer<'_, RemoteKey>| {
            self.get_zcopy(&[local], remote, key, None).map(drop)
        };
        transfers.iter().try_for_each(get).map(|()| Posted::Done)
    }
}
