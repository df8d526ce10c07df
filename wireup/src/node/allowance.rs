//! Bounds the processor time that members of the job can take from a node without a link to it.

use std::time::{Duration, Instant};

use barewire_tcp::time::{after, cpu_time};

/// One part in so many of the elapsed time may be spent.
const SHARE: u32 = 80;
/// Time that can accumulate.
const BURST: Duration = Duration::from_millis(20);
/// Time that one call may spend.
const SLICE: Duration = Duration::from_millis(1);
/// Time that has to be left for a call to spend some: reading the clock costs time, too.
const LEAST: Duration = Duration::from_micros(200);

/// The CPU time that may still be spent: a part of the elapsed time.
#[derive(Debug)]
pub(super) struct Allowance {
    left: Duration,
    /// When time was added last.
    at: Instant,
}

impl Allowance {
    pub(super) fn new() -> Self {
        Self { left: BURST, at: Instant::now() }
    }

    /// Begins to spend time. `None` if there is too little left.
    pub(super) fn begin(&mut self, now: Instant) -> Option<Spending<'_>> {
        let passed = now.saturating_duration_since(self.at);
        self.at = self.at.max(now);
        self.left = self.left.saturating_add(passed / SHARE).min(BURST);
        if !self.has_time() {
            return None;
        }
        let most = self.left.min(SLICE);
        Some(Spending { allowance: self, begun: cpu_time(), most })
    }

    /// Whether there was enough time left when some was last asked for.
    pub(super) fn has_time(&self) -> bool {
        self.left >= LEAST
    }

    /// When there is enough time again; now or in the past if there is.
    pub(super) fn until(&self) -> Instant {
        after(self.at, LEAST.saturating_sub(self.left) * SHARE)
    }
}

/// Time that is being spent, until this is dropped.
#[derive(Debug)]
pub(super) struct Spending<'a> {
    allowance: &'a mut Allowance,
    begun: Duration,
    most: Duration,
}

impl Spending<'_> {
    /// Returns whether this call has spent what it may.
    pub(super) fn is_over(&self) -> bool {
        cpu_time().saturating_sub(self.begun) >= self.most
    }

    /// Does something whose time is not a part of what is spent.
    pub(super) fn aside<T>(&mut self, run: impl FnOnce() -> T) -> T {
        let begun = cpu_time();
        let result = run();
        self.begun = self.begun.saturating_add(cpu_time().saturating_sub(begun));
        result
    }
}

impl Drop for Spending<'_> {
    fn drop(&mut self) {
        let spent = cpu_time().saturating_sub(self.begun);
        self.allowance.left = self.allowance.left.saturating_sub(spent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spend(time: Duration) {
        let begun = cpu_time();
        while cpu_time().saturating_sub(begun) < time {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn what_is_done_aside_spends_nothing() {
        let mut allowance = Allowance::new();
        let now = allowance.at;
        let mut spending = allowance.begin(now).unwrap();
        spending.aside(|| spend(4 * SLICE));
        assert!(!spending.is_over());
        drop(spending);
        assert!(allowance.left + SLICE > BURST, "{allowance:?}");
    }

    #[test]
    fn time_that_was_spent_is_missing_until_many_times_as_much_has_passed() {
        let mut allowance = Allowance::new();
        let begun = allowance.at;
        // The clock of the allowance stands still.
        let mut slices = 0;
        while let Some(spending) = allowance.begin(begun) {
            assert!(!spending.is_over());
            spend(SLICE);
            assert!(spending.is_over());
            drop(spending);
            slices += 1;
        }
        assert!((1..=20).contains(&slices), "{slices}");
        assert!(allowance.until() > begun);
        assert!(allowance.begin(begun).is_none());
        assert!(allowance.begin(begun + SLICE * SHARE).is_some());
        assert!(allowance.begin(begun + BURST * SHARE * 9).is_some());
        assert!(allowance.left <= BURST);
    }
}
