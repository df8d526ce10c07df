//! Indirect memory keys: lists of ranges of other keys.

use barewire_layouts::command::klm::Klm;
use barewire_layouts::wqe::{REPEAT_BLOCK, RepeatBlock, RepeatEntry};
use zerocopy::{FromBytes, transmute};

/// Units in which lists of WQEs come.
const ROUNDING: usize = 4;

/// What a memory key maps to.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    /// Nothing: the key has no translations yet.
    Nothing,
    /// Bytes of umem `id`, from `offset` on.
    Umem {
        /// The umem, which the key keeps registered.
        id: u32,
        /// Offset of the key's first byte.
        offset: u64,
    },
    /// Ranges of other keys.
    Ranges(Ranges),
}

/// A list of ranges.
#[derive(Clone, Debug)]
pub(crate) struct Ranges {
    /// The entries in their original form.
    entries: Vec<Klm>,
    /// The end of each range or strided block, counted from the start of the first, and its entry;
    /// empty if all have one size.
    ends: Vec<(u64, u32)>,
    /// log2 of that size.
    log_size: Option<u8>,
    /// Maximum number of entries.
    capacity: usize,
}

/// Part of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) key: u32,
    pub(crate) address: u64,
    pub(crate) length: u64,
}

impl Ranges {
    /// Reads a list of KLMs and strided blocks; an incomplete entry at the end is ignored. `None`
    /// if a block is incomplete, or the total length exceeds 64 bits.
    pub(crate) fn sized(bytes: &[u8], capacity: usize) -> Option<Self> {
        let entries = Self::entries(bytes);
        Some(Self {
            ends: ends(&entries)?,
            capacity: capacity.max(entries.len()),
            entries,
            log_size: None,
        })
    }

    /// Reads a list of KSMs of `1 << log_size` bytes each; `log_size` is below 64.
    pub(crate) fn equal(bytes: &[u8], log_size: u8, capacity: usize) -> Self {
        let entries = Self::entries(bytes);
        let capacity = capacity.max(entries.len());
        Self { entries, ends: Vec::new(), log_size: Some(log_size), capacity }
    }

    /// Returns this list with `bytes` from entry `at` on. `None` if there is no room, or the result
    /// is not a list.
    pub(crate) fn replaced(&self, at: usize, bytes: &[u8]) -> Option<Self> {
        let new = Self::entries(bytes);
        let end = at.checked_add(new.len()).filter(|&end| end <= self.room())?;
        let mut entries = self.entries.clone();
        entries.resize(entries.len().max(end), Klm::default());
        entries[at..end].copy_from_slice(&new);
        let ends = if self.log_size.is_some() { Vec::new() } else { ends(&entries)? };
        Some(Self { entries, ends, ..*self })
    }

    fn entries(bytes: &[u8]) -> Vec<Klm> {
        bytes
            .chunks_exact(size_of::<Klm>())
            .filter_map(|entry| Klm::read_from_bytes(entry).ok())
            .collect()
    }

    /// Returns the entries that the key was created for.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the capacity for lists of WQEs, which come in units of 64 bytes.
    pub(crate) fn room(&self) -> usize {
        self.capacity.next_multiple_of(ROUNDING)
    }

    /// Returns log2 of the ranges' size, if they have one size.
    pub(crate) fn log_size(&self) -> Option<u8> {
        self.log_size
    }

    /// Returns the bytes of all ranges.
    pub(crate) fn bytes(&self) -> u64 {
        match self.log_size {
            Some(log_size) => (self.entries.len() as u64).saturating_mul(1 << log_size),
            None => self.ends.last().map_or(0, |&(end, _)| end),
        }
    }

    /// Returns the longest part of one range from byte `offset` of the list on; `None` beyond the
    /// end.
    pub(crate) fn part(&self, offset: u64, most: u64) -> Option<Part> {
        if let Some(log_size) = self.log_size {
            let index = offset >> log_size;
            let within = offset - (index << log_size);
            let entry = self.entries.get(usize::try_from(index).ok()?)?;
            return Some(range(entry, within, (1 << log_size) - within, most));
        }
        // The first range that ends beyond the offset; empty ranges end before.
        let index = self.ends.partition_point(|&(end, _)| end <= offset);
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before].0);
        let &(end, at) = self.ends.get(index)?;
        let (entry, behind) = self.entries.get(at as usize..)?.split_first()?;
        if entry.key.get() == REPEAT_BLOCK {
            return strided(transmute!(*entry), behind, offset - start, most);
        }
        Some(range(entry, offset - start, end - offset, most))
    }
}

/// Returns the part of `entry` from `within` on, at most `left` and `most` bytes.
fn range(entry: &Klm, within: u64, left: u64, most: u64) -> Part {
    Part {
        key: entry.key.get(),
        address: entry.address.get().wrapping_add(within),
        length: most.min(left),
    }
}

/// Returns the part at `offset` of a strided block that starts with the first of `entries`.
fn strided(block: RepeatBlock, entries: &[Klm], offset: u64, most: u64) -> Option<Part> {
    let bytes = u64::from(block.byte_count.get());
    let (row, mut within) = (offset.checked_div(bytes)?, offset.checked_rem(bytes)?);
    for entry in entries.iter().take(block.entries.get().into()) {
        let entry: RepeatEntry = transmute!(*entry);
        let length = u64::from(entry.byte_count.get());
        if let Some(left) = length.checked_sub(within).filter(|&left| left > 0) {
            let skip = row.wrapping_mul(entry.stride.get().into()).wrapping_add(within);
            let address = entry.address.get().wrapping_add(skip);
            return Some(Part { key: entry.key.get(), address, length: most.min(left) });
        }
        within -= length;
    }
    None
}

/// Returns the ends of the ranges and blocks of a list.
fn ends(entries: &[Klm]) -> Option<Vec<(u64, u32)>> {
    let (mut ends, mut end, mut at) = (Vec::new(), 0_u64, 0);
    while let Some((entry, behind)) = entries.get(at..)?.split_first() {
        let number = at as u32;
        at += 1;
        let bytes = if entry.key.get() == REPEAT_BLOCK {
            let block: RepeatBlock = transmute!(*entry);
            let repeated = behind.get(..block.entries.get().into())?;
            at += repeated.len();
            let row: u64 = repeated
                .iter()
                .map(|&entry| {
                    let entry: RepeatEntry = transmute!(entry);
                    u64::from(entry.byte_count.get())
                })
                .sum();
            if row != u64::from(block.byte_count.get()) {
                return None;
            }
            row.checked_mul(block.repeat_count.get().into())?
        } else {
            entry.byte_count.get().into()
        };
        end = end.checked_add(bytes)?;
        ends.push((end, number));
    }
    Some(ends)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn sized(list: &[Klm]) -> Ranges {
        Ranges::sized(list.as_bytes(), 0).unwrap()
    }

    #[test]
    fn ranges_follow_each_other() {
        let ranges = sized(&[Klm::new(4, 1, 0x100), Klm::new(0, 2, 0), Klm::new(8, 3, 0x200)]);
        assert_eq!((ranges.capacity(), ranges.bytes(), ranges.log_size()), (3, 12, None));
        assert_eq!(ranges.part(1, 100), Some(Part { key: 1, address: 0x101, length: 3 }));
        assert_eq!(ranges.part(4, 2), Some(Part { key: 3, address: 0x200, length: 2 }));
        assert_eq!((ranges.part(12, 1), ranges.part(u64::MAX, 1)), (None, None));
    }

    #[test]
    fn equal_ranges_are_found_by_number() {
        let list = [Klm::new(0, 1, 0x100), Klm::new(0, 3, 0x200)];
        let ranges = Ranges::equal(list.as_bytes(), 4, 0);
        assert_eq!((ranges.capacity(), ranges.bytes(), ranges.log_size()), (2, 32, Some(4)));
        assert_eq!(ranges.part(17, 100), Some(Part { key: 3, address: 0x201, length: 15 }));
        assert_eq!((ranges.part(32, 1), ranges.part(u64::MAX, 1)), (None, None));
        assert_eq!(Ranges::equal(&[], 63, 0).part(0, 1), None);
        assert_eq!(sized(&[]).part(0, 1), None);
    }

    /// A block of `entries` (stride, bytes, key, address), `repeat_count` times.
    fn block(repeat_count: u32, entries: &[(u16, u16, u32, u64)]) -> Vec<Klm> {
        let head = RepeatBlock {
            byte_count: entries.iter().map(|entry| u32::from(entry.1)).sum::<u32>().into(),
            operation: REPEAT_BLOCK.into(),
            repeat_count: repeat_count.into(),
            entries: (entries.len() as u16).into(),
            ..RepeatBlock::default()
        };
        let entries = entries.iter().map(|&(stride, bytes, key, address)| {
            let entry = RepeatEntry {
                stride: stride.into(),
                byte_count: bytes.into(),
                key: key.into(),
                address: address.into(),
            };
            transmute!(entry)
        });
        std::iter::once(transmute!(head)).chain(entries).collect()
    }

    #[test]
    fn a_block_is_taken_row_by_row() {
        let mut list = vec![Klm::new(10, 9, 0)];
        list.extend(block(3, &[(100, 4, 1, 0x1000), (50, 0, 7, 0), (20, 6, 2, 0x2000)]));
        list.push(Klm::new(5, 8, 0x80));
        let ranges = sized(&list);
        assert_eq!(ranges.bytes(), 10 + 3 * 10 + 5);
        let part =
            |offset| ranges.part(offset, 100).map(|part| (part.key, part.address, part.length));
        assert_eq!(part(9), Some((9, 9, 1)));
        assert_eq!(part(10), Some((1, 0x1000, 4)));
        assert_eq!(part(14), Some((2, 0x2000, 6)));
        assert_eq!(part(21), Some((1, 0x1000 + 101, 3)));
        assert_eq!(part(39), Some((2, 0x2000 + 45, 1)));
        assert_eq!(part(40), Some((8, 0x80, 5)));
        assert_eq!(part(45), None);
    }

    #[test]
    fn blocks_that_are_not_whole_are_no_list() {
        let whole = block(u32::MAX, &[(1, u16::MAX, 1, 0)]);
        assert!(Ranges::sized(whole.as_bytes(), 0).is_some());
        assert!(Ranges::sized(whole[..1].as_bytes(), 0).is_none());
        let mut wrong = whole.clone();
        wrong[0].byte_count = 1.into();
        assert!(Ranges::sized(wrong.as_bytes(), 0).is_none());
        // A block of no bytes, whatever its repeat count.
        assert_eq!(sized(&block(u32::MAX, &[])).part(0, 1), None);
    }

    #[test]
    fn a_list_is_changed_in_part_and_within_its_room() {
        let ranges = Ranges::sized([Klm::new(4, 1, 0), Klm::new(4, 2, 0)].as_bytes(), 4).unwrap();
        let changed =
            ranges.replaced(1, [Klm::new(8, 3, 0), Klm::new(2, 4, 0)].as_bytes()).unwrap();
        assert_eq!((changed.bytes(), changed.capacity()), (14, 4));
        assert_eq!(changed.part(4, 100), Some(Part { key: 3, address: 0, length: 8 }));
        assert!(ranges.replaced(3, [Klm::default(); 2].as_bytes()).is_none());
        let one = sized(&[Klm::new(1, 1, 0)]);
        assert!(one.replaced(0, [Klm::default(); 4].as_bytes()).is_some());
        assert!(one.replaced(1, [Klm::default(); 4].as_bytes()).is_none());
        assert!(ranges.replaced(usize::MAX, [Klm::default(); 2].as_bytes()).is_none());
    }
}
