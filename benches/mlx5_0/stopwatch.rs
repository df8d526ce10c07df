//! Times of batches of calls, for `cargo xtask compare driver`.

use core::arch::x86_64::_rdtsc;
use std::time::Instant;

/// The processor's time stamp counter, which costs less than a clock: a batch takes a few hundred
/// nanoseconds.
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it accesses no memory.
    unsafe { _rdtsc() }
}

/// Collects the time of each batch.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    /// For the conversion of ticks to nanoseconds.
    origin: (Instant, u64),
    started: u64,
    /// Calls of a batch.
    batch: u32,
    batches: Vec<u64>,
}

impl Stopwatch {
    pub(crate) fn new(calls: u32, batch: u32) -> Self {
        let batches = Vec::with_capacity((calls / batch) as usize + 1);
        Self { origin: (Instant::now(), ticks()), started: 0, batch, batches }
    }

    #[inline(always)]
    pub(crate) fn start(&mut self) {
        self.started = ticks();
    }

    #[inline(always)]
    pub(crate) fn stop(&mut self) {
        self.batches.push(ticks().wrapping_sub(self.started));
    }

    /// Removes the last batch.
    pub(crate) fn discard(&mut self) {
        self.batches.pop();
    }

    /// Prints the median time of a call in nanoseconds, with the 10th and the 90th percentile of the
    /// batches.
    pub(crate) fn print(mut self) {
        let (since, first) = self.origin;
        let tick = since.elapsed().as_nanos() as f64 / ticks().wrapping_sub(first).max(1) as f64;
        self.batches.sort_unstable();
        let last = self.batches.len().saturating_sub(1);
        let [median, low, high] = [50, 10, 90].map(|rank| {
            let ticks = self.batches.get(last * rank / 100).copied().unwrap_or(0);
            ticks as f64 * tick / f64::from(self.batch)
        });
        println!(r#"{{"nanoseconds": {median:.3}, "p10": {low:.3}, "p90": {high:.3}}}"#);
    }
}
