//! Bounds the processor time that a member of the job can take by messages without effect: control
//! messages about what does not exist, repeated more often than a protocol does, bytes that are no
//! message, or messages without a handler; and by links that it connects and closes.
//!
//! Such messages are rare among processes that follow the protocol. Beyond a number that many of them
//! may cause when they start at once, the interface holds the sender of each
//! (`barewire::Interface::hold_sender`), until the elapsed time has made up for them.

use std::time::{Duration, Instant};

use crate::share::{Share, Terms};
use crate::time::after;

/// Time that such a message costs: to receive it, and to find out.
const MESSAGE: Duration = Duration::from_micros(4);
/// Time to hold a sender and to release it.
const HOLD: Duration = Duration::from_micros(40);
/// 5000 messages can accumulate.
const TERMS: Terms = Terms { part: 100, burst: Duration::from_millis(20), ..Terms::CONNECTIONS };
/// For how long a sender is held at least.
const PAUSE: Duration = Duration::from_millis(10);

/// The account of messages without effect.
#[derive(Debug)]
pub struct Refusals {
    share: Share,
    /// When the senders that are held are released.
    release: Option<Instant>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self::new()
    }
}

impl Refusals {
    /// An account without messages.
    #[must_use]
    pub fn new() -> Self {
        Self { share: Share::new(TERMS, Instant::now()), release: None }
    }

    /// Counts messages, in the handler of the last one. If there are too many, calls `hold`, which
    /// returns whether the sender is held.
    pub fn count(&mut self, messages: u32, now: Instant, hold: impl FnOnce() -> bool) {
        let cost = MESSAGE.saturating_mul(messages);
        if self.share.left(now) >= cost {
            return self.share.spend(cost, now);
        }
        // What a sender that the transport cannot hold sends is no debt of others.
        if hold() {
            self.share.spend(cost.saturating_add(HOLD), now);
            self.release = Some(after(self.share.until(Duration::ZERO).max(now), PAUSE));
        }
    }

    /// When senders are to be released.
    #[must_use]
    pub fn release_at(&self) -> Option<Instant> {
        self.release
    }

    /// Returns whether the senders are to be released now.
    pub fn take_release(&mut self, now: Instant) -> bool {
        self.release.take_if(|release| *release <= now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of so many senders that are read in this time, if each sends without end.
    fn flood(senders: usize, time: Duration) -> u32 {
        let (mut refusals, begun) = (Refusals::new(), Instant::now());
        let (mut read, mut held) = (0, vec![false; senders]);
        let mut now = begun;
        while now - begun < time {
            if refusals.take_release(now) {
                held.fill(false);
            }
            for held in held.iter_mut().filter(|held| !**held) {
                read += 1;
                refusals.count(1, now, || {
                    *held = true;
                    true
                });
            }
            now += Duration::from_millis(1);
            if held.iter().all(|held| *held) {
                now = now.max(refusals.release_at().expect("held senders are released"));
            }
        }
        read
    }

    #[test]
    fn a_burst_is_read_at_once() {
        let mut refusals = Refusals::new();
        let now = Instant::now();
        for _ in 0..4900 {
            refusals.count(1, now, || panic!("held"));
        }
        assert_eq!(refusals.release_at(), None);
    }

    #[test]
    fn floods_of_one_sender_and_of_many_are_read_at_a_bounded_rate() {
        let time = Duration::from_secs(100);
        let most = (time / TERMS.part).as_micros() / MESSAGE.as_micros() + 5000;
        for senders in [1, 10, 200] {
            let read = u128::from(flood(senders, time));
            assert!(read <= most + senders as u128, "{senders}: {read}, not {most}");
            assert!(read >= 5000, "{senders}: {read}");
        }
    }

    #[test]
    fn a_sender_that_cannot_be_held_takes_nothing_from_those_that_can() {
        let mut refusals = Refusals::new();
        let now = Instant::now();
        for _ in 0..100_000 {
            refusals.count(1, now, || false);
        }
        assert_eq!(refusals.release_at(), None);
        let later = now + Duration::from_millis(10);
        refusals.count(1, later, || panic!("held"));
    }
}
