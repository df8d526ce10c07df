//! Times of single operations, in bounded memory.

use super::statistics;

/// A sample of the given durations: all of them, or evenly every second, fourth ... of them once
/// they exceed the limit.
#[derive(Debug)]
pub(super) struct Sample {
    kept: Vec<u64>,
    stride: u64,
    skipped: u64,
}

impl Sample {
    /// Most durations to keep.
    const MOST: usize = 1 << 20;

    pub(super) fn new() -> Self {
        Self { kept: Vec::with_capacity(1 << 12), stride: 1, skipped: 0 }
    }

    /// Adds a duration, in any unit.
    #[inline(always)]
    pub(super) fn add(&mut self, duration: u64) {
        self.skipped += 1;
        if self.skipped < self.stride {
            return;
        }
        self.skipped = 0;
        self.kept.push(duration);
        if self.kept.len() == Self::MOST {
            self.thin_out();
        }
    }

    /// Keeps every second one.
    #[cold]
    #[inline(never)]
    fn thin_out(&mut self) {
        let mut keep = false;
        self.kept.retain(|_| {
            keep = !keep;
            keep
        });
        self.stride *= 2;
    }

    /// For each rank from 0 to 100, the duration that this percentage of the sample does not
    /// exceed.
    pub(super) fn percentiles<const N: usize>(&self, ranks: [f64; N]) -> [u64; N] {
        let mut sorted = self.kept.clone();
        ranks.map(|rank| {
            let Some(last) = sorted.len().checked_sub(1) else { return 0 };
            let at = (sorted.len() as f64 * rank / 100.0) as usize;
            *sorted.select_nth_unstable(at.min(last)).1
        })
    }

    /// The medians of `count` parts of the same size, in the order of the durations. Fewer, if there
    /// are fewer durations.
    pub(super) fn medians(&self, count: usize) -> Vec<f64> {
        let count = count.min(self.kept.len());
        let part = |at: usize| at * self.kept.len() / count.max(1);
        (0..count)
            .map(|at| {
                let times = &self.kept[part(at)..part(at + 1)];
                statistics::median(times.iter().map(|&time| time as f64).collect())
            })
            .collect()
    }

    pub(super) fn clear(&mut self) {
        *self = Self { kept: std::mem::take(&mut self.kept), stride: 1, skipped: 0 };
        self.kept.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_hold_however_many_come() {
        let mut sample = Sample::new();
        assert_eq!(sample.percentiles([50.0]), [0]);
        for value in [5, 1, 9] {
            sample.add(value);
        }
        assert_eq!(sample.percentiles([0.0, 50.0, 100.0]), [1, 5, 9]);
        let medians = |count| sample.medians(count).into_iter().map(|median| median as u64);
        assert!(medians(15).eq([5, 1, 9]) && medians(2).eq([5, 5]) && medians(0).count() == 0);
        sample.clear();
        let many = 5 * Sample::MOST as u64;
        (0..many).for_each(|value| sample.add(value));
        assert!(sample.kept.len() < Sample::MOST);
        let [middle, tail] = sample.percentiles([50.0, 99.0]);
        assert!(middle.abs_diff(many / 2) < many / 100, "{middle}");
        assert!(tail.abs_diff(many / 100 * 99) < many / 100, "{tail}");
    }
}
