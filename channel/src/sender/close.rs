//! Closing a sender, after the peer has acknowledged all refusals.

use std::thread;
use std::time::Instant;

use barewire_tcp::stall_timer::StallTimer;

use super::Sender;
use crate::fail_over::{Half, SETTLE};
use crate::queues::{Doubt, Queues, REFUSAL, Share};

impl Sender {
    /// Waits until the peer has acknowledged all refusals. They belong to no request that the
    /// program could have tested.
    #[cold]
    fn settle_refusals(&mut self) {
        let mut timer = StallTimer::new(SETTLE, Instant::now());
        while self.has_refusals()
            && self.check().is_ok()
            && !self.peer.has_left()
            && !timer.is_over(Instant::now())
        {
            thread::yield_now();
        }
    }

    /// Returns whether a refusal is not acknowledged, or may have been lost with its rail.
    #[cold]
    pub(super) fn has_refusals(&mut self) -> bool {
        let is_refusal = |share: &Share| share.owner == REFUSAL;
        self.writer.queues.iter().any(Queues::has_refusals)
            || self.writer.missing.iter().flatten().any(is_refusal)
            || self.fail_over.doubts().flat_map(Doubt::shares).any(|share| is_refusal(share))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.settle_refusals();
        self.leave(0);
    }
}
