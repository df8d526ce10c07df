//! The mapped regions that an endpoint used last.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use barewire_shared_bytes::SharedBytes;
use barewire_shm::{LIVE, Mapped};

use super::domain::RemoteKey;

/// A power of two.
const PLACES: usize = 4;

/// Cost of posts until the connection is checked, see [`cost`]: a fraction of a millisecond of
/// posts of any size.
const ALLOWANCE: i64 = 4 << 20;

/// The part of the allowance that a post takes: its bytes and a fixed amount.
#[inline(always)]
fn cost(length: usize) -> i64 {
    (length as i64).saturating_add(32)
}

/// A cache with one region per class; the connection has all of them.
#[derive(Default)]
pub(super) struct Views {
    places: [View; PLACES],
    /// What is left of the allowance. Posts to mapped memory succeed even if its owner has exited,
    /// so when nothing is left a post takes the path that checks.
    left: Cell<i64>,
}

/// The life word of an absent region.
static NONE: AtomicU64 = AtomicU64::new(0);

/// A region that stays mapped while the view holds it.
struct View {
    id: Cell<u64>,
    bytes: Cell<SharedBytes>,
    /// Mapped together with the bytes.
    life: Cell<NonNull<AtomicU64>>,
    mapped: RefCell<Option<Mapped>>,
}

impl Default for View {
    fn default() -> Self {
        Self {
            id: Cell::new(0),
            bytes: Cell::new(SharedBytes::new(NonNull::dangling(), 0)),
            life: Cell::new(NonNull::from(&NONE)),
            mapped: RefCell::new(None),
        }
    }
}

impl View {
    #[inline(always)]
    fn is_live(&self) -> bool {
        // SAFETY: `life` points into the region that `mapped` holds, or to the static `NONE`.
        unsafe { self.life.get().as_ref() }.load(Ordering::Acquire) == LIVE
    }
}

impl Views {
    #[inline(always)]
    fn place(&self, id: u64) -> &View {
        &self.places[id as usize % PLACES]
    }

    /// Returns whether the key's region is cached, alive and has `length` bytes from `offset` on,
    /// and the allowance is not spent.
    #[inline(always)]
    pub(super) fn have(&self, key: &RemoteKey, (offset, length): (u64, usize)) -> bool {
        let view = self.place(key.id());
        // Regions of different processes share an id with a probability of 2^-64; the peer's own is
        // used.
        if view.id.get() != key.id() {
            return false;
        }
        let left = self.left.get().wrapping_sub(cost(length));
        self.left.set(left);
        left >= 0 && view.bytes.get().contains(offset as usize, length) && view.is_live()
    }

    /// Returns the key's region, if [`Self::have`] has just returned `true`. It stays mapped until
    /// the next [`Self::add`] or [`Self::clear`].
    #[inline(always)]
    pub(super) fn bytes(&self, key: &RemoteKey) -> SharedBytes {
        self.place(key.id()).bytes.get()
    }

    /// Caches the key's region, whose mapping has at least as many bytes as the key says. Renews
    /// the allowance, at least for one post of `length` bytes.
    pub(super) fn add(&self, key: &RemoteKey, mapped: Mapped, length: usize) {
        self.left.set(ALLOWANCE.saturating_add(cost(length)));
        let view = self.place(key.id());
        view.id.set(key.id());
        let size = mapped.size().min(key.region().2 as usize);
        view.bytes.set(SharedBytes::new(mapped.start(), size));
        view.life.set(NonNull::from(mapped.life()));
        view.mapped.replace(Some(mapped));
    }

    /// Unmaps all regions.
    pub(super) fn clear(&self) {
        for view in &self.places {
            view.bytes.set(SharedBytes::new(NonNull::dangling(), 0));
            view.life.set(NonNull::from(&NONE));
            view.mapped.replace(None);
        }
    }
}
