//! Times of single operations, in bounded memory.

/// A sample of the durations that it was given: all of them, or evenly every second, fourth ... of them once they
/// are too many.
#[derive(Debug)]
pub(super) struct Sample {
    kept: Vec<u64>,
    stride: u64,
    skipped: u64,
}

impl Sample {
    /// The most durations that are kept.
    const MOST: usize = 1 << 20;

    pub(super) fn new() -> Self {
        Self { kept: Vec::with_capacity(1 << 12), stride: 1, skipped: 0 }
    }

    /// Adds a duration, in any unit.
    #[inline]
    pub(super) fn add(&mut self, duration: u64) {
        self.skipped += 1;
        if self.skipped < self.stride {
            return;
        }
        self.skipped = 0;
        self.kept.push(duration);
        if self.kept.len() == Self::MOST {
            let mut keep = false;
            self.kept.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride *= 2;
        }
    }

    /// The middle one of all durations so far.
    pub(super) fn median(&self) -> u64 {
        let mut sorted = self.kept.clone();
        let middle = sorted.len() / 2;
        if sorted.is_empty() { 0 } else { *sorted.select_nth_unstable(middle).1 }
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
    fn the_median_holds_however_many_come() {
        let mut sample = Sample::new();
        assert_eq!(sample.median(), 0);
        for value in [5, 1, 9] {
            sample.add(value);
        }
        assert_eq!(sample.median(), 5);
        sample.clear();
        let many = 5 * Sample::MOST as u64;
        (0..many).for_each(|value| sample.add(value));
        assert!(sample.kept.len() < Sample::MOST);
        assert!(sample.median().abs_diff(many / 2) < many / 100, "{}", sample.median());
    }
}
