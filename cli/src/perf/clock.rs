//! A clock that is cheap enough to be read once per message.

use std::time::{Duration, Instant};

/// The time in ticks. A [`Clock`] determines their length.
#[inline(always)]
pub(super) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has the instruction. A constant rate is assumed; CPUs of the last
    // decade have one.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        use std::sync::OnceLock;
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Determines the length of a tick from two readings of both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    instant: Instant,
    ticks: u64,
}

impl Clock {
    /// The shortest interval for determining the length of a tick.
    const LEAST: Duration = Duration::from_millis(5);

    pub(super) fn start() -> Self {
        Self { instant: Instant::now(), ticks: ticks() }
    }

    /// Nanoseconds per tick since the start.
    pub(super) fn tick(&self) -> f64 {
        if let Some(rest) = Self::LEAST.checked_sub(self.instant.elapsed()) {
            std::thread::sleep(rest);
        }
        let (time, ticks) = (self.instant.elapsed(), ticks().wrapping_sub(self.ticks));
        time.as_nanos() as f64 / ticks.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_a_part_of_a_nanosecond_or_a_few() {
        let tick = Clock::start().tick();
        assert!((0.05..100.0).contains(&tick), "{tick}");
    }
}
