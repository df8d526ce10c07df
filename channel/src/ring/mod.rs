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
//!
//! After the lines, the same memory of the receiver has a record for each group, which the sender
//! writes if the group has several buffers, or if the network routes adaptively: the length of each
//! message (64 bits each), or `REFUSED`. The sender keeps a copy at the same place, from which its
//! devices write.
//!
//! Then it has a word for every group modulo 32: the number, from 1, of the last such group that
//! the receiver's program has received. After a rail has failed, the sender reads these words into
//! its memory, to the same offset.
//!
//! Last, the memory of each end has the letter of the peer, and its own, from which its devices
//! write (`mail.rs`).

mod immediate;
mod remote;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use barewire_mlx5::{DataSegment, RemoteAddressSegment};

use crate::config::{MAX_GROUP, MAX_GROUPS, MAX_RAILS};
use crate::mail::Letter;
use crate::region::Region;

pub use immediate::Immediate;
pub(crate) use immediate::{GROUP_BITS, WITH_RECORD};
pub(crate) use remote::RemoteLines;

/// Bytes of a line.
pub(crate) const LINE: usize = 64;
/// Bytes of the lines.
const RING: usize = MAX_GROUPS * MAX_GROUP * LINE;
/// Bytes of the records.
const RECORD_BYTES: usize = MAX_GROUPS * MAX_GROUP * size_of::<u64>();
/// Bytes of the numbers of groups that were received.
const RECEIVED_BYTES: usize = MAX_GROUPS * size_of::<u64>();
/// Bytes of a letter, and where the peer's is.
const LETTER_BYTES: usize = size_of::<Letter>();
const PEER_LETTER: usize = RING + RECORD_BYTES + RECEIVED_BYTES;
/// Bytes of everything.
pub(crate) const MEMORY: usize = PEER_LETTER + 2 * LETTER_BYTES;
/// The length of a message, in a record, that is longer than its buffer and was not written.
pub(crate) const REFUSED: u64 = u64::MAX;

const _: () = assert!(MAX_GROUPS * MAX_GROUP == 256, "the low byte of a number is the line");
const LINE_WORDS: usize = LINE / size_of::<u64>();
const KEYS: usize = 2;
const MEMBER: usize = 6;
const SEQUENCE: usize = 7;

/// Number of the line of a buffer.
#[inline(always)]
fn line_of(group: u64, member: u8) -> usize {
    (group as usize % MAX_GROUPS) * MAX_GROUP + usize::from(member) % MAX_GROUP
}

/// Offset of the record of a group.
#[inline(always)]
fn record_of(group: u64) -> usize {
    RING + line_of(group, 0) * size_of::<u64>()
}

/// The keys as words of a line.
#[inline(always)]
pub(crate) fn key_words(keys: &[u32; MAX_RAILS]) -> [u64; MAX_RAILS / 2] {
    let word = |at: usize| u64::from(keys[2 * at]) | u64::from(keys[2 * at + 1]) << 32;
    [word(0), word(1), word(2), word(3)]
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
        let [a, b, c, d] = key_words(&self.keys);
        let label = Label { tag: self.tag, count: self.count };
        [self.address, self.length, a, b, c, d, label.to_word(self.member), group.wrapping_add(1)]
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

/// The difference between the labels of successive buffers of a group.
pub(crate) const NEXT_MEMBER: u64 = 1 << 40;

impl Label {
    /// The word of the line of buffer `member` with this label.
    #[inline(always)]
    pub(crate) fn to_word(self, member: u8) -> u64 {
        u64::from(self.tag) | u64::from(self.count) << 32 | u64::from(member) << 40
    }

    /// Checks the word of the line of buffer `member`. Returns `None` if no receiver of this
    /// protocol writes it.
    #[inline(always)]
    pub fn parse(word: u64, member: u8) -> Option<Self> {
        let (count, number) = ((word >> 32) as u8, word >> 40);
        let valid = count.wrapping_sub(1) < MAX_GROUP as u8 && number == u64::from(member);
        (valid && member < count).then_some(Self { tag: word as u32, count })
    }
}

/// Words of everything.
const WORDS: usize = MEMORY / size_of::<u64>();
/// The first word of the records.
const RECORDS: usize = RING / size_of::<u64>();
/// The first word of the groups that were received.
const RECEIVED: usize = RECORDS + RECORD_BYTES / size_of::<u64>();

/// Lines and records in registered memory: the ring of a sender and its copies of records, or a
/// receiver's copies of lines and its records. The devices read the copies.
#[derive(Debug)]
pub(crate) struct Lines {
    words: NonNull<[AtomicU64; WORDS]>,
    region: Region,
}

// SAFETY: the words belong to the region, which is `Send` and keeps them alive; they are accessed
// by atomics only.
unsafe impl Send for Lines {}

impl Lines {
    /// Returns `None` if the region is not large enough.
    pub(crate) fn new(region: Region) -> Option<Self> {
        if region.len() < MEMORY {
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

    /// The line of a buffer.
    #[inline(always)]
    pub(crate) fn line(&self, group: u64, member: u8) -> Line<'_> {
        self.line_of_buffer(group << 3 | u64::from(member & 7))
    }

    /// The line of the buffer with this number among all: eight for each group.
    #[inline(always)]
    pub(crate) fn line_of_buffer(&self, buffer: u64) -> Line<'_> {
        Line(&self.words().as_chunks().0[usize::from(buffer as u8)])
    }

    /// Which of the 32 groups from `group` on are announced with all of their lines, as bits.
    pub(crate) fn announced(&self, group: u64) -> u32 {
        let is_announced = |group, member| self.line(group, member).is_announced(group);
        let is_whole = |group: u64| {
            let count = is_announced(group, 0).then(|| self.line(group, 0).label(0)).flatten();
            count.is_some_and(|label| (0..label.count).all(|at| is_announced(group, at)))
        };
        (0..MAX_GROUPS as u64)
            .map(|at| u32::from(is_whole(group.wrapping_add(at))) << at)
            .fold(0, |bits, bit| bits | bit)
    }

    /// The lines of a group.
    #[inline(always)]
    pub(crate) fn group(&self, group: u64) -> impl Iterator<Item = Line<'_>> {
        const WHOLE: usize = MAX_GROUP * LINE_WORDS;
        let lines = &self.words().as_chunks::<WHOLE>().0[group as usize % MAX_GROUPS];
        lines.as_chunks().0.iter().map(Line)
    }

    /// The record of a group of `count` buffers, for device `rail`.
    #[inline(always)]
    pub(crate) fn record(&self, group: u64, count: u8, rail: usize) -> DataSegment {
        let length = u64::from(count) * size_of::<u64>() as u64;
        self.region.segment(record_of(group) as u64, length, rail)
    }

    /// The key of the memory for device `rail`.
    pub(crate) fn key(&self, rail: usize) -> u32 {
        self.region.key(rail)
    }

    /// The lengths in the record of the group with this number modulo 32, which the peer may write
    /// at any time.
    #[inline(always)]
    pub(crate) fn record_words(&self, group: usize) -> &[AtomicU64; MAX_GROUP] {
        &self.words()[RECORDS..].as_chunks().0[group % MAX_GROUPS]
    }

    /// Stores the length of the message to a buffer in the record of its group, for a device that
    /// reads it after a later doorbell.
    #[inline(always)]
    pub(crate) fn store_size(&self, buffer: u64, size: u64) {
        let word = &self.words()[RECORDS + usize::from(buffer as u8)];
        word.store(size.to_le(), Ordering::Relaxed);
    }

    /// Notes that the program has received a group, for a peer that reads it. `at` is its number
    /// modulo 32.
    #[inline(always)]
    pub(crate) fn store_received(&self, at: usize, group: u64) {
        let word = &self.words()[RECEIVED + at % MAX_GROUPS];
        word.store(group.wrapping_add(1).to_le(), Ordering::Release);
    }

    /// Returns whether the peer's program had received a group when the numbers were read.
    pub(crate) fn is_received(&self, group: u64) -> bool {
        let word = &self.words()[RECEIVED + group as usize % MAX_GROUPS];
        let last = u64::from_le(word.load(Ordering::Acquire));
        last.wrapping_sub(group.wrapping_add(1)) < 1 << 63 && last != 0
    }

    /// The place for the numbers of groups that were received, for device `rail`.
    pub(crate) fn received(&self, rail: usize) -> DataSegment {
        self.region.segment((RING + RECORD_BYTES) as u64, RECEIVED_BYTES as u64, rail)
    }

    /// The first words of the letter of the peer, which may be writing it.
    pub(crate) fn peer_letter<const N: usize>(&self) -> [u64; N] {
        let mut letter = [0; N];
        let words = self.words().get(PEER_LETTER / size_of::<u64>()..).unwrap_or_default();
        for (to, word) in letter.iter_mut().zip(words) {
            *to = u64::from_le(word.load(Ordering::Acquire));
        }
        letter
    }

    /// Stores the letter of this end, for a device that reads it after a later doorbell.
    pub(crate) fn store_letter(&self, letter: &Letter) {
        let start = (PEER_LETTER + LETTER_BYTES) / size_of::<u64>();
        for (word, from) in self.words().get(start..).unwrap_or_default().iter().zip(letter) {
            word.store(from.to_le(), Ordering::Relaxed);
        }
    }

    /// The letter of this end, for device `rail`.
    pub(crate) fn letter(&self, rail: usize) -> DataSegment {
        let start = (PEER_LETTER + LETTER_BYTES) as u64;
        self.region.segment(start, LETTER_BYTES as u64, rail)
    }

    #[inline(always)]
    fn words(&self) -> &[AtomicU64; WORDS] {
        // SAFETY: `new` has checked that the words lie in the region, which lives as long as
        // `self`, and that they are aligned. All accesses to them are atomic.
        unsafe { self.words.as_ref() }
    }
}

/// A line in the ring, which the peer may write at any time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'l>(&'l [AtomicU64; LINE_WORDS]);

impl Line<'_> {
    /// Stores the line of a buffer with this address, length and word of the label, besides the
    /// keys, for a device that reads it after a later doorbell.
    #[inline(always)]
    pub(crate) fn store(self, group: u64, (address, length): (u64, u64), label: u64) {
        let [first, second, _, _, _, _, seventh, last] = self.0;
        let sequence = group.wrapping_add(1);
        let words = [(first, address), (second, length), (seventh, label), (last, sequence)];
        for (at, word) in words {
            at.store(word.to_le(), Ordering::Relaxed);
        }
    }

    /// Stores the keys of a region.
    #[inline(always)]
    pub(crate) fn store_keys(self, keys: &[u64; MAX_RAILS / 2]) {
        let [_, _, first, second, third, fourth, _, _] = self.0;
        // Not a loop over pairs, which the compiler does not unroll in a cold function.
        first.store(keys[0].to_le(), Ordering::Relaxed);
        second.store(keys[1].to_le(), Ordering::Relaxed);
        third.store(keys[2].to_le(), Ordering::Relaxed);
        fourth.store(keys[3].to_le(), Ordering::Relaxed);
    }

    /// Returns whether it is of this group.
    #[inline(always)]
    pub(crate) fn is_announced(self, group: u64) -> bool {
        u64::from_le(self.0[SEQUENCE].load(Ordering::Acquire)) == group.wrapping_add(1)
    }

    /// Returns whether the line has the label with this word.
    #[inline(always)]
    pub(crate) fn has_label(self, word: u64) -> bool {
        self.word(MEMBER) == word
    }

    /// The label, if the line is announced.
    #[inline(always)]
    pub(crate) fn label(self, member: u8) -> Option<Label> {
        Label::parse(self.word(MEMBER), member)
    }

    /// Length of the buffer.
    #[inline(always)]
    pub(crate) fn length(self) -> u64 {
        self.word(1)
    }

    /// Address of the byte at `start` of the buffer, and its key for `rail` of the receiver's set.
    #[inline(always)]
    pub(crate) fn remote(self, start: u64, rail: usize) -> RemoteAddressSegment {
        let keys = self.word(KEYS + rail % MAX_RAILS / 2);
        let key = if rail.is_multiple_of(2) { keys } else { keys >> 32 };
        RemoteAddressSegment::new(self.word(0).wrapping_add(start), key as u32)
    }

    #[inline(always)]
    fn word(self, at: usize) -> u64 {
        u64::from_le(self.0[at % LINE_WORDS].load(Ordering::Relaxed))
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
}
