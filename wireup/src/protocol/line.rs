//! A bounded number of links that this side offers are half-open at a time; the others wait in
//! order.

use std::collections::BTreeMap;

use super::id::LinkId;

#[derive(Debug)]
pub(super) struct Line {
    limit: usize,
    active: usize,
    next_ticket: u64,
    waiting: BTreeMap<u64, LinkId>,
}

impl Line {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), active: 0, next_ticket: 0, waiting: BTreeMap::new() }
    }

    pub(super) fn active(&self) -> usize {
        self.active
    }

    /// Adds `link` to the end. Returns its ticket.
    pub(super) fn wait(&mut self, link: LinkId) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.insert(ticket, link);
        ticket
    }

    /// Removes a link that waits.
    pub(super) fn leave(&mut self, ticket: u64) {
        self.waiting.remove(&ticket);
        self.shrink();
    }

    /// An emptied B-tree keeps a node.
    fn shrink(&mut self) {
        if self.waiting.is_empty() {
            self.waiting = BTreeMap::new();
        }
    }

    /// Ends a link's activity.
    pub(super) fn release(&mut self) {
        self.active -= 1;
    }

    /// Returns the next link to be active, if one may be.
    pub(super) fn admit(&mut self) -> Option<LinkId> {
        if self.active >= self.limit {
            return None;
        }
        let (_, link) = self.waiting.pop_first()?;
        self.shrink();
        self.active += 1;
        Some(link)
    }
}
