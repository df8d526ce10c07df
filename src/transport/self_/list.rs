//! Operations on lists of ranges, which views are: they gather and scatter piece by piece.

use std::sync::Arc;

use super::Endpoint;
use super::domain::{Hold, Region, RemoteKey};
use crate::base::atomic::Change;
use crate::base::error::PostError;
use crate::base::memory::{Access, Slice};
use crate::transport::common::parts::{self, copy};
use crate::transport::common::rma;

type Part<'a> = parts::Part<Hold<'a>>;

/// Returns the parts of `length` bytes at `offset` of a list.
fn parts(
    list: &Region,
    offset: u64,
    length: usize,
) -> Result<impl Iterator<Item = Result<Part<'_>, PostError>>, PostError> {
    let layout = list.list().filter(|layout| layout.contains(offset, length as u64));
    let pieces = layout.ok_or(PostError::OutOfRange)?.pieces(offset, length as u64);
    Ok(pieces.map(|piece| {
        let hold = piece.memory.hold().ok_or(PostError::KeyExpired)?;
        // SAFETY: the hold keeps the memory alive.
        unsafe { Part::new(*piece.memory.bytes(), (piece.offset, piece.length), Some(hold)) }
    }))
}

impl Endpoint {
    /// As a put, through the key of a list; `refused` is the error for other keys.
    #[cold]
    pub(super) fn put_to_list(
        &self,
        data: &[u8],
        remote: u64,
        key: &RemoteKey,
        refused: PostError,
    ) -> Result<(), PostError> {
        let list = key.list(self.tag(), Access::REMOTE_WRITE)?.ok_or(refused)?;
        let mut rest = data;
        for part in parts(list, remote, data.len())? {
            rest = part?.write(rest);
        }
        self.0.posting.tally.posted(data.len());
        Ok(())
    }

    /// As a get, through the key of a list; `refused` is the error for other keys.
    #[cold]
    pub(super) fn get_from_list(
        &self,
        target: &mut [u8],
        remote: u64,
        key: &RemoteKey,
        refused: PostError,
    ) -> Result<(), PostError> {
        let list = key.list(self.tag(), Access::REMOTE_READ)?.ok_or(refused)?;
        read(list, remote, target)
    }

    /// As an atomic, through the key of a list; `refused` is the error for other keys.
    #[cold]
    pub(super) fn change_in_list(
        &self,
        change: Change,
        remote: u64,
        key: &RemoteKey,
        refused: PostError,
    ) -> Result<u64, PostError> {
        let list = key.list(self.tag(), Access::REMOTE_ATOMIC)?.ok_or(refused)?;
        let first = parts(list, remote, change.width)?.next().ok_or(PostError::OutOfRange)??;
        first.update(change.width, |old| change.apply(old))
    }

    /// As a put or get of slices of which some are of views, or through the key of a list.
    #[cold]
    pub(super) fn transfer_by_lists<const PUT: bool>(
        &self,
        slices: &[Slice<'_>],
        total: usize,
        remote: u64,
        key: &RemoteKey,
    ) -> Result<(), PostError> {
        let lists = self.lists(slices)?;
        let local =
            slices.iter().zip(&lists).flat_map(|(slice, list)| local(slice, list.as_deref()));
        let need = rma::right(PUT);
        let done = if let Some(list) = key.list(self.tag(), need)? {
            both::<PUT>(local, parts(list, remote, total)?)
        } else {
            let (bytes, offset, hold) = key.resolve(self.tag(), remote, total, need)?;
            // SAFETY: the hold keeps the memory alive.
            let whole = unsafe { Part::new(*bytes, (offset, total), Some(hold)) };
            both::<PUT>(local, std::iter::once(whole))
        };
        done?;
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
        for slice in slices {
            let (place, rest) = target.split_at_mut(slice.length);
            match self.list(slice)? {
                Some(list) => read(&list, slice.address, place)?,
                None => _ = rma::gather(&[*slice], place),
            }
            target = rest;
        }
        Ok(())
    }

    /// Returns the lists of the slices that are of views.
    fn lists(&self, slices: &[Slice<'_>]) -> Result<Vec<Option<Arc<Region>>>, PostError> {
        slices.iter().map(|slice| self.list(slice)).collect()
    }

    fn list(&self, slice: &Slice<'_>) -> Result<Option<Arc<Region>>, PostError> {
        if !slice.is_of_view() {
            return Ok(None);
        }
        self.0.shared.domain.list_of_slice(slice.key).map(Some).ok_or(PostError::KeyExpired)
    }
}

fn read(list: &Region, offset: u64, mut target: &mut [u8]) -> Result<(), PostError> {
    for part in parts(list, offset, target.len())? {
        target = part?.read(target);
    }
    Ok(())
}

/// Returns the parts of a slice.
fn local<'a>(
    slice: &Slice<'a>,
    list: Option<&'a Region>,
) -> Box<dyn Iterator<Item = Result<Part<'a>, PostError>> + 'a> {
    let one = |part| Box::new(std::iter::once(part));
    let Some(list) = list else {
        let (bytes, length) = (*slice.memory, slice.length);
        let offset = (slice.address - bytes.address()) as usize;
        // SAFETY: the slice borrows its memory for as long as the part lives.
        return one(unsafe { Part::new(bytes, (offset, length), None) });
    };
    match parts(list, slice.address, slice.length) {
        Ok(parts) => Box::new(parts),
        Err(error) => one(Err(error)),
    }
}

fn both<'a, const PUT: bool>(
    local: impl Iterator<Item = Result<Part<'a>, PostError>>,
    remote: impl Iterator<Item = Result<Part<'a>, PostError>>,
) -> Result<(), PostError> {
    if PUT { copy(local, remote) } else { copy(remote, local) }
}
