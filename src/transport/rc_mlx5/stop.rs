//! The time between the stop of an endpoint and the end of its queue pairs.

use std::time::{Duration, Instant};

use crate::transport::mlx5::shared::GRACE;

/// The most time until a queue pair in error is reported to hold no WQE of the shared receive
/// queue: the device may have many commands to execute.
const LAST_WQE: Duration = Duration::from_secs(5);

/// When an endpoint was stopped, and since when its queue pairs are known to have returned what
/// they took from the shared receive queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    since: Instant,
    drained: Option<Instant>,
}

impl Stop {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, drained: None }
    }

    /// Returns what is known now, and whether the queue pairs can be destroyed. `drained`: whether
    /// the device has reported that they returned what they took, `None` if it does not report it.
    /// `is_empty`: whether the completion queue, where what they returned may still be, is empty.
    pub(super) fn advance(
        self,
        now: Instant,
        drained: Option<bool>,
        is_empty: impl FnOnce() -> bool,
    ) -> (Self, bool) {
        let drained_since = match drained {
            Some(true) => Some(self.drained.unwrap_or(now)),
            _ => None,
        };
        let is_released = match (drained_since, drained) {
            (Some(since), _) => is_empty() || now - since > GRACE,
            (None, Some(_)) => now - self.since > LAST_WQE,
            (None, None) => now - self.since > GRACE,
        };
        (Self { drained: drained_since, ..self }, is_released)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::event::after;

    const SHORT: Duration = Duration::from_millis(1);

    /// Progress takes the completions of other endpoints as well, so that the queue may not be
    /// empty for long.
    #[test]
    fn what_a_late_report_announces_can_be_taken_before_the_end() {
        let start = Instant::now();
        let (stop, is_released) = Stop::new(start).advance(start, Some(false), || true);
        assert!(!is_released);
        let late = after(after(start, GRACE), SHORT);
        let (stop, is_released) = stop.advance(late, Some(true), || false);
        assert!(!is_released);
        assert!(stop.advance(late, Some(true), || true).1);
        let (stop, is_released) = stop.advance(after(late, GRACE), Some(true), || false);
        assert!(!is_released);
        assert!(stop.advance(after(after(late, GRACE), SHORT), Some(true), || false).1);
    }

    #[test]
    fn queue_pairs_without_a_report_end_after_a_time() {
        let start = Instant::now();
        for (drained, time) in [(None, GRACE), (Some(false), LAST_WQE)] {
            let stop = Stop::new(start);
            assert!(!stop.advance(after(start, time), drained, || true).1);
            assert!(stop.advance(after(after(start, time), SHORT), drained, || true).1);
        }
    }
}
