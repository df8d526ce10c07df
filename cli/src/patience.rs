//! How long is too long.

use std::time::{Duration, Instant};

/// Counts the time in which something should have happened. Time in which this process itself did not run
/// (stopped, or the machine slept) counts as one short step, so that a pair that was stopped and continued
/// together goes on.
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

    /// It happened.
    pub(crate) fn renew(&mut self, now: Instant) {
        self.spent = Duration::ZERO;
        self.last = now;
    }

    /// The time spent on waiting until the last look.
    pub(crate) fn spent(&self) -> Duration {
        self.spent
    }

    /// Nothing happened until now; the time spent on waiting so far.
    pub(crate) fn spend(&mut self, now: Instant) -> Duration {
        self.spent += now.saturating_duration_since(self.last).min(Self::STEP);
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
