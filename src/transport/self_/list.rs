//! Operations on lists of ranges, which views are: they gather and scatter piece by piece.

use std::sync::Arc;

use barewire_shared_bytes::SharedBytes;

use super::Endpoint;
use super::domain::{Hold, Region, RemoteKey};
use crate::atomic::Change;
use crate::error::PostError;
use crate::memory::{Access, Slice};
use crate::transport::common::rma;

/// Contiguous bytes, which stay alive as long as the part.
struct Part<'a> {
    bytes: SharedBytes,
    offset: usize,
    length: usize,
    _hold: Option<Hold<'a>>,
}

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
        let (bytes, offset, length) = (*piece.memory.bytes(), piece.offset, piece.length);
        if !bytes.contains(offset, length) {
            return Err(PostError::OutOfRange);
        }
        Ok(Part { bytes, offset, length, _hold: Some(hold) })
    }))
}

/// Copies from each part to the next bytes of the others.
fn copy<'a>(
    mut from: impl Iterator<Item = Result<Part<'a>, PostError>>,
    mut to: impl Iterator<Item = Result<Part<'a>, PostError>>,
) -> Result<(), PostError> {
    let (mut source, mut target) = (None::<Part<'a>>, None::<Part<'a>>);
    loop {
        for (part, parts) in
            [(&mut source, &mut from as &mut dyn Iterator<Item = _>), (&mut target, &mut to)]
        {
            while part.as_ref().is_none_or(|part| part.length == 0) {
                let Some(next) = parts.next() else { return Ok(()) };
                *part = Some(next?);
            }
        }
        let (Some(source), Some(target)) = (&mut source, &mut target) else { return Ok(()) };
        let length = source.length.min(target.length);
        // SAFETY: a part's range was checked, and the part keeps its memory alive: by a hold, or
        // because the slice from which it was made borrows the memory for as long.
        unsafe { target.bytes.copy(target.offset, &source.bytes, source.offset, length) };
        for part in [source, target] {
            part.offset += length;
            part.length -= length;
        }
    }
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
            let part = part?;
            let (piece, behind) = rest.split_at(part.length);
            // SAFETY: the part's range was checked, and its hold keeps the memory alive.
            unsafe { part.bytes.write(part.offset, piece) };
            rest = behind;
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
        // A word in two pieces cannot be changed atomically.
        if first.length < change.width {
            return Err(PostError::Unaligned);
        }
        // SAFETY: the part's hold keeps the memory alive.
        unsafe { first.bytes.update(first.offset, change.width, |old| change.apply(old)) }
            .ok_or(PostError::Unaligned)
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
            let whole = Part { bytes: *bytes, offset, length: total, _hold: Some(hold) };
            both::<PUT>(local, std::iter::once(Ok(whole)))
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
        let part = part?;
        let (piece, behind) = target.split_at_mut(part.length);
        // SAFETY: the part's range was checked, and its hold keeps the memory alive.
        unsafe { part.bytes.read(part.offset, piece) };
        target = behind;
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
        return one(Ok(Part { bytes, offset, length, _hold: None }));
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
