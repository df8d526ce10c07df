//! Puts and gets: copies by this CPU, done when the call returns.

use std::cell::Ref;

use super::SEGMENT;
use super::domain::RemoteKey;
use super::endpoint::Endpoint;
use super::views::View;
use crate::completion::{Completion, Unpack};
use crate::error::PostError;
use crate::memory::{Access, Slice, Transfer};
use crate::status::{Post, Posted};

impl Endpoint {
    /// The region of a range of the peer's memory, and the offset in it.
    #[inline(always)]
    pub(super) fn reach_memory(
        &self,
        key: &RemoteKey,
        (remote, length): (u64, usize),
        need: Access,
    ) -> Result<(Ref<'_, View>, usize), PostError> {
        let state = &*self.0;
        state.gate.check()?;
        let offset = key.offset(remote, length, need)?;
        let view = state.views.find(key, (offset, length), || state.map(key))?;
        Ok((view, offset as usize))
    }

    /// Writes `payload` to `remote`.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline(always)]
    pub fn put_short(&self, payload: &[u8], remote: u64, key: &RemoteKey) -> Post {
        let (view, at) = self.reach_memory(key, (remote, payload.len()), Access::REMOTE_WRITE)?;
        // SAFETY: the view keeps the region mapped, and the range was checked.
        unsafe { view.bytes.write(at, payload) };
        Ok(Posted::Done)
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
        let (view, mut at) = self.reach_memory(key, (remote, total), Access::REMOTE_WRITE)?;
        for slice in slices {
            let from = (slice.address - slice.memory.address()) as usize;
            // SAFETY: as in `put_short`; the slice borrows its memory.
            unsafe { view.bytes.copy(at, slice.memory, from, slice.length) };
            at += slice.length;
        }
        Ok(Posted::Done)
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
        let (view, at) = self.reach_memory(key, (remote, length), Access::REMOTE_READ)?;
        // SAFETY: as in `put_short`.
        unsafe { view.bytes.read(at, target) };
        drop(view);
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
        let (view, mut at) = self.reach_memory(key, (remote, total), Access::REMOTE_READ)?;
        for slice in slices {
            let to = (slice.address - slice.memory.address()) as usize;
            // SAFETY: as in `put_short`; the slice borrows its memory.
            unsafe { slice.memory.copy(to, &view.bytes, at, slice.length) };
            at += slice.length;
        }
        Ok(Posted::Done)
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
