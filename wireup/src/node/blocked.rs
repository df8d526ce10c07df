//! Pairs of interfaces between which no connection could be made.

use std::collections::VecDeque;

use crate::address::Uuid;
use crate::plan::Pair;

/// Pairs that are kept; the oldest are forgotten, and tried again.
const MOST: usize = 256;

/// Pairs between which no connection could be made, with the reasons. Plans avoid them, until
/// nothing else leads to the peer.
#[derive(Debug, Default)]
pub(super) struct Blocked(VecDeque<(Uuid, Pair, String)>);

impl Blocked {
    pub(super) fn add(&mut self, peer: Uuid, pair: Pair, reason: String) {
        self.0.retain(|(known, other, _)| (*known, *other) != (peer, pair));
        self.0.push_back((peer, pair, reason));
        if self.0.len() > MOST {
            self.0.pop_front();
        }
    }

    /// Why a pair is blocked, if it is.
    pub(super) fn reason(&self, peer: Uuid, pair: Pair) -> Option<&str> {
        let found = self.0.iter().find(|(known, other, _)| (*known, *other) == (peer, pair));
        found.map(|(_, _, reason)| reason.as_str())
    }

    /// Has the pairs of a peer tried again. Returns whether there were any.
    pub(super) fn clear(&mut self, peer: Uuid) -> bool {
        let before = self.0.len();
        self.0.retain(|(known, ..)| *known != peer);
        self.0.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten_and_each_pair_is_kept_once() {
        let mut blocked = Blocked::default();
        let peer = |number| Uuid([number; 16]);
        let pair = Pair { here: 0, there: 1 };
        for round in 0..3 {
            blocked.add(peer(1), pair, round.to_string());
        }
        assert_eq!((blocked.0.len(), blocked.reason(peer(1), pair)), (1, Some("2")));
        for here in 0..=255 {
            blocked.add(peer(2), Pair { here, there: 0 }, String::new());
        }
        assert_eq!((blocked.0.len(), blocked.reason(peer(1), pair)), (MOST, None));
        assert!(blocked.clear(peer(2)) && !blocked.clear(peer(2)));
    }
}
