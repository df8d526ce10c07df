//! Which pages of memory are present for the device.

use std::collections::BTreeMap;
use std::ops::Range;

/// The present pages of a registration, as ranges of addresses that do not overlap.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// The end of each range by its start, and whether it may be written to.
    ranges: BTreeMap<usize, (usize, bool)>,
}

impl Presence {
    /// Adds pages. Those that may be written to stay so.
    pub(super) fn add(&mut self, pages: Range<usize>, writable: bool) {
        let missing = self.missing(pages.clone(), writable);
        for gap in missing {
            self.remove(gap.clone());
            self.ranges.insert(gap.start, (gap.end, writable));
        }
        self.merge(pages);
    }

    /// Removes pages.
    pub(super) fn remove(&mut self, pages: Range<usize>) {
        while let Some((start, (end, writable))) = self.last_before(pages.end)
            && end > pages.start
        {
            self.ranges.remove(&start);
            if end > pages.end {
                self.ranges.insert(pages.end, (end, writable));
            }
            if start < pages.start {
                self.ranges.insert(start, (pages.start, writable));
                return;
            }
        }
    }

    /// Returns the parts of `pages` that are not present, or not for this access.
    pub(super) fn missing(&self, pages: Range<usize>, write: bool) -> Vec<Range<usize>> {
        let mut missing: Vec<Range<usize>> = Vec::new();
        let mut at = pages.start;
        let before = self.last_before(pages.start).map(|(start, _)| start);
        for (&start, &(end, writable)) in self.ranges.range(before.unwrap_or(pages.start)..) {
            if start >= pages.end {
                break;
            }
            if write && !writable || end <= at {
                continue;
            }
            if start > at {
                missing.push(at..start);
            }
            at = end;
        }
        if at < pages.end {
            missing.push(at..pages.end);
        }
        missing
    }

    /// Returns the last range that starts before `address`.
    fn last_before(&self, address: usize) -> Option<(usize, (usize, bool))> {
        self.ranges.range(..address).next_back().map(|(&start, &range)| (start, range))
    }

    /// Joins ranges in and around `pages` that touch and allow the same.
    fn merge(&mut self, pages: Range<usize>) {
        let mut at = self.last_before(pages.start).map_or(pages.start, |(start, _)| start);
        while at <= pages.end {
            let mut following = self.ranges.range(at..).map(|(&start, &range)| (start, range));
            let Some((start, (end, writable))) = following.next() else { return };
            match following.next() {
                Some((next, (last, same))) if next == end && same == writable => {
                    self.ranges.remove(&next);
                    self.ranges.insert(start, (last, writable));
                    at = start;
                }
                Some((next, _)) => at = next,
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_split_and_joined() {
        let mut present = Presence::default();
        present.add(10..20, true);
        present.add(30..40, false);
        assert_eq!(present.missing(0..50, false), [0..10, 20..30, 40..50]);
        assert_eq!(present.missing(0..50, true), [0..10, 20..50]);
        assert_eq!(present.missing(12..18, true), []);
        present.add(15..35, false);
        assert_eq!(present.missing(10..40, false), []);
        assert_eq!(present.missing(9..40, true), [9..10, 20..40]);
        present.add(20..40, true);
        assert_eq!(present.ranges.len(), 1);
        present.remove(15..25);
        assert_eq!(present.missing(0..50, true), [0..10, 15..25, 40..50]);
        present.remove(0..usize::MAX);
        assert!(present.ranges.is_empty());
    }

    #[test]
    fn pages_are_those_of_an_array() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..200 {
            let (mut present, mut want) = (Presence::default(), [None::<bool>; 24]);
            for _ in 0..40 {
                let start = random.usize(..24);
                let pages = start..random.usize(start..=24);
                let writable = random.bool();
                if random.bool() {
                    present.add(pages.clone(), writable);
                    for page in &mut want[pages] {
                        *page = Some(writable || *page == Some(true));
                    }
                } else {
                    present.remove(pages.clone());
                    want[pages].fill(None);
                }
                for write in [false, true] {
                    let mut found = [false; 24];
                    for missing in present.missing(0..24, write) {
                        assert!(!missing.is_empty());
                        found[missing].fill(true);
                    }
                    let lacks =
                        |page: &Option<bool>| page.is_none_or(|writable| write && !writable);
                    assert_eq!(found, want.each_ref().map(lacks));
                }
            }
        }
    }
}
