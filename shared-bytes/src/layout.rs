//! Several ranges that are used as if their bytes were contiguous.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// Ranges of memory in a pattern that repeats: in each repetition the bytes of all ranges, one
/// after the other. `R` refers to the memory of a range. Whether a range lies in its memory is for
/// others to check.
#[derive(Clone, Debug)]
pub struct Layout<R> {
    ranges: Box<[LayoutRange<R>]>,
    /// Bytes of a repetition: at least one.
    period: u64,
    repeat: u32,
}

/// A range of a [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutRange<R> {
    /// The memory.
    pub memory: R,
    /// Where the range of the first repetition starts.
    pub offset: usize,
    /// Bytes of each repetition.
    pub bytes: usize,
    /// Bytes from one repetition to the next.
    pub stride: usize,
}

/// Contiguous bytes of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'l, R> {
    /// The memory.
    pub memory: &'l R,
    /// Where the bytes start in it.
    pub offset: usize,
    /// Their number.
    pub length: usize,
}

impl<R> Layout<R> {
    /// Creates a layout of `repeat` repetitions. `None` if it has no bytes, or if offsets overflow.
    pub fn new(ranges: Vec<LayoutRange<R>>, repeat: u32) -> Option<Self> {
        let period =
            ranges.iter().try_fold(0_u64, |sum, range| sum.checked_add(range.bytes as u64))?;
        period.checked_mul(repeat.into()).filter(|length| *length > 0)?;
        let last = repeat as usize - 1;
        for range in &ranges {
            last.checked_mul(range.stride)?.checked_add(range.offset)?.checked_add(range.bytes)?;
        }
        Some(Self { ranges: ranges.into(), period, repeat })
    }

    /// Returns the number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "a layout has at least one byte")]
    pub fn len(&self) -> u64 {
        self.period * u64::from(self.repeat)
    }

    /// Returns the ranges of a repetition.
    pub fn ranges(&self) -> &[LayoutRange<R>] {
        &self.ranges
    }

    /// Returns the number of repetitions.
    pub fn repeat(&self) -> u32 {
        self.repeat
    }

    /// Returns whether `length` bytes at `offset` lie inside.
    pub fn contains(&self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.len())
    }

    /// Returns the pieces of `length` bytes at `offset`, in order; none if they do not lie inside.
    pub fn pieces(&self, offset: u64, length: u64) -> Pieces<'_, R> {
        let left = if self.contains(offset, length) { length } else { 0 };
        // Both fit: the offset is at most the length, if there is anything to return.
        let repetition = (offset / self.period) as usize;
        let mut skip = (offset % self.period) as usize;
        let mut range = 0;
        while let Some(first) = self.ranges.get(range)
            && skip >= first.bytes
        {
            skip -= first.bytes;
            range += 1;
        }
        Pieces { layout: self, repetition, range, skip, left }
    }
}

/// The pieces of a range of a layout: see [`Layout::pieces`].
#[derive(Clone, Debug)]
pub struct Pieces<'l, R> {
    layout: &'l Layout<R>,
    repetition: usize,
    /// The next range of the repetition, and its first bytes, which are done.
    range: usize,
    skip: usize,
    left: u64,
}

impl<'l, R> Iterator for Pieces<'l, R> {
    type Item = Piece<'l, R>;

    fn next(&mut self) -> Option<Piece<'l, R>> {
        while self.left > 0 {
            let Some(range) = self.layout.ranges.get(self.range) else {
                (self.range, self.repetition) = (0, self.repetition + 1);
                continue;
            };
            let offset = range.offset + self.repetition * range.stride + self.skip;
            let rest = range.bytes - self.skip;
            let length = usize::try_from(self.left).map_or(rest, |left| left.min(rest));
            self.left -= length as u64;
            (self.range, self.skip) = (self.range + 1, 0);
            if length > 0 {
                return Some(Piece { memory: &range.memory, offset, length });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    fn range(memory: u8, offset: usize, bytes: usize, stride: usize) -> LayoutRange<u8> {
        LayoutRange { memory, offset, bytes, stride }
    }

    /// Every byte of the layout: its memory and offset.
    fn bytes(layout: &Layout<u8>, offset: u64, length: u64) -> Vec<(u8, usize)> {
        let pieces = layout.pieces(offset, length);
        pieces.flat_map(|p| (0..p.length).map(move |at| (*p.memory, p.offset + at))).collect()
    }

    #[test]
    fn every_part_is_that_of_the_whole() {
        let layout =
            Layout::new(vec![range(1, 4, 3, 40), range(2, 0, 0, 9), range(3, 7, 2, 10)], 5);
        let layout = layout.unwrap();
        assert_eq!(layout.len(), 25);
        let model: Vec<_> = (0..5)
            .flat_map(|n| {
                let first = (0..3).map(move |at| (1, 4 + 40 * n + at));
                first.chain((0..2).map(move |at| (3, 7 + 10 * n + at)))
            })
            .collect();
        for from in 0..=25_usize {
            for to in from..=25 {
                let part = bytes(&layout, from as u64, (to - from) as u64);
                assert_eq!(part, model[from..to], "{from}..{to}");
            }
        }
        for (offset, length) in [(0, 26), (25, 1), (26, 0), (u64::MAX, 2)] {
            assert_eq!(bytes(&layout, offset, length), []);
            assert!(!layout.contains(offset, length));
        }
    }

    #[test]
    fn layouts_without_bytes_or_beyond_all_memory_are_refused() {
        assert!(Layout::<u8>::new(vec![], 1).is_none());
        assert!(Layout::new(vec![range(1, 0, 4, 4)], 0).is_none());
        assert!(Layout::new(vec![range(1, 0, 0, 4)], 3).is_none());
        assert!(Layout::new(vec![range(1, usize::MAX - 3, 4, 1)], 2).is_none());
        assert!(Layout::new(vec![range(1, 0, 4, usize::MAX)], 3).is_none());
        assert!(Layout::new(vec![range(1, usize::MAX - 4, 4, 0)], u32::MAX).is_some());
    }
}
