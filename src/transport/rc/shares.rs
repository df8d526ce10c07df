//! The endpoints' shares of the completion queue.
//!
//! A device does not check whether a completion queue overruns. Each outstanding request has at most
//! one completion, so the requests that may be outstanding together are at most its entries. Each
//! endpoint may have [`LEAST`] units of its ring outstanding. The first endpoints may fill their
//! rings. When a post of a later one finds no room, the next progress gives it a larger share, taken
//! from endpoints that do not use theirs. So a post counts nothing.

use std::cell::Cell;
use std::rc::Rc;

use super::{Driver, Queue, Shared, State};
use crate::base::address::TransportId;
use crate::base::config::InterfaceConfig;
use crate::base::error::{OpenError, PostError};

/// Units of the ring that each endpoint may have outstanding: room for every post.
pub(super) const LEAST: u32 = 8;
/// How many endpoints can fill their rings at the same time.
const FULL: u32 = 16;
/// No slot.
const NONE: u32 = u32::MAX;
/// Refused posts after which shares are looked for again.
const PAUSE: u32 = 64;
/// Endpoints whose shares are reduced at most for one that needs more.
const MOST_REDUCED: usize = 256;

/// Returns how many units of all send rings may be outstanding together.
pub(super) fn sends(config: &InterfaceConfig) -> u32 {
    let least = config.max_endpoints.saturating_mul(LEAST);
    let shared = FULL.saturating_mul(config.send_ring).saturating_add(least);
    config.max_endpoints.saturating_mul(config.send_ring).min(shared)
}

/// Returns the number of entries of a completion queue for `sends` units of send rings and
/// `receives` receive requests.
///
/// # Errors
/// [`OpenError::Setting`] if they are more than the device's `limit`.
pub(crate) fn entries(
    transport: TransportId,
    config: &InterfaceConfig,
    limit: u32,
    [sends, receives]: [u32; 2],
) -> Result<u32, OpenError> {
    let entries = sends.saturating_add(receives);
    if entries <= limit {
        return Ok(entries);
    }
    Err(OpenError::Setting {
        transport,
        setting: "max_endpoints",
        value: config.max_endpoints.into(),
        reason: format!(
            "it needs a completion queue of {entries} entries, and the device allows {limit}; \
             reduce it, send_ring or the receive buffers"
        ),
    })
}

/// What endpoints may have outstanding beyond [`LEAST`].
pub(crate) struct Shares {
    /// Units that no endpoint has.
    spare: Cell<u32>,
    /// The endpoint whose share may be reduced next.
    next: Cell<usize>,
    /// Slot of the endpoint whose post found no room last, or [`NONE`].
    starving: Cell<u32>,
    /// The units that its post needed.
    needed: Cell<u32>,
    /// How often to ignore such posts, since no share could be reduced.
    pause: Cell<u32>,
}

impl Shares {
    pub(super) fn new(config: &InterfaceConfig) -> Self {
        let spare = sends(config) - config.max_endpoints * LEAST;
        let (starving, needed) = (Cell::new(NONE), Cell::new(0));
        Self { spare: Cell::new(spare), next: Cell::new(0), starving, needed, pause: Cell::new(0) }
    }

    /// Takes the share of a new endpoint, whose ring has `ring` units.
    pub(super) fn take(&self, ring: u32) -> u32 {
        let more = self.spare.get().min(ring - LEAST);
        self.spare.set(self.spare.get() - more);
        LEAST + more
    }

    /// Returns the share of an endpoint.
    pub(super) fn give(&self, share: u32) {
        self.spare.set(self.spare.get() + share - LEAST);
    }
}

impl<D: Driver> Shared<D> {
    /// Reduces the shares of endpoints that do not use theirs until `wanted` units are spare.
    fn reduce_shares(&self, wanted: u32) {
        let endpoints = self.core.endpoints.borrow();
        let shares = &self.shares;
        for _ in 0..endpoints.len().min(MOST_REDUCED) {
            if shares.spare.get() >= wanted {
                return;
            }
            let next = if shares.next.get() < endpoints.len() { shares.next.get() } else { 0 };
            shares.next.set(next + 1);
            let Some(state) = endpoints.get(next) else { return };
            let (before, room) = state.with_queue(|queue| (queue.most_outstanding(), queue.room()));
            if room > LEAST {
                let after = state.set_share(LEAST.max(before.saturating_sub(wanted)));
                shares.spare.set(shares.spare.get() + before.saturating_sub(after));
            }
        }
    }
}

impl<D: Driver> Shared<D> {
    /// Gives a larger share to the endpoint whose post found no room last.
    pub(super) fn grow_shares(&self) {
        let shares = &self.shares;
        let starving = shares.starving.replace(NONE);
        if starving == NONE {
            return;
        }
        if shares.pause.get() > 0 {
            return shares.pause.set(shares.pause.get() - 1);
        }
        let find = |state: &&Rc<State<D>>| state.slot.get() == starving && state.posting.is_alive();
        let state = self.core.endpoints.borrow().iter().find(find).cloned();
        if state.is_some_and(|state| !state.grow_share(shares.needed.get())) {
            shares.pause.set(PAUSE);
        }
    }
}

impl<D: Driver> State<D> {
    /// Refuses a post that needs `units` of the ring, which were not free, and lets the next
    /// progress take a larger share.
    #[inline(always)]
    pub(crate) fn refuse_full(&self, units: u32) -> PostError {
        if self.may_grow.get() {
            let shares = &self.shared.shares;
            shares.starving.set(self.slot.get());
            shares.needed.set(units);
            self.shared.attention.call();
        }
        self.posting.refuse()
    }

    /// As [`Self::refuse_full`], for posts that nothing follows. Inlined there, its count would be
    /// merged with that of the post, which would then save registers. It returns nothing, because a
    /// post would need memory for the error.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_full(&self, units: u32) {
        let _ = self.refuse_full(units);
    }

    /// Takes a larger share, with room for `units`. Returns `false` if there is none.
    fn grow_share(&self, units: u32) -> bool {
        let ring = self.shared.config.send_ring;
        let (before, room) = self.with_queue(|queue| (queue.most_outstanding(), queue.room()));
        let needed = before - room.min(before) + units;
        let wanted = needed.max(2 * before).min(ring);
        let Some(more) = wanted.checked_sub(before).filter(|more| *more > 0) else { return true };
        let shares = &self.shared.shares;
        if shares.spare.get() < more {
            self.shared.reduce_shares(more);
        }
        // The own share may have been reduced as well.
        let before = self.with_queue(|queue| queue.most_outstanding());
        let extra = shares.spare.get().min(more);
        if extra < more.min(LEAST) {
            return false;
        }
        let after = self.set_share(before + extra);
        shares.spare.set(shares.spare.get() - after.saturating_sub(before));
        true
    }

    /// Sets the limit of outstanding units to `share`, or as close as possible, and returns it.
    fn set_share(&self, share: u32) -> u32 {
        let share = self.with_queue(|queue| queue.limit_outstanding(share));
        self.may_grow.set(share < self.shared.config.send_ring);
        self.in_flight().resize(share.next_power_of_two());
        share
    }
}
