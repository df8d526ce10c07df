//! Timeouts that ignore time in which this process made no progress.

use std::time::{Duration, Instant};

use crate::time::after;

/// An interval between two updates counts as at most one in so many parts of the limit.
const UPDATES: u32 = 16;

/// A timeout that runs while it is updated. A process that was busy or stopped first processes what
/// arrived meanwhile: before the timeout is over, it has been updated several times.
#[derive(Debug, Clone)]
pub struct StallTimer {
    limit: Duration,
    spent: Duration,
    updated: Instant,
}

impl StallTimer {
    /// Begins now.
    pub fn new(limit: Duration, now: Instant) -> Self {
        Self { limit, spent: Duration::ZERO, updated: now }
    }

    /// Updates the timer. Returns the time that counts so far.
    pub fn update(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.updated).min(self.limit / UPDATES);
        self.spent = self.spent.saturating_add(passed);
        self.updated = now;
        self.spent
    }

    /// Updates the timer. Returns true if the limit is reached.
    pub fn is_over(&mut self, now: Instant) -> bool {
        self.update(now) >= self.limit
    }

    /// The time that counted at the last update.
    pub fn spent(&self) -> Duration {
        self.spent
    }

    /// When to update a timer of which `left` is left.
    pub(crate) fn next_update(&self, left: Duration) -> Instant {
        after(self.updated, left.min(self.limit / UPDATES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_while_it_is_updated() {
        let (limit, mut now) = (Duration::from_secs(16), Instant::now());
        let mut timer = StallTimer::new(limit, now);
        for _ in 0..31 {
            now += Duration::from_millis(500);
            assert!(!timer.is_over(now));
        }
        now += Duration::from_millis(500);
        assert!(timer.is_over(now));
    }

    #[test]
    fn a_long_interval_counts_as_one_part() {
        let (limit, mut now) = (Duration::from_secs(16), Instant::now());
        let mut timer = StallTimer::new(limit, now);
        for part in 1..16 {
            now += Duration::from_mins(1);
            assert_eq!(timer.update(now), Duration::from_secs(part));
            assert_eq!(timer.next_update(limit), now + Duration::from_secs(1));
        }
        assert!(timer.is_over(now + Duration::from_mins(1)));
    }
}
