//! The lines, records and numbers of the peer, as this end addresses them.

use barewire_mlx5::RemoteAddressSegment;

use super::{LINE, PEER_LETTER, RECORD_BYTES, RING, line_of, record_of};
use crate::config::MAX_RAILS;

/// The lines or the records of the peer, as this end addresses them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteLines {
    pub(crate) address: u64,
    /// By place of the rail.
    pub(crate) keys: [u32; MAX_RAILS],
}

impl RemoteLines {
    /// The place of a line for a write over the rail at `place`.
    #[inline(always)]
    pub(crate) fn line(&self, group: u64, member: u8, place: usize) -> RemoteAddressSegment {
        self.at(line_of(group, member) * LINE, place)
    }

    /// The place of the record of a group for a write over the rail at `place`.
    #[inline(always)]
    pub(crate) fn record(&self, group: u64, place: usize) -> RemoteAddressSegment {
        self.at(record_of(group), place)
    }

    /// The place of the numbers of groups that the peer has received, for a read over the rail at
    /// `place`.
    pub(crate) fn received(&self, place: usize) -> RemoteAddressSegment {
        self.at(RING + RECORD_BYTES, place)
    }

    /// The place for the letter of this end, for a write over the rail at `place`.
    pub(crate) fn letter(&self, place: usize) -> RemoteAddressSegment {
        self.at(PEER_LETTER, place)
    }

    #[inline(always)]
    fn at(&self, offset: usize, place: usize) -> RemoteAddressSegment {
        let address = self.address.wrapping_add(offset as u64);
        RemoteAddressSegment::new(address, self.keys[place % MAX_RAILS])
    }
}
