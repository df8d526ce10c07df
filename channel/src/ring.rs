//! The clear-to-send ring: lines in the sender's memory that the receiver writes, one for each
//! buffer.
//!
//! A line is 64 bytes and fills a cache line; its words are little-endian:
//!
//! | bytes | contents |
//! |---|---|
//! | 0 | address of the buffer |
//! | 8 | its length |
//! | 16 | its keys, one of 32 bits per rail, in the order of the receiver's set |
//! | 48 | tag (32 bits), buffers of the group (8 bits), number of this one (8 bits), zeros |
//! | 56 | number of the group, from 1; last, since it makes the line valid |
//!
//! The line of buffer `m` of group `g` is at `(g mod 32) * 8 + m`. The peer can write anything at
//! any time, so a line is loaded word by word and checked before it is used.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use barewire_mlx5::{DataSegment, RemoteAddressSegment};

use crate::config::{MAX_GROUP, MAX_GROUPS, MAX_RAILS};
use crate::region::Region;

/// Bytes of a line.
pub(crate) const LINE: usize = 64;
/// Bytes of the ring.
pub(crate) const RING: usize = MAX_GROUPS * MAX_GROUP * LINE;

const LINE_WORDS: usize = LINE / size_of::<u64>();
const KEYS: usize = 2;
const MEMBER: usize = 6;
const SEQUENCE: usize = 7;

/// Number of the line of a buffer.
#[inline(always)]
fn line_of(group: u64, member: u8) -> usize {
    (group as usize % MAX_GROUPS) * MAX_GROUP + usize::from(member) % MAX_GROUP
}

/// A buffer that the receiver announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// A key per rail of the receiver's set.
    pub keys: [u32; MAX_RAILS],
    /// The tag that a send must have.
    pub tag: u32,
    /// Buffers of the group.
    pub count: u8,
    /// Number of this one.
    pub member: u8,
}

impl Announcement {
    /// The line of this buffer in group `group`, counted from 0.
    #[inline(always)]
    pub fn to_line(&self, group: u64) -> [u8; LINE] {
        let mut line = [0; LINE];
        for (place, word) in line.as_chunks_mut::<8>().0.iter_mut().zip(self.words(group)) {
            *place = word.to_le_bytes();
        }
        line
    }

    /// The words of the line.
    #[inline(always)]
    fn words(&self, group: u64) -> [u64; LINE_WORDS] {
        let keys = &self.keys;
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let member = u32::from(self.count) | u32::from(self.member) << 8;
        [
            self.address,
            self.length,
            pair(keys[0], keys[1]),
            pair(keys[2], keys[3]),
            pair(keys[4], keys[5]),
            pair(keys[6], keys[7]),
            pair(self.tag, member),
            group.wrapping_add(1),
        ]
    }
}

/// Tag, count and number of a line, from its seventh word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The tag that a send must have.
    pub tag: u32,
    /// Buffers of the group, 1 to 8.
    pub count: u8,
}

impl Label {
    /// Checks the word of the line of buffer `member`. Returns `None` if no receiver of this
    /// protocol writes it.
    #[inline(always)]
    pub fn parse(word: u64, member: u8) -> Option<Self> {
        let (count, number) = ((word >> 32) as u8, word >> 40);
        let valid = count.wrapping_sub(1) < MAX_GROUP as u8 && number == u64::from(member);
        (valid && member < count).then_some(Self { tag: word as u32, count })
    }
}

/// Words of the ring.
const WORDS: usize = RING / size_of::<u64>();

/// Lines in registered memory: the ring of a sender, or a receiver's copy of the lines of groups,
/// which the device reads.
#[derive(Debug)]
pub(crate) struct Lines {
    words: NonNull<[AtomicU64; WORDS]>,
    region: Region,
}

// SAFETY: the words belong to the region, which is `Send` and keeps them alive; they are accessed by
// atomics only.
unsafe impl Send for Lines {}

impl Lines {
    /// Returns `None` if the region is not large enough.
    pub(crate) fn new(region: Region) -> Option<Self> {
        if region.len() < RING {
            return None;
        }
        // Regions begin at a page, so the words are aligned.
        let words = region.start().cast();
        words.is_aligned().then_some(Self { words, region })
    }

    /// The first `count` lines of a group, for device `rail`.
    #[inline(always)]
    pub(crate) fn lines(&self, group: u64, count: u8, rail: usize) -> DataSegment {
        let offset = (line_of(group, 0) * LINE) as u64;
        self.region.segment(offset, u64::from(count) * LINE as u64, rail)
    }

    /// Returns whether the line of a buffer is there.
    #[inline(always)]
    pub(crate) fn is_announced(&self, group: u64, member: u8) -> bool {
        self.word(group, member, SEQUENCE) == group.wrapping_add(1)
    }

    /// Which of the 32 groups from `group` on are announced with all of their lines, as bits.
    pub(crate) fn announced(&self, group: u64) -> u32 {
        let is_whole = |group: u64| {
            let count = if self.is_announced(group, 0) { self.label(group, 0) } else { None };
            count.is_some_and(|label| (0..label.count).all(|at| self.is_announced(group, at)))
        };
        (0..MAX_GROUPS as u64)
            .map(|at| u32::from(is_whole(group.wrapping_add(at))) << at)
            .fold(0, |bits, bit| bits | bit)
    }

    /// The label of a line that was announced.
    #[inline(always)]
    pub(crate) fn label(&self, group: u64, member: u8) -> Option<Label> {
        Label::parse(self.word(group, member, MEMBER), member)
    }

    /// Length of an announced buffer.
    #[inline(always)]
    pub(crate) fn length(&self, group: u64, member: u8) -> u64 {
        self.word(group, member, 1)
    }

    /// Address of an announced buffer, and its key for `rail` of the receiver's set.
    #[inline(always)]
    pub(crate) fn remote(&self, group: u64, member: u8, rail: usize) -> RemoteAddressSegment {
        let keys = self.word(group, member, KEYS + rail % MAX_RAILS / 2);
        let key = if rail.is_multiple_of(2) { keys } else { keys >> 32 };
        RemoteAddressSegment::new(self.word(group, member, 0), key as u32)
    }

    /// Stores a line, for a device that reads it after a later doorbell.
    #[inline(always)]
    pub(crate) fn store(&self, group: u64, line: &Announcement) {
        for (at, word) in line.words(group).into_iter().enumerate() {
            self.at(group, line.member, at).store(word.to_le(), Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn word(&self, group: u64, member: u8, at: usize) -> u64 {
        u64::from_le(self.at(group, member, at).load(Ordering::Acquire))
    }

    #[inline(always)]
    fn at(&self, group: u64, member: u8, at: usize) -> &AtomicU64 {
        // SAFETY: `new` has checked that the words lie in the region, which lives as long as
        // `self`, and that they are aligned. All accesses to them are atomic.
        let words = unsafe { self.words.as_ref() };
        &words[(line_of(group, member) * LINE_WORDS + at % LINE_WORDS) % WORDS]
    }
}

/// The ring of the peer, as the receiver addresses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteRing {
    pub(crate) address: u64,
    pub(crate) keys: [u32; MAX_RAILS],
}

impl RemoteRing {
    /// The place of a line for a write over `rail`.
    #[inline(always)]
    pub(crate) fn line(&self, group: u64, member: u8, rail: usize) -> RemoteAddressSegment {
        let address = self.address.wrapping_add((line_of(group, member) * LINE) as u64);
        RemoteAddressSegment::new(address, self.keys[rail % MAX_RAILS])
    }
}

/// The bits of an immediate other than those of the member and the shares.
pub(crate) const GROUP_BITS: u32 = !0x7f;

/// What the immediate of a share says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// The low bits of the number of the group.
    pub group: u16,
    /// Number of the buffer in the group, 0 to 7.
    pub member: u8,
    /// Shares of the message, 1 to 8; 0 if nothing is written because the send is longer than the
    /// buffer.
    pub shares: u8,
}

impl Immediate {
    /// The value on the wire: shares (4 bits), member (3 bits), a zero, group (16 bits).
    #[inline(always)]
    pub fn to_bits(self) -> u32 {
        u32::from(self.shares) | u32::from(self.member) << 4 | u32::from(self.group) << 8
    }

    /// The bits in [`GROUP_BITS`] of all immediates of a group.
    #[inline(always)]
    pub(crate) fn group_bits(group: u64) -> u32 {
        u32::from(group as u16) << 8
    }

    /// Returns `None` if no sender of this protocol writes `bits`.
    #[inline(always)]
    pub fn from_bits(bits: u32) -> Option<Self> {
        let shares = (bits & 0xf) as u8;
        if bits & 0xff00_0080 != 0 || shares > MAX_RAILS as u8 {
            return None;
        }
        Some(Self { group: (bits >> 8) as u16, member: (bits >> 4 & 7) as u8, shares })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_golden_bytes() {
        let line = Announcement {
            address: 0x0102_0304_0506_0708,
            length: 0x1_0000_0001,
            keys: [1, 2, 3, 4, 5, 6, 7, 0xf8f7_f6f5],
            tag: 0xa1a2_a3a4,
            count: 8,
            member: 7,
        }
        .to_line(0xffff_ffff);
        let mut wanted = [0; LINE];
        wanted[..8].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1]);
        (wanted[8], wanted[12]) = (1, 1);
        for key in 1..8 {
            wanted[12 + 4 * key] = key as u8;
        }
        wanted[44..48].copy_from_slice(&[0xf5, 0xf6, 0xf7, 0xf8]);
        wanted[48..54].copy_from_slice(&[0xa4, 0xa3, 0xa2, 0xa1, 8, 7]);
        wanted[60] = 1;
        assert_eq!(line, wanted);
        let word = u64::from_le_bytes(*line[48..].first_chunk().unwrap());
        assert_eq!(Label::parse(word, 7), Some(Label { tag: 0xa1a2_a3a4, count: 8 }));
        assert_eq!(Label::parse(word, 6), None, "another line");
    }

    #[test]
    fn labels_that_no_receiver_writes_are_refused() {
        for (count, member, valid) in [
            (0u8, 0u8, false),
            (1, 0, true),
            (1, 1, false),
            (8, 7, true),
            (8, 8, false),
            (9, 0, false),
        ] {
            let word = 5 | u64::from(count) << 32 | u64::from(member) << 40;
            assert_eq!(Label::parse(word, member).is_some(), valid, "{count} {member}");
            assert_eq!(Label::parse(word | 1 << 48, member), None);
        }
    }

    #[test]
    fn immediates_are_read_back() {
        for shares in 0..=8 {
            for member in 0..8 {
                for group in [0, 1, 0x8000, 0xffff] {
                    let immediate = Immediate { group, member, shares };
                    assert_eq!(Immediate::from_bits(immediate.to_bits()), Some(immediate));
                }
            }
        }
        for bits in [9, 15, 0x80, 0x0100_0000, u32::MAX] {
            assert_eq!(Immediate::from_bits(bits), None);
        }
    }
}
