//! Pairs of interfaces between which no connection could be made.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::address::Uuid;
use crate::plan::Pair;

/// Pairs that are kept; the oldest are forgotten, and tried again.
const MOST: usize = 256;

/// A pair between which no connection could be made.
#[derive(Debug)]
struct Entry {
    peer: Uuid,
    pair: Pair,
    reason: String,
    /// When it failed last.
    since: Instant,
    /// Since when no process listens there, as far as is known.
    refused: Option<Instant>,
    /// Plans avoid it.
    is_avoided: bool,
}

/// Pairs between which no connection could be made, with the reasons. Plans avoid each for a while,
/// or until nothing else leads to the peer: a network that was down may be the only one later.
#[derive(Debug)]
pub(super) struct Blocked {
    pairs: VecDeque<Entry>,
    /// How long each is avoided.
    span: Duration,
}

impl Blocked {
    pub(super) fn new(span: Duration) -> Self {
        Self { pairs: VecDeque::new(), span }
    }

    /// Adds a pair; `is_refused` if no process listens there. Returns false if it failed before,
    /// within the span.
    pub(super) fn add(
        &mut self,
        peer: Uuid,
        pair: Pair,
        reason: String,
        is_refused: bool,
        now: Instant,
    ) -> bool {
        let known = self.pairs.iter().position(|known| (known.peer, known.pair) == (peer, pair));
        let known = known.and_then(|known| self.pairs.remove(known));
        let before = known.as_ref().and_then(|known| known.refused);
        let refused = is_refused.then(|| before.unwrap_or(now));
        self.pairs.push_back(Entry { peer, pair, reason, since: now, refused, is_avoided: true });
        if self.pairs.len() > MOST {
            self.pairs.pop_front();
        }
        known.is_none()
    }

    /// Forgets the pairs that have been avoided for long enough.
    pub(super) fn expire(&mut self, now: Instant) {
        let span = self.span;
        self.pairs.retain(|entry| now.saturating_duration_since(entry.since) < span);
    }

    fn find(&self, peer: Uuid, pair: Pair) -> Option<&Entry> {
        self.pairs.iter().find(|known| (known.peer, known.pair) == (peer, pair))
    }

    /// Why a pair is blocked, if it is.
    pub(super) fn reason(&self, peer: Uuid, pair: Pair) -> Option<&str> {
        let found = self.find(peer, pair).filter(|entry| entry.is_avoided);
        found.map(|entry| entry.reason.as_str())
    }

    /// Since when no process listens at the peer's side of a pair, as far as is known.
    pub(super) fn refused(&self, peer: Uuid, pair: Pair) -> Option<Instant> {
        self.find(peer, pair).and_then(|entry| entry.refused)
    }

    /// Has the pairs of a peer tried again. Returns whether there were any.
    pub(super) fn clear(&mut self, peer: Uuid) -> bool {
        let mut any = false;
        for entry in self.pairs.iter_mut().filter(|entry| entry.peer == peer) {
            any |= std::mem::take(&mut entry.is_avoided);
        }
        any
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
            assert_eq!(blocked.add(peer(1), pair, round.to_string(), false, now), round == 0);
        }
        assert_eq!((blocked.pairs.len(), blocked.reason(peer(1), pair)), (1, Some("2")));
        for here in 0..=255 {
            blocked.add(peer(2), Pair { here, there: 0 }, String::new(), false, now);
        }
        assert_eq!((blocked.pairs.len(), blocked.reason(peer(1), pair)), (MOST, None));
        assert!(blocked.clear(peer(2)) && !blocked.clear(peer(2)));
    }

    #[test]
    fn pairs_are_avoided_for_a_while() {
        let (now, span) = (Instant::now(), Duration::from_secs(10));
        let mut blocked = Blocked::new(span);
        let (peer, [old, new]) = (Uuid([1; 16]), [0, 1].map(|here| Pair { here, there: 0 }));
        blocked.add(peer, old, String::new(), false, now);
        blocked.add(peer, new, String::new(), false, after(now, Duration::from_secs(1)));
        blocked.expire(after(now, Duration::from_millis(9999)));
        assert!(blocked.reason(peer, old).is_some());
        blocked.expire(after(now, span));
        assert!(blocked.reason(peer, old).is_none() && blocked.reason(peer, new).is_some());
    }

    #[test]
    fn the_first_refusal_counts_until_another_failure() {
        let (now, span) = (Instant::now(), Duration::from_secs(10));
        let later = after(now, Duration::from_secs(1));
        let mut blocked = Blocked::new(span);
        let (peer, pair) = (Uuid([1; 16]), Pair { here: 0, there: 0 });
        assert!(blocked.add(peer, pair, String::new(), true, now));
        assert!(blocked.clear(peer) && blocked.reason(peer, pair).is_none());
        assert!(!blocked.add(peer, pair, String::new(), true, later));
        assert_eq!(blocked.refused(peer, pair), Some(now));
        assert!(!blocked.add(peer, pair, String::new(), false, later));
        assert_eq!(blocked.refused(peer, pair), None);
    }
}
