//! Which endpoints belong together, where one connects to an interface and not to an endpoint.
//!
//! The connections between two interfaces are numbered, from zero. Whoever connects takes the next number and asks for it until there is an
//! answer. An interface that is asked for a number that it has no endpoint for makes one, which the next call to connect there takes
//! over. If both sides connect at once, both ask for the same number, and that is the answer.

use std::collections::VecDeque;

use super::{Overdue, TICK, Time};

/// Connections that ended whose numbers are remembered, so that a late request for one is not taken for a new one.
const ENDED: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    interface: u64,
    number: u32,
    place: u32,
    claimed: bool,
}

/// What to do to connect to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Claim {
    /// The peer asked first: the endpoint at this place is connected.
    Waiting { place: u32 },
    /// Ask for this number.
    New { number: u32 },
}

/// The connections of one interface to others.
#[derive(Debug, Default)]
pub(in super::super) struct Directory {
    entries: Vec<Entry>,
    ended: VecDeque<(u64, u32)>,
}

impl Directory {
    /// Someone here connects to `interface`.
    pub(in super::super) fn claim(&mut self, interface: u64) -> Claim {
        let to_it = |entry: &&mut Entry| entry.interface == interface && !entry.claimed;
        if let Some(entry) = self.entries.iter_mut().filter(to_it).min_by_key(|entry| entry.number) {
            entry.claimed = true;
            return Claim::Waiting { place: entry.place };
        }
        let open = self.entries.iter().map(|entry| (entry.interface, entry.number));
        let numbers = open.chain(self.ended.iter().copied()).filter(|&(of, _)| of == interface);
        Claim::New { number: numbers.map(|(_, number)| number.wrapping_add(1)).max().unwrap_or(0) }
    }

    /// The endpoint at `place` is this connection's; `claimed` by someone here.
    pub(in super::super) fn enter(&mut self, interface: u64, number: u32, place: u32, claimed: bool) {
        self.entries.push(Entry { interface, number, place, claimed });
    }

    /// The place of the endpoint that `interface` asks for.
    pub(in super::super) fn find(&self, interface: u64, number: u32) -> Option<u32> {
        let found = self.entries.iter().find(|entry| (entry.interface, entry.number) == (interface, number));
        found.map(|entry| entry.place)
    }

    /// The connection was there, and is not any more.
    pub(in super::super) fn has_ended(&self, interface: u64, number: u32) -> bool {
        self.ended.contains(&(interface, number))
    }

    /// The peer made the endpoint at `place`, and nobody here asked for it.
    pub(in super::super) fn is_unclaimed(&self, place: u32) -> bool {
        self.entries.iter().any(|entry| entry.place == place && !entry.claimed)
    }

    /// The endpoint at `place` is gone.
    pub(in super::super) fn leave(&mut self, place: u32) {
        let Some(at) = self.entries.iter().position(|entry| entry.place == place) else { return };
        let gone = self.entries.swap_remove(at);
        if self.ended.len() == ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back((gone.interface, gone.number));
    }
}

/// An endpoint that asks, again and again.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Requesting {
    started: Time,
    next: Time,
    tries: u32,
    whole: Time,
}

impl Requesting {
    /// Between the first two requests; then twice as long each time, up to a second.
    const FIRST: Time = 10 * TICK;
    const MOST: Time = 1000 * TICK;

    /// The first request is sent now; after `whole` it is given up.
    pub(in super::super) fn new(now: Time, whole: Time) -> Self {
        Self { started: now, next: now + Self::FIRST, tries: 1, whole }
    }

    /// When to ask again.
    pub(in super::super) fn due(&self) -> Time {
        self.next
    }

    /// Whether to ask again.
    pub(in super::super) fn look(&mut self, now: Time) -> Overdue {
        if now < self.next {
            return Overdue::No;
        }
        if now.saturating_sub(self.started) >= self.whole {
            self.next = Time::MAX;
            return Overdue::GivenUp { tries: self.tries };
        }
        self.next = now + (Self::FIRST << self.tries.min(16)).min(Self::MOST);
        self.tries += 1;
        Overdue::Lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_find_each_other_whoever_asks_first() {
        let mut here = Directory::default();
        assert_eq!(here.claim(7), Claim::New { number: 0 });
        here.enter(7, 0, 3, true);
        assert_eq!(here.find(7, 0), Some(3), "simultaneous: the peer asks for the same");
        assert_eq!((here.find(7, 1), here.find(8, 0)), (None, None));
        // The peer asks for one more.
        here.enter(7, 1, 4, false);
        assert!(here.is_unclaimed(4) && !here.is_unclaimed(3));
        assert_eq!(here.claim(7), Claim::Waiting { place: 4 });
        assert_eq!(here.claim(7), Claim::New { number: 2 });
    }

    #[test]
    fn numbers_of_connections_that_ended_are_not_used_again() {
        let mut here = Directory::default();
        here.enter(7, 0, 3, true);
        here.leave(3);
        here.leave(3);
        assert!(here.has_ended(7, 0) && !here.has_ended(7, 1) && here.find(7, 0).is_none());
        assert_eq!(here.claim(7), Claim::New { number: 1 });
        for number in 0..2 * ENDED as u32 {
            here.enter(9, number, 5, true);
            here.leave(5);
        }
        assert_eq!(here.ended.len(), ENDED);
    }

    #[test]
    fn requests_are_repeated_and_given_up() {
        let mut requesting = Requesting::new(0, 10_000 * TICK);
        let mut asked = 1;
        for now in (0..).step_by(TICK as usize) {
            match requesting.look(now) {
                Overdue::No => {}
                Overdue::Lost => asked += 1,
                Overdue::GivenUp { tries } => {
                    assert_eq!(tries, asked);
                    assert!((10_000 * TICK..=11_000 * TICK).contains(&now));
                    break;
                }
            }
        }
        assert!((10..30).contains(&asked), "{asked}");
    }
}
