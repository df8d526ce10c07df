//! The pool of initiators, and the policies by which endpoints take them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use super::initiator::{Holder, Initiator};
use super::state::State;
use crate::base::config::DciPolicy;
use crate::transport::common::post_state::PostBlock;

/// Blocks that an endpoint may post while others wait, with [`DciPolicy::Quota`]: 32 operations of
/// two blocks.
const QUOTA: u64 = 64;

pub(crate) struct Initiators {
    all: Box<[Initiator]>,
    /// Numbers of the free ones. The one that was used last is at the back.
    free: RefCell<VecDeque<u32>>,
    policy: DciPolicy,
    /// An endpoint found none free since the last one was returned.
    wanted: Cell<bool>,
    /// Grants found none free.
    pub(super) wanted_by_grants: Cell<bool>,
}

impl Initiators {
    pub(super) fn new(all: Vec<Initiator>, policy: DciPolicy) -> Self {
        let free = (0..all.len() as u32).rev().collect();
        Self {
            all: all.into(),
            free: RefCell::new(free),
            policy,
            wanted: Cell::new(false),
            wanted_by_grants: Cell::new(false),
        }
    }

    pub(super) fn all(&self) -> &[Initiator] {
        &self.all
    }

    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> Option<&Initiator> {
        self.all.get(number as usize)
    }

    /// Returns the initiator that the endpoint in `slot` always uses, if the policy assigns one.
    pub(super) fn assigned(&self, slot: u32) -> Option<&Initiator> {
        if self.policy != DciPolicy::Hash {
            return None;
        }
        // The factor spreads consecutive numbers (Knuth, multiplicative hashing).
        let hash = slot.wrapping_mul(0x9e37_79b1) >> 16;
        self.all.get(hash as usize % self.all.len())
    }

    pub(super) fn is_shared(&self) -> bool {
        self.policy == DciPolicy::Hash
    }

    /// Returns whether one is free.
    pub(super) fn has_free(&self) -> bool {
        !self.free.borrow().is_empty()
    }

    /// Takes a free one for `holder`. Grants come before endpoints.
    pub(super) fn take(&self, holder: Holder) -> Option<&Initiator> {
        let for_grants = holder == Holder::Grants;
        if self.wanted_by_grants.get() && !for_grants {
            return None;
        }
        let mut free = self.free.borrow_mut();
        let number = match self.policy {
            DciPolicy::Lru => free.pop_front(),
            _ => free.pop_back(),
        };
        drop(free);
        let Some(initiator) = number.and_then(|number| self.get(number)) else {
            self.wanted.set(true);
            self.wanted_by_grants.set(self.wanted_by_grants.get() || for_grants);
            self.all.iter().for_each(|initiator| self.check_turn(initiator));
            return None;
        };
        if for_grants {
            self.wanted_by_grants.set(false);
        }
        initiator.holder.set(holder);
        initiator.taken_at.set(initiator.posted().wrapping_add(initiator.taken_at.get()));
        Some(initiator)
    }

    /// Returns an idle one, which has no holder.
    pub(super) fn give(&self, initiator: &Initiator) {
        self.wanted.set(false);
        self.free.borrow_mut().push_back(initiator.number);
    }

    /// Makes the holder stop until nothing is outstanding, if others wait and its turn is over.
    #[inline]
    pub(super) fn check_turn(&self, initiator: &Initiator) {
        if self.wanted.get() {
            self.end_turn(initiator);
        }
    }

    #[cold]
    fn end_turn(&self, initiator: &Initiator) {
        let Holder::Endpoint(state) = initiator.holder.get() else { return };
        let is_over = self.policy == DciPolicy::Quota && initiator.posted() >= QUOTA;
        if is_over || self.wanted_by_grants.get() {
            // SAFETY: the interface keeps an endpoint that holds an initiator.
            let state: &State = unsafe { state.as_ref() };
            state.posting.set(PostBlock::Yielding, true);
        }
    }
}
