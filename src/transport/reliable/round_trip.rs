//! Round-trip times, and the retransmission timeout (RFC 6298).

use super::{TICK, Time};

/// The timeout before the first measurement.
const INITIAL: Time = 50 * TICK;
/// A peer that shares its core responds late now and then.
const LEAST: Time = 4 * TICK;

#[derive(Debug)]
pub(super) struct RoundTrip {
    /// Smoothed time and its variation, once measured.
    smoothed: Option<(Time, Time)>,
    most: Time,
}

impl RoundTrip {
    /// `most`: the longest timeout.
    pub(super) fn new(most: Time) -> Self {
        Self { smoothed: None, most: most.max(LEAST) }
    }

    pub(super) fn measured(&mut self, took: Time) {
        self.smoothed = Some(match self.smoothed {
            None => (took, took / 2),
            Some((mean, variation)) => {
                ((7 * mean + took) / 8, (3 * variation + mean.abs_diff(took)) / 4)
            }
        });
    }

    /// Returns the timeout after `tries` attempts without a response.
    pub(super) fn timeout(&self, tries: u32) -> Time {
        let once = self.smoothed.map_or(INITIAL, |(mean, variation)| mean + 4 * variation);
        once.max(LEAST).saturating_mul(1 << tries.min(16)).min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_longer_the_later_answers_come_and_the_more_are_missing() {
        let mut clock = RoundTrip::new(268 * TICK);
        assert_eq!(
            (clock.timeout(0), clock.timeout(1), clock.timeout(9)),
            (INITIAL, 2 * INITIAL, 268 * TICK)
        );
        (0..100).for_each(|_| clock.measured(10_000));
        assert_eq!(clock.timeout(0), LEAST);
        (0..100).for_each(|_| clock.measured(40 * TICK));
        assert!((40 * TICK..42 * TICK).contains(&clock.timeout(0)), "{}", clock.timeout(0));
        clock.measured(200 * TICK);
        assert!(clock.timeout(0) > 100 * TICK);
    }
}
