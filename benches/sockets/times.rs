//! The times of rounds, and the line that reports them.

use std::time::Instant;

/// Half of the time of each round: the one-way latency.
pub(crate) struct Times(Vec<u64>);

impl Times {
    pub(crate) fn new(rounds: u32) -> Self {
        Self(Vec::with_capacity(rounds as usize))
    }

    pub(crate) fn add(&mut self, since: Instant) {
        self.0.push(since.elapsed().as_nanos() as u64 / 2);
    }

    /// Prints the median in the format of `barewire perf --json`.
    pub(crate) fn tell(mut self) {
        self.0.sort_unstable();
        let median = self.0.get(self.0.len() / 2).copied().unwrap_or(0);
        println!("{{\"latency_typical_us\": {:.3}}}", median as f64 / 1e3);
    }
}
