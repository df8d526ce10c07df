//! Pairing of endpoints where one side connects to an interface instead of an endpoint.
//!
//! The connections between two interfaces are numbered from zero. The connecting side takes the
//! next number and requests it until the peer responds. An interface that receives a request for a
//! number without endpoint creates one, which the next call to connect in the other direction takes
//! over. If both sides connect at once, both request the same number, and each request is the
//! response to the other.

use std::collections::VecDeque;

use super::{Overdue, TICK, Time};

/// Number of ended connections that are remembered, so that a late request for one does not open a
/// new one.
const ENDED: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    interface: u64,
    number: u32,
    place: u32,
    claimed: bool,
}

/// How to connect to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Claim {
    /// The peer requested first: the endpoint in the slot `place` is connected.
    Waiting { place: u32 },
    /// Request this number.
    New { number: u32 },
}

/// The connections of one interface to others.
#[derive(Debug, Default)]
pub(in super::super) struct Directory {
    entries: Vec<Entry>,
    ended: VecDeque<(u64, u32)>,
}

impl Directory {
    /// Connects to `interface`, for a caller on this side.
    pub(in super::super) fn claim(&mut self, interface: u64) -> Claim {
        let to_it = |entry: &&mut Entry| entry.interface == interface && !entry.claimed;
        if let Some(entry) = self.entries.iter_mut().filter(to_it).min_by_key(|entry| entry.number)
        {
            entry.claimed = true;
            return Claim::Waiting { place: entry.place };
        }
        let open = self.entries.iter().map(|entry| (entry.interface, entry.number));
        let numbers = open.chain(self.ended.iter().copied()).filter(|&(of, _)| of == interface);
        Claim::New { number: numbers.map(|(_, number)| number.wrapping_add(1)).max().unwrap_or(0) }
    }

    /// Enters the endpoint in the slot `place` for this connection; `claimed` if this side
    /// connected.
    pub(in super::super) fn enter(
        &mut self,
        interface: u64,
        number: u32,
        place: u32,
        claimed: bool,
    ) {
        self.entries.push(Entry { interface, number, place, claimed });
    }

    /// Returns the slot of the endpoint that `interface` requests.
    pub(in super::super) fn find(&self, interface: u64, number: u32) -> Option<u32> {
        let found = self
            .entries
            .iter()
            .find(|entry| (entry.interface, entry.number) == (interface, number));
        found.map(|entry| entry.place)
    }

    /// Returns whether the connection existed and has ended.
    pub(in super::super) fn has_ended(&self, interface: u64, number: u32) -> bool {
        self.ended.contains(&(interface, number))
    }

    /// Returns whether the endpoint in the slot `place` was created for the peer, and this side has
    /// not claimed it.
    pub(in super::super) fn is_unclaimed(&self, place: u32) -> bool {
        self.entries.iter().any(|entry| entry.place == place && !entry.claimed)
    }

    /// Removes the endpoint in the slot `place`.
    pub(in super::super) fn leave(&mut self, place: u32) {
        let Some(at) = self.entries.iter().position(|entry| entry.place == place) else { return };
        let gone = self.entries.swap_remove(at);
        if self.ended.len() == ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back((gone.interface, gone.number));
    }
}

/// The retries of an endpoint's request.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Requesting {
    started: Time,
    next: Time,
    tries: u32,
    whole: Time,
}

impl Requesting {
    /// Time between the first two requests; it doubles each time, up to a second.
    const FIRST: Time = 10 * TICK;
    const MOST: Time = 1000 * TICK;

    /// Starts when the first request is sent; after `whole` it gives up.
    pub(in super::super) fn new(now: Time, whole: Time) -> Self {
        Self { started: now, next: now + Self::FIRST, tries: 1, whole }
    }

    /// Returns when to send the next request.
    pub(in super::super) fn due(&self) -> Time {
        self.next
    }

    /// Returns whether to send another request.
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
        // The peer requests one more.
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
