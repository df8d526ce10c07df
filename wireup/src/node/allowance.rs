//! Bounds the processor time that members of the job can take from a node without a link to it: by
//! control connections, and by what the node sends to nodes that it does not know.

use std::time::{Duration, Instant};

use barewire_tcp::share::{Share, Slice};

/// One part in so many of the elapsed time may be spent. A thread that has less than a whole
/// processor spends a larger part of its own time.
const PART: u32 = 125;
/// Time that can accumulate.
const BURST: Duration = Duration::from_millis(100);
/// Time that one call may spend.
const SLICE: Duration = Duration::from_millis(1);
/// Time that a message without effect costs; a link that a peer makes counts as several.
const MESSAGE: Duration = Duration::from_micros(32);
/// Time that has to be left for a call to spend some: reading the clock costs time, too.
const LEAST: Duration = Duration::from_micros(200);

/// The CPU time that may still be spent.
#[derive(Debug)]
pub(super) struct Allowance(Share);

impl Allowance {
    pub(super) fn new() -> Self {
        Self(Share::new(PART, BURST, Instant::now()))
    }

    /// Begins to spend time, until [`Self::end`]. `None` if there is too little left.
    pub(super) fn begin(&self, now: Instant) -> Option<Slice> {
        self.0.begin(LEAST, SLICE, now)
    }

    pub(super) fn end(&mut self, slice: Slice, now: Instant) {
        self.0.end(slice, Duration::MAX, now);
    }

    /// Spends time that was measured elsewhere.
    pub(super) fn spend(&mut self, time: Duration, now: Instant) {
        self.0.spend(time, now);
    }

    /// Spends the time that messages cost beyond that of receiving them: what follows from them is
    /// done later.
    pub(super) fn count(&mut self, messages: u64, now: Instant) {
        let messages = u32::try_from(messages).unwrap_or(u32::MAX);
        self.0.spend(MESSAGE.saturating_mul(messages), now);
    }

    /// When there is enough time; in the past if there is now.
    pub(super) fn until(&self) -> Instant {
        self.0.until(LEAST)
    }
}
