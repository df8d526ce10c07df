//! Medians and ratios of medians, with confidence intervals. `cargo xtask compare` compiles this file,
//! too.

/// Samples that are drawn for an interval.
const DRAWN: usize = 4000;
/// The share of the drawn ratios outside the interval, at each end: the interval is one of 95 %.
const TAIL: f64 = 0.025;

/// The ratio of the medians of pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) ratio: f64,
    /// The ends of the interval.
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Returns the ratio of the medians, the first divided by the second, with its [`interval`]. A pair
/// is drawn as a whole, because its two runs were made one after the other.
#[allow(dead_code, reason = "for cargo xtask compare")]
pub(crate) fn estimate(pairs: &[(f64, f64)]) -> Estimate {
    let ratio = ratio_of_medians(pairs.iter().copied());
    let [low, high] = interval(pairs, |drawn| ratio_of_medians(drawn.iter().copied()));
    Estimate { ratio, low, high }
}

/// Returns the bootstrap interval of what `statistic` computes from `values`, of which there is at
/// least one: the 2.5th and the 97.5th percentile over samples drawn from them with replacement.
///
/// Each call with the same values returns the same interval.
pub(crate) fn interval<T: Copy>(values: &[T], statistic: impl Fn(&[T]) -> f64) -> [f64; 2] {
    let mut draw = Draw(0x9e37_79b9_7f4a_7c15);
    let mut drawn = values.to_vec();
    let mut results: Vec<f64> = (0..DRAWN)
        .map(|_| {
            drawn.fill_with(|| values[draw.below(values.len())]);
            statistic(&drawn)
        })
        .collect();
    results.sort_by(f64::total_cmp);
    let at = |share: f64| results[((DRAWN - 1) as f64 * share).round() as usize];
    [at(TAIL), at(1.0 - TAIL)]
}

fn ratio_of_medians(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (ours, theirs): (Vec<f64>, Vec<f64>) = pairs.unzip();
    median(ours) / median(theirs)
}

/// Returns the median, of an even number of values the mean of the two in the middle; NaN if there is
/// no value.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values[..] {
        [] => f64::NAN,
        _ if values.len() % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// A xorshift generator: the interval needs no good randomness.
struct Draw(u64);

impl Draw {
    /// Returns a number below `limit`, which is not 0.
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let is = |values: &[f64], expected: f64| (median(values.to_vec()) - expected).abs() < 1e-12;
        assert!(is(&[3.0, 1.0, 2.0], 2.0));
        assert!(is(&[4.0, 1.0, 2.0, 3.0], 2.5));
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn the_interval_of_a_median_is_around_it() {
        let values = [5.0, 1.0, 4.0, 2.0, 3.0];
        let [low, high] = interval(&values, |drawn| median(drawn.to_vec()));
        assert!((1.0..3.0).contains(&low) && (3.0..=5.0).contains(&high) && high > low);
        let [low, high] = interval(&[7.0], |drawn| median(drawn.to_vec()));
        assert!(low.total_cmp(&7.0).is_eq() && high.total_cmp(&7.0).is_eq());
    }

    #[test]
    fn equal_pairs_have_an_interval_of_one_point() {
        let equal = estimate(&[(1.0, 2.0); 15]);
        assert_eq!(equal, Estimate { ratio: 0.5, low: 0.5, high: 0.5 });
    }

    #[test]
    fn the_interval_covers_the_true_ratio() {
        let mut draw = Draw(7);
        // In 200 experiments with noise of up to 50 %, an interval of 95 % misses about ten times.
        let missed = (0..200)
            .filter(|_| {
                let mut noisy = |value: f64| value * (1.0 + draw.below(500) as f64 / 1000.0);
                let pairs: Vec<_> = (0..15).map(|_| (noisy(0.9), noisy(1.0))).collect();
                let Estimate { ratio, low, high } = estimate(&pairs);
                assert!(low <= ratio && ratio <= high);
                !(low..=high).contains(&0.9)
            })
            .count();
        assert!(missed <= 24, "{missed} of 200");
    }
}
