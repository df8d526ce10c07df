//! Indirect memory keys: lists of ranges of other keys.

use barewire_layouts::command::klm::Klm;
use zerocopy::FromBytes;

/// Where the bytes of a memory key are.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    /// Nowhere yet: the key waits to be given translations.
    Nothing,
    /// In umem `id`, from `offset` on.
    Umem {
        /// The umem, which the key holds.
        id: u32,
        /// Where the key's first byte is.
        offset: u64,
    },
    /// In ranges of other keys.
    Ranges(Ranges),
}

/// A list of ranges.
#[derive(Clone, Debug)]
pub(crate) struct Ranges {
    entries: Box<[Klm]>,
    /// Where each range ends, counted from the first one's start; empty if all have one size.
    ends: Box<[u64]>,
    /// log2 of that size.
    log_size: u8,
}

/// Part of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) key: u32,
    pub(crate) address: u64,
    pub(crate) length: u64,
}

impl Ranges {
    /// Reads a list of KLMs; what is left over at the end is no entry.
    pub(crate) fn sized(bytes: &[u8]) -> Self {
        let entries = Self::entries(bytes);
        let mut end = 0;
        let ends = entries.iter().map(|entry| {
            end += u64::from(entry.byte_count.get());
            end
        });
        Self { ends: ends.collect(), entries, log_size: 0 }
    }

    /// Reads a list of KSMs of `1 << log_size` bytes each; `log_size` is below 64.
    pub(crate) fn equal(bytes: &[u8], log_size: u8) -> Self {
        Self { entries: Self::entries(bytes), ends: Box::default(), log_size }
    }

    fn entries(bytes: &[u8]) -> Box<[Klm]> {
        bytes.chunks_exact(size_of::<Klm>()).filter_map(|entry| Klm::read_from_bytes(entry).ok()).collect()
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// log2 of the ranges' size, if they have one.
    pub(crate) fn log_size(&self) -> Option<u8> {
        self.ends.is_empty().then_some(self.log_size)
    }

    /// Bytes of all ranges.
    pub(crate) fn bytes(&self) -> u64 {
        let equal = || (self.entries.len() as u64).saturating_mul(1 << self.log_size);
        self.ends.last().copied().unwrap_or_else(equal)
    }

    /// The longest part of one range that starts at byte `offset` of the list; `None` behind the end.
    pub(crate) fn part(&self, offset: u64, most: u64) -> Option<Part> {
        let (index, start, end) = if self.ends.is_empty() {
            let index = offset >> self.log_size;
            let start = index << self.log_size;
            (usize::try_from(index).ok()?, start, start.saturating_add(1 << self.log_size))
        } else {
            // The first range that ends behind the offset; empty ones end before.
            let index = self.ends.partition_point(|&end| end <= offset);
            let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
            (index, start, *self.ends.get(index)?)
        };
        let entry = self.entries.get(index)?;
        Some(Part {
            key: entry.key.get(),
            address: entry.address.get().wrapping_add(offset - start),
            length: most.min(end - offset),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn ranges_follow_each_other() {
        let list = [Klm::new(4, 1, 0x100), Klm::new(0, 2, 0), Klm::new(8, 3, 0x200)];
        let ranges = Ranges::sized(list.as_bytes());
        assert_eq!((ranges.len(), ranges.bytes(), ranges.log_size()), (3, 12, None));
        assert_eq!(ranges.part(1, 100), Some(Part { key: 1, address: 0x101, length: 3 }));
        assert_eq!(ranges.part(4, 2), Some(Part { key: 3, address: 0x200, length: 2 }));
        assert_eq!((ranges.part(12, 1), ranges.part(u64::MAX, 1)), (None, None));
    }

    #[test]
    fn equal_ranges_are_found_by_number() {
        let list = [Klm::new(0, 1, 0x100), Klm::new(0, 3, 0x200)];
        let ranges = Ranges::equal(list.as_bytes(), 4);
        assert_eq!((ranges.len(), ranges.bytes(), ranges.log_size()), (2, 32, Some(4)));
        assert_eq!(ranges.part(17, 100), Some(Part { key: 3, address: 0x201, length: 15 }));
        assert_eq!((ranges.part(32, 1), ranges.part(u64::MAX, 1)), (None, None));
        assert_eq!(Ranges::equal(&[], 63).part(0, 1), None);
        assert_eq!(Ranges::sized(&[]).part(0, 1), None);
    }
}
