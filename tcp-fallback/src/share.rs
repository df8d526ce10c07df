//! Bounds the time that others can take: a part of the elapsed time, and a burst of it at once.
//!
//! Every bound of this kind in these crates is a [`Share`]: of handshakes, of control connections, of
//! messages without effect. What is spent is measured in [`Slice`]s of the thread's CPU time, or is
//! the known cost of what is counted.

use std::time::{Duration, Instant};

use crate::time::{after, cpu_time};

/// An account of the time that may be spent for others.
#[derive(Debug, Clone)]
pub struct Share {
    /// One part in so many of the elapsed time may be spent.
    part: u32,
    /// Elapsed time that can accumulate.
    burst: Duration,
    /// When the elapsed time will have made up for all that was spent.
    due: Instant,
}

impl Share {
    /// One part in `part` of the elapsed time, of which up to `burst` can accumulate and is there
    /// now.
    #[must_use]
    pub fn new(part: u32, burst: Duration, now: Instant) -> Self {
        let part = part.max(1);
        Self { part, burst: burst.saturating_mul(part), due: now }
    }

    /// Spends time, also more than is left.
    pub fn spend(&mut self, time: Duration, now: Instant) {
        self.due = after(self.due.max(now), time.saturating_mul(self.part));
    }

    /// Returns time that was spent.
    pub fn refund(&mut self, time: Duration) {
        let earlier = self.due.checked_sub(time.saturating_mul(self.part));
        self.due = earlier.unwrap_or(self.due);
    }

    /// The time that may be spent at `now`.
    #[must_use]
    pub fn left(&self, now: Instant) -> Duration {
        let elapsed = self.burst.saturating_sub(self.due.saturating_duration_since(now));
        elapsed.checked_div(self.part).unwrap_or(elapsed)
    }

    /// When `wanted` is left, if nothing is spent until then; in the past if it is left now.
    #[must_use]
    pub fn until(&self, wanted: Duration) -> Instant {
        let ahead = self.burst.saturating_sub(wanted.saturating_mul(self.part));
        self.due.checked_sub(ahead).unwrap_or(self.due)
    }

    /// Begins to spend up to `most` of the thread's CPU time, if at least `least` is left.
    #[must_use]
    pub fn begin(&self, least: Duration, most: Duration, now: Instant) -> Option<Slice> {
        let left = self.left(now);
        (left >= least).then(|| Slice { begun: cpu_time(), most: left.min(most) })
    }

    /// Spends the CPU time since the beginning of a slice, but not more than `excess` above what the
    /// slice had: that is an interrupt's, or the hypervisor's.
    pub fn end(&mut self, slice: Slice, excess: Duration, now: Instant) {
        self.spend(slice.spent().min(slice.most.saturating_add(excess)), now);
    }
}

/// CPU time that is being spent.
#[derive(Debug, Clone, Copy)]
pub struct Slice {
    begun: Duration,
    most: Duration,
}

impl Slice {
    /// The CPU time since its beginning.
    #[must_use]
    pub fn spent(&self) -> Duration {
        cpu_time().saturating_sub(self.begun)
    }

    /// Returns whether at most `reserve` is left of it.
    #[must_use]
    pub fn is_over(&self, reserve: Duration) -> bool {
        self.spent().saturating_add(reserve) >= self.most
    }

    /// Does something whose time is not a part of what is spent.
    pub fn aside<T>(&mut self, run: impl FnOnce() -> T) -> T {
        let before = self.spent();
        let result = run();
        self.begun = self.begun.saturating_add(self.spent().saturating_sub(before));
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: u32 = 50;
    const BURST: Duration = Duration::from_millis(20);
    const MS: Duration = Duration::from_millis(1);

    fn share() -> (Share, Instant) {
        let now = Instant::now();
        (Share::new(PART, BURST, now), now)
    }

    fn spin(time: Duration) {
        let begun = cpu_time();
        while cpu_time().saturating_sub(begun) < time {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn what_is_spent_returns_with_the_elapsed_time_up_to_the_burst() {
        let (mut share, now) = share();
        assert_eq!(share.left(now), BURST);
        share.spend(5 * MS, now);
        assert_eq!(share.left(now), 15 * MS);
        assert_eq!(share.left(now + PART * 2 * MS), 17 * MS);
        assert_eq!(share.left(now + PART * BURST * 9), BURST);
        // More than there is: a debt.
        share.spend(25 * MS, now);
        assert_eq!(share.left(now), Duration::ZERO);
        assert_eq!(share.until(MS), now + PART * 11 * MS);
        assert_eq!(share.left(now + PART * 11 * MS), MS);
        share.refund(10 * MS);
        assert_eq!(share.left(now + PART * MS), MS);
        assert!(share.until(Duration::ZERO) <= now);
    }

    #[test]
    fn a_share_of_any_size_has_a_time_at_which_it_is_there() {
        let now = Instant::now();
        for part in [0, 1, u32::MAX] {
            let mut share = Share::new(part, Duration::MAX, now);
            share.spend(Duration::MAX, now);
            share.refund(Duration::MAX);
            let _ = (share.left(now), share.until(Duration::MAX));
        }
    }

    #[test]
    fn slices_spend_the_time_of_the_thread_but_not_that_of_interruptions() {
        let (mut share, now) = share();
        let slice = share.begin(MS, 2 * MS, now).unwrap();
        assert!(!slice.is_over(Duration::ZERO) && slice.is_over(2 * MS));
        spin(4 * MS);
        assert!(slice.is_over(Duration::ZERO));
        share.end(slice, MS, now);
        assert_eq!(share.left(now) + 3 * MS, BURST);
        share.spend(BURST, now);
        assert!(share.begin(MS, MS, now).is_none());
    }

    #[test]
    fn what_is_done_aside_spends_nothing() {
        let (share, now) = share();
        let mut slice = share.begin(MS, 20 * MS, now).unwrap();
        slice.aside(|| spin(40 * MS));
        assert!(!slice.is_over(Duration::ZERO), "{slice:?}");
    }
}
