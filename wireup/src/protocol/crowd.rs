//! The links that peers offer and that are not connected: a bounded number, shared fairly between
//! the ways on which they come.
//!
//! A way is the route to a peer's address, so nodes that one process invents have one way. A link
//! of the way that has most makes room for one of a way that has fewer.

use std::collections::{BTreeMap, VecDeque};

use super::id::LinkId;

/// Length of the period in which messages of a way are counted.
const PERIOD: u64 = 100_000;
/// OFFERs of a way that are read in a period; parts count. More are resent.
const OFFERS: u32 = 1024;
/// Ways at which unused ones are forgotten.
const WAYS: usize = 256;

/// What came on one way.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// Links that wait for a place or have one, in order of arrival.
    guests: VecDeque<LinkId>,
    /// Those with a place.
    active: usize,
    /// Those that only the peer requested.
    counted: usize,
    /// Connected links that only the peer requested.
    connected: usize,
    /// When a link was last given a place.
    served: u64,
    period: u64,
    offers: u32,
}

impl Way {
    /// Returns whether nothing is known of the way but how many OFFERs came on it.
    fn is_unused(&self) -> bool {
        self.guests.is_empty() && self.connected == 0
    }
}

/// The links that peers offer.
#[derive(Debug)]
pub(super) struct Crowd {
    /// Places.
    limit: usize,
    active: usize,
    counted: usize,
    ways: BTreeMap<u16, Way>,
    served: u64,
}

impl Crowd {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), active: 0, counted: 0, ways: BTreeMap::new(), served: 0 }
    }

    pub(super) fn active(&self) -> usize {
        self.active
    }

    pub(super) fn is_full(&self) -> bool {
        self.active >= self.limit
    }

    /// Links that only peers requested.
    pub(super) fn counted(&self) -> usize {
        self.counted
    }

    /// Connected links of a way that only peers requested.
    pub(super) fn connected(&self, way: u16) -> usize {
        self.ways.get(&way).map_or(0, |way| way.connected)
    }

    fn way(&mut self, way: u16) -> &mut Way {
        self.ways.entry(way).or_default()
    }

    /// Counts an OFFER of a way. Returns whether it is to be read.
    pub(super) fn may_offer(&mut self, way: u16, now: u64) -> bool {
        if self.ways.len() >= WAYS && !self.ways.contains_key(&way) {
            self.ways.retain(|_, way| !way.is_unused());
        }
        let way = self.way(way);
        if now.saturating_sub(way.period) >= PERIOD {
            (way.period, way.offers) = (now, 0);
        }
        way.offers = way.offers.saturating_add(1);
        way.offers <= OFFERS
    }

    /// Adds a link, which waits for a place.
    pub(super) fn enter(&mut self, way: u16, link: LinkId) {
        self.way(way).guests.push_back(link);
    }

    /// Removes a link, which has a place or not.
    pub(super) fn leave(&mut self, way: u16, link: LinkId, has_place: bool) {
        let Some(found) = self.ways.get_mut(&way) else { return };
        if let Some(at) = found.guests.iter().position(|guest| *guest == link) {
            found.guests.remove(at);
        }
        if has_place {
            found.active -= 1;
            self.active -= 1;
        }
    }

    pub(super) fn count(&mut self, way: u16) {
        self.way(way).counted += 1;
        self.counted += 1;
    }

    pub(super) fn uncount(&mut self, way: u16) {
        self.way(way).counted -= 1;
        self.counted -= 1;
    }

    /// Counts a connected link that only the peer requested.
    pub(super) fn connect(&mut self, way: u16) {
        self.way(way).connected += 1;
    }

    pub(super) fn disconnect(&mut self, way: u16) {
        self.way(way).connected -= 1;
    }

    /// Gives a link a place.
    pub(super) fn serve(&mut self, way: u16) {
        self.served += 1;
        let served = self.served;
        let way = self.way(way);
        way.served = served;
        way.active += 1;
        self.active += 1;
    }

    /// Links of a way in order of arrival.
    pub(super) fn guests(&self, way: u16) -> impl Iterator<Item = LinkId> {
        self.ways.get(&way).into_iter().flat_map(|way| way.guests.iter().copied())
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = LinkId> {
        self.ways.values().flat_map(|way| way.guests.iter().copied())
    }

    /// The ways that wait for a place, those with fewest places first, and of these the one that
    /// has waited longest.
    pub(super) fn waiting(&self) -> Vec<u16> {
        let waiting = self.ways.iter().filter(|(_, way)| way.guests.len() > way.active);
        let mut waiting: Vec<_> =
            waiting.map(|(number, way)| (way.active, way.served, *number)).collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, _, number)| number).collect()
    }

    /// The way that has most places, if it has at least two more than `way`.
    pub(super) fn busier(&self, way: u16) -> Option<u16> {
        self.busiest(way, |way| way.active)
    }

    /// The way that has most counted links, if it has at least two more than `way`.
    pub(super) fn more_counted(&self, way: u16) -> Option<u16> {
        self.busiest(way, |way| way.counted)
    }

    fn busiest(&self, than: u16, count: impl Fn(&Way) -> usize) -> Option<u16> {
        let own = self.ways.get(&than).map_or(0, &count);
        let (number, most) = self.ways.iter().max_by_key(|(_, way)| count(way))?;
        (count(most) > own + 1).then_some(*number)
    }

    /// Forgets everything: no link exists.
    pub(super) fn clear(&mut self) {
        self.ways = BTreeMap::new();
    }
}
