//! Pairs of interfaces between which no connection could be made.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::address::Uuid;
use crate::plan::Pair;

/// Pairs that are kept; the oldest are forgotten, and tried again.
const MOST: usize = 256;

/// Pairs between which no connection could be made, with the reasons. Plans avoid each for a while,
/// or until nothing else leads to the peer: a network that was down may be the only one later.
#[derive(Debug)]
pub(super) struct Blocked {
    pairs: VecDeque<(Uuid, Pair, String, Instant)>,
    /// How long each is avoided.
    span: Duration,
}

impl Blocked {
    pub(super) fn new(span: Duration) -> Self {
        Self { pairs: VecDeque::new(), span }
    }

    pub(super) fn add(&mut self, peer: Uuid, pair: Pair, reason: String, now: Instant) {
        self.pairs.retain(|(known, other, ..)| (*known, *other) != (peer, pair));
        self.pairs.push_back((peer, pair, reason, now));
        if self.pairs.len() > MOST {
            self.pairs.pop_front();
        }
    }

    /// Forgets the pairs that have been avoided for long enough.
    pub(super) fn expire(&mut self, now: Instant) {
        let span = self.span;
        self.pairs.retain(|(.., since)| now.saturating_duration_since(*since) < span);
    }

    /// Why a pair is blocked, if it is.
    pub(super) fn reason(&self, peer: Uuid, pair: Pair) -> Option<&str> {
        let found = self.pairs.iter().find(|(known, other, ..)| (*known, *other) == (peer, pair));
        found.map(|(_, _, reason, _)| reason.as_str())
    }

    /// Has the pairs of a peer tried again. Returns whether there were any.
    pub(super) fn clear(&mut self, peer: Uuid) -> bool {
        let before = self.pairs.len();
        self.pairs.retain(|(known, ..)| *known != peer);
        self.pairs.len() < before
    }
}

#[cfg(test)]
mod tests {
    use barewire_tcp::time::after;

    use super::*;

    #[test]
    fn the_oldest_are_forgotten_and_each_pair_is_kept_once() {
        let (now, span) = (Instant::now(), Duration::from_secs(10));
        let mut blocked = Blocked::new(span);
        let peer = |number| Uuid([number; 16]);
        let pair = Pair { here: 0, there: 1 };
        for round in 0..3 {
            blocked.add(peer(1), pair, round.to_string(), now);
        }
        assert_eq!((blocked.pairs.len(), blocked.reason(peer(1), pair)), (1, Some("2")));
        for here in 0..=255 {
            blocked.add(peer(2), Pair { here, there: 0 }, String::new(), now);
        }
        assert_eq!((blocked.pairs.len(), blocked.reason(peer(1), pair)), (MOST, None));
        assert!(blocked.clear(peer(2)) && !blocked.clear(peer(2)));
    }

    #[test]
    fn pairs_are_avoided_for_a_while() {
        let (now, span) = (Instant::now(), Duration::from_secs(10));
        let mut blocked = Blocked::new(span);
        let (peer, [old, new]) = (Uuid([1; 16]), [0, 1].map(|here| Pair { here, there: 0 }));
        blocked.add(peer, old, String::new(), now);
        blocked.add(peer, new, String::new(), after(now, Duration::from_secs(1)));
        blocked.expire(after(now, Duration::from_millis(9999)));
        assert!(blocked.reason(peer, old).is_some());
        blocked.expire(after(now, span));
        assert!(blocked.reason(peer, old).is_none() && blocked.reason(peer, new).is_some());
    }
}
