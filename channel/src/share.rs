//! Cutting a message into one share per rail, and distributing messages that are not cut.

use crate::config::MAX_RAILS;

/// Shares begin at multiples of this, since NCCL's LL128 protocol needs aligned parts of 128 bytes
/// to be written in order.
const UNIT: u64 = 128;

/// Returns the bytes of every share but the last, which may be shorter: the smallest multiple of
/// 128 with which `rails` shares suffice. `rails` is not 0.
pub(crate) fn share_bytes(length: u64, rails: usize) -> u64 {
    length.div_ceil(rails as u64).next_multiple_of(UNIT)
}

/// Cuts long messages into shares that are equal but for the last, without a division.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// Number of shares, less one.
    others: u64,
    /// 2^64 divided by the number of shares, rounded up.
    reciprocal: u64,
    /// The shortest message, and how much longer the longest is.
    least: u64,
    range: u64,
}

impl Cut {
    /// Cuts no message.
    pub(crate) const NONE: Self = Self { others: 0, reciprocal: 0, least: u64::MAX, range: 0 };

    /// For messages over `rails`, at least 2, of at most `share` bytes each.
    pub(crate) fn new(rails: usize, share: u64) -> Self {
        let shares = (rails as u64).max(2);
        // In shorter ones, the last share might be empty.
        let least = shares * (shares - 1) * UNIT + 1;
        let most = share.saturating_mul(shares);
        let Some(range) = most.checked_sub(least) else { return Self::NONE };
        Self { others: shares - 1, reciprocal: u64::MAX / shares + 1, least, range }
    }

    /// Returns the bytes of every share but the last, as [`share_bytes`] does, or `None` for a
    /// message that is too short or too long.
    #[inline(always)]
    pub(crate) fn share_bytes(&self, length: u64) -> Option<u64> {
        if length.wrapping_sub(self.least) > self.range {
            return None;
        }
        let product = u128::from(length.wrapping_add(self.others)) * u128::from(self.reciprocal);
        let part = (product >> 64) as u64;
        Some(part.wrapping_add(UNIT - 1) & !(UNIT - 1))
    }
}

/// Bits of the fractions of a message.
const FRACTION: u32 = 24;

/// How messages are distributed over rails that carry different amounts.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    /// The weights.
    parts: [i64; MAX_RAILS],
    total: i64,
    /// Where the share of each rail ends, as a fraction of the message.
    ends: [u64; MAX_RAILS],
    rails: usize,
    /// How far each rail is behind its part, in messages times `total`.
    credits: [i64; MAX_RAILS],
    /// Longest message that can be cut.
    most: u64,
}

impl Weights {
    /// `of_rails` are the weights of the rails, each at most 2^24; `share` is the longest share. Returns
    /// `None` if all rails carry the same.
    pub(crate) fn new(of_rails: impl Iterator<Item = u32>, share: u64) -> Option<Self> {
        let mut weights = [0; MAX_RAILS];
        let mut rails = 0;
        for (place, weight) in weights.iter_mut().zip(of_rails) {
            *place = i64::from(weight);
            rails += 1;
        }
        let (first, total) = (weights[0], weights.iter().sum::<i64>());
        if weights.iter().take(rails).all(|weight| *weight == first) {
            return None;
        }
        let (mut ends, mut sum, mut largest) = ([0; MAX_RAILS], 0, 0);
        for (end, weight) in ends.iter_mut().zip(&weights).take(rails) {
            let start = (sum << FRACTION) / total as u64;
            sum += *weight as u64;
            *end = (sum << FRACTION) / total as u64;
            largest = largest.max(*end - start);
        }
        // Each end of a share is rounded down to a byte, then up to a unit.
        let most = (share.saturating_sub(2 * UNIT) << FRACTION) / largest.max(1);
        Some(Self { parts: weights, total, ends, rails, credits: [0; MAX_RAILS], most })
    }

    /// Longest message that can be cut: in longer ones, a rail would have to carry too much.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// Where the share of rail `at` ends in a message of `length`. It is empty if it begins there
    /// as well.
    #[inline(always)]
    pub(crate) fn end(&self, at: usize, length: u64) -> u64 {
        let end = (length * self.ends[at % MAX_RAILS]) >> FRACTION;
        (end.wrapping_add(UNIT - 1) & !(UNIT - 1)).min(length)
    }

    /// The rail of the next message that is not cut: each rail gets as many as its weight, evenly
    /// spread.
    pub(crate) fn next(&mut self) -> usize {
        let mut next = 0;
        for (at, weight) in self.parts.iter().enumerate().take(self.rails) {
            self.credits[at] += *weight;
            if self.credits[at] > self.credits[next] {
                next = at;
            }
        }
        self.credits[next] -= self.total;
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weighted_shares_cover_the_message_in_proportion() {
        assert!(Weights::new([7].into_iter(), 1 << 30).is_none());
        assert!(Weights::new([3; 8].into_iter(), 1 << 30).is_none());
        let sets: [&[u32]; 5] = [
            &[400_000, 100_000],
            &[1, 3],
            &[1 << 24, 1],
            &[1, 2, 3, 4, 5, 6, 7, 8],
            &[5, 5, 5, 5, 5, 5, 5, 4],
        ];
        for set in sets {
            let weights = Weights::new(set.iter().copied(), 1 << 30).unwrap();
            let total: u64 = set.iter().map(|weight| u64::from(*weight)).sum();
            let most = weights.most();
            assert!(most > 1 << 29, "{most}");
            for length in (0..4000).chain([1 << 20, most - 1, most]) {
                let mut start = 0;
                for (at, weight) in set.iter().enumerate() {
                    let end = weights.end(at, length);
                    assert!(end >= start && (end.is_multiple_of(UNIT) || end == length));
                    assert!(end - start <= 1 << 30, "{length}");
                    let exact = length * u64::from(*weight) / total;
                    let error = (end - start).abs_diff(exact);
                    assert!(error <= 2 * UNIT + (length >> 20), "{length} {set:?} {error}");
                    start = end;
                }
                assert_eq!(start, length);
            }
        }
    }

    #[test]
    fn weighted_turns_are_in_proportion() {
        let set = [4, 1, 3];
        let mut weights = Weights::new(set.into_iter(), 1 << 30).unwrap();
        let mut turns = [0; 3];
        for turn in 1..=800 {
            turns[weights.next()] += 1;
            for (count, weight) in turns.iter().zip(set) {
                // Never a message ahead or behind by more than one.
                let exact = f64::from(turn) * f64::from(weight) / 8.0;
                assert!((f64::from(*count) - exact).abs() <= 1.0, "{turn}: {turns:?}");
            }
        }
        assert_eq!(turns, [400, 100, 300]);
    }

    #[test]
    fn shares_cover_the_message_in_units() {
        let lengths = (0..=4 * 1024).chain((1 << 30) - 130..=(1 << 30) + 130);
        for length in lengths {
            for rails in 1..=8 {
                let bytes = share_bytes(length, rails);
                assert_eq!(bytes % UNIT, 0);
                assert!(bytes * rails as u64 >= length, "{length} over {rails}");
                assert!(bytes < length.div_ceil(rails as u64) + UNIT);
                let cut = if rails > 1 { Cut::new(rails, 1 << 30) } else { Cut::NONE };
                if let Some(part) = cut.share_bytes(length) {
                    assert_eq!(part, bytes, "{length} over {rails}");
                    assert!(part * (rails as u64 - 1) < length, "the last share is empty");
                } else {
                    assert!(rails == 1 || length <= (rails * (rails - 1)) as u64 * UNIT);
                }
            }
        }
    }

    #[test]
    fn messages_that_are_too_long_are_not_cut() {
        for rails in 2..=8 {
            let (cut, most) = (Cut::new(rails, 1 << 30), (rails as u64) << 30);
            assert_eq!(cut.share_bytes(most), Some(1 << 30));
            assert_eq!(cut.share_bytes(most + 1), None);
            assert_eq!(cut.share_bytes(u64::MAX), None);
            assert_eq!(Cut::NONE.share_bytes(most), None);
        }
    }
}
