//! Copies between lists of memory that is not contiguous.

use barewire_shared_bytes::SharedBytes;

use crate::base::error::PostError;

/// Contiguous bytes, which stay alive as long as the part.
pub(crate) struct Part<H> {
    bytes: SharedBytes,
    offset: usize,
    length: usize,
    _hold: Option<H>,
}

impl<H> Part<H> {
    /// Returns `length` bytes at `offset`, if they lie inside.
    ///
    /// # Safety
    /// The bytes stay valid while the part lives: `hold` keeps them, or its lifetime is that of a
    /// borrow of them.
    pub(crate) unsafe fn new(
        bytes: SharedBytes,
        (offset, length): (usize, usize),
        hold: Option<H>,
    ) -> Result<Self, PostError> {
        if !bytes.contains(offset, length) {
            return Err(PostError::OutOfRange);
        }
        Ok(Self { bytes, offset, length, _hold: hold })
    }

    /// Copies the front of `source` to the part, and returns the rest.
    pub(crate) fn write<'s>(&self, source: &'s [u8]) -> &'s [u8] {
        let (piece, rest) = source.split_at(self.length.min(source.len()));
        // SAFETY: `new` has checked the range, and the part keeps its memory alive.
        unsafe { self.bytes.write(self.offset, piece) };
        rest
    }

    /// Copies the part to the front of `target`, and returns the rest.
    pub(crate) fn read<'t>(&self, target: &'t mut [u8]) -> &'t mut [u8] {
        let length = self.length.min(target.len());
        let (piece, rest) = target.split_at_mut(length);
        // SAFETY: as in `write`.
        unsafe { self.bytes.read(self.offset, piece) };
        rest
    }

    /// Replaces the number of `width` bytes at the start, and returns the old one.
    ///
    /// # Errors
    /// [`PostError::Unaligned`], also if the number is in two parts: it cannot be changed
    /// atomically.
    pub(crate) fn update(&self, width: usize, next: impl Fn(u64) -> u64) -> Result<u64, PostError> {
        if self.length < width {
            return Err(PostError::Unaligned);
        }
        // SAFETY: as in `write`. `next` only computes.
        unsafe { self.bytes.update(self.offset, width, next) }.ok_or(PostError::Unaligned)
    }
}

/// Copies from each part to the next bytes of the others.
pub(crate) fn copy<A, B>(
    mut from: impl Iterator<Item = Result<Part<A>, PostError>>,
    mut to: impl Iterator<Item = Result<Part<B>, PostError>>,
) -> Result<(), PostError> {
    let (mut source, mut target) = (None, None);
    while refill(&mut source, &mut from)? && refill(&mut target, &mut to)? {
        let (Some(source), Some(target)) = (&mut source, &mut target) else { return Ok(()) };
        let length = source.length.min(target.length);
        // SAFETY: `new` has checked both ranges, and the parts keep their memory alive.
        unsafe { target.bytes.copy(target.offset, &source.bytes, source.offset, length) };
        source.advance(length);
        target.advance(length);
    }
    Ok(())
}

impl<H> Part<H> {
    fn advance(&mut self, length: usize) {
        self.offset += length;
        self.length -= length;
    }
}

/// Takes the next part if nothing is left of the current one. Returns false at the end.
fn refill<H>(
    part: &mut Option<Part<H>>,
    parts: &mut impl Iterator<Item = Result<Part<H>, PostError>>,
) -> Result<bool, PostError> {
    while part.as_ref().is_none_or(|part| part.length == 0) {
        let Some(next) = parts.next() else { return Ok(false) };
        *part = Some(next?);
    }
    Ok(true)
}
