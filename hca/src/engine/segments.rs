//! Reader of the segments of a WQE.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::report::{Finding, ReservedBits};

/// A reader of consecutive segments.
pub(super) struct Segments<'a> {
    rest: &'a [u8],
    reserved: ReservedBits,
}

impl<'a> Segments<'a> {
    /// Creates a reader of the segments in `bytes`.
    pub(super) fn new(bytes: &'a [u8], reserved: ReservedBits) -> Self {
        Self { rest: bytes, reserved }
    }

    /// Returns what is done about reserved bits.
    pub(super) fn reserved(&self) -> ReservedBits {
        self.reserved
    }

    /// Returns the number of bytes left.
    pub(super) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Returns the next segment without consuming it.
    pub(super) fn peek<T: FromBytes + KnownLayout + Immutable + Unaligned>(&self) -> Option<T> {
        T::read_from_prefix(self.rest).ok().map(|(segment, _)| segment)
    }

    /// Returns the next segment of a WQE of `ds` units, or a finding that says what was `wanted`.
    pub(super) fn next<T: FromBytes + KnownLayout + Immutable + Unaligned>(
        &mut self,
        ds: u32,
        wanted: &'static str,
    ) -> Result<T, Finding> {
        let (segment, rest) =
            T::read_from_prefix(self.rest).map_err(|_| Finding::Ds { got: ds, wanted })?;
        self.rest = rest;
        Ok(segment)
    }

    /// Returns the next `length` bytes, or as many as there are.
    pub(super) fn take(&mut self, length: usize) -> &'a [u8] {
        let (bytes, rest) = self.rest.split_at(length.min(self.rest.len()));
        self.rest = rest;
        bytes
    }
}
