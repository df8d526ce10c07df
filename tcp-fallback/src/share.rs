//! Bounds the time that others can take: a part of the elapsed time, and a burst of it at once.
//!
//! Every bound of this kind in these crates is a [`Share`]: of handshakes, of control connections, of
//! messages without effect. What is spent is measured in [`Slice`]s of the thread's CPU time, or is
//! the known cost of what is counted.

use std::time::{Duration, Instant};

use crate::time::{after, cpu_time};

/// How much may be spent, in total and in one [`Slice`].
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// One part in so many of the elapsed time. A thread that shares its processor spends a larger
    /// part of the time that it runs.
    pub part: u32,
    /// Time that can accumulate.
    pub burst: Duration,
    /// CPU time of a slice.
    pub slice: Duration,
    /// CPU time that has to be left for a slice to begin: reading the clock costs time, too.
    pub least: Duration,
    /// CPU time above that of a slice that counts. More than this was spent by an interrupt or the
    /// hypervisor.
    pub excess: Duration,
}

impl Terms {
    /// For connections of peers that are not [free](crate::listener::Authenticated::is_free).
    pub const CONNECTIONS: Self = Self {
        part: 125,
        burst: Duration::from_millis(20),
        slice: Duration::from_millis(1),
        least: Duration::from_micros(100),
        excess: Duration::MAX,
    };

    /// Returns the elapsed time that makes up for `time`.
    fn elapsed(&self, time: Duration) -> Duration {
        time.saturating_mul(self.part.max(1))
    }
}

/// An account of the time that may be spent for others.
#[derive(Debug, Clone)]
pub struct Share {
    terms: Terms,
    /// When the elapsed time will have made up for all that was spent.
    due: Instant,
}

impl Share {
    /// The whole [burst](Terms::burst) is left at `now`.
    #[must_use]
    pub fn new(terms: Terms, now: Instant) -> Self {
        Self { terms, due: now }
    }

    /// Spends time, also more than is left.
    pub fn spend(&mut self, time: Duration, now: Instant) {
        self.due = after(self.due.max(now), self.terms.elapsed(time));
    }

    /// Sets the [part](Terms::part). What was spent and not made up for remains.
    pub fn set_part(&mut self, part: u32, now: Instant) {
        let spent = self.due.saturating_duration_since(now) / self.terms.part.max(1);
        self.terms.part = part;
        self.due = after(now, self.terms.elapsed(spent));
    }

    /// Returns time that was spent.
    pub fn refund(&mut self, time: Duration) {
        let earlier = self.due.checked_sub(self.terms.elapsed(time));
        self.due = earlier.unwrap_or(self.due);
    }

    /// The time that may be spent at `now`.
    #[must_use]
    pub fn left(&self, now: Instant) -> Duration {
        let burst = self.terms.elapsed(self.terms.burst);
        burst.saturating_sub(self.due.saturating_duration_since(now)) / self.terms.part.max(1)
    }

    /// When `wanted` is left, if nothing is spent until then; in the past if it is left now.
    #[must_use]
    pub fn until(&self, wanted: Duration) -> Instant {
        let terms = &self.terms;
        let ahead = terms.elapsed(terms.burst).saturating_sub(terms.elapsed(wanted));
        self.due.checked_sub(ahead).unwrap_or(self.due)
    }

    /// When there is enough for a slice, if nothing is spent until then; in the past if there is
    /// enough now.
    #[must_use]
    pub fn next_slice(&self) -> Instant {
        self.until(self.terms.least)
    }

    /// Returns whether there is enough for a slice.
    #[must_use]
    pub fn has_slice(&self, now: Instant) -> bool {
        self.left(now) >= self.terms.least
    }

    /// Begins to spend CPU time of the thread, until [`Self::end`], if there is enough for a slice.
    #[must_use]
    pub fn begin(&self, now: Instant) -> Option<Slice> {
        let most = self.left(now).min(self.terms.slice);
        self.has_slice(now).then(|| Slice { at: now, begun: cpu_time(), most })
    }

    /// Spends the CPU time since the beginning of a slice.
    pub fn end(&mut self, slice: Slice) {
        let most = slice.most.saturating_add(self.terms.excess);
        self.spend(slice.spent().min(most), slice.at);
    }
}

/// CPU time that is being spent.
#[derive(Debug, Clone, Copy)]
pub struct Slice {
    at: Instant,
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

    /// Does something while a slice is being spent, if one is. If it is free, its time is not a
    /// part of what is spent.
    pub fn during<T>(slice: Option<&mut Self>, is_free: bool, run: impl FnOnce() -> T) -> T {
        let Some(slice) = slice.filter(|_| is_free) else { return run() };
        let before = slice.spent();
        let result = run();
        slice.begun = slice.begun.saturating_add(slice.spent().saturating_sub(before));
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: u32 = 50;
    const BURST: Duration = Duration::from_millis(20);
    const MS: Duration = Duration::from_millis(1);
    const TERMS: Terms =
        Terms { part: PART, burst: BURST, slice: Duration::from_millis(2), least: MS, excess: MS };

    fn share() -> (Share, Instant) {
        let now = Instant::now();
        (Share::new(TERMS, now), now)
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
    fn what_is_left_remains_if_the_part_changes() {
        let (mut share, now) = share();
        share.spend(5 * MS, now);
        share.set_part(3 * PART, now);
        assert_eq!(share.left(now), 15 * MS);
        assert_eq!(share.left(now + 3 * PART * 2 * MS), 17 * MS);
        share.spend(25 * MS, now);
        share.set_part(PART, now);
        assert_eq!(share.until(Duration::ZERO), now + PART * 10 * MS);
        for part in [0, u32::MAX] {
            share.set_part(part, now);
        }
    }

    #[test]
    fn a_share_of_any_size_has_a_time_at_which_it_is_there() {
        let now = Instant::now();
        for part in [0, 1, u32::MAX] {
            let mut share = Share::new(Terms { part, burst: Duration::MAX, ..TERMS }, now);
            share.spend(Duration::MAX, now);
            share.refund(Duration::MAX);
            let _ = (share.left(now), share.until(Duration::MAX));
        }
    }

    #[test]
    fn slices_spend_the_time_of_the_thread_but_not_that_of_interruptions() {
        let (mut share, now) = share();
        let slice = share.begin(now).unwrap();
        assert!(!slice.is_over(Duration::ZERO) && slice.is_over(2 * MS));
        spin(4 * MS);
        assert!(slice.is_over(Duration::ZERO));
        share.end(slice);
        assert_eq!(share.left(now) + 3 * MS, BURST);
        share.spend(BURST, now);
        assert!(share.begin(now).is_none() && !share.has_slice(now));
        assert_eq!(share.next_slice(), now + PART * 4 * MS);
    }

    #[test]
    fn what_is_free_spends_nothing() {
        let now = Instant::now();
        let share = Share::new(Terms { slice: BURST, ..TERMS }, now);
        let mut slice = share.begin(now).unwrap();
        Slice::during(Some(&mut slice), true, || spin(40 * MS));
        assert!(!slice.is_over(Duration::ZERO), "{slice:?}");
        Slice::during(Some(&mut slice), false, || spin(40 * MS));
        assert!(slice.is_over(Duration::ZERO), "{slice:?}");
    }
}
