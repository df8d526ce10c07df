//! A timeout that ignores time in which this process did not run.

use std::time::{Duration, Instant};

/// Measures the time without progress. Time in which this process did not run (it was stopped, or
/// the machine slept) counts as one short step, so a pair that was stopped and continued together
/// goes on.
#[derive(Debug)]
pub(crate) struct Patience {
    spent: Duration,
    last: Instant,
}

impl Patience {
    const STEP: Duration = Duration::from_millis(250);

    pub(crate) fn new() -> Self {
        Self { spent: Duration::ZERO, last: Instant::now() }
    }

    /// Restarts the measurement after progress.
    pub(crate) fn renew(&mut self, now: Instant) {
        self.spent = Duration::ZERO;
        self.last = now;
    }

    /// The time without progress up to the last check.
    pub(crate) fn spent(&self) -> Duration {
        self.spent
    }

    /// Records that there was no progress until `now`. Returns the time without progress.
    pub(crate) fn spend(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.last).min(Self::STEP);
        self.spent = self.spent.saturating_add(passed);
        self.last = now;
        self.spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_counts_long_pauses_as_one_step() {
        let mut patience = Patience::new();
        let start = patience.last;
        assert_eq!(patience.spend(start + Duration::from_millis(100)), Duration::from_millis(100));
        let later = start + Duration::from_hours(1);
        assert_eq!(patience.spend(later), Duration::from_millis(100) + Patience::STEP);
        patience.renew(later);
        assert_eq!(patience.spend(later), Duration::ZERO);
    }
}
