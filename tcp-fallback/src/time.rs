//! Points in time for timeouts of any length, and the CPU time of a thread.

use std::time::{Duration, Instant};

/// More than a century: as long as any process runs, and within the range of [`Instant`].
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// Returns the time `duration` after `now`. Of a duration of more than a century, such as
/// [`Duration::MAX`], a century counts: the sum would not exist.
#[must_use]
#[inline]
pub fn after(now: Instant, duration: Duration) -> Instant {
    #[expect(clippy::arithmetic_side_effects, reason = "the sum exists")]
    let time = now + duration.min(LONGEST);
    time
}

/// Returns the CPU time that this thread has used.
#[must_use]
pub fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_durations_end_after_a_century() {
        let now = Instant::now();
        for duration in [Duration::ZERO, Duration::from_nanos(1), LONGEST] {
            assert_eq!(after(now, duration) - now, duration);
        }
        for duration in [Duration::MAX, Duration::from_secs(u64::MAX / 2)] {
            assert_eq!(after(now, duration), after(now, LONGEST));
        }
    }
}
