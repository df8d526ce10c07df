//! Puts and gets: copies by the CPU, complete when the call returns.

use std::sync::atomic::Ordering;

use super::domain::RemoteKey;
use super::{Endpoint, MAX_IOV, SEGMENT};
use crate::base::capability::{GetBcopy, PutBcopy, PutShort};
use crate::base::completion::{Completion, Unpack};
use crate::base::error::PostError;
use crate::base::memory::{Access, Slice};
use crate::base::status::{Post, Posted};
use crate::transport::common::rma::{self, Rma};
use barewire_shared_bytes::{SharedBytes, request_line};

impl Endpoint {
    /// The fast path: returns whether a range of the peer's memory is mapped and can be used at
    /// once.
    #[inline(always)]
    pub(super) fn is_mapped(
        &self,
        key: &RemoteKey,
        (remote, length): (u64, usize),
        need: Access,
    ) -> bool {
        let state = &*self.0;
        state.posting.is_open()
            && key.allows(need)
            && state.views.have(key, (key.offset(remote), length))
    }

    /// Returns the mapped region of a range that [`Self::is_mapped`], and the offset in it. The
    /// region stays mapped until another call uses this endpoint.
    #[inline(always)]
    pub(super) fn mapped(&self, key: &RemoteKey, remote: u64) -> (SharedBytes, usize) {
        (self.0.views.bytes(key), key.offset(remote) as usize)
    }

    /// The fast path: returns the mapped region of a range of the peer's memory and the offset in
    /// it, or `None` for any other case. The region stays mapped until another call uses this
    /// endpoint.
    #[inline(always)]
    pub(super) fn reach_mapped(
        &self,
        key: &RemoteKey,
        range: (u64, usize),
        need: Access,
    ) -> Option<(SharedBytes, usize)> {
        self.is_mapped(key, range, need).then(|| self.mapped(key, range.0))
    }

    /// As [`Self::reach_mapped`], but maps the region first if necessary.
    pub(super) fn reach_memory(
        &self,
        key: &RemoteKey,
        range: (u64, usize),
        need: Access,
    ) -> Result<(SharedBytes, usize), PostError> {
        if let Some(reached) = self.reach_mapped(key, range, need) {
            return Ok(reached);
        }
        self.0.map(key, range.0, range.1, need)?;
        // Fails only if the peer frees the region at this moment.
        self.reach_mapped(key, range, need).ok_or(PostError::KeyExpired)
    }

    #[inline(always)]
    fn put_word(&self, word: u64, remote: u64, key: &RemoteKey) -> Result<(), PostError> {
        let (range, (bytes, at)) = ((remote, size_of::<u64>()), self.mapped(key, remote));
        // The line is on its way during the checks. If they fail, the request has accessed nothing.
        request_line(bytes.start().as_ptr().wrapping_add(at));
        if self.is_mapped(key, range, Access::REMOTE_WRITE)
            // SAFETY: the region stays mapped until another call uses this endpoint; only one store
            // follows.
            && let Some(place) = unsafe { bytes.atomic(at) }
        {
            place.store(word, Ordering::Relaxed);
            self.0.posting.tally.posted(size_of_val(&word));
            return Ok(());
        }
        self.put_word_otherwise(word, remote, key)
    }

    #[cold]
    #[inline(never)]
    fn put_word_otherwise(&self, word: u64, remote: u64, key: &RemoteKey) -> Result<(), PostError> {
        self.put_any(&word.to_ne_bytes(), remote, key)
    }

    #[inline(never)]
    fn put_any(&self, payload: &[u8], remote: u64, key: &RemoteKey) -> Result<(), PostError> {
        let range = (remote, payload.len());
        let (bytes, at) = match self.reach_memory(key, range, Access::REMOTE_WRITE) {
            Ok(reached) => reached,
            Err(refused) => return self.put_to_list(payload, remote, key, refused),
        };
        // SAFETY: the region stays mapped until another call uses this endpoint, and `reach_memory`
        // has checked the range.
        unsafe { bytes.write(at, payload) };
        self.0.posting.tally.posted(payload.len());
        Ok(())
    }
}

impl PutShort for Endpoint {
    #[inline(always)]
    fn put_short(&self, payload: &[u8], remote: u64, key: &RemoteKey) -> Result<(), PostError> {
        match payload.try_into() {
            Ok(word) => self.put_word(u64::from_ne_bytes(word), remote, key),
            Err(_) => self.put_any(payload, remote, key),
        }
    }
}

impl PutBcopy for Endpoint {
    fn put_bcopy(
        &self,
        pack: impl FnOnce(&mut [u8]) -> usize,
        remote: u64,
        key: &RemoteKey,
    ) -> Result<usize, PostError> {
        self.0.posting.check()?;
        let mut buffer = self.0.shared.buffers.take().ok_or_else(|| self.0.posting.refuse())?;
        let length = pack(buffer.bytes());
        let packed =
            buffer.bytes().get(..length).ok_or_else(|| PostError::too_long(length, SEGMENT))?;
        self.put_short(packed, remote, key).map(|()| length)
    }
}

impl Rma for Endpoint {
    fn transfer<const PUT: bool>(
        &self,
        slices: &[Slice<'_>],
        remote: u64,
        key: &RemoteKey,
        _completion: Option<&Completion>,
    ) -> Post {
        let total = rma::total(slices, self.0.shared.tag, MAX_IOV, PUT)?;
        let by_lists = |refused| {
            self.transfer_by_lists::<PUT>(slices, (remote, total), key, refused)
                .map(|()| Posted::Done)
        };
        let (bytes, mut at) = match self.reach_memory(key, (remote, total), rma::right(PUT)) {
            Ok(reached) => reached,
            Err(refused) if key.is_list() => return by_lists(refused),
            Err(refused) => return Err(refused),
        };
        for slice in slices {
            if slice.is_of_view() {
                return by_lists(PostError::KeyExpired);
            }
            let (memory, start) = (slice.memory, slice.address - slice.memory.address());
            // SAFETY: the region stays mapped until another call uses this endpoint, and its range
            // was checked. `slice` borrows its memory, and its range was checked on creation.
            unsafe {
                if PUT {
                    bytes.copy(at, memory, start as usize, slice.length);
                } else {
                    memory.copy(start as usize, &bytes, at, slice.length);
                }
            }
            at += slice.length;
        }
        self.0.posting.tally.posted(total);
        Ok(Posted::Done)
    }
}

impl GetBcopy for Endpoint {
    fn get_bcopy(
        &self,
        unpack: &Unpack,
        length: usize,
        remote: u64,
        key: &RemoteKey,
        _completion: Option<&Completion>,
    ) -> Post {
        self.0.posting.check()?;
        let mut buffer = self.0.shared.buffers.take().ok_or_else(|| self.0.posting.refuse())?;
        let target =
            buffer.bytes().get_mut(..length).ok_or_else(|| PostError::too_long(length, SEGMENT))?;
        match self.reach_memory(key, (remote, length), Access::REMOTE_READ) {
            // SAFETY: the region stays mapped until another call uses this endpoint, and its range
            // was checked.
            Ok((bytes, at)) => unsafe { bytes.read(at, target) },
            Err(refused) => self.get_from_list(target, remote, key, refused)?,
        }
        self.0.posting.tally.posted(length);
        unpack.call(target);
        Ok(Posted::Done)
    }
}
