//! The numbers by which peers name links.
//!
//! A number is 48 random bits, which only the peer of the link gets: a message that names a link is
//! the peer's. The lowest bits of a number are its cell in a table, so that finding a link takes no
//! search.

use super::super::message::LINK_BITS;
use super::super::slab::{Key, Slab};
use super::{FLAG, Link};

const LINK_MASK: u64 = (1 << LINK_BITS) - 1;
/// An empty cell.
const NONE: u32 = u32::MAX;

/// The slots of links, by the lowest bits of their numbers.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// A power of two, at least twice as many as there are links.
    cells: Vec<u32>,
}

impl Numbers {
    #[inline]
    fn cell(&self, number: u64) -> usize {
        number as usize & self.cells.len().wrapping_sub(1)
    }

    /// Adds a link that is to be inserted into `slot`. Returns its number, which is one of those
    /// that `random` returns.
    pub(super) fn add(
        &mut self,
        links: &Slab<Link>,
        slot: u32,
        mut random: impl FnMut() -> u64,
    ) -> u64 {
        if 2 * (links.len() + 1) > self.cells.len() {
            self.grow(links);
        }
        loop {
            let number = random() & LINK_MASK;
            let cell = self.cell(number);
            if let Some(place) = self.cells.get_mut(cell).filter(|place| **place == NONE) {
                *place = slot;
                return number;
            }
        }
    }

    /// Links in different cells are in different cells of a larger table, too.
    fn grow(&mut self, links: &Slab<Link>) {
        self.cells = vec![NONE; (2 * self.cells.len()).max(2)];
        for (key, link) in links.iter() {
            let cell = self.cell(link.own);
            self.cells[cell] = key.slot();
        }
    }

    pub(super) fn remove(&mut self, number: u64) {
        let cell = self.cell(number);
        if let Some(place) = self.cells.get_mut(cell) {
            *place = NONE;
        }
    }

    /// The slot of the link that may have this number.
    #[inline]
    pub(super) fn slot(&self, number: u64) -> Option<u32> {
        self.cells.get(self.cell(number)).copied()
    }

    /// The link with this number.
    pub(super) fn find<'a>(&self, links: &'a Slab<Link>, number: u64) -> Option<(Key, &'a Link)> {
        let slot = self.slot(number)?;
        links.at(slot).filter(|(_, link)| link.own == number)
    }

    /// The link of a tagged message, whose immediate has 31 bits of the number only. The caller
    /// checks the queue pair of the message.
    pub(super) fn find_short<'a>(
        &self,
        links: &'a Slab<Link>,
        immediate: u32,
    ) -> Option<(Key, &'a Link)> {
        let slot = self.slot(u64::from(immediate))?;
        links.at(slot).filter(|(_, link)| short(link.own) == immediate)
    }
}

/// The part of a number that an immediate has.
pub(super) fn short(number: u64) -> u32 {
    number as u32 & !FLAG
}
