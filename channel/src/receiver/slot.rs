//! A group of buffers: what was announced, and what has arrived.

use core::hint::cold_path;
use core::sync::atomic::{AtomicU64, Ordering};

use super::Received;
use crate::config::{MAX_GROUP, MAX_GROUPS, MAX_RAILS};
use crate::error::Error;
use crate::region::Region;
use crate::ring::{GROUP_BITS, Immediate, REFUSED, WITH_RECORD};

/// A group of buffers.
#[derive(Debug)]
pub(super) struct Slot {
    /// What the immediates of the group have in common.
    pub(super) group: u32,
    /// The immediate of a group that has only one, until one arrives.
    pub(super) whole: u32,
    pub(super) count: u8,
    /// Immediates of the group; 0 until the first arrived.
    pub(super) shares: u8,
    /// Those that have not arrived.
    pub(super) left: u8,
    /// Buffers whose send was too long, as bits; or [`Self::LONGER`].
    pub(super) refused: u16,
    /// Regions in use besides the first.
    pub(super) others: u16,
    /// Lines of the slot in this end's memory that have `keys`.
    pub(super) keyed: u8,
    pub(super) keys: [u64; MAX_RAILS / 2],
    /// The rail of the channel that carries the lines.
    pub(super) place: u8,
    /// Tag and address of a single buffer.
    pub(super) tag: u32,
    pub(super) address: u64,
    /// Lengths of the buffers. Those that a group does not have are without limit.
    pub(super) rooms: [usize; MAX_GROUP],
    pub(super) sizes: [usize; MAX_GROUP],
    /// Keep the memory registered: one for each buffer, or one for all.
    pub(super) regions: [Option<Region>; MAX_GROUP],
}

/// What a peer did wrong with a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    NotAnnounced,
    Contradictory,
    Longer,
    TooMany,
}

impl Wrong {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::NotAnnounced => "a share of a message that was not announced",
            Self::Contradictory => "shares of one message that contradict each other",
            Self::Longer => "a message that is longer than its buffer",
            Self::TooMany => "more shares of a message than it has",
        }
    }
}

const _: () = assert!(size_of::<Slot>() == 256, "an immediate has its offset");

impl Slot {
    /// The group of a free slot: it has bits that no immediate's group has.
    const NO_GROUP: u32 = u32::MAX;
    /// A message is longer than its buffer, which no peer of this protocol does.
    const LONGER: u16 = u16::MAX;

    pub(super) const FREE: Self = Self {
        group: Self::NO_GROUP,
        whole: Self::NO_GROUP,
        count: 0,
        shares: 0,
        left: 0,
        refused: 0,
        others: 0,
        keyed: 0,
        keys: [0; MAX_RAILS / 2],
        place: 0,
        tag: 0,
        address: 0,
        rooms: [0; MAX_GROUP],
        sizes: [0; MAX_GROUP],
        regions: [const { None }; MAX_GROUP],
    };

    /// A group whose lines are written over the rail at `place`.
    #[inline(always)]
    pub(super) fn open<const GROUP: bool>(&mut self, group: u64, count: u8, place: usize) {
        self.group = Immediate::group_bits(group, GROUP);
        self.whole = self.group | 1;
        self.sizes[0] = 0;
        self.count = count;
        (self.shares, self.left, self.refused) = (0, 0, 0);
        self.place = place as u8;
    }

    /// Returns whether all messages were received, and one region has all of their buffers. One
    /// test is enough for both.
    #[inline(always)]
    pub(super) fn is_plain(&self) -> bool {
        u32::from(self.refused) | u32::from(self.others) << 16 == 0
    }

    /// The lengths of a group that is complete.
    #[inline(always)]
    pub(super) fn received(&self) -> Received {
        Received { sizes: self.sizes, count: self.count }
    }

    /// Counts an immediate that came with `bytes` bytes. Returns whether the group is complete.
    ///
    /// # Errors
    /// What the peer did wrong.
    #[inline(always)]
    fn arrive(&mut self, immediate: u32, bytes: u32) -> Result<bool, Wrong> {
        if immediate == self.whole && bytes as usize <= self.rooms[0] {
            // The whole message of a single buffer, or the only record of a group, which is the
            // first that arrives.
            self.whole = Self::NO_GROUP;
            self.sizes[0] = bytes as usize;
            self.shares = 1;
            return Ok(true);
        }
        self.arrive_in_part(immediate, bytes)
    }

    /// As above, for one of several.
    #[inline(always)]
    fn arrive_in_part(&mut self, immediate: u32, bytes: u32) -> Result<bool, Wrong> {
        let shares = immediate as u8 & 0xf;
        self.whole = Self::NO_GROUP;
        if immediate & GROUP_BITS != self.group {
            self.expect_record(immediate)?;
        }
        if self.shares != shares {
            if self.shares != 0 || usize::from(shares) > MAX_RAILS {
                return Err(Wrong::Contradictory);
            }
            (self.shares, self.left) = (shares, shares);
        }
        if self.left == 0 {
            cold_path();
            return self.refuse(shares);
        }
        if self.group & WITH_RECORD == 0 {
            let size = self.sizes[0] + bytes as usize;
            if size > self.rooms[0] {
                return Err(Wrong::Longer);
            }
            self.sizes[0] = size;
        }
        self.left -= 1;
        Ok(self.left == 0)
    }

    /// Notes that the message to a single buffer has a record, by its first immediate.
    ///
    /// # Errors
    /// If the immediate is none of that message.
    #[cold]
    #[inline(never)]
    fn expect_record(&mut self, immediate: u32) -> Result<(), Wrong> {
        let group = self.group | WITH_RECORD;
        if self.count != 1 || self.shares != 0 || immediate & GROUP_BITS != group {
            return Err(Wrong::NotAnnounced);
        }
        self.group = group;
        // The record has nothing for them.
        self.rooms[1..].fill(usize::MAX);
        Ok(())
    }

    /// Counts an immediate without a share, for a send that was too long.
    #[cold]
    #[inline(never)]
    fn refuse(&mut self, shares: u8) -> Result<bool, Wrong> {
        if shares != 0 || self.group & WITH_RECORD != 0 || self.refused != 0 {
            return Err(Wrong::TooMany);
        }
        // No share may follow.
        self.shares = u8::MAX;
        self.refused = 1;
        Ok(true)
    }

    /// Drops the regions of buffers after the first. Returns whether all messages were received;
    /// otherwise, sets the error, unless the peer is wrong.
    #[cold]
    #[inline(never)]
    pub(super) fn release(&mut self, error: &mut Option<Error>) -> bool {
        self.regions[1..].fill(None);
        if self.refused == 0 {
            return true;
        }
        let member = self.refused.trailing_zeros() as u8;
        let room = self.rooms[usize::from(member) % MAX_GROUP] as u64;
        *error = (self.refused != Self::LONGER).then_some(Error::Refused { member, room });
        false
    }

    /// Takes the lengths of a group from its record. Sets `refused` if one is no length.
    #[inline(always)]
    pub(super) fn record(&mut self, record: &[AtomicU64; MAX_GROUP]) {
        for ((size, room), recorded) in self.sizes.iter_mut().zip(&self.rooms).zip(record) {
            *size = u64::from_le(recorded.load(Ordering::Acquire)) as usize;
            if *size > *room {
                cold_path();
                return self.record_with_refusals(record);
            }
        }
    }

    /// As above, if a length is longer than its buffer.
    #[cold]
    #[inline(never)]
    fn record_with_refusals(&mut self, record: &[AtomicU64; MAX_GROUP]) {
        let parts = self.sizes.iter_mut().zip(&self.rooms).zip(record).zip(0..);
        for (((size, room), recorded), member) in parts {
            // The peer may have written another one meanwhile.
            let length = u64::from_le(recorded.load(Ordering::Acquire));
            *size = length as usize;
            if length > *room as u64 {
                if length != REFUSED {
                    self.refused = Self::LONGER;
                    return;
                }
                *size = 0;
                self.refused |= 1_u16 << (member & 7);
            }
        }
    }
}

/// Counts the share with this immediate. Returns the slot of its group if that is complete.
///
/// # Errors
/// What the peer did wrong.
#[inline(always)]
pub(super) fn arrive(
    slots: &mut [Slot; MAX_GROUPS],
    immediate: u32,
    bytes: u32,
) -> Result<Option<usize>, Wrong> {
    let at = (immediate >> 8) as usize % MAX_GROUPS;
    Ok(slots[at].arrive(immediate, bytes)?.then_some(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(rooms: &[usize]) -> Slot {
        let (count, is_group) = (rooms.len() as u8, rooms.len() > 1);
        let group = Immediate::group_bits(5, is_group);
        let mut slot = Slot { group, whole: group | 1, count, ..Slot::FREE };
        slot.rooms = [usize::MAX; MAX_GROUP];
        slot.rooms[..rooms.len()].copy_from_slice(rooms);
        slot
    }

    fn share(shares: u8) -> u32 {
        Immediate { group: 5, is_group: false, shares }.to_bits()
    }

    fn part(shares: u8) -> u32 {
        Immediate { group: 5, is_group: true, shares }.to_bits()
    }

    fn record(lengths: [u64; MAX_GROUP]) -> [AtomicU64; MAX_GROUP] {
        lengths.map(|length| AtomicU64::new(length.to_le()))
    }

    #[test]
    fn shares_complete_a_message() {
        let mut one = slot(&[300]);
        assert_eq!(one.arrive(share(1), 300), Ok(true));
        assert_eq!(one.received().sizes(), [300]);
        let mut three = slot(&[300]);
        assert_eq!(three.arrive(share(3), 44), Ok(false));
        assert_eq!(three.arrive(share(3), 128), Ok(false));
        assert_eq!(three.arrive(share(3), 128), Ok(true));
        assert_eq!(three.received().sizes(), [300]);
    }

    #[test]
    fn records_complete_a_group() {
        for parts in 1..=8 {
            let mut group = slot(&[300, 0, 7]);
            for part_of in (0..parts).rev() {
                assert_eq!(group.arrive(part(parts), 24), Ok(part_of == 0), "{parts}");
            }
            group.arrive(part(parts), 24).unwrap_err();
            group.record(&record([299, 0, 7, u64::MAX, 9, 9, 9, 9]));
            assert_eq!((group.received().sizes(), group.refused), (&[299, 0, 7][..], 0));
            group.record(&record([1, REFUSED, 6, 0, 0, 0, 0, 0]));
            assert_eq!((group.received().sizes(), group.refused), (&[1, 0, 6][..], 2));
            for wrong in [[301, 0, 7], [0, 0, REFUSED - 1]] {
                group.refused = 0;
                let [a, b, c] = wrong;
                group.record(&record([a, b, c, 0, 0, 0, 0, 0]));
                assert_eq!(group.refused, Slot::LONGER);
            }
        }
    }

    /// The length is that of the record, whatever the other lengths in its place.
    #[test]
    fn a_record_completes_a_single_message() {
        for parts in 1..=8 {
            let mut one = slot(&[300]);
            one.rooms[1..].fill(0);
            for part_of in (0..parts).rev() {
                assert_eq!(one.arrive(part(parts), 8), Ok(part_of == 0), "{parts}");
            }
            one.arrive(part(parts), 8).unwrap_err();
            one.record(&record([299, u64::MAX, 7, 1 << 63, 9, 9, 9, 9]));
            assert_eq!((one.received().sizes(), one.refused), (&[299][..], 0));
            one.record(&record([301, 0, 0, 0, 0, 0, 0, 0]));
            assert_eq!(one.refused, Slot::LONGER);
        }
    }

    #[test]
    fn contradictions_are_named() {
        let mut one = slot(&[100]);
        one.arrive(part(0), 1).unwrap_err();
        let mut one = slot(&[100]);
        one.arrive(share(1), 101).unwrap_err();
        let mut mixed = slot(&[100]);
        mixed.arrive(share(2), 50).unwrap();
        mixed.arrive(part(2), 8).unwrap_err();
        let mut mixed = slot(&[100]);
        mixed.arrive(part(2), 8).unwrap();
        mixed.arrive(share(2), 50).unwrap_err();
        let mut two = slot(&[100]);
        two.arrive(share(2), 50).unwrap();
        two.arrive(share(3), 50).unwrap_err();
        two.arrive(share(0), 0).unwrap_err();
        two.arrive(share(2), 50).unwrap();
        two.arrive(share(2), 0).unwrap_err();
        let mut refused = slot(&[100]);
        refused.arrive(share(0), 0).unwrap();
        assert_eq!(refused.refused, 1);
        refused.arrive(share(0), 0).unwrap_err();
        refused.arrive(share(1), 1).unwrap_err();
        let mut group = slot(&[100, 100]);
        group.arrive(share(1), 1).unwrap_err();
        group.arrive(part(0), 0).unwrap_err();
        group.arrive(part(9), 0).unwrap_err();
        let mut free = Slot::FREE;
        free.arrive(share(1), 1).unwrap_err();
        for bits in [8, 14, 0x10, 0x40, 0x0100_0000, u32::MAX] {
            slot(&[100]).arrive(share(1) ^ bits, 1).unwrap_err();
        }
    }
}
