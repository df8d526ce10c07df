//! Operations on views: they gather and scatter piece by piece.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use barewire_shared_bytes::{Layout, SharedBytes};
use barewire_shm::{LIVE, Mapped};

use super::Endpoint;
use super::domain::Range;
use super::domain::RemoteKey;
use super::list;
use crate::base::atomic::Change;
use crate::base::error::PostError;
use crate::base::memory::{Access, Slice};
use crate::transport::common::parts::{Part, copy};
use crate::transport::common::rma;

/// A part of this process's memory, which the slice borrows.
type Local = Result<Part<()>, PostError>;
/// A part of a peer's memory.
type Remote = Result<Part<Mapped>, PostError>;

impl Endpoint {
    /// Returns the parts of `length` bytes of a peer's view, or of its memory. `refused` is the
    /// error of an access that is neither.
    fn remote_parts(
        &self,
        key: &RemoteKey,
        (remote, length): (u64, usize),
        need: Access,
        refused: PostError,
    ) -> Result<Vec<Remote>, PostError> {
        if !key.is_list() {
            return Err(refused);
        }
        self.0.posting.check()?;
        if !key.allows(need) {
            return Err(PostError::AccessDenied);
        }
        let (_, region, size) = key.region();
        if remote.checked_add(length as u64).is_none_or(|end| end > size) {
            return Err(PostError::OutOfRange);
        }
        let list = self.live_region(key, region)?;
        let layout = list::read(&list).ok_or(PostError::OutOfRange)?;
        if !layout.contains(remote, length as u64) {
            return Err(PostError::OutOfRange);
        }
        // All are mapped before the first byte is copied.
        let parts = layout.pieces(remote, length as u64).map(|piece| {
            let mapped = self.live_region(key, *piece.memory)?;
            let bytes = SharedBytes::new(mapped.start(), mapped.size());
            // SAFETY: `mapped` keeps the bytes.
            Ok(unsafe { Part::new(bytes, (piece.offset, piece.length), Some(mapped)) })
        });
        let parts = parts.collect::<Result<Vec<_>, PostError>>()?;
        // What was read is that of a view that still exists.
        if list.life().load(Ordering::Acquire) != LIVE {
            return Err(PostError::KeyExpired);
        }
        Ok(parts)
    }

    /// Maps a region of the peer that made `key`, of which only the number is known.
    fn live_region(&self, key: &RemoteKey, region: u64) -> Result<Mapped, PostError> {
        self.0.live_region(key, |peer| peer.region(region, 1))
    }

    /// As a put, through the key of a view; `refused` is the error for other keys.
    #[cold]
    pub(super) fn put_to_list(
        &self,
        data: &[u8],
        remote: u64,
        key: &RemoteKey,
        refused: PostError,
    ) -> Result<(), PostError> {
        let range = (remote, data.len());
        let mut rest = data;
        for part in self.remote_parts(key, range, Access::REMOTE_WRITE, refused)? {
            rest = part?.write(rest);
        }
        self.0.posting.tally.posted(data.len());
        Ok(())
    }

    /// As a get, through the key of a view; `refused` is the error for other keys.
    #[cold]
    pub(super) fn get_from_list(
        &self,
        target: &mut [u8],
        remote: u64,
        key: &RemoteKey,
        refused: PostError,
    ) -> Result<(), PostError> {
        let mut rest = target;
        let range = (remote, rest.len());
        for part in self.remote_parts(key, range, Access::REMOTE_READ, refused)? {
            rest = part?.read(rest);
        }
        Ok(())
    }

    /// As an atomic, through the key of a view; `refused` is the error for other keys.
    #[cold]
    pub(super) fn change_in_list(
        &self,
        change: Change,
        remote: u64,
        key: &RemoteKey,
        refused: PostError,
    ) -> Result<u64, PostError> {
        let range = (remote, change.width);
        let parts = self.remote_parts(key, range, Access::REMOTE_ATOMIC, refused)?;
        let first = parts.into_iter().next().ok_or(PostError::OutOfRange)??;
        first.update(change.width, |old| change.apply(old))
    }

    /// As a put or get of slices of which some are of views, or through the key of a view;
    /// `refused` is the error for other keys.
    #[cold]
    pub(super) fn transfer_by_lists<const PUT: bool>(
        &self,
        slices: &[Slice<'_>],
        (remote, total): (u64, usize),
        key: &RemoteKey,
        refused: PostError,
    ) -> Result<(), PostError> {
        let need = rma::right(PUT);
        let remote = if key.is_list() {
            self.remote_parts(key, (remote, total), need, refused)?
        } else {
            let mapped = self.0.map(key, remote, total, need)?;
            let range = (key.offset(remote) as usize, total);
            let bytes = SharedBytes::new(mapped.start(), mapped.size());
            // SAFETY: `mapped` keeps the bytes.
            vec![unsafe { Part::new(bytes, range, Some(mapped)) }]
        };
        let lists = self.lists(slices)?;
        let local = slices.iter().zip(&lists).flat_map(|(slice, list)| local(slice, list.as_ref()));
        let remote = remote.into_iter();
        if PUT {
            copy(local, remote)?;
        } else {
            copy(remote, local)?;
        }
        self.0.posting.tally.posted(total);
        Ok(())
    }

    /// Copies the bytes of slices of which some are of views to `target`, which is as long.
    #[cold]
    pub(super) fn gather_lists(
        &self,
        slices: &[Slice<'_>],
        mut target: &mut [u8],
    ) -> Result<(), PostError> {
        let lists = self.lists(slices)?;
        for part in slices.iter().zip(&lists).flat_map(|(slice, list)| local(slice, list.as_ref()))
        {
            target = part?.read(target);
        }
        Ok(())
    }

    /// Returns the lists of the slices that are of views.
    fn lists(&self, slices: &[Slice<'_>]) -> Result<Vec<Option<Arc<Layout<Range>>>>, PostError> {
        let domain = &self.0.shared.domain;
        let list = |slice: &Slice<'_>| {
            if !slice.is_of_view() {
                return Ok(None);
            }
            domain.lists().of_slice(slice.key).map(Some).ok_or(PostError::KeyExpired)
        };
        slices.iter().map(list).collect()
    }
}

/// Returns the parts of a slice, which may be of a view.
fn local(slice: &Slice<'_>, list: Option<&Arc<Layout<Range>>>) -> Vec<Local> {
    // SAFETY: `slice` borrows its memory, or the view, which borrows its memory, while the
    // operation runs.
    let part = |bytes, range| unsafe { Part::new(bytes, range, None) };
    match list {
        None => {
            let start = (slice.address - slice.memory.address()) as usize;
            vec![part(*slice.memory, (start, slice.length))]
        }
        Some(list) => list
            .pieces(slice.address, slice.length as u64)
            .map(|piece| part(piece.memory.bytes, (piece.offset, piece.length)))
            .collect(),
    }
}
