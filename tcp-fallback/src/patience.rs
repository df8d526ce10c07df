//! How long a peer may take. Only time in which this end looks counts against it.

use std::time::{Duration, Instant};

/// Of a stretch in which nobody looked, at most this part of the limit counts.
const LOOKS: u32 = 16;

/// A limit of time that runs while this end looks at it. A program that computes for a minute between two calls of progress is to
/// find what came meanwhile, and not that it came too late: before the limit is over, it was looked at several times.
#[derive(Debug, Clone)]
pub struct Patience {
    limit: Duration,
    spent: Duration,
    looked: Instant,
}

impl Patience {
    /// Begins now.
    pub fn new(limit: Duration, now: Instant) -> Self {
        Self { limit, spent: Duration::ZERO, looked: now }
    }

    /// Looks, and answers how much time counts so far.
    pub fn look(&mut self, now: Instant) -> Duration {
        self.spent += now.saturating_duration_since(self.looked).min(self.stride());
        self.looked = now;
        self.spent
    }

    /// Looks whether the limit is over.
    pub fn is_over(&mut self, now: Instant) -> bool {
        self.look(now) >= self.limit
    }

    /// What counted at the last look.
    pub(crate) fn spent(&self) -> Duration {
        self.spent
    }

    /// When to look for `left` to be over: some looks before it, as a rule.
    pub(crate) fn next_look(&self, left: Duration) -> Instant {
        self.looked + left.min(self.stride())
    }

    fn stride(&self) -> Duration {
        self.limit / LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_while_it_is_looked_at() {
        let (limit, mut now) = (Duration::from_secs(16), Instant::now());
        let mut patience = Patience::new(limit, now);
        for _ in 0..31 {
            now += Duration::from_millis(500);
            assert!(!patience.is_over(now));
        }
        now += Duration::from_millis(500);
        assert!(patience.is_over(now));
    }

    #[test]
    fn a_long_absence_is_one_look() {
        let (limit, mut now) = (Duration::from_secs(16), Instant::now());
        let mut patience = Patience::new(limit, now);
        for look in 1..16 {
            now += Duration::from_mins(1);
            assert_eq!(patience.look(now), Duration::from_secs(look));
            assert_eq!(patience.next_look(limit), now + Duration::from_secs(1));
        }
        assert!(patience.is_over(now + Duration::from_mins(1)));
    }
}
